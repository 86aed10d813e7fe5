//! Requests that are right, by the names that the document has for them: together they have every field and each of its
//! kinds. They ask for next to nothing, so that a model has done soon.

use serde_json::{Value, json};

use crate::server::with;

/// Those of a schema.
pub(crate) fn of(name: &str) -> Vec<Value> {
    match name {
        "ChatRequest" => chats(),
        "CompletionsRequest" => completions(),
        "ResponsesRequest" => responses(),
        "MessagesRequest" => {
            let answered =
                all_messages().into_iter().map(|body| with(body, json!({"max_tokens": 2})));
            let choosing =
                with(with(choosing(), own()), json!({"stop_sequences": ["x"], "stream": false}));
            let mut all: Vec<Value> = answered.collect();
            all[0] = with(all[0].clone(), choosing);
            all[1]["stop_sequences"] = json!("x");
            all[1] = with(all[1].clone(), other_kinds());
            all
        }
        "CountRequest" => all_messages(),
        "LlamaRequest" => llama(),
        "NameRequest" => vec![json!({"model": "default"})],
        "TemplateRequest" => templates(),
        "TokenizeRequest" => tokenize(),
        "DetokenizeRequest" => vec![json!({"tokens": [1, 2], "model": "default"})],
        "EmbeddingsRequest" => embeddings(),
        other => panic!("there is no example of {other}"),
    }
}

/// How tokens are chosen, with everything that is shared.
fn choosing() -> Value {
    json!({"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "xtc_probability": 0.1, "presence_penalty": 0.1,
        "frequency_penalty": -0.1, "seed": 1, "ignore_eos": false, "stream": false, "model": "default"})
}

fn own() -> Value {
    json!({"xtc_threshold": 0.1, "repetition_penalty": 1.1, "top_k": 5, "repetition_context_size": 9,
        "presence_context_size": 9, "frequency_context_size": 9, "logit_bias": {"5": -1.5}, "stop_on_loop": true,
        "priority": "low"})
}

/// What else those may be that are of more than one kind.
fn other_kinds() -> Value {
    json!({"stop_on_loop": 7, "priority": 1.5})
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"x": {"type": "boolean"}}})
}

/// Every form that an answer can be held to.
fn formats() -> Vec<Value> {
    let named = json!({"name": "n", "description": "d", "strict": true, "schema": schema()});
    vec![
        json!({"type": "text"}),
        json!({"type": "json_object", "schema": schema()}),
        json!({"type": "json_schema", "json_schema": named}),
        with(json!({"type": "json_schema"}), named),
        json!({"type": "regex", "pattern": "a+"}),
        json!({"type": "grammar", "grammar": "start: \"a\""}),
        json!({"type": "choice", "choice": ["a", "b"]}),
        json!({"type": "choice", "choice": "a"}),
    ]
}

fn tools() -> Value {
    let function =
        json!({"name": "f", "description": "d", "parameters": schema(), "strict": false});
    json!([{"type": "function", "function": function}])
}

fn text_parts() -> Value {
    json!([{"type": "text", "text": "a"}, {"text": "b"}, "c", {"type": "refusal", "refusal": "no"}])
}

fn messages() -> Value {
    let call = |arguments: Value| json!({"function": {"name": "f", "arguments": arguments}});
    json!([
        {"role": "user", "content": "Once"},
        {"role": "assistant", "content": null, "tool_calls": [call(json!("{}")), call(json!({}))]},
        {"role": "tool", "content": "x", "tool_calls": []},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": text_parts(), "tool_calls": [call(json!("{}"))]},
    ])
}

fn ask() -> Value {
    json!([{"role": "user", "content": "Once"}])
}

/// What both older endpoints of OpenAI take.
fn openai() -> Value {
    let options =
        json!({"include_usage": true, "include_progress": true, "include_obfuscation": true});
    json!({"stream_options": options, "return_progress": true, "stop": ["x"], "n": 1, "max_tokens": 1,
        "max_completion_tokens": 1})
}

