//! A grammar beside one row: which tokens are possible next.
//!
//! Owns how far the text has come in the grammar. Refuses to choose a token.

use std::fmt::Display;
use std::sync::Arc;

use llguidance::Matcher;

use super::compile::{guarded, sentence};
use super::vocabulary::Vocabulary;
use crate::engine::TokenMask;
use crate::error::{Error, Kind, Result};

pub(super) struct GrammarMask {
    vocabulary: Arc<Vocabulary>,
    /// The beginning of the grammar, to begin anew from.
    ready: Arc<Matcher>,
    /// None after it could not be copied: the row that it was for ends with an error.
    matcher: Option<Matcher>,
    said: Vec<u32>,
    /// How much was said when the matcher was last made.
    made_at: usize,
    ended: bool,
}

/// Tokens between two matchers at least: reading the text anew costs microseconds a token.
const APART: usize = 64;
/// Tokens that are read anew between two masks.
const REREAD: usize = 2048;

impl GrammarMask {
    /// A mask at the beginning of the grammar. It shares no cache with another one, so that what a row may say, and what
    /// it costs, does not depend on others.
    pub(super) fn new(vocabulary: Arc<Vocabulary>, ready: Arc<Matcher>) -> Self {
        let matcher = copy(&ready);
        Self { vocabulary, ready, matcher, said: Vec::new(), made_at: 0, ended: false }
    }

    /// Asks the matcher. It keeps every state that it has looked at, also those that the text did not take, which are
    /// some ten for each character of a text of bounded length. When that is too many, another one reads the text anew.
    fn ask<T, E: Display>(
        &mut self,
        question: impl Fn(&mut Matcher) -> std::result::Result<T, E>,
    ) -> Result<T> {
        let Some(matcher) = &mut self.matcher else {
            return Err(failed("its state could not be copied"));
        };
        let error = match question(matcher) {
            Ok(answer) => return Ok(answer),
            Err(error) => error.to_string(),
        };
        if !error.contains("too many states") || self.said.len() < self.made_at + APART {
            return Err(failed(&error));
        }
        self.made_at = self.said.len();
        self.matcher = copy(&self.ready);
        let Some(matcher) = &mut self.matcher else { return Err(failed(&error)) };
        for said in self.said.chunks(REREAD) {
            matcher.consume_tokens(said).map_err(|e| failed(&e.to_string()))?;
            // Each mask may cost as much as the last one.
            matcher.compute_mask_or_eos().map_err(|e| failed(&e.to_string()))?;
        }
        question(matcher).map_err(|e| failed(&e.to_string()))
    }

    /// Whether nothing can follow but the end.
    fn is_complete(&self) -> bool {
        self.matcher.as_ref().is_some_and(|m| !m.is_error() && m.is_stopped())
    }
}

fn copy(matcher: &Matcher) -> Option<Matcher> {
    guarded(Kind::Bug, || Ok(matcher.deep_clone())).ok()
}

fn failed(why: &str) -> Error {
    let hint = "the grammar allows too much at once, or text that the vocabulary can't write";
    Error::new(Kind::Limit, format!("the text can't go on: {}", sentence(why)))
        .at("grammar")
        .hint(hint)
}

impl TokenMask for GrammarMask {
    fn apply(&mut self, logits: &mut [f32]) -> Result<()> {
        let size = self.vocabulary.size();
        if logits.len() != size {
            let what = format!("{} logits for a grammar of {size} ids", logits.len());
            return Err(Error::new(Kind::Bug, what));
        }
        let possible = self.ask(Matcher::compute_mask_or_eos)?;
        keep_only(logits, possible.as_slice());
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        let is_end = self.vocabulary.ends().contains(&id);
        if self.is_complete() {
            self.ended = true;
            return if is_end { Ok(()) } else { Err(failed("it is complete")) };
        }
        self.ask(|matcher| matcher.consume_token(id))?;
        self.said.push(id);
        // A text that is over without being complete is so by an end that was chosen, or there is none to choose.
        self.ended = self.is_complete() && (self.vocabulary.ends().is_empty() || is_end);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.ended
    }

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(Self {
            vocabulary: self.vocabulary.clone(),
            ready: self.ready.clone(),
            matcher: self.matcher.as_ref().and_then(copy),
            said: self.said.clone(),
            ..*self
        })
    }
}

/// Sets logits to negative infinity whose bit is not set, the first one being the lowest.
fn keep_only(logits: &mut [f32], possible: &[u32]) {
    let mut words = possible.iter();
    for logits in logits.chunks_mut(u32::BITS as usize) {
        match words.next().copied().unwrap_or(0) {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            word => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::keep_only;

    #[test]
    fn a_bit_is_a_logit() {
        let mut logits: Vec<f32> = (0..99).map(|i| i as f32).collect();
        keep_only(&mut logits, &[1 << 31 | 5, u32::MAX, 0, 4]);
        let kept: Vec<usize> = (0..99).filter(|&i| logits[i] == i as f32).collect();
        let want: Vec<usize> = [0, 2, 31].into_iter().chain(32..64).chain([98]).collect();
        assert_eq!(kept, want);
        assert!((0..99).all(|i| kept.contains(&i) || logits[i] == f32::NEG_INFINITY));
        keep_only(&mut logits, &[]);
        assert!(logits.iter().all(|l| *l == f32::NEG_INFINITY));
    }
}
