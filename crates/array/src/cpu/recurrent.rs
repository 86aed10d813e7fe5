//! Kernels that carry a record from token to token: causal convolution and the gated delta rule.
//!
//! Tokens of a row are taken strictly one after the other, so the result does not depend on how a prompt is cut.
//! Threads share channels or columns of a state, never time.

use super::context::{Context, StateMem};
use super::lanes::{LANES, exp, per_isa, sigmoid};
use super::ops::map;
use super::view::{Mat, MatMut, share};
use crate::op::{DecayCurve, DeltaHeads, MOST_TAPS, Map, SUM_BLOCK};

/// A row's slot: where it lies, and whether it counts as zeros.
pub(super) fn slot(c: &Context<'_>, row: usize) -> (usize, bool) {
    (c.b.row_slot[row] as usize, c.b.row_past[row] == 0)
}

/// The tokens of a row.
pub(super) fn tokens(c: &Context<'_>, row: usize) -> std::ops::Range<usize> {
    let first = c.b.row_first[row] as usize;
    first..first + c.b.row_count[row] as usize
}

/// Channels that one piece of convolution work takes.
const CHANNELS: usize = 64;

/// The tensors and weights of a convolution; `taps` is `[K, cols]`, oldest first.
#[derive(Clone, Copy)]
pub(super) struct ConvArgs<'a> {
    pub(super) x: Mat<'a>,
    pub(super) taps: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) f: Map,
}

/// Causal depthwise convolution; the slot is `[K - 1, cols]`, oldest first.
pub(super) fn conv(c: &Context<'_>, a: ConvArgs<'_>, mem: StateMem, out: &MatMut<'_>) {
    let ConvArgs { x, taps, bias, f } = a;
    let cols = x.cols;
    let k = taps.len() / cols;
    let chunks = cols.div_ceil(CHANNELS);
    let cost = CHANNELS * k * c.b.tokens / c.b.rows.max(1) / 8;
    share(c.pool, c.b.rows * chunks, cost, |items| {
        for (row, chunk) in items.map(|i| (i / chunks, i % chunks)) {
            let at = chunk * CHANNELS;
            let n = CHANNELS.min(cols - at);
            let (slot, fresh) = slot(c, row);
            // The last K inputs, oldest first; the newest is replaced by each token.
            let mut last = [[0.0f32; CHANNELS]; MOST_TAPS];
            for (j, last) in last[..k - 1].iter_mut().enumerate().filter(|_| !fresh) {
                // SAFETY: a chunk of channels of a slot belongs to one thread.
                last[..n].copy_from_slice(unsafe { mem.read(slot, j * cols + at, n) });
            }
            for t in tokens(c, row) {
                last[k - 1][..n].copy_from_slice(&x.row(t)[at..at + n]);
                // SAFETY: a token belongs to one row, and the chunk to one thread.
                let out = unsafe { out.piece(t, at, n) };
                let bias = bias.map(|b| &b[at..at + n]);
                conv_chunk(c.isa, out, &last[..k], &taps[at..], bias, cols, f);
                last[..k].rotate_left(1);
            }
            for (j, last) in last[..k - 1].iter().enumerate() {
                // SAFETY: as for reading.
                unsafe { mem.write(slot, j * cols + at, n) }.copy_from_slice(&last[..n]);
            }
        }
    });
}

per_isa! {
    fn conv_chunk(
        out: &mut [f32],
        last: &[[f32; CHANNELS]],
        taps: &[f32],
        bias: Option<&[f32]>,
        cols: usize,
        f: Map,
    ) {
        out.fill(0.0);
        for (j, last) in last.iter().enumerate() {
            let taps = &taps[j * cols..][..out.len()];
            for ((o, x), w) in out.iter_mut().zip(last).zip(taps) {
                *o = x.mul_add(*w, *o);
            }
        }
        if let Some(bias) = bias {
            out.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
        match f {
            Map::Silu => out.iter_mut().for_each(|o| *o *= sigmoid(*o)),
            other => out.iter_mut().for_each(|o| *o = map(other, *o)),
        }
    }
}

/// The tensor and weights of decays.
#[derive(Clone, Copy)]
pub(super) struct DecayArgs<'a> {
    pub(super) x: Mat<'a>,
    pub(super) neg_a: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) f: DecayCurve,
}

/// The decays of each token and head, from running sums that the state carries.
pub(super) fn decay(c: &Context<'_>, a: DecayArgs<'_>, mem: StateMem, out: &MatMut<'_>) {
    let DecayArgs { x, neg_a, bias, f } = a;
    let heads = x.cols;
    share(c.pool, c.b.rows, c.b.tokens * heads * 20 / c.b.rows.max(1), |rows| {
        for (row, h) in rows.flat_map(|row| (0..heads).map(move |h| (row, h))) {
            let (slot, fresh) = slot(c, row);
            // SAFETY: a slot belongs to one row, and a row to one thread.
            let state = unsafe { mem.write(slot, 2 * h, 2) };
            let mut sum = if fresh { 0.0 } else { f64::from(state[0]) + f64::from(state[1]) };
            for t in tokens(c, row) {
                if (c.b.positions[t] as usize).is_multiple_of(SUM_BLOCK) {
                    sum = 0.0;
                }
                let before = sum as f32;
                let x = x.row(t)[h] + bias[h];
                sum += f64::from(match f {
                    DecayCurve::Softplus => neg_a[h] * softplus(x),
                    DecayCurve::Bounded { low } => low * sigmoid(-neg_a[h] * x),
                });
                // SAFETY: a token belongs to one row.
                unsafe { out.piece(t, h, 1)[0] = exp(sum as f32 - before) };
            }
            state[0] = sum as f32;
            state[1] = (sum - f64::from(state[0])) as f32;
        }
    });
}

pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Columns of a state that one piece of delta work takes.
const COLUMNS: usize = 2 * LANES;

/// The tensors of a delta rule.
#[derive(Clone, Copy)]
pub(super) struct DeltaArgs<'a> {
    pub(super) q: Mat<'a>,
    pub(super) k: Mat<'a>,
    pub(super) v: Mat<'a>,
    pub(super) decay: Mat<'a>,
    pub(super) beta: Mat<'a>,
    pub(super) heads: DeltaHeads,
}

/// The gated delta rule. Columns of the state `[dk, dv]` of a head are independent: they are the pieces of work.
pub(super) fn delta_rule(c: &Context<'_>, a: DeltaArgs<'_>, mem: StateMem, out: &MatMut<'_>) {
    let DeltaHeads { hv, dk, dv, .. } = a.heads;
    let chunks = dv.div_ceil(COLUMNS);
    let cost = dk * 8 * c.b.tokens / c.b.rows.max(1);
    share(c.pool, c.b.rows * hv * chunks, cost, |items| {
        for item in items {
            let (row, h, at) = (item / chunks / hv, item / chunks % hv, item % chunks * COLUMNS);
            let n = COLUMNS.min(dv - at);
            let (slot, fresh) = slot(c, row);
            if fresh {
                for i in 0..dk {
                    // SAFETY: these columns of the head's state belong to this piece alone.
                    unsafe { mem.write(slot, (h * dk + i) * dv + at, n) }.fill(0.0);
                }
            }
            for t in tokens(c, row) {
                let columns = Columns { mem, slot, start: h * dk * dv + at, dv, n };
                delta_token(c.isa, a, t, h, at, columns, out);
            }
        }
    });
}

/// `n` columns of one head's state.
#[derive(Clone, Copy)]
struct Columns {
    mem: StateMem,
    slot: usize,
    start: usize,
    dv: usize,
    n: usize,
}

impl Columns {
    /// Row `i`.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    fn row(&self, i: usize) -> &mut [f32] {
        // SAFETY: the columns belong to one piece of work; its rows are borrowed one at a time.
        unsafe { self.mem.write(self.slot, self.start + i * self.dv, self.n) }
    }
}

per_isa! {
    fn delta_token(a: DeltaArgs<'_>, t: usize, h: usize, at: usize, m: Columns, out: &MatMut<'_>) {
        let DeltaHeads { hk, hv, dk, dv } = a.heads;
        let key_head = h / (hv / hk);
        let token = Token {
            q: &a.q.row(t)[key_head * dk..][..dk],
            k: &a.k.row(t)[key_head * dk..][..dk],
            decay: a.decay.row(t)[h],
            beta: a.beta.row(t)[h],
        };
        let v = &a.v.row(t)[h * dv + at..][..m.n];
        // SAFETY: a token belongs to one row, and the columns to one piece of work.
        let out = unsafe { out.piece(t, h * dv + at, m.n) };
        match m.n {
            COLUMNS => delta_lanes::<COLUMNS>(token, v, m, out),
            LANES => delta_lanes::<LANES>(token, v, m, out),
            _ => {
                for (i, (v, out)) in v.iter().zip(out).enumerate() {
                    let column = Columns { start: m.start + i, n: 1, ..m };
                    let (v, out) = (std::slice::from_ref(v), std::slice::from_mut(out));
                    delta_lanes::<1>(token, v, column, out);
                }
            }
        }
    }
}

/// What one token brings to one head.
#[derive(Clone, Copy)]
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    decay: f32,
    beta: f32,
}

/// One token through `N` columns of a head's state.
#[inline(always)]
fn delta_lanes<const N: usize>(token: Token<'_>, v: &[f32], m: Columns, out: &mut [f32]) {
    let Token { q, k, decay, beta } = token;
    let mut d = [0.0f32; N];
    for (i, k) in k.iter().enumerate() {
        let row: &mut [f32; N] = m.row(i).first_chunk_mut().expect("N columns");
        for (m, d) in row.iter_mut().zip(&mut d) {
            *m *= decay;
            *d = m.mul_add(*k, *d);
        }
    }
    for (d, v) in d.iter_mut().zip(v) {
        *d = beta * (v - *d);
    }
    let mut y = [0.0f32; N];
    for (i, (k, q)) in k.iter().zip(q).enumerate() {
        let row: &mut [f32; N] = m.row(i).first_chunk_mut().expect("N columns");
        for ((m, d), y) in row.iter_mut().zip(&d).zip(&mut y) {
            *m = k.mul_add(*d, *m);
            *y = m.mul_add(*q, *y);
        }
    }
    out.copy_from_slice(&y);
}
