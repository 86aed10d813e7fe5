//! Every checkpoint of `testdata` beside its reference logits, as tables in `docs/families.md`.
//!
//! Owns the tables between the page's marks. It runs `longrun check` and copies what that says.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, capture, cargo, provenance, root, run, target};

/// What `check` says of one folder: the worst of its rows.
#[derive(Default)]
struct Worst {
    relative: f64,
    agreed: usize,
    compared: usize,
    bits: bool,
    code: i32,
}

/// Writes the tables.
pub(crate) fn families() -> Result<()> {
    // Before anything runs: it is this tree that the tables are of.
    let provenance = provenance();
    run(cargo().args(["build", "--release", "--package", "longrun"]))?;
    let binary = target().join("release").join(format!("longrun{}", std::env::consts::EXE_SUFFIX));
    let mut page =
        std::fs::read_to_string(page_path()).map_err(|e| format!("docs/families.md: {e}"))?;
    let mut failed = 0;
    let mut tables = vec![("provenance", provenance)];
    for name in ["golden", "quantized", "gguf"] {
        let (table, bad) = table(&binary, name)?;
        failed += bad;
        tables.push((name, table));
    }
    for (name, text) in tables {
        page = between(&page, name, &text)?;
    }
    std::fs::write(page_path(), page).map_err(|e| format!("docs/families.md: {e}"))?;
    if failed == 0 { Ok(()) } else { Err(format!("{failed} checkpoints differ")) }
}

fn page_path() -> PathBuf {
    root().join("docs/families.md")
}

/// `page` with `text` between the marks of `name`.
fn between(page: &str, name: &str, text: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let none = || format!("docs/families.md has no mark of {name}");
    let (head, rest) = page.split_once(&begin).ok_or_else(none)?;
    let (_, tail) = rest.split_once(&end).ok_or_else(none)?;
    Ok(format!("{head}{begin}\n{text}\n{end}{tail}"))
}

/// One line a folder (or GGUF file), and how many are beyond their bound.
fn table(binary: &Path, group: &str) -> Result<(String, usize)> {
    let folder = root().join("testdata").join(group);
    let list = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = list.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_dir() && path.join("golden.safetensors").exists());
    paths.sort();
    let mut text = String::from(match group {
        "golden" => {
            "| checkpoint | worst difference | greedy tokens | same bits in all ways |\n|---|---|---|---|\n"
        }
        _ => {
            "| checkpoint | worst, `--exact` | greedy | worst, default | greedy |\n|---|---|---|---|---|\n"
        }
    });
    let mut failed = 0;
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        eprintln!("xtask: {group}/{name}");
        let exact = check(binary, &path, true)?;
        failed += usize::from(exact.code != 0);
        let Worst { relative, agreed, compared, bits, .. } = exact;
        let _ = write!(text, "| `{name}` | {relative:.1e} | {agreed} of {compared} |");
        if group == "golden" {
            let _ = writeln!(text, " {} |", if bits { "yes" } else { "NO" });
        } else {
            let Worst { relative, agreed, compared, .. } = check(binary, &path, false)?;
            let _ = writeln!(text, " {relative:.1e} | {agreed} of {compared} |");
        }
    }
    Ok((text, failed))
}

fn check(binary: &Path, model: &Path, exact: bool) -> Result<Worst> {
    let mut command = Command::new(binary);
    command.arg("check").arg("--model").arg(model).arg("--json");
    let output = capture(command.args(exact.then_some("--exact")))?;
    let mut worst = Worst { bits: true, code: output.code, ..Worst::default() };
    let number = |line: &str, name: &str| -> Option<f64> {
        let value = line.trim().strip_prefix(&format!("\"{name}\": "))?;
        value.trim_end_matches(',').parse().ok()
    };
    for line in output.out.lines() {
        if let Some(relative) = number(line, "relative") {
            worst.relative = worst.relative.max(relative);
        }
        worst.agreed += number(line, "greedy_agreed").unwrap_or(0.0) as usize;
        worst.compared += number(line, "greedy_compared").unwrap_or(0.0) as usize;
        worst.bits &= line.trim().trim_end_matches(',') != "\"same_bits\": false";
    }
    Ok(worst)
}
