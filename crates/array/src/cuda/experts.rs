//! Mixtures of experts: what the experts that a router has chosen make of each row.
//!
//! The plain products: a warp has a number of the result, and reads weights of any format number by number.

use super::arguments::GluCode;
use super::recorder::Recorder;
use super::sources::Family;
use crate::op::Op;

/// Threads of a block, and warps.
const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / 32;

/// Records an operation of this family.
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    let (step, out) = (r.step()?, r.out()?);
    match op {
        Op::ExpertsUp { x, routing, gate, up, bias, f } => {
            let (x, routing, (_, up)) = (r.get(x)?, r.get(routing)?, r.matrix(up)?);
            let [gate_bias, up_bias] = [0, 1].map(|i| r.maybe(bias.map(|b| b[i])));
            // Without an address where there is no gate.
            let mut of_gate = up;
            of_gate.at = 0;
            if let Some(gate) = gate {
                of_gate = r.matrix(gate)?.1;
            }
            let grid = [up.rows.div_ceil(WARPS), r.room(&out), routing.cols / 2];
            let launch = r.launch((Family::Experts, "experts_up"), grid, [BLOCK, 1, 1]);
            launch.arg(step).arg(x).arg(routing).arg(of_gate).arg(up);
            launch.arg(gate_bias?).arg(up_bias?).arg(GluCode::from(f)).arg(out);
            Ok(())
        }
        Op::ExpertsDown { x, routing, down, bias } => {
            let (x, routing, (_, down)) = (r.get(x)?, r.get(routing)?, r.matrix(down)?);
            let bias = r.maybe(bias)?;
            let grid = [down.rows.div_ceil(WARPS), r.room(&out), 1];
            let launch = r.launch((Family::Experts, "experts_down"), grid, [BLOCK, 1, 1]);
            launch.arg(step).arg(x).arg(routing).arg(down).arg(bias).arg(out);
            Ok(())
        }
        other => Err(format!("{} is of another family", other.name())),
    }
}
