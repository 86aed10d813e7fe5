//! One block of keys and values on its way into running softmaxes.

use super::super::lanes::{LANES, exp, fold, per_isa, tanh};
use super::TOGETHER;
use crate::inputs::BLOCK;

/// The softmax so far: weights are `e^(score - max)`.
#[derive(Clone, Copy)]
pub(super) struct Running {
    pub(super) max: f32,
    pub(super) sum: f32,
}

impl Running {
    pub(super) const START: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// One score without a value; `-inf` is none.
    pub(super) fn from(sink: f32) -> Self {
        if sink == f32::NEG_INFINITY { Self::START } else { Self { max: sink, sum: 1.0 } }
    }
}

/// One block of keys `[dim, BLOCK]` and values `[BLOCK, dv]` (none where the first numbers of a key are its value), of
/// which `from..to` are visible.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) from: usize,
    pub(super) to: usize,
}

per_isa! {
    /// Adds a tile to one query head's running softmax; `acc` is `[dv]`, the weighted values so far.
    pub(super) fn merge_tile(run: &mut Running, acc: &mut [f32], q: &[f32], tile: Tile<'_>, scale: f32, softcap: f32) {
        let mut s = scores(q, tile.k);
        if let Some(keep) = run.take(&mut s, tile, scale, softcap) {
            weigh_values(acc, keep, &s, tile);
        }
    }
}

per_isa! {
    /// The same for some heads at once, where keys are their own values; `acc` is `[dv, TOGETHER]`.
    pub(super) fn merge_keys(
        runs: &mut [Running; TOGETHER],
        acc: &mut [[f32; TOGETHER]],
        q: &[f32],
        tile: Tile<'_>,
        scale: f32,
        softcap: f32,
    ) {
        let (mut weights, mut keep) = ([[0.0f32; TOGETHER]; BLOCK], [1.0f32; TOGETHER]);
        let heads = q.chunks_exact(tile.k.len() / BLOCK).zip(runs);
        for (h, (q, run)) in heads.enumerate() {
            let mut s = scores(q, tile.k);
            if let Some(kept) = run.take(&mut s, tile, scale, softcap) {
                keep[h] = kept;
                weights.iter_mut().zip(s).for_each(|(weights, s)| weights[h] = s);
            }
        }
        weigh_keys(acc, &keep, &weights, tile);
    }
}

impl Running {
    /// Takes in a tile's scores, which become weights. What was there before counts the returned part of what it did;
    /// nothing is returned if nothing is visible.
    #[inline(always)]
    fn take(
        &mut self,
        s: &mut [f32; BLOCK],
        tile: Tile<'_>,
        scale: f32,
        softcap: f32,
    ) -> Option<f32> {
        let mut max = self.max;
        for (p, s) in s.iter_mut().enumerate() {
            *s *= scale;
            if softcap != 0.0 {
                *s = softcap * tanh(*s / softcap);
            }
            if p < tile.from || p >= tile.to {
                *s = f32::NEG_INFINITY;
            }
        }
        for s in *s {
            max = if s > max { s } else { max };
        }
        if max == f32::NEG_INFINITY {
            return None;
        }
        let mut lane = [0.0f32; LANES];
        for half in 0..BLOCK / LANES {
            for l in 0..LANES {
                let s = &mut s[half * LANES + l];
                *s = exp(*s - max);
                lane[l] += *s;
            }
        }
        let keep = exp(self.max - max);
        self.sum = self.sum * keep + fold(lane);
        self.max = max;
        Some(keep)
    }
}

/// `q . k[:, p]` for each position of a tile.
#[inline(always)]
pub(in crate::cpu) fn scores(q: &[f32], k: &[f32]) -> [f32; BLOCK] {
    let mut a = [0.0f32; LANES];
    let mut b = [0.0f32; LANES];
    for (q, k) in q.iter().zip(k.as_chunks::<BLOCK>().0) {
        let (low, high) = k.split_at(LANES);
        a.iter_mut().zip(low).for_each(|(a, k)| *a = k.mul_add(*q, *a));
        b.iter_mut().zip(high).for_each(|(b, k)| *b = k.mul_add(*q, *b));
    }
    std::array::from_fn(|p| if p < LANES { a[p] } else { b[p - LANES] })
}

