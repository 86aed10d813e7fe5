//! What fields of conversations hold, in the words of each wire: forms of answers, choices of tools, blocks and items.
//!
//! Owns their schemas. Requests are in `requests`, which says what each may have.

use serde_json::{Map, Value, json};

/// The schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let mut all = Map::new();
    let mut add = |name: &str, schema: Value| _ = all.insert(name.to_owned(), schema);
    add("Loop", any(vec![json!({"type": "boolean"}), json!({"type": "integer", "minimum": 1})]));
    add(
        "Priority",
        any(vec![json!({"enum": ["low", "normal", "high"]}), json!({"type": "number"})]),
    );
    add("False", json!({"const": false}));
    add("Truncation", json!({"const": "disabled"}));
    add("ResponseFormat", response_format());
    let kind = json!({"const": "function"});
    let named = object(&["name"], json!({"type": kind, "name": text()}));
    let function = object(&["name"], json!({"name": text()}));
    let by_function = object(&["function"], json!({"type": kind, "function": function}));
    let words = json!({"enum": ["auto", "none", "required", "any"]});
    add("ToolChoice", any(vec![words, by_function, named]));
    responses(&mut add);
    messages(&mut add);
    all
}

/// An object; a field that may be missing may be null.
fn object(required: &[&str], mut properties: Value) -> Value {
    for (name, schema) in properties.as_object_mut().into_iter().flatten() {
        if !required.contains(&name.as_str()) {
            *schema = any(vec![schema.take(), json!({"type": "null"})]);
        }
    }
    json!({"type": "object", "required": required, "properties": properties})
}

fn any(all: Vec<Value>) -> Value {
    json!({ "anyOf": all })
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn of(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn of_type(kind: &str, required: &[&str], mut properties: Value) -> Value {
    properties["type"] = json!({"const": kind});
    object(&[&["type"], required].concat(), properties)
}

fn response_format() -> Value {
    let schema = json!({"name": text(), "description": text(), "strict": {"type": "boolean"},
        "schema": {"type": ["object", "boolean"]}});
    let inner = object(&["schema"], schema.clone());
    let texts = json!({"type": "array", "items": text(), "minItems": 1});
    any(vec![
        of_type("text", &[], json!({})),
        of_type("json_object", &[], json!({"schema": {"type": ["object", "boolean"]}})),
        of_type("json_schema", &["json_schema"], json!({"json_schema": inner})),
        of_type("json_schema", &["schema"], schema),
        of_type("regex", &["pattern"], json!({"pattern": text()})),
        of_type("grammar", &["grammar"], json!({"grammar": text()})),
        of_type("choice", &["choice"], json!({"choice": any(vec![text(), texts])})),
    ])
}

fn responses(add: &mut impl FnMut(&str, Value)) {
    let content = any(vec![text(), of("TextParts")]);
    let roles = json!({"enum": ["system", "developer", "user", "assistant"]});
    let message = object(
        &["role", "content"],
        json!({"type": {"const": "message"}, "role": roles, "content": content.clone()}),
    );
    let thoughts = list(object(&["text"], json!({"text": text()})));
    let thought = json!({"summary": thoughts, "content": thoughts, "encrypted_content": text()});
    let call = json!({"call_id": text(), "name": text(), "arguments": text()});
    let items = vec![
        message,
        of_type("reasoning", &[], thought),
        of_type("function_call", &["call_id", "name"], call),
        of_type(
            "function_call_output",
            &["call_id"],
            json!({"call_id": text(), "output": content}),
        ),
    ];
    add(
        "ResponseInput",
        any(vec![text(), json!({"type": "array", "minItems": 1, "items": any(items)})]),
    );
    let tool = json!({"name": text(), "description": text(), "strict": {"type": "boolean"},
        "parameters": {"type": ["object", "null"]}});
    add("FlatTools", list(of_type("function", &["name"], tool)));
    let include = json!({"enum": ["message.output_text.logprobs", "reasoning.encrypted_content"]});
    add("Include", any(vec![include.clone(), list(include)]));
    add(
        "ResponseReasoning",
        object(
            &[],
            json!({"effort": text(), "max_tokens": {"type": "integer", "minimum": 0},
        "summary": text(), "generate_summary": text()}),
        ),
    );
    let format = of("ResponseFormat");
    add("ResponseText", object(&[], json!({"format": format, "verbosity": text()})));
    add("ResponseStreamOptions", object(&[], json!({"include_obfuscation": {"type": "boolean"}})));
}

fn messages(add: &mut impl FnMut(&str, Value)) {
    let said = of_type("text", &["text"], json!({"text": text()}));
    let texts = any(vec![text(), list(said.clone())]);
    add("SystemText", texts.clone());
    let call = json!({"id": text(), "name": text(), "input": {"type": "object"}});
    let result = json!({"tool_use_id": text(), "content": of("SystemText"), "is_error": {"type": "boolean"}});
    let user = list(any(vec![said.clone(), of_type("tool_result", &["tool_use_id"], result)]));
    let thought =
        of_type("thinking", &["thinking"], json!({"thinking": text(), "signature": text()}));
    let hidden = of_type("redacted_thinking", &[], json!({"data": text()}));
    let call = of_type("tool_use", &["id", "name"], call);
    let assistant = list(any(vec![said, thought, hidden, call]));
    let message = |role: &str, blocks: Value| {
        let content = any(vec![text(), blocks]);
        object(&["role", "content"], json!({"role": {"const": role}, "content": content}))
    };
    let message = any(vec![message("user", user), message("assistant", assistant)]);
    add("AnthropicMessages", json!({"type": "array", "minItems": 1, "items": message}));
    let tool = json!({"type": {"const": "custom"}, "name": text(), "description": text(),
        "input_schema": {"type": "object"}, "strict": {"type": "boolean"}});
    add("AnthropicTools", list(object(&["name", "input_schema"], tool)));
    let single = json!({"disable_parallel_tool_use": {"type": "boolean"}});
    let named = json!({"disable_parallel_tool_use": {"type": "boolean"}, "name": text()});
    add(
        "AnthropicChoice",
        any(vec![
            of_type("auto", &[], single.clone()),
            of_type("any", &[], single.clone()),
            of_type("tool", &["name"], named),
            of_type("none", &[], single),
        ]),
    );
    let thinking = json!({"type": {"enum": ["enabled", "adaptive", "disabled"]},
        "budget_tokens": {"type": "integer", "minimum": 0}, "display": {"enum": ["summarized", "omitted"]}});
    add("Thinking", object(&["type"], thinking));
    let format = of("ResponseFormat");
    add("OutputConfig", object(&[], json!({"effort": text(), "format": format})));
}
