//! The selective scan of Mamba 2.
//!
//! Tokens of a row are taken strictly one after the other, a few of them in each pass over the columns of a state.
//! Threads share heads and columns, never time.

// Loops over `r` keep several arrays of registers in step.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::columns::{COLUMNS, Columns, Lanes};
use super::context::{Context, StateMem};
use super::lanes::{LANES, exp};
use super::record::{Row, log};
use super::recurrent::softplus;
use super::view::{Mat, MatMut, share_by};
use crate::matmul::{Kernel, Simd};
use crate::op::SsmHeads;

/// The tensors and weights of a scan.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    pub(super) x: Mat<'a>,
    pub(super) b: Mat<'a>,
    pub(super) c: Mat<'a>,
    pub(super) dt: Mat<'a>,
    pub(super) neg_a: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) skip: &'a [f32],
    pub(super) limits: (f32, f32),
    pub(super) heads: SsmHeads,
}

impl Scan<'_> {
    /// What token `i` of a row brings. `c` of those in the log are gone: their results are not wanted.
    fn token<'m>(&'m self, row: &Row, mem: &'m StateMem, i: usize) -> Token<'m> {
        let (x, b) = (self.x.cols, self.b.cols);
        let keys = row.input(mem, i, self.b, x);
        Token {
            x: row.input(mem, i, self.x, 0),
            b: keys,
            c: row.token(i).map_or(keys, |t| self.c.row(t)),
            dt: row.input(mem, i, self.dt, x + b),
        }
    }
}

/// What one token brings to all heads.
#[derive(Clone, Copy)]
struct Token<'a> {
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    dt: &'a [f32],
}

/// `x` between the limits; what is no number stays so.
#[inline(always)]
fn within(x: f32, (low, high): (f32, f32)) -> f32 {
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

/// The tokens of a row, for one head.
#[derive(Clone, Copy)]
struct Head<'a> {
    scan: &'a Scan<'a>,
    row: &'a Row,
    mem: &'a StateMem,
    h: usize,
}

/// What one token brings to one head.
#[derive(Clone, Copy)]
struct HeadToken<'a> {
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    keep: f32,
    delta: f32,
}

impl<'a> Head<'a> {
    #[inline(always)]
    fn token(&self, i: usize) -> HeadToken<'a> {
        let (scan, h) = (self.scan, self.h);
        let SsmHeads { heads, groups, dim, state } = scan.heads;
        let token = scan.token(self.row, self.mem, i);
        let group = h / (heads / groups);
        let delta = within(softplus(token.dt[h] + scan.bias[h]), scan.limits);
        HeadToken {
            x: &token.x[h * dim..][..dim],
            b: &token.b[group * state..][..state],
            c: &token.c[group * state..][..state],
            keep: exp(delta * scan.neg_a[h]),
            delta,
        }
    }
}

/// The scan. Columns of the state `[state, dim]` of a head are independent: they are the pieces of work.
pub(super) fn ssm(
    c: &Context<'_>,
    scan: Scan<'_>,
    (mem, node): (StateMem, usize),
    out: &MatMut<'_>,
) {
    let SsmHeads { heads, dim, state, .. } = scan.heads;
    let chunks = dim.div_ceil(COLUMNS);
    let cost = (state * 2 + 40) * c.b.tokens / c.b.rows.max(1);
    let own = c.own(node, state * COLUMNS);
    share_by(c.pool, c.b.rows * heads * chunks, cost, |thread, items| {
        for item in items {
            let (h, at) = (item / chunks % heads, item % chunks * COLUMNS);
            let (row, n) = (Row::new(c, item / chunks / heads), COLUMNS.min(dim - at));
            let start = h * state * dim + at;
            let kept = Columns { mem, slot: row.slot, start, stride: dim, rows: state, n };
            let head = Head { scan: &scan, row: &row, mem: &mem, h };
            kept.run(&row, (own, thread), |m, tokens| {
                let piece = Piece { head, tokens, at, n, m, out };
                // SAFETY: the lanes are `n` columns, rounded up, and belong to this piece of work with their results.
                unsafe {
                    if n > LANES {
                        c.isa.run(Vectors::<{ COLUMNS / LANES }>(piece));
                    } else {
                        c.isa.run(Vectors::<1>(piece));
                    }
                }
            });
        }
    });
    log(c, mem, [scan.x, scan.b, scan.dt]);
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

/// A piece in `R` vectors.
struct Vectors<'a, const R: usize>(Piece<'a>);

