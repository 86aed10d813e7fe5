//! What the engine has done so far, as numbers.

use crate::prefix::Miss;

/// Counts since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Steps.
    pub steps: u64,
    /// Tokens of prompts that were read.
    pub prompt_tokens: u64,
    /// Tokens of prompts that need not be read.
    pub cached_tokens: u64,
    /// Tokens that were chosen.
    pub generated_tokens: u64,
    /// Drafts that were read.
    pub drafted: u64,
    /// Those that were right.
    pub accepted: u64,
    /// Requests that have got a place.
    pub started: u64,
    /// Those that finished.
    pub finished: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
    /// Times that a row lost its place because memory was short.
    pub preempted: u64,
    /// Starts that found a beginning of their prompt.
    pub hits: u64,
    /// Starts that did not, by [`Miss::NAMES`].
    pub misses: [u64; Miss::NAMES.len()],
    /// Snapshots that had to go for others or for rows.
    pub evicted: u64,
}

impl Stats {
    pub(super) fn count_start(&mut self, cached: usize, miss: Option<Miss>) {
        self.started += 1;
        self.cached_tokens += cached as u64;
        match miss {
            None => self.hits += 1,
            Some(miss) => {
                let i = Miss::NAMES.iter().position(|name| *name == miss.name());
                self.misses[i.unwrap_or(0)] += 1;
            }
        }
    }
}
