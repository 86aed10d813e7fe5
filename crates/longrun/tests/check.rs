//! `longrun check`: reference vectors through the binary, and what it says when they do not fit.

mod common;

use std::fs;

use common::{copy_of, golden, longrun, scratch};
use serde_json::Value;

const FAMILIES: [&str; 41] = [
    "llama",
    "llama3_rope",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_yarn",
    "llama_linear",
    "qwen3_moe",
    "gemma3",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "smollm3",
    "qwen2_moe",
    "mixtral",
    "gemma2",
    "phi3",
    "olmo2",
    "glm4",
    "glm4_moe",
    "ministral3",
    "minimax_m2",
    "lfm2",
    "gpt_oss",
    "llama_dynamic",
    "phi3_longrope",
    "ministral3_growth",
    "olmo3",
    "seed_oss",
    "mamba2",
    "nemotron_h",
    "falcon_h1",
    "granitemoehybrid",
    "kimi_linear",
    "falcon_h1_factors",
    "falcon_h1_before",
    "granitemoehybrid_dense",
    "nemotron_h_latent",
    "granite",
    "granitemoeshared",
    "kimi_linear_small",
];

#[test]
fn every_golden_folder_passes() {
    for family in FAMILIES {
        let folder = golden(family);
        let run = longrun(&["check", "--model", folder.to_str().unwrap(), "--json"]);
        let rows: Vec<Value> = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!((run.code, rows.len()), (0, 8), "{family}: {}{}", run.stdout, run.stderr);
        for mode in ["one_pass", "chunks", "token_by_token", "batched"] {
            assert_eq!(rows.iter().filter(|row| row["mode"] == mode).count(), 2, "{family} {mode}");
        }
        for row in &rows {
            assert!(row["vector"].is_string() && row["tokens"].as_u64().unwrap() > 0);
            assert!(row["relative"].as_f64().unwrap() <= 1e-4, "{family}: {row}");
            assert!(row["max_abs"].as_f64().unwrap() >= 0.0);
            assert!(row["argmax_agreement"].as_f64().unwrap() > 0.9);
            assert_eq!(row["greedy_agreed"], row["greedy_compared"]);
            assert_eq!(row["same_bits"], true);
        }
    }
}

#[test]
fn each_type_of_keys_and_values_is_within_its_bound() {
    for family in ["llama", "gemma3", "phi3", "olmo2", "qwen3_next", "falcon_h1", "mamba2"] {
        let folder = golden(family);
        let check = |kv: &str, more: &[&str]| {
            let args = ["check", "--model", folder.to_str().unwrap(), "--json", "--kv-type", kv];
            let run = longrun(&[&args[..], more].concat());
            let rows: Vec<Value> = serde_json::from_str(&run.stdout).unwrap();
            assert!(rows.iter().all(|row| row["same_bits"] == true), "{family} {kv}");
            let relative = rows.iter().map(|row| row["relative"].as_f64().unwrap());
            (run.code, relative.fold(0.0, f64::max))
        };
        let mut last = 0.0;
        for (kv, bound) in [("f32", 1e-4), ("f16", 1e-2), ("bf16", 5e-2), ("q8", 0.2), ("q4", 1.0)]
        {
            let (code, relative) = check(kv, &[]);
            assert!(code == 0 && relative <= bound, "{family} {kv}: {relative}");
            // A model without keys and values has nothing to round.
            assert!((relative > last) != (family == "mamba2" && kv != "f32"), "{family} {kv}");
            last = relative;
        }
        assert_eq!(check("q8", &["--tolerance", "1e-4"]).0, i32::from(family != "mamba2"));
    }
}

#[test]
fn the_table_has_a_line_a_vector_and_mode() {
    let folder = golden("llama");
    let run = longrun(&["check", "--model", folder.to_str().unwrap(), "--exact"]);
    assert_eq!(run.code, 0);
    assert_eq!(run.stdout.lines().count(), 9);
    for words in ["one pass", "chunks of 7", "token by token", "two rows"] {
        assert_eq!(run.stdout.matches(words).count(), 2, "{}", run.stdout);
    }
    assert!(!run.stdout.contains("BEYOND"));
}

/// Where tensor `name` lies in a safetensors file.
fn place(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..head]).unwrap();
    let at = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize + head;
    at(0)..at(1)
}

#[test]
fn a_wrong_logit_is_found_unless_it_is_tolerated() {
    let vectors = scratch("wrong_vectors").join("wrong.safetensors");
    let mut bytes = fs::read(golden("llama").join("golden.safetensors")).unwrap();
    let logits = place(&bytes, "logits");
    let one: &mut [u8; 4] = (&mut bytes[logits][400..404]).try_into().unwrap();
    *one = (f32::from_le_bytes(*one) + 1e-2).to_le_bytes();
    fs::write(&vectors, bytes).unwrap();
    let (folder, vectors) = (golden("llama"), vectors.to_str().unwrap());
    let args = ["check", "--model", folder.to_str().unwrap(), "--against", vectors];
    let run = longrun(&args);
    assert_eq!(run.code, 1, "{}", run.stdout);
    assert_eq!(run.stdout.matches("BEYOND").count(), 4, "only the changed vector");
    assert_eq!(longrun(&[&args[..], &["--tolerance", "0.1"]].concat()).code, 0);
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let folder = copy_of(&golden("llama"), "no_vectors");
    fs::remove_file(folder.join("golden.safetensors")).unwrap();
    let path = folder.to_str().unwrap();
    let refused = |code: i32, more: &[&str], words: &[&str]| {
        let run = longrun(&[&["check", "--model", path], more].concat());
        assert_eq!(run.code, code, "{}", run.stderr);
        words.iter().for_each(|w| assert!(run.stderr.contains(w), "{w}: {}", run.stderr));
    };
    refused(3, &[], &["golden.safetensors", "--against"]);
    refused(3, &["--against", "/no/such"], &["/no/such"]);
    refused(2, &["--tolerance", "NaN"], &["--tolerance"]);
    refused(2, &["--tolerance=-1"], &["--tolerance"]);
    let weights = folder.join("model.safetensors");
    refused(3, &["--against", weights.to_str().unwrap()], &["model.safetensors", "prompt"]);
    let whole = fs::read(golden("llama").join("golden.safetensors")).unwrap();
    let file = folder.join("vectors.safetensors");
    let against = ["--against", file.to_str().unwrap()];
    for keep in [0, 9, 300, whole.len() - 1] {
        fs::write(&file, &whole[..keep]).unwrap();
        refused(3, &against, &["vectors.safetensors"]);
    }
    // A token that the model does not have.
    let mut bytes = whole;
    let prompt = place(&bytes, "prompt");
    bytes[prompt][..8].copy_from_slice(&160u64.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    refused(3, &against, &["160"]);
}
