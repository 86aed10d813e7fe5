//! The wire formats: each reads a body into an [`Ask`](super::answering::Ask) and writes its pieces down in its own
//! words.
//!
//! Owns what formats share: how answers are limited and chosen, and what is counted of them.

pub(crate) mod chat;
pub(crate) mod completions;
mod echo;
pub(crate) mod embeddings;
mod history;
pub(crate) mod llama;
mod logprobs;
pub(crate) mod messages;
pub(crate) mod responses;
mod turn;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use longrun_lm::answer::LoopDetector;
use longrun_lm::engine::Priority;
use longrun_lm::grammar::Grammar;
use longrun_lm::prefix::Miss;
use longrun_lm::sample::SamplingParams;
use serde_json::{Value, json};

use super::answering::{Cause, Piece, Timings};
use super::error::{ApiError, ApiResult};
use super::fields::{Fields, sampling};
use super::form;
use super::served::Served;

/// The most texts of one request.
const MOST_CHOICES: usize = 64;
/// A loop has so many rounds and tokens, if nothing is said.
const LOOP: (usize, usize) = (4, 256);
/// The most alternatives of a token.
const MOST_ALTERNATIVES: usize = 20;

/// What every request for text may say.
pub(crate) struct Common {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) include_progress: bool,
    pub(crate) choices: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) params: SamplingParams,
    pub(crate) ignore_eos: bool,
    pub(crate) loops: Option<LoopDetector>,
    pub(crate) priority: Priority,
    /// The form of the whole answer.
    pub(crate) format: Option<Grammar>,
}

impl Common {
    pub(crate) fn read(fields: &mut Fields, served: &Served) -> ApiResult<Self> {
        let stream = fields.bool("stream")?.unwrap_or(false);
        let (mut include_usage, mut include_progress) = (false, false);
        if let Some(mut options) = fields.object("stream_options")? {
            include_usage = options.bool("include_usage")?.unwrap_or(false);
            include_progress = options.bool("include_progress")?.unwrap_or(false);
            // Obfuscation against eavesdroppers is for lines that leave the machine.
            options.bool("include_obfuscation")?;
            options.finish(true)?;
        }
        include_progress |= fields.bool("return_progress")?.unwrap_or(false);
        let choices = fields.counted("n", 1, MOST_CHOICES)?.unwrap_or(1);
        let old = fields.count("max_tokens")?;
        let new = fields.count("max_completion_tokens")?;
        // What the newer name goes before has to make sense all the same.
        if let Some(old) = old.filter(|old| new.is_some() && *old > served.context) {
            let what = format!("{old} is more than the context of {} tokens", served.context);
            return Err(ApiError::field("max_tokens", what));
        }
        let max_tokens = new.or(old);
        let stop = fields.strings("stop")?;
        let ignore_eos = fields.bool("ignore_eos")?.unwrap_or(false);
        let params = sampling(fields, served.source.defaults.params.clone())?;
        params.validate(served.vocab)?;
        Ok(Self {
            stream,
            include_usage,
            include_progress,
            choices,
            max_tokens,
            stop,
            params,
            ignore_eos,
            loops: loops(fields)?,
            priority: priority(fields)?,
            format: form::response_format(fields)?,
        })
    }
}

/// `stop_on_loop`: true, or how many tokens the loop has to cover.
fn loops(fields: &mut Fields) -> ApiResult<Option<LoopDetector>> {
    let place = fields.path("stop_on_loop");
    Ok(match fields.take("stop_on_loop") {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(LoopDetector::new(LOOP.0, LOOP.1)),
        Some(value) => {
            let tokens = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
            let wrong =
                || ApiError::field(&place, "it is neither a boolean nor a number of tokens");
            Some(LoopDetector::new(LOOP.0, tokens.ok_or_else(wrong)?))
        }
    })
}

/// `priority`: a word, or a number that is smaller for what is more urgent.
fn priority(fields: &mut Fields) -> ApiResult<Priority> {
    let place = fields.path("priority");
    let Some(value) = fields.take("priority") else { return Ok(Priority::default()) };
    Ok(match (value.as_str(), value.as_f64()) {
        (Some("low"), _) => Priority::Low,
        (Some("normal"), _) => Priority::Normal,
        (Some("high"), _) => Priority::High,
        (None, Some(n)) if n < 0.0 => Priority::High,
        (None, Some(n)) if n > 0.0 => Priority::Low,
        (None, Some(_)) => Priority::Normal,
        _ => return Err(ApiError::field(&place, "it is none of low, normal, high")),
    })
}

/// How many alternatives of tokens are wanted, from a number of them.
pub(crate) fn alternatives(name: &str, count: usize) -> ApiResult<usize> {
    if count > MOST_ALTERNATIVES {
        let what = format!("{count} is more than {MOST_ALTERNATIVES}");
        return Err(ApiError::field(name, what));
    }
    Ok(count)
}