impl<const R: usize> Kernel for Vectors<'_, R> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (piece, tokens) = (&self.0, self.0.tokens.clone());
        let pairs = tokens.len() / 2;
        // SAFETY: the caller has the instruction set, and the lanes have as many rows as a state has.
        unsafe {
            for i in (0..pairs).map(|pair| tokens.start + 2 * pair) {
                pass::<S, R, 2>(piece, i);
            }
            if tokens.len() > 2 * pairs {
                pass::<S, R, 1>(piece, tokens.end - 1);
            }
        }
    }
}

/// Tokens `first..first + T` in one pass over the columns.
///
/// # Safety
/// The machine has the instruction set; there are `R` vectors in as many rows as a state has, which nobody else touches,
/// and neither does anybody the results of the columns.
#[inline(always)]
unsafe fn pass<S: Simd, const R: usize, const T: usize>(piece: &Piece<'_>, first: usize) {
    let Piece { head, at, n, .. } = *piece;
    let tokens: [HeadToken<'_>; T] = std::array::from_fn(|t| head.token(first + t));
    let mut x = [[0.0f32; COLUMNS]; T];
    (0..T).for_each(|t| x[t][..n].copy_from_slice(&tokens[t].x[at..][..n]));
    // SAFETY: the caller's.
    unsafe {
        let mut step = [[S::splat_f(0.0); R]; T];
        let mut y = step;
        for t in 0..T {
            for r in 0..R {
                let x = S::load_f(x[t].as_ptr().add(r * LANES));
                step[t][r] = S::mul(S::splat_f(tokens[t].delta), x);
            }
        }
        for i in 0..piece.m.rows {
            let row = piece.m.row(i);
            let mut m = [S::splat_f(0.0); R];
            (0..R).for_each(|r| m[r] = S::load_f(row.add(r * LANES)));
            for t in 0..T {
                let HeadToken { b, c, keep, .. } = tokens[t];
                let (b, c, keep) = (S::splat_f(b[i]), S::splat_f(c[i]), S::splat_f(keep));
                for r in 0..R {
                    m[r] = S::fma(b, step[t][r], S::mul(keep, m[r]));
                    y[t][r] = S::fma(m[r], c, y[t][r]);
                }
            }
            (0..R).for_each(|r| S::store_f(row.add(r * LANES), m[r]));
        }
        for t in 0..T {
            let (skip, mut numbers) = (S::splat_f(head.scan.skip[head.h]), [0.0; COLUMNS]);
            for r in 0..R {
                let x = S::load_f(x[t].as_ptr().add(r * LANES));
                S::store_f(numbers.as_mut_ptr().add(r * LANES), S::fma(x, skip, y[t][r]));
            }
            let (start, mut spare) = (head.h * head.scan.heads.dim + at, [0.0; COLUMNS]);
            let out = head.row.result(piece.out, first + t, start, &mut spare[..n]);
            out.copy_from_slice(&numbers[..n]);
        }
    }
}

/// The plain twin of [`ssm`].
pub(super) fn reference(c: &Context<'_>, scan: Scan<'_>, mem: StateMem, out: &MatMut<'_>) {
    let SsmHeads { heads, groups, dim, state } = scan.heads;
    for row in (0..c.b.rows).map(|row| Row::new(c, row)) {
        row.walk(mem, |m, i| {
            let token = scan.token(&row, &mem, i);
            for (h, m) in m.chunks_exact_mut(state * dim).enumerate() {
                let group = h / (heads / groups) * state;
                let (b, c) = (&token.b[group..], &token.c[group..]);
                let delta = within((token.dt[h] + scan.bias[h]).exp().ln_1p(), scan.limits);
                let keep = (delta * scan.neg_a[h]).exp();
                for j in 0..dim {
                    let x = token.x[h * dim + j];
                    let number = |i: usize| i * dim + j;
                    (0..state).map(number).zip(b).for_each(|(at, b)| {
                        m[at] = keep * m[at] + delta * b * x;
                    });
                    let y: f32 = (0..state).map(number).zip(c).map(|(at, c)| m[at] * c).sum();
                    // SAFETY: one thread, one number at a time.
                    unsafe {
                        row.result(out, i, h * dim + j, &mut [0.0])[0] = y + scan.skip[h] * x
                    };
                }
            }
        });
    }
    log(c, mem, [scan.x, scan.b, scan.dt]);
}
