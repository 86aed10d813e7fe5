//! `longrun perplexity`: which tokens count, what does not change the figure, and texts that say too little.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{longrun, longrun_reading, scratch};
use serde_json::Value;

/// Words of a small world, in an order that repeats late.
fn story(words: usize) -> String {
    let all = [
        "Tom", "saw", "a", "big", "red", "dog", "and", "ran", "to", "the", "park", "with", "Lily",
        ".",
    ];
    let word = |i: usize| all[(i * i + i / 7) % all.len()];
    (0..words).map(word).collect::<Vec<_>>().join(" ")
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = scratch(name).join("text.txt");
    fs::write(&path, text).unwrap();
    path
}

fn measured(path: &Path, flags: &[&str]) -> Value {
    let path = path.to_str().unwrap();
    let all = [&["perplexity", "--model", "demo", "--json", "--text", path][..], flags].concat();
    longrun(&all).json()
}

#[test]
fn the_second_half_of_each_chunk_counts() {
    let path = file("perplexity_halves", &(story(500) + "\n"));
    let one = measured(&path, &["--context", "64"]);
    let chunks = one["running"].as_array().unwrap();
    let tokens = one["tokens"].as_u64().unwrap();
    assert_eq!(chunks.len() as u64, tokens / 64);
    assert_eq!(one["scored"], tokens / 64 * 31);
    assert_eq!(one["read"], tokens / 64 * 64);
    let value = |of: &Value, name: &str| of[name].as_f64().unwrap();
    assert!(value(&one, "perplexity") > 1.0 && value(&one, "error") > 0.0, "{one}");
    assert!((value(&one, "nll").exp() - value(&one, "perplexity")).abs() < 1e-9);
    assert_eq!(chunks.last(), Some(&one["perplexity"]));
    // What is read together, and by how many threads, changes nothing; nor does the last newline.
    for flags in [&["--rows", "1"][..], &["--rows", "64", "--threads", "2"], &["--rows", "3"]] {
        let other = measured(&path, &[&["--context", "64"], flags].concat());
        assert_eq!((&other["running"], &other["error"]), (&one["running"], &one["error"]));
    }
    let without = file("perplexity_no_newline", &story(500));
    assert_eq!(measured(&without, &["--context", "64"])["running"], one["running"]);
    let few = measured(&path, &["--context", "64", "--chunks", "2"]);
    assert_eq!(few["running"].as_array().unwrap()[..], chunks[..2]);
    // What the model itself says is less of a surprise.
    let own =
        longrun(&["generate", "--raw", "--max-tokens", "300", "--temp", "0", "--json"]).json();
    let own = file("perplexity_own", own["text"].as_str().unwrap());
    let own = measured(&own, &["--context", "64"]);
    assert!(value(&own, "perplexity") < value(&one, "perplexity") / 10.0, "{own}");
}

#[test]
fn strides_score_each_token_once() {
    let path = file("perplexity_strides", &story(300));
    let strided = measured(&path, &["--context", "64", "--stride", "20"]);
    let (length, tokens) = (74, strided["tokens"].as_u64().unwrap());
    assert_eq!(strided["context"], length);
    let chunks = (tokens - length).div_ceil(20);
    assert_eq!(strided["running"].as_array().unwrap().len() as u64, chunks);
    assert_eq!(strided["scored"], chunks * 20);
}

#[test]
fn text_is_for_people_and_standard_input_will_do() {
    let text = story(200);
    let run = longrun_reading(
        text.as_bytes(),
        &["perplexity", "--model", "demo", "--text", "-", "--context", "32", "--kv-type", "q8"],
    );
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.starts_with("[1]") && run.stdout.contains(",[2]"), "{}", run.stdout);
    let last = run.stdout.lines().last().unwrap();
    assert!(last.starts_with("PPL = ") && last.contains(" +/- "), "{last}");
    assert!(run.stderr.contains("tokens/s"), "{}", run.stderr);
}

#[test]
fn tiny_models_of_other_kinds_are_measured_too() {
    let path = file("perplexity_tiny", &story(60));
    for family in ["qwen3_next", "gemma3", "deepseek_v3"] {
        let model = format!("tiny:{family}");
        let path = path.to_str().unwrap();
        let run = ["perplexity", "--model", &model, "--text", path, "--context", "50", "--json"];
        let figures = longrun(&run).json();
        // It has learnt nothing: about as many choices as ids.
        let perplexity = figures["perplexity"].as_f64().unwrap();
        assert!((50.0..5000.0).contains(&perplexity), "{family}: {figures}");
    }
}

#[test]
fn what_cannot_be_measured_says_what_can() {
    let short = file("perplexity_short", "Once upon a time there was a dog.");
    let empty = file("perplexity_empty", "\n");
    let bytes = scratch("perplexity_bytes");
    let bytes = bytes.join("text.txt");
    fs::write(&bytes, b"abc\xff\xfe").unwrap();
    let long = file("perplexity_long", &story(300));
    let none = PathBuf::from("/no/such/file");
    for (code, path, flags, words) in [
        (2, &short, &[][..], &["--text", "two chunks of 512", "--context"][..]),
        (2, &empty, &[], &["empty", "--text"]),
        (3, &bytes, &[], &["UTF-8", "byte 3"]),
        (3, &none, &[], &["/no/such/file"]),
        (2, &long, &["--context", "3"], &["--context", "4"]),
        (2, &long, &["--context", "0"], &["--context"]),
        (2, &long, &["--context", "99999"], &["--context", "1024"]),
        (2, &long, &["--context", "18446744073709551615", "--stride", "9"], &["--context"]),
        (2, &long, &["--context", "64", "--stride", "0"], &["--stride"]),
        (2, &long, &["--context", "64", "--stride", "200"], &["--stride"]),
        (2, &long, &["--chunks", "0"], &["--chunks"]),
        (2, &long, &["--rows", "65"], &["--rows"]),
    ] {
        let all = ["perplexity", "--model", "demo", "--text", path.to_str().unwrap()];
        let run = longrun(&[&all[..], flags].concat());
        assert_eq!(run.code, code, "{flags:?}: {}{}", run.stdout, run.stderr);
        for word in words {
            assert!(run.stderr.contains(word), "{flags:?} does not say {word}: {}", run.stderr);
        }
    }
    let run = longrun(&["perplexity", "--model", "/no/such", "--text", long.to_str().unwrap()]);
    assert_eq!(run.code, 3, "{}", run.stderr);
}