/// What was counted of a request.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) miss: Option<Miss>,
    pub(crate) completion: usize,
    pub(crate) reasoning: usize,
    pub(crate) timings: Timings,
}

impl Tally {
    pub(crate) fn new(prompt: usize) -> Self {
        Self { prompt, ..Self::default() }
    }

    pub(crate) fn take(&mut self, piece: &Piece) {
        match piece {
            Piece::Started { cached, miss } => (self.cached, self.miss) = (*cached, *miss),
            Piece::Token { token, .. } => {
                self.completion += 1;
                self.reasoning += usize::from(token.is_reasoning);
            }
            Piece::Done { timings } => self.timings = *timings,
            Piece::Progress { .. } | Piece::Scored(_) | Piece::Ended { .. } | Piece::Failed(_) => {}
        }
    }

    /// Counts another prompt of the same request.
    pub(crate) fn add(&mut self, other: &Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.completion += other.completion;
        self.reasoning += other.reasoning;
        self.miss = self.miss.or(other.miss);
        let longest = |a: f64, b: f64| a.max(b);
        let (mine, its) = (&mut self.timings, other.timings);
        mine.queued = longest(mine.queued, its.queued);
        mine.first_token = longest(mine.first_token, its.first_token);
        mine.total = longest(mine.total, its.total);
    }

    pub(crate) fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }

    /// The same counts and times in llama-server's words.
    pub(crate) fn timings(&self) -> Value {
        let Timings { first_token, total, .. } = self.timings;
        let speed = Speed {
            cached: self.cached,
            prompt: self.prompt.saturating_sub(self.cached),
            prompt_seconds: first_token,
            predicted: self.completion,
            predicted_seconds: total - first_token,
        };
        speed.object()
    }

    /// What OpenAI's objects have no place for.
    pub(crate) fn own(&self) -> Value {
        let Timings { queued, first_token, total } = self.timings;
        let decoding = total - first_token;
        let rate = self.completion.saturating_sub(1) as f64 / decoding.max(1e-9);
        json!({
            "prefix_miss": self.miss.map(Miss::name),
            "queue_seconds": queued,
            "time_to_first_token_seconds": first_token,
            "total_seconds": total,
            "tokens_per_second": if self.completion > 1 { rate } else { 0.0 },
        })
    }
}

/// How long reading and generating took.
pub(crate) struct Speed {
    /// Tokens of the prompt that were not read again, and those that were read.
    pub(crate) cached: usize,
    pub(crate) prompt: usize,
    /// From the request to its first token.
    pub(crate) prompt_seconds: f64,
    pub(crate) predicted: usize,
    pub(crate) predicted_seconds: f64,
}

impl Speed {
    /// What llama-server calls timings.
    pub(crate) fn object(&self) -> Value {
        let each = |seconds: f64, n: usize| if n > 0 { seconds * 1e3 / n as f64 } else { 0.0 };
        let rate = |seconds: f64, n: usize| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let (read, made) = (self.prompt_seconds.max(0.0), self.predicted_seconds.max(0.0));
        json!({
            "cache_n": self.cached,
            "prompt_n": self.prompt,
            "prompt_ms": read * 1e3,
            "prompt_per_token_ms": each(read, self.prompt),
            "prompt_per_second": rate(read, self.prompt),
            "predicted_n": self.predicted,
            "predicted_ms": made * 1e3,
            "predicted_per_token_ms": each(made, self.predicted),
            "predicted_per_second": rate(made, self.predicted),
        })
    }
}

/// A name that nobody else has.
pub(crate) fn new_id(prefix: &str) -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// What ended a text, for those who want to know more than OpenAI tells.
pub(crate) fn stop_reason(cause: Option<&Cause>) -> Value {
    match cause {
        Some(Cause::Text(text)) => text.as_str().into(),
        Some(Cause::Loop) => "loop".into(),
        Some(Cause::Call) | None => Value::Null,
    }
}

/// How much of a prompt was read.
pub(crate) fn progress_object(tally: &Tally, done: usize, total: usize) -> Value {
    json!({"total": total, "cache": tally.cached, "processed": done})
}

/// Names the fields that nobody knew.
pub(crate) fn with_ignored(mut response: Response, ignored: &[String]) -> Response {
    if ignored.is_empty() {
        return response;
    }
    tracing::warn!(fields = ignored.join(", "), "unknown fields were passed over");
    if let Ok(value) = HeaderValue::from_str(&ignored.join(", ")) {
        response.headers_mut().insert(HeaderName::from_static("x-longrun-ignored"), value);
    }
    response
}
