//! Anthropic's endpoint: whole and streamed messages are the same, events keep their order, errors have their shape.

use serde_json::{Value, json};

use crate::server::{Event, Reply, Server, ask, with};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// Puts a stream together, and looks at the order of its events.
fn told(events: &[Event]) -> Value {
    let mut message = Value::Null;
    let mut open = None;
    let mut over = false;
    for event in events {
        let data = event.json();
        assert_eq!(event.name.as_deref(), data["type"].as_str(), "{data}");
        assert!(!over, "something came after the end: {data}");
        let name = event.name.as_deref().unwrap();
        assert_eq!(message.is_null(), name == "message_start", "{data}");
        let count = message["content"].as_array().map_or(0, Vec::len);
        match name {
            "message_start" => message = data["message"].clone(),
            "ping" => {}
            "content_block_start" => {
                assert_eq!((open, &data["index"]), (None, &json!(count)));
                open = Some(count);
                message["content"].as_array_mut().unwrap().push(data["content_block"].clone());
            }
            "content_block_delta" => {
                let block = &mut message["content"][open.unwrap()];
                assert_eq!(data["index"], open.unwrap());
                let (kind, name) = match data["delta"]["type"].as_str().unwrap() {
                    "input_json_delta" => ("tool_use", "partial_json"),
                    "text_delta" => ("text", "text"),
                    "thinking_delta" => ("thinking", "thinking"),
                    "signature_delta" => ("thinking", "signature"),
                    other => panic!("{other}"),
                };
                assert_eq!(block["type"], kind);
                let more = data["delta"][name].as_str().unwrap();
                assert!(!more.is_empty());
                let before = block[name].as_str().unwrap_or_default();
                block[name] = format!("{before}{more}").into();
            }
            "content_block_stop" => {
                let index = open.take().unwrap();
                assert_eq!(data["index"], index);
                let block = message["content"][index].as_object_mut().unwrap();
                if let Some(json) = block.remove("partial_json") {
                    assert_eq!(block["input"], json!({}));
                    block["input"] = serde_json::from_str(json.as_str().unwrap()).unwrap();
                }
            }
            "message_delta" => {
                assert!(open.is_none() && message["stop_reason"].is_null());
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                message["usage"] = data["usage"].clone();
            }
            "message_stop" => over = true,
            other => panic!("an event {other}"),
        }
    }
    assert!(over && message["stop_reason"].is_string());
    message
}

/// What of a message does not depend on when it was asked for.
fn lasting(message: &Value) -> Value {
    let mut message = message.clone();
    for block in message["content"].as_array_mut().unwrap() {
        if let Some(id) = block.as_object_mut().unwrap().remove("id") {
            assert!(id.as_str().unwrap().starts_with("toolu_"));
        }
    }
    let usage = &message["usage"];
    let input = |name: &str| usage[name].as_u64().unwrap();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    json!({
        "content": message["content"],
        "stop_reason": message["stop_reason"],
        "stop_sequence": message["stop_sequence"],
        "prompt": input("input_tokens") + input("cache_read_input_tokens"),
        "output": usage["output_tokens"],
    })
}

/// The error object in Anthropic's shape.
fn error(reply: &Reply, status: u16, kind: &str) -> String {
    let error = reply.error(status);
    let body = reply.json();
    assert_eq!((&body["type"], &error["type"]), (&json!("error"), &json!(kind)), "{body}");
    assert!(body["request_id"].is_string(), "{body}");
    assert_eq!(reply.header("request-id"), body["request_id"].as_str());
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_stream_is_the_whole_in_events() {
    let server = Server::demo(&[]);
    let thoughts = json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
    ]});
    let result = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"},
        {"type": "text", "text": "Go on"},
    ]});
    let mut reasons = Vec::new();
    for more in [
        json!({"max_tokens": 40}),
        json!({"max_tokens": 1}),
        json!({"max_tokens": 40, "stop_sequences": [" robot", "garage", "e"]}),
        json!({"max_tokens": 30, "temperature": 1.2, "seed": 5, "top_p": 0.9, "top_k": 40}),
        json!({"max_tokens": 100_000, "thinking": {"type": "disabled"}}),
        json!({"system": [{"type": "text", "text": "Be brief"}], "metadata": {"user_id": "u"}}),
        json!({"messages": [{"role": "user", "content": "Once"}, {"role": "assistant", "content": "upon"}]}),
        json!({"messages": [{"role": "user", "content": "Once"}, thoughts, result]}),
    ] {
        let body = with(ask("Once upon a time"), more);
        let whole = server.post(MESSAGES, &body).ok();
        let streamed = told(&server.events(MESSAGES, &body));
        assert_eq!(lasting(&whole), lasting(&streamed), "{body}");
        reasons.push(whole["stop_reason"].as_str().unwrap().to_owned());
    }
    assert_eq!(reasons[1], "max_tokens");
    assert_eq!(reasons[2], "stop_sequence");
    server.idle();
}

