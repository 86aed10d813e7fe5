//! Forms of answers: JSON of a schema, forced calls, reasoning that ends, loops. The model is random: what has a form
//! has it because it was held to it.

use serde_json::{Value, json};

use crate::server::{Server, ask, told, with};

const CHAT: &str = "/v1/chat/completions";

fn weather() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"], "additionalProperties": false}}},
        {"type": "function", "function": {"name": "clock", "parameters": {
            "type": "object", "properties": {}, "additionalProperties": false}}},
    ])
}

fn hot(more: Value) -> Value {
    with(ask("What now?"), with(json!({"temperature": 1.0, "seed": 3, "max_tokens": 2000}), more))
}

fn schema(schema: Value) -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}})
}

#[test]
fn json_of_a_schema_comes_whatever_the_model_wants() {
    let server = Server::tiny("qwen3_next", &[]);
    let point = json!({"type": "object", "required": ["x", "kind"], "additionalProperties": false, "properties": {
        "x": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["a", "b"]}}});
    for seed in 0..4 {
        let body = hot(with(schema(point.clone()), json!({ "seed": seed })));
        let whole = server.post(CHAT, &body).ok();
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        let text = choice["message"]["content"].as_str().unwrap();
        let point: Value = serde_json::from_str(text).unwrap();
        assert!(point["x"].as_u64().unwrap() < 100 && point.as_object().unwrap().len() == 2);
        assert!(["a", "b"].contains(&point["kind"].as_str().unwrap()));
        assert_eq!(told(&server.events(CHAT, &body)).content, text);
    }
    // The same in the older endpoint, and with a choice of words.
    let body = json!({"prompt": "x", "max_tokens": 9, "response_format": {"type": "choice", "choice": ["yes", "no"]}});
    let text = server.post("/v1/completions", &body).ok()["choices"][0]["text"].clone();
    assert!(["yes", "no"].contains(&text.as_str().unwrap()), "{text}");
    server.idle();
}

