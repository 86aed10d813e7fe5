//! `POST /v1/chat/completions`.
//!
//! Owns OpenAI's words for a conversation that goes on: messages, tools, deltas, finish reasons.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use longrun_lm::answer::Delta;
use serde_json::{Map, Value, json};

use super::super::answering::{self, Ask, Cause, Finish, Piece, Pieces, Reading};
use super::super::error::{ApiError, ApiResult};
use super::super::fields::Fields;
use super::super::form::{self, Form};
use super::super::http::App;
use super::super::prompt::{self, Chat};
use super::super::served::Served;
use super::super::sse;
use super::super::tasks::background;
use super::{
    Common, Tally, alternatives, logprobs, new_id, now, progress_object, stop_reason, with_ignored,
};

/// A request, read.
struct Request {
    served: Arc<Served>,
    common: Common,
    chat: Chat,
    form: Form,
    logprobs: bool,
    ignored: Vec<String>,
}

/// Answers a conversation.
pub(crate) async fn chat(State(app): State<Arc<App>>, body: Bytes) -> ApiResult<Response> {
    let mut fields = Fields::parse(&body)?;
    #[cfg(feature = "leak-lab")]
    let fault = super::super::lab::fault(&mut fields)?;
    let model = fields.string("model")?;
    let served = app.models.writer(model.as_deref()).await?;
    let request = read(fields, served, app.strict)?;
    let ticket = app.admission.enter()?;
    let (request, prompt, mask) = background(move || {
        let prompt = request.chat.prompt(&request.served)?;
        let mask = request.form.mask(&request.served, prompt.in_reasoning)?;
        Ok((request, prompt, mask))
    })
    .await?;
    #[cfg(feature = "leak-lab")]
    let mask = fault.or(mask);
    let Request { served, common, form, logprobs, ignored, .. } = request;
    let Common { stream, include_usage, include_progress, choices, .. } = common;
    let reading = Reading::Answer {
        format: Arc::clone(&served.format),
        tools: form.tools.schemas(),
        in_reasoning: prompt.in_reasoning,
        single: form.tools.parallel == Some(false),
    };
    let ask = Ask {
        prompt: prompt.ids,
        boundaries: prompt.boundaries,
        max_tokens: common.max_tokens,
        choices,
        params: common.params,
        stop: common.stop,
        reading,
        loops: common.loops,
        mask,
        priority: common.priority,
        ignore_eos: common.ignore_eos,
        score: None,
    };
    let pieces = answering::start(&served, ask, ticket)?;
    let answer = Answer::new(served, pieces, logprobs, choices);
    let response = if stream {
        sse::respond(move |out| answer.stream(out, include_usage, include_progress))
    } else {
        Json(answer.whole().await?).into_response()
    };
    Ok(with_ignored(response, &ignored))
}

fn read(mut fields: Fields, served: Arc<Served>, strict: bool) -> ApiResult<Request> {
    let messages = prompt::messages(fields.required("messages")?)?;
    let (tools, written) = form::tools(&mut fields)?;
    let mut extra =
        fields.object("chat_template_kwargs")?.map(Fields::into_rest).unwrap_or_default();
    let reasoning = reasoning(&mut fields, &mut extra)?;
    let mut common = Common::read(&mut fields, &served)?;
    let logprobs = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs")?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(ApiError::field("top_logprobs", "it wants logprobs to be true"));
    }
    if logprobs {
        common.params.logprobs = Some(alternatives("top_logprobs", top.unwrap_or(0))?);
    }
    let ignored = fields.finish(strict)?;
    let form = Form { answer: common.format.take(), tools, reasoning, ..Form::default() };
    let tools = if written.is_empty() { Value::Null } else { written.into() };
    let chat = Chat { messages, tools, extra };
    Ok(Request { served, common, chat, form, logprobs, ignored })
}

