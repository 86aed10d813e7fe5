//! What a row has said lately, as counts per token id.
//!
//! Owns the windows over prompt and generated ids that the penalties of one request look at. Memory
//! is bounded by the largest window, or by the number of distinct ids when a context of 0 asks for
//! the whole history. Refuses to keep the text: a window of 20 remembers 20 ids.

use std::collections::{HashMap, VecDeque};

use super::SamplingParams;

/// The last ids of a row, prompt included, as far as its penalties need them.
#[derive(Clone, Debug)]
pub struct History {
    /// The last ids, oldest first; at most `longest` of them.
    recent: VecDeque<u32>,
    longest: usize,
    windows: Vec<Window>,
    len: u64,
}

/// Counts over the last `context` ids; over all of them if `context` is 0.
#[derive(Clone, Debug)]
struct Window {
    context: usize,
    counts: HashMap<u32, u64>,
}

impl History {
    /// An empty history with the windows that the penalties of `params` need; none without any.
    pub fn new(params: &SamplingParams) -> Self {
        let mut windows: Vec<Window> = Vec::new();
        for context in params.contexts().into_iter().flatten() {
            if windows.iter().all(|w| w.context != context) {
                windows.push(Window { context, counts: HashMap::new() });
            }
        }
        let longest = windows.iter().map(|w| w.context).max().unwrap_or(0);
        Self { recent: VecDeque::new(), longest, windows, len: 0 }
    }

    /// Ids of the text that it still holds.
    pub fn ids_held(&self) -> usize {
        self.recent.len()
    }

    /// Adds one id, prompt or generated.
    pub fn push(&mut self, id: u32) {
        self.len += 1;
        let held = self.recent.len();
        for window in &mut self.windows {
            // `recent` holds at least `context` ids once that many were pushed.
            let leaves = window.context > 0 && held >= window.context;
            if leaves && let Some(&old) = self.recent.get(held - window.context) {
                window.forget(old);
            }
            *window.counts.entry(id).or_insert(0) += 1;
        }
        if self.longest > 0 {
            if held == self.longest {
                self.recent.pop_front();
            }
            self.recent.push_back(id);
        }
    }

    /// Adds ids in order.
    pub fn extend(&mut self, ids: &[u32]) {
        for &id in ids {
            self.push(id);
        }
    }

    /// How many ids were added in all.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How often each id occurs in the last `context` ids, in no particular order; `None` if the
    /// history was not made for such a window.
    pub(super) fn counts(&self, context: usize) -> Option<impl Iterator<Item = (u32, u64)>> {
        let window = self.windows.iter().find(|w| w.context == context)?;
        Some(window.counts.iter().map(|(&id, &count)| (id, count)))
    }

    /// Ids and counts held now.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.recent.len() + self.windows.iter().map(|w| w.counts.len()).sum::<usize>()
    }

    /// Ids and counts there is room for now.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.recent.capacity() + self.windows.iter().map(|w| w.counts.capacity()).sum::<usize>()
    }
}

impl Window {
    fn forget(&mut self, id: u32) {
        if let Some(count) = self.counts.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&id);
            }
        }
    }
}