fn in_all_formats(body: &Value) -> Vec<Value> {
    let of = |format| with(body.clone(), json!({"response_format": format, "max_tokens": 1}));
    formats().into_iter().map(of).collect()
}

fn choices() -> [Value; 4] {
    [
        json!("auto"),
        json!("none"),
        json!({"type": "function", "function": {"name": "f"}}),
        json!({"type": "function", "name": "f"}),
    ]
}

fn chats() -> Vec<Value> {
    let chat = json!({"tools": tools(), "tool_choice": "auto", "parallel_tool_calls": true,
        "chat_template_kwargs": {"x": 1}, "reasoning_effort": "low", "reasoning_budget": 1,
        "reasoning": {"effort": "low", "max_tokens": 1}, "logprobs": true, "top_logprobs": 2});
    let whole = with(with(with(choosing(), own()), openai()), chat);
    let mut all = vec![with(json!({"messages": messages()}), whole)];
    let short = json!({"messages": ask(), "max_tokens": 1});
    all.push(with(with(short.clone(), other_kinds()), json!({"stop": "x"})));
    for choice in choices() {
        all.push(with(short.clone(), json!({"tools": tools(), "tool_choice": choice})));
    }
    all.extend(in_all_formats(&json!({"messages": ask()})));
    all
}

fn completions() -> Vec<Value> {
    let whole =
        with(with(with(choosing(), own()), openai()), json!({"echo": false, "logprobs": 2}));
    let mut all = vec![with(json!({"prompt": "Once"}), whole)];
    let short = with(json!({"max_tokens": 1, "stop": "x"}), other_kinds());
    for prompt in [json!([1, 2]), json!(["a", "b"]), json!([[1, 2], "a"])] {
        all.push(with(short.clone(), json!({ "prompt": prompt })));
    }
    all.extend(in_all_formats(&json!({"prompt": "Once"})));
    all
}

fn items() -> Value {
    json!([
        {"role": "developer", "content": "x"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, "y",
            {"type": "refusal", "refusal": "z"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}],
            "content": [{"type": "reasoning_text", "text": "y"}], "encrypted_content": "?"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "function_call", "call_id": "2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": text_parts()},
    ])
}

fn responses() -> Vec<Value> {
    let tool = json!({"type": "function", "name": "f", "description": "d", "parameters": schema(), "strict": false});
    let tools = json!({ "tools": [tool] });
    let rest = json!({"instructions": "x", "max_output_tokens": 1, "tool_choice": "auto",
        "parallel_tool_calls": true, "chat_template_kwargs": {"x": 1}, "top_logprobs": 2,
        "include": ["message.output_text.logprobs"], "reasoning_budget": 1, "max_tool_calls": 1,
        "reasoning": {"effort": "low", "max_tokens": 1, "summary": "auto", "generate_summary": "auto"},
        "stream_options": {"include_obfuscation": true}, "truncation": "disabled", "background": false});
    let rest = with(rest, tools.clone());
    let mut all = vec![with(with(with(choosing(), own()), rest), json!({"input": items()}))];
    let short = json!({"input": "Once", "max_output_tokens": 1});
    let more = json!({"include": "reasoning.encrypted_content"});
    all.push(with(with(short.clone(), other_kinds()), more));
    for choice in choices() {
        all.push(with(with(short.clone(), tools.clone()), json!({ "tool_choice": choice })));
    }
    for format in formats() {
        let text = json!({"text": {"format": format, "verbosity": "low"}});
        all.push(with(short.clone(), text));
    }
    all
}