#[test]
fn it_says_what_a_chat_says() {
    let server = Server::demo(&[]);
    let chat = server.post("/v1/chat/completions", &ask("Once upon a time")).ok();
    let message = server.post(MESSAGES, &ask("Once upon a time")).ok();
    assert_eq!(message["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    let usage = &message["usage"];
    assert!(usage["cache_read_input_tokens"].as_u64() > Some(0), "the chat has read it: {usage}");
    let counted = server.post(COUNT, &json!({"messages": ask("Once upon a time")["messages"]}));
    assert_eq!(counted.ok()["input_tokens"], chat["usage"]["prompt_tokens"]);
    // Counting asks nothing of the model: this one can't be made to call.
    let tool = json!({"name": "weather", "input_schema": {"type": "object"}});
    let forced = json!({"tools": [tool], "tool_choice": {"type": "any"}});
    let forced = with(ask("hi"), forced);
    assert!(
        error(&server.post(MESSAGES, &forced), 400, "invalid_request_error").contains("forced")
    );
    let mut counted = forced;
    counted
        .as_object_mut()
        .unwrap()
        .retain(|name, _| name.starts_with("tool") || name == "messages");
    server.post(COUNT, &counted).ok();
    // Tools are part of the prompt, if the template has a place for them, even if they may not be called.
    let tiny = Server::tiny("llama", &[]);
    let tool = json!({"name": "weather", "input_schema": {"type": "object"}});
    let count = |more: Value| {
        let body = with(json!({"messages": ask("hi")["messages"]}), more);
        tiny.post(COUNT, &body).ok()["input_tokens"].as_u64().unwrap()
    };
    let (without, with_tool) = (count(json!({})), count(json!({"tools": [tool]})));
    assert!(with_tool > without);
    assert_eq!(with_tool, count(json!({"tools": [tool], "tool_choice": {"type": "none"}})));
    assert!(count(json!({"system": "Be brief"})) > without);
}

#[test]
fn what_is_thought_has_a_block_of_its_own() {
    let server = Server::tiny("llama", &[]);
    // The token that ends reasoning is made likely: it comes soon, at a place that the seed decides.
    let draw = json!({"temperature": 1, "seed": 1, "logit_bias": {"259": 2}, "max_tokens": 64});
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 32}});
    let body = with(with(ask("Hm"), draw), thinking);
    let whole = server.post(MESSAGES, &body).ok();
    assert_eq!(lasting(&whole), lasting(&told(&server.events(MESSAGES, &body))));
    let content = whole["content"].as_array().unwrap();
    let kinds: Vec<_> = content.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text"]);
    assert!(["thinking", "signature"].iter().all(|name| content[0][name] != ""));
    let omitted = json!({"thinking": {"type": "enabled", "display": "omitted"}});
    let omitted = server.post(MESSAGES, &with(body.clone(), omitted)).ok();
    assert_eq!(
        (&omitted["content"][0]["thinking"], &omitted["content"][1]),
        (&json!(""), &content[1])
    );
    let disabled = with(body, json!({"thinking": {"type": "disabled"}}));
    assert_eq!(server.post(MESSAGES, &disabled).ok()["content"][0]["type"], "text");
}

