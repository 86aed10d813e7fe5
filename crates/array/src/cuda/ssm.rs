//! The selective scan: a block has some columns of a head of a row, from its first token to its last.

use super::recorder::Recorder;
use super::recurrent::{Spread, kernel_for, log};
use super::sources::Family;
use crate::op::Op;

/// Kernels, with the most numbers of `b` and `c` that they take.
const KERNELS: [(u32, &str); 4] =
    [(32, "ssm_32"), (64, "ssm_64"), (128, "ssm_128"), (256, "ssm_256")];

/// Numbers of a token in shared memory beside `b`, `c` and `x`: dt, rounded up.
const RATES: u32 = 4;

/// Records a scan.
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    let Op::Ssm { x, b, c, dt, neg_a, bias, skip, low, high, state, heads } = op else {
        return Err(format!("{} is of another family", op.name()));
    };
    let (most, kernel) = kernel_for(heads.state, KERNELS)?;
    let (x, b, c, dt, out) = (r.get(x)?, r.get(b)?, r.get(c)?, r.get(dt)?, r.out()?);
    let (neg_a, bias, skip) = (r.vector(neg_a)?, r.vector(bias)?, r.vector(skip)?);
    let memory = r.state(state)?;
    let spread = Spread::new(r, heads.heads, heads.dim, 2 * most + RATES);
    let [n, groups, dim, rows] =
        [heads.heads, heads.groups, heads.dim, heads.state].map(|n| n as u32);
    let launch = spread.launch(r, (Family::Ssm, kernel))?;
    launch.arg(x).arg(b).arg(c).arg(dt).arg(neg_a).arg(bias).arg(skip).arg(low).arg(high);
    launch.arg(memory).arg(n).arg(groups).arg(dim).arg(rows).arg(spread.chunk).arg(out);
    log(r, [x, b, dt], state)
}
