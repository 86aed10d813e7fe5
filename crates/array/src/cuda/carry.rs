//! What tokens leave to later steps: rows copied into a state and out of it.

use super::recorder::Recorder;
use super::sources::Family;
use crate::op::Id;
use crate::state::StateRef;

/// Threads of a block.
const BLOCK: u32 = 256;

/// `state[t] = x[t]`
pub(super) fn carry(r: &mut Recorder<'_>, x: Id, state: StateRef) -> Result<(), String> {
    let (step, x, state) = (r.step()?, r.get(x)?, r.state(state)?);
    let grid = [x.cols.div_ceil(BLOCK), r.room(&x), 1];
    r.launch((Family::Carry, "carry"), grid, [BLOCK, 1, 1]).arg(step).arg(x).arg(state);
    Ok(())
}

/// `out[t] = state[carried[row] + i]` for token `i` of its row.
pub(super) fn carried(r: &mut Recorder<'_>, state: StateRef) -> Result<(), String> {
    let (step, out, state) = (r.step()?, r.out()?, r.state(state)?);
    let grid = [out.cols.div_ceil(BLOCK), r.room(&out), 1];
    r.launch((Family::Carry, "carried"), grid, [BLOCK, 1, 1]).arg(step).arg(state).arg(out);
    Ok(())
}
