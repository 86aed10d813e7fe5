//! The body of a request for a response.
//!
//! Owns all fields but the items of the input, and what a response repeats of them. Refuses tools that run at OpenAI.

use std::sync::Arc;

use longrun_lm::grammar::{Grammar, Tool};
use serde_json::{Map, Value, json};

use super::super::super::error::{ApiError, ApiResult};
use super::super::super::fields::Fields;
use super::super::super::form::{self, Form, ToolChoice, Tools};
use super::super::super::prompt::Chat;
use super::super::super::served::Served;
use super::super::history::History;
use super::super::turn::{Limit, Rest, Turn, params, shown, think, written};
use super::super::{alternatives, new_id, now};
use super::items;

/// A request, read.
pub(super) struct Request {
    pub(super) turn: Turn,
    pub(super) stream: bool,
    pub(super) logprobs: bool,
    /// The response before anything is known of it.
    pub(super) echo: Value,
}

/// Reads all fields that act. What the response repeats is taken from the body as the client wrote it.
pub(super) fn request(fields: &mut Fields, served: Arc<Served>) -> ApiResult<Request> {
    stateless(fields)?;
    let mut echo = echo(fields, &served.name);
    let stream = stream(fields)?;
    let mut history = History::default();
    let instructions = fields.string("instructions")?;
    if let Some(text) = &instructions {
        history.say("system", text);
    }
    items::read(fields.required("input")?, &mut history)?;
    let parallel = fields.bool("parallel_tool_calls")?;
    let (all, tools) = tools(fields)?;
    let choice = fields.take("tool_choice");
    let choice = choice.map_or(Ok(ToolChoice::Auto), |how| form::tool_choice(&how, &all))?;
    let most = fields.count("max_output_tokens")?;
    let logprobs = logprobs(fields)?;
    let params = params(fields, &served, logprobs)?;
    let mut extra =
        fields.object("chat_template_kwargs")?.map(Fields::into_rest).unwrap_or_default();
    let reasoning = reasoning(fields, &mut extra)?;
    let answer = format(fields)?;
    let rest = Rest::read(fields)?;
    echo["temperature"] = params.temperature.into();
    echo["top_p"] = params.top_p.into();
    echo["top_logprobs"] = logprobs.unwrap_or(0).into();
    let turn = Turn {
        served,
        chat: Chat { messages: history.finish("input")?, tools: shown(tools), extra },
        chat_field: "input",
        form: Form {
            answer,
            place: "text.format",
            tools: Tools { all, choice, parallel },
            reasoning,
        },
        limit: most.map_or(Limit::Room, Limit::Exactly),
        params,
        stop: Vec::new(),
        rest,
    };
    Ok(Request { turn, stream, logprobs: logprobs.is_some(), echo })
}

/// The response before anything is known of it: it repeats what the client wrote.
fn echo(fields: &Fields, model: &str) -> Value {
    let written = |name: &str| fields.peek(name).cloned();
    let or = |name: &str, value: Value| written(name).unwrap_or(value);
    json!({
        "id": new_id("resp_"),
        "object": "response",
        "created_at": now(),
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": written("instructions"),
        "max_output_tokens": written("max_output_tokens"),
        "metadata": or("metadata", json!({})),
        "model": model,
        "output": [],
        "parallel_tool_calls": or("parallel_tool_calls", true.into()),
        "previous_response_id": null,
        "reasoning": or("reasoning", json!({"effort": null, "summary": null})),
        "store": false,
        "temperature": null,
        "text": or("text", json!({"format": {"type": "text"}})),
        "tool_choice": or("tool_choice", "auto".into()),
        "tools": or("tools", json!([])),
        "top_logprobs": null,
        "top_p": null,
        "truncation": "disabled",
        "usage": null,
        "user": written("user"),
    })
}

/// Refuses what would need a store; takes the values that ask for none.
fn stateless(fields: &mut Fields) -> ApiResult<()> {
    if fields.bool("background")? == Some(true) {
        return Err(ApiError::field("background", "not supported; stay connected, or stream"));
    }
    if let Some(other) = fields.string("truncation")?.filter(|how| how != "disabled") {
        let what = format!("{other:?} is not supported; shorten the conversation");
        return Err(ApiError::field("truncation", what));
    }
    if fields.has("prompt") {
        return Err(ApiError::field("prompt", "not supported; no prompts are stored here"));
    }
    // It bounds tools that run at the server, of which there are none.
    fields.count("max_tool_calls")?;
    Ok(())
}

fn stream(fields: &mut Fields) -> ApiResult<bool> {
    if let Some(mut options) = fields.object("stream_options")? {
        // Obfuscation against eavesdroppers is for lines that leave the machine.
        options.bool("include_obfuscation")?;
        options.finish(true)?;
    }
    Ok(fields.bool("stream")?.unwrap_or(false))
}

/// How many alternatives stand beside each token, if its probability is wanted.
fn logprobs(fields: &mut Fields) -> ApiResult<Option<usize>> {
    let top = fields.count("top_logprobs")?.map(|top| alternatives("top_logprobs", top));
    let top = top.transpose()?.unwrap_or(0);
    let mut wanted = top > 0;
    for what in fields.strings("include")? {
        match what.as_str() {
            "message.output_text.logprobs" => wanted = true,
            // It is in the response as it is.
            "reasoning.encrypted_content" => {}
            other => {
                let what = format!("{other:?} is not supported; there is nothing of that kind");
                return Err(ApiError::field("include", what));
            }
        }
    }
    Ok(wanted.then_some(top))
}

/// How much is thought: an effort, which is the template's affair, and a limit in tokens.
fn reasoning(fields: &mut Fields, extra: &mut Map<String, Value>) -> ApiResult<Option<usize>> {
    let mut most = fields.count("reasoning_budget")?;
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(most) };
    think(extra, None, reasoning.string("effort")?);
    most = reasoning.count("max_tokens")?.or(most);
    // What the model thinks is in the response as it is: there is nothing to sum up.
    reasoning.string("summary")?;
    reasoning.string("generate_summary")?;
    reasoning.finish(true)?;
    Ok(most)
}

fn format(fields: &mut Fields) -> ApiResult<Option<Grammar>> {
    let Some(mut text) = fields.object("text")? else { return Ok(None) };
    let format = text.object("format")?.map_or(Ok(None), form::format)?;
    // No template is known that could ask for it.
    text.string("verbosity")?;
    text.finish(true)?;
    Ok(format)
}

/// Tools, and how templates are given them.
fn tools(fields: &mut Fields) -> ApiResult<(Vec<Tool>, Vec<Value>)> {
    let (mut all, mut shown) = (Vec::new(), Vec::new());
    for (i, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(tool, &format!("tools[{i}]"))?;
        let kind = tool.string("type")?.unwrap_or_default();
        if kind != "function" {
            let what = format!("{kind:?} is not supported; only functions are, run by the client");
            return Err(ApiError::field(&tool.path("type"), what));
        }
        let missing = ApiError::field(&tool.path("name"), "it is missing");
        let name = tool.string("name")?.ok_or(missing)?;
        let description = tool.string("description")?;
        let parameters = tool.object("parameters")?.map(Fields::into_rest);
        let parameters = parameters.map_or(Value::Null, Value::Object);
        let strict = tool.bool("strict")?.unwrap_or(false);
        let tool = Tool { name, parameters, strict };
        shown.push(written(&tool, description));
        all.push(tool);
    }
    Ok((all, shown))
}
