//! Attention over paged keys and values, and writing them.
//!
//! The order of the arithmetic is fixed by absolute positions: tiles are the blocks of the state, aligned to
//! position 0, and are merged in order (the running maximum and sum of "online" softmax). So a token's result does
//! not depend on how its prompt was cut, on its neighbours or on threads. Entries follow positions. What was chosen
//! is gathered into tiles in the order of its list, so it costs what was chosen and not what there is.

use std::ops::RangeInclusive;

use super::context::{Context, StateMem};
use super::lanes::{LANES, exp, fold, per_isa, tanh};
use super::view::{Mat, MatMut, share};
use crate::inputs::BLOCK;
use crate::op::{MOST_KEY, Values};
use crate::state::{StateKind, StateRef};

/// Writes row `t` of `x` at its position, for every token; or at its group's entry, for the last token of each group.
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
            if !(pos + 1).is_multiple_of(state.every) {
                continue;
            }
            let entry = pos / state.every;
            let (block, at) = (c.b.block(state.table, row, entry / BLOCK), entry % BLOCK);
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

    /// The positions that a query at `pos` sees, if none are chosen.
    fn visible(&self, pos: usize) -> RangeInclusive<usize> {
        self.window.map_or(0, |w| (pos + 1).saturating_sub(w))..=pos
    }

    /// Those of the units in `list`, then those after the last whole unit.
    fn chosen_positions<'l>(
        &self,
        pos: usize,
        list: &'l [f32],
        every: usize,
    ) -> impl Iterator<Item = usize> + use<'l> {
        let visible = self.visible(pos);
        let whole = units(list).flat_map(move |unit| unit * every..(unit + 1) * every);
        whole.chain((pos + 1) / every * every..=pos).filter(move |p| visible.contains(p))
    }

    /// About how much the last tokens see.
    fn longest(&self, c: &Context<'_>) -> usize {
        let seen = |row: usize| (c.b.row_past[row] + c.b.row_count[row]) as usize;
        let longest = (0..c.b.rows).map(seen).max().unwrap_or(0);
        let chosen = self.chosen.map_or(usize::MAX, |(list, every)| list.cols * every);
        let entries = self.entries.map_or(0, |e| (longest / e.every).min(chosen));
        let positions = if self.entries.is_some() { longest } else { longest.min(chosen) };
        self.window.map_or(positions, |w| w.min(positions)) + entries
    }
}

/// The most query heads of a piece of work: one lane each where they share their values with the keys.
const TOGETHER: usize = LANES;

/// Softmax attention; a piece of work is one token and some query heads that share a key head.
pub(super) fn attention(c: &Context<'_>, q: Mat<'_>, spec: Spec, out: &MatMut<'_>) {
    let (kv_heads, dim, dv) = spec.dims();
    let per_key = spec.heads / kv_heads;
    let divides = |n: &usize| per_key.is_multiple_of(*n);
    let together = (1..=per_key.min(TOGETHER)).rev().find(divides).unwrap_or(1);
    let cost = together * spec.longest(c) * (dim + dv) / 16;
    let memory = Memory::new(c, &spec);
    out.for_groups(c.pool, together * dv, cost, |t, piece, out| {
        let first = piece * together; // of its heads
        let sink = |h: usize| spec.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[first + h]);
        let start = |h: usize| if h < together { Running::from(sink(h)) } else { Running::START };
        let piece = Piece {
            c,
            spec,
            memory,
            row: c.b.token_row[t] as usize,
            pos: c.b.positions[t] as usize,
            head: first / per_key,
            q: &q.row(t)[first * dim..][..together * dim],
            runs: std::array::from_fn(start),
            sums: Sums::Rows(&mut []),
        };
        match spec.values {
            Values::Of(_) => by_rows(piece, t, dv, out),
            Values::Keys { .. } => turned(piece, t, dv, out),
        }
    });
}

