"""A server for the official clients to talk to.

`cargo xtask clients` runs all of this. LONGRUN_BINARY names the binary. The model is tiny and random: it speaks bytes, in
a template with reasoning and tools, and says nothing that makes sense.
"""

import os
import re
import subprocess
import time
import urllib.request

import pytest

KEY = "sk-test"
MODEL = "tiny"


class Server:
    def __init__(self, *flags):
        command = [os.environ["LONGRUN_BINARY"], "serve", "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"the server did not start: {line!r}"
        self.url = found.group()

    def metric(self, name):
        request = urllib.request.Request(self.url + "/metrics", headers={"x-api-key": KEY})
        with urllib.request.urlopen(request) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def wait_until_idle(self):
        for _ in range(500):
            if self.metric("longrun_rows_running") + self.metric("longrun_rows_waiting") == 0:
                return
            time.sleep(0.02)
        raise AssertionError("rows are left")

    def stop(self):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="session")
def server():
    server = Server(
        "--model", "tiny:llama", "--alias", MODEL, "--context", "4096", "--memory", "64MiB",
        "--api-key", KEY, "--max-requests", "2",
    )
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def nothing_is_left(server):
    """After every test nothing is in service."""
    yield
    server.wait_until_idle()