/// `acc = acc * keep + sum over visible p of s[p] * v[p]`
#[inline(always)]
fn weigh_values(acc: &mut [f32], keep: f32, s: &[f32; BLOCK], tile: Tile<'_>) {
    let dv = acc.len();
    let (wide, rest) = acc.as_chunks_mut::<{ 2 * LANES }>();
    for (i, acc) in wide.iter_mut().enumerate() {
        weigh_lanes(acc, keep, s, tile, (dv, i * 2 * LANES));
    }
    let (half, rest) = rest.as_chunks_mut::<LANES>();
    let at = dv - half.len() * LANES - rest.len();
    for acc in half {
        weigh_lanes(acc, keep, s, tile, (dv, at));
    }
    let at = dv - rest.len();
    for (i, acc) in rest.iter_mut().enumerate() {
        weigh_lanes(std::array::from_mut(acc), keep, s, tile, (dv, at + i));
    }
}

/// [`weigh_values`] for the columns `at..at + N` of values with `dv` columns.
#[inline(always)]
fn weigh_lanes<const N: usize>(
    acc: &mut [f32; N],
    keep: f32,
    s: &[f32; BLOCK],
    tile: Tile<'_>,
    (dv, at): (usize, usize),
) {
    let mut sum = acc.map(|a| a * keep);
    for (p, weight) in s.iter().enumerate().take(tile.to).skip(tile.from) {
        let v: &[f32; N] = tile.v[p * dv + at..].first_chunk().expect("in the tile");
        for (sum, v) in sum.iter_mut().zip(v) {
            *sum = weight.mul_add(*v, *sum);
        }
    }
    *acc = sum;
}

/// Rows of keys that [`weigh_keys`] takes at once, so that additions need not wait for each other.
const ROWS: usize = 4;

/// `acc[d] = acc[d] * keep + sum over visible p of k[d, p] * weights[p]`, a lane for each head.
#[inline(always)]
fn weigh_keys(
    acc: &mut [[f32; TOGETHER]],
    keep: &[f32; TOGETHER],
    weights: &[[f32; TOGETHER]; BLOCK],
    tile: Tile<'_>,
) {
    let (acc, acc_rest) = acc.as_chunks_mut::<ROWS>();
    let (k, k_rest) = tile.k.as_chunks::<BLOCK>().0.split_at(acc.len() * ROWS);
    for (acc, k) in acc.iter_mut().zip(k.as_chunks::<ROWS>().0) {
        weigh_rows(acc, keep, weights, k, tile);
    }
    for (acc, k) in acc_rest.iter_mut().zip(k_rest) {
        let (acc, k) = (std::array::from_mut(acc), std::array::from_ref(k));
        weigh_rows(acc, keep, weights, k, tile);
    }
}

/// [`weigh_keys`] for `N` rows.
#[inline(always)]
fn weigh_rows<const N: usize>(
    acc: &mut [[f32; TOGETHER]; N],
    keep: &[f32; TOGETHER],
    weights: &[[f32; TOGETHER]; BLOCK],
    k: &[[f32; BLOCK]; N],
    tile: Tile<'_>,
) {
    let mut sums = *acc;
    for sums in &mut sums {
        sums.iter_mut().zip(keep).for_each(|(sum, keep)| *sum *= keep);
    }
    for (p, weights) in weights.iter().enumerate().take(tile.to).skip(tile.from) {
        for (sums, k) in sums.iter_mut().zip(k) {
            sums.iter_mut().zip(weights).for_each(|(sum, w)| *sum = w.mul_add(k[p], *sum));
        }
    }
    *acc = sums;
}