/// Runs a piece with sums in the layout of the result, `[heads, dv]`.
fn by_rows(piece: Piece<'_>, t: usize, dv: usize, out: &mut [f32]) {
    out.fill(0.0);
    let piece = Piece { sums: Sums::Rows(&mut *out), ..piece };
    let runs = piece.look(t);
    for (run, out) in runs.iter().zip(out.chunks_exact_mut(dv)) {
        out.iter_mut().for_each(|o| *o /= run.sum);
    }
}

/// Runs a piece with a lane for each head, `[dv, TOGETHER]`.
#[inline(never)]
fn turned(piece: Piece<'_>, t: usize, dv: usize, out: &mut [f32]) {
    let mut sums = [[0.0; TOGETHER]; MOST_KEY];
    let piece = Piece { sums: Sums::Turned(&mut sums[..dv]), ..piece };
    let runs = piece.look(t);
    for (h, (run, out)) in runs.iter().zip(out.chunks_exact_mut(dv)).enumerate() {
        out.iter_mut().zip(&sums).for_each(|(o, sum)| *o = sum[h] / run.sum);
    }
}

/// The weighted values so far.
enum Sums<'a> {
    /// `[heads, dv]`
    Rows(&'a mut [f32]),
    /// `[dv, TOGETHER]`
    Turned(&'a mut [[f32; TOGETHER]]),
}

/// The states that attention reads.
#[derive(Clone, Copy)]
struct Memory {
    keys: StateMem,
    /// `None` where keys are their own values.
    values: Option<StateMem>,
    entries: Option<StateMem>,
}

impl Memory {
    fn new(c: &Context<'_>, spec: &Spec<'_>) -> Self {
        let values = match spec.values {
            Values::Of(values) => Some(c.state(values)),
            Values::Keys { .. } => None,
        };
        Self { keys: c.state(spec.keys), values, entries: spec.entries.map(|e| c.state(e)) }
    }
}

/// The numbers of units before the end of a list.
fn units(list: &[f32]) -> impl Iterator<Item = usize> {
    list.iter().map(|unit| unit.to_bits()).take_while(|unit| *unit != u32::MAX).map(|u| u as usize)
}

/// Some query heads of one token on their way over what they see.
struct Piece<'a> {
    c: &'a Context<'a>,
    spec: Spec<'a>,
    memory: Memory,
    row: usize,
    pos: usize,
    /// The key head.
    head: usize,
    q: &'a [f32],
    runs: [Running; TOGETHER],
    sums: Sums<'a>,
}

