//! A model's own wishes for sampling, and how a request overrides them.
//!
//! Owns the reading of `generation_config.json` and the rule that what the user said wins. Refuses
//! to invent: a field that the file leaves out is off.

use std::collections::HashSet;
use std::fmt::Display;

use serde_json::Value;

use super::SamplingParams;
use crate::{Error, Result};

/// What a checkpoint asks for where the user says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Parameters; greedy unless the file asks for sampling.
    pub params: SamplingParams,
    /// Ids that end a text, in the file's order, each once.
    pub eos: Vec<u32>,
}

impl Defaults {
    /// Reads the parsed `generation_config.json`; fields that are absent or null are off.
    ///
    /// Greedy if `do_sample` is false, or if neither it nor `temperature` is there; `do_sample`
    /// without `temperature` means temperature 1. Filters are kept even then, for a user who asks
    /// for a temperature. `repetition_penalty` looks back as far as the default context.
    ///
    /// # Errors
    /// [`Kind::File`](crate::Kind::File) if a field has another type or is out of range.
    pub fn from_generation_config(config: &Value) -> Result<Self> {
        if !config.is_object() {
            return Err(Error::file("the generation config is not a JSON object"));
        }
        let do_sample = match field(config, "do_sample") {
            None => None,
            Some(Value::Bool(flag)) => Some(*flag),
            Some(other) => return Err(wrong("do_sample", other, "true or false")),
        };
        let temperature = match (do_sample, number(config, "temperature")?) {
            (Some(false), _) | (None, None) => 0.0,
            (Some(true), None) => 1.0,
            (_, Some(temperature)) => temperature,
        };
        let top_k = match field(config, "top_k") {
            None => 0,
            Some(value) => value
                .as_u64()
                .and_then(|k| usize::try_from(k).ok())
                .ok_or_else(|| wrong("top_k", value, "a whole number of at least 0"))?,
        };
        let params = SamplingParams {
            temperature,
            top_p: number(config, "top_p")?.unwrap_or(0.0),
            top_k,
            min_p: number(config, "min_p")?.unwrap_or(0.0),
            repetition_penalty: number(config, "repetition_penalty")?.unwrap_or(0.0),
            ..SamplingParams::default()
        };
        params.validate_numbers().map_err(|e| Error::file(e.to_string()))?;
        Ok(Self { params, eos: eos(config)? })
    }
}

/// What a user said; `None` leaves the model's default in place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOverrides {
    /// See [`SamplingParams::temperature`]; 0 is greedy whatever the model asks for.
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<usize>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplingParams::min_tokens_to_keep`].
    pub min_tokens_to_keep: Option<usize>,
    /// See [`SamplingParams::xtc_probability`].
    pub xtc_probability: Option<f32>,
    /// See [`SamplingParams::xtc_threshold`].
    pub xtc_threshold: Option<f32>,
    /// See [`SamplingParams::xtc_special_tokens`].
    pub xtc_special_tokens: Option<Vec<u32>>,
    /// See [`SamplingParams::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// See [`SamplingParams::repetition_context`].
    pub repetition_context: Option<usize>,
    /// See [`SamplingParams::presence_penalty`].
    pub presence_penalty: Option<f32>,
    /// See [`SamplingParams::presence_context`].
    pub presence_context: Option<usize>,
    /// See [`SamplingParams::frequency_penalty`].
    pub frequency_penalty: Option<f32>,
    /// See [`SamplingParams::frequency_context`].
    pub frequency_context: Option<usize>,
    /// See [`SamplingParams::logit_bias`].
    pub logit_bias: Option<Vec<(u32, f32)>>,
    /// See [`SamplingParams::seed`].
    pub seed: Option<u64>,
    /// See [`SamplingParams::logprobs`].
    pub logprobs: Option<usize>,
}

impl SamplingOverrides {
    /// The parameters to use: each field as the user said, else as the model's defaults have it.
    pub fn apply(self, defaults: &Defaults) -> SamplingParams {
        let base = defaults.params.clone();
        SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_p: self.top_p.unwrap_or(base.top_p),
            top_k: self.top_k.unwrap_or(base.top_k),
            min_p: self.min_p.unwrap_or(base.min_p),
            min_tokens_to_keep: self.min_tokens_to_keep.unwrap_or(base.min_tokens_to_keep),
            xtc_probability: self.xtc_probability.unwrap_or(base.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(base.xtc_threshold),
            xtc_special_tokens: self.xtc_special_tokens.unwrap_or(base.xtc_special_tokens),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            repetition_context: self.repetition_context.unwrap_or(base.repetition_context),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            presence_context: self.presence_context.unwrap_or(base.presence_context),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            frequency_context: self.frequency_context.unwrap_or(base.frequency_context),
            logit_bias: self.logit_bias.unwrap_or(base.logit_bias),
            seed: self.seed.or(base.seed),
            logprobs: self.logprobs.or(base.logprobs),
        }
    }
}

fn eos(config: &Value) -> Result<Vec<u32>> {
    const NAME: &str = "eos_token_id";
    let Some(value) = field(config, NAME) else { return Ok(Vec::new()) };
    let listed = match value {
        Value::Array(ids) => ids.as_slice(),
        one => std::slice::from_ref(one),
    };
    let mut ids = Vec::with_capacity(listed.len());
    let mut seen = HashSet::with_capacity(listed.len());
    for value in listed {
        let id = value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| wrong(NAME, value, "a token id or a list of them"))?;
        if seen.insert(id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn number(config: &Value, name: &str) -> Result<Option<f32>> {
    let Some(value) = field(config, name) else { return Ok(None) };
    let number = value.as_f64().ok_or_else(|| wrong(name, value, "a number"))?;
    Ok(Some(number as f32))
}

fn field<'a>(config: &'a Value, name: &str) -> Option<&'a Value> {
    config.get(name).filter(|value| !value.is_null())
}

fn wrong(name: &str, value: &Value, want: impl Display) -> Error {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(n) => return Error::file(format!("{name} is {n} but must be {want}")),
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    Error::file(format!("{name} is {kind} but must be {want}"))
}
