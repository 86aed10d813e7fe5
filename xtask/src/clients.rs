//! The official clients of other people's servers, talking to this one.
//!
//! Owns the environment: a virtual environment below the build folder with the packages of
//! `tests/clients/requirements.txt`, made anew when that file changes. The conversations are `tests/clients/*.py`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::shell::{Result, cargo, root, run, target};

/// Runs the tests below `tests/clients`, or those that the arguments of pytest choose.
pub(crate) fn clients(chosen: &[&str]) -> Result<()> {
    let python = environment()?;
    run(cargo().args(["build", "--package", "longrun"]))?;
    let binary = target().join("debug").join(format!("longrun{}", std::env::consts::EXE_SUFFIX));
    let mut tests = Command::new(python);
    tests.current_dir(root()).env("LONGRUN_BINARY", binary).env("PYTHONDONTWRITEBYTECODE", "1");
    // Traces of LangChain would leave the machine.
    tests.env("LANGSMITH_TRACING", "false").env("LANGCHAIN_TRACING_V2", "false");
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "tests/clients"]);
    let chosen = if chosen.is_empty() { &["tests/clients"] } else { chosen };
    run(tests.args(chosen))
}

/// The Python of the virtual environment, made if it is not there or of other packages.
fn environment() -> Result<PathBuf> {
    let (folder, list) = (target().join("clients"), root().join("tests/clients/requirements.txt"));
    let (python, made_of) = (folder.join("bin/python"), folder.join("requirements.txt"));
    let wanted = fs::read(&list).map_err(|e| format!("{}: {e}", list.display()))?;
    if fs::read(&made_of).is_ok_and(|present| present == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    run(install.arg("--requirement").arg(&list)).map_err(|error| {
        format!("{error}\nthe clients could not be installed: this chore needs the network the first time")
    })?;
    // Last: half an environment is none.
    fs::write(&made_of, wanted).map_err(|e| format!("{}: {e}", made_of.display()))?;
    Ok(python)
}
