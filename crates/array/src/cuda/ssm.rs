//! The selective scan: a block has some columns of a head of a row, from its first token to its last.

use super::arguments::{Mat, State, Vector, arguments};
use super::recorder::Recorder;
use super::recurrent::{Spread, kernel_for, log};
use super::sources::Family;
use crate::op::Op;

/// Kernels, with the most numbers of `b` and `c` that they take.
const KERNELS: [(u32, &str); 4] =
    [(32, "ssm_32"), (64, "ssm_64"), (128, "ssm_128"), (256, "ssm_256")];

/// Numbers of a token in shared memory beside `b`, `c` and `x`: dt, rounded up.
const RATES: u32 = 4;

arguments! {
    /// One scan.
    Scan = "Scan" {
        x: Mat,
        b: Mat,
        c: Mat,
        dt: Mat,
        neg_a: Vector,
        bias: Vector,
        skip: Vector,
        low: f32,
        high: f32,
        state: State,
        out: Mat,
        heads: u32,
        groups: u32,
        dim: u32,
        rows: u32,
        chunk: u32,
        zero: u32,
    }
}

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
    let chunk = spread.chunk;
    let [heads, groups, dim, rows] =
        [heads.heads, heads.groups, heads.dim, heads.state].map(|n| n as u32);
    spread.launch(r, (Family::Ssm, kernel))?.arg(Scan {
        x,
        b,
        c,
        dt,
        neg_a,
        bias,
        skip,
        low,
        high,
        state: memory,
        out,
        heads,
        groups,
        dim,
        rows,
        chunk,
        zero: 0,
    });
    log(r, [x, b, dt], state)
}
