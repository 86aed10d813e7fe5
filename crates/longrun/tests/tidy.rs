//! The habits of the project as tests: budgets, module direction, where code may promise what no compiler checks,
//! documents in step.
//!
//! Owns the numbers. Raising one is a line in a diff, with its reason. It reads files and runs nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file: above the first a file needs a line in [`LONG_FILES`], above the second it is refused.
const FILE_LINES: (usize, usize) = (500, 1000);
/// Files above the soft budget, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[];
/// Lines of a function: above the first it is counted, above the second it is refused.
const FUNCTION_LINES: (usize, usize) = (60, 100);
/// How many functions may be above the soft budget. It may only go down.
const LONG_FUNCTIONS: usize = 1;
/// Columns of code, and of lines that hold a comment, a string or a macro's body, which rustfmt leaves alone.
const COLUMNS: (usize, usize) = (100, 122);
/// Modules that may not name other modules of their crate: (files, names).
const DIRECTIONS: &[(&str, &[&str])] = &[
    // The layout of numbers and the products know no step, no device and no memory.
    ("crates/array/src/matmul/", &["cpu", "device", "step", "plan", "runtime", "memory", "ledger"]),
    (
        "crates/array/src/panel.rs",
        &["cpu", "device", "step", "plan", "runtime", "memory", "ledger"],
    ),
    (
        "crates/array/src/quant.rs",
        &["cpu", "device", "step", "plan", "runtime", "memory", "ledger"],
    ),
    (
        "crates/array/src/format.rs",
        &["cpu", "device", "step", "plan", "runtime", "memory", "ledger"],
    ),
    // A device runs plans: it counts nothing, records nothing and frees nothing of its own accord.
    ("crates/array/src/cpu/", &["step", "runtime", "memory", "ledger"]),
    ("crates/array/src/cuda/", &["cpu", "step", "runtime", "memory", "ledger"]),
    ("crates/array/src/device/", &["cpu", "step", "runtime", "ledger"]),
    // What is recorded does not know what runs it.
    ("crates/array/src/op/mod.rs", &["cpu", "step", "plan", "runtime", "memory"]),
    ("crates/array/src/step", &["cpu", "plan", "runtime", "memory"]),
    ("crates/array/src/plan.rs", &["cpu", "runtime", "memory"]),
    // A cost is that of an operation, whatever runs it.
    ("crates/array/src/profile/", &["cpu", "step", "runtime", "memory", "ledger"]),
    ("crates/array/src/inputs.rs", &["cpu", "device", "step", "plan", "runtime", "memory"]),
    ("crates/array/src/ledger.rs", &["cpu", "device", "step", "plan", "runtime"]),
    // A model sees a step and its caches.
    ("crates/lm/src/models/", &["engine", "executor", "schedule", "sample", "text", "source"]),
    ("crates/lm/src/nn", &["engine", "executor", "schedule", "sample", "text", "source"]),
    ("crates/lm/src/text/", &["cache", "engine", "executor", "models", "nn", "sample", "weights"]),
    // An answer is text: what it means depends on no tokenizer, model or request.
    (
        "crates/lm/src/answer/",
        &["cache", "engine", "executor", "models", "nn", "sample", "text", "weights"],
    ),
    ("crates/lm/src/sample/", &["cache", "engine", "executor", "models", "nn", "text", "weights"]),
    ("crates/lm/src/checkpoint/", &["cache", "engine", "executor", "models", "nn", "weights"]),
    ("crates/lm/src/executor.rs", &["engine", "sample", "text", "schedule"]),
    ("crates/lm/src/cache/", &["engine", "executor", "models", "sample", "text"]),
    // Drafts know no engine, snapshots no order of service, and the scheduler nobody.
    ("crates/lm/src/draft/", &["engine", "prefix", "schedule", "text"]),
    ("crates/lm/src/prefix/", &["engine", "draft", "schedule", "sample", "text"]),
    ("crates/lm/src/schedule.rs", &["cache", "engine", "executor", "prefix", "sample", "text"]),
];

