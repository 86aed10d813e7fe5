//! `longrun generate` from the outside: what people and scripts see of a completion.

mod common;

use std::io::Read;
use std::process::{Command, Stdio};

use common::{BINARY, ids, longrun, longrun_reading, read_json, root};
use longrun_lm::config::Family;
use serde_json::Value;

/// The demo's completion as JSON.
fn demo(args: &[&str]) -> Value {
    longrun(&[&["generate", "--json", "--max-tokens", "24"], args].concat()).json()
}

fn greedy_ids(args: &[&str]) -> Vec<u32> {
    ids(&demo(&[&["--temp", "0"], args].concat())["ids"])
}

#[test]
fn the_demo_writes_its_reference_stories() {
    let reference = read_json(&root("models/demo/reference.json"));
    let cases = reference["prompts"].as_array().unwrap();
    assert_eq!(cases.len(), 3);
    for (case, threads) in cases.iter().flat_map(|c| [(c, "1"), (c, "2")]) {
        let (prompt, greedy) = (case["prompt"].as_str().unwrap(), ids(&case["greedy"]));
        let count = greedy.len().to_string();
        let flags = ["--prompt", prompt, "--max-tokens", &count, "--threads", threads];
        let all = ["generate", "--json", "--temp", "0"];
        let got = longrun(&[&all[..], &flags].concat()).json();
        assert_eq!(ids(&got["prompt_ids"]), ids(&case["ids"]), "{prompt}");
        assert_eq!(ids(&got["ids"]), greedy, "{prompt}");
        let text = format!("{prompt}{}", got["text"].as_str().unwrap());
        assert_eq!(text, case["text"].as_str().unwrap());
        assert_eq!(got["finish_reason"], "length");
    }
}