#[test]
fn c31_a_schema_that_is_not_supported_is_an_error() {
    let server = Server::tiny("llama", &[]);
    for bad in [
        json!({"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}}),
        json!({"type": "what"}),
        json!({"$ref": "https://example.com/schema.json"}),
    ] {
        let error = server.post(CHAT, &hot(schema(bad.clone()))).error(400);
        assert_eq!(error["param"], "response_format", "{bad}");
    }
    let error = server.post(CHAT, &hot(json!({"response_format": {"type": "xml"}}))).error(400);
    assert_eq!(error["param"], "response_format.type");
    // These are: an empty schema of objects, and very long texts.
    for good in [
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
        json!({"type": "string", "maxLength": 100_000}),
    ] {
        let whole = server.post(CHAT, &hot(with(schema(good), json!({"max_tokens": 20})))).ok();
        let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(
            text.trim_start().is_empty() || text.trim_start().starts_with(['{', '"']),
            "{text}"
        );
    }
    server.post(CHAT, &ask("Still there?")).ok();
}

#[test]
fn calls_are_made_where_they_are_demanded() {
    let server = Server::tiny("qwen3_next", &[]);
    let tools =
        json!({"tools": weather(), "tool_choice": "required", "parallel_tool_calls": false});
    for seed in 0..4 {
        let body = hot(with(tools.clone(), json!({ "seed": seed })));
        let whole = server.post(CHAT, &body).ok();
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
        assert!(choice["message"]["content"].is_null(), "{whole}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        let function = &calls[0]["function"];
        let arguments = function["arguments"].as_str().unwrap();
        let read: Value = serde_json::from_str(arguments).unwrap();
        match function["name"].as_str().unwrap() {
            "weather" => assert!((1..=9).contains(&read["days"].as_u64().unwrap()), "{read}"),
            "clock" => assert_eq!(read, json!({})),
            other => panic!("{other}"),
        }
        let told = told(&server.events(CHAT, &body));
        assert_eq!(
            told.calls,
            [(function["name"].as_str().unwrap().to_owned(), arguments.to_owned())]
        );
        assert_eq!(told.finish.as_deref(), Some("tool_calls"));
        // What came back goes into the next turn.
        let mut messages = body["messages"].as_array().unwrap().clone();
        messages.push(choice["message"].clone());
        messages.push(json!({"role": "tool", "tool_call_id": calls[0]["id"], "content": "sunny"}));
        let next = with(
            body.clone(),
            json!({"messages": messages, "tool_choice": "none", "max_tokens": 4}),
        );
        server.post(CHAT, &next).ok();
    }
    let named = json!({"type": "function", "function": {"name": "clock"}});
    let body = hot(json!({"tools": weather(), "tool_choice": named, "parallel_tool_calls": false}));
    let whole = server.post(CHAT, &body).ok();
    for call in whole["choices"][0]["message"]["tool_calls"].as_array().unwrap() {
        let arguments = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).unwrap();
        assert_eq!((&call["function"]["name"], arguments), (&json!("clock"), json!({})));
    }
    let none = hot(json!({"tools": weather(), "tool_choice": {"function": {"name": "nothing"}}}));
    assert_eq!(server.post(CHAT, &none).error(400)["param"], "tool_choice");
    let none = hot(json!({"tool_choice": "required"}));
    assert_eq!(server.post(CHAT, &none).error(400)["param"], "tool_choice");
    server.idle();
}

#[test]
fn c27_a_call_that_is_cut_is_not_called_whole() {
    let server = Server::tiny("llama", &[]);
    let body = hot(json!({"tools": weather(), "tool_choice": "required", "max_tokens": 34}));
    let whole = server.post(CHAT, &body).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "length", "{whole}");
    let told = told(&server.events(CHAT, &body));
    assert_eq!(told.finish.as_deref(), Some("length"));
    let calls: Vec<_> = choice["message"]["tool_calls"].as_array().into_iter().flatten().collect();
    assert_eq!(calls.len(), told.calls.len());
    for (call, (name, arguments)) in calls.iter().zip(&told.calls) {
        assert_eq!(
            (&call["function"]["name"], &call["function"]["arguments"]),
            (&json!(name), &json!(arguments))
        );
        assert!(serde_json::from_str::<Value>(arguments).is_err(), "{arguments}");
    }
}

#[test]
fn c30_reasoning_is_told_apart_and_ends_where_it_must() {
    let server = Server::tiny("qwen3_next", &[]);
    let thinking =
        json!({"chat_template_kwargs": {"enable_thinking": true}, "logit_bias": {"259": -100}});
    // Cut inside of the reasoning: it is there once, and the answer is empty.
    let body = hot(with(thinking.clone(), json!({"max_tokens": 12})));
    let message = server.post(CHAT, &body).ok()["choices"][0].clone();
    assert_eq!(message["finish_reason"], "length");
    assert_eq!(message["message"]["content"], "");
    let told = told(&server.events(CHAT, &body));
    assert_eq!(message["message"]["reasoning_content"], told.reasoning.as_str());
    assert!(!told.reasoning.is_empty() && told.content.is_empty());
    // A limit closes it, and the answer has its form.
    let limited = json!({"chat_template_kwargs": {"enable_thinking": true}, "reasoning_budget": 5});
    let form = schema(json!({"enum": ["left", "right"]}));
    let whole = server.post(CHAT, &hot(with(limited, form))).ok();
    let message = &whole["choices"][0]["message"];
    assert!(["\"left\"", "\"right\""].contains(&message["content"].as_str().unwrap()), "{whole}");
    let tokens = whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((1..=6).contains(&tokens), "{whole}");
    server.idle();
}

#[test]
fn loops_end_a_text_if_that_is_wanted() {
    let server = Server::tiny("llama", &[]);
    // One token is made the only likely one.
    let body = with(ask("x"), json!({"logit_bias": {"97": 100}, "max_tokens": 200}));
    let whole = server.post(CHAT, &body).ok();
    assert_eq!(whole["usage"]["completion_tokens"], 200);
    let whole = server.post(CHAT, &with(body, json!({"stop_on_loop": 50}))).ok();
    assert_eq!(whole["usage"]["completion_tokens"], 50);
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["stop_reason"]),
        (&json!("stop"), &json!("loop"))
    );
}

#[test]
fn c35_no_tokens_are_no_tokens() {
    let server = Server::demo(&[]);
    let whole = server.post(CHAT, &with(ask("Once"), json!({"max_tokens": 0}))).ok();
    assert_eq!(whole["usage"]["completion_tokens"], 0);
    assert!(whole["usage"]["prompt_tokens"].as_u64() > Some(0));
    assert_eq!(whole["choices"][0]["message"]["content"], "");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let body = json!({"prompt": "Once upon", "max_tokens": 0, "echo": true});
    let whole = server.post("/v1/completions", &body).ok();
    assert_eq!(whole["choices"][0]["text"], "Once upon");
    assert_eq!(whole["usage"]["completion_tokens"], 0);
    for empty in [json!({"prompt": ""}), json!({"prompt": []}), json!({"prompt": [[]]})] {
        server.post("/v1/completions", &empty).error(400);
    }
    server.idle();
}
