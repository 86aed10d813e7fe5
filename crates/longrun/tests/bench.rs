//! `longrun bench`: its figures are there and fit together, its loads hold, and impossible flags are errors.

mod common;

use common::{golden, longrun, read_json, scratch};
use serde_json::Value;

const SMALL: [&str; 8] = ["--prompt", "20", "--generate", "4", "--rounds", "2", "--chunk", "16"];

fn number(json: &Value, name: &str) -> f64 {
    json[name].as_f64().unwrap_or_else(|| panic!("{name} in {json}"))
}

#[test]
fn figures_are_medians_and_ratios_of_rounds() {
    let golden = golden("llama");
    for model in ["demo", "tiny:qwen3_next", golden.to_str().unwrap()] {
        let flags = ["--depth", "3,40", "--batch", "1,3", "--threads", "1", "--json"];
        let args = [&["bench", "--model", model][..], &SMALL, &flags].concat();
        let json = longrun(&args).json();
        let rates = |part: &Value| {
            let rounds: Vec<f64> =
                part["rounds"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
            assert_eq!(rounds.len(), 2);
            assert!(rounds.iter().all(|rate| *rate > 0.0), "{part}");
            for used in ["bandwidth_fraction", "arithmetic_fraction"] {
                let used = number(part, used);
                assert!(used > 0.0 && used.is_finite(), "{part}");
            }
            rounds
        };
        let middle = |rounds: &[f64]| f64::midpoint(rounds[0], rounds[1]);
        let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-9 * b, "{a} is not {b}");
        near(number(&json["prefill"], "tokens_per_second"), middle(&rates(&json["prefill"])));
        let decode = json["decode"].as_array().unwrap();
        assert_eq!(decode.iter().map(|d| number(d, "depth")).collect::<Vec<_>>(), [3.0, 40.0]);
        let alone = rates(&decode[0]);
        let batch = json["batch"].as_array().unwrap();
        assert_eq!(batch.iter().map(|b| number(b, "rows")).collect::<Vec<_>>(), [1.0, 3.0]);
        for b in batch {
            let (rows, total) = (number(b, "rows"), number(b, "total_tokens_per_second"));
            let rounds = rates(b);
            near(total, middle(&rounds));
            near(number(b, "tokens_per_second_of_a_row"), total / rows);
            near(number(b, "ratio"), middle(&[rounds[0] / alone[0], rounds[1] / alone[1]]));
        }
        assert_eq!(json["model"], model);
        assert_eq!(json["threads"], 1);
        assert_eq!(json["file_bytes"].is_null(), model.starts_with("tiny:"));
        assert!(number(&json, "weight_bytes") + number(&json, "cache_bytes") > 0.0);
        let argv: Vec<&str> =
            json["argv"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
        assert_eq!(argv[1..], args);
    }
}

#[test]
fn rows_behind_prompts_are_an_array_of_runs() {
    let golden = golden("llama");
    for (model, quant, rounds) in [
        ("shape:tiny", Some("bf16"), "2"),
        ("shape:tiny", Some("q4"), "2"),
        ("shape:tiny", Some("q4_k"), "1"),
        (golden.to_str().unwrap(), None, "2"),
    ] {
        let flags = ["-p", "40", "-g", "5", "-b", "1,3", "--rounds", rounds, "--chunk", "16"];
        let mut args =
            [&["bench", "--model", model, "--json", "--threads", "1"], &flags[..]].concat();
        args.extend(quant.iter().flat_map(|quant| ["--quant", *quant]));
        let run = longrun(&args);
        assert!(run.stderr.contains("\ndevice: cpu") || run.stderr.starts_with("device: cpu"));
        let json = run.json();
        let runs = json.as_array().unwrap();
        let of = |name: &str| runs.iter().map(|run| number(run, name)).collect::<Vec<_>>();
        assert_eq!(of("batch"), [1.0, 3.0]);
        assert_eq!((of("prompt"), of("generate")), (vec![40.0; 2], vec![5.0; 2]));
        for run in runs {
            let named = model.strip_prefix("shape:").unwrap_or(model);
            assert_eq!((&run["shape"], run["quant"].is_string()), (&named.into(), true));
            assert!(quant.is_none_or(|quant| run["quant"] == quant), "{run}");
            assert!(number(run, "prefill_tokens_per_second") > 0.0, "{run}");
            let (rate, ms) = (number(run, "decode_tokens_per_second"), number(run, "ms_per_step"));
            let rows = number(run, "batch");
            // Medians of two rounds are means, and those of rates and of times are not quite the same.
            let near = rate * ms / 1e3 / rows;
            assert!(if rounds == "1" { (near - 1.0).abs() < 1e-9 } else { near >= 1.0 - 1e-9 });
            assert!(number(run, "bandwidth_fraction") > 0.0, "{run}");
            assert_eq!(run["live_before"], run["live_after"]);
            assert!(number(run, "live_before") > 0.0 && number(run, "weight_bytes") > 0.0);
            let of_rounds = |name: &str| run[name].as_array().unwrap().len().to_string();
            assert_eq!([of_rounds("prefill_rounds"), of_rounds("decode_rounds")], [rounds; 2]);
        }
    }
}

#[test]
fn a_shape_is_measured_behind_a_prompt_unless_told_otherwise() {
    let bench = |flags: &[&str]| {
        let small = ["bench", "--model", "shape:tiny", "-p", "20", "-g", "3", "--device", "null"];
        let run = longrun(&[&small[..], flags].concat());
        assert_eq!(run.code, 0, "{flags:?}: {}", run.stderr);
        run
    };
    let table = bench(&[]).stdout;
    assert!(table.contains("\n   1 ") && table.contains("live buffers"), "{table}");
    assert!(table.contains("\nstored   weights in bf16, keys and values in f32\n"), "{table}");
    let json = bench(&["--json"]).json();
    assert!(json[0]["bandwidth_fraction"].is_null(), "{json}");
    let weights = |quant: &str| {
        let json = bench(&["--json", "--quant", quant]).json();
        number(&json[0], "weight_bytes")
    };
    let (bf16, q8, q4) = (weights("bf16"), weights("q8"), weights("q4"));
    assert!(q8 < 0.6 * bf16 && q4 < 0.6 * q8, "{bf16} {q8} {q4}");
    for flags in [&["--batch", "1"][..], &["--depth", "4"], &["--profile"]] {
        let flags = [flags, &["--rounds", "1", "--json"]].concat();
        let json = bench(&flags).json();
        assert!(json["decode"].is_array() && json["file_bytes"].is_null(), "{json}");
    }
}

#[test]
fn real_shapes_have_the_size_of_real_models() {
    for (shape, parameters) in
        [("llama-8b", 8.030e9), ("qwen3-0.6b", 0.596e9), ("qwen3.5-35b-a3b", 34.66e9)]
    {
        let model = format!("shape:{shape}");
        let flags = ["-p", "1", "-g", "1", "--chunk", "1", "--quant", "q4", "--json"];
        let flags = [&["bench", "--model", &model, "--device", "null"][..], &flags].concat();
        // A group of 64 has 32 bytes of codes, a scale and a bias.
        let found = number(&longrun(&flags).json()[0], "weight_bytes") * 64.0 / 36.0;
        assert!((found / parameters - 1.0).abs() < 5e-3, "{shape}: {found}");
    }
}

#[test]
fn the_table_has_a_line_for_each_figure() {
    let flags = ["--depth", "0", "--batch", "2,4", "--device", "null"];
    let run = longrun(&[&["bench"][..], &SMALL, &flags].concat());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("peaks    unknown"), "{}", run.stdout);
    for words in ["model ", "machine ", "memory ", "prefill ", "decode ", "\n   2 ", "\n   4 "] {
        assert!(run.stdout.contains(words), "{words:?} in {}", run.stdout);
    }
}

