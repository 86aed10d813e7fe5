//! Query rows against one block of keys and values, as many of them at once as there are registers for their sums.
//!
//! Owns the order of the sums of a query, which is that of `tile.rs`: a score is one chain of fused multiply-adds over
//! the numbers of a key, a weighted value one chain over the visible positions. So how many queries go together
//! changes no bit of any. Refuses to multiply what a query does not see: it may be anything.

// Loops over `r` keep several arrays of registers in step.
#![allow(clippy::needless_range_loop)]

use std::array::from_fn;
use std::ops::Range;

use super::super::lanes::LANES;
use super::super::paged::{LINE, Numbers, brain, half};
use super::soften::soften;
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
    /// Keys and values to ask for meanwhile, in the same types.
    pub(super) ahead: [Option<&'a [u8]>; 2],
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
        let Self { mut queries, k, v, mut ahead, scale, softcap } = self;
        while !queries.is_empty() {
            let most = queries.len().min(S::TILE_ROWS);
            let size = SIZES.into_iter().find(|size| *size <= most).unwrap_or(1);
            let some;
            (some, queries) = std::mem::take(&mut queries).split_at_mut(size);
            if some.iter().all(|query| query.seen.is_empty()) {
                continue;
            }
            // Once is enough.
            let ahead = std::mem::take(&mut ahead);
            let some = Merge { queries: some, k, v, ahead, scale, softcap };
            // SAFETY: the caller has the instruction set.
            unsafe {
                match size {
                    8 => some.together::<S, 8>(),
                    4 => some.together::<S, 4>(),
                    3 => some.together::<S, 3>(),
                    2 => some.together::<S, 2>(),
                    _ => some.together::<S, 1>(),
                }
            }
        }
    }
}

impl Merge<'_, '_> {
    /// Runs [`Together`] on `R` queries, where there are registers for so many.
    ///
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn together<S: Simd, const R: usize>(self) {
        let Self { queries, k, v, ahead, scale, softcap } = self;
        if R <= S::TILE_ROWS
            && let Some(queries) = queries.first_chunk_mut::<R>()
        {
            // SAFETY: promised by the caller; the kernel has no pointers but those of its slices, which it measures.
            unsafe { S::run(Together { queries, k, v, ahead, scale, softcap }) }
        }
    }
}

/// [`Merge`] for `R` queries.
struct Together<'a, 'q, const R: usize> {
    queries: &'a mut [Query<'q>; R],
    k: Numbers<'a>,
    v: Numbers<'a>,
    ahead: [Option<&'a [u8]>; 2],
    scale: f32,
    softcap: f32,
}

impl<const R: usize> Kernel for Together<'_, '_, R> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { queries, k, v, ahead: [next_k, next_v], scale, softcap } = self;
        // SAFETY: the caller has the instruction set; lengths are checked where pointers are made.
        unsafe {
            let mut s = match k {
                Numbers::F32(k) => scores::<S, _, R>(queries, Singles(k), next_k),
                Numbers::F16(k) => scores::<S, _, R>(queries, Halves::<false>(k), next_k),
                Numbers::BF16(k) => scores::<S, _, R>(queries, Halves::<true>(k), next_k),
            };
            let keep = soften(queries, &mut s, scale, softcap);
            let given = Given { keep: &keep, s: &s };
            match v {
                Numbers::F32(v) => weigh::<S, _, R>(queries, given, Singles(v), next_v),
                Numbers::F16(v) => weigh::<S, _, R>(queries, given, Halves::<false>(v), next_v),
                Numbers::BF16(v) => weigh::<S, _, R>(queries, given, Halves::<true>(v), next_v),
            }
        }
    }
}

/// The numbers of a head of a block.
trait Source: Copy {
    /// Bytes of a number.
    const BYTES: usize;

    fn len(self) -> usize;

    fn start(self) -> *const u8;

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
    const BYTES: usize = 4;

    #[inline(always)]
    fn start(self) -> *const u8 {
        self.0.as_ptr().cast()
    }

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
    const BYTES: usize = 2;

