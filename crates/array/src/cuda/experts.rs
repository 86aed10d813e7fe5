//! Mixtures of experts: what the experts that a router has chosen make of each row.
//!
//! Two ways. Formats that have a form in `experts.cuh` are read sixteen numbers at a time. The others are read number by
//! number, and so is what does not lie on 16 bytes.

use super::arguments::{GluCode, Mat, Matrix, Vector};
use super::recorder::{Recorder, WARP};
use super::sources::Family;
use crate::device::MatrixSpec;
use crate::format::Format;
use crate::op::{Glu, Op};

/// Warps of a block that reads number by number.
const PLAIN_WARPS: u32 = 8;

/// Warps of a block on the way up, as `experts.cu` bounds them, and the rows of weights that each of them has.
const UP_WARPS: u32 = 4;
const ROWS: u32 = 4;

/// The most warps of a block on the way down.
const DOWN_WARPS: u32 = 8;

/// Records an operation of this family.
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    match op {
        Op::ExpertsUp { x, routing, gate, up, bias, f } => {
            let (x, routing) = (r.get(x)?, r.get(routing)?);
            let (up, gate) = (r.matrix(up)?, gate.map(|g| r.matrix(g)).transpose()?);
            let [gate_bias, up_bias] = [0, 1].map(|i| r.maybe(bias.map(|b| b[i])));
            record_up(r, (x, routing), (gate, up), [gate_bias?, up_bias?], f)
        }
        Op::ExpertsDown { x, routing, down, bias } => {
            let (step, x, routing, out) = (r.step()?, r.get(x)?, r.get(routing)?, r.out()?);
            let (down, bias) = (r.matrix(down)?, r.maybe(bias)?);
            let (rows, ranks) = (down.1.rows, routing.cols / 2);
            let (name, warps, blocks) = if has_form(&x, &down) {
                ("experts_down_forms", ranks.min(DOWN_WARPS), rows.div_ceil(ROWS))
            } else {
                ("experts_down", PLAIN_WARPS, rows.div_ceil(PLAIN_WARPS))
            };
            let grid = [blocks, r.room(&out), 1];
            let launch = r.launch((Family::Experts, name), grid, [warps * WARP, 1, 1]);
            // What each rank brings to the rows of a block.
            launch.shared = 4 * ranks * ROWS;
            launch.arg(step).arg(x).arg(routing).arg(down.1).arg(bias).arg(out);
            Ok(())
        }
        other => Err(format!("{} is of another family", other.name())),
    }
}

type Weights = (MatrixSpec, Matrix);

fn record_up(
    r: &mut Recorder<'_>,
    (x, routing): (Mat, Mat),
    (gate, up): (Option<Weights>, Weights),
    [gate_bias, up_bias]: [Vector; 2],
    f: Glu,
) -> Result<(), String> {
    let (step, out) = (r.step()?, r.out()?);
    let (rows, ranks, room) = (up.1.rows, routing.cols / 2, r.room(&out));
    let alike = gate.is_none_or(|g| has_form(&x, &g) && g.0.format == up.0.format);
    let (name, grid, warps) = if alike && has_form(&x, &up) {
        let each = if gate.is_some() { ROWS / 2 } else { ROWS };
        ("experts_up_forms", [rows.div_ceil(UP_WARPS * each), ranks, room], UP_WARPS)
    } else {
        ("experts_up", [rows.div_ceil(PLAIN_WARPS), room, ranks], PLAIN_WARPS)
    };
    // Without an address where there is no gate.
    let gate = gate.map_or(Matrix { at: 0, ..up.1 }, |g| g.1);
    let launch = r.launch((Family::Experts, name), grid, [warps * WARP, 1, 1]);
    launch.arg(step).arg(x).arg(routing).arg(gate).arg(up.1);
    launch.arg(gate_bias).arg(up_bias).arg(GluCode::from(f)).arg(out);
    Ok(())
}

/// Whether `dot_rows` of `experts.cuh` can multiply these.
fn has_form(x: &Mat, (spec, w): &Weights) -> bool {
    let listed = match spec.format {
        Format::F32 | Format::F16 | Format::BF16 => true,
        Format::Q4_0 | Format::Q4_1 | Format::Q8_0 | Format::Q4_K | Format::Q6_K => true,
        Format::MXFP4 => true,
        Format::Affine(f) => matches!(f.bits(), 4 | 8) && !f.is_wide(),
        _ => false,
    };
    // Sixteen numbers at a time, four of them in one load.
    let whole = w.cols.is_multiple_of(16) && x.stride.is_multiple_of(4);
    listed && whole && x.at.is_multiple_of(16) && w.at.is_multiple_of(16)
}
