//! Faults that other servers were reported for, each with what has to happen instead. The numbers are those of the
//! project's list of such reports.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Server, ask, told, with};

const CHAT: &str = "/v1/chat/completions";

fn content(whole: &Value) -> &str {
    whole["choices"][0]["message"]["content"].as_str().unwrap()
}

fn cached(whole: &Value) -> u64 {
    whole["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// A conversation that goes on.
fn turns(texts: &[&str], more: Value) -> Value {
    let message = |(i, text): (usize, &&str)| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": text});
    let messages: Vec<Value> = texts.iter().enumerate().map(message).collect();
    with(json!({"messages": messages, "max_tokens": 12, "temperature": 0}), more)
}

#[test]
fn c06_c32_a_request_that_is_wrong_leaves_the_engine_well() {
    let server = Server::tiny("qwen3_next", &[]);
    let before = server.post(CHAT, &ask("Hello")).ok();
    for (field, value) in [
        ("logit_bias", json!({"99999999": 1})),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"-1": 1})),
        ("logit_bias", json!({"5": "much"})),
        ("logit_bias", json!([1])),
        ("temperature", json!(-1)),
        ("top_p", json!(7)),
        ("min_p", json!(-0.5)),
        ("n", json!(100_000)),
        ("stop", json!([""])),
        ("top_logprobs", json!(500)),
    ] {
        let reply = server.post(CHAT, &with(ask("Hello"), json!({field: value})));
        assert_eq!(reply.status, 400, "{field}: {value}");
        assert!(reply.error(400)["message"].as_str().unwrap().len() > 5);
        let again = server.post(CHAT, &ask("Hello")).ok();
        assert_eq!(content(&again), content(&before), "after {field}");
    }
    let ids = json!({"prompt": [4_000_000_000u32, 5], "max_tokens": 2});
    server.post("/v1/completions", &ids).error(400);
    server.post(CHAT, &with(ask("Hello"), json!({"top_k": 1_000_000}))).ok();
    assert_eq!(server.get("/health").status, 200);
    server.idle();
}

#[test]
fn c07_rows_with_and_without_penalties_share_steps() {
    let server = Server::tiny("qwen3_next", &[]);
    let kinds = [
        json!({}),
        json!({"repetition_penalty": 1.5}),
        json!({"logit_bias": {"65": 5}}),
        json!({"temperature": 1.0, "seed": 4}),
        json!({"presence_penalty": 1.0, "frequency_penalty": 0.5}),
    ];
    let bodies: Vec<Value> = kinds
        .iter()
        .map(|k| with(ask("Tell me"), with(json!({"max_tokens": 60}), k.clone())))
        .collect();
    let alone: Vec<String> =
        bodies.iter().map(|b| content(&server.post(CHAT, b).ok()).to_owned()).collect();
    std::thread::scope(|scope| {
        let together: Vec<_> =
            bodies.iter().map(|b| scope.spawn(|| server.post(CHAT, b).ok())).collect();
        for (whole, alone) in together.into_iter().zip(&alone) {
            assert_eq!(content(&whole.join().unwrap()), alone);
        }
    });
    // Each of them does something.
    assert_ne!(alone[0], alone[1]);
    assert_ne!(alone[0], alone[2]);
    assert_ne!(alone[0], alone[4]);
}

#[test]
fn c08_an_answer_does_not_depend_on_neighbours() {
    for family in ["qwen3_next", "gemma3"] {
        let server = Server::tiny(family, &[]);
        let prompts: Vec<String> = [1, 3, 12, 31, 32, 33, 257]
            .iter()
            .map(|&n| "abcdefg ".repeat(n)[..n].to_owned())
            .collect();
        let body = |prompt: &String| with(ask(prompt), json!({"logprobs": true, "max_tokens": 24}));
        let alone: Vec<Value> =
            prompts.iter().map(|p| server.post(CHAT, &body(p)).ok()["choices"].clone()).collect();
        std::thread::scope(|scope| {
            let (server, body) = (&server, &body);
            let of = |p| scope.spawn(move || server.post(CHAT, &body(p)).ok()["choices"].clone());
            let together: Vec<_> = prompts.iter().map(of).collect();
            for (got, alone) in together.into_iter().zip(&alone) {
                assert_eq!(&got.join().unwrap(), alone, "{family}");
            }
        });
    }
}

