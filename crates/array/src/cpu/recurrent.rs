//! Kernels that carry a record from token to token: causal convolution, decays and the gated delta rule.
//!
//! Tokens of a row are taken strictly one after the other, so the result does not depend on how a prompt is cut.
//! Threads share channels or columns of a state, never time. Unconfirmed tokens run on memory of the thread's own.

use super::context::{Context, StateMem};
use super::lanes::{LANES, exp, per_isa, sigmoid};
use super::ops::map;
use super::record::{Row, log};
use super::view::{Mat, MatMut, share, share_by};
use crate::op::{DecayCurve, DeltaHeads, MOST_TAPS, Map, Op, SUM_BLOCK, SsmHeads};
use crate::plan::Plan;
use crate::state::{StateKind, StateRef};

/// Scratch of a [`Op::DeltaRule`] or [`Op::Ssm`] whose tokens may be unconfirmed: for each thread columns of a head.
pub(super) fn scratch_bytes(plan: &Plan, node: usize, threads: usize) -> usize {
    let (rows, state) = match plan.nodes[node].op {
        Op::DeltaRule { heads: DeltaHeads { dk, .. }, state, .. } => (dk, state),
        Op::Ssm { heads: SsmHeads { state: rows, .. }, state, .. } => (rows, state),
        _ => return 0,
    };
    match state {
        StateRef { kind: StateKind::Slots { log, .. }, .. } if log.depth > 0 => {
            threads * rows * COLUMNS * size_of::<f32>()
        }
        _ => 0,
    }
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
        for (row, chunk) in items.map(|i| (Row::new(c, i / chunks), i % chunks)) {
            let at = chunk * CHANNELS;
            let n = CHANNELS.min(cols - at);
            let bias = bias.map(|b| &b[at..at + n]);
            // The last K inputs, oldest first; the newest is replaced by each token.
            let mut last = [[0.0f32; CHANNELS]; MOST_TAPS];
            for (j, last) in last[..k - 1].iter_mut().enumerate().filter(|_| !row.fresh) {
                // SAFETY: a chunk of channels of a slot belongs to one thread.
                last[..n].copy_from_slice(unsafe { mem.read(row.slot, j * cols + at, n) });
            }
            let mut spare = [0.0; CHANNELS];
            let mut token = |last: &mut [[f32; CHANNELS]; MOST_TAPS], i: usize| {
                last[k - 1][..n].copy_from_slice(&row.input(&mem, i, x, 0)[at..at + n]);
                // SAFETY: a token belongs to one row, and the chunk to one thread.
                let out = unsafe { row.result(out, i, at, &mut spare[..n]) };
                conv_chunk(c.isa, out, &last[..k], &taps[at..], bias, cols, f);
                last[..k].rotate_left(1);
            };
            (0..row.confirmed).for_each(|i| token(&mut last, i));
            for (j, last) in last[..k - 1].iter().enumerate() {
                // SAFETY: as for reading.
                unsafe { mem.write(row.slot, j * cols + at, n) }.copy_from_slice(&last[..n]);
            }
            (row.confirmed..row.all).for_each(|i| token(&mut last, i));
        }
    });
    log(c, mem, [x]);
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
        for (row, at) in items.map(|i| (Row::new(c, i / chunks), i % chunks * LANES)) {
            let n = LANES.min(cols - at);
            // SAFETY: a chunk of channels of a slot belongs to one thread.
            let state = unsafe { mem.write(row.slot, 2 * at, 2 * n) };
            let mut sums = [0.0f64; LANES];
            for (sum, s) in sums.iter_mut().zip(state.as_chunks().0).filter(|_| !row.fresh) {
                *sum = joined(*s);
            }
            let mut spare = [0.0; LANES];
            let mut token = |sums: &mut [f64; LANES], i: usize| {
                if (row.start + i).is_multiple_of(SUM_BLOCK) {
                    sums.fill(0.0);
                }
                let x = &row.input(&mem, i, a.x, 0)[at..at + n];
                // SAFETY: a token belongs to one row, and the chunk to one thread.
                let out = unsafe { row.result(out, i, at, &mut spare[..n]) };
                decay_chunk(c.isa, a, x, at, sums, out);
            };
            (0..row.confirmed).for_each(|i| token(&mut sums, i));
            for (sum, s) in sums.iter().zip(state.as_chunks_mut().0) {
                *s = parts(*sum);
            }
            (row.confirmed..row.all).for_each(|i| token(&mut sums, i));
        }
    });
    log(c, mem, [a.x]);
}

/// A running sum as a state keeps it: f32 and remainder.
#[inline(always)]
pub(super) fn parts(sum: f64) -> [f32; 2] {
    let high = sum as f32;
    [high, (sum - f64::from(high)) as f32]
}

/// The running sum that a state keeps. Sums are brought into this form after each token: where a state is written must
/// not show.
#[inline(always)]
pub(super) fn joined([high, low]: [f32; 2]) -> f64 {
    f64::from(high) + f64::from(low)
}

per_isa! {
    /// One token of up to `LANES` channels.
    fn decay_chunk(
        a: DecayArgs<'_>,
        from: &[f32],
        at: usize,
        sums: &mut [f64; LANES],
        out: &mut [f32],
    ) {
        let n = out.len();
        let (mut x, mut neg_a) = ([0.0f32; LANES], [0.0f32; LANES]);
        for ((x, from), bias) in x.iter_mut().zip(from).zip(&a.bias[at..]) {
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
            *sum = joined(parts(*sum + f64::from(*g)));
            *g = exp(*sum as f32 - before);
        }
        out.copy_from_slice(&g[..n]);
    }
}

