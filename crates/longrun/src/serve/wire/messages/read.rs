//! The body of a request for a message.
//!
//! Owns content blocks, tools and thinking as Anthropic writes them, on their way to what templates read. Refuses blocks
//! that are no text, and tools that run at Anthropic.

use std::sync::Arc;

use longrun_lm::grammar::Tool;
use serde_json::{Value, json};

use super::super::super::error::{ApiError, ApiResult};
use super::super::super::fields::{Fields, kind};
use super::super::super::form::{self, Form, ToolChoice, Tools};
use super::super::super::prompt::Chat;
use super::super::super::served::Served;
use super::super::history::History;
use super::super::turn::{Limit, Rest, Turn, params, shown, think, written};

/// A request, read.
pub(super) struct Request {
    pub(super) turn: Turn,
    pub(super) stream: bool,
    /// The client wants to see what the model thinks.
    pub(super) shows_thinking: bool,
}

/// How the model is to think.
struct Thinking {
    on: Option<bool>,
    budget: Option<usize>,
    shown: bool,
}

/// A request for an answer.
pub(super) fn answer(fields: &mut Fields, served: Arc<Served>) -> ApiResult<Request> {
    let stream = fields.bool("stream")?.unwrap_or(false);
    let most = fields.count("max_tokens")?;
    let most = most.ok_or_else(|| ApiError::field("max_tokens", "it is missing"))?;
    if most == 0 {
        return Err(ApiError::field("max_tokens", "0 is less than 1"));
    }
    let stop = fields.strings("stop_sequences")?;
    let params = params(fields, &served, None)?;
    let rest = Rest::read(fields)?;
    let (turn, thinking) = turn(fields, served, Some(most))?;
    let turn = Turn { limit: Limit::AtMost(most), params, stop, rest, ..turn };
    Ok(Request { turn, stream, shows_thinking: thinking.shown })
}

/// What of a request makes its prompt.
pub(super) fn prompt(fields: &mut Fields, served: Arc<Served>) -> ApiResult<Turn> {
    Ok(turn(fields, served, None)?.0)
}

fn turn(
    fields: &mut Fields,
    served: Arc<Served>,
    most: Option<usize>,
) -> ApiResult<(Turn, Thinking)> {
    let mut history = History::default();
    if let Some(system) = fields.take("system") {
        history.say("system", &text(system, "system")?);
    }
    messages(fields.required("messages")?, &mut history)?;
    let (all, tools) = tools(fields)?;
    let (choice, parallel) = choice(fields, &all)?;
    let thinking = thinking(fields, most)?;
    let mut extra =
        fields.object("chat_template_kwargs")?.map(Fields::into_rest).unwrap_or_default();
    let (mut answer, mut effort) = (None, None);
    if let Some(mut config) = fields.object("output_config")? {
        effort = config.string("effort")?;
        answer = config.object("format")?.map_or(Ok(None), form::format)?;
        config.finish(true)?;
    }
    think(&mut extra, thinking.on, effort);
    let params = served.source.defaults.params.clone();
    let turn = Turn {
        served,
        chat: Chat { messages: history.finish("messages")?, tools: shown(tools), extra },
        chat_field: "messages",
        form: Form {
            answer,
            place: "output_config.format",
            tools: Tools { all, choice, parallel },
            reasoning: thinking.budget,
        },
        limit: Limit::Room,
        params,
        stop: Vec::new(),
        rest: Rest::default(),
    };
    Ok((turn, thinking))
}

fn messages(value: Value, history: &mut History) -> ApiResult<()> {
    let Value::Array(messages) = value else {
        return Err(ApiError::field("messages", format!("{} is no list", kind(&value))));
    };
    for (i, message) in messages.into_iter().enumerate() {
        let mut message = Fields::of(message, &format!("messages[{i}]"))?;
        let role = message.string("role")?;
        let place = message.path("content");
        let content = message.required("content")?;
        match role.as_deref() {
            Some("user") => user(content, &place, history)?,
            Some("assistant") => assistant(content, &place, history)?,
            _ => {
                let what = format!("{} is neither user nor assistant", role.unwrap_or_default());
                return Err(ApiError::field(&message.path("role"), what));
            }
        }
    }
    Ok(())
}

/// The blocks of some content: text alone is one of them.
fn blocks(content: Value, place: &str) -> ApiResult<Vec<(String, Fields)>> {
    let blocks = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(blocks) => blocks,
        other => {
            let what = format!("{} is neither text nor a list of blocks", kind(&other));
            return Err(ApiError::field(place, what));
        }
    };
    let named = |(i, block)| {
        let mut block = Fields::of(block, &format!("{place}[{i}]"))?;
        let kind = block.string("type")?;
        let missing = || ApiError::field(&block.path("type"), "it is missing");
        Ok((kind.ok_or_else(missing)?, block))
    };
    blocks.into_iter().enumerate().map(named).collect()
}

fn string(block: &mut Fields, name: &str) -> ApiResult<String> {
    let missing = ApiError::field(&block.path(name), "it is missing");
    block.string(name)?.ok_or(missing)
}

fn refuse(kind: &str, block: &Fields, instead: &str) -> ApiError {
    ApiError::field(&block.path("type"), format!("{kind:?} is not supported here; {instead}"))
}

