//! Running the binary, and folders to damage.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub const BINARY: &str = env!("CARGO_BIN_EXE_longrun");

/// What a run of the binary left behind.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        assert!(!stderr.contains("panicked"), "{stderr}");
        Self { code: output.status.code().expect("no signal ended it"), stdout, stderr }
    }

    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout).expect("standard output is one JSON value")
    }
}

pub fn longrun(args: &[&str]) -> Run {
    Run::of(Command::new(BINARY).args(args).stdin(Stdio::null()).output().unwrap())
}

pub fn longrun_reading(stdin: &[u8], args: &[&str]) -> Run {
    let mut child = Command::new(BINARY)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    Run::of(child.wait_with_output().unwrap())
}

/// Runs with at most `kib` of address space.
pub fn longrun_within(kib: usize, args: &[&str]) -> Run {
    let script = format!("ulimit -v {kib}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    Run::of(command.args(["-c", &script, BINARY]).args(args).output().unwrap())
}

/// A path from the workspace's root.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

pub fn golden(family: &str) -> PathBuf {
    root("testdata/golden").join(family)
}

/// An empty folder of this name.
pub fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// A scratch copy of a folder.
pub fn copy_of(folder: &Path, name: &str) -> PathBuf {
    let copy = scratch(name);
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    copy
}

pub fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("a list of ids").iter();
    ids.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// Random numbers for damage: the same on every run.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}
