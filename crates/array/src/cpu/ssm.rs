//! The selective scan of Mamba 2.
//!
//! Tokens of a row are taken strictly one after the other; threads share heads and columns of a state, never time.

use super::context::{Context, StateMem};
use super::lanes::{LANES, exp, per_isa};
use super::record::{Row, log};
use super::recurrent::{COLUMNS, Columns, softplus};
use super::view::{Mat, MatMut, share_by};
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

/// The scan. Columns of the state `[state, dim]` of a head are independent: they are the pieces of work.
pub(super) fn ssm(
    c: &Context<'_>,
    scan: Scan<'_>,
    (mem, node): (StateMem, usize),
    out: &MatMut<'_>,
) {
    let SsmHeads { heads, dim, state, .. } = scan.heads;
    let chunks = dim.div_ceil(COLUMNS);
    let cost = (state * 4 + 40) * c.b.tokens / c.b.rows.max(1);
    let own = c.own(node, state * COLUMNS);
    share_by(c.pool, c.b.rows * heads * chunks, cost, |thread, items| {
        for item in items {
            let (h, at) = (item / chunks % heads, item % chunks * COLUMNS);
            let (row, n) = (Row::new(c, item / chunks / heads), COLUMNS.min(dim - at));
            let mut spare = [0.0; COLUMNS];
            let start = h * state * dim + at;
            let kept = Columns { mem, slot: row.slot, start, dv: dim, n };
            kept.run(state, &row, (own, thread), |columns, i| {
                // SAFETY: a token belongs to one row, and the columns to one piece of work.
                let out = unsafe { row.result(out, i, h * dim + at, &mut spare[..n]) };
                scan_token(c.isa, scan, scan.token(&row, &mem, i), h, at, columns, out);
            });
        }
    });
    log(c, mem, [scan.x, scan.b, scan.dt]);
}

per_isa! {
    fn scan_token(
        scan: Scan<'_>,
        token: Token<'_>,
        h: usize,
        at: usize,
        m: Columns,
        out: &mut [f32],
    ) {
        let SsmHeads { heads, groups, dim, state } = scan.heads;
        let group = h / (heads / groups);
        let delta = within(softplus(token.dt[h] + scan.bias[h]), scan.limits);
        let x = &token.x[h * dim + at..][..m.n];
        let token = HeadToken {
            b: &token.b[group * state..][..state],
            c: &token.c[group * state..][..state],
            keep: exp(delta * scan.neg_a[h]),
            delta,
            skip: scan.skip[h],
        };
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
struct HeadToken<'a> {
    b: &'a [f32],
    c: &'a [f32],
    keep: f32,
    delta: f32,
    skip: f32,
}

/// One token through `N` columns of a head's state.
#[inline(always)]
fn scan_lanes<const N: usize>(token: HeadToken<'_>, x: &[f32], m: Columns, out: &mut [f32]) {
    let HeadToken { b, c, keep, delta, skip } = token;
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
