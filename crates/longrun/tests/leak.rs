//! The leaks of other engines, planted on purpose: each dies where the arithmetic says, and the checks see it.
#![cfg(feature = "leak-lab")]

mod common;

use common::{Run, longrun, read_json, scratch};
use serde_json::Value;

const LIMIT: usize = 4_000;

fn soak(name: &str, inject: &str, limit: usize, tokens: usize, more: &[&str]) -> (Run, Value) {
    let out = scratch(&format!("leak_{name}")).join("out.json");
    let (limit, tokens) = (limit.to_string(), tokens.to_string());
    let model = ["soak", "--model", "tiny:qwen3_next", "--layers", "48", "--device", "null"];
    let flags = ["--inject", inject, "--resource-limit", &limit, "--tokens", &tokens];
    let json_out = ["--json-out", out.to_str().unwrap()];
    let run = longrun(&[&model[..], &flags, &json_out, more].concat());
    let json = if out.exists() { read_json(&out) } else { Value::Null };
    (run, json)
}

fn number(json: &Value, name: &str) -> usize {
    json[name].as_u64().unwrap_or_else(|| panic!("{name} in {json}")) as usize
}

/// Chains that each leak grows, and tokens between links.
const LEAKS: [(&str, usize, usize); 3] =
    [("advance", 35, 1), ("values", 12, 1), ("pooling", 12, 4)];

#[test]
fn each_leak_dies_at_its_own_token() {
    let mut tokens = Vec::new();
    for (inject, chains, every) in LEAKS {
        let (run, json) = soak(inject, inject, LIMIT, 3_000, &["--report-every", "10"]);
        assert_eq!(run.code, 2, "{inject}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.contains("objects, not bytes") && run.stderr.contains("lab"));
        assert_eq!(json["verdict"], "limit");
        let predicted = ((LIMIT - number(&json, "base_live")) / chains + 1) * every;
        assert_eq!(number(&json, "predicted_token"), predicted);
        assert!(number(&json, "died_at").abs_diff(predicted) <= 1, "{inject}: {json}");
        assert_eq!(number(&json, "flagged_at"), every, "the first link");
        assert!(json["slope_per_token"].as_f64().unwrap() > 0.0);
        assert_ne!(json["hist_first"], json["hist_last"], "the size class that grew");
        assert!(run.stdout.contains(&predicted.to_string()) && run.stdout.contains("size class"));
        tokens.push(predicted);
    }
    assert!(tokens[0] < tokens[1] && tokens[1] < tokens[2], "{tokens:?}");
}

/// The check that every build makes after every step ends the run at the first link.
#[test]
fn a_strict_check_ends_at_the_first_link() {
    for (inject, _, every) in LEAKS {
        let (run, json) = soak(&format!("strict_{inject}"), inject, LIMIT, 3_000, &["--strict"]);
        assert_eq!((run.code, json), (70, Value::Null), "{inject}");
        assert!(run.stderr.contains("number of live buffers"), "{}", run.stderr);
        assert!(run.stderr.contains(&format!("token {every}")), "{}", run.stderr);
    }
}

/// Dropping the chains now and then keeps the run alive past its death: so the chains were the cause.
#[test]
fn healing_keeps_it_alive() {
    for (inject, _, _) in LEAKS {
        let more = ["--heal-every", "40"];
        let (run, json) = soak(&format!("heal_{inject}"), inject, LIMIT, 1_600, &more);
        assert_eq!(run.code, 0, "{inject}: {}{}", run.stdout, run.stderr);
        assert!(number(&json, "tokens") > number(&json, "predicted_token"));
        assert_eq!(json["slope_per_token"].as_f64(), Some(0.0));
        assert!(json["died_at"].is_null());
        assert!(number(&json, "flagged_at") >= 1, "it still leaks between");
    }
}

/// With the check a report and no limit in reach nothing stops the leak: the nets are what stops it.
#[test]
fn without_nets_it_runs_on() {
    let (_, limited) = soak("limited", "advance", LIMIT, 3_000, &[]);
    let death = number(&limited, "died_at");
    let (run, json) = soak("nets_off", "advance", 1_000_000_000, 2 * death, &[]);
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    assert_eq!(json["verdict"], "growth");
    assert_eq!(number(&json, "tokens"), 2 * death);
    let slope = json["slope_per_token"].as_f64().unwrap();
    assert!((slope - 35.0).abs() < 0.5, "{slope} buffers a token, 35 chains");
}
