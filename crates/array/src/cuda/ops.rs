//! Row by row: element by element, norms, rotary positions, copies of rows.
//!
//! A block of threads has some columns of one row; of a norm a warp has a group.

use super::arguments::{GluCode, MapCode, Mat};
use super::recorder::{Launch, Recorder, WARP};
use super::sources::Family;
use crate::op::{Glu, Op, Stretch};

/// Threads of a block.
const BLOCK: u32 = 256;

/// Launches a kernel with a thread for each number of `out`; rows are `y` of the grid.
fn by_number<'r>(
    r: &'r mut Recorder<'_>,
    name: &'static str,
    out: &Mat,
) -> Result<&'r mut Launch, String> {
    let (step, rows) = (r.step()?, r.room(out));
    let block = BLOCK.min(out.cols.next_multiple_of(WARP));
    let launch = r.launch((Family::Ops, name), [out.cols.div_ceil(block), rows, 1], [block, 1, 1]);
    launch.arg(step);
    Ok(launch)
}

/// Launches a kernel with a block for each group of `group` columns of `out`.
fn by_group<'r>(
    r: &'r mut Recorder<'_>,
    name: &'static str,
    out: &Mat,
    group: usize,
) -> Result<&'r mut Launch, String> {
    let (step, rows, group) = (r.step()?, r.room(out), group as u32);
    let block = (4 * BLOCK).min(group.div_ceil(4).next_multiple_of(WARP));
    let launch = r.launch((Family::Ops, name), [out.cols / group, rows, 1], [block, 1, 1]);
    launch.arg(step);
    Ok(launch)
}

/// Records an operation of this family.
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    if let Op::Emit { x } = op {
        let x = r.get(x)?;
        let [a, b] = r.outputs(r.room(&x) as usize * x.cols as usize)?;
        by_number(r, "emit", &x)?.arg(x).arg(a).arg(b);
        return Ok(());
    }
    let out = r.out()?;
    match op {
        Op::Concat { a, b, groups } => {
            let (a, b) = (r.get(a)?, r.get(b)?);
            by_number(r, "concat", &out)?.arg(a).arg(b).arg(groups as u32).arg(out);
        }
        Op::TakeOutputs { x } => {
            let x = r.get(x)?;
            by_number(r, "take_outputs", &out)?.arg(x).arg(out);
        }
        Op::Add { a, b } => {
            let (a, b) = (r.get(a)?, r.get(b)?);
            by_number(r, "add", &out)?.arg(a).arg(b).arg(out);
        }
        Op::Apply { x, f } => {
            let x = r.get(x)?;
            by_number(r, "apply", &out)?.arg(MapCode::from(f)).arg(x).arg(out);
        }
        Op::Gate { gate, x, f } => {
            let (gate, x) = (r.get(gate)?, r.get(x)?);
            by_number(r, "gate", &out)?.arg(GluCode::from(f)).arg(gate).arg(x).arg(out);
        }
        Op::Rope { x, table, dim, start, interleaved, inverse } => {
            let (x, table) = (r.get(x)?, r.get(table)?);
            let flags = u32::from(interleaved) | u32::from(inverse) << 1;
            let launch = by_number(r, "rope", &out)?.arg(x).arg(table);
            launch.arg(dim as u32).arg(start as u32).arg(flags).arg(out);
        }
        Op::RopeTable { freq, scale, every, stretch } => {
            let freq = r.vector(freq)?;
            let stretch = match stretch {
                Stretch::None => 0_u32,
                Stretch::Power => 1,
                Stretch::Choice => 2,
            };
            let launch = by_number(r, "rope_table", &out)?.arg(freq).arg(scale);
            launch.arg(every as u32).arg(stretch).arg(out);
        }
        Op::PositionScale { beta, every } => {
            by_number(r, "position_scale", &out)?.arg(beta).arg(every as u32).arg(out);
        }
        norm => record_norm(r, norm, out)?,
    }
    Ok(())
}

fn record_norm(r: &mut Recorder<'_>, op: Op, out: Mat) -> Result<(), String> {
    match op {
        Op::RmsNorm { x, weight, group, eps } => {
            let (x, weight) = (r.get(x)?, r.vector(weight)?);
            let launch = by_group(r, "rms_norm", &out, group)?.arg(x).arg(weight);
            launch.arg(group as u32).arg(eps).arg(out);
        }
        Op::GatedRmsNorm { x, gate, weight, group, eps, f } => {
            let (x, gate, weight) = (r.get(x)?, r.get(gate)?, r.vector(weight)?);
            let f = GluCode::from(Glu::Of(f));
            let launch = by_group(r, "gated_rms_norm", &out, group)?.arg(x).arg(gate).arg(f);
            launch.arg(weight).arg(group as u32).arg(eps).arg(out);
        }
        Op::LayerNorm { x, weight, bias, eps } => {
            let (x, weight, bias) = (r.get(x)?, r.vector(weight)?, r.vector(bias)?);
            let launch = by_group(r, "layer_norm", &out, weight.len as usize)?.arg(x);
            launch.arg(weight).arg(bias).arg(eps).arg(out);
        }
        Op::UnitNorm { x, group, eps, scale } => {
            let x = r.get(x)?;
            let launch = by_group(r, "unit_norm", &out, group)?.arg(x).arg(group as u32);
            launch.arg(eps).arg(scale).arg(out);
        }
        other => return Err(format!("{} is of another family", other.name())),
    }
    Ok(())
}
