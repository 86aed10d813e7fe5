//! Hyper-connections: a warp makes the weights of a token, a thread mixes a column of its streams.

use super::recorder::{Recorder, WARP};
use super::sources::Family;
use crate::op::Op;

/// Threads of a block.
const BLOCK: u32 = 256;

/// Warps of a block that makes weights, each those of a token.
const WARPS: u32 = 4;

/// Records an operation of this family.
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    let (step, out) = (r.step()?, r.out()?);
    let rows = r.room(&out);
    match op {
        Op::HyperWeights { z, scale, base, n, iters, eps } => {
            let (z, scale, base) = (r.get(z)?, r.vector(scale)?, r.vector(base)?);
            let (grid, block) = ([rows.div_ceil(WARPS), 1, 1], [WARPS * WARP, 1, 1]);
            let launch = r.launch((Family::Hyper, "hyper_weights"), grid, block).arg(step);
            launch.arg(z).arg(scale).arg(base).arg(n as u32).arg(iters as u32).arg(eps).arg(out);
        }
        Op::HyperIn { streams, weights } => {
            let (streams, weights) = (r.get(streams)?, r.get(weights)?);
            let grid = [out.cols.div_ceil(BLOCK), rows, 1];
            let launch = r.launch((Family::Hyper, "hyper_in"), grid, [BLOCK, 1, 1]).arg(step);
            launch.arg(streams).arg(weights).arg(out);
        }
        Op::HyperOut { streams, y, weights } => {
            let (streams, y, weights) = (r.get(streams)?, r.get(y)?, r.get(weights)?);
            let grid = [y.cols.div_ceil(BLOCK), rows, 1];
            let launch = r.launch((Family::Hyper, "hyper_out"), grid, [BLOCK, 1, 1]).arg(step);
            launch.arg(streams).arg(y).arg(weights).arg(out);
        }
        other => return Err(format!("{} is of another family", other.name())),
    }
    Ok(())
}
