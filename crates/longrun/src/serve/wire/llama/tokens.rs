//! Text to ids and back: `/tokenize`, `/detokenize`, `/apply-template`, and prompts that are text, ids, or both.
//!
//! Owns both spellings of tokenizing, llama-server's and vLLM's: the fields that are there say which one is meant.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use longrun_lm::text::Tokenizer;
use serde_json::{Value, json};

use super::super::super::error::{ApiError, ApiResult};
use super::super::super::fields::{Fields, id, kind};
use super::super::super::form;
use super::super::super::http::App;
use super::super::super::prompt::{self, Chat};
use super::super::super::served::Served;
use super::super::super::tasks::background;
use super::super::with_ignored;

/// The most prompts of one request.
const MOST_PROMPTS: usize = 64;

/// A part of a prompt.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Id(u32),
}

/// The prompts of a request.
pub(super) fn prompts(value: Value) -> ApiResult<Vec<Vec<Part>>> {
    let wrong = |what: String| ApiError::field("prompt", what);
    let prompts = match value {
        Value::Array(all) if all.iter().any(Value::is_number) => vec![parts("prompt", all.into())?],
        Value::Array(all) => {
            all.into_iter().map(|value| parts("prompt", value)).collect::<ApiResult<_>>()?
        }
        one => vec![parts("prompt", one)?],
    };
    match prompts.len() {
        0 => Err(wrong("there is none".into())),
        n if n > MOST_PROMPTS => Err(wrong(format!("{n} are more than {MOST_PROMPTS}"))),
        _ => Ok(prompts),
    }
}

/// One prompt: text, ids and texts, or an object that holds its text.
fn parts(name: &str, value: Value) -> ApiResult<Vec<Part>> {
    let part = |value: Value| match value {
        Value::String(text) => Ok(Part::Text(text)),
        other => match id(&other) {
            Some(id) => Ok(Part::Id(id)),
            None => {
                let what = format!("{} is neither text nor a token id", kind(&other));
                Err(ApiError::field(name, what))
            }
        },
    };
    match value {
        Value::Array(all) if all.is_empty() => Err(ApiError::field(name, "a list of it is empty")),
        Value::Array(all) => all.into_iter().map(part).collect(),
        Value::Object(_) => {
            let mut fields = Fields::of(value, name)?;
            let text = fields.string("prompt_string")?;
            let text = text.ok_or_else(|| ApiError::field(name, "it has no prompt_string"))?;
            // Unknown ones would change the prompt: images and sounds.
            fields.finish(true)?;
            Ok(vec![Part::Text(text)])
        }
        Value::String(text) => Ok(vec![Part::Text(text)]),
        other => Err(ApiError::field(name, format!("{} is neither text nor a list", kind(&other)))),
    }
}

/// The ids of a prompt, which is in the field `name`. What begins with an id has the beginning that its writer wants.
pub(super) fn ids(
    served: &Served,
    (name, parts): (&str, &[Part]),
    framed: bool,
    special: bool,
) -> ApiResult<Vec<u32>> {
    let tokenizer = tokenizer(served);
    let mut ids = Vec::new();
    for part in parts {
        match part {
            Part::Id(id) if (*id as usize) < served.vocab => ids.push(*id),
            Part::Id(id) => {
                let what = format!("token {id} is outside of the vocabulary of {}", served.vocab);
                return Err(ApiError::field(name, what));
            }
            Part::Text(text) => ids.extend(tokenizer.clone()?.encode_bare(text, special)?),
        }
    }
    let begins = matches!(parts.first(), Some(Part::Text(_)));
    Ok(if begins && framed { tokenizer?.framed(ids) } else { ids })
}

fn tokenizer(served: &Served) -> ApiResult<Arc<Tokenizer>> {
    let what = || ApiError::bad(format!("the model {} has no tokenizer", served.name));
    served.source.tokenizer.clone().ok_or_else(what)
}

/// A conversation as the template's fields have it.
fn chat(fields: &mut Fields) -> ApiResult<Chat> {
    let messages = prompt::messages(fields.required("messages")?)?;
    let (_, written) = form::tools(fields)?;
    let extra = fields.object("chat_template_kwargs")?.map(Fields::into_rest);
    let tools = if written.is_empty() { Value::Null } else { written.into() };
    Ok(Chat { messages, tools, extra: extra.unwrap_or_default() })
}

/// The text that a conversation becomes.
fn rendered(fields: &mut Fields, served: &Served, chat: &Chat) -> ApiResult<String> {
    let begin = fields.bool("add_generation_prompt")?.unwrap_or(true);
    if begin {
        Ok(chat.prompt(served)?.text)
    } else {
        chat.render(served, chat.messages.len(), false)
    }
}