/// How much is thought: an effort, which is the template's affair, and a limit in tokens.
fn reasoning(fields: &mut Fields, extra: &mut Map<String, Value>) -> ApiResult<Option<usize>> {
    let mut effort = fields.string("reasoning_effort")?;
    let mut most = fields.count("reasoning_budget")?;
    if let Some(mut inner) = fields.object("reasoning")? {
        effort = inner.string("effort")?.or(effort);
        most = inner.count("max_tokens")?.or(most);
        inner.finish(true)?;
    }
    if let Some(effort) = effort {
        extra.entry("enable_thinking").or_insert((effort != "none").into());
        extra.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(most)
}

/// One choice, as far as it has come.
#[derive(Default)]
struct Choice {
    reasoning: String,
    content: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
    finish: Option<(Finish, Option<Cause>)>,
}

/// An answer on its way.
struct Answer {
    served: Arc<Served>,
    pieces: Pieces,
    logprobs: bool,
    choices: Vec<Choice>,
    tally: Tally,
    id: String,
    created: u64,
}

impl Answer {
    fn new(served: Arc<Served>, pieces: Pieces, logprobs: bool, choices: usize) -> Self {
        let tally = Tally::new(pieces.prompt_tokens);
        let choices = std::iter::repeat_with(Choice::default).take(choices).collect();
        let (id, created) = (new_id("chatcmpl-"), now());
        Self { served, pieces, logprobs, choices, tally, id, created }
    }

    /// The object that every answer and every chunk is.
    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": self.served.fingerprint(),
            "choices": choices,
        })
    }

    async fn whole(mut self) -> ApiResult<Value> {
        while let Some(piece) = self.pieces.next().await {
            self.tally.take(&piece);
            match piece {
                Piece::Token { choice, token } => {
                    if self.logprobs {
                        let entry = logprobs::entry(&self.served, &token.chosen);
                        self.choices[choice].logprobs.push(entry);
                    }
                    token.deltas.into_iter().for_each(|delta| self.choices[choice].add(delta));
                }
                Piece::Ended { choice, deltas, finish, cause } => {
                    let choice = &mut self.choices[choice];
                    deltas.into_iter().for_each(|delta| choice.add(delta));
                    choice.finish = Some((finish, cause));
                }
                Piece::Failed(error) => return Err(error),
                Piece::Started { .. }
                | Piece::Progress { .. }
                | Piece::Scored(_)
                | Piece::Done { .. } => {}
            }
        }
        let choices = std::mem::take(&mut self.choices).into_iter().enumerate();
        let choices = choices.map(|(i, choice)| choice.object(i, self.logprobs)).collect();
        let mut object = self.object("chat.completion", choices);
        object["usage"] = self.tally.usage();
        object["longrun"] = self.tally.own();
        object["timings"] = self.tally.timings();
        Ok(object)
    }

    async fn stream(mut self, out: sse::Writer, usage: bool, progress: bool) {
        for i in 0..self.choices.len() {
            let delta = json!({"role": "assistant", "content": ""});
            out.data(&self.chunk(i, delta, None));
        }
        loop {
            let piece = tokio::select! {
                biased;
                () = out.gone() => return,
                piece = self.pieces.next() => piece,
            };
            let Some(piece) = piece else { break };
            self.tally.take(&piece);
            let goes_on = match piece {
                Piece::Token { choice, token } => {
                    if self.logprobs {
                        let entry = logprobs::entry(&self.served, &token.chosen);
                        self.choices[choice].logprobs.push(entry);
                    }
                    self.deltas(&out, choice, token.deltas)
                }
                Piece::Ended { choice, deltas, finish, cause } => {
                    self.deltas(&out, choice, deltas);
                    out.data(&self.chunk(choice, json!({}), Some((finish, cause))))
                }
                Piece::Progress { done, total } if progress => {
                    let mut chunk = self.object("chat.completion.chunk", json!([]));
                    chunk["prompt_progress"] = progress_object(&self.tally, done, total);
                    out.data(&chunk)
                }
                Piece::Failed(error) => {
                    out.data(&error.body());
                    return;
                }
                Piece::Started { .. }
                | Piece::Progress { .. }
                | Piece::Scored(_)
                | Piece::Done { .. } => true,
            };
            if !goes_on {
                return;
            }
        }
        if usage {
            let mut chunk = self.object("chat.completion.chunk", json!([]));
            chunk["usage"] = self.tally.usage();
            chunk["longrun"] = self.tally.own();
            chunk["timings"] = self.tally.timings();
            out.data(&chunk);
        }
        out.text("[DONE]");
    }

    /// Sends deltas, with the log-probabilities that have gathered.
    fn deltas(&mut self, out: &sse::Writer, choice: usize, deltas: Vec<Delta>) -> bool {
        let mut goes_on = true;
        for delta in deltas {
            if let Some(delta) = self.choices[choice].delta(delta) {
                goes_on = out.data(&self.chunk(choice, delta, None));
            }
        }
        goes_on
    }

    fn chunk(&mut self, index: usize, delta: Value, end: Option<(Finish, Option<Cause>)>) -> Value {
        let mut choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": null,
            "finish_reason": end.as_ref().map(|(finish, _)| finish_reason(*finish)),
        });
        if let Some((_, cause)) = &end {
            choice["stop_reason"] = stop_reason(cause.as_ref());
        }
        let gathered = std::mem::take(&mut self.choices[index].logprobs);
        if !gathered.is_empty() {
            choice["logprobs"] = json!({"content": gathered, "refusal": null});
        }
        self.object("chat.completion.chunk", json!([choice]))
    }
}

/// OpenAI's name.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
    }
}

impl Choice {
    fn add(&mut self, delta: Delta) {
        match delta {
            Delta::Reasoning(text) => self.reasoning += &text,
            Delta::Content(text) => self.content += &text,
            Delta::CallStart { name, .. } => self.calls.push(call(&name)),
            Delta::CallArguments { index, json } => {
                if let Some(Value::String(all)) =
                    self.calls.get_mut(index).map(|call| &mut call["function"]["arguments"])
                {
                    *all += &json;
                }
            }
            Delta::CallEnd { .. } => {}
        }
    }

    /// The delta object of a delta.
    fn delta(&mut self, delta: Delta) -> Option<Value> {
        Some(match delta {
            Delta::Reasoning(text) => json!({"reasoning_content": text, "reasoning": text}),
            Delta::Content(text) => json!({"content": text}),
            Delta::CallStart { index, name } => {
                let mut call = call(&name);
                call["index"] = index.into();
                json!({"tool_calls": [call]})
            }
            Delta::CallArguments { index, json: piece } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            }
            Delta::CallEnd { .. } => return None,
        })
    }

    fn object(self, index: usize, logprobs: bool) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let content = !self.content.is_empty() || self.calls.is_empty();
        message.insert("content".into(), content.then_some(self.content).into());
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), self.reasoning.as_str().into());
            message.insert("reasoning".into(), self.reasoning.into());
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".into(), self.calls.into());
        }
        let logprobs = logprobs.then(|| json!({"content": self.logprobs, "refusal": null}));
        json!({
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self.finish.as_ref().map(|(finish, _)| finish_reason(*finish)),
            "stop_reason": stop_reason(self.finish.as_ref().and_then(|(_, cause)| cause.as_ref())),
        })
    }
}

fn call(name: &str) -> Value {
    let function = json!({"name": name, "arguments": ""});
    json!({"id": new_id("call_"), "type": "function", "function": function})
}
