//! Scripts in which some tokens turn out wrong: rows that verify drafts, rows that draft, rows that do neither.

use longrun_array::Key;

use super::{CHUNK, IDS, Rng, Row, Sequence};

/// The most tokens of a log.
pub const DEPTH: usize = 5;

/// A sequence on its way.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Tokens that were put into its records.
    confirmed: usize,
    /// Tokens in its log.
    logged: usize,
    /// Those of them that are right, from the start on.
    right: usize,
}

/// One row of a script.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The number of the sequence.
    pub sequence: usize,
    pub row: Row,
    /// How many of its tokens are those of the sequence, with nothing wrong before them.
    pub right: usize,
}

impl Place {
    /// A row of `n` tokens behind `logged` tokens of the log. The last `drafts` of all these stay out of the records, and
    /// the last `wrong` are not those of the sequence.
    fn row(&mut self, rng: &mut Rng, s: &Sequence, [logged, n, drafts, wrong]: [usize; 4]) -> Row {
        let past = self.confirmed + logged;
        let mut row = Row { logged, drafts, ..s.row(past, past + n) };
        for id in &mut row.ids[n - wrong..] {
            *id = (*id + rng.int(1, IDS - 1) as u32) % IDS as u32;
        }
        let confirmed = logged + n - drafts;
        let right = if logged > self.right { self.right } else { logged + n - wrong };
        *self = Self {
            confirmed: self.confirmed + confirmed,
            logged: drafts,
            right: right - confirmed,
        };
        row
    }

    /// The next row and how many of its tokens are right, or nothing.
    fn step(&mut self, rng: &mut Rng, s: &Sequence) -> Option<(Row, usize)> {
        let whole = s.ids.len() - self.confirmed;
        // What is kept of the log: often all that is right.
        let right = if rng.int(0, 2) > 0 { self.right } else { rng.int(0, self.right) };
        let kind = rng.int(0, 6);
        // Drafts go on behind anything, wrong tokens too.
        let logged = if kind < 3 { [right, self.logged][rng.int(0, 1)] } else { right };
        let most = match kind {
            0..3 => 2.min(DEPTH - logged),
            3..6 => DEPTH,
            _ => CHUNK,
        };
        let most = most.min(whole - logged);
        if most == 0 || rng.int(0, 7) == 0 {
            return None;
        }
        let n = rng.int(1, most);
        let drafts = match kind {
            0..3 => logged + n,
            3..6 => rng.int(0, n),
            _ => 0,
        };
        let wrong = rng.int(0, drafts.min(n));
        let known = if logged > self.right { 0 } else { n - wrong };
        Some((self.row(rng, s, [logged, n, drafts, wrong]), known))
    }

    fn done(&self, s: &Sequence) -> bool {
        self.confirmed == s.ids.len()
    }
}

/// Cuts sequences into steps at random, until every token of each is in its records.
pub fn drafts(rng: &mut Rng, sequences: &[Sequence]) -> Vec<Vec<Draft>> {
    let mut places = vec![Place::default(); sequences.len()];
    let mut steps = Vec::new();
    while places.iter().zip(sequences).any(|(place, s)| !place.done(s)) {
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        rng.shuffle(&mut order);
        let mut step = Vec::new();
        order.retain(|&i| !places[i].done(&sequences[i]));
        for sequence in order {
            let row = places[sequence].step(rng, &sequences[sequence]);
            step.extend(row.map(|(row, right)| Draft { sequence, row, right }));
        }
        if !step.is_empty() {
            steps.push(step);
        }
    }
    steps
}

/// The key that a step of a script takes.
pub fn key(step: &[Draft]) -> Key {
    super::script_key(step.iter().map(|draft| &draft.row))
}