impl Piece<'_> {
    /// Over everything that token `t` sees.
    fn look(mut self, t: usize) -> [Running; TOGETHER] {
        match (self.spec.chosen, self.spec.entries) {
            (None, None) => self.positions(),
            (None, Some(entries)) => {
                self.positions();
                self.entries(entries);
            }
            (Some((list, _)), Some(entries)) => {
                self.positions();
                self.chosen_entries(list.row(t), entries);
            }
            (Some((list, every)), None) => self.chosen_positions(list.row(t), every),
        }
        self.runs
    }

    /// Every position in the window, tile by tile.
    fn positions(&mut self) {
        let (_, dim, dv) = self.spec.dims();
        let (head, Memory { keys, values, .. }) = (self.head, self.memory);
        let visible = self.spec.visible(self.pos);
        let (first, last) = (*visible.start(), *visible.end());
        for j in first / BLOCK..=last / BLOCK {
            let block = self.c.b.block(self.spec.keys.table, self.row, j);
            self.merge(Tile {
                // SAFETY: no kernel writes states while attention runs.
                k: unsafe { keys.read(block, head * dim * BLOCK, dim * BLOCK) },
                v: match &values {
                    // SAFETY: as above.
                    Some(values) => unsafe { values.read(block, head * dv * BLOCK, dv * BLOCK) },
                    None => &[],
                },
                from: first.saturating_sub(j * BLOCK),
                to: (last + 1 - j * BLOCK).min(BLOCK),
            });
        }
    }

    /// Every entry of whole groups up to the token's position.
    fn entries(&mut self, state: StateRef) {
        let Some(memory) = self.memory.entries else { return };
        let (_, dim, _) = self.spec.dims();
        let count = (self.pos + 1) / state.every;
        for j in 0..count.div_ceil(BLOCK) {
            let block = self.c.b.block(state.table, self.row, j);
            let at = self.head * dim * BLOCK;
            // SAFETY: no kernel writes states while attention runs.
            let k = unsafe { memory.read(block, at, dim * BLOCK) };
            self.merge(Tile { k, v: &[], from: 0, to: (count - j * BLOCK).min(BLOCK) });
        }
    }

    fn chosen_entries(&mut self, list: &[f32], state: StateRef) {
        let Some(memory) = self.memory.entries else { return };
        let (c, row, count) = (self.c, self.row, (self.pos + 1) / state.every);
        let place = |e: usize| (c.b.block(state.table, row, e / BLOCK), e % BLOCK);
        self.gathered((memory, None), units(list).filter(|e| *e < count).map(place));
    }

    fn chosen_positions(&mut self, list: &[f32], every: usize) {
        let (c, row, table) = (self.c, self.row, self.spec.keys.table);
        let place = |p: usize| (c.b.block(table, row, p / BLOCK), p % BLOCK);
        let positions = self.spec.chosen_positions(self.pos, list, every);
        self.gathered((self.memory.keys, self.memory.values), positions.map(place));
    }

    /// Places (a block, and where in it) one after the other, as tiles of their own.
    #[inline(never)]
    fn gathered(
        &mut self,
        (keys, values): (StateMem, Option<StateMem>),
        places: impl Iterator<Item = (usize, usize)>,
    ) {
        let (_, dim, dv) = self.spec.dims();
        let head = self.head;
        let mut buffer = [0.0f32; MOST_KEY * BLOCK];
        let (k, v) = buffer.split_at_mut(dim * BLOCK);
        let mut filled = 0;
        for (block, at) in places {
            // SAFETY: no kernel writes states while attention runs.
            let from = unsafe { keys.read(block, head * dim * BLOCK, dim * BLOCK) };
            let columns = k.as_chunks_mut::<BLOCK>().0.iter_mut().zip(from.as_chunks::<BLOCK>().0);
            columns.for_each(|(k, from)| k[filled] = from[at]);
            if let Some(values) = values {
                // SAFETY: as above.
                let from = unsafe { values.read(block, (head * BLOCK + at) * dv, dv) };
                v[filled * dv..][..dv].copy_from_slice(from);
            }
            filled += 1;
            if filled == BLOCK {
                self.merge(Tile { k, v, from: 0, to: BLOCK });
                filled = 0;
            }
        }
        if filled > 0 {
            self.merge(Tile { k, v, from: 0, to: filled });
        }
    }

    fn merge(&mut self, tile: Tile<'_>) {
        let (_, dim, dv) = self.spec.dims();
        let (scale, softcap) = (self.spec.scale, self.spec.softcap.unwrap_or(0.0));
        let (isa, runs) = (self.c.isa, &mut self.runs);
        match &mut self.sums {
            Sums::Rows(rows) => {
                let heads = self.q.chunks_exact(dim).zip(rows.chunks_exact_mut(dv));
                for ((q, acc), run) in heads.zip(runs) {
                    merge_tile(isa, run, acc, q, tile, scale, softcap);
                }
            }
            Sums::Turned(turned) => merge_keys(isa, runs, turned, self.q, tile, scale, softcap),
        }
    }
}

/// The softmax so far: weights are `e^(score - max)`.
#[derive(Clone, Copy)]
pub(super) struct Running {
    max: f32,
    sum: f32,
}

impl Running {
    const START: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// One score without a value; `-inf` is none.
    fn from(sink: f32) -> Self {
        if sink == f32::NEG_INFINITY { Self::START } else { Self { max: sink, sum: 1.0 } }
    }
}

