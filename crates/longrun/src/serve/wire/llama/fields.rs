//! What llama-server's clients may say: read into the engine's terms, or refused by name.
//!
//! Owns the names, and which values are neutral. A field that would change a text and can't is refused unless its value
//! leaves the text as it is.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use longrun_lm::grammar::Grammar;
use longrun_lm::sample::SamplingParams;
use serde_json::{Value, json};

use super::super::super::error::{ApiError, ApiResult};
use super::super::super::fields::{Fields, MOST, float, id, kind, sampling_numbers};
use super::super::super::form::Form;
use super::super::super::prompt::encode;
use super::super::super::served::Served;
use super::super::MOST_CHOICES;
use super::samplers;

/// The most alternatives of a token.
const MOST_PROBABILITIES: usize = 128;
/// How many tokens penalties look back at if nothing is said.
const LAST: usize = 64;

/// Fields that cannot change a text here: how it is computed, or what a field that is off would do.
const INERT: &[&str] = &[
    "adaptive_decay",
    "backend_sampling",
    "dry_allowed_length",
    "dry_base",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "mirostat_eta",
    "mirostat_tau",
    "n_cache_reuse",
    "n_discard",
    "n_keep",
    "sse_ping_interval",
    "verbose",
];

/// Numbers that would change a text, with the values that don't.
const NEUTRAL: &[(&str, f64, f64)] = &[
    ("adaptive_target", f64::MIN, -f64::MIN_POSITIVE),
    ("dry_multiplier", 0.0, 0.0),
    ("dynatemp_range", 0.0, 0.0),
    ("min_keep", 0.0, 1.0),
    ("mirostat", 0.0, 0.0),
    ("n_indent", 0.0, 0.0),
    ("t_max_prompt_ms", f64::MIN, 0.0),
    ("top_n_sigma", f64::MIN, 0.0),
    ("typical_p", 1.0, f64::MAX),
];

/// Lists and switches of the same kind, which have to be empty or off.
const OFF: &[&str] =
    &["grammar_lazy", "grammar_triggers", "image_data", "lora", "post_sampling_probs"];

/// A request for text, but for its prompt.
pub(super) struct Wish {
    pub(super) stream: bool,
    pub(super) choices: usize,
    /// Tokens at most; as many as the context holds if nothing is said.
    pub(super) n_predict: Option<usize>,
    pub(super) stop: Vec<String>,
    pub(super) params: SamplingParams,
    pub(super) ignore_eos: bool,
    pub(super) return_tokens: bool,
    pub(super) timings_per_token: bool,
    pub(super) return_progress: bool,
    /// How long a text with more than one line may be generated.
    pub(super) most_time: Option<Duration>,
    /// Paths of the fields that are wanted; all of them if there is none.
    pub(super) response_fields: Vec<String>,
}

impl Wish {
    /// Reads it, and what constrains its texts.
    pub(super) fn read(fields: &mut Fields, served: &Served) -> ApiResult<(Self, Form)> {
        refuse(fields)?;
        let old = fields.counted("n", 1, MOST_CHOICES)?;
        let choices = fields.counted("n_cmpl", 1, MOST_CHOICES)?.or(old).unwrap_or(1);
        let mut n_predict = None;
        for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
            n_predict = fields.whole(name)?.or(n_predict);
        }
        let mut stop = fields.strings("stop")?;
        stop.retain(|text| !text.is_empty());
        let ignore_eos = fields.bool("ignore_eos")?.unwrap_or(false);
        let mut params = sampling(fields, served)?;
        if ignore_eos {
            params.logit_bias.extend(served.source.eos.iter().map(|&id| (id, f32::MIN)));
        }
        params.validate(served.vocab)?;
        let most = fields.whole("t_max_predict_ms")?.and_then(|ms| u64::try_from(ms).ok());
        let wish = Self {
            stream: fields.bool("stream")?.unwrap_or(false),
            choices,
            n_predict: n_predict.and_then(|n| usize::try_from(n).ok()),
            stop,
            params,
            ignore_eos,
            return_tokens: fields.bool("return_tokens")?.unwrap_or(false),
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
            return_progress: fields.bool("return_progress")?.unwrap_or(false),
            most_time: most.filter(|ms| *ms > 0).map(Duration::from_millis),
            response_fields: fields.strings("response_fields")?,
        };
        Ok((wish, form(fields)?))
    }

    /// The same as clients see it.
    pub(super) fn settings(&self) -> Value {
        let p = &self.params;
        let on = |x: f32, off: f32| if x == 0.0 { off } else { x };
        let bias = |&(token, bias): &(u32, f32)| json!({"token": token, "bias": (bias > f32::MIN).then_some(bias)});
        let n_predict = self.n_predict.map_or(json!(-1), Value::from);
        json!({
            "seed": p.seed,
            "temperature": p.temperature,
            "dynatemp_range": 0.0,
            "dynatemp_exponent": 1.0,
            "top_k": p.top_k,
            "top_p": on(p.top_p, 1.0),
            "min_p": p.min_p,
            "top_n_sigma": -1.0,
            "xtc_probability": p.xtc_probability,
            "xtc_threshold": p.xtc_threshold,
            "typical_p": 1.0,
            "repeat_last_n": p.repetition_context,
            "repeat_penalty": on(p.repetition_penalty, 1.0),
            "presence_penalty": p.presence_penalty,
            "frequency_penalty": p.frequency_penalty,
            "dry_multiplier": 0.0,
            "mirostat": 0,
            "adaptive_target": -1.0,
            "adaptive_decay": 0.0,
            "stop": self.stop,
            "max_tokens": n_predict,
            "n_predict": n_predict,
            "n_keep": 0,
            "n_discard": 0,
            "ignore_eos": self.ignore_eos,
            "stream": self.stream,
            "logit_bias": p.logit_bias.iter().map(bias).collect::<Value>(),
            "n_probs": p.logprobs.unwrap_or(0),
            "min_keep": 0,
            "grammar": "",
            "samplers": samplers::ORDER,
            "timings_per_token": self.timings_per_token,
            "post_sampling_probs": false,
            "lora": [],
        })
    }
}