/// The crates that each crate may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("crates/array", &[]),
    ("crates/lm", &["longrun-array"]),
    ("crates/longrun", &["longrun-lm"]),
    ("xtask", &[]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every text file of the repository, as (path from the root, contents).
fn files(extensions: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().unwrap();
            let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
            if kind.is_dir() && !hidden && !name.starts_with("target") {
                folders.push(entry.path());
            } else if kind.is_file() && !hidden {
                let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
                if extensions.contains(&extension) {
                    found.push(entry.path());
                }
            }
        }
    }
    let root = root();
    let mut files: Vec<_> = found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no {extensions:?} files below {}", root.display());
    files
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn is_test_file(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs")
}

/// Fails with all complaints at once.
fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `text` has `word` with no letter, digit or underscore beside it.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The source with every comment, string and character literal made blank; lines and columns stay.
fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out: Vec<u8> = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(source, at);
        let blank = &mut out[at..end.max(at + 1)];
        if end > at {
            blank.iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        }
        at = end.max(at + 1);
    }
    String::from_utf8(out).unwrap()
}

/// The end of the comment or literal that starts at byte `at`, or `at` if none does.
fn literal_end(source: &str, at: usize) -> usize {
    let rest = &source.as_bytes()[at..];
    let find = |text: &str, from: usize| {
        source.get(at + from..).and_then(|s| s.find(text)).map_or(source.len(), |i| at + from + i)
    };
    match rest {
        [b'/', b'/', ..] => find("\n", 2),
        [b'/', b'*', ..] => find("*/", 2) + 2,
        [b'"', ..] => quoted_end(rest, b'"') + at,
        [b'r', b'#' | b'"', ..] if at == 0 || !is_word(char::from(source.as_bytes()[at - 1])) => {
            let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
            match rest.get(1 + hashes) {
                Some(b'"') => {
                    let close = format!("\"{}", "#".repeat(hashes));
                    find(&close, 2 + hashes) + close.len()
                }
                _ => at, // a raw identifier
            }
        }
        // A character, not a lifetime: a quote closes it, or it is escaped.
        [b'\'', b'\\', ..] => quoted_end(rest, b'\'') + at,
        [b'\'', ..] => {
            let mut chars = source[at + 1..].char_indices().skip(1);
            match chars.next() {
                Some((i, '\'')) => at + 1 + i + 1,
                _ => at,
            }
        }
        _ => at,
    }
}

/// The length of a literal with escapes, both quotes included.
fn quoted_end(rest: &[u8], quote: u8) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != quote {
        i += if rest[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

/// Functions with a body: (name, first line from 1, lines).
fn functions(source: &str) -> Vec<(String, usize, usize)> {
    let code = code_only(source);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].chars().next_back().is_some_and(is_word) {
            continue;
        }
        let name: String =
            code[at + 3..].chars().take_while(|c| is_word(*c) || *c == '$').collect();
        let (mut brackets, mut braces, mut end) = (0, 0, None);
        for (i, c) in code[at..].char_indices() {
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets -= 1,
                ';' if brackets == 0 && braces == 0 => break,
                '{' if brackets <= 0 || braces > 0 => braces += 1,
                '}' if braces > 0 => {
                    braces -= 1;
                    if braces == 0 {
                        end = Some(at + i);
                        break;
                    }
                }
                _ => {}
            }
        }
        let line = |at: usize| code[..at].matches('\n').count() + 1;
        if let Some(end) = end.filter(|_| !name.is_empty()) {
            found.push((name, line(at), line(end) - line(at) + 1));
        }
    }
    found
}

#[test]
fn the_scanner_reads_rust() {
    let source = "fn a() { let s = \"fn b() {\"; } // fn c() {\nfn d<'s>(x: [u8; 4]) {\n  '{'; r#\"}\"#;\n}\n\
                  trait T { fn e(); }";
    let found = functions(source);
    assert_eq!(found, [("a".to_owned(), 1, 1), ("d".to_owned(), 2, 3)]);
    let code = |parts: &[&str]| parts.join(UNSAFE);
    assert!(
        has_word(&code(&["an ", " block"]), UNSAFE) && !has_word(&code(&["", "_code"]), UNSAFE)
    );
    let blocks = ["{ f() }", " { f() }", " impl Send", ""];
    assert!(blocks.iter().all(|block| promises(&code(&["let x = ", block]))));
    assert!(!promises(&code(&["pub ", " fn f(g: ", " extern \"C\" fn()) {"])));
    let blank = " ".repeat(19);
    assert_eq!(code_only("a /* b */ 'c' \"\\\"d\" e"), format!("a{blank}e"));
}