/// Of Anthropic's words, those that make a prompt.
fn all_messages() -> Vec<Value> {
    let blocks = json!([
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "x", "signature": "y"},
            {"type": "redacted_thinking", "data": "?"},
            {"type": "text", "text": "x"},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"x": true}},
            {"type": "tool_use", "id": "2", "name": "f", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": "x", "is_error": true},
            {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": "x"}]},
        ]},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "x"},
    ]);
    let tool = json!({"type": "custom", "name": "f", "description": "d", "input_schema": schema(), "strict": false});
    let tools = json!({ "tools": [tool] });
    let whole = json!({"messages": blocks, "system": "x", "chat_template_kwargs": {"x": 1}, "model": "default",
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, "output_config": {"effort": "low"},
        "thinking": {"type": "enabled", "budget_tokens": 1, "display": "omitted"}});
    let mut all = vec![with(whole, tools.clone())];
    let ask = json!({ "messages": ask() });
    let system =
        json!({"system": [{"type": "text", "text": "x"}], "thinking": {"type": "disabled"}});
    all.push(with(ask.clone(), system));
    let adaptive = json!({"type": "adaptive", "budget_tokens": 1, "display": "summarized"});
    all.push(with(ask.clone(), json!({ "thinking": adaptive })));
    for choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "f", "disable_parallel_tool_use": true}),
        json!({"type": "none", "disable_parallel_tool_use": true}),
    ] {
        all.push(with(with(ask.clone(), tools.clone()), json!({ "tool_choice": choice })));
    }
    for format in formats() {
        all.push(with(ask.clone(), json!({"output_config": {"format": format}})));
    }
    all
}

fn llama() -> Vec<Value> {
    let rest = json!({"return_progress": true, "stop": ["x"], "n_predict": 1, "max_tokens": 1,
        "max_completion_tokens": 1, "n": 1, "n_cmpl": 1, "top_k": 5, "xtc_threshold": 0.1, "repeat_penalty": 1.1,
        "repeat_last_n": 9, "logit_bias": {"5": -1.5, "x": false}, "n_probs": 2, "logprobs": 2,
        "samplers": ["min_p"], "return_tokens": true, "timings_per_token": true, "t_max_predict_ms": 1,
        "response_fields": ["content"], "grammar": "", "json_schema": schema()});
    let mut all = vec![with(with(choosing(), rest), json!({"prompt": "Once"}))];
    let short = json!({"n_predict": 1, "stop": "x", "samplers": "m", "response_fields": "content",
        "logit_bias": [[5, -1.5], ["x", false]], "xtc_threshold": 0.7, "repeat_last_n": 0, "json_schema": ""});
    let switched_off = with(choosing(), json!({"repeat_penalty": 1.1}));
    let short = with(switched_off, short);
    for prompt in [
        json!({"prompt_string": "a"}),
        json!([1, 2]),
        json!([1, "a"]),
        json!(["a", [1, "a"], {"prompt_string": "a"}]),
    ] {
        all.push(with(short.clone(), json!({ "prompt": prompt })));
    }
    all
}

/// What becomes text.
fn templates() -> Vec<Value> {
    let rest = json!({"model": "default", "tools": tools(), "chat_template_kwargs": {"x": 1},
        "add_generation_prompt": true});
    vec![with(rest, json!({"messages": messages()}))]
}

fn tokenize() -> Vec<Value> {
    let rest = json!({"with_pieces": true, "return_token_strs": true});
    let content = json!({"add_special": true, "parse_special": true, "model": "default"});
    let content = with(content, rest.clone());
    let of = |what: Value| with(content.clone(), json!({ "content": what }));
    let mut all: Vec<Value> =
        [json!("a"), json!([1, "a"]), json!({"prompt_string": "a"})].map(of).into();
    let prompt = json!({"prompt": "a", "add_special_tokens": true, "model": "default"});
    all.push(with(prompt, rest.clone()));
    let conversation = json!({"add_special_tokens": true});
    all.push(with(with(templates().remove(0), conversation), rest));
    all
}

fn embeddings() -> Vec<Value> {
    let rest = json!({"model": "default", "encoding_format": "float", "dimensions": 2});
    let of = |input: Value| with(rest.clone(), json!({ "input": input }));
    [json!("a"), json!([1, 2]), json!(["a", [1, 2]])].map(of).into()
}
