//! Kernels that carry a record from token to token: causal convolution and decays.
//!
//! Tokens of a row are taken strictly one after the other, so the result does not depend on how a prompt is cut.
//! Threads share channels of a state, never time. Unconfirmed tokens run on memory of the thread's own.

use super::context::{Context, StateMem};
use super::lanes::{LANES, exp, per_isa, sigmoid};
use super::ops::map;
use super::record::{Row, log};
use super::view::{Mat, MatMut, share};
use crate::op::{DecayCurve, MOST_TAPS, Map, SUM_BLOCK};

/// Channels that one piece of convolution work takes.
const CHANNELS: usize = 4 * LANES;

/// A number for each channel of a piece and each tap.
type Taps = [[f32; CHANNELS]; MOST_TAPS];

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
    let cols = a.x.cols;
    let k = a.taps.len() / cols;
    let chunks = cols.div_ceil(CHANNELS);
    let cost = CHANNELS * k * c.b.tokens / c.b.rows.max(1) / 8;
    share(c.pool, c.b.rows * chunks, cost, |items| {
        for (row, chunk) in items.map(|i| (Row::new(c, i / chunks), i % chunks)) {
            let at = chunk * CHANNELS;
            let n = CHANNELS.min(cols - at);
            let piece = ConvPiece::new(a, k, at, n);
            // The last K inputs; the newest takes the place of the oldest.
            let mut last: Taps = [[0.0; CHANNELS]; MOST_TAPS];
            for (j, last) in last[..k - 1].iter_mut().enumerate().filter(|_| !row.fresh) {
                // SAFETY: a chunk of channels of a slot belongs to one thread.
                last[..n].copy_from_slice(unsafe { mem.read(row.slot, j * cols + at, n) });
            }
            let mut spare = [0.0; CHANNELS];
            let mut token = |last: &mut Taps, i: usize| {
                let x = &row.input(&mem, i, a.x, 0)[at..at + n];
                // SAFETY: a token belongs to one row, and the chunk to one thread.
                let out = unsafe { row.result(out, i, at, &mut spare[..n]) };
                last[(k - 1 + i) % k][..n].copy_from_slice(x);
                conv_piece(c.isa, out, last, i % k, &piece);
            };
            (0..row.confirmed).for_each(|i| token(&mut last, i));
            for j in 0..k - 1 {
                // SAFETY: as for reading.
                let to = unsafe { mem.write(row.slot, j * cols + at, n) };
                to.copy_from_slice(&last[(row.confirmed + j) % k][..n]);
            }
            (row.confirmed..row.all).for_each(|i| token(&mut last, i));
        }
    });
    log(c, mem, [a.x]);
}

/// The weights of a piece, padded with zeros.
struct ConvPiece {
    taps: Taps,
    k: usize,
    bias: Option<[f32; CHANNELS]>,
    f: Map,
}

impl ConvPiece {
    /// Of the `n` channels from `at` on.
    fn new(a: ConvArgs<'_>, k: usize, at: usize, n: usize) -> Self {
        let padded = |from: &[f32]| {
            let mut to = [0.0; CHANNELS];
            to[..n].copy_from_slice(&from[at..at + n]);
            to
        };
        let mut taps: Taps = [[0.0; CHANNELS]; MOST_TAPS];
        taps.iter_mut()
            .zip(a.taps.chunks_exact(a.x.cols))
            .for_each(|(to, taps)| *to = padded(taps));
        Self { taps, k, bias: a.bias.map(padded), f: a.f }
    }
}

per_isa! {
    /// One token; the oldest of its inputs is `first` in the ring `last`.
    fn conv_piece(out: &mut [f32], last: &Taps, first: usize, piece: &ConvPiece) {
        let k = piece.k;
        let (new, old) = (&last[..first], &last[first..k]);
        let mut sums = [0.0f32; CHANNELS];
        for at in (0..CHANNELS).step_by(LANES) {
            let mut sum = [0.0f32; LANES];
            for (x, taps) in old.iter().chain(new).zip(&piece.taps) {
                for ((sum, x), tap) in sum.iter_mut().zip(&x[at..]).zip(&taps[at..]) {
                    *sum = x.mul_add(*tap, *sum);
                }
            }
            sums[at..at + LANES].copy_from_slice(&sum);
        }
        if let Some(bias) = &piece.bias {
            sums.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
        match piece.f {
            Map::Silu => sums.iter_mut().for_each(|o| *o *= sigmoid(*o)),
            other => sums.iter_mut().for_each(|o| *o = map(other, *o)),
        }
        out.copy_from_slice(&sums[..out.len()]);
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
