//! The gated delta rule.
//!
//! Tokens of a row are taken strictly one after the other; threads share heads and columns of a state, never time. What
//! a token writes and the next one reads goes through the columns in one pass: the sums are those of the definition, and
//! in its order.

// Loops over `r` keep several arrays of registers in step.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;
use std::ops::Range;

use super::columns::{COLUMNS, Columns, Lanes};
use super::context::{Context, StateMem};
use super::lanes::LANES;
use super::record::{Row, log};
use super::view::{Mat, MatMut, share_by};
use crate::matmul::{Isa, Kernel, Simd};
use crate::op::DeltaHeads;

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
    #[inline]
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

/// The tokens of a row, for one head.
#[derive(Clone, Copy)]
struct Head<'a> {
    a: &'a DeltaArgs<'a>,
    row: &'a Row,
    mem: &'a StateMem,
    h: usize,
}

/// What one token brings to one head.
#[derive(Clone, Copy)]
struct HeadToken<'a, D> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: D,
    beta: f32,
}

impl<'a> Head<'a> {
    #[inline(always)]
    fn token<D: RowDecay<'a>>(&self, i: usize) -> HeadToken<'a, D> {
        let (DeltaHeads { hk, hv, dk, dv }, h) = (self.a.heads, self.h);
        let token = self.a.token(self.row, self.mem, i);
        let key_head = h / (hv / hk);
        HeadToken {
            q: &token.q[key_head * dk..][..dk],
            k: &token.k[key_head * dk..][..dk],
            v: &token.v[h * dv..][..dv],
            decay: D::of_head(token.decay, h, dk),
            beta: token.beta[h],
        }
    }
}

/// A head's decay: one number, or one for each row of its state.
trait RowDecay<'a>: Copy {
    fn of_head(decay: &'a [f32], h: usize, dk: usize) -> Self;
    fn of(self, row: usize) -> f32;
}

impl<'a> RowDecay<'a> for f32 {
    #[inline(always)]
    fn of_head(decay: &'a [f32], h: usize, _: usize) -> Self {
        decay[h]
    }

    #[inline(always)]
    fn of(self, _: usize) -> f32 {
        self
    }
}

impl<'a> RowDecay<'a> for &'a [f32] {
    #[inline(always)]
    fn of_head(decay: &'a [f32], h: usize, dk: usize) -> Self {
        &decay[h * dk..][..dk]
    }

    #[inline(always)]
    fn of(self, row: usize) -> f32 {
        self[row]
    }
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
    let cost = dk * 4 * c.b.tokens / c.b.rows.max(1);
    let own = c.own(node, dk * COLUMNS);
    share_by(c.pool, c.b.rows * hv * chunks, cost, |thread, items| {
        for item in items {
            let (h, at) = (item / chunks % hv, item % chunks * COLUMNS);
            let (row, n) = (Row::new(c, item / chunks / hv), COLUMNS.min(dv - at));
            let start = h * dk * dv + at;
            let kept = Columns { mem, slot: row.slot, start, stride: dv, rows: dk, n };
            let head = Head { a: &a, row: &row, mem: &mem, h };
            kept.run(&row, (own, thread), |m, tokens| {
                let piece = Piece { head, tokens, at, n, m, out };
                // SAFETY: the lanes are `n` columns, rounded up, and belong to this piece of work with their results.
                unsafe {
                    if a.decay.cols == hv {
                        piece.run::<f32>(c.isa);
                    } else {
                        piece.run::<&[f32]>(c.isa);
                    }
                }
            });
        }
    });
    log(c, mem, [a.k, a.v, a.decay, a.beta]);
}

/// Some tokens through the columns `at..at + n` of their head.
struct Piece<'a> {
    head: Head<'a>,
    tokens: Range<usize>,
    at: usize,
    n: usize,
    m: Lanes,
    out: &'a MatMut<'a>,
}

/// A piece in `R` vectors, with the kind of its decays.
struct Vectors<'a, D, const R: usize>(Piece<'a>, PhantomData<D>);

