//! From a conversation to the ids of a prompt, and where in it later prompts are likely to part.
//!
//! Owns what clients may write as a message: content as text, null or parts, calls of tools as OpenAI writes them.
//! Refuses parts that are no text, and roles that no template knows.

use longrun_lm::answer;
use longrun_lm::text::ChatInput;
use serde_json::{Map, Value, json};

use super::error::{ApiError, ApiResult};
use super::fields::kind;
use super::served::Served;

/// A conversation that is to go on.
pub(crate) struct Chat {
    pub(crate) messages: Vec<Value>,
    /// As OpenAI writes them; null without any.
    pub(crate) tools: Value,
    /// Variables of the template.
    pub(crate) extra: Map<String, Value>,
}

/// A prompt, ready to be read.
pub(crate) struct Prompt {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) boundaries: Vec<usize>,
    /// The answer begins inside of reasoning.
    pub(crate) in_reasoning: bool,
}

/// The messages of a request in the form that templates read.
pub(crate) fn messages(value: Value) -> ApiResult<Vec<Value>> {
    let Value::Array(messages) = value else {
        return Err(ApiError::field("messages", format!("{} is no list", kind(&value))));
    };
    if messages.is_empty() {
        return Err(ApiError::field("messages", "there are none"));
    }
    messages.into_iter().enumerate().map(|(i, m)| message(m, &format!("messages[{i}]"))).collect()
}

fn message(message: Value, place: &str) -> ApiResult<Value> {
    let Value::Object(mut message) = message else {
        return Err(ApiError::field(place, format!("{} is no object", kind(&message))));
    };
    let role = match message.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => "system",
        Some("tool" | "function") => "tool",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some(other) => {
            let what = format!("{other:?} is none of system, developer, user, assistant, tool");
            return Err(ApiError::field(&format!("{place}.role"), what));
        }
        None => return Err(ApiError::field(&format!("{place}.role"), "it is missing")),
    };
    message.insert("role".into(), role.into());
    let content = content(message.remove("content"), &format!("{place}.content"))?;
    let calls = message.remove("tool_calls").filter(|calls| !calls.is_null());
    if content.is_none() && role != "assistant" {
        return Err(ApiError::field(&format!("{place}.content"), "it is missing"));
    }
    message.insert("content".into(), content.unwrap_or_default().into());
    if let Some(calls) = calls {
        message.insert("tool_calls".into(), self::calls(calls, &format!("{place}.tool_calls"))?);
    }
    Ok(message.into())
}

/// Text, or the joined text of parts.
pub(crate) fn content(content: Option<Value>, place: &str) -> ApiResult<Option<String>> {
    match content {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (i, part) in parts.iter().enumerate() {
                let place = format!("{place}[{i}]");
                let kind = match part.get("type") {
                    None => "text",
                    Some(Value::String(kind)) => kind,
                    Some(_) => return Err(ApiError::field(&place, "its type is no text")),
                };
                let piece = match kind {
                    "text" | "input_text" | "output_text" => part.get("text"),
                    "refusal" => part.get("refusal"),
                    other => {
                        let what = format!("a part of type {other:?} is not supported; send text");
                        return Err(ApiError::field(&place, what));
                    }
                };
                let piece = piece.and_then(Value::as_str).or(part.as_str());
                text += piece.ok_or_else(|| ApiError::field(&place, "it has no text"))?;
            }
            Ok(Some(text))
        }
        Some(other) => Err(ApiError::field(place, format!("{} is no text", kind(&other)))),
    }
}

/// Calls with their arguments as objects: a template writes them in its own way. Arguments that are no JSON object,
/// from a model's earlier slip, stay the text they are.
fn calls(calls: Value, place: &str) -> ApiResult<Value> {
    let Value::Array(mut calls) = calls else {
        return Err(ApiError::field(place, format!("{} is no list", kind(&calls))));
    };
    for (i, call) in calls.iter_mut().enumerate() {
        let wrong = |what: &str| ApiError::field(&format!("{place}[{i}]"), what);
        let function = call.get_mut("function").and_then(Value::as_object_mut);
        let function = function.ok_or_else(|| wrong("it has no function"))?;
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(wrong("its function has no name"));
        }
        let arguments = function.get("arguments").cloned().unwrap_or_else(|| json!({}));
        let arguments = match arguments {
            Value::String(text) if text.trim().is_empty() => json!({}),
            Value::String(text) => match serde_json::from_str::<Value>(&text) {
                Ok(object @ Value::Object(_)) => object,
                _ => Value::String(text),
            },
            Value::Null => json!({}),
            object @ Value::Object(_) => object,
            _ => return Err(wrong("its arguments are neither text nor an object")),
        };
        function.insert("arguments".into(), arguments);
    }
    Ok(calls.into())
}

