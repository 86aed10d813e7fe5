//! Query rows against one block of keys and values, as many of them at once as there are registers for their sums.
//!
//! Owns the order of the sums of a query, which is that of `tile.rs`: a score is one chain of fused multiply-adds over
//! the numbers of a key, a weighted value one chain over the visible positions. So how many queries go together
//! changes no bit of any. Refuses to multiply what a query does not see: it may be anything.

// Loops over `r` keep several arrays of registers in step.
#![allow(clippy::needless_range_loop)]

use std::array::from_fn;
use std::ops::Range;

use super::super::lanes::{LANES, fold, tanh};
use super::super::paged::{Numbers, brain, half};
use super::tile::Running;
use crate::inputs::BLOCK;
use crate::matmul::{Kernel, Simd};

/// One query head of one token on its way over what it sees.
pub(super) struct Query<'a> {
    pub(super) q: &'a [f32],
    /// The weighted values so far; anything as long as the query is `fresh`.
    pub(super) sums: &'a mut [f32],
    pub(super) fresh: bool,
    pub(super) run: Running,
    /// What it sees of a block.
    pub(super) seen: Range<usize>,
}

impl Query<'_> {
    /// Turns the sums into the result.
    pub(super) fn end(&mut self) {
        if self.fresh {
            self.sums.fill(0.0);
        }
        self.sums.iter_mut().for_each(|sum| *sum /= self.run.sum);
    }
}

/// Merges a block of keys `[dim, BLOCK]` and values `[BLOCK, dv]` into queries that see some of it.
pub(super) struct Merge<'a, 'q> {
    pub(super) queries: &'a mut [Query<'q>],
    pub(super) k: Numbers<'a>,
    pub(super) v: Numbers<'a>,
    pub(super) scale: f32,
    /// 0 for none.
    pub(super) softcap: f32,
}

/// How many queries go at once: as many of the first size as there are, then of the next.
const SIZES: [usize; 5] = [8, 4, 3, 2, 1];
/// The most at once; instruction sets with registers for so many have wide ones.
const MOST: usize = SIZES[0];

impl Kernel for Merge<'_, '_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { mut queries, k, v, scale, softcap } = self;
        while !queries.is_empty() {
            let most = queries.len().min(S::TILE_ROWS);
            let size = SIZES.into_iter().find(|size| *size <= most).unwrap_or(1);
            let some;
            (some, queries) = std::mem::take(&mut queries).split_at_mut(size);
            if some.iter().all(|query| query.seen.is_empty()) {
                continue;
            }
            // SAFETY: the caller has the instruction set.
            unsafe {
                match size {
                    8 => together::<S, 8>(some, k, v, scale, softcap),
                    4 => together::<S, 4>(some, k, v, scale, softcap),
                    3 => together::<S, 3>(some, k, v, scale, softcap),
                    2 => together::<S, 2>(some, k, v, scale, softcap),
                    _ => together::<S, 1>(some, k, v, scale, softcap),
                }
            }
        }
    }
}

/// Runs [`Together`] on `R` queries, where there are registers for so many.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn together<S: Simd, const R: usize>(
    queries: &mut [Query<'_>],
    k: Numbers<'_>,
    v: Numbers<'_>,
    scale: f32,
    softcap: f32,
) {
    if R <= S::TILE_ROWS
        && let Some(queries) = queries.first_chunk_mut::<R>()
    {
        // SAFETY: promised by the caller; the kernel has no pointers but those of its slices, which it measures.
        unsafe { S::run(Together { queries, k, v, scale, softcap }) }
    }
}

/// [`Merge`] for `R` queries.
struct Together<'a, 'q, const R: usize> {
    queries: &'a mut [Query<'q>; R],
    k: Numbers<'a>,
    v: Numbers<'a>,
    scale: f32,
    softcap: f32,
}

impl<const R: usize> Kernel for Together<'_, '_, R> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { queries, k, v, scale, softcap } = self;
        // SAFETY: the caller has the instruction set; lengths are checked where pointers are made.
        unsafe {
            let mut s = match k {
                Numbers::F32(k) => scores::<S, _, R>(queries, Singles(k)),
                Numbers::F16(k) => scores::<S, _, R>(queries, Halves::<false>(k)),
                Numbers::BF16(k) => scores::<S, _, R>(queries, Halves::<true>(k)),
            };
            let keep = soften(queries, &mut s, scale, softcap);
            match v {
                Numbers::F32(v) => weigh::<S, _, R>(queries, &keep, &s, Singles(v)),
                Numbers::F16(v) => weigh::<S, _, R>(queries, &keep, &s, Halves::<false>(v)),
                Numbers::BF16(v) => weigh::<S, _, R>(queries, &keep, &s, Halves::<true>(v)),
            }
        }
    }
}

