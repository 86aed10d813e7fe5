//! The built-in page in a real browser.
//!
//! Owns the environment: a virtual environment below `target`, and the browser of the system. What is done on the page is
//! in `testdata/page/drive.py`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, cargo, root, run, target};

const PACKAGE: &str = "playwright==1.50.0";
const BROWSERS: [&str; 4] = [
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
    "/snap/bin/chromium",
];

/// Drives the page, and takes the picture in the documentation anew.
pub(crate) fn page() -> Result<()> {
    let browser = std::env::var("CHROMIUM").ok().or_else(|| {
        let found = BROWSERS.iter().find(|path| Path::new(path).exists());
        found.map(|path| (*path).to_owned())
    });
    let browser = browser.ok_or("no browser: install chromium, or name one in CHROMIUM")?;
    let python = environment()?;
    run(cargo().args(["build", "--package", "longrun"]))?;
    let binary = target().join("debug").join(format!("longrun{}", std::env::consts::EXE_SUFFIX));
    let mut drive = Command::new(python);
    drive.arg(root().join("testdata/page/drive.py")).arg(binary).arg(browser);
    run(drive.arg(root().join("docs/page.png")))
}

/// The Python of the virtual environment, made if it is not there.
fn environment() -> Result<PathBuf> {
    let folder = target().join("page");
    let python = folder.join("bin/python");
    if !python.is_file() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]);
    run(&mut install)?;
    Ok(python)
}