#[test]
fn a_profile_adds_up_to_the_step() {
    let flags = ["--depth", "3", "--batch", "1,3", "--rounds", "1", "--profile"];
    let flags = [&["bench", "--model", "tiny:qwen3_next"][..], &SMALL[..4], &flags].concat();
    let json = longrun(&[&flags[..], &["--json"]].concat()).json();
    let phases = json["profile"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|p| p["phase"].as_str().unwrap()).collect();
    let want = ["prefill, 20 tokens", "decode, after 3 tokens", "decode of 3 rows, after 3 tokens"];
    assert_eq!(names, want);
    for phase in phases {
        let parts = phase["parts"].as_array().unwrap();
        let sum = |name: &str| parts.iter().map(|part| number(part, name)).sum::<f64>();
        let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-6 * b, "{a} is not {b}: {phase}");
        near(sum("seconds"), number(phase, "step_seconds"));
        near(sum("fraction"), 1.0);
        let named = |name: &str| parts.iter().filter(|part| part["name"] == name).count();
        for name in ["linear bf16", "attention", "delta_rule", "emit", "between", "engine"] {
            assert_eq!(named(name), 1, "{name} in {phase}");
        }
        let busy = |part: &&Value| number(part, "launches") > 0.0;
        assert!(parts.iter().filter(busy).all(|part| number(part, "seconds") > 0.0), "{phase}");
        assert_eq!(number(phase, "steps"), if phase["phase"] == want[0] { 1.0 } else { 4.0 });
    }
    let run = longrun(&flags);
    for words in ["\nprofile  decode, after 3 tokens: 4 steps\n", "\nattention ", "\nstep "] {
        assert!(run.stdout.contains(words), "{words:?} in {}", run.stdout);
    }
}

/// Runs a load that must be held; gives its outcome.
fn held(name: &str, args: &[&str]) -> Value {
    let out = scratch(&format!("bench_{name}")).join("out.json");
    let run = longrun(&[&["bench"], args, &["--json-out", out.to_str().unwrap()]].concat());
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.ends_with("held\n"), "{}", run.stdout);
    let json = read_json(&out);
    assert_eq!(json["verdict"], "held");
    json
}

