//! What the binary says to impossible flags and damaged models: an exit code, and a message that names the place.

mod common;

use std::fs;

use common::{copy_of, golden, longrun, longrun_reading, longrun_within, root, scratch};
use serde_json::{Value, json};

/// Runs, and holds the error to its exit code and its words.
fn refused(code: i32, args: &[&str], words: &[&str]) {
    let run = longrun(args);
    assert_eq!(run.code, code, "{args:?}: {}{}", run.stdout, run.stderr);
    for word in words {
        assert!(run.stderr.contains(word), "{args:?} does not say {word:?}: {}", run.stderr);
    }
}

#[test]
fn impossible_flags_of_generate() {
    refused(2, &["generate", "--no-such-flag"], &["--no-such-flag"]);
    refused(2, &["dance"], &["dance"]);
    refused(4, &["generate", "--model", "tiny:rnn"], &["rnn", "qwen3_next"]);
    refused(3, &["generate", "--model", "/no/such"], &["/no/such"]);
    refused(2, &["generate", "--model", "tiny:llama"], &["--prompt"]);
    refused(2, &["generate", "--model", "tiny:llama", "--prompt", ""], &["prompt"]);
    let tiny = ["generate", "--model", "tiny:llama", "--prompt", "x"];
    for (flags, words) in [
        (&["--max-tokens", "0"][..], &["max_tokens"][..]),
        (&["--max-tokens", "99999999"], &["--max-tokens", "context"]),
        (&["--max-tokens", "18446744073709551615"], &["--max-tokens", "context"]),
        (&["--temp", "NaN"], &["temperature"]),
        (&["--temp=-1"], &["temperature"]),
        (&["--temp", "warm"], &["--temp"]),
        (&["--top-p", "2"], &["top_p"]),
        (&["--min-p=-0.1"], &["min_p"]),
        (&["--top-k=-1"], &["--top-k"]),
        (&["--xtc-threshold", "0.9"], &["xtc_threshold"]),
        (&["--repetition-penalty=-1"], &["repetition_penalty"]),
        (&["--presence-penalty", "inf"], &["presence_penalty"]),
        (&["--logit-bias", "5"], &["--logit-bias", "ID=NUMBER"]),
        (&["--logit-bias", "5=x"], &["--logit-bias"]),
        (&["--logit-bias", "160=1"], &["logit_bias", "160"]),
        (&["--stop", ""], &["stop"]),
        (&["--threads", "0"], &["--threads"]),
        (&["--logprobs", "many"], &["--logprobs"]),
    ] {
        refused(2, &[&tiny[..], flags].concat(), words);
    }
}