#[test]
fn files_keep_their_budget() {
    let mut complaints = Vec::new();
    for (name, text) in files(&["rs"]).iter().filter(|(name, _)| !is_test_file(name)) {
        let lines = text.lines().count();
        let excused = LONG_FILES.iter().any(|(file, _)| file == name);
        if lines > FILE_LINES.1 || (lines > FILE_LINES.0 && !excused) {
            complaints.push(format!("{name}: {lines} lines"));
        }
        if excused && lines <= FILE_LINES.0 {
            complaints.push(format!("{name}: short again, take it off LONG_FILES"));
        }
    }
    none(complaints);
}

#[test]
fn functions_keep_their_budget() {
    let (mut complaints, mut long) = (Vec::new(), Vec::new());
    for (name, text) in files(&["rs"]).iter().filter(|(name, _)| !is_test_file(name)) {
        for (function, line, lines) in functions(text) {
            let place = format!("{name}:{line}: fn {function} has {lines} lines");
            if lines > FUNCTION_LINES.1 {
                complaints.push(place);
            } else if lines > FUNCTION_LINES.0 {
                long.push(place);
            }
        }
    }
    if long.len() != LONG_FUNCTIONS {
        let what = format!("LONG_FUNCTIONS is {LONG_FUNCTIONS}, there are {}:", long.len());
        complaints.push(what);
        complaints.append(&mut long);
    }
    none(complaints);
}

/// Code is at most 100 columns wide. Lines whose width rustfmt does not set may have a few more.
#[test]
fn lines_are_short() {
    let mut complaints = Vec::new();
    for (name, text) in files(&["rs"]).iter().filter(|(name, _)| !is_test_file(name)) {
        let code = code_only(text);
        let mut closing: Option<String> = None;
        for (i, (line, code)) in text.lines().zip(code.lines()).enumerate() {
            // From the line that opens a macro's braces to the one that closes them, as far indented.
            let in_macro = closing.is_some();
            let indent = &line[..line.len() - line.trim_start().len()];
            if closing.as_deref() == Some(line.trim_end()) {
                closing = None;
            } else if closing.is_none() && code.trim_end().ends_with("! {") {
                closing = Some(format!("{indent}}}"));
            }
            let free = in_macro || code.trim_end() != line.trim_end();
            let most = if free { COLUMNS.1 } else { COLUMNS.0 };
            if line.chars().count() > most {
                complaints.push(format!("{name}:{}: {} columns", i + 1, line.chars().count()));
            }
        }
    }
    none(complaints);
}

#[test]
fn every_file_says_what_it_owns() {
    let says = |(name, text): &&(String, String)| {
        !text.starts_with("//!") && !name.ends_with("/tests.rs") && !name.contains("/tests/ui")
    };
    none(files(&["rs"]).iter().filter(says).map(|(n, _)| format!("{n}: no //!")).collect());
}

#[test]
fn unsafe_stays_in_array_and_is_explained() {
    let mut complaints = Vec::new();
    for (name, text) in files(&["rs"]) {
        let code = code_only(&text);
        let inside = name.starts_with("crates/array/");
        let lines: Vec<&str> = text.lines().collect();
        for (i, code) in code.lines().enumerate().filter(|(_, code)| has_word(code, UNSAFE)) {
            let place = format!("{name}:{}", i + 1);
            if !inside {
                complaints.push(format!("{place}: {UNSAFE} outside of crates/array"));
            }
            if promises(code) && !explained(&lines, i) {
                complaints.push(format!("{place}: no SAFETY comment"));
            }
        }
    }
    none(complaints);
}

/// The word that is looked for, spelled so that whoever else looks for it does not find it here.
const UNSAFE: &str = concat!("un", "safe");

/// Whether code with the word in it promises something, and does not only declare what callers have to.
fn promises(code: &str) -> bool {
    let declares = |after: &str| {
        let after = after.trim_start();
        ["fn ", "fn(", "extern ", "trait "].iter().any(|word| after.starts_with(word))
    };
    code.split(UNSAFE).skip(1).any(|after| !after.starts_with(is_word) && !declares(after))
}

