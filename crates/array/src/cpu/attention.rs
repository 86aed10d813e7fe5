//! Attention over paged keys and values, and writing them.
//!
//! The order of the arithmetic is fixed by absolute positions: tiles are the blocks of the state, aligned to
//! position 0, and are merged in order (the running maximum and sum of "online" softmax). So a token's result does
//! not depend on how its prompt was cut, on its neighbours or on threads.

use super::context::{Context, StateMem};
use super::lanes::{LANES, exp, fold, per_isa, tanh};
use super::view::{Mat, MatMut, share};
use crate::inputs::BLOCK;
use crate::op::{MOST_SHARED_HEADS, Values};
use crate::state::{StateKind, StateRef};

/// Writes row `t` of `x` at its position, for every token.
pub(super) fn write_kv(c: &Context<'_>, x: Mat<'_>, state: StateRef) {
    let mem = c.state(state);
    let (heads, dim, keys) = match state.kind {
        StateKind::Keys { heads, dim } => (heads, dim, true),
        StateKind::Values { heads, dim } => (heads, dim, false),
        StateKind::Slots { .. } => unreachable!("recording checks the kind"),
    };
    share(c.pool, heads, dim * c.b.tokens, |range| {
        for (h, t) in range.flat_map(|h| (0..c.b.tokens).map(move |t| (h, t))) {
            let (row, pos) = (c.b.token_row[t] as usize, c.b.positions[t] as usize);
            let (block, at) = (c.b.block(state.table, row, pos / BLOCK), pos % BLOCK);
            // SAFETY: the piece is one head of one block; a head is written by one thread, and by nothing else.
            let piece = unsafe { mem.write(block, h * dim * BLOCK, dim * BLOCK) };
            let x = &x.row(t)[h * dim..][..dim];
            if keys {
                x.iter().enumerate().for_each(|(i, x)| piece[i * BLOCK + at] = *x);
            } else {
                piece[at * dim..][..dim].copy_from_slice(x);
            }
        }
    });
}

/// The numbers of an attention that do not change from token to token.
#[derive(Clone, Copy)]
pub(super) struct Spec<'a> {
    pub(super) keys: StateRef,
    pub(super) values: Values,
    pub(super) heads: usize,
    pub(super) scale: f32,
    pub(super) window: Option<usize>,
    pub(super) softcap: Option<f32>,
    /// `[heads]`
    pub(super) sinks: Option<&'a [f32]>,
    pub(super) entries: Option<StateRef>,
    /// Units that are seen, as [`Op::Select`](crate::Op::Select) gives them, and positions of a unit.
    pub(super) chosen: Option<(Mat<'a>, usize)>,
}

impl Spec<'_> {
    pub(super) fn dims(&self) -> (usize, usize, usize) {
        let StateKind::Keys { heads, dim } = self.keys.kind else {
            unreachable!("recording checks the kinds")
        };
        match self.values {
            Values::Of(StateRef { kind: StateKind::Values { dim: dv, .. }, .. })
            | Values::Keys { dim: dv } => (heads, dim, dv),
            Values::Of(_) => unreachable!("recording checks the kinds"),
        }
    }

    /// The positions that a query at `pos` sees.
    pub(super) fn visible(&self, pos: usize) -> std::ops::RangeInclusive<usize> {
        self.window.map_or(0, |w| (pos + 1).saturating_sub(w))..=pos
    }
}

/// Softmax attention; a piece of work is one token and one key head, with all query heads that share it.
pub(super) fn attention(c: &Context<'_>, q: Mat<'_>, spec: Spec, out: &MatMut<'_>) {
    let Values::Of(values) = spec.values else { todo!() };
    let (keys, values) = (c.state(spec.keys), c.state(values));
    let (kv_heads, dim, dv) = spec.dims();
    let per_key = spec.heads / kv_heads;
    let seen = |row: usize| (c.b.row_past[row] + c.b.row_count[row]) as usize;
    let longest = (0..c.b.rows).map(seen).max().unwrap_or(0);
    let longest = spec.window.map_or(longest, |w| w.min(longest));
    out.for_groups(c.pool, per_key * dv, per_key * longest * (dim + dv) / 16, |t, g, out| {
        let (row, pos) = (c.b.token_row[t] as usize, c.b.positions[t] as usize);
        let q = &q.row(t)[g * per_key * dim..][..per_key * dim];
        let visible = spec.visible(pos);
        let (first, last) = (*visible.start(), *visible.end());
        let mut runs = [Running::START; MOST_SHARED_HEADS];
        out.fill(0.0);
        for j in first / BLOCK..=last / BLOCK {
            let block = c.b.block(spec.keys.table, row, j);
            let tile = Tile {
                // SAFETY: no kernel writes states while attention runs.
                k: unsafe { keys.read(block, g * dim * BLOCK, dim * BLOCK) },
                // SAFETY: as above.
                v: unsafe { values.read(block, g * dv * BLOCK, dv * BLOCK) },
                from: first.saturating_sub(j * BLOCK),
                to: (last + 1 - j * BLOCK).min(BLOCK),
            };
            for (h, run) in runs[..per_key].iter_mut().enumerate() {
                let (q, acc) = (&q[h * dim..][..dim], &mut out[h * dv..][..dv]);
                merge_tile(c.isa, run, acc, q, tile, spec.scale, spec.softcap.unwrap_or(0.0));
            }
        }
        for (h, run) in runs[..per_key].iter().enumerate() {
            out[h * dv..][..dv].iter_mut().for_each(|o| *o /= run.sum);
        }
    });
}

