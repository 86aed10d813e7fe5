//! Steps of the head that guesses further tokens.
//!
//! Owns what such a step reads. A step of the model leaves the last hidden state of each of its tokens where the next
//! step finds it; a step of the head reads these beside the tokens that came after, and leaves its own in their place.

use longrun_array::{Head, Key, Outputs, RowInput, Wanted};

use super::{Executor, too_large};
use crate::cache::Sequence;
use crate::error::Result;

/// One row of a step of the head.
#[derive(Clone, Copy, Debug)]
pub struct MtpSpan<'a> {
    /// Not moved by the step. It has to hold blocks for the positions.
    pub seq: &'a Sequence,
    /// For each token whose hidden state is read, the one after it.
    pub ids: &'a [u32],
    /// The position of the first of those whose hidden states are read.
    pub past: usize,
    /// Its place in the last step: how many tokens of all rows stood before it.
    pub carried: usize,
    /// Scores are wanted for what follows the last of `ids`.
    pub wanted: bool,
}

/// The key of a step. Few results are no key of their own: kernels look at how many there are.
pub(super) fn key(tokens: usize, rows: usize) -> Option<Key> {
    Key::fit(tokens, rows, Outputs::PerRow, Head::Draft)
}

impl Executor {
    /// Whether the head that guesses further tokens was loaded.
    pub fn has_mtp(&self) -> bool {
        self.mtp
    }

    /// Runs one step of that head. Gives the wanted scores, `[results, vocab]`, row after row.
    ///
    /// # Errors
    /// The head was not loaded, the rows don't fit the room, or the step fails.
    pub fn run_mtp(&mut self, spans: &[MtpSpan<'_>]) -> Result<&mut [f32]> {
        let tokens = spans.iter().map(|s| s.ids.len()).sum();
        self.inputs.begin(key(tokens, spans.len()).ok_or_else(|| too_large(tokens, spans.len()))?);
        for span in spans {
            self.inputs.push(RowInput {
                ids: span.ids,
                past: span.past,
                logged: 0,
                confirmed: span.ids.len(),
                slot: span.seq.slot,
                // Guesses are made without: a row's adapter has its say when they are verified.
                adapter: 0,
                wanted: if span.wanted { Wanted::Last } else { Wanted::None },
                stretch: span.seq.stretch,
                carried: span.carried,
                tables: span.seq.used_tables(),
            })?;
        }
        let count = self.launch(self.vocab)?;
        Ok(&mut self.results[..count])
    }
}
