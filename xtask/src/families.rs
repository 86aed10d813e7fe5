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
    tables.push(("kv", kv_table(&binary)?));
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

/// One checkpoint and its reference.
struct Subject {
    name: String,
    model: PathBuf,
    against: PathBuf,
}

/// The checkpoints of a group, sorted.
fn subjects(group: &str) -> Result<Vec<Subject>> {
    let folder = root().join("testdata").join(group);
    let list = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut subjects = Vec::new();
    for path in list.flatten().map(|entry| entry.path()) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let against = path.join("golden.safetensors");
        if path.extension().is_some_and(|extension| extension == "pieces") {
            let golden = root().join("testdata/golden").join(&name);
            let (model, against) = (whole(&path, &golden)?, golden.join("golden.safetensors"));
            subjects.push(Subject { name, model, against });
        } else if against.exists() {
            subjects.push(Subject { name, model: path, against });
        }
    }
    subjects.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(subjects)
}

/// The GGUF file whose pieces `path` lists, see `testdata/gguf/make_gguf.py`.
fn whole(path: &Path, golden: &Path) -> Result<PathBuf> {
    let bad = || format!("{}: the pieces do not fit", path.display());
    let read = |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    let (pieces, source) = (read(path)?, read(&golden.join("model.safetensors"))?);
    let (mut file, mut rest) = (Vec::new(), pieces.strip_prefix(b"PIECES\0\0").ok_or_else(bad)?);
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).map_err(|_| bad());
    while !rest.is_empty() {
        let (head, tail) = rest.split_at_checked(16).ok_or_else(bad)?;
        let (offset, len) = (number(&head[..8])?, number(&head[8..])? as usize);
        rest = tail;
        if offset == u64::MAX {
            let (literal, tail) = rest.split_at_checked(len).ok_or_else(bad)?;
            file.extend_from_slice(literal);
            rest = tail;
        } else {
            let from = source.get(offset as usize..).and_then(|s| s.get(..len));
            file.extend_from_slice(from.ok_or_else(bad)?);
        }
    }
    let folder = target().join("families");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let to = folder.join(path.file_stem().unwrap_or_default()).with_extension("gguf");
    std::fs::write(&to, file).map_err(|e| format!("{}: {e}", to.display()))?;
    Ok(to)
}

/// One line a checkpoint, and how many are beyond their bound.
fn table(binary: &Path, group: &str) -> Result<(String, usize)> {
    let mut text = String::from(match group {
        "quantized" => {
            "| checkpoint | worst, `--exact` | greedy | worst, default | greedy |\n|---|---|---|---|---|\n"
        }
        _ => {
            "| checkpoint | worst difference | greedy tokens | same bits in all ways |\n|---|---|---|---|\n"
        }
    });
    let mut failed = 0;
    for subject in subjects(group)? {
        eprintln!("xtask: {group}/{}", subject.name);
        let exact = check(binary, &subject, &["--exact"])?;
        failed += usize::from(exact.code != 0);
        let Worst { relative, agreed, compared, bits, .. } = exact;
        let _ = write!(text, "| `{}` | {relative:.1e} | {agreed} of {compared} |", subject.name);
        if group == "quantized" {
            let Worst { relative, agreed, compared, .. } = check(binary, &subject, &[])?;
            let _ = writeln!(text, " {relative:.1e} | {agreed} of {compared} |");
        } else {
            let _ = writeln!(text, " {} |", if bits { "yes" } else { "NO" });
        }
    }
    Ok((text, failed))
}

/// One line a checkpoint, one column a type of keys and values. Some are beyond its bound; the page says why.
fn kv_table(binary: &Path) -> Result<String> {
    let mut text =
        String::from("| checkpoint | `f16` | `bf16` | `q8` | `q4` |\n|---|---|---|---|---|\n");
    for subject in subjects("golden")? {
        eprintln!("xtask: kv/{}", subject.name);
        let _ = write!(text, "| `{}` |", subject.name);
        for kv in ["f16", "bf16", "q8", "q4"] {
            let worst = check(binary, &subject, &["--kv-type", kv])?;
            let beyond = if worst.code == 0 { "" } else { " beyond" };
            let _ = write!(text, " {:.1e}{beyond} |", worst.relative);
        }
        text.push('\n');
    }
    Ok(text)
}

fn check(binary: &Path, subject: &Subject, flags: &[&str]) -> Result<Worst> {
    let mut command = Command::new(binary);
    command.arg("check").arg("--model").arg(&subject.model).arg("--json");
    command.arg("--against").arg(&subject.against);
    let output = capture(command.args(flags))?;
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