#[test]
fn impossible_flags_of_the_demo() {
    refused(2, &["generate", "--stop", ""], &["stop"]);
    refused(2, &["generate", "--max-tokens", "1024"], &["--max-tokens", "1024"]);
    let long = "word ".repeat(2000);
    let run = longrun_reading(long.as_bytes(), &["generate", "--prompt", "-"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("--prompt") && run.stderr.contains("1024"), "{}", run.stderr);
}

#[test]
fn impossible_flags_of_soak() {
    let most = "18446744073709551615";
    for (flags, words) in [
        (&["--tokens", "0"][..], &["--tokens"][..]),
        (&["--tokens", "5000"], &["--tokens", "--context"]),
        (&["--tokens", most, "--context", most], &["tokens"]),
        (&["--rows", "0"], &["--rows"]),
        (&["--rows", "2"], &["--rows", "--mode batch"]),
        (&["--mode", "batch", "--rows", "100000", "--tokens", "5"], &["rows"]),
        (&["--mode", "churn", "--rows", most, "--tokens", "5"], &["rows"]),
        (&["--mode", "sideways"], &["--mode"]),
        (&["--model", "tiny:llama", "--layers", "0"], &["layers"]),
        (&["--model", "tiny:llama", "--hidden", "10"], &["--hidden"]),
        (&["--model", "tiny:gemma3", "--interval", "0"], &["interval"]),
        (&["--model", "tiny:qwen3_moe", "--experts", "0"], &["experts"]),
        (&["--fail-slope", "NaN"], &["--fail-slope"]),
        (&["--fail-slope=-1"], &["--fail-slope"]),
    ] {
        refused(2, &[&["soak", "--device", "null"], flags].concat(), words);
    }
    refused(3, &["soak", "--model", "/no/such"], &["/no/such"]);
    refused(3, &["inspect", "/no/such"], &["/no/such"]);
    let path = "/no/such/folder/out.json";
    let tiny = ["soak", "--model", "tiny:llama", "--device", "null", "--tokens", "5"];
    refused(3, &[&tiny[..], &["--json-out", path]].concat(), &[path]);
}

/// A soak so long that its tables do not fit in memory is refused before they are made.
#[test]
fn a_soak_beyond_all_memory_is_refused() {
    let flags = ["soak", "--model", "tiny:llama", "--device", "null"];
    let long = ["--tokens", "1000000000000", "--context", "2000000000000"];
    let run = longrun_within(1 << 20, &[&flags[..], &long].concat());
    assert!([2, 5].contains(&run.code), "{} {}", run.code, run.stderr);
    assert!(run.stderr.contains("tokens"), "{}", run.stderr);
}

/// A model of this family with some fields of its config replaced; `Null` takes a field away.
fn with_config(family: &str, name: &str, fields: &[(&str, Value)]) -> std::path::PathBuf {
    let folder = copy_of(&golden(family), name);
    let mut config = common::read_json(&folder.join("config.json"));
    for (field, value) in fields {
        config[*field] = value.clone();
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    folder
}

/// The whole binary, within an address space that a lie would burst.
#[test]
fn lies_in_a_config_are_named_by_the_binary() {
    for (i, (family, code, field, value)) in [
        ("llama", 3, "hidden_size", json!(1u64 << 40)),
        ("llama", 3, "hidden_size", json!(1 << 20)),
        ("llama", 3, "num_hidden_layers", json!(1_000_000_000)),
        ("llama", 3, "num_attention_heads", json!(0)),
        ("llama", 3, "head_dim", json!("wide")),
        ("llama", 3, "num_key_value_heads", json!(3)),
        ("llama", 4, "model_type", json!("rwkv")),
        ("qwen3_moe", 3, "num_experts_per_tok", json!(9)),
        ("gemma3", 3, "sliding_window", json!(0)),
        ("qwen3_next", 3, "layer_types", json!(["full_attention"])),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = with_config(family, &format!("lie{i}"), &[(field, value)]);
        let path = folder.to_str().unwrap();
        let run = longrun_within(1 << 20, &["generate", "--model", path, "--prompt", "x", "--raw"]);
        // The folder has no tokenizer, which is found out later than the config.
        let check = longrun_within(1 << 20, &["check", "--model", path]);
        for run in [run, check] {
            let good = run.code == code || (run.code == 4 && run.stderr.contains("tokenizer"));
            assert!(good, "{field}: {} {}", run.code, run.stderr);
            let named = ["config.json", field, "tokenizer", "rwkv"];
            assert!(named.iter().any(|n| run.stderr.contains(n)), "{field}: {}", run.stderr);
        }
    }
}

#[test]
fn damaged_files_are_named_by_the_binary() {
    let demo = root("models/demo");
    for (file, keep) in [
        ("model.safetensors", 7),
        ("model.safetensors", 100),
        ("model.safetensors", 1_000_000),
        ("config.json", 0),
        ("config.json", 200),
        ("tokenizer.json", 0),
        ("tokenizer.json", 1000),
        ("tokenizer_config.json", 20),
        ("generation_config.json", 20),
    ] {
        let folder = copy_of(&demo, "damaged");
        let bytes = fs::read(demo.join(file)).unwrap();
        fs::write(folder.join(file), &bytes[..keep]).unwrap();
        let path = folder.to_str().unwrap();
        refused(3, &["generate", "--model", path, "--prompt", "x"], &[path, file]);
    }
    let empty = scratch("empty");
    let path = empty.to_str().unwrap();
    refused(3, &["generate", "--model", path, "--prompt", "x"], &[path, "safetensors"]);
    fs::write(empty.join("x.gguf"), b"GGUF").unwrap();
    refused(3, &["generate", "--model", path, "--prompt", "x"], &[path, "x.gguf"]);
}

/// Weights that are no numbers end a run with an error; they do not hang it.
#[test]
fn broken_weights_end_every_command() {
    let folder = copy_of(&golden("llama"), "broken_weights");
    let file = folder.join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let start = bytes.len() / 2;
    bytes[start..].fill(0xff);
    fs::write(&file, bytes).unwrap();
    let path = folder.to_str().unwrap();
    refused(6, &["soak", "--model", path, "--tokens", "20"], &["NaN"]);
    let check = longrun(&["check", "--model", path]);
    assert_eq!(check.code, 1, "{}", check.stderr);
}
