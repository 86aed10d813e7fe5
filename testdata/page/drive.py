"""Drives the built-in page in a headless browser: `drive.py LONGRUN BROWSER PICTURE.png`.

Owns what a person would do and see. Anything that the console calls an error, and any request to another host, fails it.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from playwright.sync_api import expect, sync_playwright

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]
KEY = "a-key"


class Server:
    """A running `longrun serve`."""

    def __init__(self, binary, *flags):
        command = [binary, "serve", "--port", "0", "--log-level", "warn", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def get(self, path, body=None):
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        return urllib.request.urlopen(request, timeout=60).read().decode()

    def others(self, seconds):
        """Other people's requests, for so long."""
        def one(seed, end):
            while time.time() < end:
                message = {"role": "user", "content": "Once upon a time, " + "there was a boat and " * (seed % 9)}
                body = {"messages": [message], "max_tokens": 100 + 60 * seed, "seed": seed, "temperature": 0.9}
                self.get("/v1/chat/completions", body)
                time.sleep(0.2 * seed)
        end = time.time() + seconds
        threads = [threading.Thread(target=one, args=(seed, end)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def metric(self, start):
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(start)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def until(what, holds, seconds=30):
    end = time.time() + seconds
    while time.time() < end:
        if holds():
            print(f"ok: {what}")
            return
        time.sleep(0.05)
    raise SystemExit(f"failed: {what}")


def check(what, holds):
    until(what, lambda: holds, 0.1)


class Watched:
    """A page whose console and requests are kept."""

    def __init__(self, context, server):
        self.page = context.new_page()
        self.server = server
        self.errors, self.hosts, self.expected = [], set(), []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self.console)
        self.page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page.goto(server.url + "/")

    def console(self, message):
        if message.type in ("error", "warning") and not any(text in message.text for text in self.expected):
            self.errors.append(message.text)

    def text(self, turn=-1):
        found = self.page.locator("#turns .turn.assistant .text")
        count = found.count()
        return found.nth(turn % count).inner_text() if count else ""

    def send(self, text):
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def done(self, seconds=120):
        until("the answer is done", lambda: self.page.locator("#send").is_visible(), seconds)

    def clean(self):
        check(f"the console is silent {self.errors}", not self.errors)
        own = self.server.url.split("/")[2]
        others = {host for host in self.hosts if host not in (own, "") and "," not in host}
        check(f"no other host was asked {others}", not others)


def conversation(watched):
    """Streams, a second turn, editing, regenerating; the charts move and the buffers do not."""
    page, server = watched.page, watched.server
    expect(page.locator("#model")).to_have_value("demo")
    page.evaluate("""() => {
        window.seen = [];
        const look = () => {
            const text = document.querySelector("#turns .turn.assistant .text")?.textContent;
            if (text && !document.getElementById("stop").hidden) window.seen.push(text);
        };
        const all = { subtree: true, childList: true, characterData: true };
        new MutationObserver(look).observe(document.getElementById("turns"), all);
    }""")
    watched.send("Once upon a time, there was a little robot")
    until("an answer begins", lambda: watched.text() != "")
    watched.done()
    whole = page.locator(".turn.assistant .text").text_content()
    steps = sorted(set(page.evaluate("window.seen")), key=len)
    check(f"it grows while it streams, in {len(steps)} steps", len(steps) > 5)
    odd = [step for step in steps if not whole.startswith(step)]
    check(f"each step is a beginning of the whole: {odd[:1]}", not odd)
    until("its figures are shown", lambda: "tokens/s" in page.locator(".assistant .meta").first.inner_text())
    watched.send("The next day, the robot went to the sea.")
    until("a second answer begins", lambda: page.locator(".turn.assistant").count() == 2)
    watched.done()
    figures = page.locator(".turn.assistant .meta").last.inner_text()
    cached = int(re.search(r"(\d+) of \d+ prompt tokens", figures).group(1))
    check(f"the second turn reuses the first: {figures!r}", cached > 10)
    page.get_by_role("button", name="Regenerate").click()
    watched.done()
    check("regenerating leaves two answers", page.locator(".turn.assistant").count() == 2)
    page.get_by_role("button", name="Edit").click()
    watched.send("Then it found a big red ball in the park.")
    watched.done()
    check("editing replaces a turn", page.locator(".turn.user").count() == 2)
    paths = page.locator("#rates path.s0")
    drawn = paths.get_attribute("d")
    until("the charts move", lambda: paths.get_attribute("d") != drawn, 5)
    until("tokens a second were seen", lambda: page.evaluate(
        "document.querySelector('#rates path.s0').getAttribute('d').match(/ ([0-9.]+)/g).some((y) => Number(y) < 70)"))
    until("the buffers are flat, and it says so", lambda: re.search(
        r"Flat at \d+ while [\d,.k]+ tokens", page.locator("#proof").inner_text()))
    check("rows are done", server.metric("longrun_rows_running") == 0)


def plain_text(watched):
    """Text of a model is never markup."""
    shown = watched.page.evaluate("""async () => {
        const { Prose } = await import("/page/prose.js");
        const root = document.createElement("div");
        const prose = new Prose(root);
        const text = "a <img src=x onerror=alert(1)> `b` c\\nd\\n\\n```js\\nlet x = '<b>';\\n```\\nend";
        const steps = [...text].map((letter) => (prose.push(letter), root.textContent));
        prose.finish();
        const plain = (shown) => shown.replaceAll("`", "");
        const odd = steps.filter((step) => !plain(root.textContent).startsWith(plain(step)));
        if (odd.length > 0) return odd;
        return [root.textContent, [...root.querySelectorAll("*")].map((node) => node.tagName).join(" ")];
    }""")
    text = "a <img src=x onerror=alert(1)> b c\nd" + "jsCopy" + "let x = '<b>';\n" + "end"
    check(f"text stays text {shown}", shown[0] == text)
    check("blocks are made", shown[1] == "P CODE DIV DIV SPAN BUTTON PRE CODE P")


def key_and_stop(watched):
    """The key is asked for; stop stops the server."""
    page, server = watched.page, watched.server
    watched.expected.append("401")
    for key in ("wrong", KEY):
        page.get_by_label("API key").fill(key)
        page.keyboard.press("Enter")
        if key == "wrong":
            expect(page.get_by_role("alert")).to_have_text("The server does not know that key.")
    expect(page.locator("#model")).to_have_value("tiny")
    print("ok: a key is asked for, a wrong one again")
    watched.send("Go on and on")
    until("it is in service", lambda: server.metric("longrun_rows_running") == 1)
    until("text is seen", lambda: watched.text() != "")
    page.get_by_role("button", name="Stop").click()
    until("the server stopped, too", lambda: server.metric("longrun_rows_running") == 0, 3)
    check("it was cancelled", server.metric('longrun_requests_total{model="tiny",outcome="cancelled"}') == 1)
    until("what came stays", lambda: "stopped" in page.locator(".assistant .meta").inner_text())
    page.locator("summary", has_text="Settings").click()
    watched.expected.append("400")
    page.get_by_label("Tokens at most").fill("100000")
    watched.send("Too much")
    until("an error is shown as text", lambda: "context length" in page.locator(".turn .error").inner_text())
    page.get_by_role("button", name="Clear").click()
    check("clear clears", page.locator(".turn").count() == 0)


# An answer with all that an answer may have, as a server sends it.
DELTAS = [
    {"reasoning_content": "Let me "}, {"reasoning_content": "look."}, {"content": "I **will** ask.\n\n```sh\nls"},
    {"content": " -l\n```\n"},
    {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"place": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"<Oslo>"}'}}]},
]


def rare_parts(watched):
    """Reasoning is folded, calls are shown and answered; a server that hangs up is told of."""
    page, sent = watched.page, []

    def fulfil(route):
        sent.append(route.request.post_data_json)
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in DELTAS if len(sent) == 1]
        choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls" if len(sent) == 1 else None})
        lines = ["data: " + json.dumps({"choices": [choice]}) for choice in choices]
        route.fulfill(content_type="text/event-stream", body="\n\n".join(lines) + "\n\ndata: [DONE]\n\n")

    page.route("**/v1/chat/completions", fulfil)
    page.get_by_label("Tokens at most").fill("50")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Tools").fill('[{"type": "function", "function": {"name": "weather"}}]')
    watched.send("How is the weather?")
    fold = page.locator("details.reasoning")
    until("reasoning is there", lambda: fold.count() == 1)
    check("it is folded", not fold.locator(".text").is_visible())
    fold.locator("summary").click()
    check("and opens", fold.inner_text().endswith("Let me look."))
    check("code is a block", page.locator(".code code").inner_text().strip() == "ls -l")
    check("a call is shown", page.locator(".call pre").inner_text() == '{"place": "<Oslo>"}')
    page.get_by_label("Result of weather").fill("rain")
    page.keyboard.press("Enter")
    until("it is told that the server hung up", lambda: "hung up" in page.locator(".turn .error").inner_text())
    body = sent[1]
    check("settings are sent", (body["max_tokens"], body["temperature"], len(body["tools"])) == (50, 0.5, 1))
    roles = [message["role"] for message in body["messages"]]
    check(f"the conversation is sent {roles}", roles == ["system", "user", "assistant", "tool"])
    check("the call goes back as it came", body["messages"][2]["tool_calls"] == [{
        "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "<Oslo>"}'}}])
    check("and its result", body["messages"][3] == {"role": "tool", "tool_call_id": "call_1", "content": "rain"})
    page.unroute("**/v1/chat/completions")


def narrow(watched):
    """On a phone nothing is wider than the page."""
    watched.page.set_viewport_size({"width": 360, "height": 700})
    wide = watched.page.evaluate("document.documentElement.scrollWidth")
    check(f"a phone shows all of it: {wide}", wide <= 360)


def picture(watched, path):
    """What the documentation shows: a conversation in the midst of others."""
    page = watched.page
    page.set_viewport_size({"width": 1280, "height": 980})
    page.get_by_role("button", name="Clear").click()
    page.locator("summary", has_text="Settings").click()
    page.get_by_label("Tokens at most").fill("90")
    page.locator("summary", has_text="Settings").click()
    others = threading.Thread(target=watched.server.others, args=(45,))
    others.start()
    time.sleep(20)
    watched.send("Once upon a time, there was a little robot")
    watched.done()
    time.sleep(8)
    watched.send(" Then it rained, and the robot")
    watched.done()
    time.sleep(8)
    page.locator("#scroll").evaluate("(box) => box.scrollTop = box.scrollHeight")
    page.screenshot(path=path)
    check("the picture is small", os.path.getsize(path) < 300_000)
    others.join()
    check("the buffers were flat all the while", "Flat at" in page.locator("#proof").inner_text())


def main():
    binary, browser, path = sys.argv[1:]
    demo = Server(binary, "--memory", "64MiB", "--threads", "1")
    tiny = Server(binary, "--memory", "256MiB", "--context", "32768", "--model", "tiny:llama", "--alias", "tiny",
                  "--api-key", KEY)
    try:
        with sync_playwright() as playwright, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            size = {"width": 1280, "height": 800}
            started = playwright.chromium.launch_persistent_context(
                folder, executable_path=browser, args=FLAGS, viewport=size, color_scheme="light")
            watched = Watched(started, demo)
            conversation(watched)
            plain_text(watched)
            picture(watched, path)
            watched.clean()
            second = Watched(started, tiny)
            key_and_stop(second)
            rare_parts(second)
            narrow(second)
            second.clean()
            started.close()
    finally:
        demo.stop()
        tiny.stop()
    print("the page does what it should")


if __name__ == "__main__":
    main()
