//! A build without the feature `hub`: it says so, and still finds what the cache holds.
#![cfg(not(feature = "hub"))]

mod common;

use std::fs;
use std::process::Command;

use common::{BINARY, copy_of, root, scratch};

#[test]
fn it_says_so_and_finds_what_is_there() {
    let home = scratch("no_hub");
    let inspect = || {
        let mut command = Command::new(BINARY);
        command.args(["inspect", "org/name"]).env_clear().env("HF_HOME", &home).output().unwrap()
    };
    let refused = inspect();
    assert_eq!(refused.status.code(), Some(4));
    let says = String::from_utf8(refused.stderr).unwrap();
    assert!(says.contains("without the feature `hub`") && says.contains("hf download org/name"));
    let repo = home.join("hub/models--org--name");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::create_dir_all(repo.join("snapshots")).unwrap();
    fs::write(repo.join("refs/main"), commit).unwrap();
    let copy = copy_of(&root("models/demo"), "no_hub_model");
    fs::rename(copy, repo.join("snapshots").join(commit)).unwrap();
    assert_eq!(inspect().status.code(), Some(0));
}