/// `ln(1 + e^x)`
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Columns of a state that one piece of work takes.
pub(super) const COLUMNS: usize = 2 * LANES;

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

impl DeltaArgs<'_> {
    /// What token `i` of a row brings. Queries of those in the log are gone: their results are not wanted.
    pub(super) fn token<'m>(&'m self, row: &Row, mem: &'m StateMem, i: usize) -> Token<'m> {
        let (keys, values) = (self.heads.keys(), self.heads.values());
        let k = row.input(mem, i, self.k, 0);
        let beta = keys + values + self.decay.cols;
        Token {
            q: row.token(i).map_or(k, |t| self.q.row(t)),
            k,
            v: row.input(mem, i, self.v, keys),
            decay: row.input(mem, i, self.decay, keys + values),
            beta: row.input(mem, i, self.beta, beta),
        }
    }
}

/// What one token brings to all heads.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) decay: &'a [f32],
    pub(super) beta: &'a [f32],
}

/// The gated delta rule. Columns of the state `[dk, dv]` of a head are independent: they are the pieces of work.
pub(super) fn delta_rule(
    c: &Context<'_>,
    a: DeltaArgs<'_>,
    (mem, node): (StateMem, usize),
    out: &MatMut<'_>,
) {
    let DeltaHeads { hv, dk, dv, .. } = a.heads;
    let chunks = dv.div_ceil(COLUMNS);
    let cost = dk * 8 * c.b.tokens / c.b.rows.max(1);
    let own = c.own(node, dk * COLUMNS);
    share_by(c.pool, c.b.rows * hv * chunks, cost, |thread, items| {
        for item in items {
            let (h, at) = (item / chunks % hv, item % chunks * COLUMNS);
            let (row, n) = (Row::new(c, item / chunks / hv), COLUMNS.min(dv - at));
            let mut spare = [0.0; COLUMNS];
            let kept = Columns { mem, slot: row.slot, start: h * dk * dv + at, dv, n };
            kept.run(dk, &row, (own, thread), |columns, i| {
                // SAFETY: a token belongs to one row, and the columns to one piece of work.
                let out = unsafe { row.result(out, i, h * dv + at, &mut spare[..n]) };
                delta_token(c.isa, a.heads, a.token(&row, &mem, i), h, at, columns, out);
            });
        }
    });
    log(c, mem, [a.k, a.v, a.decay, a.beta]);
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

    /// Takes a row's tokens through these columns of its record, which have `rows` rows: the confirmed ones in place,
    /// the others on a copy in the thread's piece of `own`.
    pub(super) fn run(
        self,
        rows: usize,
        row: &Row,
        (own, thread): (StateMem, usize),
        mut token: impl FnMut(Self, usize),
    ) {
        if row.fresh && row.confirmed > 0 {
            (0..rows).for_each(|i| self.row(i).fill(0.0));
        }
        (0..row.confirmed).for_each(|i| token(self, i));
        if row.confirmed == row.all {
            return;
        }
        let copy = Self { mem: own, slot: thread, start: 0, dv: self.n, n: self.n };
        for i in 0..rows {
            if row.fresh && row.confirmed == 0 {
                copy.row(i).fill(0.0);
            } else {
                copy.row(i).copy_from_slice(self.row(i));
            }
        }
        (row.confirmed..row.all).for_each(|i| token(copy, i));
    }
}

per_isa! {
    fn delta_token(
        heads: DeltaHeads,
        token: Token<'_>,
        h: usize,
        at: usize,
        m: Columns,
        out: &mut [f32],
    ) {
        let DeltaHeads { hk, hv, dk, dv } = heads;
        let key_head = h / (hv / hk);
        let (decay, beta) = (token.decay, token.beta[h]);
        let (q, k) =
            (&token.q[key_head * dk..][..dk], &token.k[key_head * dk..][..dk]);
        let v = &token.v[h * dv + at..][..m.n];
        if decay.len() == hv {
            delta_columns(HeadToken { q, k, decay: decay[h], beta }, v, m, out);
        } else {
            delta_columns(HeadToken { q, k, decay: &decay[h * dk..][..dk], beta }, v, m, out);
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
struct HeadToken<'a, D> {
    q: &'a [f32],
    k: &'a [f32],
    decay: D,
    beta: f32,
}

#[inline(always)]
fn delta_columns<D: RowDecay>(token: HeadToken<'_, D>, v: &[f32], m: Columns, out: &mut [f32]) {
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
    token: HeadToken<'_, D>,
    v: &[f32],
    m: Columns,
    out: &mut [f32],
) {
    let HeadToken { q, k, decay, beta } = token;
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

#[cfg(test)]
mod tests {
    use super::{joined, parts};

    /// A sum that went through a state and one that did not have the same bits.
    #[test]
    fn sums_stay_what_they_are_in_a_state() {
        let mut sum = 0.0f64;
        for i in 1..100_000 {
            sum -= 1.0 / f64::from(i) / 3.0;
            let kept = joined(parts(sum));
            assert!((kept - sum).abs() <= sum.abs() * 1e-14);
            assert_eq!(joined(parts(kept)).to_bits(), kept.to_bits());
            sum = kept;
        }
    }
}
