//! Pooling groups of tokens into entries, and keeping what open groups have.

use super::arguments::{Mat, State, Vector, arguments};
use super::recorder::Recorder;
use super::sources::Family;
use crate::op::Op;

/// Threads of a block, each with a column.
const THREADS: u32 = 128;

arguments! {
    /// What is pooled.
    Pooled = "Pooled" {
        x: Mat,
        gate: Mat,
        bias: Vector,
        state: State,
        every: u32,
        overlap: u32,
    }
}

/// Records an [`Op::Pool`].
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    let Op::Pool { x, gate, bias, state, every, overlap } = op else {
        return Err(format!("{} is of another family", op.name()));
    };
    let (step, x, gate, out) = (r.step()?, r.get(x)?, r.get(gate)?, r.out()?);
    let (bias, state) = (r.vector(bias)?, r.state(state)?);
    let (every, overlap) = (every as u32, u32::from(overlap));
    let pooled = Pooled { x, gate, bias, state, every, overlap };
    let (blocks, block) = (out.cols.div_ceil(THREADS), [THREADS, 1, 1]);
    let grid = [blocks, r.room(&out), 1];
    r.launch((Family::Pool, "pool"), grid, block).arg(step).arg(pooled).arg(out);
    let grid = [blocks, r.plan.layout.rows as u32, 1];
    r.launch((Family::Pool, "pool_keep"), grid, block).arg(step).arg(pooled);
    Ok(())
}
