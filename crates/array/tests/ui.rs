//! What must not compile does not, and its twin, the same file but for the offending lines, does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The twins are compiled as a part of this test: no build of their own.
#[allow(dead_code)]
mod ui_pass {
    mod captured;
    mod mixed;
    mod param;
    mod returned;
    mod stale;
    mod stored;
}

const TWINS: [&str; 6] = ["captured", "mixed", "param", "returned", "stale", "stored"];

fn lines(folder: &str, name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder).join(name);
    let text = fs::read_to_string(path.with_extension("rs")).unwrap();
    text.lines().filter(|line| !line.starts_with("//!")).map(str::to_owned).collect()
}

#[test]
fn each_case_has_a_twin_that_differs_in_a_few_lines() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let names = names.filter(|path| path.extension().is_some_and(|ext| ext == "rs"));
    let names: BTreeSet<_> =
        names.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert!(names.iter().eq(TWINS), "{names:?}");
    for name in TWINS {
        let (bad, good) = (lines("ui", name), lines("ui_pass", name));
        assert_eq!(bad.len(), good.len(), "{name}");
        let differ = bad.iter().zip(&good).filter(|(a, b)| a != b).count();
        assert!((1..=6).contains(&differ), "{name} differs in {differ} lines");
    }
}

#[test]
fn what_would_outlive_its_step_does_not_compile() {
    let cases = trybuild::TestCases::new();
    TWINS.iter().for_each(|name| cases.compile_fail(format!("tests/ui/{name}.rs")));
}