/// Whether a SAFETY comment stands on line `i`, or above the statement that holds it.
fn explained(lines: &[&str], i: usize) -> bool {
    let mut code = 0;
    for line in lines[..=i].iter().rev() {
        if line.contains("SAFETY:") {
            return true;
        }
        let line = line.trim_start();
        code += usize::from(!line.starts_with("//") && !line.starts_with("#["));
        if code > 4 {
            return false;
        }
    }
    false
}

/// The names below `[dependencies]` and the like, by section.
fn dependencies(manifest: &str) -> Vec<(String, String)> {
    let (mut section, mut found) = (String::new(), Vec::new());
    for line in manifest.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name.to_owned();
        } else if section.ends_with("dependencies")
            && let Some((name, _)) = line.split_once('=')
        {
            let name = name.trim().split('.').next().unwrap();
            found.push((section.clone(), name.trim_matches('"').to_owned()));
        }
    }
    found.retain(|(_, name)| !name.is_empty() && !name.starts_with('#'));
    found
}

#[test]
fn crates_depend_in_one_direction() {
    let mut complaints = Vec::new();
    for (folder, may) in CRATES {
        for (_, name) in dependencies(&read(&format!("{folder}/Cargo.toml"))) {
            if name.starts_with("longrun") && !may.contains(&&*name) {
                complaints.push(format!("{folder} depends on {name}"));
            }
        }
    }
    for (name, text) in files(&["rs"]) {
        let code = code_only(&text);
        let bad = match name.as_str() {
            n if n.starts_with("crates/array/") => has_word(&code, "longrun_lm"),
            n if n.starts_with("crates/longrun/src/") => has_word(&code, "longrun_array"),
            _ => false,
        };
        if bad {
            complaints.push(format!("{name} names a crate that is not below its own"));
        }
    }
    none(complaints);
}

#[test]
fn modules_depend_in_one_direction() {
    let mut complaints = Vec::new();
    let all = files(&["rs"]);
    for (place, banned) in DIRECTIONS {
        let mut covered = false;
        for (name, text) in all.iter().filter(|(name, _)| name.starts_with(place)) {
            covered = true;
            let code = code_only(text.split("#[cfg(test)]\nmod tests").next().unwrap());
            let named = |module: &&&str| has_word(&code, &format!("crate::{module}"));
            for module in banned.iter().filter(named) {
                complaints.push(format!("{name} names crate::{module}"));
            }
        }
        if !covered {
            complaints.push(format!("{place} is gone: mend DIRECTIONS"));
        }
    }
    none(complaints);
}

/// `lm` takes any device and names none; the binary names them in one file.
#[test]
fn devices_are_named_in_one_place() {
    let mut complaints = Vec::new();
    for (name, text) in files(&["rs"]) {
        let outside = name.starts_with("crates/lm/src/") || name.starts_with("crates/longrun/src/");
        if !outside || name == "crates/longrun/src/model.rs" || is_test_file(&name) {
            continue;
        }
        let code = code_only(text.split("#[cfg(test)]\nmod tests").next().unwrap());
        for device in ["CpuDevice", "CudaDevice", "NullDevice"] {
            if has_word(&code, device) {
                complaints.push(format!("{name} names {device}"));
            }
        }
    }
    none(complaints);
}

#[test]
fn nothing_is_left_open() {
    let marks =
        [["to", "do!("], ["unimple", "mented!("], ["db", "g!("], ["TO", "DO"], ["FIX", "ME"]];
    let mut complaints = Vec::new();
    for (name, text) in files(&["rs", "md", "toml", "sh", "py"]) {
        for mark in marks.map(|parts| parts.concat()) {
            if text.contains(&mark) {
                complaints.push(format!("{name}: {mark}"));
            }
        }
    }
    none(complaints);
}

#[test]
fn no_path_of_one_machine() {
    let mut all = files(&["rs", "md", "toml", "sh", "py"]);
    all.push((".ci/run".into(), read(".ci/run")));
    let mut complaints = Vec::new();
    for (name, text) in all {
        for folder in ["home", "Users", "root", "work", "tmp"] {
            if text.contains(&format!("{0}{folder}{0}", '/')) {
                complaints.push(format!("{name}: a path below {folder}"));
            }
        }
    }
    none(complaints);
}

/// The first column of the tables of a document: what stands in backquotes there.
fn table_names(document: &str) -> BTreeSet<String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect()
}

