//! Log-probabilities of tokens, as the two endpoints of OpenAI write them.

use longrun_lm::sample::Choice;
use serde_json::{Map, Value, json};

use super::super::served::Served;

/// What stands for a probability of 0, which JSON can't say.
const IMPOSSIBLE: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

fn bytes(served: &Served, id: u32) -> Vec<u8> {
    let bytes = served.source.tokenizer.as_ref().and_then(|t| t.token_bytes(id));
    bytes.map_or_else(|| format!(" {id}").into_bytes(), std::borrow::Cow::into_owned)
}

/// The text of one token, alone.
pub(super) fn text(served: &Served, id: u32) -> String {
    String::from_utf8_lossy(&bytes(served, id)).into_owned()
}

/// An entry of `logprobs.content`.
pub(super) fn entry(served: &Served, chosen: &Choice) -> Value {
    let one = |id: u32, logprob: f32| {
        let bytes = bytes(served, id);
        let token = String::from_utf8_lossy(&bytes).into_owned();
        json!({"token": token, "logprob": finite(logprob), "bytes": bytes, "id": id})
    };
    let mut entry = one(chosen.id, chosen.logprob.unwrap_or(IMPOSSIBLE));
    entry["top_logprobs"] = chosen.top.iter().map(|&(id, l)| one(id, l)).collect();
    entry
}

/// The lists of the older endpoint.
#[derive(Clone, Default)]
pub(super) struct Lists {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
}

impl Lists {
    /// One more token, which begins at character `offset` of the text.
    pub(super) fn push(&mut self, served: &Served, chosen: &Choice, offset: usize) {
        self.tokens.push(text(served, chosen.id).into());
        self.logprobs.push(chosen.logprob.map(finite).into());
        // The token itself is among them, likely or not. Of several with one text it is the likeliest that counts.
        let own = chosen.logprob.map(|logprob| (chosen.id, logprob));
        let own = own.filter(|_| !chosen.top.is_empty());
        let mut top = Map::new();
        for (id, logprob) in chosen.top.iter().copied().chain(own) {
            top.entry(text(served, id)).or_insert_with(|| finite(logprob).into());
        }
        self.top.push(top.into());
        self.offsets.push(offset.into());
    }

    /// The first token of a prompt: nothing stands before it that could say how likely it is.
    pub(super) fn push_first(&mut self, served: &Served, id: u32) {
        self.tokens.push(text(served, id).into());
        self.logprobs.push(Value::Null);
        self.top.push(Value::Null);
        self.offsets.push(0.into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Takes them out.
    pub(super) fn take(&mut self) -> Value {
        let Self { tokens, logprobs, top, offsets } = std::mem::take(self);
        json!({
            "tokens": tokens,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        })
    }
}
