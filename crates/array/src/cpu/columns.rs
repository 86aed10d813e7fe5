//! Columns of a record that tokens run through: in place, or on memory of the thread's own.
//!
//! Owns where they lie while that happens. Columns do not depend on each other, so they are the pieces of work of those
//! operations whose records are matrices; what a token does to them is not known here.

use std::ops::Range;

use super::context::StateMem;
use super::lanes::LANES;
use super::record::Row;
use crate::op::{DeltaHeads, Op, SsmHeads};
use crate::plan::Plan;

/// Columns that one piece of work takes.
pub(super) const COLUMNS: usize = 2 * LANES;

/// Confirmed tokens from which on columns are worth a copy: rows of a record are far apart and share few places of the
/// first cache, rows of a copy lie side by side.
const WORTH_COPYING: usize = 4;

/// Scratch of a [`Op::DeltaRule`] or [`Op::Ssm`]: for each thread columns of a head.
pub(super) fn scratch_bytes(plan: &Plan, node: usize, threads: usize) -> usize {
    let rows = match plan.nodes[node].op {
        Op::DeltaRule { heads: DeltaHeads { dk, .. }, .. } => dk,
        Op::Ssm { heads: SsmHeads { state, .. }, .. } => state,
        _ => return 0,
    };
    threads * rows * COLUMNS * size_of::<f32>()
}

/// `n` columns of one head's record, whose `rows` rows are `stride` apart. They belong to one piece of work.
pub(super) struct Columns {
    pub(super) mem: StateMem,
    pub(super) slot: usize,
    pub(super) start: usize,
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) n: usize,
}

/// Columns as kernels take them: a whole number of [`LANES`], the last of which may be nobody's.
#[derive(Clone, Copy)]
pub(super) struct Lanes {
    pub(super) ptr: *mut f32,
    pub(super) stride: usize,
    pub(super) rows: usize,
}

impl Columns {
    #[allow(clippy::mut_from_ref)]
    fn row(&self, i: usize) -> &mut [f32] {
        // SAFETY: the columns belong to one piece of work; its rows are borrowed one at a time.
        unsafe { self.mem.write(self.slot, self.start + i * self.stride, self.n) }
    }

    fn copy_to(&self, to: &Self) {
        (0..self.rows).for_each(|i| to.row(i).copy_from_slice(self.row(i)));
    }

    fn clear(&self) {
        (0..self.rows).for_each(|i| self.row(i).fill(0.0));
    }

    fn lanes(&self) -> Lanes {
        let len = self.rows.saturating_sub(1) * self.stride + self.n.next_multiple_of(LANES);
        let ptr = self.mem.numbers(self.slot, self.start, len);
        Lanes { ptr, stride: self.stride, rows: self.rows }
    }

    /// Takes a row's tokens through these columns of its record: the confirmed ones in place or on a copy that is
    /// written back, the others on a copy that is not. Copies lie in the thread's piece of `own`.
    pub(super) fn run(
        self,
        row: &Row,
        (own, thread): (StateMem, usize),
        tokens: impl Fn(Lanes, Range<usize>),
    ) {
        let copy = Self { mem: own, slot: thread, start: 0, stride: COLUMNS, ..self };
        let fetch = || {
            if self.n < COLUMNS {
                // What is nobody's must be numbers, or it slows down those beside it.
                Self { n: COLUMNS, ..copy }.clear();
            }
            if row.fresh { copy.clear() } else { self.copy_to(&copy) }
        };
        if row.confirmed == 0 {
            fetch();
        } else if row.confirmed < WORTH_COPYING && self.n.is_multiple_of(LANES) {
            if row.fresh {
                self.clear();
            }
            tokens(self.lanes(), 0..row.confirmed);
            if row.confirmed < row.all {
                self.copy_to(&copy);
            }
        } else {
            fetch();
            tokens(copy.lanes(), 0..row.confirmed);
            copy.copy_to(&self);
        }
        if row.confirmed < row.all {
            tokens(copy.lanes(), row.confirmed..row.all);
        }
    }
}

impl Lanes {
    /// Where row `i` starts.
    ///
    /// # Safety
    /// `i` is below `rows`.
    #[inline(always)]
    pub(super) unsafe fn row(&self, i: usize) -> *mut f32 {
        // SAFETY: `Columns::lanes` has found all rows inside of the memory.
        unsafe { self.ptr.add(i * self.stride) }
    }
}