/// The softmax so far: weights are `e^(score - max)`.
#[derive(Clone, Copy)]
pub(super) struct Running {
    max: f32,
    sum: f32,
}

impl Running {
    const START: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// One block of keys `[dim, BLOCK]` and values `[BLOCK, dv]`, of which `from..to` are visible.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    k: &'a [f32],
    v: &'a [f32],
    from: usize,
    to: usize,
}

per_isa! {
    /// Adds a tile to one query head's running softmax; `acc` is `[dv]`, the weighted values so far.
    fn merge_tile(run: &mut Running, acc: &mut [f32], q: &[f32], tile: Tile<'_>, scale: f32, softcap: f32) {
        let mut s = scores(q, tile.k);
        let mut max = run.max;
        for (p, s) in s.iter_mut().enumerate() {
            *s *= scale;
            if softcap != 0.0 {
                *s = softcap * tanh(*s / softcap);
            }
            if p < tile.from || p >= tile.to {
                *s = f32::NEG_INFINITY;
            }
        }
        for s in s {
            max = if s > max { s } else { max };
        }
        if max == f32::NEG_INFINITY {
            return;
        }
        let mut lane = [0.0f32; LANES];
        for half in 0..BLOCK / LANES {
            for l in 0..LANES {
                let s = &mut s[half * LANES + l];
                *s = exp(*s - max);
                lane[l] += *s;
            }
        }
        let keep = exp(run.max - max);
        run.sum = run.sum * keep + fold(lane);
        run.max = max;
        weigh_values(acc, keep, &s, tile);
    }
}

/// `q . k[:, p]` for each position of a tile.
#[inline(always)]
fn scores(q: &[f32], k: &[f32]) -> [f32; BLOCK] {
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

/// The plain twin of [`attention`]: two passes over the visible positions.
pub(super) fn reference(c: &Context<'_>, q: Mat<'_>, spec: Spec, out: &MatMut<'_>) {
    let Values::Of(values) = spec.values else { todo!() };
    let (keys, values) = (c.state(spec.keys), c.state(values));
    let (kv_heads, dim, dv) = spec.dims();
    let per_key = spec.heads / kv_heads;
    for (t, h) in (0..q.rows).flat_map(|t| (0..spec.heads).map(move |h| (t, h))) {
        let (row, pos) = (c.b.token_row[t] as usize, c.b.positions[t] as usize);
        let at = |p: usize| (c.b.block(spec.keys.table, row, p / BLOCK), p % BLOCK);
        let score = |p: usize| {
            let q = &q.row(t)[h * dim..][..dim];
            let s = spec.scale
                * q.iter()
                    .enumerate()
                    .map(|(d, q)| q * key(keys, at(p), h / per_key, d, dim))
                    .sum::<f32>();
            spec.softcap.map_or(s, |c| c * (s / c).tanh())
        };
        let max = spec.visible(pos).map(score).fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = spec.visible(pos).map(|p| (score(p) - max).exp()).sum();
        // SAFETY: one thread, one piece at a time.
        let out = unsafe { out.piece(t, h * dv, dv) };
        for (d, o) in out.iter_mut().enumerate() {
            let weighed =
                |p| (score(p) - max).exp() / sum * value(values, at(p), h / per_key, d, dv);
            *o = spec.visible(pos).map(weighed).sum();
        }
    }
}

fn key(mem: StateMem, (block, at): (usize, usize), head: usize, d: usize, dim: usize) -> f32 {
    // SAFETY: no kernel writes states while attention runs.
    unsafe { mem.read(block, (head * dim + d) * BLOCK + at, 1)[0] }
}

fn value(mem: StateMem, (block, at): (usize, usize), head: usize, d: usize, dim: usize) -> f32 {
    // SAFETY: no kernel writes states while attention runs.
    unsafe { mem.read(block, (head * BLOCK + at) * dim + d, 1)[0] }
}
