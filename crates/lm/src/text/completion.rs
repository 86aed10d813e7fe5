//! The text of one completion as its tokens come: detokenized, and cut at the first stop string.
//!
//! Owns nothing but a detokenizer and a stop matcher, in that order.

use std::sync::Arc;

use super::{Detokenizer, StopMatcher, Tokenizer};
use crate::error::Result;

/// Token ids in, text that may be shown out.
pub struct CompletionText {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    text: String,
}

impl CompletionText {
    /// A completion that goes on with a prompt and ends before any of `stops`.
    ///
    /// # Errors
    /// The stop strings are too many, too long or empty.
    pub fn new(tokenizer: Arc<Tokenizer>, stops: &[String]) -> Result<Self> {
        Ok(Self {
            detokenizer: Detokenizer::continuing(tokenizer),
            stops: StopMatcher::new(stops)?,
            text: String::new(),
        })
    }

    /// Takes one token. Gives the text that can be shown now, and whether a stop string was met: nothing comes after it.
    pub fn push(&mut self, id: u32) -> (&str, bool) {
        self.text.clear();
        let hit = self.stops.push(self.detokenizer.push(id), &mut self.text);
        (&self.text, hit.is_some())
    }

    /// Ends the text: what was held back because it might have become a stop string, or a code point.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        if self.stops.push(&self.detokenizer.flush(), &mut text).is_none() {
            text.push_str(&self.stops.flush());
        }
        text
    }
}