    #[inline(always)]
    fn start(self) -> *const u8 {
        self.0.as_ptr().cast()
    }

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

/// Asks for the line of `ahead` in which lane `c * LANES` of numbers `at` lies, if it is the first in it.
#[inline(always)]
fn ask<S: Simd, N: Source>(ahead: *const u8, at: usize, c: usize) {
    if (c * LANES * N::BYTES).is_multiple_of(LINE) {
        S::prefetch(ahead.wrapping_add((at + c * LANES) * N::BYTES));
    }
}

/// Where to ask for memory: what is here already serves where nothing comes next.
#[inline(always)]
fn ahead_of<N: Source>(numbers: N, next: Option<&[u8]>) -> *const u8 {
    next.map_or(numbers.start(), <[u8]>::as_ptr)
}

/// `q . k[:, p]` of each query for each position of a block.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn scores<S: Simd, K: Source, const R: usize>(
    queries: &[Query<'_>; R],
    k: K,
    next: Option<&[u8]>,
) -> [[f32; BLOCK]; R] {
    let dim = k.len() / BLOCK;
    let q: [*const f32; R] = from_fn(|r| queries[r].q[..dim].as_ptr());
    let to = Dots { q, k, ahead: ahead_of(k, next), dim };
    let mut s = [[0.0; BLOCK]; R];
    // SAFETY: the caller has the instruction set; queries and keys have `dim` numbers, measured above.
    unsafe {
        if S::TILE_ROWS >= MOST {
            to.positions::<S, 2>(&mut s, 0);
        } else {
            to.positions::<S, 1>(&mut s, 0);
            to.positions::<S, 1>(&mut s, LANES);
        }
    }
    s
}

/// What [`scores`] multiplies.
struct Dots<K, const R: usize> {
    q: [*const f32; R],
    k: K,
    ahead: *const u8,
    dim: usize,
}

impl<K: Source, const R: usize> Dots<K, R> {
    /// The `C * LANES` positions from `at` on.
    ///
    /// # Safety
    /// The machine has the instruction set, `k` is `[dim, BLOCK]`, and there are `dim` numbers at each of `q`.
    #[inline(always)]
    unsafe fn positions<S: Simd, const C: usize>(&self, s: &mut [[f32; BLOCK]; R], at: usize) {
        // SAFETY: promised by the caller.
        unsafe {
            let mut sums = [[S::splat_f(0.0); C]; R];
            for d in 0..self.dim {
                let place = d * BLOCK + at;
                let k: [S::F; C] = from_fn(|c| self.k.load::<S>(place + c * LANES));
                for c in 0..C {
                    ask::<S, K>(self.ahead, place, c);
                }
                for r in 0..R {
                    let q = S::splat_f(*self.q[r].add(d));
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
}

/// `sums = sums * keep + sum over visible p of s[p] * v[p]` of each query.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn weigh<S: Simd, V: Source, const R: usize>(
    queries: &mut [Query<'_>; R],
    given: Given<'_, R>,
    v: V,
    next: Option<&[u8]>,
) {
    let (dv, Given { keep, s }) = (v.len() / BLOCK, given);
    let from = queries.each_ref().map(|query| query.seen.start);
    let to = queries.each_ref().map(|query| query.seen.end);
    let seeing = || queries.iter().map(|q| q.seen.clone()).filter(|seen| !seen.is_empty());
    let Some(first) = seeing().map(|seen| seen.start).min() else { return };
    let last = seeing().map(|seen| seen.end).max().unwrap_or(first);
    let most = from.iter().fold(first, |most, from| most.max(*from));
    let all = most..to.iter().fold(last, |least, to| least.min(*to)).max(most);
    let fresh = queries.each_ref().map(|query| query.fresh);
    let sums = queries.each_mut().map(|query| query.sums[..dv].as_mut_ptr());
    let ahead = ahead_of(v, next);
    let w = Weighing { sums, fresh, given, from, to, any: first..last, all, dv, ahead };
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

/// What [`soften`] gives.
#[derive(Clone, Copy)]
struct Given<'a, const R: usize> {
    keep: &'a [f32; R],
    s: &'a [[f32; BLOCK]; R],
}

/// What [`weigh`] knows of its queries.
struct Weighing<'a, const R: usize> {
    sums: [*mut f32; R],
    fresh: [bool; R],
    given: Given<'a, R>,
    from: [usize; R],
    to: [usize; R],
    /// Of the block what some see, and of that what all see.
    any: Range<usize>,
    all: Range<usize>,
    dv: usize,
    ahead: *const u8,
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
                let keep = S::splat_f(self.given.keep[r]);
                for c in 0..C {
                    sums[r][c] = S::mul(S::load_f(self.sums[r].add(at + c * LANES)), keep);
                }
            }
            self.some::<S, V, C>(&mut sums, self.any.start..self.all.start, v, at);
            for p in self.all.clone() {
                let place = p * self.dv + at;
                let v: [S::F; C] = from_fn(|c| v.load::<S>(place + c * LANES));
                for c in 0..C {
                    ask::<S, V>(self.ahead, place, c);
                }
                for r in 0..R {
                    let weight = S::splat_f(self.given.s[r][p]);
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
                    let weight = S::splat_f(self.given.s[r][p]);
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
