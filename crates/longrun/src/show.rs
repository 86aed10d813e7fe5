//! What people see beside the result: progress on a terminal, numbers with units.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use longrun_lm::{Error, Kind, Result};

/// A progress bar on standard error, if that is a terminal; silent otherwise.
pub(crate) fn bar(what: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0).with_message(what);
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {pos}/{len}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let mut x = n as f64;
    let mut unit = 0;
    while x >= 1024.0 && unit + 1 < units.len() {
        x /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{x:.1} {}", units[unit]) }
}

/// Writes to standard output at once. A reader that has gone away is not an error: `Ok(false)`.
pub(crate) fn out(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::new(Kind::File, format!("can't write to standard output: {e}"))),
    }
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let written = std::fs::write(path, text);
    written.map_err(|e| Error::file(format!("can't be written: {e}")).at(path.display()))
}

/// Writes a line to standard error, if anybody reads it.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Pretty JSON and a newline.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|t| t + "\n").map_err(|e| Error::new(Kind::Bug, format!("JSON: {e}")))
}
