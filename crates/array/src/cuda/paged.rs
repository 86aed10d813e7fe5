//! What is written into paged states: rows, in the bytes that `Layout::encode` defines.

use super::recorder::Recorder;
use super::sources::Family;
use crate::op::Id;
use crate::state::StateRef;

/// Writes row `t` of `x` at its position, for every token; or at its group's entry, for the last token of each group. A
/// warp has a head of a token.
pub(super) fn write(r: &mut Recorder<'_>, x: Id, state: StateRef) -> Result<(), String> {
    let (step, x, state) = (r.step()?, r.get(x)?, r.state(state)?);
    let grid = [state.heads, r.room(&x), 1];
    r.launch((Family::Paged, "write_kv"), grid, [32, 1, 1]).arg(step).arg(x).arg(state);
    Ok(())
}