/// The numbers of a head of a block.
trait Source: Copy {
    fn len(self) -> usize;

    /// 16 of them from `at` on.
    ///
    /// # Safety
    /// The machine has the instruction set, and there are so many.
    unsafe fn load<S: Simd>(self, at: usize) -> S::F;

    /// Number `at`.
    fn one(self, at: usize) -> f32;
}

/// f32.
#[derive(Clone, Copy)]
struct Singles<'a>(&'a [f32]);

impl Source for Singles<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, at: usize) -> S::F {
        // SAFETY: promised by the caller.
        unsafe { S::load_f(self.0.as_ptr().add(at)) }
    }

    #[inline(always)]
    fn one(self, at: usize) -> f32 {
        self.0[at]
    }
}

/// f16 or, if `BRAIN`, bf16.
#[derive(Clone, Copy)]
struct Halves<'a, const BRAIN: bool>(&'a [[u8; 2]]);

impl<const BRAIN: bool> Source for Halves<'_, BRAIN> {
    #[inline(always)]
    fn len(self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(self, at: usize) -> S::F {
        // SAFETY: promised by the caller.
        unsafe {
            let from = self.0.as_ptr().add(at).cast();
            if BRAIN { S::load_bf16(from) } else { S::load_f16(from) }
        }
    }

    #[inline(always)]
    fn one(self, at: usize) -> f32 {
        if BRAIN { brain(self.0[at]) } else { half(u16::from_le_bytes(self.0[at])) }
    }
}

/// `q . k[:, p]` of each query for each position of a block.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn scores<S: Simd, K: Source, const R: usize>(
    queries: &[Query<'_>; R],
    k: K,
) -> [[f32; BLOCK]; R] {
    let dim = k.len() / BLOCK;
    let q: [&[f32]; R] = from_fn(|r| &queries[r].q[..dim]);
    let q = q.map(<[f32]>::as_ptr);
    let mut s = [[0.0; BLOCK]; R];
    // SAFETY: the caller has the instruction set; queries and keys have `dim` numbers, measured above.
    unsafe {
        if S::TILE_ROWS >= MOST {
            dots::<S, K, R, 2>(&mut s, q, k, dim, 0);
        } else {
            dots::<S, K, R, 1>(&mut s, q, k, dim, 0);
            dots::<S, K, R, 1>(&mut s, q, k, dim, LANES);
        }
    }
    s
}

