//! How kernels see a step: matrices inside of the arena, and rows handed out to threads.
//!
//! Owns the raw pointers of a launch, so that kernels are written on slices. What makes it sound: the planner never
//! lets two tensors that are alive together overlap, a kernel writes only its own output and scratch, and work is
//! handed out in disjoint pieces.

use std::marker::PhantomData;
use std::ops::Range;

use super::pool::{MOST_UNITS, Pool};

/// A tensor that a kernel reads, `[rows, cols]`.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    ptr: *const f32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    life: PhantomData<&'a [f32]>,
}

// SAFETY: a `Mat` is a shared borrow of numbers.
unsafe impl Sync for Mat<'_> {}
// SAFETY: as above.
unsafe impl Send for Mat<'_> {}

impl<'a> Mat<'a> {
    /// # Safety
    /// `rows` rows of `cols` numbers, `stride` apart, are readable at `ptr` and not written for `'a`.
    pub(crate) unsafe fn new(ptr: *const f32, rows: usize, cols: usize, stride: usize) -> Self {
        Self { ptr, rows, cols, stride, life: PhantomData }
    }

    #[inline]
    pub(crate) fn row(&self, i: usize) -> &'a [f32] {
        assert!(i < self.rows);
        // SAFETY: the row is inside of what `new` was promised.
        unsafe { std::slice::from_raw_parts(self.ptr.add(i * self.stride), self.cols) }
    }

    /// One row.
    pub(crate) fn of(row: &'a [f32]) -> Self {
        Self { ptr: row.as_ptr(), rows: 1, cols: row.len(), stride: row.len(), life: PhantomData }
    }

    /// Some of the rows.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        // SAFETY: the rows are inside of what `new` was promised.
        Self { ptr: unsafe { self.ptr.add(rows.start * self.stride) }, rows: rows.len(), ..*self }
    }

    /// All rows with what lies between them.
    pub(crate) fn numbers(&self) -> &'a [f32] {
        let len =
            self.rows.saturating_sub(1) * self.stride + if self.rows > 0 { self.cols } else { 0 };
        // SAFETY: between the rows lie padding or other columns of the same tensor, which nobody writes either.
        unsafe { std::slice::from_raw_parts(self.ptr, len) }
    }
}

/// A tensor that a kernel writes, `[rows, cols]`.
pub(crate) struct MatMut<'a> {
    ptr: *mut f32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: rows are handed out to threads only in disjoint pieces, by the `unsafe` methods' contract.
unsafe impl Sync for MatMut<'_> {}

impl MatMut<'_> {
    /// # Safety
    /// `rows` rows of `cols` numbers, `stride` apart, are valid at `ptr` and nobody else touches them for `'a`.
    pub(crate) unsafe fn new(ptr: *mut f32, rows: usize, cols: usize, stride: usize) -> Self {
        Self { ptr, rows, cols, stride, life: PhantomData }
    }

    /// Columns `at..at + len` of row `i`.
    ///
    /// # Safety
    /// No other piece that overlaps is alive.
    #[inline]
    #[allow(clippy::mut_from_ref)] // disjoint pieces of one output are what threads share
    pub(crate) unsafe fn piece(&self, i: usize, at: usize, len: usize) -> &mut [f32] {
        assert!(i < self.rows && at + len <= self.cols);
        // SAFETY: the piece is inside of what `new` was promised; the caller promises that it is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(i * self.stride + at), len) }
    }

    pub(crate) fn ptr(&self) -> *mut f32 {
        self.ptr
    }

    /// Calls `f(row, group, piece)` for each group of `group` columns of each row. `cost` is the work of one piece, in
    /// about nanoseconds: small amounts stay on the calling thread.
    pub(crate) fn for_groups(
        &self,
        pool: &Pool,
        group: usize,
        cost: usize,
        f: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        let groups = self.cols / group;
        share(pool, self.rows * groups, cost, |items| {
            for item in items {
                let (i, g) = (item / groups, item % groups);
                // SAFETY: each item is one group of one row, and each item is handed out once.
                f(i, g, unsafe { self.piece(i, g * group, group) });
            }
        });
    }

    /// Calls `f(row, piece)` for each row.
    pub(crate) fn for_rows(&self, pool: &Pool, cost: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
        self.for_groups(pool, self.cols, cost, |i, _, row| f(i, row));
    }
}

/// Work below this (in about nanoseconds) stays on the calling thread.
const WORTH_SHARING: usize = 3_000;

/// Work below this is not worth waking a thread for: those that are awake may take part.
const WORTH_WAKING: usize = 10_000;

/// Work of the smallest chunk (in about nanoseconds): taking one costs a twentieth of this.
const UNIT: usize = 1_000;

/// Cuts `items` into ranges for threads to take and calls `f` with each. Which thread gets which items changes nothing:
/// the result of an item depends on the item alone.
pub(crate) fn share(pool: &Pool, items: usize, cost: usize, f: impl Fn(Range<usize>) + Sync) {
    share_by(pool, items, cost, |_, items| f(items));
}

/// The same, with the number of the thread before the range: for what a thread has of its own.
pub(crate) fn share_by(
    pool: &Pool,
    items: usize,
    cost: usize,
    f: impl Fn(usize, Range<usize>) + Sync,
) {
    let all = items.saturating_mul(cost);
    if pool.threads() == 1 || items <= 1 || all < WORTH_SHARING {
        return f(0, 0..items);
    }
    let unit = UNIT.div_ceil(cost.max(1)).max(items.div_ceil(MOST_UNITS));
    pool.run(items.div_ceil(unit), all >= WORTH_WAKING, &|thread, units| {
        f(thread, units.start * unit..(units.end * unit).min(items));
    });
}