#[test]
fn no_stream_misses_a_step() {
    for (model, device) in
        [("tiny:llama", "cpu"), ("tiny:qwen3_next", "cpu"), ("tiny:gemma3", "null")]
    {
        let flags = ["--streams", "3", "--long", "300", "--chunk", "16", "--device", device];
        let json = held("streams", &[&["streams", "--model", model][..], &flags].concat());
        for phase in ["before", "during", "after"] {
            assert_eq!(number(&json[phase], "longest_gap_steps"), 1.0);
            let longest = number(&json[phase], "longest_step_seconds");
            assert!(number(&json[phase], "median_step_seconds") <= longest);
            let used = &json[phase]["bandwidth_fraction"];
            assert_eq!(used.as_f64().is_some_and(|used| used > 0.0), device == "cpu");
        }
        // Every step reads a chunk at most.
        assert!(number(&json["during"], "steps") >= (300.0_f64 / 16.0).ceil());
        assert!(number(&json, "first_token_seconds") > 0.0);
    }
}

#[test]
fn conversations_stay_inside_of_a_budget() {
    let few = ["conversations", "--conversations", "30", "--turns", "3", "--systems", "3"];
    let ours = ["--rows", "4", "--device", "null"];
    for (model, memory) in [("tiny:llama", "8MiB"), ("tiny:qwen3_next", "6MiB")] {
        let flags = ["--model", model, "--memory", memory];
        let json = held("conversations", &[&few[..], &ours, &flags].concat());
        let budget = number(&json, "budget_bytes");
        assert_eq!(budget, memory.trim_end_matches("MiB").parse::<f64>().unwrap() * 1048576.0);
        let most = number(&json, "most_bytes");
        assert!(most <= budget && most > budget * 0.9, "{most} of {budget}");
        assert_eq!(number(&json, "steps_above_budget"), 0.0);
        assert_eq!(number(&json, "requests"), 90.0);
        assert!(number(&json, "evicted") > 0.0);
        let misses = json["misses"].as_object().unwrap().values();
        let misses: f64 = misses.map(|n| n.as_f64().unwrap()).sum();
        let rate = number(&json, "hit_rate");
        assert!(rate > 0.0 && (misses + rate * 90.0 - 90.0).abs() < 1e-6, "{misses} and {rate}");
        assert!((0.0..1.0).contains(&number(&json, "cached_fraction")));
    }
    // Without a budget there is room for a quarter of them, and so much may be taken.
    let json = held("conversations_free", &[&few[..], &ours, &["--model", "tiny:llama"]].concat());
    assert_eq!(json["budget_bytes"], json["live_bytes"]);
}

#[test]
fn the_same_seed_is_the_same_load() {
    let flags = ["conversations", "--conversations", "8", "--turns", "2", "--memory", "8MiB"];
    let counts = |seed: &str| {
        let json = held("seed", &[&flags[..], &["--model", "tiny:llama", "--seed", seed]].concat());
        ["steps", "hit_rate", "cached_fraction", "evicted"].map(|name| number(&json, name))
    };
    let once = counts("5");
    assert_eq!(once, counts("5"));
    assert_ne!(once, counts("6"));
}

#[test]
fn impossible_flags_are_errors() {
    let most = usize::MAX.to_string();
    let flags: [(i32, &str, &[&str]); 23] = [
        (2, "--generate", &["--generate", "0"]),
        (2, "--prompt", &["--prompt", "0"]),
        (2, "--rounds", &["--rounds", "0"]),
        (2, "--chunk", &["--chunk", "0"]),
        (2, "--batch", &["--batch", "4,0"]),
        (2, "rows", &["--batch", "65"]),
        (2, "-b", &["-b", "1,0"]),
        (2, "cannot be used", &["-b", "1", "--depth", "0"]),
        (2, "cannot be used", &["-b", "1", "--profile"]),
        (2, "--quant", &["--quant", "q4"]),
        (2, "q4_k", &["--model", "shape:tiny", "--quant", "q9"]),
        (2, "llama-8b, qwen3-0.6b", &["--model", "shape:llama"]),
        (2, "--batch", &["--batch", "x"]),
        (2, "--context", &["--prompt", "1025"]),
        (2, "--context", &["--depth", &most]),
        (2, "tokens", &["--generate", &most, "--context", &most]),
        (2, "cannot be used", &["--json", "streams"]),
        (2, "--streams", &["streams", "--streams", "0"]),
        (2, "--context", &["streams", "--long", "30000"]),
        (2, "--turns", &["conversations", "--turns", &most]),
        (2, "no unit", &["conversations", "--memory", "3 parsecs"]),
        (2, "more bytes", &["conversations", "--memory", "18446744073709551615GiB"]),
        (5, "MiB", &["conversations", "--memory", "1MiB"]),
    ];
    for (code, words, flags) in flags {
        let run = longrun(&[&["bench"], flags].concat());
        assert_eq!(run.code, code, "{flags:?}: {}", run.stderr);
        assert!(run.stderr.contains(words), "{flags:?}: {}", run.stderr);
        assert!(run.stdout.is_empty(), "{flags:?}: {}", run.stdout);
    }
}
