//! What adapters add beside a linear layer: `y += B (A x)` with the pair that each row names.
//!
//! Owns finding the pair of a row and the fast kernel. Rows without one are not touched, and a step without any costs a
//! look at its rows.

use super::context::Context;
use super::lanes::{per_isa, sum};
use super::view::{Mat, MatMut, share};
use crate::dims::Axis;
use crate::low_rank::{LowRankRef, LowRankSpec};

/// Outputs of a piece of work.
const PIECE: usize = 256;

/// The pairs of all rows of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a> {
    c: &'a Context<'a>,
    words: &'a [f32],
    spec: LowRankSpec,
    axis: Axis,
}

/// Two matrices, `A [rank, cols]` and `B` turned, `[rank, rows]`.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    a: &'a [f32],
    b: &'a [f32],
    pub(super) rank: usize,
}

impl<'a> Pair<'a> {
    pub(super) fn a(&self, r: usize) -> &'a [f32] {
        let cols = self.a.len() / self.rank;
        &self.a[r * cols..][..cols]
    }

    pub(super) fn b(&self, r: usize) -> &'a [f32] {
        let rows = self.b.len() / self.rank;
        &self.b[r * rows..][..rows]
    }
}

impl<'a> Pairs<'a> {
    pub(super) fn new(c: &'a Context<'a>, l: LowRankRef, axis: Axis) -> Self {
        Self { c, words: c.low_rank(l), spec: l.spec, axis }
    }

    /// Whether any row of the step names a slot.
    fn any(&self) -> bool {
        self.c.b.row_adapter.iter().any(|adapter| *adapter > 0)
    }

    /// The pair of row `i`; none if it names none, or an empty slot.
    pub(super) fn of(&self, i: usize) -> Option<Pair<'a>> {
        let row = self.c.b.token_row[self.c.token(self.axis, i)] as usize;
        let slot = (self.c.b.row_adapter[row] as usize).checked_sub(1)?;
        let LowRankSpec { slots, rank: most, rows, cols } = self.spec;
        assert!(slot < slots, "adapter slot {slot} of {slots}");
        let rank = self.words[slot].to_bits() as usize;
        assert!(rank <= most, "a rank of {rank}, room for {most}");
        let unit = &self.words[self.spec.header() + slot * self.spec.unit()..];
        let (a, rest) = unit.split_at(rank * cols);
        (rank > 0).then_some(Pair { a, b: &rest[..rank * rows], rank })
    }
}

/// Scratch for `A x` of so many rows.
pub(super) fn scratch_bytes(l: Option<LowRankRef>, rows: usize) -> usize {
    l.map_or(0, |l| rows * l.spec.rank * 4)
}

/// Adds to `out` what the pairs of its rows make of `x`. The scratch of `node` has nothing else in it any more.
pub(super) fn add(c: &Context<'_>, x: Mat<'_>, pairs: Pairs<'_>, node: usize, out: &MatMut<'_>) {
    if !pairs.any() {
        return;
    }
    let (most, cols) = (pairs.spec.rank, x.cols);
    let hidden = c.own(node, most);
    share(c.pool, x.rows * most, cols / 8 + 1, |items| {
        for (i, r) in items.map(|item| (item / most, item % most)) {
            if let Some(pair) = pairs.of(i).filter(|pair| r < pair.rank) {
                // SAFETY: each number of the scratch is written by one item.
                let number = unsafe { hidden.write(i, r, 1) };
                number[0] = dot(c.isa, pair.a(r), x.row(i));
            }
        }
    });
    let pieces = out.cols.div_ceil(PIECE);
    share(c.pool, out.rows * pieces, most * PIECE / 8, |items| {
        for (i, at) in items.map(|item| (item / pieces, item % pieces * PIECE)) {
            let Some(pair) = pairs.of(i) else { continue };
            let n = PIECE.min(out.cols - at);
            // SAFETY: the numbers of all rows were written above, and nobody writes them now.
            let hidden = unsafe { hidden.read(i, 0, pair.rank) };
            // SAFETY: each piece of the output belongs to one item.
            add_piece(c.isa, hidden, pair, at, unsafe { out.piece(i, at, n) });
        }
    });
}

per_isa! {
    fn dot(a: &[f32], x: &[f32]) -> f32 {
        let (a, x) = (&a[..x.len()], x);
        sum(x.len(), |i| a[i] * x[i])
    }
}

per_isa! {
    /// Outputs `at..` of the second matrix times `hidden`, rank by rank, then added to `y`.
    fn add_piece(hidden: &[f32], pair: Pair<'_>, at: usize, y: &mut [f32]) {
        let mut added = [0.0_f32; PIECE];
        let added = &mut added[..y.len()];
        for (r, h) in hidden.iter().enumerate() {
            let b = &pair.b(r)[at..][..y.len()];
            added.iter_mut().zip(b).for_each(|(sum, b)| *sum += h * b);
        }
        y.iter_mut().zip(added.iter()).for_each(|(y, added)| *y += added);
    }
}
