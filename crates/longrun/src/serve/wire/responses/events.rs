//! A response as it comes.
//!
//! Owns OpenAI's events and their order. The last one holds the response as a whole, which is what a client gets that
//! does not stream.

use longrun_lm::answer::Delta;
use longrun_lm::sample::Choice;
use serde_json::{Map, Value, json};

use super::super::super::answering::{Cause, Finish, Piece};
use super::super::super::error::ApiError;
use super::super::turn::Events;
use super::super::{Tally, new_id, stop_reason};

/// Says what is known of the probability of a token.
pub(super) type Entry = Box<dyn Fn(&Choice) -> Value + Send>;

/// What an item is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
}

/// An item that is not whole.
struct Open {
    kind: Kind,
    /// The item as it was announced.
    item: Value,
    text: String,
    logprobs: Vec<Value>,
}

/// Says what comes of a request.
pub(super) struct Teller {
    response: Value,
    entry: Option<Entry>,
    /// What is known of tokens whose text is yet to come.
    waiting: Vec<Value>,
    tally: Tally,
    items: Vec<Value>,
    open: Option<Open>,
    end: Option<(Finish, Option<Cause>)>,
    sequence: u64,
}

impl Teller {
    /// `response` is the object before anything is known; `entry` is there if probabilities are wanted.
    pub(super) fn new(response: Value, prompt: usize, entry: Option<Entry>) -> Self {
        Self {
            response,
            entry,
            waiting: Vec::new(),
            tally: Tally::new(prompt),
            items: Vec::new(),
            open: None,
            end: None,
            sequence: 0,
        }
    }

    /// An event of this name with these fields, and its number.
    fn event(&mut self, kind: &str, fields: Value) -> Value {
        let mut event = json!({"type": kind, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        event
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<Value>) {
        match delta {
            Delta::Reasoning(text) => {
                self.text(Kind::Reasoning, out);
                self.more("response.reasoning_text.delta", &text, out);
            }
            Delta::Content(text) => {
                self.text(Kind::Message, out);
                self.more("response.output_text.delta", &text, out);
            }
            Delta::CallStart { name, .. } => {
                let item = json!({
                    "id": new_id("fc_"),
                    "type": "function_call",
                    "status": "in_progress",
                    "call_id": new_id("call_"),
                    "name": name,
                    "arguments": "",
                });
                self.announce(Kind::Call, item, out);
            }
            Delta::CallArguments { json: text, .. } => {
                self.more("response.function_call_arguments.delta", &text, out);
            }
            Delta::CallEnd { .. } => {
                // Tokens of calls and of the marks around them have no text to stand beside.
                self.waiting.clear();
                self.close("completed", out);
            }
        }
    }

    /// Sees to it that an item of text is open, with its only part.
    fn text(&mut self, kind: Kind, out: &mut Vec<Value>) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            return;
        }
        let (id, item) = match kind {
            Kind::Reasoning => {
                let id = new_id("rs_");
                let item = json!({"type": "reasoning", "summary": [], "content": []});
                (id, item)
            }
            Kind::Message | Kind::Call => {
                let item = json!({"type": "message", "role": "assistant", "content": []});
                (new_id("msg_"), item)
            }
        };
        let mut whole = json!({"id": id, "status": "in_progress"});
        if let (Value::Object(whole), Value::Object(item)) = (&mut whole, item) {
            whole.extend(item);
        }
        self.announce(kind, whole, out);
        let part = part(kind, "", &[]);
        self.inside("response.content_part.added", json!({"part": part}), out);
    }

    fn announce(&mut self, kind: Kind, item: Value, out: &mut Vec<Value>) {
        self.close("completed", out);
        let fields = json!({"output_index": self.items.len(), "item": item});
        out.push(self.event("response.output_item.added", fields));
        self.open = Some(Open { kind, item, text: String::new(), logprobs: Vec::new() });
    }

    /// An event within the open item.
    fn inside(&mut self, name: &str, fields: Value, out: &mut Vec<Value>) {
        let Some(open) = &self.open else { return };
        let mut place = json!({"item_id": open.item["id"], "output_index": self.items.len()});
        if open.kind != Kind::Call {
            place["content_index"] = 0.into();
        }
        if let (Value::Object(place), Value::Object(fields)) = (&mut place, fields) {
            place.extend(fields);
        }
        out.push(self.event(name, place));
    }

    /// More text of the open item.
    fn more(&mut self, name: &str, text: &str, out: &mut Vec<Value>) {
        let Some(open) = &mut self.open else { return };
        open.text += text;
        let mut fields = json!({"delta": text});
        if open.kind == Kind::Message {
            let logprobs = std::mem::take(&mut self.waiting);
            open.logprobs.extend_from_slice(&logprobs);
            fields["logprobs"] = logprobs.into();
        }
        self.inside(name, fields, out);
    }