/// Refuses what would change a text and is not there.
fn refuse(fields: &mut Fields) -> ApiResult<()> {
    for name in INERT {
        fields.take(name);
    }
    for &(name, low, high) in NEUTRAL {
        let Some(value) = fields.take(name) else { continue };
        if !value.as_f64().is_some_and(|x| (low..=high).contains(&x)) {
            let what = format!("{value} is not supported; leave it out");
            return Err(ApiError::field(name, what));
        }
    }
    for name in OFF {
        let Some(value) = fields.take(name) else { continue };
        let off = value == false || value.as_array().is_some_and(Vec::is_empty);
        if !off {
            return Err(ApiError::field(name, "not supported; leave it out"));
        }
    }
    Ok(())
}

/// What constrains the text.
fn form(fields: &mut Fields) -> ApiResult<Form> {
    if fields.string("grammar")?.is_some_and(|text| !text.is_empty()) {
        return Err(ApiError::field("grammar", "GBNF is not read; give a json_schema"));
    }
    let answer = match fields.take("json_schema") {
        None => None,
        Some(Value::String(text)) if text.is_empty() => None,
        Some(schema @ Value::Object(_)) => Some(Grammar::json_schema(&schema)),
        Some(_) => return Err(ApiError::field("json_schema", "it is no schema")),
    };
    Ok(Form { answer, place: "json_schema", ..Form::default() })
}

fn sampling(fields: &mut Fields, served: &Served) -> ApiResult<SamplingParams> {
    let mut params = served.source.defaults.params.clone();
    sampling_numbers(fields, &mut params)?;
    if let Some(x) = fields.within("repeat_penalty", 0.0, MOST)? {
        params.repetition_penalty = x;
    }
    // More than a half is a way to switch it off.
    match fields.within("xtc_threshold", 0.0, MOST)? {
        Some(x) if x > 0.5 => (params.xtc_probability, params.xtc_threshold) = (0.0, 0.5),
        Some(x) => params.xtc_threshold = x,
        None => {}
    }
    if let Some(k) = fields.whole("top_k")? {
        params.top_k = usize::try_from(k).unwrap_or(0);
    }
    look_back(fields, &mut params)?;
    let fresh = || RandomState::new().hash_one(0u64) >> 32;
    params.seed = Some(fields.seed("seed")?.or(params.seed).unwrap_or_else(fresh));
    params.logit_bias.extend(logit_bias(fields, served)?);
    let old = fields.counted("logprobs", 0, MOST_PROBABILITIES)?;
    let n_probs = fields.counted("n_probs", 0, MOST_PROBABILITIES)?.or(old).unwrap_or(0);
    params.logprobs = (n_probs > 0).then_some(n_probs);
    samplers::choose(fields, &mut params)?;
    Ok(params)
}

/// One number for all penalties: 0 switches them off, and below 0 is all of the text.
fn look_back(fields: &mut Fields, params: &mut SamplingParams) -> ApiResult<()> {
    let last = fields.whole("repeat_last_n")?;
    if last == Some(0) {
        samplers::without_penalties(params);
    }
    let last = last.map_or(LAST, |n| usize::try_from(n).unwrap_or(0));
    params.repetition_context = last;
    params.presence_context = last;
    params.frequency_context = last;
    Ok(())
}

/// Biases by id or by text, as an object or as pairs; false is never.
fn logit_bias(fields: &mut Fields, served: &Served) -> ApiResult<Vec<(u32, f32)>> {
    let wrong = |what: String| ApiError::field("logit_bias", what);
    let pairs: Vec<(Value, Value)> = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => {
            let key = |text: String| text.parse::<u32>().map_or(Value::from(text), Value::from);
            map.into_iter().map(|(token, bias)| (key(token), bias)).collect()
        }
        Some(Value::Array(all)) => {
            let pair = |value: Value| match value {
                Value::Array(pair) => <[Value; 2]>::try_from(pair).ok().map(|[a, b]| (a, b)),
                _ => None,
            };
            let pairs: Option<Vec<_>> = all.into_iter().map(pair).collect();
            pairs.ok_or_else(|| wrong("one of the list is no pair of token and bias".into()))?
        }
        Some(other) => return Err(wrong(format!("{} is no list and no object", kind(&other)))),
    };
    let mut biases = Vec::new();
    for (token, bias) in pairs {
        let number = if bias == false { Some(f32::MIN) } else { float(&bias) };
        let number = number.ok_or_else(|| wrong(format!("{} is no bias", kind(&bias))))?;
        match (&token, id(&token)) {
            (_, Some(id)) => biases.push((id, number)),
            (Value::String(text), None) => {
                biases.extend(encode(served, text, false)?.into_iter().map(|id| (id, number)));
            }
            _ => return Err(wrong(format!("{} is neither an id nor text", kind(&token)))),
        }
    }
    Ok(biases)
}
