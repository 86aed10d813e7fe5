//! Conversations: whole and streamed answers are the same, fields act, errors name them.

use serde_json::{Value, json};

use crate::server::{Server, ask, told, with};

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_stream_is_the_whole_in_pieces() {
    let server = Server::demo(&[]);
    for more in [
        json!({"max_tokens": 40}),
        json!({"max_tokens": 1}),
        json!({"max_tokens": 40, "stop": [" robot", "garage"]}),
        json!({"max_tokens": 30, "temperature": 1.2, "seed": 5, "top_p": 0.9}),
        json!({"max_completion_tokens": 12, "max_tokens": 3}),
    ] {
        let body = with(ask("Once upon a time"), more);
        let whole = server.post(CHAT, &body).ok();
        let choice = &whole["choices"][0];
        let streamed = with(body.clone(), json!({"stream_options": {"include_usage": true}}));
        let told = told(&server.events(CHAT, &streamed));
        assert_eq!(choice["message"]["content"], told.content.as_str(), "{body}");
        assert_eq!(choice["finish_reason"].as_str(), told.finish.as_deref());
        for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(whole["usage"][count], told.usage[count], "{count} of {body}");
        }
        assert!(told.done);
    }
    server.idle();
}

#[test]
fn fields_act() {
    let server = Server::demo(&["--max-rows", "4"]);
    let text = |more: Value| {
        let whole = server.post(CHAT, &with(ask("Once upon a time"), more)).ok();
        whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let plain = text(json!({}));
    assert_eq!(plain, text(json!({})), "greedy texts are the same");
    let [a, b, c] = [3, 3, 4].map(|seed| text(json!({"temperature": 1.5, "seed": seed})));
    assert_eq!(a, b, "a seed decides");
    assert_ne!(a, c, "another seed is another text");
    assert_eq!(text(json!({"temperature": 1.5, "top_k": 1})), plain);
    let stopped = text(json!({"stop": plain[5..12].to_owned()}));
    assert_eq!(stopped, plain[..plain.find(&plain[5..12]).unwrap()]);
    // The most likely first token is made impossible.
    let whole = server.post(CHAT, &with(ask("Once upon a time"), json!({"logprobs": true}))).ok();
    let first = whole["choices"][0]["logprobs"]["content"][0]["id"].as_u64().unwrap();
    let banned = text(json!({"logit_bias": {first.to_string(): -100}}));
    assert_ne!(banned[..1], plain[..1]);
    let many =
        server.post(CHAT, &with(ask("Once"), json!({"n": 3, "temperature": 1.0, "seed": 1})));
    let many = many.ok();
    let choices = many["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert_eq!(many["usage"]["completion_tokens"], 48);
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    server.idle();
}

#[test]
fn logprobs_are_the_same_streamed() {
    let server = Server::demo(&[]);
    let body = with(ask("Once upon a time"), json!({"logprobs": true, "top_logprobs": 3}));
    let whole = server.post(CHAT, &body).ok();
    let whole = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(whole.len(), 16);
    let events = server.events(CHAT, &body);
    let chunks = events.iter().filter(|event| event.data != "[DONE]").map(|event| event.json());
    let streamed: Vec<Value> = chunks
        .flat_map(|c| {
            c["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default()
        })
        .collect();
    assert_eq!(whole, streamed);
    for entry in &whole {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert!(top[0]["logprob"].as_f64() >= entry["logprob"].as_f64());
    }
}

#[test]
fn errors_say_what_and_where() {
    let server = Server::demo(&[]);
    let cases = [
        (json!({"messages": "x"}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": "x"}], "n": 0}), "n"),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}),
            "temperature",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3}),
            "top_logprobs",
        ),
        (json!({"messages": [{"role": "user", "content": "x"}], "functions": []}), "functions"),
        (json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}), "max_tokens"),
    ];
    for (body, param) in cases {
        let error = server.post(CHAT, &body).error(400);
        assert_eq!(error["param"], param, "{error}");
        // A stream that can't begin is the same error, not an event.
        let streamed = with(body, json!({"stream": true}));
        assert_eq!(server.post(CHAT, &streamed).error(400)["param"], param);
    }
    let long = with(ask("x"), json!({"max_tokens": 5000}));
    let error = server.post(CHAT, &long).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("1024") && message.contains("5000"), "{message}");
    let other = with(ask("x"), json!({"model": "gpt-4"}));
    assert_eq!(server.post(CHAT, &other).error(404)["code"], "model_not_found");
    assert_eq!(
        server.send("POST", CHAT, &[], b"{").reply().error(400)["type"],
        "invalid_request_error"
    );
    server.get("/v1/nothing").error(404);
    server.get(CHAT).error(405);
    server.idle();
}

#[test]
fn unknown_fields_are_named_and_refused_if_strict() {
    let server = Server::demo(&[]);
    let body = with(ask("Once"), json!({"frobnicate": 1, "user": "me"}));
    let reply = server.post(CHAT, &body);
    reply.ok();
    assert_eq!(reply.header("x-longrun-ignored"), Some("frobnicate"));
    let strict = Server::demo(&["--strict"]);
    assert_eq!(strict.post(CHAT, &body).error(400)["param"], "frobnicate");
    strict.post(CHAT, &with(ask("Once"), json!({"user": "me"}))).ok();
}