/// [`scores`] for the `C * LANES` positions from `at` on.
///
/// # Safety
/// The machine has the instruction set, `k` is `[dim, BLOCK]`, and there are `dim` numbers at each of `q`.
#[inline(always)]
unsafe fn dots<S: Simd, K: Source, const R: usize, const C: usize>(
    s: &mut [[f32; BLOCK]; R],
    q: [*const f32; R],
    k: K,
    dim: usize,
    at: usize,
) {
    // SAFETY: promised by the caller.
    unsafe {
        let mut sums = [[S::splat_f(0.0); C]; R];
        for d in 0..dim {
            let k: [S::F; C] = from_fn(|c| k.load::<S>(d * BLOCK + at + c * LANES));
            for r in 0..R {
                let q = S::splat_f(*q[r].add(d));
                for c in 0..C {
                    sums[r][c] = S::fma(k[c], q, sums[r][c]);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                S::store_f(s[r][at + c * LANES..][..LANES].as_mut_ptr(), sums[r][c]);
            }
        }
    }
}

/// Takes in scores, which become weights. What was there before counts the returned part of what it did. A query that
/// has seen nothing but scores of `-inf` so far sees nothing here, either. The arithmetic is that of [`Running::take`].
#[inline(always)]
fn soften<const R: usize>(
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

/// `sums = sums * keep + sum over visible p of s[p] * v[p]` of each query.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn weigh<S: Simd, V: Source, const R: usize>(
    queries: &mut [Query<'_>; R],
    keep: &[f32; R],
    s: &[[f32; BLOCK]; R],
    v: V,
) {
    let dv = v.len() / BLOCK;
    let from = queries.each_ref().map(|query| query.seen.start);
    let to = queries.each_ref().map(|query| query.seen.end);
    let seeing = || queries.iter().map(|q| q.seen.clone()).filter(|seen| !seen.is_empty());
    let Some(first) = seeing().map(|seen| seen.start).min() else { return };
    let last = seeing().map(|seen| seen.end).max().unwrap_or(first);
    let most = from.iter().fold(first, |most, from| most.max(*from));
    let all = most..to.iter().fold(last, |least, to| least.min(*to)).max(most);
    let fresh = queries.each_ref().map(|query| query.fresh);
    let sums = queries.each_mut().map(|query| query.sums[..dv].as_mut_ptr());
    let w = Weighing { sums, fresh, keep, s, from, to, any: first..last, all, dv };
    let mut at = 0;
    // SAFETY: the caller has the instruction set; sums and values have `dv` numbers, measured above.
    unsafe {
        while at + 4 * LANES <= dv && (R == 1 || (R <= 4 && S::TILE_ROWS >= MOST)) {
            w.columns::<S, V, 4>(v, at);
            at += 4 * LANES;
        }
        while at + 2 * LANES <= dv && (R <= 2 || S::TILE_ROWS >= MOST) {
            w.columns::<S, V, 2>(v, at);
            at += 2 * LANES;
        }
        while at + LANES <= dv {
            w.columns::<S, V, 1>(v, at);
            at += LANES;
        }
    }
    for query in queries.iter_mut().zip(s).zip(keep) {
        let ((query, s), keep) = query;
        let sums = &mut query.sums[at..dv];
        match query.fresh {
            true => sums.fill(0.0),
            false => sums.iter_mut().for_each(|sum| *sum *= keep),
        }
        query.fresh = false;
        for p in query.seen.clone() {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = s[p].mul_add(v.one(p * dv + at + i), *sum);
            }
        }
    }
}

/// What [`weigh`] knows of its queries.
struct Weighing<'a, const R: usize> {
    sums: [*mut f32; R],
    fresh: [bool; R],
    keep: &'a [f32; R],
    s: &'a [[f32; BLOCK]; R],
    from: [usize; R],
    to: [usize; R],
    /// Of the block what some see, and of that what all see.
    any: Range<usize>,
    all: Range<usize>,
    dv: usize,
}

impl<const R: usize> Weighing<'_, R> {
    /// The columns `at..at + C * LANES`.
    ///
    /// # Safety
    /// The machine has the instruction set; the sums and each of the values `[BLOCK, dv]` have these columns.
    #[inline(always)]
    unsafe fn columns<S: Simd, V: Source, const C: usize>(&self, v: V, at: usize) {
        // SAFETY: promised by the caller.
        unsafe {
            let mut sums = [[S::splat_f(0.0); C]; R];
            for r in 0..R {
                if self.fresh[r] {
                    continue;
                }
                let keep = S::splat_f(self.keep[r]);
                for c in 0..C {
                    sums[r][c] = S::mul(S::load_f(self.sums[r].add(at + c * LANES)), keep);
                }
            }
            self.some::<S, V, C>(&mut sums, self.any.start..self.all.start, v, at);
            for p in self.all.clone() {
                let v: [S::F; C] = from_fn(|c| v.load::<S>(p * self.dv + at + c * LANES));
                for r in 0..R {
                    let weight = S::splat_f(self.s[r][p]);
                    for c in 0..C {
                        sums[r][c] = S::fma(weight, v[c], sums[r][c]);
                    }
                }
            }
            self.some::<S, V, C>(&mut sums, self.all.end..self.any.end, v, at);
            for r in 0..R {
                for c in 0..C {
                    S::store_f(self.sums[r].add(at + c * LANES), sums[r][c]);
                }
            }
        }
    }

    /// Adds positions that not all see.
    ///
    /// # Safety
    /// As for [`columns`](Self::columns).
    #[inline(always)]
    unsafe fn some<S: Simd, V: Source, const C: usize>(
        &self,
        sums: &mut [[S::F; C]; R],
        positions: Range<usize>,
        v: V,
        at: usize,
    ) {
        for p in positions {
            for r in 0..R {
                if p < self.from[r] || p >= self.to[r] {
                    continue;
                }
                // SAFETY: promised by the caller.
                unsafe {
                    let weight = S::splat_f(self.s[r][p]);
                    for c in 0..C {
                        let v = v.load::<S>(p * self.dv + at + c * LANES);
                        sums[r][c] = S::fma(weight, v, sums[r][c]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