#[test]
fn calls_and_forms_are_kept() {
    let server = Server::tiny("llama", &[]);
    let schema = json!({
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": false,
    });
    let cities = [json!({"city": "Paris"}), json!({"city": "Rome"})];
    // Nothing but a limit ends what a random model thinks.
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 4}, "max_tokens": 1000});
    let body = with(ask("Hm"), thinking);
    let tools = json!({"tools": [{"name": "weather", "input_schema": schema}]});
    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "weather"})] {
        let choice = with(choice, json!({"disable_parallel_tool_use": true}));
        let body = with(with(body.clone(), tools.clone()), json!({"tool_choice": choice}));
        let whole = server.post(MESSAGES, &body).ok();
        assert_eq!(lasting(&whole), lasting(&told(&server.events(MESSAGES, &body))));
        assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
        let content = whole["content"].as_array().unwrap();
        let kinds: Vec<_> = content.iter().map(|block| block["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["thinking", "tool_use"]);
        assert_eq!(content[1]["name"], "weather");
        assert!(cities.contains(&content[1]["input"]), "{whole}");
    }
    let config = |schema: &Value| json!({"format": {"type": "json_schema", "schema": schema}});
    let answer =
        server.post(MESSAGES, &with(body.clone(), json!({"output_config": config(&schema)})));
    let text = answer.ok()["content"][1]["text"].as_str().unwrap().to_owned();
    assert!(cities.contains(&serde_json::from_str(&text).unwrap()), "{text}");
    let broken = json!({"output_config": config(&json!({"type": "nothing"}))});
    let message = error(&server.post(MESSAGES, &with(body, broken)), 400, "invalid_request_error");
    assert!(message.starts_with("output_config.format: "), "{message}");
}

#[test]
fn errors_have_their_shape_whoever_finds_them() {
    let server =
        Server::demo(&["--api-key", "secret", "--max-body", "4096", "--max-requests", "1"]);
    let send = |path: &str, headers: &[(&str, &str)], body: &Value| {
        server.send("POST", path, headers, body.to_string().as_bytes()).reply()
    };
    let key =
        [("x-api-key", "secret"), ("anthropic-version", "2023-06-01"), ("anthropic-beta", "x")];
    let good = ask("Once upon a time");
    assert_eq!(send(MESSAGES, &key, &good).ok()["role"], "assistant");
    error(&send(MESSAGES, &[], &good), 401, "authentication_error");
    error(&send(MESSAGES, &[("x-api-key", "wrong")], &good), 401, "authentication_error");
    let large = with(good.clone(), json!({"system": "x".repeat(5000)}));
    error(&send(MESSAGES, &key, &large), 413, "request_too_large");
    error(&send(COUNT, &key, &large), 413, "request_too_large");
    let other = with(good.clone(), json!({"model": "claude"}));
    let message = error(&send(MESSAGES, &key, &other), 404, "not_found_error");
    assert!(message.contains("claude"), "{message}");
    error(&server.send("POST", MESSAGES, &key, b"{").reply(), 400, "invalid_request_error");
    error(&server.send("GET", MESSAGES, &key, b"").reply(), 405, "invalid_request_error");
    error(&send("/v1/messages/batches", &key, &good), 404, "not_found_error");
    for (more, place) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": "x"}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
            "messages[0].content[0].type",
        ),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools[0].type"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"mcp_servers": []}), "mcp_servers"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 16}}), "thinking.budget_tokens"),
    ] {
        let body = with(good.clone(), more);
        let message = error(&send(MESSAGES, &key, &body), 400, "invalid_request_error");
        assert!(message.starts_with(&format!("{place}: ")), "{message}");
        // A stream that can't begin is the same error, not an event.
        let streamed = with(body, json!({"stream": true}));
        assert_eq!(error(&send(MESSAGES, &key, &streamed), 400, "invalid_request_error"), message);
    }
    let long = with(good.clone(), json!({"system": "x y ".repeat(900)}));
    let message = error(&send(MESSAGES, &key, &long), 400, "invalid_request_error");
    assert!(message.starts_with("prompt is too long"), "{message}");
    // The only place is taken.
    let endless =
        with(good.clone(), json!({"stream": true, "max_tokens": 900, "ignore_eos": true}));
    let mut stream = server.send("POST", MESSAGES, &key, endless.to_string().as_bytes());
    assert_eq!(stream.next().unwrap().name.as_deref(), Some("message_start"));
    let full = send(MESSAGES, &key, &good);
    error(&full, 429, "rate_limit_error");
    assert!(full.header("retry-after").is_some());
}

#[test]
fn a_failure_of_a_stream_is_an_event() {
    let server = Server::demo(&["--timeout", "0"]);
    let body = ask("Once");
    let events: Vec<Event> = server.stream(MESSAGES, &body).collect();
    let last = events.last().unwrap();
    assert_eq!(last.name.as_deref(), Some("error"));
    let data = last.json();
    assert_eq!((&data["type"], &data["error"]["type"]), (&json!("error"), &json!("timeout_error")));
    assert!(data["request_id"].as_str().unwrap().starts_with("req_"));
    error(&server.post(MESSAGES, &body), 504, "timeout_error");
    server.idle();
}

#[test]
fn who_hangs_up_is_no_longer_served() {
    let server = Server::demo(&[]);
    let body = with(ask("Once"), json!({"ignore_eos": true, "max_tokens": 1000}));
    let mut stream = server.stream(MESSAGES, &body);
    stream.next().unwrap();
    drop(stream);
    server.idle();
    assert_eq!(server.metric("longrun_requests_total{model=\"demo\",outcome=\"cancelled\"}"), 1.0);
}

#[test]
fn who_hangs_up_in_the_queue_is_forgotten() {
    let server = Server::tiny("llama", &["--max-rows", "1"]);
    let endless = with(ask("Once"), json!({"ignore_eos": true, "max_tokens": 4000}));
    let mut first = server.stream(MESSAGES, &endless);
    first.next().unwrap();
    let response = json!({"input": "Once", "max_output_tokens": 900, "ignore_eos": true});
    let waiting = [server.stream(MESSAGES, &endless), server.stream("/v1/responses", &response)];
    assert!(waiting.iter().all(|stream| stream.status == 200), "the headers do not wait");
    drop(waiting);
    let ended = |outcome: &str| {
        let labels = format!("{{model=\"tiny\",outcome=\"{outcome}\"}}");
        server.metric(&format!("longrun_requests_total{labels}"))
    };
    while ended("cancelled") < 2.0 {
        assert_eq!(ended("finished"), 0.0, "they waited for the first one's end");
    }
}
