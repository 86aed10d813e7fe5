//! The gated delta rule: a block has some columns of a head of a row, from its first token to its last.

use super::arguments::{Mat, State, arguments};
use super::recorder::Recorder;
use super::recurrent::{Spread, kernel_for, log};
use super::sources::Family;
use crate::op::Op;

/// Kernels, with the longest keys that they take.
const KERNELS: [(u32, &str); 4] =
    [(32, "delta_32"), (64, "delta_64"), (128, "delta_128"), (256, "delta_256")];

/// Numbers of a token in shared memory beside keys, queries, decays and values: beta and a head's decay, rounded up.
const RATES: u32 = 4;

arguments! {
    /// One delta rule.
    Delta = "Delta" {
        q: Mat,
        k: Mat,
        v: Mat,
        decay: Mat,
        beta: Mat,
        state: State,
        out: Mat,
        hk: u32,
        hv: u32,
        dk: u32,
        dv: u32,
        chunk: u32,
        zero: u32,
    }
}

/// Records a delta rule.
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    let Op::DeltaRule { q, k, v, decay, beta, state, heads } = op else {
        return Err(format!("{} is of another family", op.name()));
    };
    let (most, kernel) = kernel_for(heads.dk, KERNELS)?;
    let (q, k, v, out) = (r.get(q)?, r.get(k)?, r.get(v)?, r.out()?);
    let (decay, beta, memory) = (r.get(decay)?, r.get(beta)?, r.state(state)?);
    let [hk, hv, dk, dv] = [heads.hk, heads.hv, heads.dk, heads.dv].map(|n| n as u32);
    let numbers = if decay.cols == hv { 2 * most } else { 3 * most } + RATES;
    let spread = Spread::new(r, heads.hv, heads.dv, numbers);
    let chunk = spread.chunk;
    let launch = spread.launch(r, (Family::Delta, kernel))?;
    launch.arg(Delta { q, k, v, decay, beta, state: memory, out, hk, hv, dk, dv, chunk, zero: 0 });
    log(r, [k, v, decay, beta], state)
}