    /// Ends the open item.
    fn close(&mut self, status: &str, out: &mut Vec<Value>) {
        let Some(open) = &mut self.open else { return };
        let (kind, text) = (open.kind, std::mem::take(&mut open.text));
        let mut item = open.item.take();
        item["status"] = status.into();
        let logprobs = std::mem::take(&mut open.logprobs);
        // Its id is still asked for.
        open.item = json!({"id": item["id"]});
        if kind == Kind::Call {
            let name = item["name"].clone();
            // A call that was cut ends, too; its arguments are no object then.
            let is_whole = serde_json::from_str::<Map<String, Value>>(&text).is_ok();
            item["status"] = if is_whole { "completed" } else { "incomplete" }.into();
            item["arguments"] = text.as_str().into();
            let fields = json!({"name": name, "arguments": text});
            self.inside("response.function_call_arguments.done", fields, out);
        } else {
            let part = part(kind, &text, &logprobs);
            item["content"] = json!([part]);
            let (name, fields) = match kind {
                Kind::Reasoning => ("response.reasoning_text.done", json!({"text": text})),
                Kind::Message | Kind::Call => {
                    ("response.output_text.done", json!({"text": text, "logprobs": logprobs}))
                }
            };
            self.inside(name, fields, out);
            self.inside("response.content_part.done", json!({"part": part}), out);
        }
        self.open = None;
        let fields = json!({"output_index": self.items.len(), "item": item});
        out.push(self.event("response.output_item.done", fields));
        self.items.push(item);
    }

    /// The last event, with the response as a whole.
    fn end(&mut self, out: &mut Vec<Value>) {
        let is_cut = matches!(self.end, Some((Finish::Length, _)));
        let (name, status) = if is_cut {
            self.response["incomplete_details"] = json!({"reason": "max_output_tokens"});
            ("response.incomplete", "incomplete")
        } else {
            ("response.completed", "completed")
        };
        let tally = &self.tally;
        self.response["status"] = status.into();
        self.response["usage"] = json!({
            "input_tokens": tally.prompt,
            "input_tokens_details": {"cached_tokens": tally.cached},
            "output_tokens": tally.completion,
            "output_tokens_details": {"reasoning_tokens": tally.reasoning},
            "total_tokens": tally.prompt + tally.completion,
        });
        let mut own = tally.own();
        own["stop_reason"] = stop_reason(self.end.as_ref().and_then(|(_, cause)| cause.as_ref()));
        self.response["longrun"] = own;
        self.respond(name, out);
    }

    /// An event with the response as far as it has come.
    fn respond(&mut self, name: &str, out: &mut Vec<Value>) {
        self.response["output"] = self.items.as_slice().into();
        let fields = json!({"response": self.response});
        out.push(self.event(name, fields));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Value>) {
        let code = error.code.unwrap_or("server_error");
        let fields = json!({"code": code, "message": error.message, "param": error.param});
        out.push(self.event("error", fields));
        self.response["status"] = "failed".into();
        self.response["error"] = json!({"code": code, "message": error.message});
        self.respond("response.failed", out);
    }
}

/// A part of an item of text.
fn part(kind: Kind, text: &str, logprobs: &[Value]) -> Value {
    match kind {
        Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
        Kind::Message | Kind::Call => {
            json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
        }
    }
}

impl Events for Teller {
    fn begin(&mut self) -> Vec<Value> {
        let mut out = Vec::new();
        self.respond("response.created", &mut out);
        self.respond("response.in_progress", &mut out);
        out
    }

    fn take(&mut self, piece: Piece) -> Vec<Value> {
        self.tally.take(&piece);
        let mut out = Vec::new();
        match piece {
            Piece::Token { token, .. } => {
                if let Some(entry) = self.entry.as_ref().filter(|_| !token.is_reasoning) {
                    self.waiting.push(entry(&token.chosen));
                }
                token.deltas.into_iter().for_each(|delta| self.delta(delta, &mut out));
            }
            Piece::Ended { deltas, finish, cause, .. } => {
                deltas.into_iter().for_each(|delta| self.delta(delta, &mut out));
                let is_cut = finish == Finish::Length;
                self.close(if is_cut { "incomplete" } else { "completed" }, &mut out);
                self.end = Some((finish, cause));
            }
            Piece::Done { .. } => self.end(&mut out),
            Piece::Failed(error) => self.fail(&error, &mut out),
            Piece::Started { .. } | Piece::Progress { .. } | Piece::Scored(_) => {}
        }
        out
    }
}

#[cfg(test)]
mod tests;
