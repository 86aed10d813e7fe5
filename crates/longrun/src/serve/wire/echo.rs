//! The echo of a scored prompt, as the older endpoint of OpenAI has it: each of its tokens with its log-probability.
//!
//! Owns where tokens begin in the text of their prompt, and how much of this a request may ask for. What comes of it is
//! said at once, in front of the first generated token.

use longrun_lm::engine::Score;
use longrun_lm::sample::Choice;

use super::super::error::{ApiError, ApiResult};
use super::super::served::Served;
use super::logprobs::Lists;

/// The most log-probabilities of prompts that an answer has, alternatives included: they are all in memory at the end.
const MOST: usize = 1 << 20;

/// A prompt that is being scored.
pub(super) struct Echo {
    ids: Vec<u32>,
    /// The character at which each token begins.
    offsets: Vec<usize>,
    pub(super) text: String,
    pub(super) lists: Lists,
    /// The tokens that were told.
    told: usize,
}

impl Echo {
    /// Of a prompt with its text; `written` if the text is the client's, and its beginning tokens are not in it.
    pub(super) fn new(
        served: &Served,
        ids: &[u32],
        text: String,
        written: bool,
    ) -> ApiResult<Self> {
        let mut offsets = vec![0; ids.len()];
        if let Some(tokenizer) = &served.source.tokenizer {
            let prefix = tokenizer.prefix();
            let has = !written || tokenizer.encode_bare(&text, true)?.starts_with(prefix);
            let added = if has { 0 } else { prefix.len().min(ids.len()) };
            offsets.truncate(added);
            offsets.extend(tokenizer.offsets(&ids[added..]));
        }
        let (ids, lists) = (ids.to_vec(), Lists::default());
        Ok(Self { ids, offsets, text, lists, told: 0 })
    }

    /// What the engine is asked for: all tokens but the first, which nothing foretells.
    pub(super) fn score(top: usize) -> Score {
        Score { from: 1, top }
    }

    /// Takes the next scores.
    pub(super) fn push(&mut self, served: &Served, scores: &[Choice]) {
        self.begin(served);
        for score in scores {
            let offset = self.offsets.get(self.told).copied().unwrap_or_default();
            self.lists.push(served, score, offset);
            self.told += 1;
        }
    }

    /// The first token.
    pub(super) fn begin(&mut self, served: &Served) {
        if let Some(&id) = self.ids.first().filter(|_| self.told == 0) {
            self.lists.push_first(served, id);
            self.told = 1;
        }
    }
}

/// Whether so many tokens of prompts, each in `choices` texts with `top` alternatives, are few enough.
///
/// # Errors
/// They are not.
pub(super) fn check(tokens: usize, choices: usize, top: usize) -> ApiResult<()> {
    let all = tokens.saturating_mul(choices).saturating_mul(1 + top);
    if all <= MOST {
        return Ok(());
    }
    let what = format!(
        "{tokens} tokens of prompts, {choices} times, with {top} alternatives, are {all} log-probabilities, more than \
         {MOST}; ask for fewer prompts, choices or alternatives"
    );
    Err(ApiError::field("logprobs", what))
}
