//! Kernels that carry a record from token to token: causal convolution, decays and the gated delta rule.
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

/// The decays of each token and channel, from running sums that the state carries.
pub(super) fn decay(c: &Context<'_>, a: DecayArgs<'_>, mem: StateMem, out: &MatMut<'_>) {
    let cols = a.x.cols;
    let chunks = cols.div_ceil(LANES);
    share(c.pool, c.b.rows * chunks, c.b.tokens * LANES * 20 / c.b.rows.max(1), |items| {
        for (row, at) in items.map(|i| (i / chunks, i % chunks * LANES)) {
            let n = LANES.min(cols - at);
            let (slot, fresh) = slot(c, row);
            // SAFETY: a chunk of channels of a slot belongs to one thread.
            let state = unsafe { mem.write(slot, 2 * at, 2 * n) };
            let mut sums = [0.0f64; LANES];
            for (sum, s) in sums.iter_mut().zip(state.chunks_exact(2)).filter(|_| !fresh) {
                *sum = f64::from(s[0]) + f64::from(s[1]);
            }
            for t in tokens(c, row) {
                if (c.b.positions[t] as usize).is_multiple_of(SUM_BLOCK) {
                    sums.fill(0.0);
                }
                // SAFETY: a token belongs to one row, and the chunk to one thread.
                decay_chunk(c.isa, a, t, at, &mut sums, unsafe { out.piece(t, at, n) });
            }
            for (sum, s) in sums.iter().zip(state.chunks_exact_mut(2)) {
                s[0] = *sum as f32;
                s[1] = (sum - f64::from(s[0])) as f32;
            }
        }
    });
}

per_isa! {
    /// One token of up to `LANES` channels.
    fn decay_chunk(a: DecayArgs<'_>, t: usize, at: usize, sums: &mut [f64; LANES], out: &mut [f32]) {
        let n = out.len();
        let (mut x, mut neg_a) = ([0.0f32; LANES], [0.0f32; LANES]);
        for ((x, from), bias) in x.iter_mut().zip(&a.x.row(t)[at..][..n]).zip(&a.bias[at..]) {
            *x = from + bias;
        }
        neg_a[..n].copy_from_slice(&a.neg_a[at..][..n]);
        let mut g = [0.0f32; LANES];
        let args = g.iter_mut().zip(x).zip(neg_a);
        match a.f {
            DecayCurve::Softplus => args.for_each(|((g, x), neg_a)| *g = neg_a * softplus(x)),
            DecayCurve::Bounded { low } => {
                args.for_each(|((g, x), neg_a)| *g = low * sigmoid(-neg_a * x));
            }
        }
        for (sum, g) in sums.iter_mut().zip(&mut g) {
            let before = *sum as f32;
            *sum += f64::from(*g);
            *g = exp(*sum as f32 - before);
        }
        out.copy_from_slice(&g[..n]);
    }
}

/// `ln(1 + e^x)`
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
            let columns = Columns { mem, slot, start: h * dk * dv + at, dv, n };
            if fresh {
                (0..dk).for_each(|i| columns.row(i).fill(0.0));
            }
            for t in tokens(c, row) {
                delta_token(c.isa, a, t, h, at, columns, out);
            }
        }
    });
}

/// `n` columns of one head's state, whose rows are `dv` long. They belong to one piece of work.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) mem: StateMem,
    pub(super) slot: usize,
    pub(super) start: usize,
    pub(super) dv: usize,
    pub(super) n: usize,
}

impl Columns {
    /// Row `i`.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(super) fn row(&self, i: usize) -> &mut [f32] {
        // SAFETY: the columns belong to one piece of work; its rows are borrowed one at a time.
        unsafe { self.mem.write(self.slot, self.start + i * self.dv, self.n) }
    }
}

per_isa! {
    fn delta_token(a: DeltaArgs<'_>, t: usize, h: usize, at: usize, m: Columns, out: &MatMut<'_>) {
        let DeltaHeads { hk, hv, dk, dv } = a.heads;
        let key_head = h / (hv / hk);
        let (decay, beta) = (a.decay.row(t), a.beta.row(t)[h]);
        let (q, k) =
            (&a.q.row(t)[key_head * dk..][..dk], &a.k.row(t)[key_head * dk..][..dk]);
        let v = &a.v.row(t)[h * dv + at..][..m.n];
        // SAFETY: a token belongs to one row, and the columns to one piece of work.
        let out = unsafe { out.piece(t, h * dv + at, m.n) };
        if decay.len() == hv {
            delta_columns(Token { q, k, decay: decay[h], beta }, v, m, out);
        } else {
            delta_columns(Token { q, k, decay: &decay[h * dk..][..dk], beta }, v, m, out);
        }
    }
}

/// A head's decay: one number, or one for each row of its state.
trait RowDecay: Copy {
    fn of(self, row: usize) -> f32;
}

impl RowDecay for f32 {
    #[inline(always)]
    fn of(self, _: usize) -> f32 {
        self
    }
}

impl RowDecay for &[f32] {
    #[inline(always)]
    fn of(self, row: usize) -> f32 {
        self[row]
    }
}

/// What one token brings to one head.
#[derive(Clone, Copy)]
struct Token<'a, D> {
    q: &'a [f32],
    k: &'a [f32],
    decay: D,
    beta: f32,
}

#[inline(always)]
fn delta_columns<D: RowDecay>(token: Token<'_, D>, v: &[f32], m: Columns, out: &mut [f32]) {
    match m.n {
        COLUMNS => delta_lanes::<COLUMNS, D>(token, v, m, out),
        LANES => delta_lanes::<LANES, D>(token, v, m, out),
        _ => {
            for (i, (v, out)) in v.iter().zip(out).enumerate() {
                let column = Columns { start: m.start + i, n: 1, ..m };
                let (v, out) = (std::slice::from_ref(v), std::slice::from_mut(out));
                delta_lanes::<1, D>(token, v, column, out);
            }
        }
    }
}

/// One token through `N` columns of a head's state.
#[inline(always)]
fn delta_lanes<const N: usize, D: RowDecay>(
    token: Token<'_, D>,
    v: &[f32],
    m: Columns,
    out: &mut [f32],
) {
    let Token { q, k, decay, beta } = token;
    let mut d = [0.0f32; N];
    for (i, k) in k.iter().enumerate() {
        let row: &mut [f32; N] = m.row(i).first_chunk_mut().expect("N columns");
        let decay = decay.of(i);
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
