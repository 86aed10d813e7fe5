//! From the scores of some queries in one block to the weights of its values.
//!
//! Owns the running softmax of queries that go together, in loops that vectorise over all of their scores. The arithmetic
//! of each is that of `tile.rs`, to the bit. Refuses to look at keys and values.

use std::array::from_fn;

use super::super::lanes::{LANES, fold, tanh};
use super::kernels::Query;
use crate::inputs::BLOCK;

/// Takes in scores, which become weights. What was there before counts the returned part of what it did. A query that
/// has seen nothing but scores of `-inf` so far sees nothing here, either.
#[inline(always)]
pub(super) fn soften<const R: usize>(
    queries: &mut [Query<'_>; R],
    s: &mut [[f32; BLOCK]; R],
    scale: f32,
    softcap: f32,
) -> [f32; R] {
    s.as_flattened_mut().iter_mut().for_each(|s| *s *= scale);
    if softcap != 0.0 {
        s.as_flattened_mut().iter_mut().for_each(|s| *s = softcap * tanh(*s / softcap));
    }
    let mut keep = [0.0; R];
    for (r, query) in queries.iter_mut().enumerate() {
        s[r][..query.seen.start].fill(f32::NEG_INFINITY);
        s[r][query.seen.end..].fill(f32::NEG_INFINITY);
        let max = largest(&s[r], query.run.max);
        if max == f32::NEG_INFINITY {
            query.seen = 0..0;
            continue;
        }
        s[r].iter_mut().for_each(|s| *s -= max);
        keep[r] = query.run.max - max;
        query.run.max = max;
    }
    s.as_flattened_mut().iter_mut().for_each(|s| *s = exp_below(*s));
    keep.iter_mut().for_each(|keep| *keep = exp_below(*keep));
    for (r, query) in queries.iter_mut().enumerate() {
        let sum = fold(from_fn(|l| s[r][l] + s[r][l + LANES]));
        if query.run.max > f32::NEG_INFINITY {
            query.run.sum = query.run.sum * keep[r] + sum;
        }
    }
    keep
}

/// The largest of `max` and those scores that are numbers.
#[inline(always)]
fn largest(s: &[f32; BLOCK], max: f32) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (low, high) = s.split_at(LANES);
    let mut lanes: [f32; LANES] = from_fn(|l| larger(high[l], larger(low[l], max)));
    let mut width = LANES / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] = larger(lanes[l], lanes[l + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// [`exp`](super::super::lanes::exp) of what is not above 0, to the bit: `2^n` is then one factor.
#[inline(always)]
fn exp_below(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // What is added to this is rounded to an integer, which the last bits then are.
    const ROUND: f32 = 12_582_912.0;
    let y = if x < -87.3 { -87.3 } else { x };
    let shifted = y * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (-n).mul_add(LN2_HI, y);
    let r = (-n).mul_add(LN2_LO, r);
    let mut p = 1.987_569_1e-4_f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p.mul_add(r, c);
    }
    let e = p.mul_add(r * r, r) + 1.0;
    let e = e * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.3 { 0.0 } else { e }
}

#[cfg(test)]
mod tests {
    use super::super::super::lanes::exp;
    use super::*;

    #[test]
    fn the_short_exponential_has_the_bits_of_the_long_one() {
        let mut x = 0.0_f32;
        while x > -200.0 {
            assert_eq!(exp_below(x).to_bits(), exp(x).to_bits(), "{x}");
            x -= x.abs().max(1e-3) * 3e-6;
        }
        let corners = [-0.0, -f32::MIN_POSITIVE, -87.3, -87.299_99, -87.300_01, f32::MIN];
        for x in corners.into_iter().chain([f32::NEG_INFINITY]) {
            assert_eq!(exp_below(x).to_bits(), exp(x).to_bits(), "{x}");
        }
        assert!(exp_below(f32::NAN).is_nan());
    }
}
