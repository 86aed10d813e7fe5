//! OpenAI's newer endpoint: the response is the last event's, and what the events before it say.

use serde_json::{Value, json};

use crate::server::{Event, Server, with};

const RESPONSES: &str = "/v1/responses";

fn ask(input: Value) -> Value {
    json!({"input": input, "max_output_tokens": 16, "temperature": 0})
}

/// The response of a stream, after a look at the order of its events.
fn told(events: &[Event]) -> Value {
    let mut items: Vec<Value> = Vec::new();
    let mut open: Option<Value> = None;
    let mut text = String::new();
    let mut logprobs: Vec<Value> = Vec::new();
    let mut last = Value::Null;
    for (i, event) in events.iter().enumerate() {
        let data = event.json();
        let name = event.name.as_deref().unwrap();
        assert_eq!((data["type"].as_str(), &data["sequence_number"]), (Some(name), &json!(i)));
        assert!(last.is_null(), "something came after the end: {data}");
        let begins = ["response.created", "response.in_progress"];
        assert_eq!(begins.get(i), begins.iter().find(|begin| **begin == name));
        if let Some(index) = data.get("output_index") {
            assert_eq!(*index, items.len());
        }
        if let Some(id) = data.get("item_id") {
            assert_eq!(*id, open.as_ref().unwrap()["id"]);
            let is_call = open.as_ref().unwrap()["type"] == "function_call";
            assert_eq!(data.get("content_index"), (!is_call).then_some(&json!(0)));
        }
        match name {
            "response.created" | "response.in_progress" => {
                assert_eq!(data["response"]["status"], "in_progress");
                assert_eq!(data["response"]["output"], json!([]));
            }
            "response.output_item.added" => {
                assert!(open.replace(data["item"].clone()).is_none());
                text.clear();
            }
            "response.content_part.added" => assert_eq!(data["part"]["text"], ""),
            "response.output_text.delta"
            | "response.reasoning_text.delta"
            | "response.function_call_arguments.delta" => {
                text += data["delta"].as_str().unwrap();
                logprobs.extend(data["logprobs"].as_array().into_iter().flatten().cloned());
            }
            "response.output_text.done" => {
                assert_eq!((&data["text"], &data["logprobs"]), (&json!(text), &json!(logprobs)));
            }
            "response.reasoning_text.done" => assert_eq!(data["text"], text),
            "response.function_call_arguments.done" => assert_eq!(data["arguments"], text),
            "response.content_part.done" => assert_eq!(data["part"]["text"], text),
            "response.output_item.done" => {
                let (item, open) = (&data["item"], open.take().unwrap());
                assert_eq!((&item["id"], &item["type"]), (&open["id"], &open["type"]));
                let of_text = item.pointer("/content/0/text");
                assert_eq!(of_text.or(item.get("arguments")), Some(&json!(text)));
                items.push(item.clone());
            }
            "response.completed" | "response.incomplete" => {
                last = data["response"].clone();
                assert_eq!(name, format!("response.{}", last["status"].as_str().unwrap()));
                assert_eq!(last["output"], json!(items));
            }
            other => panic!("an event {other}"),
        }
    }
    assert!(open.is_none() && !last.is_null());
    last
}

/// What of a response does not depend on when it was asked for.
fn lasting(response: &Value) -> Value {
    let mut response = response.clone();
    let object = response.as_object_mut().unwrap();
    assert!(object["id"].as_str().unwrap().starts_with("resp_"));
    for name in ["id", "created_at", "longrun"] {
        object.remove(name).unwrap();
    }
    response["usage"]["input_tokens_details"] = Value::Null;
    for item in response["output"].as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("id").unwrap();
        item.as_object_mut().unwrap().remove("call_id");
    }
    response
}

