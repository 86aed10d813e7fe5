//! A message as it comes, and as a whole.
//!
//! Owns Anthropic's events, and the message that they put together.

use longrun_lm::answer::Delta;
use serde_json::{Value, json};

use super::super::super::answering::{Cause, Finish, Piece};
use super::super::turn::Events;
use super::super::{Tally, new_id, stop_reason};
use super::error;

/// Stands where Anthropic proves that it wrote what was thought. Nothing is proven here; but clients take an empty one
/// for a lost one, and leave such thoughts out of the next request.
const SIGNATURE: &str = "longrun";

/// What a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call,
}

/// Says what comes of a request.
pub(super) struct Teller {
    model: String,
    request_id: String,
    shows_thinking: bool,
    tally: Tally,
    started: bool,
    /// Blocks that were begun.
    blocks: usize,
    open: Option<Block>,
}

impl Teller {
    pub(super) fn new(
        model: String,
        prompt: usize,
        shows_thinking: bool,
        request_id: String,
    ) -> Self {
        let tally = Tally::new(prompt);
        Self { model, request_id, shows_thinking, tally, started: false, blocks: 0, open: None }
    }

    fn usage(&self) -> Value {
        json!({
            "input_tokens": self.tally.prompt - self.tally.cached.min(self.tally.prompt),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.tally.cached,
            "output_tokens": self.tally.completion,
        })
    }

    /// A row may get its place twice; a message begins once.
    fn start(&mut self, out: &mut Vec<Value>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let message = json!({
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": self.usage(),
        });
        out.push(json!({"type": "message_start", "message": message}));
        out.push(json!({"type": "ping"}));
    }

    fn delta(&mut self, delta: Delta, out: &mut Vec<Value>) {
        match delta {
            Delta::Reasoning(text) => {
                self.block(Block::Thinking, out);
                if self.shows_thinking {
                    self.inside(json!({"type": "thinking_delta", "thinking": text}), out);
                }
            }
            Delta::Content(text) => {
                self.block(Block::Text, out);
                self.inside(json!({"type": "text_delta", "text": text}), out);
            }
            Delta::CallStart { name, .. } => {
                let id = new_id("toolu_");
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.announce(Block::Call, block, out);
            }
            Delta::CallArguments { json: text, .. } => {
                self.inside(json!({"type": "input_json_delta", "partial_json": text}), out);
            }
            Delta::CallEnd { .. } => self.close(out),
        }
    }

    /// Sees to it that a block of text is open.
    fn block(&mut self, block: Block, out: &mut Vec<Value>) {
        if self.open == Some(block) {
            return;
        }
        let empty = match block {
            Block::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Block::Text | Block::Call => json!({"type": "text", "text": ""}),
        };
        self.announce(block, empty, out);
    }

    fn announce(&mut self, block: Block, empty: Value, out: &mut Vec<Value>) {
        self.close(out);
        self.open = Some(block);
        let index = self.blocks;
        self.blocks += 1;
        let start = json!({"type": "content_block_start", "index": index, "content_block": empty});
        out.push(start);
    }

    fn inside(&self, delta: Value, out: &mut Vec<Value>) {
        let index = self.blocks.saturating_sub(1);
        out.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }

    fn close(&mut self, out: &mut Vec<Value>) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            self.inside(json!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        let index = self.blocks.saturating_sub(1);
        out.push(json!({"type": "content_block_stop", "index": index}));
    }

    fn end(&mut self, finish: Finish, cause: Option<Cause>, out: &mut Vec<Value>) {
        self.close(out);
        let (reason, stop) = match (finish, &cause) {
            (Finish::ToolCalls, _) => ("tool_use", Value::Null),
            (Finish::Length, _) => ("max_tokens", Value::Null),
            (Finish::Stop, Some(Cause::Text(_) | Cause::Loop)) => {
                ("stop_sequence", stop_reason(cause.as_ref()))
            }
            (Finish::Stop, Some(Cause::Call) | None) => ("end_turn", Value::Null),
        };
        let delta = json!({"stop_reason": reason, "stop_sequence": stop});
        out.push(json!({"type": "message_delta", "delta": delta, "usage": self.usage()}));
    }
}

impl Events for Teller {
    fn begin(&mut self) -> Vec<Value> {
        // Usage stands in the first event, and is not known before the prompt has its place.
        Vec::new()
    }

    fn take(&mut self, piece: Piece) -> Vec<Value> {
        self.tally.take(&piece);
        let mut out = Vec::new();
        match piece {
            Piece::Started { .. } => self.start(&mut out),
            Piece::Progress { .. } => out.push(json!({"type": "ping"})),
            Piece::Scored(_) => {}
            Piece::Token { token, .. } => {
                token.deltas.into_iter().for_each(|delta| self.delta(delta, &mut out));
            }
            Piece::Ended { deltas, finish, cause, .. } => {
                deltas.into_iter().for_each(|delta| self.delta(delta, &mut out));
                self.end(finish, cause, &mut out);
            }
            Piece::Done { .. } => out.push(json!({"type": "message_stop"})),
            Piece::Failed(error) => out.push(error::body(&error, &self.request_id)),
        }
        out
    }
}

/// The message that events put together.
#[derive(Default)]
pub(super) struct Fold {
    pub(super) message: Value,
    /// Text of the arguments of the call that is open.
    input: String,
}

impl Fold {
    pub(super) fn take(&mut self, event: Value) {
        let kind = event["type"].as_str().unwrap_or_default();
        match kind {
            "message_start" => self.message = event["message"].clone(),
            "content_block_start" => {
                self.input.clear();
                if let Value::Array(content) = &mut self.message["content"] {
                    content.push(event["content_block"].clone());
                }
            }
            "content_block_delta" => self.delta(&event["delta"]),
            "content_block_stop" => {
                let input = arguments(&self.input);
                if let Some(block) = self.last().filter(|block| block["type"] == "tool_use") {
                    block["input"] = input;
                }
            }
            "message_delta" => {
                self.message["stop_reason"] = event["delta"]["stop_reason"].clone();
                self.message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                self.message["usage"] = event["usage"].clone();
            }
            _ => {}
        }
    }

    fn last(&mut self) -> Option<&mut Value> {
        self.message["content"].as_array_mut()?.last_mut()
    }

    fn delta(&mut self, delta: &Value) {
        if let Some(text) = delta["partial_json"].as_str() {
            self.input += text;
        }
        let Some(block) = self.last() else { return };
        for name in ["text", "thinking", "signature"] {
            if let (Some(text), Some(Value::String(all))) =
                (delta[name].as_str(), block.get_mut(name))
            {
                *all += text;
            }
        }
    }
}

/// Arguments as the object that they have to be. What a model wrote in its place, or did not end, is kept under a name
/// that no schema has.
fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => object,
        _ if text.trim().is_empty() => json!({}),
        _ => json!({"unparsed_arguments": text}),
    }
}

#[cfg(test)]
mod tests;
