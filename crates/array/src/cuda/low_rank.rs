//! What adapters add beside a linear layer: `y += B (A x)` with the pair that each row names.

use super::recorder::{Recorder, WARP};
use super::sources::Family;
use crate::low_rank::LowRankRef;
use crate::op::Id;

/// Threads of a block, and warps.
const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / WARP;

/// Scratch for `A x` of so many rows.
pub(super) fn scratch_bytes(l: Option<LowRankRef>, rows: usize) -> usize {
    l.map_or(0, |l| rows * l.spec.rank * 4)
}

/// Adds to this node's tensor what the pairs of its rows make of `x`.
pub(super) fn add(r: &mut Recorder<'_>, x: Id, l: LowRankRef) -> Result<(), String> {
    let (step, x, out, pairs) = (r.step()?, r.get(x)?, r.out()?, r.low_rank(l)?);
    let (hidden, _) = r.scratch()?;
    let rows = r.room(&out);
    let grid = [pairs.rank.div_ceil(WARPS), rows, 1];
    let launch = r.launch((Family::LowRank, "low_rank_down"), grid, [BLOCK, 1, 1]);
    launch.arg(step).arg(x).arg(pairs).arg(hidden);
    let grid = [out.cols.div_ceil(BLOCK), rows, 1];
    let launch = r.launch((Family::LowRank, "low_rank_up"), grid, [BLOCK, 1, 1]);
    launch.arg(step).arg(pairs).arg(hidden).arg(out);
    Ok(())
}
