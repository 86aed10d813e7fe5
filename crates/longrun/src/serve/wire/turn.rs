//! One answer to a conversation, for the formats that tell it in events with names.
//!
//! Owns the way from a conversation to its pieces, and from pieces to a stream or a whole: the whole is what the events
//! of the stream put together, so that the two can't differ. Refuses to know the words of a format.

use std::sync::Arc;

use longrun_lm::answer::LoopDetector;
use longrun_lm::engine::{Mask, Priority};
use longrun_lm::grammar::Tool;
use longrun_lm::sample::SamplingParams;
use serde_json::{Map, Value, json};

use super::super::admission::Ticket;
use super::super::answering::{self, Ask, Piece, Pieces, Reading};
use super::super::error::{ApiError, ApiResult};
use super::super::fields::{Fields, sampling};
use super::super::form::Form;
use super::super::prompt::{Chat, Prompt};
use super::super::served::Served;
use super::super::sse::Writer;
use super::super::tasks::background;
use super::{loops, priority};

/// What is asked for, whatever the format.
pub(super) struct Turn {
    pub(super) served: Arc<Served>,
    pub(super) chat: Chat,
    /// What the format calls the field of the conversation.
    pub(super) chat_field: &'static str,
    pub(super) form: Form,
    pub(super) limit: Limit,
    pub(super) params: SamplingParams,
    pub(super) stop: Vec<String>,
    pub(super) rest: Rest,
}

/// What every format may say beyond its own words.
#[derive(Default)]
pub(super) struct Rest {
    loops: Option<LoopDetector>,
    priority: Priority,
    ignore_eos: bool,
}

impl Rest {
    pub(super) fn read(fields: &mut Fields) -> ApiResult<Self> {
        let ignore_eos = fields.bool("ignore_eos")?.unwrap_or(false);
        Ok(Self { loops: loops(fields)?, priority: priority(fields)?, ignore_eos })
    }
}

/// How many tokens an answer may have.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    /// As many as the context holds behind the prompt.
    Room,
    /// So many; more than there is room for is an error.
    Exactly(usize),
    /// So many, or as many as there is room for.
    AtMost(usize),
}

impl Limit {
    fn tokens(self, context: usize, prompt: usize) -> Option<usize> {
        match self {
            Self::Room => None,
            Self::Exactly(most) => Some(most),
            // With no room at all the error speaks of what was asked for.
            Self::AtMost(most) => Some(match context.saturating_sub(prompt) {
                0 => most,
                room => most.min(room),
            }),
        }
    }
}

impl Turn {
    fn prompt(&self) -> ApiResult<Prompt> {
        self.chat.prompt(&self.served).map_err(|error| self.named(error))
    }

    /// An error about the conversation, by the name that it has here.
    fn named(&self, error: ApiError) -> ApiError {
        let is_chat = error.param.as_deref() == Some("messages");
        let param = if is_chat { Some(self.chat_field.to_owned()) } else { error.param };
        ApiError { param, ..error }
    }

    /// The prompt and the mask; they are made beside the threads that serve.
    async fn prepare(self) -> ApiResult<(Self, Prompt, Option<Mask>)> {
        background(move || {
            let prompt = self.prompt()?;
            let mask = self.form.mask(&self.served, prompt.in_reasoning)?;
            Ok((self, prompt, mask))
        })
        .await
    }

    /// Tokens of the prompt.
    pub(super) async fn count(self) -> ApiResult<usize> {
        background(move || Ok(self.prompt()?.ids.len())).await
    }

    /// Hands it to the engine.
    pub(super) async fn start(self, ticket: Ticket) -> ApiResult<Pieces> {
        let (turn, prompt, mask) = self.prepare().await?;
        let reading = Reading::Answer {
            format: Arc::clone(&turn.served.format),
            tools: turn.form.tools.schemas(),
            in_reasoning: prompt.in_reasoning,
            single: turn.form.tools.parallel == Some(false),
        };
        let ask = Ask {
            max_tokens: turn.limit.tokens(turn.served.context, prompt.ids.len()),
            prompt: prompt.ids,
            boundaries: prompt.boundaries,
            choices: 1,
            params: turn.params.clone(),
            stop: turn.stop.clone(),
            reading,
            loops: turn.rest.loops.clone(),
            mask,
            priority: turn.rest.priority,
            ignore_eos: turn.rest.ignore_eos,
            score: None,
        };
        answering::start(&turn.served, ask, ticket).map_err(|error| turn.named(error))
    }
}

/// A tool as OpenAI writes it to chats, which is what templates read.
pub(super) fn written(tool: &Tool, description: Option<String>) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = description {
        function["description"] = description.into();
    }
    if !tool.parameters.is_null() {
        function["parameters"] = tool.parameters.clone();
    }
    json!({"type": "function", "function": function})
}

/// The tools that a template is given.
pub(super) fn shown(tools: Vec<Value>) -> Value {
    if tools.is_empty() { Value::Null } else { tools.into() }
}

/// How tokens are chosen, and with how many alternatives they are told, if they are.
pub(super) fn params(
    fields: &mut Fields,
    served: &Served,
    logprobs: Option<usize>,
) -> ApiResult<SamplingParams> {
    let params = sampling(fields, served.source.defaults.params.clone())?;
    let params = SamplingParams { logprobs, ..params };
    params.validate(served.vocab)?;
    Ok(params)
}

/// Tells a template whether to think, and how much.
pub(super) fn think(extra: &mut Map<String, Value>, on: Option<bool>, effort: Option<String>) {
    let on = on.or(effort.as_ref().map(|effort| effort != "none"));
    if let Some(on) = on {
        extra.entry("enable_thinking").or_insert(on.into());
        extra.entry("thinking").or_insert(on.into());
    }
    if let Some(effort) = effort {
        extra.entry("reasoning_effort").or_insert(effort.into());
    }
}

/// An answer in the events of a format. Each is an object whose `type` is its name.
pub(super) trait Events: Send + 'static {
    /// Before anything is known.
    fn begin(&mut self) -> Vec<Value>;
    /// What a piece says.
    fn take(&mut self, piece: Piece) -> Vec<Value>;
}

/// Writes events as they come, until they end or the client goes.
pub(super) async fn stream(mut pieces: Pieces, mut events: impl Events, out: Writer) {
    let send = |events: Vec<Value>| {
        events.iter().all(|event| out.named(event["type"].as_str().unwrap_or_default(), event))
    };
    if !send(events.begin()) {
        return;
    }
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            () = out.gone() => return,
        };
        let Some(piece) = piece else { return };
        if !send(events.take(piece)) {
            return;
        }
    }
}

/// Gives all events to `fold`.
pub(super) async fn whole(
    mut pieces: Pieces,
    mut events: impl Events,
    mut fold: impl FnMut(Value),
) -> ApiResult<()> {
    events.begin().into_iter().for_each(&mut fold);
    while let Some(piece) = pieces.next().await {
        if let Piece::Failed(error) = piece {
            return Err(error);
        }
        events.take(piece).into_iter().for_each(&mut fold);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Limit;

    #[test]
    fn a_limit_is_kept_or_fits_or_is_the_room() {
        assert_eq!(Limit::Room.tokens(100, 40), None);
        assert_eq!(Limit::Exactly(80).tokens(100, 40), Some(80));
        assert_eq!(Limit::AtMost(80).tokens(100, 40), Some(60));
        assert_eq!(Limit::AtMost(8).tokens(100, 40), Some(8));
        assert_eq!(Limit::AtMost(8).tokens(100, 100), Some(8));
    }
}
