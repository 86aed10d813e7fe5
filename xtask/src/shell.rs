//! Running other programs, and the few facts about machine and tree that reports begin with.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The result of a chore; the error is for people.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| "xtask".into());
    Path::new(&here).parent().map_or_else(|| ".".into(), Path::to_path_buf)
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    set.unwrap_or_else(|| root().join("target"))
}

/// The cargo that runs this, in the root of the repository.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // What cargo tells this program of its own package would have build scripts that look at it run again.
    let of_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars().filter(|(name, _)| of_package(name)) {
        command.env_remove(name);
    }
    command.current_dir(root());
    command
}

/// The words of a command, without the folders of its program.
pub(crate) fn words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a command with its output on the terminal.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = words(command);
    eprintln!("$ {shown}");
    let status = command.status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}")) }
}

/// The Python of a virtual environment at `folder`, below the root, with `packages`; it is made if it is not there.
pub(crate) fn python(folder: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = root().join(folder);
    let python = folder.join("bin/python");
    if python.is_file() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    let done = run(install.args(packages));
    if done.is_err() {
        // Half an environment would be taken for a whole one.
        let _ = std::fs::remove_dir_all(&folder);
    }
    done.map(|()| python)
}

/// What a command printed.
pub(crate) struct Output {
    /// Standard output.
    pub(crate) out: String,
    /// Standard error.
    pub(crate) err: String,
    /// The exit code; -1 if a signal ended it.
    pub(crate) code: i32,
    /// How long it took.
    pub(crate) seconds: f64,
}

/// Runs a command and keeps its output.
pub(crate) fn capture(command: &mut Command) -> Result<Output> {
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|e| format!("{}: {e}", words(command)))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Output {
        out: text(&output.stdout),
        err: text(&output.stderr),
        code: output.status.code().unwrap_or(-1),
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// The first line that a command prints, or why there is none.
pub(crate) fn first_line(program: &str, args: &[&str]) -> String {
    match capture(Command::new(program).args(args).current_dir(root())) {
        Ok(output) => output.out.lines().next().unwrap_or("unknown").to_owned(),
        Err(error) => error,
    }
}

/// Commit, date and machine, as a list in Markdown.
pub(crate) fn provenance() -> String {
    let commit = first_line("git", &["rev-parse", "HEAD"]);
    let changes = capture(Command::new("git").args(["status", "--porcelain"]).current_dir(root()));
    let clean = changes.is_ok_and(|o| o.out.trim().is_empty());
    let note = if clean { "" } else { ", with local changes" };
    let cpu = field_of("/proc/cpuinfo", "model name");
    let memory = field_of("/proc/meminfo", "MemTotal");
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "- commit: {commit}{note}\n- date: {}\n- machine: {cpu}, {cores} cores, {memory} of memory\n\
         - system: {}\n- compiler: {}\n",
        first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        first_line("uname", &["-srm"]),
        first_line("rustc", &["--version"]),
    )
}

/// The value of a `name : value` line of a file of the system.
pub(crate) fn field_of(file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_once(':'));
    value.map_or_else(|| format!("unknown {name}"), |(_, value)| value.trim().to_owned())
}

/// The value of a top-level field of JSON that is printed with two spaces of indentation, as text.
pub(crate) fn json_field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("  \"{name}\": ");
    let line = json.lines().find_map(|line| line.strip_prefix(&start))?;
    Some(line.trim_end_matches(',').trim_matches('"'))
}

/// A number of the same kind.
pub(crate) fn json_number(json: &str, name: &str) -> Option<f64> {
    json_field(json, name)?.parse().ok()
}