/// One block of keys `[dim, BLOCK]` and values `[BLOCK, dv]` (none where the first numbers of a key are its value), of
/// which `from..to` are visible.
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
        if let Some(keep) = run.take(&mut s, tile, scale, softcap) {
            weigh_values(acc, keep, &s, tile);
        }
    }
}

per_isa! {
    /// The same for some heads at once, where keys are their own values; `acc` is `[dv, TOGETHER]`.
    fn merge_keys(
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
pub(super) fn scores(q: &[f32], k: &[f32]) -> [f32; BLOCK] {
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

/// Where a reference looks: in the entries or the keys, the block, and the place in it.
type Place = (bool, usize, usize);

/// Everything that token `t` sees, in order.
fn places(c: &Context<'_>, spec: &Spec<'_>, t: usize) -> Vec<Place> {
    let (row, pos) = (c.b.token_row[t] as usize, c.b.positions[t] as usize);
    let at = |state: StateRef, n: usize| (c.b.block(state.table, row, n / BLOCK), n % BLOCK);
    let key = |p: usize| (false, at(spec.keys, p).0, at(spec.keys, p).1);
    let Some(entries) = spec.entries else {
        return match spec.chosen {
            None => spec.visible(pos).map(key).collect(),
            Some((list, every)) => {
                spec.chosen_positions(pos, list.row(t), every).map(key).collect()
            }
        };
    };
    let mut seen: Vec<usize> = (0..(pos + 1) / entries.every).collect();
    if let Some((list, _)) = spec.chosen {
        let chosen: Vec<usize> = units(list.row(t)).collect();
        seen.retain(|e| chosen.contains(e));
    }
    let entry = |e: usize| (true, at(entries, e).0, at(entries, e).1);
    spec.visible(pos).map(key).chain(seen.into_iter().map(entry)).collect()
}

/// The plain twin of [`attention`]: two passes over what a token sees.
pub(super) fn reference(c: &Context<'_>, q: Mat<'_>, spec: Spec, out: &MatMut<'_>) {
    let memory = Memory::new(c, &spec);
    let (kv_heads, dim, dv) = spec.dims();
    let per_key = spec.heads / kv_heads;
    for (t, h) in (0..q.rows).flat_map(|t| (0..spec.heads).map(move |h| (t, h))) {
        let places = places(c, &spec, t);
        let number = |&(entry, block, at): &Place, d: usize| {
            let mem = if entry { memory.entries.unwrap_or(memory.keys) } else { memory.keys };
            // SAFETY: no kernel writes states while attention runs.
            unsafe { mem.read(block, (h / per_key * dim + d) * BLOCK + at, 1)[0] }
        };
        let value = |place: &Place, d: usize| match memory.values {
            // SAFETY: as above.
            Some(v) => unsafe { v.read(place.1, (h / per_key * BLOCK + place.2) * dv + d, 1)[0] },
            None => number(place, d),
        };
        let q = &q.row(t)[h * dim..][..dim];
        let score = |place: &Place| {
            let dot: f32 = q.iter().enumerate().map(|(d, q)| q * number(place, d)).sum();
            spec.softcap.map_or(spec.scale * dot, |c| c * (spec.scale * dot / c).tanh())
        };
        let mut weights: Vec<f32> = places.iter().map(score).collect();
        let sink = spec.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]);
        let max = weights.iter().copied().fold(sink, f32::max);
        weights.iter_mut().for_each(|weight| *weight = (*weight - max).exp());
        let sum = (sink - max).exp() + weights.iter().sum::<f32>();
        // SAFETY: one thread, one piece at a time.
        let out = unsafe { out.piece(t, h * dv, dv) };
        for (d, o) in out.iter_mut().enumerate() {
            let seen = weights.iter().zip(&places);
            *o = seen.map(|(weight, place)| weight / sum * value(place, d)).sum();
        }
    }
}