/// Text, or the text of blocks, each on lines of its own.
fn text(content: Value, place: &str) -> ApiResult<String> {
    let mut all = Vec::new();
    for (kind, mut block) in blocks(content, place)? {
        match kind.as_str() {
            "text" => all.push(string(&mut block, "text")?),
            other => return Err(refuse(other, &block, "send text")),
        }
    }
    all.retain(|text| !text.is_empty());
    Ok(all.join("\n"))
}

fn user(content: Value, place: &str, history: &mut History) -> ApiResult<()> {
    for (kind, mut block) in blocks(content, place)? {
        match kind.as_str() {
            "text" => history.user(&string(&mut block, "text")?),
            "tool_result" => {
                let id = string(&mut block, "tool_use_id")?;
                let place = block.path("content");
                let content = block.take("content").map(|content| text(content, &place));
                let content = content.transpose()?.unwrap_or_default();
                let failed = block.bool("is_error")?.unwrap_or(false);
                history.result(&id, &outcome(content, failed), &block.path("tool_use_id"))?;
            }
            other => return Err(refuse(other, &block, "send text")),
        }
    }
    Ok(())
}

/// No template has a place for failure: it is said in words, unless the result says it.
fn outcome(content: String, failed: bool) -> String {
    let says = |text: &str| {
        let word = text.trim_start().get(..5);
        word.is_some_and(|word| word.eq_ignore_ascii_case("error"))
    };
    match (failed, content.is_empty()) {
        (true, true) => "Error".into(),
        (true, false) if !says(&content) => format!("Error: {content}"),
        _ => content,
    }
}

fn assistant(content: Value, place: &str, history: &mut History) -> ApiResult<()> {
    history.assistant_speaks();
    for (kind, mut block) in blocks(content, place)? {
        match kind.as_str() {
            "text" => history.content(&string(&mut block, "text")?),
            "thinking" => {
                history.reasoning(&string(&mut block, "thinking")?);
                // Nothing is signed here, so nobody has to be believed.
                block.string("signature")?;
            }
            // Written by another server, for itself.
            "redacted_thinking" => _ = block.string("data")?,
            "tool_use" => {
                let (id, name) = (string(&mut block, "id")?, string(&mut block, "name")?);
                let input = block.object("input")?.map(Fields::into_rest).unwrap_or_default();
                history.call(&id, &name, input.into());
            }
            other => return Err(refuse(other, &block, "tools run at the client")),
        }
    }
    Ok(())
}

/// Tools, and how templates are given them.
fn tools(fields: &mut Fields) -> ApiResult<(Vec<Tool>, Vec<Value>)> {
    let (mut all, mut shown) = (Vec::new(), Vec::new());
    for (i, tool) in fields.list("tools")?.unwrap_or_default().into_iter().enumerate() {
        let mut tool = Fields::of(tool, &format!("tools[{i}]"))?;
        match tool.string("type")?.as_deref() {
            None | Some("custom") => {}
            Some(other) => {
                return Err(refuse(other, &tool, "describe the tool with an input_schema"));
            }
        }
        let name = string(&mut tool, "name")?;
        let description = tool.string("description")?;
        let schema = tool.object("input_schema")?;
        let missing = || ApiError::field(&tool.path("input_schema"), "it is missing");
        let parameters = schema.ok_or_else(missing)?.into_rest().into();
        let strict = tool.bool("strict")?.unwrap_or(false);
        let tool = Tool { name, parameters, strict };
        shown.push(written(&tool, description));
        all.push(tool);
    }
    Ok((all, shown))
}

/// Which tools are called, and whether several may be in one answer.
fn choice(fields: &mut Fields, all: &[Tool]) -> ApiResult<(ToolChoice, Option<bool>)> {
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Ok((ToolChoice::Auto, None));
    };
    let parallel = choice.bool("disable_parallel_tool_use")?.map(|single| !single);
    let how = match string(&mut choice, "type")?.as_str() {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => form::tool_choice(&json!({"name": choice.take("name")}), all)?,
        other => {
            let what = format!("{other:?} is none of auto, any, tool, none");
            return Err(ApiError::field(&choice.path("type"), what));
        }
    };
    choice.finish(true)?;
    Ok((how, parallel))
}

fn thinking(fields: &mut Fields, most: Option<usize>) -> ApiResult<Thinking> {
    let Some(mut thinking) = fields.object("thinking")? else {
        return Ok(Thinking { on: None, budget: None, shown: true });
    };
    let on = match string(&mut thinking, "type")?.as_str() {
        "enabled" => Some(true),
        "disabled" => Some(false),
        // As the model's template likes.
        "adaptive" => None,
        other => {
            let what = format!("{other:?} is none of enabled, disabled, adaptive");
            return Err(ApiError::field(&thinking.path("type"), what));
        }
    };
    let budget = thinking.count("budget_tokens")?;
    if budget.zip(most).is_some_and(|(budget, most)| budget >= most) {
        let what = "it has to be less than max_tokens";
        return Err(ApiError::field("thinking.budget_tokens", what));
    }
    let shown = match thinking.string("display")?.as_deref() {
        None | Some("summarized") => true,
        Some("omitted") => false,
        Some(other) => {
            let what = format!("{other:?} is neither summarized nor omitted");
            return Err(ApiError::field("thinking.display", what));
        }
    };
    thinking.finish(true)?;
    Ok(Thinking { on, budget: budget.filter(|_| on != Some(false)), shown })
}

#[cfg(test)]
mod tests;