#[test]
fn json_has_every_field() {
    let got = demo(&["--temp", "0"]);
    for name in ["prompt_tokens_per_second", "tokens_per_second", "load_seconds"] {
        assert!(got[name].as_f64().unwrap() > 0.0, "{name}");
    }
    assert!(got["text"].is_string() && got["finish_reason"].is_string());
    assert!(got["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    let ledger = &got["ledger"];
    for what in ["live", "bytes"] {
        let [start, end] = ["start", "end"].map(|at| ledger[format!("{what}_{at}")].as_u64());
        assert!(start.unwrap() > 0);
        assert_eq!(start, end);
    }
    assert!(got.get("logprobs").is_none());
}

#[test]
fn streamed_text_is_the_text_of_the_json() {
    let want = demo(&["--temp", "0"]);
    let run = longrun(&["generate", "--temp", "0", "--max-tokens", "24"]);
    assert_eq!(run.code, 0);
    assert_eq!(run.stdout, format!("{}\n", want["text"].as_str().unwrap()));
    for part in ["tokens/s", "peak memory", "live buffers"] {
        assert!(run.stderr.contains(part), "{}", run.stderr);
    }
}

#[test]
fn a_stop_string_ends_the_text_and_never_shows() {
    // The stop string spans tokens, and " in a " begins like it before it is met.
    for (stops, want) in [
        (&["small yel"][..], ", there was a merry boy named Sam. He lived in a "),
        (&["zzz", "boy"], ", there was a merry "),
        (&[","], ""),
        (&["merry boy", "a merry"], ", there was "),
    ] {
        let flags: Vec<&str> = stops.iter().flat_map(|s| ["--stop", s]).collect();
        let flags = [&["--temp", "0"], &flags[..]].concat();
        let got = demo(&flags);
        assert_eq!(got["text"], want, "{stops:?}");
        assert_eq!(got["finish_reason"], "stop");
        let streamed = longrun(&[&["generate"], &flags[..]].concat());
        assert_eq!(streamed.stdout, format!("{want}\n"));
    }
    let never = demo(&["--temp", "0", "--stop", "stuck in the tree forever"]);
    assert_eq!(never["text"], demo(&["--temp", "0"])["text"]);
    assert_eq!(never["finish_reason"], "length");
}

#[test]
fn a_seed_fixes_the_text_and_temperature_zero_ignores_it() {
    // Nothing asks for a temperature: the checkpoint's own makes the text depend on the seed.
    let texts = ["1", "2", "3"].map(|seed| demo(&["--seed", seed])["text"].clone());
    assert_eq!(texts[0], demo(&["--seed", "1", "--threads", "1"])["text"]);
    assert!(texts[0] != texts[1] || texts[0] != texts[2]);
    assert!(texts.iter().any(|text| *text != demo(&["--temp", "0"])["text"]));
    let greedy = ["1", "2"].map(|seed| greedy_ids(&["--seed", seed]));
    assert_eq!(greedy[0], greedy[1]);
    // With one candidate left a temperature changes nothing.
    assert_eq!(ids(&demo(&["--temp", "2", "--top-k", "1", "--seed", "5"])["ids"]), greedy[0]);
}

#[test]
fn logprobs_are_sorted_and_name_the_chosen_token() {
    for flags in [&["--temp", "0"][..], &["--temp", "1", "--top-p", "1", "--seed", "3"]] {
        let got = demo(&[flags, &["--logprobs", "4"]].concat());
        let (chosen, entries) = (ids(&got["ids"]), got["logprobs"].as_array().unwrap());
        assert_eq!(entries.len(), chosen.len());
        for (id, entry) in chosen.iter().zip(entries) {
            assert_eq!(entry["id"], *id);
            let own = entry["logprob"].as_f64().unwrap();
            let top = entry["top"].as_array().unwrap();
            assert_eq!(top.len(), 4);
            let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
            assert!(values.is_sorted_by(|a, b| a >= b) && values[0] <= 0.0 && own <= values[0]);
            assert!(values.iter().map(|l| l.exp()).sum::<f64>() <= 1.0 + 1e-5);
            if let Some(same) = top.iter().find(|t| t["id"] == *id) {
                assert_eq!(same["logprob"], entry["logprob"]);
            }
            assert!(flags.len() > 2 || top[0]["id"] == *id);
        }
    }
    let none = demo(&["--temp", "0", "--logprobs", "0"]);
    assert!(none["logprobs"][0]["top"].as_array().unwrap().is_empty());
}

#[test]
fn biases_and_penalties_move_the_choice() {
    assert!(greedy_ids(&["--logit-bias", "500=1000"]).iter().all(|id| *id == 500));
    let plain = greedy_ids(&[]);
    let banned = greedy_ids(&["--logit-bias", &format!("{}=-1000", plain[0])]);
    assert!(!banned.contains(&plain[0]));
    for flag in ["--repetition-penalty", "--presence-penalty", "--frequency-penalty"] {
        assert_ne!(greedy_ids(&[flag, "8"]), plain, "{flag}");
        let off = if flag.starts_with("--rep") { "1" } else { "0" };
        assert_eq!(greedy_ids(&[flag, off]), plain, "{flag}");
    }
}

#[test]
fn the_end_token_stops_and_is_not_text() {
    let got = demo(&["--temp", "0", "--logit-bias", "1=1000"]);
    assert_eq!((&got["finish_reason"], &got["text"]), (&"stop".into(), &"".into()));
    assert_eq!(ids(&got["ids"]), [1]);
    let one = longrun(&["generate", "--json", "--temp", "0", "--max-tokens", "1"]).json();
    assert_eq!((ids(&one["ids"]).len(), &one["finish_reason"]), (1, &"length".into()));
}

#[test]
fn rounded_keys_and_values_write_almost_the_same() {
    let ids = |kv: &str| greedy_ids(&["--kv-type", kv]);
    let want = ids("f32");
    for kv in ["f16", "bf16", "q8"] {
        assert_eq!(ids(kv), want, "{kv}");
    }
    assert_eq!(longrun(&["generate", "--kv-type", "q5"]).code, 2);
}

#[test]
fn a_prompt_comes_from_standard_input() {
    let flags = ["generate", "--prompt", "-", "--json", "--temp", "0", "--max-tokens", "8"];
    let got = longrun_reading("Once upon a time".as_bytes(), &flags).json();
    assert_eq!(ids(&got["ids"]), greedy_ids(&[])[..8]);
    let bad = longrun_reading(b"\xff\xfe", &flags);
    assert_eq!(bad.code, 2);
    assert!(bad.stderr.contains("--prompt -"), "{}", bad.stderr);
}

#[test]
fn every_family_generates() {
    for (_, names) in Family::NAMES {
        let model = format!("tiny:{}", names[0]);
        let flags = ["--model", &model, "--prompt", "some bytes", "--max-tokens", "6"];
        let got = longrun(&[&["generate", "--json"], &flags[..]].concat()).json();
        let generated = ids(&got["ids"]);
        assert_eq!(generated.len(), 6, "{model}");
        assert!(generated.iter().all(|id| *id < 160), "{model}");
        assert_eq!(got["ledger"]["live_start"], got["ledger"]["live_end"], "{model}");
    }
}

/// A reader that goes away ends the program without noise, even if nobody reads its errors either.
#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = Command::new(BINARY)
        .args(["generate", "--temp", "0", "--max-tokens", "200"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let mut one = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut one).unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The same text, in fewer steps where the guesses are good: the model guesses for itself.
#[test]
fn drafts_change_the_steps_and_not_the_text() {
    for flags in [&["--temp", "0"][..], &["--temp", "0.8", "--seed", "4"]] {
        let plain = demo(flags);
        assert_eq!((&plain["drafts"], &plain["steps"]), (&Value::from(0), &Value::from(24)));
        for drafter in ["demo", "lookup", "tiny:llama"] {
            let run = longrun(
                &[&["generate", "--json", "--max-tokens", "24", "--draft", drafter], flags]
                    .concat(),
            );
            if drafter == "tiny:llama" {
                assert_eq!(run.code, 2, "{}", run.stderr);
                assert!(run.stderr.contains("same tokenizer"), "{}", run.stderr);
                continue;
            }
            let got = run.json();
            assert_eq!(got["ids"], plain["ids"], "{drafter} {flags:?}");
            if drafter == "demo" {
                assert_eq!(got["drafts"], got["drafts_right"], "{flags:?}");
                assert!(
                    got["steps"].as_u64().unwrap() <= 24_u64.div_ceil(5) + 2,
                    "{}",
                    got["steps"]
                );
            }
        }
    }
    for flags in
        [&["--draft", "lookup", "--drafts", "0"][..], &["--drafts", "3"], &["--draft", "/none"]]
    {
        let run = longrun(&[&["generate"], flags].concat());
        assert_ne!(run.code, 0, "{flags:?}: {}", run.stderr);
    }
}

/// The checkpoint's own head: the same text, and a word where there is no such head.
#[test]
fn a_model_drafts_by_its_own_head() {
    for model in ["tiny:qwen3_next", "tiny:qwen3_5_moe", "tiny:deepseek_v3"] {
        let flags = ["--model", model, "--prompt", "some bytes", "--max-tokens", "30"];
        let plain = longrun(&[&["generate", "--json"], &flags[..]].concat()).json();
        let drafted = ["generate", "--json", "--draft", "mtp", "--drafts", "3"];
        let drafted = longrun(&[&drafted[..], &flags].concat()).json();
        assert_eq!(drafted["ids"], plain["ids"], "{model}");
        assert!(drafted["drafts"].as_u64() > Some(0), "{model}");
        assert_eq!(drafted["ledger"]["live_start"], drafted["ledger"]["live_end"], "{model}");
    }
    let run = longrun(&["generate", "--draft", "mtp"]);
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("no head") && run.stderr.contains("MTP"), "{}", run.stderr);
}
