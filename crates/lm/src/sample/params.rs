//! What a request may ask of its sampler, and which values make sense.
//!
//! Owns the field names and ranges. Refuses to guess: a value out of range is an error that names
//! the field, and is never moved into the range; only counts larger than the vocabulary mean all of
//! it.

use crate::{Error, Result};

/// How one row's tokens are chosen. The default is greedy with nothing else switched on.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits of what the filters left; 0 is greedy: the largest logit, the lowest id
    /// among equals, and no filter acts.
    pub temperature: f32,
    /// Keeps the likeliest tokens up to and including the one at which their mass reaches this, and
    /// all that are as likely as it; in `[0, 1]`, 0 and 1 are off.
    pub top_p: f32,
    /// Keeps this many tokens, the lowest ids among equals; 0 or the vocabulary and more is off.
    pub top_k: usize,
    /// Keeps tokens at least this likely relative to the likeliest; in `[0, 1]`, 0 is off.
    pub min_p: f32,
    /// How many of the best min-p never drops, the lowest ids among equals; at least 1.
    pub min_tokens_to_keep: usize,
    /// The chance, at each token, that XTC acts; in `[0, 1]`, 0 is off.
    pub xtc_probability: f32,
    /// XTC removes every token likelier than the least likely one above this; in `[0, 0.5]`.
    pub xtc_threshold: f32,
    /// Ids that XTC never removes.
    pub xtc_special_tokens: Vec<u32>,
    /// Divides positive and multiplies negative logits of ids seen lately; above 0, 0 is off.
    pub repetition_penalty: f32,
    /// How many of the last ids `repetition_penalty` looks at, prompt included; 0 is all of them.
    pub repetition_context: usize,
    /// Is subtracted once from the logit of each id seen lately; 0 is off.
    pub presence_penalty: f32,
    /// How many of the last ids `presence_penalty` looks at, prompt included; 0 is all of them.
    pub presence_context: usize,
    /// Is subtracted once per occurrence from the logit of each id seen lately; 0 is off.
    pub frequency_penalty: f32,
    /// How many of the last ids `frequency_penalty` looks at, prompt included; 0 is all of them.
    pub frequency_context: usize,
    /// Is added to the logits of these ids before anything else; an id named twice gets both.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text; without one the sampler takes a fresh one and reports it.
    pub seed: Option<u64>,
    /// Report the chosen token's log-probability and this many of the best; `None` reports nothing
    /// and saves a pass over the vocabulary.
    pub logprobs: Option<usize>,
}

/// How many ids the penalties look back by default.
const CONTEXT: usize = 20;

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 0.0,
            top_k: 0,
            min_p: 0.0,
            min_tokens_to_keep: 1,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            xtc_special_tokens: Vec::new(),
            repetition_penalty: 0.0,
            repetition_context: CONTEXT,
            presence_penalty: 0.0,
            presence_context: CONTEXT,
            frequency_penalty: 0.0,
            frequency_context: CONTEXT,
            logit_bias: Vec::new(),
            seed: None,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Checks every field for a vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// [`Kind::Usage`](crate::Kind::Usage), naming the field and its range.
    pub fn validate(&self, vocab: usize) -> Result<()> {
        self.validate_numbers()?;
        for &(id, bias) in &self.logit_bias {
            known("logit_bias", id, vocab)?;
            finite("logit_bias", bias).map_err(|e| e.at(format!("token {id}")))?;
        }
        self.xtc_special_tokens.iter().try_for_each(|&id| known("xtc_special_tokens", id, vocab))
    }

    /// Checks every field that does not depend on the vocabulary.
    pub(super) fn validate_numbers(&self) -> Result<()> {
        within("temperature", self.temperature, 0.0, f32::MAX)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        if self.min_tokens_to_keep == 0 {
            return Err(Error::usage("min_tokens_to_keep is 0 but must be at least 1"));
        }
        within("xtc_probability", self.xtc_probability, 0.0, 1.0)?;
        within("xtc_threshold", self.xtc_threshold, 0.0, 0.5)?;
        within("repetition_penalty", self.repetition_penalty, 0.0, f32::MAX)?;
        finite("presence_penalty", self.presence_penalty)?;
        finite("frequency_penalty", self.frequency_penalty)
    }

    /// The contexts of the repetition, presence and frequency penalties; `None` for one that
    /// cannot change a logit.
    pub(super) fn contexts(&self) -> [Option<usize>; 3] {
        let repetition = self.repetition_penalty;
        [
            (repetition != 0.0 && repetition != 1.0).then_some(self.repetition_context),
            (self.presence_penalty != 0.0).then_some(self.presence_context),
            (self.frequency_penalty != 0.0).then_some(self.frequency_context),
        ]
    }
}

fn within(field: &str, value: f32, low: f32, high: f32) -> Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let range = if high == f32::MAX {
        format!("a finite number of at least {low}")
    } else {
        format!("a number from {low} to {high}")
    };
    Err(Error::usage(format!("{field} is {value} but must be {range}")))
}

fn finite(field: &str, value: f32) -> Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    Err(Error::usage(format!("{field} is {value} but must be a finite number")))
}

fn known(field: &str, id: u32, vocab: usize) -> Result<()> {
    if usize::try_from(id).is_ok_and(|id| id < vocab) {
        return Ok(());
    }
    Err(Error::usage(format!("{field} names token {id} but the vocabulary has {vocab} ids")))
}
