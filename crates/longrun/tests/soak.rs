//! `longrun soak`: what a long completion holds does not grow, for every kind of state. Short forms of the long proofs.

mod common;

use std::fs;

use common::{Run, longrun, read_json, scratch};
use serde_json::Value;

/// Runs a soak; gives what it printed and what it wrote.
fn soak(name: &str, args: &[&str]) -> (Run, Value) {
    let out = scratch(&format!("soak_{name}")).join("out.json");
    let run = longrun(&[&["soak", "--json-out", out.to_str().unwrap()], args].concat());
    let json = if out.exists() { read_json(&out) } else { Value::Null };
    (run, json)
}

fn number(json: &Value, name: &str) -> u64 {
    json[name].as_u64().unwrap_or_else(|| panic!("{name} in {json}"))
}

/// Runs a soak that must be flat, with all its fields there; gives what it wrote.
fn flat(name: &str, tokens: usize, args: &[&str]) -> Value {
    let count = tokens.to_string();
    let (run, json) = soak(name, &[&["--tokens", &count], args].concat());
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert_eq!(json["verdict"], "flat");
    assert_eq!(json["slope_per_token"].as_f64(), Some(0.0));
    assert_eq!(number(&json, "tokens"), tokens as u64);
    let base = number(&json, "base_live");
    assert_eq!(number(&json, "end_live"), base);
    assert!(number(&json, "plans") > 0);
    let samples = json["samples"].as_array().unwrap();
    assert!(samples.len() >= 20, "{} samples", samples.len());
    for sample in samples {
        assert_eq!(number(sample, "live"), base);
        assert_eq!(number(sample, "cached"), 0);
        assert_eq!(sample["bytes"], samples[0]["bytes"]);
        assert!(number(sample, "rss") > 0 && number(sample, "tokens") > 0);
        assert!(sample["tokens_per_second"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(number(samples.last().unwrap(), "tokens"), tokens as u64);
    for absent in ["predicted_token", "died_at", "flagged_at"] {
        assert!(json[absent].is_null(), "{absent}");
    }
    assert_eq!(json["hist_first"], json["hist_last"]);
    let objects = json["hist_first"].as_array().unwrap().iter();
    assert_eq!(objects.map(|class| class[1].as_u64().unwrap()).sum::<u64>(), base);
    assert!(json["argv"].as_array().unwrap().contains(&"--tokens".into()));
    json
}

/// Resident memory after warming up, first and last, in bytes.
fn resident(json: &Value) -> (u64, u64) {
    let samples = json["samples"].as_array().unwrap();
    (number(&samples[samples.len() / 4], "rss"), number(samples.last().unwrap(), "rss"))
}

const NULL: [&str; 2] = ["--device", "null"];

#[test]
fn a_hybrid_of_48_layers_is_flat() {
    let model = ["--model", "tiny:qwen3_next", "--layers", "48", "--mode", "batch"];
    let json = flat("hybrid_cpu", 100, &model);
    assert_eq!(number(&json, "linear_layers"), 36);
    let json = flat("hybrid_null", 20_000, &[&model[..], &NULL].concat());
    let (early, late) = resident(&json);
    assert!(late < early + (1 << 20), "{early} bytes were resident, then {late}");
}

#[test]
fn keys_and_values_of_each_type_are_flat() {
    let mut bytes = u64::MAX;
    for (kv, line) in [
        ("f32", "caches: 4 in f32, 2048 bytes a token; records in f32, 448704 bytes a row"),
        ("f16", "caches: 4 in f16, 1024 bytes"),
        ("q8", "caches: 4 in q8, 544 bytes"),
        ("q4", "caches: 4 in q4, 320 bytes"),
    ] {
        let args = ["--tokens", "200", "--mode", "churn", "--kv-type", kv];
        let (run, json) = soak(&format!("kv_{kv}"), &args);
        assert_eq!((run.code, &json["verdict"]), (0, &Value::from("flat")), "{}", run.stderr);
        assert!(run.stderr.contains(line), "{}", run.stderr);
        let live = number(&json["samples"][0], "bytes");
        assert!(live < bytes, "{kv}: {live} of {bytes}");
        bytes = live;
    }
}

/// What is said to be taken at the start is what the ledger counts, and the parts are all of it.
#[test]
fn the_parts_of_memory_are_all_of_it() {
    let (run, json) = soak("parts", &["--tokens", "100", "--mode", "churn"]);
    let line = run.stderr.lines().find(|line| line.starts_with("memory: ")).unwrap();
    let counted = number(&json["samples"][0], "bytes") as f64;
    let total = format!("memory: {:.1} MiB: ", counted / 1048576.0);
    let parts = line.strip_prefix(&total).unwrap_or_else(|| panic!("{line:?}, not {total:?}"));
    let (parts, _) = parts.split_once("; ").unwrap();
    let named = parts.split(", ").map(|part| part.split_once(' ').unwrap());
    let (names, sizes): (Vec<&str>, Vec<&str>) = named.unzip();
    assert_eq!(names, ["weights", "steps", "rows", "tokens", "snapshots"]);
    let sizes = sizes.into_iter().map(bytes);
    let (sum, slack) = sizes.fold((0.0, 0.0), |(a, b), (size, slack)| (a + size, b + slack));
    assert!((sum - counted).abs() <= slack, "{line}: {sum}, and {counted} are counted");
}

/// A size as it is shown to people, and how far rounding may have moved it.
fn bytes(text: &str) -> (f64, f64) {
    let (number, unit) = text.split_once(' ').unwrap();
    let unit = ["B", "KiB", "MiB"].iter().position(|known| *known == unit).unwrap();
    let unit = 1024f64.powi(unit as i32);
    (number.parse::<f64>().unwrap() * unit, 0.05 * unit)
}

#[test]
fn experts_are_flat() {
    let model = ["--model", "tiny:qwen3_5_moe", "--mode", "batch", "--rows", "3"];
    flat("moe_cpu", 200, &model);
    flat("moe_null", 5_000, &[&model[..], &NULL].concat());
}

/// The window of 64 tokens is passed many times.
#[test]
fn a_sliding_window_wraps_and_is_flat() {
    let json = flat("window_cpu", 400, &["--model", "tiny:gemma3"]);
    assert_eq!(number(&json, "linear_layers"), 0);
    flat(
        "window_null",
        5_000,
        &[&["--model", "tiny:gemma3", "--mode", "batch"][..], &NULL].concat(),
    );
}

#[test]
fn values_that_nobody_reads_are_flat() {
    flat("dead_cpu", 200, &["--model", "tiny:dead_values", "--mode", "batch"]);
    flat("dead_null", 5_000, &[&["--model", "tiny:dead_values"][..], &NULL].concat());
}

/// Layers without positions: in lazy engines nobody reads the offset that their cache counts up.
#[test]
fn layers_without_positions_are_flat() {
    for family in ["smollm3", "kimi_linear", "glm5_next"] {
        let model = ["--model", &format!("tiny:{family}"), "--mode", "batch"];
        flat(&format!("nope_cpu_{family}"), 120, &model);
        let null = [&model[..], &NULL].concat();
        flat(&format!("nope_null_{family}"), 5_000, &null);
    }
}

#[test]
fn shape_flags_shape_the_model() {
    let shape = ["--layers", "6", "--interval", "2", "--hidden", "32", "--experts", "4"];
    let model = [&["--model", "tiny:qwen3_next"][..], &shape, &NULL].concat();
    assert_eq!(number(&flat("shape", 100, &model), "linear_layers"), 3);
    let attention = [&model[..], &["--attention-only"]].concat();
    assert_eq!(number(&flat("attention_only", 100, &attention), "linear_layers"), 0);
}

/// Hundreds of rows join and leave beside the long one, and nothing is left of them.
#[test]
fn rows_that_come_and_go_leave_nothing() {
    for (name, model, tokens, joins, device) in [
        ("churn_null", "tiny:qwen3_next", 2_000, 500, "null"),
        ("churn_window", "tiny:gemma3", 400, 100, "null"),
        ("churn_cpu", "tiny:qwen3_next", 240, 60, "cpu"),
    ] {
        let flags = ["--model", model, "--device", device, "--mode", "churn", "--layers", "8"];
        let json = flat(name, tokens, &flags);
        assert!(number(&json, "joins") >= joins, "{} joins", json["joins"]);
    }
}

#[test]
fn the_demo_runs_past_its_context_only_when_told() {
    let (run, json) = soak("demo_refused", &["--tokens", "1100"]);
    assert_eq!((run.code, json), (2, Value::Null));
    assert!(run.stderr.contains("--context"), "{}", run.stderr);
    flat("demo", 1_100, &["--context", "1200", "--device", "null"]);
    let short = soak("demo_short", &["--tokens", "60", "--context", "50"]).0;
    assert_eq!(short.code, 2);
    flat("demo_cpu", 40, &[]);
}

#[test]
fn the_object_limit_is_named_at_load() {
    let flags = ["--model", "tiny:qwen3_next", "--device", "null", "--resource-limit", "100"];
    let (run, _) = soak("limit", &flags);
    assert_eq!(run.code, 2, "{}", run.stderr);
    for words in
        ["number of buffers", "100 allowed", "objects, not bytes", "size classes", "weight"]
    {
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
}

#[test]
fn a_plot_is_whole() {
    let file = scratch("soak_plot").join("live.svg");
    let flags = ["--model", "tiny:llama", "--device", "null", "--plot", file.to_str().unwrap()];
    flat("plot", 100, &flags);
    let svg = fs::read_to_string(file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    let count = |what: &str| svg.matches(what).count();
    assert_eq!(count("<text"), count("</text>"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
    let points: Vec<(f64, f64)> = points
        .split(' ')
        .map(|p| p.split_once(',').unwrap())
        .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
        .collect();
    assert!(points.len() >= 20 && points.iter().all(|p| p.1 == points[0].1), "a level line");
    assert!(points.is_sorted_by(|a, b| a.0 < b.0));
}
