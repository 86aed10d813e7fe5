//! What answers say, as schemas.
//!
//! Owns what clients may rely on: fields that are always there, with their types. Answers may have more.

use serde_json::{Map, Value, json};

/// The schemas by name.
pub(super) fn schemas() -> Map<String, Value> {
    let mut all = Map::new();
    let mut add = |name: &str, schema: Value| _ = all.insert(name.to_owned(), schema);
    add("Error", error());
    add("Event", object(json!({"data": text()})));
    add("Health", object(json!({"status": {"const": "ok"}})));
    add("Document", object(json!({"openapi": text(), "paths": {"type": "object"}})));
    add("Model", model());
    add("Models", object(json!({"object": {"const": "list"}, "data": list(of("Model"))})));
    add("Usage", usage());
    add("Timings", timings());
    add("ChatCompletion", answer("chat.completion", &chat_choice()));
    add("Completions", answer("text_completion", &completions_choice()));
    add(
        "Response",
        object(json!({
            "id": text(),
            "object": {"const": "response"},
            "created_at": count(),
            "status": {"enum": ["completed", "incomplete", "failed", "in_progress"]},
            "model": text(),
            "output": list(object(json!({"type": text()}))),
        })),
    );
    let counted = object(json!({"input_tokens": count(), "output_tokens": count()}));
    add(
        "Message",
        object(json!({
            "id": text(),
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": text(),
            "content": list(object(json!({"type": text()}))),
            "stop_reason": text(),
            "usage": counted,
        })),
    );
    add("Embeddings", embeddings());
    add("Count", object(json!({"input_tokens": count()})));
    add("LlamaText", llama_text());
    add("LlamaCompletion", json!({"anyOf": [of("LlamaText"), list(of("LlamaText"))]}));
    let token = json!({"anyOf": [count(), object(json!({"id": count(), "piece": {}}))]});
    add(
        "Tokens",
        object(json!({"tokens": list(token), "count": count(), "max_model_len": count()})),
    );
    add("Detokenized", object(json!({"content": text(), "prompt": text()})));
    add("Prompt", object(json!({"prompt": text()})));
    add("Props", props());
    let slot = json!({"id": count(), "n_ctx": count(), "is_processing": {"type": "boolean"}});
    add("Slots", list(object(slot)));
    all
}

/// An object that has at least these fields.
fn object(properties: Value) -> Value {
    let names: Vec<String> =
        properties.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
    json!({"type": "object", "required": names, "properties": properties})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn of(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn number() -> Value {
    json!({"type": "number", "minimum": 0})
}

fn error() -> Value {
    // OpenAI's errors have a `param` and a `code`, Anthropic's don't.
    object(json!({"error": object(json!({"message": text(), "type": text()}))}))
}

fn model() -> Value {
    object(json!({
        "id": text(),
        "object": {"const": "model"},
        "created": count(),
        "owned_by": text(),
    }))
}

fn usage() -> Value {
    object(json!({
        "prompt_tokens": count(),
        "completion_tokens": count(),
        "total_tokens": count(),
        "prompt_tokens_details": object(json!({"cached_tokens": count()})),
        "completion_tokens_details": object(json!({"reasoning_tokens": count()})),
    }))
}

fn embeddings() -> Value {
    let numbers = list(json!({"type": "number"}));
    let one = object(json!({
        "object": {"const": "embedding"},
        "index": count(),
        "embedding": {"anyOf": [numbers, text()]},
    }));
    object(json!({
        "object": {"const": "list"},
        "data": list(one),
        "model": text(),
        "usage": object(json!({"prompt_tokens": count(), "total_tokens": count()})),
    }))
}

fn timings() -> Value {
    object(json!({
        "cache_n": count(),
        "prompt_n": count(),
        "prompt_ms": number(),
        "prompt_per_token_ms": number(),
        "prompt_per_second": number(),
        "predicted_n": count(),
        "predicted_ms": number(),
        "predicted_per_token_ms": number(),
        "predicted_per_second": number(),
    }))
}

/// What both endpoints of OpenAI answer.
fn answer(kind: &str, choice: &Value) -> Value {
    object(json!({
        "id": text(),
        "object": {"const": kind},
        "created": count(),
        "model": text(),
        "system_fingerprint": text(),
        "choices": list(choice.clone()),
        "usage": of("Usage"),
        "timings": of("Timings"),
    }))
}

fn chat_choice() -> Value {
    let content = json!({"type": ["string", "null"]});
    object(json!({
        "index": count(),
        "message": object(json!({"role": {"const": "assistant"}, "content": content})),
        "logprobs": {"type": ["object", "null"]},
        "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
    }))
}

fn completions_choice() -> Value {
    // Nothing stands before the first token of an echo.
    let lists = object(json!({
        "tokens": list(text()),
        "token_logprobs": list(json!({"type": ["number", "null"]})),
        "top_logprobs": list(json!({"type": ["object", "null"]})),
        "text_offset": list(count()),
    }));
    object(json!({
        "index": count(),
        "text": text(),
        "logprobs": {"anyOf": [lists, {"type": "null"}]},
        "finish_reason": {"enum": ["stop", "length"]},
    }))
}

/// All fields are there unless `response_fields` chooses some.
fn llama_text() -> Value {
    json!({"type": "object", "properties": {
        "index": count(),
        "content": text(),
        "tokens": list(count()),
        "id_slot": {"type": "integer"},
        "stop": {"const": true},
        "model": text(),
        "tokens_predicted": count(),
        "tokens_evaluated": count(),
        "tokens_cached": count(),
        "generation_settings": {"type": "object"},
        "prompt": text(),
        "has_new_line": {"type": "boolean"},
        "truncated": {"type": "boolean"},
        "stop_type": {"enum": ["eos", "limit", "word"]},
        "stopping_word": text(),
        "timings": of("Timings"),
        "completion_probabilities": list(json!({"type": "object"})),
    }})
}

fn props() -> Value {
    object(json!({
        "default_generation_settings": object(json!({"n_ctx": count(), "params": {"type": "object"}})),
        "total_slots": count(),
        "model_alias": text(),
        "model_path": text(),
        "modalities": {"type": "object"},
        "chat_template": text(),
        "bos_token": text(),
        "eos_token": text(),
        "build_info": text(),
    }))
}
