//! What reads a matrix: lookups and linear layers.
//!
//! The plain product: a warp has an output row and some rows of activations, and reads weights of any format number by
//! number.

use super::arguments::Vector;
use super::recorder::{Recorder, WARP};
use super::sources::Family;
use crate::op::Id;
use crate::weight::WeightRef;

/// Threads of a block.
const BLOCK: u32 = 256;

/// Rows of activations that a warp has at a time: `TOKENS` in `linear.cu`.
const TOKENS: u32 = 8;

/// Looks up a row of the table for each token.
pub(super) fn embed(r: &mut Recorder<'_>, table: WeightRef, scale: f32) -> Result<(), String> {
    let (step, out, (_, table)) = (r.step()?, r.out()?, r.matrix(table)?);
    let grid = [out.cols.div_ceil(BLOCK), r.room(&out), 1];
    let launch = r.launch((Family::Linear, "embed"), grid, [BLOCK, 1, 1]);
    launch.arg(step).arg(table).arg(scale).arg(out);
    Ok(())
}

/// `x W^T + bias`
pub(super) fn linear(
    r: &mut Recorder<'_>,
    x: Id,
    weight: WeightRef,
    bias: Option<WeightRef>,
) -> Result<(), String> {
    let bias = r.maybe(bias)?;
    product(r, x, weight, bias, 1)
}

/// Group `g` of the columns by matrix `g` of a stack.
pub(super) fn grouped(r: &mut Recorder<'_>, x: Id, weight: WeightRef) -> Result<(), String> {
    let (none, (spec, _)) = (r.maybe(None)?, r.matrix(weight)?);
    product(r, x, weight, none, spec.experts as u32)
}

/// The product of each of `groups` groups of columns with a matrix of its own.
fn product(
    r: &mut Recorder<'_>,
    x: Id,
    weight: WeightRef,
    bias: Vector,
    groups: u32,
) -> Result<(), String> {
    let (step, x, out, (_, weight)) = (r.step()?, r.get(x)?, r.out()?, r.matrix(weight)?);
    let tokens = r.room(&out).div_ceil(TOKENS);
    // Small blocks where large ones would leave processors idle.
    let warps = (weight.rows * groups * tokens / (4 * r.processors.max(1))).clamp(1, BLOCK / WARP);
    let grid = [weight.rows.div_ceil(warps), tokens, groups];
    let launch = r.launch((Family::Linear, "linear"), grid, [warps * WARP, 1, 1]);
    launch.arg(step).arg(x).arg(weight).arg(bias).arg(out);
    Ok(())
}
