//! A row's record in a slot state, and the tokens on their way into it: those of its log, then those of the step.
//!
//! Owns where a token's numbers come from, how far the record follows, and the writing of logs. Knows no operation: a
//! token from the log goes through the same code as one of the step, so it has the same bits.

use super::context::{Context, StateMem};
use super::view::{Mat, MatMut, share};

/// Where a row stands. Its tokens are counted from the first in its log on.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) slot: usize,
    /// Nothing was put into the record: it counts as zeros.
    pub(super) fresh: bool,
    /// Position of token 0; what the record holds lies before it.
    pub(super) start: usize,
    /// Tokens in the log.
    logged: usize,
    /// Tokens that go into the record; if there are none, it holds afterwards what it held before.
    pub(super) confirmed: usize,
    /// All tokens.
    pub(super) all: usize,
    /// Where the tokens that are not in the log begin in the step.
    first: usize,
}

impl Row {
    pub(super) fn new(c: &Context<'_>, row: usize) -> Self {
        let of = |field: &[u32]| field[row] as usize;
        let logged = of(c.b.row_logged);
        let start = of(c.b.row_past) - logged;
        Self {
            slot: of(c.b.row_slot),
            fresh: start == 0,
            start,
            logged,
            confirmed: of(c.b.row_confirmed),
            all: logged + of(c.b.row_count),
            first: of(c.b.row_first),
        }
    }

    /// The place of token `i` in the step; `None` for those in the log, whose results nobody wants.
    pub(super) fn token(&self, i: usize) -> Option<usize> {
        i.checked_sub(self.logged).map(|i| self.first + i)
    }

    /// What token `i` brings as `x`, which lies at `at` of a token in the log.
    #[inline]
    pub(super) fn input<'m>(
        &self,
        mem: &'m StateMem,
        i: usize,
        x: Mat<'m>,
        at: usize,
    ) -> &'m [f32] {
        match self.token(i) {
            Some(t) => x.row(t),
            // SAFETY: logs are written by `log` alone, when the kernel is through with the tokens.
            None => unsafe { mem.logged(self.slot, i, at, x.cols) },
        }
    }

    /// Where `spare.len()` numbers at `at` of the result of token `i` go: `spare` itself if nobody wants them.
    ///
    /// # Safety
    /// No other piece of `out` that overlaps is alive.
    #[inline]
    pub(super) unsafe fn result<'o>(
        &self,
        out: &'o MatMut<'_>,
        i: usize,
        at: usize,
        spare: &'o mut [f32],
    ) -> &'o mut [f32] {
        match self.token(i) {
            // SAFETY: promised by the caller.
            Some(t) => unsafe { out.piece(t, at, spare.len()) },
            None => spare,
        }
    }

    /// The plain way of a row: tokens one after the other through `m`, and the record as it was after the confirmed ones.
    pub(super) fn walk(&self, mem: StateMem, mut token: impl FnMut(&mut [f32], usize)) {
        // SAFETY: one thread; slots of different rows differ, and tokens read the log behind the record.
        let record = unsafe { mem.write(self.slot, 0, mem.record()) };
        let mut m = if self.fresh { vec![0.0; record.len()] } else { record.to_vec() };
        for i in 0..self.all {
            token(&mut m, i);
            if i + 1 == self.confirmed {
                record.copy_from_slice(&m);
            }
        }
    }
}

/// Puts what unconfirmed tokens bring into the logs of their rows, `inputs` side by side. Comes last in a kernel.
pub(super) fn log<const N: usize>(c: &Context<'_>, mem: StateMem, inputs: [Mat<'_>; N]) {
    let unconfirmed = |row: Row| row.confirmed.max(row.logged)..row.all;
    let tokens: usize = (0..c.b.rows).map(|row| unconfirmed(Row::new(c, row)).len()).sum();
    if tokens == 0 {
        return;
    }
    let cost = inputs.iter().map(|x| x.cols).sum::<usize>() * tokens / c.b.rows / 16;
    share(c.pool, c.b.rows, cost, |rows| {
        for row in rows.map(|row| Row::new(c, row)) {
            for i in unconfirmed(row) {
                let mut at = 0;
                for x in inputs {
                    // SAFETY: a slot belongs to one row, a row to one thread, and nobody reads logs any more.
                    let to = unsafe { mem.logged_mut(row.slot, i - row.confirmed, at, x.cols) };
                    to.copy_from_slice(row.input(&mem, i, x, 0));
                    at += x.cols;
                }
            }
        }
    });
}
