//! Drafts: guesses of what a row will say next, so that one step can read several tokens.
//!
//! Owns the guessing. What is guessed never changes a text: the engine chooses every token itself, by the logits of the
//! model, its own sampler, seed and position, and goes on with a draft only where it has chosen the same. So a bad guess
//! costs time and a good one saves a step.

mod lookup;
mod model;
mod mtp;

use crate::cache::Sequence;
use crate::error::Result;
use crate::executor::Executor;
use crate::sample::{History, Sampler};

pub use lookup::Lookup;
pub use model::DraftModel;
pub use mtp::Mtp;

/// One row that wants drafts.
pub struct Ask<'a> {
    /// Which row: a number that no other row ever has.
    pub row: u64,
    /// Its text; the last token was chosen and not yet read by the model.
    pub ids: &'a [u32],
    /// How many tokens it may come to: its positions may depend on that.
    pub text_most: usize,
    /// How many drafts it can use.
    pub most: usize,
    /// How the row chooses: a drafter that asks it guesses more often right.
    pub chooser: Chooser<'a>,
    /// The drafts; empty when asked.
    pub drafts: &'a mut Vec<u32>,
}

/// What the model has just read of one row.
pub struct Read<'a> {
    /// Which row.
    pub row: u64,
    /// Its place in the executor's caches. It has read its text up to `seq.past`, where the next token is known already.
    pub seq: &'a mut Sequence,
    /// Its text.
    pub ids: &'a [u32],
    /// How much of it was read before.
    pub from: usize,
    /// How many tokens of other rows stood in the step before its own.
    pub carried: usize,
    /// How many drafts it can use next.
    pub most: usize,
    /// How it chooses.
    pub chooser: Chooser<'a>,
}

/// How a row chooses its tokens, its seed and all.
pub struct Chooser<'a> {
    /// Its sampler.
    pub sampler: &'a mut Sampler,
    /// What its penalties look at, as it is now.
    pub history: &'a History,
}

impl Chooser<'_> {
    /// The token at `position` by these logits; none if they are broken.
    pub fn choose(&mut self, logits: &mut [f32], position: usize) -> Option<u32> {
        let choice = self.sampler.sample(logits, self.history, position as u64);
        choice.ok().map(|choice| choice.id)
    }
}

/// Guesses what rows say next.
pub trait Draft: Send {
    /// The most drafts a row.
    fn most(&self) -> usize;

    /// Guesses for some rows. A row of which it knows nothing gets nothing.
    ///
    /// # Errors
    /// The drafter can't go on; the engine goes on without it.
    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<()>;

    /// Called after each step of the model, before anything else is read: what it has left for the next step is there.
    /// Does nothing unless told otherwise.
    ///
    /// # Errors
    /// As [`draft`](Self::draft).
    fn observe(&mut self, exec: &mut Executor, reads: &mut [Read<'_>]) -> Result<()> {
        let _ = (exec, reads);
        Ok(())
    }

    /// A row has left: what is held for it goes.
    fn release(&mut self, row: u64);
}