#[test]
fn dependencies_are_explained() {
    let mut wanted = BTreeSet::new();
    for (folder, _) in CRATES {
        let all = dependencies(&read(&format!("{folder}/Cargo.toml")));
        wanted.extend(all.into_iter().map(|(_, n)| n).filter(|n| !n.starts_with("longrun")));
    }
    let declared = dependencies(&read("Cargo.toml"));
    wanted.extend(declared.into_iter().map(|(_, n)| n).filter(|n| !n.starts_with("longrun")));
    assert_eq!(table_names(&read("docs/dependencies.md")), wanted, "docs/dependencies.md");
}

/// The variants of `pub enum NAME` in a source.
fn variants(source: &str, name: &str) -> Vec<String> {
    let code = code_only(source);
    let at = code.find(&format!("enum {name} {{")).expect("the enum is there");
    let mut depth = 0;
    let mut found = Vec::new();
    for line in code[at..].lines() {
        let word: String = line.trim_start().chars().take_while(|c| is_word(*c)).collect();
        if depth == 1 && word.starts_with(char::is_uppercase) {
            found.push(word);
        }
        let opened = line.matches(['{', '(', '[']).count();
        depth += opened as i32 - line.matches(['}', ')', ']']).count() as i32;
        if depth == 0 {
            break;
        }
    }
    found
}

#[test]
fn operations_and_formats_are_documented() {
    let document = table_names(&read("docs/add-an-op.md"));
    let ops: BTreeSet<_> =
        variants(&read("crates/array/src/op/mod.rs"), "Op").into_iter().collect();
    assert!(ops.contains("DeltaRule"));
    assert_eq!(document, ops, "the table in docs/add-an-op.md");
    let readme = read("README.md");
    let formats = variants(&read("crates/array/src/format.rs"), "Format");
    let missing = |f: &String| !has_word(&readme, f);
    none(formats.into_iter().filter(missing).map(|f| format!("README.md: no {f}")).collect());
}

#[test]
fn commands_and_flags_are_documented() {
    let parts = files(&["rs"]).into_iter();
    let parts = parts.filter(|(name, _)| name.starts_with("crates/longrun/src/args"));
    let args: String = parts.map(|(_, text)| text).collect();
    let (cli, readme) = (read("docs/cli.md"), read("README.md"));
    let mut complaints = Vec::new();
    for command in variants(&args, "Command").iter().map(|c| c.to_lowercase()) {
        if !cli.contains(&format!("## {command}\n")) {
            complaints.push(format!("docs/cli.md: no section {command}"));
        }
        if !has_word(&readme, &command) {
            complaints.push(format!("README.md: no {command}"));
        }
    }
    let mut long = false;
    for line in args.lines().map(str::trim) {
        if line.starts_with("#[arg(") {
            long = line.contains("(long") || line.contains(" long");
        } else if let Some(field) = line.strip_prefix("pub(crate) ")
            && let Some((name, _)) = field.split_once(':')
        {
            let flag = format!("--{}", name.replace('_', "-"));
            if std::mem::take(&mut long) && !cli.contains(&format!("`{flag}")) {
                complaints.push(format!("docs/cli.md: no {flag}"));
            }
        }
    }
    none(complaints);
}

#[test]
fn families_are_documented() {
    let (config, readme) = (read("crates/lm/src/config/family.rs"), read("README.md"));
    let table = config.split_once("const NAMES").expect("the table of families").1;
    let table = table.split_once("];").expect("its end").0;
    let names: Vec<_> = table.split('"').skip(1).step_by(2).collect();
    assert!(names.contains(&"llama"));
    let missing = |n: &&&str| !readme.contains(&format!("`{n}`"));
    let mut complaints: Vec<_> =
        names.iter().filter(missing).map(|n| format!("README.md: no {n}")).collect();
    // A row of the table is `(F::Llama, &["llama", ..]),`.
    let rows = table.lines().filter_map(|line| line.split('"').nth(1));
    let prove = read("xtask/src/prove.rs");
    let proved =
        |n: &str| prove.contains(&format!("\"{n}\"")) || prove.contains(&format!("tiny:{n} "));
    complaints.extend(rows.filter(|n| !proved(n)).map(|n| format!("xtask prove: no {n}")));
    none(complaints);
}

#[test]
fn the_changelog_is_open() {
    assert!(read("CHANGELOG.md").lines().any(|l| l.starts_with("## ") && l.contains("nreleased")));
}
