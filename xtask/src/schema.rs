//! The server beside its own document: schemathesis makes requests from `/openapi.json`, right ones and wrong ones, and
//! holds each answer against what the document says of it.
//!
//! Owns the environment (`.cache/schema`, pinned) and the bounds: a tiny model, a short context, a time after which no
//! new requests are made. What is found wrong ends the chore with an error and a command that repeats it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::shell::{Result, cargo, python, run, target};

const PACKAGES: [&str; 1] = ["schemathesis==4.32.5"];

/// A key, so that it is seen whether requests without one are refused.
const KEY: &str = "of-this-run";

/// Seconds of the run if nothing is said.
const SECONDS: u64 = 120;

/// Where the requests come from if nothing is said.
const SEED: u64 = 1;

/// A server in a process of its own, which ends with this.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Result<Self> {
        let binary =
            target().join("debug").join(format!("longrun{}", std::env::consts::EXE_SUFFIX));
        let mut child = Command::new(binary)
            .args(["serve", "--port", "0", "--model", "tiny:qwen3", "--context", "256"])
            .args([
                "--memory",
                "64MiB",
                "--max-rows",
                "4",
                "--log-level",
                "error",
                "--api-key",
                KEY,
            ])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("longrun serve: {e}"))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(|e| format!("longrun serve: {e}"))?;
        }
        let address = line.trim().rsplit_once(' ').map_or("", |(_, address)| address).to_owned();
        let server = Self { child, address };
        if server.address.starts_with("http://") {
            Ok(server)
        } else {
            Err("longrun serve did not start".to_owned())
        }
    }

    /// Whether it still runs.
    fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs all checks but one: a request of the right shape may ask for what no server can do, such as a prompt that is
/// longer than the context, so that not every one of them is accepted.
pub(crate) fn schema(args: &[&str]) -> Result<()> {
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no whole number"));
    let (seconds, seed) = match args {
        [] => (SECONDS, SEED),
        [seconds] => (number(seconds)?, SEED),
        [seconds, seed] => (number(seconds)?, number(seed)?),
        _ => return Err(format!("schema does not know {args:?}")),
    };
    let python = python(".cache/schema", &PACKAGES)?;
    run(cargo().args(["build", "--package", "longrun"]))?;
    let mut server = Server::start()?;
    let mut command = Command::new(python.with_file_name("schemathesis"));
    command.args(["run", &format!("{}/openapi.json", server.address)]);
    command.args(["--max-time", &seconds.to_string(), "--request-timeout", "30"]);
    command.args(["--exclude-checks", "positive_data_acceptance"]);
    command.args(["--seed", &seed.to_string()]);
    command.args(["--header", &format!("Authorization: Bearer {KEY}")]);
    // What llama-server has and this server has not is refused with a status that counts as a fault.
    let refused = "^post_(v1_)?(props|infill|rerank|reranking)$";
    command.args(["--exclude-operation-id-regex", refused]);
    command.args(["--continue-on-failure", "--suppress-health-check", "all"]);
    command.current_dir(target());
    let done = run(&mut command);
    if !server.is_alive() {
        return Err("the server has died".to_owned());
    }
    done
}