impl Chat {
    /// The prompt, by the model's template. An answer that has begun is gone on with.
    pub(crate) fn prompt(&self, served: &Served) -> ApiResult<Prompt> {
        let last = self.messages.last();
        let begun = last
            .filter(|m| m["role"] == "assistant" && m.get("tool_calls").is_none())
            .and_then(|m| m["content"].as_str());
        let count = self.messages.len() - usize::from(begun.is_some());
        let mut text = self.render(served, count, true)?;
        let mut in_reasoning = answer::starts_in_reasoning(&served.format, &text);
        if let Some(begun) = begun {
            if in_reasoning && let Some(end) = served.format.reasoning_end() {
                text += end;
                in_reasoning = false;
            }
            text += begun;
        }
        let ids = encode(served, &text, true)?;
        let boundaries = self.boundaries(served, count, &text, &ids)?;
        Ok(Prompt { text, ids, boundaries, in_reasoning })
    }

    pub(crate) fn render(&self, served: &Served, count: usize, answer: bool) -> ApiResult<String> {
        let Some(template) = &served.source.template else {
            let what = format!("the model {} has no chat template", served.name);
            let hint = "; use /v1/completions, or start the server with --chat-template FILE";
            return Err(ApiError::bad(what + hint));
        };
        let messages = Value::from(self.messages[..count].to_vec());
        let input = ChatInput {
            messages: &messages,
            add_generation_prompt: answer,
            tools: Some(&self.tools).filter(|tools| !tools.is_null()),
            extra: Some(&self.extra),
        };
        template.render(&input).map_err(|error| ApiError {
            param: Some("messages".into()),
            ..ApiError::bad(error.to_string())
        })
    }

    /// Lengths at which another prompt is likely to part from this one: where the first message ends, where the last one
    /// begins, and where it ends. They matter to models whose state can't be cut.
    fn boundaries(
        &self,
        served: &Served,
        count: usize,
        text: &str,
        ids: &[u32],
    ) -> ApiResult<Vec<usize>> {
        let mut found = Vec::new();
        if !served.is_exact {
            return Ok(found);
        }
        let mut lengths = vec![(count, false)];
        if count > 1 {
            lengths.push((count - 1, false));
            lengths.push((1, false));
        }
        for (count, answer) in lengths {
            // A template may refuse a conversation that is cut so; then there is no boundary.
            let Ok(beginning) = self.render(served, count, answer) else { continue };
            let common = common(text.as_bytes(), beginning.as_bytes());
            let cut = (0..=common).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            let cut = encode(served, &text[..cut], true)?;
            found.push(cut.iter().zip(ids).take_while(|(a, b)| a == b).count());
        }
        Ok(found)
    }
}

fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The ids of a text.
pub(crate) fn encode(served: &Served, text: &str, special: bool) -> ApiResult<Vec<u32>> {
    match &served.source.tokenizer {
        Some(tokenizer) => Ok(tokenizer.encode(text, special)?),
        None => Err(ApiError::bad(format!("the model {} has no tokenizer", served.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_text_null_or_parts() {
        let read = |value: Value| messages(json!([value]));
        let parts = json!({"role": "user", "content": [
            {"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]});
        assert_eq!(read(parts).unwrap()[0]["content"], "ab");
        let null = json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]});
        let null = read(null).unwrap();
        assert_eq!(null[0]["content"], "");
        assert_eq!(null[0]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
        let slip = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\":"}}]});
        assert_eq!(read(slip).unwrap()[0]["tool_calls"][0]["function"]["arguments"], "{\"a\":");
        for (bad, place) in [
            (json!({"role": "user"}), "messages[0].content"),
            (json!({"role": "king", "content": "x"}), "messages[0].role"),
            (json!({"content": "x"}), "messages[0].role"),
            (json!("x"), "messages[0]"),
            (json!({"role": "user", "content": 5}), "messages[0].content"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "messages[0].content[0]"),
            (
                json!({"role": "user", "content": [{"type": 1, "text": "x"}]}),
                "messages[0].content[0]",
            ),
            (json!({"role": "assistant", "tool_calls": [{}]}), "messages[0].tool_calls[0]"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}),
                "messages[0].tool_calls[0]",
            ),
            (json!({"role": "user", "tool_calls": []}), "messages[0].content"),
        ] {
            assert_eq!(read(bad).unwrap_err().param.as_deref(), Some(place));
        }
        assert!(messages(json!([])).is_err());
        assert!(messages(json!({})).is_err());
    }
}
