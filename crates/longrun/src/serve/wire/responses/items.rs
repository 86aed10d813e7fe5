//! The items of an input.
//!
//! Owns messages, thoughts, calls and their results as OpenAI's newer endpoint writes them, on their way to what
//! templates read. Refuses items of tools that run at OpenAI, by name.

use serde_json::Value;

use super::super::super::error::{ApiError, ApiResult};
use super::super::super::fields::{Fields, kind};
use super::super::super::prompt;
use super::super::history::History;

/// Reads an input: a text, or items.
pub(super) fn read(input: Value, history: &mut History) -> ApiResult<()> {
    match input {
        Value::String(text) => {
            history.say("user", &text);
            Ok(())
        }
        Value::Array(items) => {
            let mut items = items.into_iter().enumerate();
            items.try_for_each(|(i, value)| item(value, &format!("input[{i}]"), history))
        }
        other => {
            let what = format!("{} is neither text nor a list of items", kind(&other));
            Err(ApiError::field("input", what))
        }
    }
}

fn item(value: Value, place: &str, history: &mut History) -> ApiResult<()> {
    let mut item = Fields::of(value, place)?;
    match item.string("type")?.as_deref() {
        None | Some("message") => message(&mut item, history),
        Some("reasoning") => {
            let text = thought(&mut item)?;
            if !text.is_empty() {
                history.reasoning(&text);
            }
            Ok(())
        }
        Some("function_call") => {
            let (id, name) = (string(&mut item, "call_id")?, string(&mut item, "name")?);
            let arguments = item.string("arguments")?.unwrap_or_default();
            history.call(&id, &name, arguments.into());
            Ok(())
        }
        Some("function_call_output") => {
            let id = string(&mut item, "call_id")?;
            let output = prompt::content(item.take("output"), &item.path("output"))?;
            history.result(&id, &output.unwrap_or_default(), &item.path("call_id"))
        }
        Some(other) => {
            let what = format!("an item {other:?} is not supported; send messages and calls");
            Err(ApiError::field(&item.path("type"), what))
        }
    }
}

fn string(item: &mut Fields, name: &str) -> ApiResult<String> {
    let missing = ApiError::field(&item.path(name), "it is missing");
    item.string(name)?.ok_or(missing)
}

fn message(item: &mut Fields, history: &mut History) -> ApiResult<()> {
    let role = string(item, "role")?;
    let content = prompt::content(item.take("content"), &item.path("content"))?;
    let missing = || ApiError::field(&item.path("content"), "it is missing");
    let content = content.ok_or_else(missing)?;
    match role.as_str() {
        "assistant" => {
            history.message(&content);
            Ok(())
        }
        "user" | "system" | "developer" => {
            history.say(&role, &content);
            Ok(())
        }
        other => {
            let what = format!("{other:?} is none of user, assistant, system, developer");
            Err(ApiError::field(&item.path("role"), what))
        }
    }
}

/// What was thought: as it was, or summed up. What another server has encrypted for itself is nothing.
fn thought(item: &mut Fields) -> ApiResult<String> {
    item.string("encrypted_content")?;
    let (whole, summary) = (texts(item, "content")?, texts(item, "summary")?);
    Ok(if whole.is_empty() { summary } else { whole }.join("\n"))
}

fn texts(item: &mut Fields, name: &str) -> ApiResult<Vec<String>> {
    let place = item.path(name);
    let parts = item.list(name)?.unwrap_or_default().into_iter().enumerate();
    let text = |(i, part)| string(&mut Fields::of(part, &format!("{place}[{i}]"))?, "text");
    parts.map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(input: Value) -> ApiResult<Vec<Value>> {
        let mut history = History::default();
        read(input, &mut history)?;
        history.finish("input")
    }

    #[test]
    fn items_become_messages() {
        assert_eq!(messages(json!("hi")).unwrap(), [json!({"role": "user", "content": "hi"})]);
        let all = messages(json!([
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}],
             "content": [{"type": "reasoning_text", "text": "long"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "42"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": "?"},
            {"role": "assistant", "content": "c"},
            {"role": "assistant", "content": "d"},
            {"role": "user", "content": "e"},
        ]))
        .unwrap();
        let roles: Vec<_> = all.iter().map(|m| m["role"].as_str().unwrap()).collect();
        let expected = ["system", "user", "assistant", "tool", "assistant", "assistant", "user"];
        assert_eq!(roles, expected);
        assert_eq!(
            (&all[2]["reasoning_content"], &all[2]["content"]),
            (&json!("long"), &json!("b"))
        );
        assert_eq!(all[2]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!((&all[3]["content"], &all[3]["name"]), (&json!("42"), &json!("f")));
        assert_eq!(all[4]["reasoning_content"], "short");
        assert_eq!(all[5]["content"], "d");
    }

    #[test]
    fn wrong_items_are_named() {
        for (bad, place) in [
            (json!(5), "input"),
            (json!([]), "input"),
            (json!(["x"]), "input[0]"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
            (json!([{"role": "king", "content": "x"}]), "input[0].role"),
            (json!([{"role": "user"}]), "input[0].content"),
            (
                json!([{"role": "user", "content": [{"type": "input_image"}]}]),
                "input[0].content[0]",
            ),
            (json!([{"type": "function_call", "name": "f"}]), "input[0].call_id"),
            (
                json!([{"type": "function_call_output", "call_id": "c", "output": "x"}]),
                "input[0].call_id",
            ),
            (json!([{"type": "reasoning", "summary": "x"}]), "input[0].summary"),
            (
                json!([{"type": "reasoning", "content": [{"text": "x"}], "summary": [{"text": 1}]}]),
                "input[0].summary[0].text",
            ),
            (
                json!([{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]),
                "input[0].arguments",
            ),
        ] {
            let error = messages(bad.clone()).expect_err(&bad.to_string());
            assert_eq!(error.param.as_deref(), Some(place), "{bad}");
        }
    }
}
