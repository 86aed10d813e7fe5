//! What tokens leave to later steps: rows copied into a state and out of it.
//!
//! Owns the two copies. A token's unit is its place in the step that wrote; which unit a token reads is a step input,
//! checked at launch.

use super::context::Context;
use super::view::{Mat, MatMut, share};
use crate::state::StateRef;

/// `state[t] = x[t]`
pub(super) fn carry(c: &Context<'_>, x: Mat<'_>, state: StateRef) {
    let units = c.state(state);
    share(c.pool, x.rows, x.cols / 16, |rows| {
        for t in rows {
            // SAFETY: a unit is written by the thread that has its token, and by nothing else.
            unsafe { units.write(t, 0, x.cols) }.copy_from_slice(x.row(t));
        }
    });
}

/// `out[t] = state[carried[row] + i]` for token `i` of its row.
pub(super) fn carried(c: &Context<'_>, state: StateRef, out: &MatMut<'_>) {
    let (b, units) = (&c.b, c.state(state));
    out.for_rows(c.pool, out.cols / 16, |t, to| {
        let row = b.token_row[t] as usize;
        let unit = b.row_carried[row] as usize + t - b.row_first[row] as usize;
        // SAFETY: nothing writes states while this kernel runs.
        to.copy_from_slice(unsafe { units.read(unit, 0, to.len()) });
    });
}
