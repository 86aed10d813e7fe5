//! What packages ship: flags in them are flags, limits in them fit each other, and systemd takes the unit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::Server;

const BINARY: &str = env!("CARGO_BIN_EXE_longrun");

fn packaging(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// The one line of the unit that begins with `name=`.
fn unit_line(name: &str) -> String {
    let unit = packaging("longrun.service");
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {name}")).to_owned();
    assert_eq!(values.next(), None, "{name} is there twice");
    value
}

/// A folder that goes when it is done with.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("longrun-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a server by words of a package, in little memory and at any port.
fn serves(words: &[String]) {
    let Some(("serve", flags)) = words.split_first().map(|(first, rest)| (first.as_str(), rest))
    else {
        panic!("{words:?} is no serve");
    };
    let mut given = vec!["--memory", "64MiB"];
    let mut flags = flags.iter().map(String::as_str);
    while let Some(flag) = flags.next() {
        let value = flags.next().unwrap_or_else(|| panic!("{flag} has no value"));
        match flag {
            "--port" | "--memory" => {}
            "--host" => given.extend([flag, "127.0.0.1"]),
            _ => given.extend([flag, value]),
        }
    }
    let server = Server::start(&given);
    assert_eq!(server.get("/health").status, 200);
    // With the values as they stand, too.
    let all = Command::new(BINARY).args(words).arg("--help").output().unwrap();
    assert!(all.status.success(), "{}", String::from_utf8_lossy(&all.stderr));
}

#[test]
fn the_unit_serves() {
    let folder = Folder::new("unit");
    fs::write(folder.0.join("api-keys"), "a-key\n").unwrap();
    let start = unit_line("ExecStart");
    let start = start.strip_prefix("/usr/bin/longrun ").unwrap();
    let start = start.replace("%d", folder.path()).replace("%C", folder.path());
    serves(&start.split(' ').map(str::to_owned).collect::<Vec<_>>());
}

#[test]
fn the_unit_waits_for_the_drain() {
    let start = unit_line("ExecStart");
    let drain = start.split_once("--drain ").unwrap().1.split(' ').next().unwrap();
    let (drain, stop): (u64, u64) =
        (drain.parse().unwrap(), unit_line("TimeoutStopSec").parse().unwrap());
    assert!(stop >= drain + 30, "{stop} s to stop, {drain} s to drain");
    assert_eq!(unit_line("KillSignal"), "SIGTERM");
    assert_eq!(unit_line("Restart"), "on-failure");
    for line in ["DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes"] {
        assert!(packaging("longrun.service").lines().any(|l| l == line), "{line}");
    }
}

#[test]
fn systemd_takes_the_unit() {
    let folder = Folder::new("verify");
    let unit = packaging("longrun.service").replace("/usr/bin/longrun", BINARY);
    let file = folder.0.join("longrun.service");
    fs::write(&file, unit).unwrap();
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output();
    let Ok(verify) = verify else {
        eprintln!("systemd-analyze is not there: the unit is not verified");
        return;
    };
    let said = String::from_utf8_lossy(&verify.stderr);
    // It looks at units of the machine that this one names, too.
    let ours = said.lines().filter(|line| line.contains("longrun")).collect::<Vec<_>>();
    assert!(verify.status.success() && ours.is_empty(), "{said}");
}

#[test]
fn the_container_serves() {
    let folder = Folder::new("container");
    let file = packaging("Containerfile");
    let word = |name: &str| {
        let line = file.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        serde_json::from_str::<Vec<String>>(line).unwrap()
    };
    assert_eq!(word("ENTRYPOINT "), ["/usr/bin/longrun"]);
    let words = word("CMD ");
    let words = words.iter().map(|word| word.replace("/var/cache/longrun", folder.path()));
    serves(&words.collect::<Vec<_>>());
    let last_user = file.lines().rfind(|line| line.starts_with("USER ")).unwrap();
    assert!(!last_user.contains("root") && !last_user.starts_with("USER 0"), "{last_user}");
    assert!(file.lines().any(|line| line.starts_with("HEALTHCHECK ")));
}

#[test]
fn completions_and_manual_pages_are_made() {
    let folder = Folder::new("man");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let made = Command::new(BINARY).args(["completions", shell]).output().unwrap();
        let text = String::from_utf8(made.stdout).unwrap();
        assert!(made.status.success() && text.contains("api-key-file"), "{shell}");
    }
    assert!(!Command::new(BINARY).args(["completions", "dos"]).output().unwrap().status.success());
    let made = Command::new(BINARY).args(["man", folder.path()]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut pages: Vec<_> =
        fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    pages.sort();
    for page in ["longrun.1", "longrun-serve.1", "longrun-chat.1", "longrun-generate.1"] {
        assert!(pages.iter().any(|name| name == page), "{page} of {pages:?}");
    }
    assert!(!pages.iter().any(|name| name == "longrun-man.1"), "{pages:?}");
    let text = fs::read_to_string(folder.0.join("longrun-serve.1")).unwrap();
    assert!(text.contains("drain") && text.starts_with(".ie"), "{text}");
}