/// `POST /apply-template`.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.get(model.as_deref()).await?;
    background(move || {
        let chat = chat(&mut fields)?;
        let text = rendered(&mut fields, &served, &chat)?;
        let ignored = fields.finish(app.strict)?;
        Ok(with_ignored(Json(json!({"prompt": text})).into_response(), &ignored))
    })
    .await
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.get(model.as_deref()).await?;
    background(move || {
        let ids = if fields.has("content") {
            let content = parts("content", fields.required("content")?)?;
            let framed = fields.bool("add_special")?.unwrap_or(false);
            let special = fields.bool("parse_special")?.unwrap_or(true);
            ids(&served, ("content", &content), framed, special)?
        } else if fields.has("messages") {
            let chat = chat(&mut fields)?;
            let framed = fields.bool("add_special_tokens")?.unwrap_or(false);
            let text = rendered(&mut fields, &served, &chat)?;
            ids(&served, ("messages", &[Part::Text(text)]), framed, true)?
        } else {
            let Some(text) = fields.string("prompt")? else {
                let what = "it is missing, and so are prompt and messages";
                return Err(ApiError::field("content", what));
            };
            let framed = fields.bool("add_special_tokens")?.unwrap_or(true);
            ids(&served, ("prompt", &[Part::Text(text)]), framed, true)?
        };
        let pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let texts = fields.bool("return_token_strs")?.unwrap_or(false);
        let ignored = fields.finish(app.strict)?;
        let piece = |&id: &u32| json!({"id": id, "piece": piece(&served, id)});
        let tokens: Value = if pieces { ids.iter().map(piece).collect() } else { json!(ids) };
        let mut answer =
            json!({"tokens": tokens, "count": ids.len(), "max_model_len": served.context});
        if texts {
            let text = |id: &u32| super::super::logprobs::text(&served, *id).into();
            answer["token_strs"] = ids.iter().map(text).collect::<Vec<Value>>().into();
        }
        Ok(with_ignored(Json(answer).into_response(), &ignored))
    })
    .await
}

/// The text of a token, or its bytes if they are no text alone.
fn piece(served: &Served, id: u32) -> Value {
    let tokenizer = served.source.tokenizer.as_ref();
    let bytes = tokenizer.and_then(|t| t.token_bytes(id)).unwrap_or_default();
    match std::str::from_utf8(&bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.to_vec().into(),
    }
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    let model = fields.string("model")?;
    let served = app.models.get(model.as_deref()).await?;
    background(move || {
        let tokens = fields.list("tokens")?;
        let tokens = tokens.ok_or_else(|| ApiError::field("tokens", "it is missing"))?;
        let known = |v: &Value| id(v).filter(|id| (*id as usize) < served.vocab);
        let ids: Option<Vec<u32>> = tokens.iter().map(known).collect();
        let ids = ids.ok_or_else(|| ApiError::field("tokens", "one of them is no token id"))?;
        let ignored = fields.finish(app.strict)?;
        let text = tokenizer(&served)?.decode(&ids, false);
        let answer = json!({"content": text, "prompt": text});
        Ok(with_ignored(Json(answer).into_response(), &ignored))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_text_ids_or_both() {
        let text = |text: &str| Part::Text(text.into());
        for (value, wanted) in [
            (json!("a"), vec![vec![text("a")]]),
            (json!([1, 2]), vec![vec![Part::Id(1), Part::Id(2)]]),
            (json!([1, "a"]), vec![vec![Part::Id(1), text("a")]]),
            (json!(["a", "b"]), vec![vec![text("a")], vec![text("b")]]),
            (json!([[1, "a"], "b"]), vec![vec![Part::Id(1), text("a")], vec![text("b")]]),
            (json!([{"prompt_string": "a"}, "b"]), vec![vec![text("a")], vec![text("b")]]),
            (json!({"prompt_string": "a"}), vec![vec![text("a")]]),
        ] {
            assert_eq!(prompts(value.clone()).unwrap(), wanted, "{value}");
        }
        for bad in [
            json!([]),
            json!({}),
            json!(true),
            json!(7),
            json!([-1]),
            json!([1.5]),
            json!([4_294_967_296_u64]),
            json!([[[1]]]),
            json!([[]]),
            json!({"prompt_string": "a", "multimodal_data": ["x"]}),
            json!(vec!["a"; 65]),
        ] {
            assert!(prompts(bad.clone()).is_err(), "{bad}");
        }
    }
}
