//! Plan keys: a closed set, so that the table of plans can't grow with lengths, positions or any other number.
//!
//! A key is made of capacities. The live counts are step inputs, which kernels read.

/// Room for tokens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Tokens {
    T1,
    T16,
    T64,
    T256,
    T512,
}

/// Room for rows (sequences) in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Rows {
    R1,
    R4,
    R16,
    R64,
}

/// Which tokens of a step have a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outputs {
    /// None: a piece of a prompt. The head is dropped as dead code.
    None,
    /// At most one a row.
    PerRow,
    /// Any token.
    PerToken,
}

/// What a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Head {
    /// Scores over the whole vocabulary.
    Logits,
    /// The last hidden state, after the last norm.
    Hidden,
    /// Scores by a head that guesses one token further, from what the tokens of a step before have left: a step of its
    /// own.
    Draft,
}

impl Tokens {
    /// The ladder, small to large.
    pub const ALL: [Self; 5] = [Self::T1, Self::T16, Self::T64, Self::T256, Self::T512];

    /// The capacity.
    pub const fn capacity(self) -> usize {
        [1, 16, 64, 256, 512][self as usize]
    }
}

impl Rows {
    /// The ladder, small to large.
    pub const ALL: [Self; 4] = [Self::R1, Self::R4, Self::R16, Self::R64];

    /// The capacity.
    pub const fn capacity(self) -> usize {
        [1, 4, 16, 64][self as usize]
    }
}

impl Outputs {
    const ALL: [Self; 3] = [Self::None, Self::PerRow, Self::PerToken];
}

impl Head {
    const ALL: [Self; 3] = [Self::Logits, Self::Hidden, Self::Draft];
}

/// The key of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Room for tokens.
    pub tokens: Tokens,
    /// Room for rows.
    pub rows: Rows,
    /// Which tokens have a result.
    pub outputs: Outputs,
    /// What a result is.
    pub head: Head,
}

impl Key {
    /// How many keys there are.
    pub const COUNT: usize =
        Tokens::ALL.len() * Rows::ALL.len() * Outputs::ALL.len() * Head::ALL.len();

    /// The most tokens and rows of any key.
    pub const MOST: (usize, usize) = (512, 64);

    /// The smallest key with room for `tokens` and `rows`, if there is one.
    pub fn fit(tokens: usize, rows: usize, outputs: Outputs, head: Head) -> Option<Self> {
        let tokens = Tokens::ALL.into_iter().find(|t| t.capacity() >= tokens)?;
        let rows = Rows::ALL.into_iter().find(|r| r.capacity() >= rows)?;
        Some(Self { tokens, rows, outputs, head })
    }

    /// The place of the key in a dense table of [`COUNT`](Self::COUNT).
    pub const fn index(self) -> usize {
        let i = self.tokens as usize;
        let i = i * Rows::ALL.len() + self.rows as usize;
        let i = i * Outputs::ALL.len() + self.outputs as usize;
        i * Head::ALL.len() + self.head as usize
    }

    /// Room for results.
    pub const fn output_capacity(self) -> usize {
        match self.outputs {
            Outputs::None => 0,
            Outputs::PerRow => {
                let (t, r) = (self.tokens.capacity(), self.rows.capacity());
                if t < r { t } else { r }
            }
            Outputs::PerToken => self.tokens.capacity(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fill_the_table_without_gaps() {
        let mut seen = vec![false; Key::COUNT];
        for tokens in Tokens::ALL {
            for rows in Rows::ALL {
                for outputs in Outputs::ALL {
                    for head in Head::ALL {
                        let i = Key { tokens, rows, outputs, head }.index();
                        assert!(!std::mem::replace(&mut seen[i], true));
                    }
                }
            }
        }
        assert!(seen.into_iter().all(|s| s));
        assert_eq!(Key::MOST.0, Tokens::T512.capacity());
        assert_eq!(Key::MOST.1, Rows::R64.capacity());
    }

    #[test]
    fn the_smallest_room_is_taken() {
        let key = Key::fit(17, 2, Outputs::PerRow, Head::Logits).unwrap();
        assert_eq!((key.tokens, key.rows), (Tokens::T64, Rows::R4));
        assert_eq!(Key::fit(513, 1, Outputs::None, Head::Logits), None);
        assert_eq!(Key::fit(1, 65, Outputs::None, Head::Logits), None);
    }
}
