//! Exact loops in the ids of a text.
//!
//! Owns the last ids and, for each length, how long they have repeated. Refuses loops that are not exact.

/// Ids of a cycle at most.
const LONGEST: usize = 256;

/// A text repeats itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// Ids of one round.
    pub length: usize,
    /// Whole rounds that were written.
    pub times: usize,
}

/// Tells when the last ids of a text are one cycle of 1 to 256 ids, over and over.
///
/// An id costs 256 comparisons, and memory is two numbers for each length, however long the text.
///
/// ```
/// # use longrun_lm::answer::{Cycle, LoopDetector};
/// let mut loops = LoopDetector::new(3, 6);
/// let found: Vec<_> = [9, 1, 2, 1, 2, 1, 2].into_iter().map(|id| loops.push(id)).collect();
/// assert_eq!(found[5], None);
/// assert_eq!(found[6], Some(Cycle { length: 2, times: 3 }));
/// ```
#[derive(Clone, Debug)]
pub struct LoopDetector {
    times: usize,
    tokens: usize,
    /// The last ids, a ring.
    last: Vec<u32>,
    pushed: usize,
    /// `runs[n - 1]`: how many of the last ids equal those `n` before them.
    runs: Vec<usize>,
}

impl LoopDetector {
    /// Finds cycles of at least `times` rounds, two or more, that cover at least `tokens` ids.
    pub fn new(times: usize, tokens: usize) -> Self {
        let (last, runs) = (vec![0; LONGEST], vec![0; LONGEST]);
        Self { times: times.max(2), tokens, last, pushed: 0, runs }
    }

    /// Takes the next id. Gives the shortest cycle that the text ends with and that is long enough.
    pub fn push(&mut self, id: u32) -> Option<Cycle> {
        let at = self.pushed % LONGEST;
        let newest_first = self.last[..at].iter().rev().chain(self.last[at..].iter().rev());
        for (run, old) in self.runs.iter_mut().zip(newest_first).take(self.pushed) {
            *run = if *old == id { *run + 1 } else { 0 };
        }
        self.last[at] = id;
        self.pushed += 1;
        let lengths = self.runs.iter().enumerate().map(|(i, run)| (i + 1, *run));
        let mut long = lengths.filter(|(length, run)| length + run >= self.tokens);
        let (length, run) = long.find(|(length, run)| 1 + run / length >= self.times)?;
        Some(Cycle { length, times: 1 + run / length })
    }
}