impl<'a> Piece<'a> {
    /// # Safety
    /// The lanes are those of `n` columns, and nobody else touches them or the results of the columns.
    unsafe fn run<D: RowDecay<'a>>(self, isa: Isa) {
        // SAFETY: the kernels have no pointers but these.
        unsafe {
            if self.n > LANES {
                isa.run(Vectors::<D, { COLUMNS / LANES }>(self, PhantomData));
            } else {
                isa.run(Vectors::<D, 1>(self, PhantomData));
            }
        }
    }

    /// The values of a token in these columns, padded with zeros.
    #[inline(always)]
    fn values(&self, v: &[f32]) -> [f32; COLUMNS] {
        let mut padded = [0.0; COLUMNS];
        padded[..self.n].copy_from_slice(&v[self.at..][..self.n]);
        padded
    }

    #[inline(always)]
    fn put(&self, i: usize, y: &[f32; COLUMNS]) {
        let (head, mut spare) = (&self.head, [0.0; COLUMNS]);
        let at = head.h * head.a.heads.dv + self.at;
        // SAFETY: a token belongs to one row, and the columns to one piece of work.
        let out = unsafe { head.row.result(self.out, i, at, &mut spare[..self.n]) };
        out.copy_from_slice(&y[..self.n]);
    }
}

impl<'a, D: RowDecay<'a>, const R: usize> Kernel for Vectors<'a, D, R> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (piece, tokens) = (&self.0, self.0.tokens.clone());
        let mut token = piece.head.token::<D>(tokens.start);
        // SAFETY: the caller has the instruction set, and the lanes have as many rows as a key has numbers.
        unsafe {
            let mut d = look::<S, D, R>(token, &piece.m);
            for i in tokens.clone() {
                let v = piece.values(token.v);
                for r in 0..R {
                    let difference =
                        S::fma(d[r], S::splat_f(-1.0), S::load_f(v.as_ptr().add(r * LANES)));
                    d[r] = S::mul(S::splat_f(token.beta), difference);
                }
                let next = (i + 1 < tokens.end).then(|| piece.head.token::<D>(i + 1));
                let y;
                (y, d) = match (i == tokens.start, next) {
                    (true, None) => pass::<S, D, R, true, false>([token; 2], d, &piece.m),
                    (true, Some(next)) => pass::<S, D, R, true, true>([token, next], d, &piece.m),
                    (false, None) => pass::<S, D, R, false, false>([token; 2], d, &piece.m),
                    (false, Some(next)) => pass::<S, D, R, false, true>([token, next], d, &piece.m),
                };
                let mut numbers = [0.0; COLUMNS];
                (0..R).for_each(|r| S::store_f(numbers.as_mut_ptr().add(r * LANES), y[r]));
                piece.put(i, &numbers);
                token = next.unwrap_or(token);
            }
        }
    }
}

/// The product of the decayed columns with the key. They stay as they are.
///
/// # Safety
/// The machine has the instruction set, and there are `R` vectors in as many rows as the key has numbers.
#[inline(always)]
unsafe fn look<'a, S: Simd, D: RowDecay<'a>, const R: usize>(
    token: HeadToken<'a, D>,
    m: &Lanes,
) -> [S::F; R] {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [S::splat_f(0.0); R];
        for i in 0..token.k.len() {
            let (row, k) = (m.row(i), S::splat_f(token.k[i]));
            let decay = S::splat_f(token.decay.of(i));
            for r in 0..R {
                let decayed = S::mul(S::load_f(row.add(r * LANES)), decay);
                sums[r] = S::fma(decayed, k, sums[r]);
            }
        }
        sums
    }
}

/// Adds `k d` to the columns and returns their product with `q`. If there is a `NEXT` token, decays them for it and
/// returns their product with its key, too. The `FIRST` of some tokens finds them as they were before its own decay.
///
/// # Safety
/// As for [`look`].
#[inline(always)]
unsafe fn pass<
    'a,
    S: Simd,
    D: RowDecay<'a>,
    const R: usize,
    const FIRST: bool,
    const NEXT: bool,
>(
    [token, next]: [HeadToken<'a, D>; 2],
    d: [S::F; R],
    m: &Lanes,
) -> ([S::F; R], [S::F; R]) {
    // SAFETY: the caller's.
    unsafe {
        let (mut y, mut sums) = ([S::splat_f(0.0); R], [S::splat_f(0.0); R]);
        let n = token.k.len();
        let (q, next_k) = (&token.q[..n], &next.k[..n]);
        for i in 0..n {
            let (row, k, q) = (m.row(i), S::splat_f(token.k[i]), S::splat_f(q[i]));
            let (decay, next_decay) = (S::splat_f(token.decay.of(i)), S::splat_f(next.decay.of(i)));
            let next_k = S::splat_f(next_k[i]);
            for r in 0..R {
                let at = row.add(r * LANES);
                let mut m = S::load_f(at);
                if FIRST {
                    m = S::mul(m, decay);
                }
                m = S::fma(k, d[r], m);
                y[r] = S::fma(m, q, y[r]);
                if NEXT {
                    m = S::mul(m, next_decay);
                    sums[r] = S::fma(m, next_k, sums[r]);
                }
                S::store_f(at, m);
            }
        }
        (y, sums)
    }
}
