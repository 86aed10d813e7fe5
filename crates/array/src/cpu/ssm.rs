//! The selective scan of Mamba 2.
//!
//! Tokens of a row are taken strictly one after the other; threads share heads and columns of a state, never time.

use super::context::{Context, StateMem};
use super::lanes::{LANES, exp, per_isa};
use super::recurrent::{Columns, slot, softplus, tokens};
use super::view::{Mat, MatMut, share};
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
    /// The step of token `t` in head `h`.
    fn delta(&self, t: usize, h: usize) -> f32 {
        within(softplus(self.dt.row(t)[h] + self.bias[h]), self.limits)
    }
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

/// Columns of a state that one piece of work takes.
const COLUMNS: usize = 2 * LANES;

/// The scan. Columns of the state `[state, dim]` of a head are independent: they are the pieces of work.
pub(super) fn ssm(c: &Context<'_>, scan: Scan<'_>, mem: StateMem, out: &MatMut<'_>) {
    let SsmHeads { heads, dim, state, .. } = scan.heads;
    let chunks = dim.div_ceil(COLUMNS);
    let cost = (state * 4 + 40) * c.b.tokens / c.b.rows.max(1);
    share(c.pool, c.b.rows * heads * chunks, cost, |items| {
        for item in items {
            let (row, h) = (item / chunks / heads, item / chunks % heads);
            let at = item % chunks * COLUMNS;
            let n = COLUMNS.min(dim - at);
            let (slot, fresh) = slot(c, row);
            let m = Columns { mem, slot, start: h * state * dim + at, dv: dim, n };
            if fresh {
                (0..state).for_each(|i| m.row(i).fill(0.0));
            }
            for t in tokens(c, row) {
                scan_token(c.isa, scan, t, h, at, m, out);
            }
        }
    });
}

per_isa! {
    fn scan_token(scan: Scan<'_>, t: usize, h: usize, at: usize, m: Columns, out: &MatMut<'_>) {
        let SsmHeads { heads, groups, dim, state } = scan.heads;
        let group = h / (heads / groups);
        let delta = scan.delta(t, h);
        let token = Token {
            b: &scan.b.row(t)[group * state..][..state],
            c: &scan.c.row(t)[group * state..][..state],
            keep: exp(delta * scan.neg_a[h]),
            delta,
            skip: scan.skip[h],
        };
        let x = &scan.x.row(t)[h * dim + at..][..m.n];
        // SAFETY: a token belongs to one row, and the columns to one piece of work.
        let out = unsafe { out.piece(t, h * dim + at, m.n) };
        match m.n {
            COLUMNS => scan_lanes::<COLUMNS>(token, x, m, out),
            LANES => scan_lanes::<LANES>(token, x, m, out),
            _ => {
                for (i, (x, out)) in x.iter().zip(out).enumerate() {
                    let column = Columns { start: m.start + i, n: 1, ..m };
                    let (x, out) = (std::slice::from_ref(x), std::slice::from_mut(out));
                    scan_lanes::<1>(token, x, column, out);
                }
            }
        }
    }
}

/// What one token brings to one head.
#[derive(Clone, Copy)]
struct Token<'a> {
    b: &'a [f32],
    c: &'a [f32],
    keep: f32,
    delta: f32,
    skip: f32,
}

/// One token through `N` columns of a head's state.
#[inline(always)]
fn scan_lanes<const N: usize>(token: Token<'_>, x: &[f32], m: Columns, out: &mut [f32]) {
    let Token { b, c, keep, delta, skip } = token;
    let x: &[f32; N] = x.first_chunk().expect("N columns");
    let step = x.map(|x| delta * x);
    let mut y = [0.0f32; N];
    for (i, (b, c)) in b.iter().zip(c).enumerate() {
        let row: &mut [f32; N] = m.row(i).first_chunk_mut().expect("N columns");
        for ((m, step), y) in row.iter_mut().zip(&step).zip(&mut y) {
            *m = b.mul_add(*step, keep * *m);
            *y = m.mul_add(*c, *y);
        }
    }
    for ((out, y), x) in out.iter_mut().zip(y).zip(x) {
        *out = x.mul_add(skip, y);
    }
}

/// The plain twin of [`ssm`].
pub(super) fn reference(c: &Context<'_>, scan: Scan<'_>, mem: StateMem, out: &MatMut<'_>) {
    let SsmHeads { heads, groups, dim, state } = scan.heads;
    for (r, h) in (0..c.b.rows).flat_map(|r| (0..heads).map(move |h| (r, h))) {
        let (slot, fresh) = slot(c, r);
        // SAFETY: one thread; slots of different rows differ.
        let m = unsafe { mem.write(slot, h * state * dim, state * dim) };
        if fresh {
            m.fill(0.0);
        }
        let group = h / (heads / groups) * state;
        for t in tokens(c, r) {
            let (x, b, c) = (scan.x.row(t), &scan.b.row(t)[group..], &scan.c.row(t)[group..]);
            let delta = within((scan.dt.row(t)[h] + scan.bias[h]).exp().ln_1p(), scan.limits);
            let keep = (delta * scan.neg_a[h]).exp();
            for j in 0..dim {
                let x = x[h * dim + j];
                (0..state).for_each(|i| m[i * dim + j] = keep * m[i * dim + j] + delta * b[i] * x);
                let y: f32 = (0..state).map(|i| m[i * dim + j] * c[i]).sum();
                // SAFETY: one thread, one number at a time.
                unsafe { out.piece(t, h * dim + j, 1)[0] = y + scan.skip[h] * x };
            }
        }
    }
}