#[test]
fn a_stream_is_the_whole_in_events() {
    let server = Server::demo(&[]);
    let items = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "Once"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "upon"},
        {"role": "user", "content": "a time"},
    ]);
    for (more, status) in [
        (json!({"max_output_tokens": 40}), None),
        (json!({"max_output_tokens": 1}), Some("incomplete")),
        (json!({"max_output_tokens": null}), Some("completed")),
        (json!({"temperature": 1.2, "seed": 5, "top_p": 0.9}), None),
        (json!({"input": items, "instructions": "Be brief"}), None),
        (json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2}), None),
        (
            json!({"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}}),
            None,
        ),
        (
            json!({"store": true, "metadata": {"a": "b"}, "user": "u", "truncation": "disabled"}),
            None,
        ),
        (json!({"background": false, "previous_response_id": null, "tools": []}), None),
    ] {
        let body = with(ask(json!("Once upon a time")), more);
        let whole = server.post(RESPONSES, &body).ok();
        let streamed = told(&server.events(RESPONSES, &body));
        assert_eq!(lasting(&whole), lasting(&streamed), "{body}");
        if let Some(status) = status {
            assert_eq!(whole["status"], status, "{whole}");
        }
        let is_cut = whole["incomplete_details"]["reason"] == "max_output_tokens";
        assert_eq!(whole["status"] == "incomplete", is_cut);
    }
    server.idle();
}

#[test]
fn it_says_what_a_chat_says() {
    let server = Server::demo(&[]);
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "Once"}]);
    let chat = json!({"messages": messages, "max_tokens": 16, "temperature": 0, "logprobs": true});
    let chat = server.post("/v1/chat/completions", &chat).ok();
    let body = with(ask(json!("Once")), json!({"instructions": "s", "top_logprobs": 1}));
    let response = server.post(RESPONSES, &body).ok();
    let part = &response["output"][0]["content"][0];
    let choice = &chat["choices"][0];
    assert_eq!(part["text"], choice["message"]["content"]);
    let told = |entries: &Value| -> Vec<Value> {
        entries.as_array().unwrap().iter().map(|entry| entry["logprob"].clone()).collect()
    };
    assert_eq!(told(&part["logprobs"]), told(&choice["logprobs"]["content"]));
    assert_eq!(part["logprobs"][0]["top_logprobs"].as_array().unwrap().len(), 1);
    for (name, other) in [("input_tokens", "prompt_tokens"), ("total_tokens", "total_tokens")] {
        assert_eq!(response["usage"][name], chat["usage"][other]);
    }
    assert_eq!(response["instructions"], "s");
}

#[test]
fn what_is_thought_is_an_item_of_its_own() {
    let server = Server::tiny("llama", &[]);
    // The token that ends reasoning is made likely: it comes soon, at a place that the seed decides.
    let draw = json!({"temperature": 1, "seed": 1, "logit_bias": {"259": 2}, "top_logprobs": 1});
    let more = json!({"reasoning": {"effort": "high"}, "max_output_tokens": 64});
    let body = with(with(ask(json!("Hm")), draw), more);
    let whole = server.post(RESPONSES, &body).ok();
    assert_eq!(lasting(&whole), lasting(&told(&server.events(RESPONSES, &body))));
    let items = whole["output"].as_array().unwrap();
    let kinds: Vec<_> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message"]);
    assert_eq!(
        (&items[0]["status"], &items[1]["status"]),
        (&json!("completed"), &json!("incomplete"))
    );
    let thought = whole["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    let said = items[1]["content"][0]["logprobs"].as_array().unwrap().len();
    assert_eq!(said as u64 + thought, 64, "every token is of one of them");
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
    let is_city = |text: &Value| {
        let city: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        [json!({"city": "Paris"}), json!({"city": "Rome"})].contains(&city)
    };
    // Nothing but a limit ends what a random model thinks.
    let more = json!({"reasoning": {"effort": "high", "max_tokens": 4}, "max_output_tokens": 1000});
    let body = with(ask(json!("Hm")), more);
    let tools = json!({"tools": [{"type": "function", "name": "weather", "parameters": schema, "strict": true}]});
    for choice in [json!("required"), json!({"type": "function", "name": "weather"})] {
        let choice = json!({"tool_choice": choice, "parallel_tool_calls": false});
        let body = with(with(body.clone(), tools.clone()), choice);
        let whole = server.post(RESPONSES, &body).ok();
        assert_eq!(lasting(&whole), lasting(&told(&server.events(RESPONSES, &body))));
        assert_eq!(whole["status"], "completed", "{whole}");
        let items = whole["output"].as_array().unwrap();
        let kinds: Vec<_> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["reasoning", "function_call"]);
        assert_eq!(
            (&items[1]["name"], &items[1]["status"]),
            (&json!("weather"), &json!("completed"))
        );
        assert!(items[1]["call_id"].as_str().unwrap().starts_with("call_"));
        assert!(is_city(&items[1]["arguments"]), "{whole}");
    }
    let format =
        |schema: &Value| json!({"format": {"type": "json_schema", "name": "c", "schema": schema}});
    let answer = server.post(RESPONSES, &with(body.clone(), json!({"text": format(&schema)}))).ok();
    assert!(is_city(&answer["output"][1]["content"][0]["text"]), "{answer}");
    let broken = with(body, json!({"text": format(&json!({"type": "nothing"}))}));
    let error = server.post(RESPONSES, &broken).error(400);
    assert_eq!(error["param"], "text.format");
    assert!(error["message"].as_str().unwrap().starts_with("text.format: "), "{error}");
}

