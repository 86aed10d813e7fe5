//! Heads as operations see them: ways to read the columns of a tensor.
//!
//! Owns their counts and sizes. Refuses nothing: the shape rules do.

/// Which columns of each head turn, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeHeads {
    /// Columns of a head.
    pub dim: usize,
    /// The first that turns.
    pub start: usize,
    /// Pairs are `(2i, 2i + 1)`.
    pub interleaved: bool,
    /// Backwards.
    pub inverse: bool,
}

/// The head counts and sizes of a delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Key heads.
    pub hk: usize,
    /// Value heads, a multiple of `hk`.
    pub hv: usize,
    /// Numbers of a key head.
    pub dk: usize,
    /// Numbers of a value head.
    pub dv: usize,
}

/// The head counts and sizes of a selective scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsmHeads {
    /// Heads.
    pub heads: usize,
    /// Groups of heads that share `b` and `c`.
    pub groups: usize,
    /// Numbers of a head of `x`.
    pub dim: usize,
    /// Numbers of `b` and `c`.
    pub state: usize,
}

impl DeltaHeads {
    /// Columns of all keys (or queries).
    pub const fn keys(&self) -> usize {
        self.hk * self.dk
    }

    /// Columns of all values.
    pub const fn values(&self) -> usize {
        self.hv * self.dv
    }
}