#[test]
fn c16_the_same_prompt_again_is_the_same_answer() {
    let server = Server::tiny("qwen3_next", &[]);
    let wholes: Vec<Value> = (0..3).map(|_| server.post(CHAT, &ask("Say it again")).ok()).collect();
    let prompt = wholes[0]["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(cached(&wholes[0]), 0);
    for whole in &wholes[1..] {
        assert_eq!(content(whole), content(&wholes[0]));
        assert_eq!(cached(whole), prompt - 1);
    }
}

#[test]
fn c17_a_turn_reads_only_what_is_new() {
    for family in ["qwen3_next", "gemma3", "llama", "deepseek_v3"] {
        let server = Server::tiny(family, &[]);
        let first = server.post(CHAT, &turns(&["A first question, not too short"], json!({}))).ok();
        let answer = content(&first).to_owned();
        let read = first["usage"]["prompt_tokens"].as_u64().unwrap();
        // The tiny model speaks bytes that may be no text: then its ids can't come back.
        let texts = ["A first question, not too short", &answer, "And a second one"];
        let second = server.post(CHAT, &turns(&texts, json!({}))).ok();
        assert!(cached(&second) >= read - 1, "{family}: {} of {read}", cached(&second));
        // The last message is edited: what went before is not read again, but for a chunk at most.
        let texts = ["A first question, not too short", &answer, "And another one"];
        let edited = server.post(CHAT, &turns(&texts, json!({}))).ok();
        assert!(cached(&edited) >= read - 1, "{family}: {} of {read}", cached(&edited));
        // Cold, the answer is the same.
        let cold = Server::tiny(family, &[]);
        let again = cold.post(CHAT, &turns(&texts, json!({}))).ok();
        assert_eq!(cached(&again), 0);
        assert_eq!(content(&again), content(&edited), "{family}");
    }
}

#[test]
fn c20_c22_text_is_valid_and_whole_in_every_cut() {
    let server = Server::tiny("llama", &[]);
    for seed in 0..6 {
        // A random model writes random bytes: pieces of code points, and what is none.
        let body = with(
            ask("x"),
            json!({"temperature": 1.0, "seed": seed, "max_tokens": 200, "ignore_eos": true}),
        );
        let whole = server.post(CHAT, &body).ok();
        assert_eq!(told(&server.events(CHAT, &body)).content, content(&whole));
        assert!(content(&whole).chars().count() > 20);
    }
}

#[test]
fn c21_a_stop_string_never_shows() {
    let server = Server::demo(&[]);
    let long = server.post(CHAT, &with(ask("Once upon a time"), json!({"max_tokens": 60}))).ok();
    let text = content(&long).to_owned();
    for from in [3, 10, 21, 34] {
        for length in [1, 2, 5, 9] {
            let stop = &text[from..from + length];
            let before = &text[..text.find(stop).unwrap()];
            let body = with(ask("Once upon a time"), json!({"max_tokens": 60, "stop": [stop]}));
            let whole = server.post(CHAT, &body).ok();
            assert_eq!(content(&whole), before, "{stop:?}");
            assert_eq!(whole["choices"][0]["finish_reason"], "stop");
            assert_eq!(whole["choices"][0]["stop_reason"], stop);
            assert_eq!(told(&server.events(CHAT, &body)).content, before, "{stop:?}");
            let old = json!({"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "stop": stop});
            let old = server.post("/v1/completions", &old).ok();
            assert_eq!(old["choices"][0]["text"], before, "{stop:?}");
        }
    }
    server.idle();
}

#[test]
fn c23_logprobs_are_complete() {
    let server = Server::demo(&[]);
    for top in [0, 1, 5] {
        let body =
            with(ask("Once upon"), json!({"logprobs": true, "top_logprobs": top, "max_tokens": 9}));
        let whole = server.post(CHAT, &body).ok();
        let entries = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert_eq!(entries.len() as u64, whole["usage"]["completion_tokens"].as_u64().unwrap());
        assert!(entries.iter().all(|e| e["top_logprobs"].as_array().unwrap().len() == top));
        let lists: std::collections::BTreeSet<String> =
            entries.iter().map(|e| e["top_logprobs"].to_string()).collect();
        assert!(top == 0 || lists.len() > 1, "the same alternatives for every token");
        let old =
            json!({"prompt": "Once upon", "max_tokens": 9, "logprobs": top, "temperature": 0});
        let old = server.post("/v1/completions", &old).ok()["choices"][0]["logprobs"].clone();
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(old[list].as_array().unwrap().len(), 9, "{list}");
        }
    }
}

#[test]
fn c24_seeds_decide_alone_and_among_others() {
    let server = Server::tiny("qwen3_next", &[]);
    let body = |seed: Value| {
        with(ask("Dice"), json!({"temperature": 1.0, "max_tokens": 30, "seed": seed}))
    };
    let text = |seed: Value| content(&server.post(CHAT, &body(seed)).ok()).to_owned();
    assert_eq!(text(json!(0)), text(json!(0)), "seed 0 is a seed");
    assert_ne!(text(json!(0)), text(json!(1)));
    assert_ne!(text(Value::Null), text(Value::Null), "without a seed texts differ");
    let alone = text(json!(7));
    std::thread::scope(|scope| {
        let rows: Vec<_> = (0..6)
            .map(|i| scope.spawn(move || text(json!(if i == 3 { 7 } else { 90 + i }))))
            .collect();
        let rows: Vec<String> = rows.into_iter().map(|row| row.join().unwrap()).collect();
        assert_eq!(rows[3], alone);
    });
}

#[test]
fn c25_c43_usage_and_finish_reasons_are_right_in_both_modes() {
    let server = Server::demo(&[]);
    for (more, finish) in
        [(json!({"max_tokens": 5}), "length"), (json!({"max_tokens": 900}), "stop")]
    {
        let body = with(
            ask("Once upon a time"),
            with(more, json!({"stream_options": {"include_usage": true}})),
        );
        let events = server.events(CHAT, &body);
        let last = events[events.len() - 2].json();
        assert_eq!(last["choices"], json!([]));
        let told = told(&events);
        assert_eq!(told.finish.as_deref(), Some(finish));
        let plain = with(body, json!({"stream_options": null}));
        let whole = server.post(CHAT, &plain).ok();
        assert_eq!(whole["choices"][0]["finish_reason"], finish);
        let usage = &whole["usage"];
        let count = |name: &str| usage[name].as_u64().unwrap();
        assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
        assert_eq!(usage["completion_tokens"], told.usage["completion_tokens"]);
        // Nobody asked for it: no chunk tells of usage.
        let events = server.events(CHAT, &plain);
        assert!(events.iter().all(|e| e.data == "[DONE]" || e.json().get("usage").is_none()));
    }
}

#[test]
fn c26_who_hangs_up_is_forgotten_at_once() {
    let server = Server::tiny("qwen3_next", &["--max-rows", "2", "--context", "60000"]);
    let long = |n: u64| with(ask("Go on"), json!({"max_tokens": n, "ignore_eos": true}));
    let told_alone = told(&server.events(CHAT, &long(400)));
    let buffers = server.metric("longrun_live_buffers");
    for round in 0..20 {
        // One streams to its end; others hang up while they wait, read their prompt, or write.
        std::thread::scope(|scope| {
            let kept = scope.spawn(|| told(&server.events(CHAT, &long(400))));
            let mut streams = Vec::new();
            for i in 0..3 {
                let prompt = "word ".repeat(300 * i);
                let mut stream =
                    server.stream(CHAT, &with(ask(&prompt), json!({"max_tokens": 9000})));
                assert_eq!(stream.status, 200);
                if (round + i) % 2 == 0 {
                    stream.next();
                }
                streams.push(stream);
            }
            drop(streams);
            // So does one that does not stream.
            drop(server.send("POST", CHAT, &[("x-unread", "1")], b"{"));
            assert_eq!(kept.join().unwrap().content, told_alone.content);
        });
        let began = Instant::now();
        server.idle();
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "rows were left for {:?}",
            began.elapsed()
        );
    }
    assert_eq!(server.metric("longrun_live_buffers"), buffers);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn c29_marks_in_prose_stay_prose() {
    let server = Server::tiny("llama", &[]);
    // Without tools, what looks like a call is text; the letters of a mark are not the mark.
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let form = json!({"response_format": {"type": "choice", "choice": [call]}, "max_tokens": 200, "reasoning_budget": 2});
    let whole = server.post(CHAT, &with(ask("x"), form.clone())).ok();
    assert_eq!(content(&whole), call, "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let json = r#"{"name": "f", "arguments": {}}"#;
    let form = json!({"response_format": {"type": "choice", "choice": [json]}, "max_tokens": 200, "reasoning_budget": 2});
    assert_eq!(content(&server.post(CHAT, &with(ask("x"), form)).ok()), json);
}

#[test]
fn c33_c34_odd_messages_are_read() {
    let server = Server::tiny("llama", &[]);
    let call = |arguments: Value| json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
    let user = json!({"role": "user", "content": "x"});
    for messages in [
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
        json!([user, {"role": "assistant", "content": null, "tool_calls": [call(json!("{}"))]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"}]),
        json!([user, {"role": "assistant", "content": null, "tool_calls": [call(json!("{\"a\": "))]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"}]),
        json!([user, {"role": "assistant", "content": "", "tool_calls": [call(json!({"a": 1}))]},
            {"role": "tool", "tool_call_id": "c1", "content": "ok"}]),
        json!([{"role": "developer", "content": "be kind"}, user]),
        json!([user, {"role": "assistant", "content": "I"}]),
    ] {
        let body = json!({"messages": messages, "max_tokens": null, "n": null, "stop": null, "temperature": null,
            "tools": null, "response_format": null, "seed": null, "user": null, "max_completion_tokens": 4});
        server.post(CHAT, &body).ok();
    }
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]);
    let error = server.post(CHAT, &json!({ "messages": image })).error(400);
    assert_eq!(error["param"], "messages[0].content[0]");
}

#[test]
fn c36_what_does_not_fit_is_an_error_with_the_numbers() {
    let server = Server::tiny("qwen3_next", &["--context", "256"]);
    let error = server.post(CHAT, &ask(&"word ".repeat(100))).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("256") && message.contains("16"), "{message}");
    let whole =
        server.post(CHAT, &with(ask("x"), json!({"max_tokens": null, "ignore_eos": true}))).ok();
    assert_eq!(whole["usage"]["total_tokens"], 256);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
}

#[test]
fn c37_a_long_prompt_does_not_stop_other_streams() {
    let server =
        Server::tiny("qwen3_next", &["--context", "40000", "--chunk", "128", "--memory", "256MiB"]);
    let mut stream =
        server.stream(CHAT, &with(ask("Go"), json!({"max_tokens": 20_000, "ignore_eos": true})));
    stream.by_ref().take(5).count();
    let prompt = "word ".repeat(1500);
    std::thread::scope(|scope| {
        let reading =
            scope.spawn(|| server.post(CHAT, &with(ask(&prompt), json!({"max_tokens": 1}))).ok());
        let (mut longest, mut tokens) = (Duration::ZERO, 0);
        while !reading.is_finished() {
            let began = Instant::now();
            assert!(stream.next().is_some());
            longest = longest.max(began.elapsed());
            tokens += 1;
        }
        assert!(reading.join().unwrap()["usage"]["prompt_tokens"].as_u64() > Some(7000));
        // It went on while 59 chunks and more were read.
        assert!(tokens > 50, "{tokens} tokens meanwhile, the longest wait was {longest:?}");
    });
    drop(stream);
    server.idle();
}

#[test]
fn c38_something_is_on_the_wire_from_the_start() {
    let server =
        Server::tiny("llama", &["--max-rows", "1", "--context", "200000", "--memory", "512MiB"]);
    let long = with(ask("Go"), json!({"max_tokens": 150_000, "ignore_eos": true}));
    let busy = server.stream(CHAT, &long);
    let began = Instant::now();
    let mut waiting = server.stream(CHAT, &ask("Wait"));
    assert_eq!(waiting.status, 200);
    assert!(began.elapsed() < Duration::from_secs(2), "headers after {:?}", began.elapsed());
    // The first chunk names the role; then nothing but comments, because the row has no place.
    assert!(waiting.next().is_some());
    let told = waiting.comment();
    assert!(
        told && began.elapsed() < Duration::from_secs(8),
        "a comment after {:?}",
        began.elapsed()
    );
    drop(busy);
    drop(waiting);
    server.idle();
}

#[test]
fn c40_what_was_read_outlives_the_server() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-c40");
    let _ = std::fs::remove_dir_all(&folder);
    let flags = ["--cache-dir", folder.to_str().unwrap()];
    let mut server = Server::tiny("qwen3_next", &flags);
    let first = server.post(CHAT, &ask("Remember this, please")).ok();
    server.terminate();
    assert_eq!(server.wait(), 0, "{}", server.notes());
    let server = Server::tiny("qwen3_next", &flags);
    let again = server.post(CHAT, &ask("Remember this, please")).ok();
    assert_eq!(content(&again), content(&first));
    assert_eq!(cached(&again), first["usage"]["prompt_tokens"].as_u64().unwrap() - 1);
    drop(server);
    // Another model ignores it.
    let other = Server::tiny("gemma3", &flags);
    assert_eq!(cached(&other.post(CHAT, &ask("Remember this, please")).ok()), 0);
}

#[test]
fn c41_every_penalty_acts() {
    let server = Server::tiny("llama", &[]);
    // One token is by far the likeliest: what works against repetition shows.
    let body = |more: Value| {
        with(
            ask("x"),
            with(json!({"logit_bias": {"97": 30}, "max_tokens": 20, "logprobs": true}), more),
        )
    };
    let text = |more: Value| content(&server.post(CHAT, &body(more)).ok()).to_owned();
    let plain = text(json!({}));
    assert_eq!(plain, "a".repeat(20));
    for more in [
        json!({"repetition_penalty": 50.0}),
        json!({"presence_penalty": 60.0}),
        json!({"frequency_penalty": 10.0}),
        json!({"xtc_probability": 1.0, "xtc_threshold": 0.0, "temperature": 1.0, "seed": 1}),
    ] {
        assert_ne!(text(more.clone()), plain, "{more}");
    }
}

#[test]
fn c44_who_shares_a_beginning_does_not_evict_it() {
    let server = Server::tiny("qwen3_next", &[]);
    let header = "You are a helpful assistant with a long header. ".repeat(4);
    let body = |text: &str| {
        json!({"messages": [{"role": "system", "content": header}, {"role": "user", "content": text}],
            "max_tokens": 8, "temperature": 0})
    };
    let first = server.post(CHAT, &body("A question")).ok();
    let other = server.post(CHAT, &body("Something else entirely")).ok();
    assert!(cached(&other) > 150, "the header was read again: {}", cached(&other));
    let again = server.post(CHAT, &body("A question")).ok();
    assert_eq!(cached(&again), first["usage"]["prompt_tokens"].as_u64().unwrap() - 1);
    assert_eq!(content(&again), content(&first));
}