#[test]
fn errors_say_what_and_where() {
    let server = Server::demo(&[]);
    let cases = [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"include": ["file_search_call.results"]}), "include"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "name": "f"}}), "tool_choice"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
        (json!({"reasoning": {"effort": 3}}), "reasoning.effort"),
        (json!({"top_logprobs": 50}), "top_logprobs"),
        (json!({"max_output_tokens": -1}), "max_output_tokens"),
    ];
    for (more, param) in cases {
        let body = with(ask(json!("Once")), more);
        let error = server.post(RESPONSES, &body).error(400);
        assert_eq!(error["param"], param, "{error}");
        // A stream that can't begin is the same error, not an event.
        assert_eq!(server.stream(RESPONSES, &body).reply().error(400)["param"], param);
    }
    let long = with(ask(json!("x")), json!({"max_output_tokens": 5000}));
    let long = server.post(RESPONSES, &long).error(400);
    assert_eq!(
        (&long["code"], &long["param"]),
        (&json!("context_length_exceeded"), &json!("input"))
    );
    let other = with(ask(json!("x")), json!({"model": "gpt-4"}));
    assert_eq!(server.post(RESPONSES, &other).error(404)["code"], "model_not_found");
    server.get("/v1/responses/resp_1").error(404);
    server.idle();
}

#[test]
fn a_failure_of_a_stream_is_its_end() {
    let server = Server::demo(&["--timeout", "0"]);
    let body = ask(json!("Once"));
    let events = server.events(RESPONSES, &body);
    let names: Vec<&str> = events.iter().map(|event| event.name.as_deref().unwrap()).collect();
    let ["response.created", "response.in_progress", text @ .., "error", "response.failed"] =
        &names[..]
    else {
        panic!("{names:?}");
    };
    // Some may come before the clock is looked at, and none of it ends.
    let is_text = |name: &&str| name.ends_with(".added") || name.ends_with(".delta");
    assert!(text.iter().all(is_text), "{names:?}");
    let [.., error, failed] = &events[..] else { unreachable!() };
    assert_eq!(error.json()["code"], "timeout");
    let response = &failed.json()["response"];
    assert_eq!(
        (&response["status"], &response["error"]["code"]),
        (&json!("failed"), &json!("timeout"))
    );
    assert_eq!(server.post(RESPONSES, &body).error(504)["code"], "timeout");
    server.idle();
}

#[test]
fn who_hangs_up_is_no_longer_served() {
    let server = Server::demo(&[]);
    let more = json!({"ignore_eos": true, "max_output_tokens": 1000});
    let mut stream = server.stream(RESPONSES, &with(ask(json!("Once")), more));
    let text = stream.find(|event| event.name.as_deref() == Some("response.output_text.delta"));
    assert!(text.is_some());
    drop(stream);
    server.idle();
    assert_eq!(server.metric("longrun_requests_total{model=\"demo\",outcome=\"cancelled\"}"), 1.0);
}
