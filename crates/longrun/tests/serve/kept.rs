//! Faults of what is kept from token to token and from text to text, as other servers were reported for: leaks, caches that
//! are cut wrongly, drafts that stay. The numbers are those of the project's list of such reports.

use serde_json::{Value, json};

use crate::server::{Server, ask, told, with};

const CHAT: &str = "/v1/chat/completions";

fn content(whole: &Value) -> &str {
    whole["choices"][0]["message"]["content"].as_str().unwrap()
}

fn cached(whole: &Value) -> u64 {
    whole["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn c01_c02_a_long_completion_leaves_nothing_behind() {
    for (family, tokens) in [("qwen3_next", 20_000), ("dead_values", 6_000)] {
        let server = Server::tiny(family, &["--context", "24000", "--memory", "128MiB"]);
        server.post(CHAT, &ask("Hello")).ok();
        let before = server.metric("longrun_live_buffers");
        let long = with(ask("Go on"), json!({"max_tokens": tokens, "ignore_eos": true}));
        let (mut seen, mut events) = (0, 0);
        for event in server.stream(CHAT, &long) {
            events += 1;
            if events % 1000 == 0 {
                assert_eq!(
                    server.metric("longrun_live_buffers"),
                    before,
                    "{family}, event {events}"
                );
                seen += 1;
            }
            assert!(!event.data.contains("\"error\""), "{}", event.data);
        }
        assert!(seen >= 3, "{family}: {events} events");
        server.idle();
        assert_eq!(server.metric("longrun_live_buffers"), before);
    }
}

#[test]
fn c03_c04_lengths_and_neighbours_make_no_plans_and_no_buffers() {
    let server = Server::tiny("qwen3_next", &[]);
    server.post(CHAT, &ask("Hello")).ok();
    let count = || (server.metric("longrun_live_buffers"), server.metric("longrun_plans"));
    let before = count();
    let long = with(ask("Go on"), json!({"max_tokens": 3000, "ignore_eos": true}));
    let stream = server.stream(CHAT, &long);
    for n in 0..120 {
        let body = with(ask(&"x".repeat(1 + n * 3)), json!({"max_tokens": 1 + n % 5}));
        server.post(CHAT, &body).ok();
    }
    assert_eq!(count(), before);
    assert!(told(&stream.collect::<Vec<_>>()).done);
    server.idle();
    assert_eq!(count(), before);
}

#[test]
fn c10_c11_c14_a_window_that_has_gone_round_is_no_ones_but_its_rows() {
    // The window is 64 tokens; the prompts end before it, at it, and behind it.
    let server = Server::tiny("gemma3", &["--chunk", "7"]);
    let bodies: Vec<Value> = [1, 37, 38, 39, 40, 41, 42, 43, 44, 100, 300]
        .iter()
        .map(|&n| {
            with(ask(&"abcdefghij".repeat(30)[..n]), json!({"max_tokens": 90, "ignore_eos": true}))
        })
        .collect();
    let alone: Vec<String> =
        bodies.iter().map(|b| content(&server.post(CHAT, b).ok()).to_owned()).collect();
    let cold = Server::tiny("gemma3", &[]);
    std::thread::scope(|scope| {
        let cold = &cold;
        let together: Vec<_> =
            bodies.iter().map(|b| scope.spawn(move || cold.post(CHAT, b).ok())).collect();
        for (whole, alone) in together.into_iter().zip(&alone) {
            assert_eq!(content(&whole.join().unwrap()), alone);
        }
    });
}

#[test]
fn c12_c15_models_and_conversations_keep_to_themselves() {
    let server = Server::tiny("gemma3", &["--also", "other=tiny:qwen3_next", "--memory", "128MiB"]);
    let secret = "The secret word is xylophone. ".repeat(12);
    let body = |model: &str, text: &str| with(ask(text), json!({"model": model, "max_tokens": 30}));
    let asked = [
        ("tiny", secret.as_str()),
        ("other", secret.as_str()),
        ("tiny", "The secret"),
        ("other", "The secret"),
    ];
    let first: Vec<Value> =
        asked.iter().map(|(m, t)| server.post(CHAT, &body(m, t)).ok()).collect();
    for _ in 0..3 {
        for ((model, text), first) in asked.iter().zip(&first) {
            let again = server.post(CHAT, &body(model, text)).ok();
            assert_eq!(again["choices"], first["choices"], "{model}");
            assert!(cached(&again) > cached(first), "{model}");
        }
    }
    let cold = Server::tiny("gemma3", &[]);
    let short = cold.post(CHAT, &body("tiny", "The secret")).ok();
    assert_eq!(
        short["choices"], first[2]["choices"],
        "what another conversation kept is part of no answer"
    );
}

#[test]
fn c18_c19_drafts_change_no_text_and_no_later_turn() {
    let plain = Server::tiny("qwen3_next", &[]);
    let server = |draft: &[&str]| Server::tiny("qwen3_next", draft);
    let looked = server(&["--draft", "lookup"]);
    let headed = server(&["--draft", "mtp", "--drafts", "3"]);
    let modelled = server(&["--draft", "tiny:qwen3", "--context", "2000"]);
    let mut messages = vec![json!({"role": "user", "content": "abc abc abc abc abc"})];
    for turn in 0..3 {
        let body =
            json!({"messages": messages, "max_tokens": 40, "temperature": 0, "ignore_eos": true});
        let drawn = with(body.clone(), json!({"temperature": 0.9, "seed": turn}));
        let want = [&body, &drawn].map(|b| plain.post(CHAT, b).ok());
        for drafted in [&looked, &headed, &modelled] {
            for (body, want) in [&body, &drawn].into_iter().zip(&want) {
                let got = drafted.post(CHAT, body).ok();
                assert_eq!(got["choices"], want["choices"], "turn {turn}: {}", drafted.notes());
                assert_eq!(cached(&got) > 0, turn > 0 || body == &drawn);
            }
        }
        messages.push(json!({"role": "assistant", "content": content(&want[0])}));
        messages.push(json!({"role": "user", "content": "abc abc"}));
    }
    for drafted in [&headed, &modelled] {
        assert!(drafted.metric(r#"longrun_tokens_total{kind="drafted",model="tiny""#) > 0.0);
        drafted.idle();
    }
}

#[test]
fn c28_text_of_any_kind_is_an_answer_of_the_right_shape() {
    let server = Server::tiny("llama", &[]);
    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    // What opens a call is made likely, and so is what JSON is made of.
    let bias: Value = [260, 261, 123, 125, 34, 58, 44, 91, 93]
        .iter()
        .map(|id| (id.to_string(), json!(6)))
        .collect();
    let mut calls = 0;
    for seed in 0..40 {
        let body = with(
            ask("x"),
            json!({"tools": tools, "temperature": 1.5, "seed": seed, "max_tokens": 120,
            "ignore_eos": true, "logit_bias": bias}),
        );
        let whole = server.post(CHAT, &body).ok();
        let message = &whole["choices"][0]["message"];
        let told = told(&server.events(CHAT, &body));
        assert_eq!(told.content, message["content"].as_str().unwrap_or_default(), "seed {seed}");
        for (call, (name, arguments)) in
            message["tool_calls"].as_array().into_iter().flatten().zip(&told.calls)
        {
            assert_eq!(
                (&call["function"]["name"], &call["function"]["arguments"]),
                (&json!(name), &json!(arguments))
            );
            calls += 1;
        }
        assert_eq!(told.finish.as_deref(), whole["choices"][0]["finish_reason"].as_str());
    }
    println!("{calls} calls were seen");
}

#[test]
fn c39_many_conversations_stay_within_the_memory() {
    let server =
        Server::tiny("qwen3_next", &["--memory", "24MiB", "--context", "600", "--max-rows", "4"]);
    server.post(CHAT, &ask("Hello")).ok();
    let bytes = server.metric("longrun_bytes");
    assert!(bytes <= (24 << 20) as f64, "{bytes}");
    let rss = server.rss();
    for i in 0..150 {
        let text = format!("Conversation {i} has words of its own. ").repeat(1 + i % 4);
        server.post(CHAT, &with(ask(&text), json!({"max_tokens": 3}))).ok();
    }
    assert_eq!(server.metric("longrun_bytes"), bytes);
    assert!(server.metric("longrun_engine_total{model=\"tiny\",what=\"evicted\"") > 0.0);
    assert!(server.rss() < rss + (16 << 20), "{} bytes more", server.rss() - rss);
}
