//! `longrun convert` and `--adapter`, through the binary.

mod common;

use std::fs;

use common::{longrun, root, scratch};

fn path(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_demo_model_tells_the_same_story_after_conversion() {
    let folder = scratch("convert-demo");
    let out = folder.join("demo-8");
    let run = longrun(&["convert", "--model", "demo", "--out", path(&out), "--quantize", "q8"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("in 1 file"), "{}", run.stdout);
    for file in ["config.json", "tokenizer.json", "model.safetensors.index.json"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    let story = |model: &str| {
        let args = ["generate", "--model", model, "--prompt", "Once upon a time", "--exact"];
        let run = longrun(&[&args[..], &["--max-tokens", "12", "--temp", "0"]].concat());
        assert_eq!(run.code, 0, "{}", run.stderr);
        run.stdout
    };
    assert_eq!(story(path(&out)), story("demo"));
    let again = longrun(&["convert", "--model", "demo", "--out", path(&out)]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let folder = scratch("convert-flags");
    let out = folder.join("out");
    let refused = [
        (&["--group-size", "32"][..], 2, "nothing is quantised"),
        (&["--quantize", "mxfp4", "--group-size", "64"], 2, "groups of 32"),
        (&["--quantize", "q4", "--group-size", "48"], 2, "32, 64 or 128"),
        (&["--quantize", "q4", "--mixed", "mixed_3_6"], 2, "cannot be used with"),
        (&["--adapter", "/nonexistent"], 3, "neither"),
    ];
    for (flags, code, says) in refused {
        let args = [&["convert", "--model", "demo", "--out", path(&out)], flags].concat();
        let run = longrun(&args);
        assert_eq!(run.code, code, "{flags:?}: {}", run.stderr);
        assert!(run.stderr.contains(says), "{flags:?}: {}", run.stderr);
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn every_command_takes_an_adapter() {
    let (llama, adapter) = (root("testdata/golden/llama"), root("testdata/interop/mlx-llama"));
    let vectors = adapter.join("golden.safetensors");
    let (llama, adapter, vectors) = (path(&llama), path(&adapter), path(&vectors));
    let check = ["check", "--model", llama, "--against", vectors];
    assert_eq!(longrun(&check).code, 1);
    let adapted = longrun(&[&check[..], &["--adapter", adapter]].concat());
    assert_eq!(adapted.code, 0, "{}{}", adapted.stdout, adapted.stderr);
    let soak = ["soak", "--model", llama, "--tokens", "40", "--adapter", adapter];
    assert_eq!(longrun(&soak).code, 0);
    let tiny = ["generate", "--model", "tiny:llama", "--prompt", "x", "--adapter", adapter];
    let tiny = longrun(&tiny);
    assert_eq!(tiny.code, 2);
    assert!(tiny.stderr.contains("takes no adapter"), "{}", tiny.stderr);
    let other = root("testdata/golden/qwen2");
    let check = ["check", "--model", path(&other), "--against", vectors, "--adapter", adapter];
    assert_eq!(longrun(&check).code, 3);
}
