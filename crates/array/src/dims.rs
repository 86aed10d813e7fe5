//! Shapes of a step's tensors: always two-dimensional, and the first dimension is a capacity.
//!
//! A step is ragged: a flat list of tokens. How many of them are alive is data, so a shape names the *axis* that
//! counts its rows and the number of columns, nothing else. Heads are a way to read columns, not a dimension.

/// What the rows of a tensor stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// One row a token of the step.
    Tokens,
    /// One row a token whose result is wanted.
    Outputs,
}

/// The shape of a tensor: `[live count of rows, cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// What a row stands for.
    pub rows: Axis,
    /// Numbers (f32) in a row.
    pub cols: usize,
}

impl Shape {
    /// `[tokens, cols]`.
    pub const fn tokens(cols: usize) -> Self {
        Self { rows: Axis::Tokens, cols }
    }
}
