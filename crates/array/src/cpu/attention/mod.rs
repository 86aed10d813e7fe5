//! Attention over paged keys and values, and writing them.
//!
//! The order of the arithmetic is fixed by absolute positions: tiles are the blocks of the state, aligned to
//! position 0, and are merged in order (the running maximum and sum of "online" softmax). So a token's result does
//! not depend on how its prompt was cut, on its neighbours or on threads. Entries follow positions. What was chosen
//! is gathered into tiles in the order of its list, so it costs what was chosen and not what there is.

mod kernels;
mod plain;
mod queries;
mod soften;
mod tile;

use std::ops::{Range, RangeInclusive};

pub(super) use plain::{reference, write_reference};
pub(super) use tile::scores;
use tile::{Running, Tile, merge_keys, merge_tile};

use super::context::Context;
use super::lanes::LANES;
use super::paged::{Codes, Paged, with_scratch};
use super::view::{Mat, MatMut, share};
use crate::inputs::BLOCK;
use crate::op::{MOST_KEY, Values};
use crate::state::{StateKind, StateRef};

/// Writes row `t` of `x` at its position, for every token; or at its group's entry, for the last token of each group.
/// A piece of work is what goes into one head of one block.
pub(super) fn write_kv(c: &Context<'_>, x: Mat<'_>, state: StateRef) {
    let paged = Paged::new(c, state);
    let (heads, dim) = paged.dims();
    let tokens = c.b.tokens;
    share(c.pool, heads * tokens, dim / 2, |range| {
        let mut codes = Codes::new();
        for (h, t) in range.map(|item| (item / tokens, item % tokens)) {
            let run = written_with(c, state.every, t);
            let whole = |t: usize| (c.b.positions[t] as usize + 1).is_multiple_of(state.every);
            let entry = |t: usize| c.b.positions[t] as usize / state.every;
            let numbers = |t: usize| (entry(t) % BLOCK, &x.row(t)[h * dim..][..dim]);
            let mut written = run.filter(|t| whole(*t)).map(numbers).peekable();
            if written.peek().is_none() {
                continue;
            }
            let block = c.b.block(state.table, c.b.token_row[t] as usize, entry(t) / BLOCK);
            // SAFETY: the tokens of a row that go into a head of a block are one piece of work, and nothing else writes
            // there.
            unsafe { paged.write((c.isa, &mut codes), (block, h), written) };
        }
    });
}

/// The tokens that are written together with `t`, as the first of its row in its block; none if it is not that.
fn written_with(c: &Context<'_>, every: usize, t: usize) -> Range<usize> {
    let (row, pos) = (c.b.token_row[t] as usize, c.b.positions[t] as usize);
    let (first, count) = (c.b.row_first[row] as usize, c.b.row_count[row] as usize);
    if t > first && !pos.is_multiple_of(BLOCK * every) {
        return 0..0;
    }
    let left = BLOCK * every - pos % (BLOCK * every);
    t..(first + count).min(t + left)
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

/// Softmax attention.
pub(super) fn attention(c: &Context<'_>, q: Mat<'_>, spec: Spec, out: &MatMut<'_>) {
    match spec.values {
        Values::Of(values) if spec.entries.is_none() && spec.chosen.is_none() => {
            queries::attention(c, q, spec, values, out);
        }
        Values::Of(_) | Values::Keys { .. } => by_token(c, q, spec, out),
    }
}

/// Attention whose piece of work is one token and some query heads that share a key head.
fn by_token(c: &Context<'_>, q: Mat<'_>, spec: Spec, out: &MatMut<'_>) {
    let (kv_heads, dim, dv) = spec.dims();
    let per_key = spec.heads / kv_heads;
    let divides = |n: &usize| per_key.is_multiple_of(*n);
    let together = (1..=per_key.min(TOGETHER)).rev().find(divides).unwrap_or(1);
    let cost = together * spec.longest(c) * (dim + dv) / 16;
    let memory = Memory::new(c, &spec);
    let pieces = spec.heads / together;
    let run = |item: usize, scratch: &mut [f32]| {
        let (t, piece) = (item / pieces, item % pieces);
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
        // SAFETY: each item is some columns of one row, and each item is handed out once.
        let out = unsafe { out.piece(t, first * dv, together * dv) };
        match spec.values {
            Values::Of(_) => by_rows(piece, t, dv, out, scratch),
            Values::Keys { .. } => turned(piece, t, dv, out, scratch),
        }
    };
    share(c.pool, out.rows * pieces, cost, |items| {
        if spec.chosen.is_some() || memory.decodes() {
            with_scratch(|scratch| items.for_each(|item| run(item, scratch)));
        } else {
            items.for_each(|item| run(item, &mut []));
        }
    });
}

/// Runs a piece with sums in the layout of the result, `[heads, dv]`.
fn by_rows(piece: Piece<'_>, t: usize, dv: usize, out: &mut [f32], scratch: &mut [f32]) {
    out.fill(0.0);
    let piece = Piece { sums: Sums::Rows(&mut *out), ..piece };
    let runs = piece.look(t, scratch);
    for (run, out) in runs.iter().zip(out.chunks_exact_mut(dv)) {
        out.iter_mut().for_each(|o| *o /= run.sum);
    }
}

/// Runs a piece with a lane for each head, `[dv, TOGETHER]`.
#[inline(never)]
fn turned(piece: Piece<'_>, t: usize, dv: usize, out: &mut [f32], scratch: &mut [f32]) {
    let mut sums = [[0.0; TOGETHER]; MOST_KEY];
    let piece = Piece { sums: Sums::Turned(&mut sums[..dv]), ..piece };
    let runs = piece.look(t, scratch);
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
    keys: Paged,
    /// `None` where keys are their own values.
    values: Option<Paged>,
    entries: Option<Paged>,
}

impl Memory {
    fn new(c: &Context<'_>, spec: &Spec<'_>) -> Self {
        let values = match spec.values {
            Values::Of(values) => Some(Paged::new(c, values)),
            Values::Keys { .. } => None,
        };
        let entries = spec.entries.map(|e| Paged::new(c, e));
        Self { keys: Paged::new(c, spec.keys), values, entries }
    }

    fn decodes(&self) -> bool {
        [Some(self.keys), self.values, self.entries].iter().flatten().any(Paged::decodes)
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
    fn look(mut self, t: usize, scratch: &mut [f32]) -> [Running; TOGETHER] {
        match (self.spec.chosen, self.spec.entries) {
            (None, None) => self.positions(scratch),
            (None, Some(entries)) => {
                self.positions(scratch);
                self.entries(entries, scratch);
            }
            (Some((list, _)), Some(entries)) => {
                self.positions(scratch);
                self.chosen_entries(list.row(t), entries, scratch);
            }
            (Some((list, every)), None) => self.chosen_positions(list.row(t), every, scratch),
        }
        self.runs
    }

    /// Every position in the window, tile by tile.
    fn positions(&mut self, scratch: &mut [f32]) {
        let (_, dim, _) = self.spec.dims();
        let (head, Memory { keys, values, .. }) = (self.head, self.memory);
        let visible = self.spec.visible(self.pos);
        let (first, last) = (*visible.start(), *visible.end());
        let (k, v) = scratch.split_at_mut(scratch.len().min(dim * BLOCK));
        for j in first / BLOCK..=last / BLOCK {
            let block = self.c.b.block(self.spec.keys.table, self.row, j);
            self.merge(Tile {
                // SAFETY: no kernel writes states while attention runs.
                k: unsafe { keys.tile(self.c.isa, (block, head), k) },
                v: match &values {
                    // SAFETY: as above.
                    Some(values) => unsafe { values.tile(self.c.isa, (block, head), v) },
                    None => &[],
                },
                from: first.saturating_sub(j * BLOCK),
                to: (last + 1 - j * BLOCK).min(BLOCK),
            });
        }
    }

    /// Every entry of whole groups up to the token's position.
    fn entries(&mut self, state: StateRef, scratch: &mut [f32]) {
        let Some(memory) = self.memory.entries else { return };
        let count = (self.pos + 1) / state.every;
        for j in 0..count.div_ceil(BLOCK) {
            let block = self.c.b.block(state.table, self.row, j);
            // SAFETY: no kernel writes states while attention runs.
            let k = unsafe { memory.tile(self.c.isa, (block, self.head), scratch) };
            self.merge(Tile { k, v: &[], from: 0, to: (count - j * BLOCK).min(BLOCK) });
        }
    }

    fn chosen_entries(&mut self, list: &[f32], state: StateRef, scratch: &mut [f32]) {
        let Some(memory) = self.memory.entries else { return };
        let (c, row, count) = (self.c, self.row, (self.pos + 1) / state.every);
        let place = |e: usize| (c.b.block(state.table, row, e / BLOCK), e % BLOCK);
        let places = units(list).filter(|e| *e < count).map(place);
        self.gathered((memory, None), places, scratch);
    }

    fn chosen_positions(&mut self, list: &[f32], every: usize, scratch: &mut [f32]) {
        let (c, row, table) = (self.c, self.row, self.spec.keys.table);
        let place = |p: usize| (c.b.block(table, row, p / BLOCK), p % BLOCK);
        let positions = self.spec.chosen_positions(self.pos, list, every);
        self.gathered((self.memory.keys, self.memory.values), positions.map(place), scratch);
    }

    /// Places (a block, and where in it) one after the other, as tiles of their own.
    fn gathered(
        &mut self,
        (keys, values): (Paged, Option<Paged>),
        places: impl Iterator<Item = (usize, usize)>,
        scratch: &mut [f32],
    ) {
        let (_, dim, dv) = self.spec.dims();
        let (k, v) = scratch.split_at_mut(dim * BLOCK);
        let mut filled = 0;
        for (block, at) in places {
            let place = (block, self.head);
            // SAFETY: no kernel writes states while attention runs.
            unsafe { keys.token(place, at, (&mut k[filled..], BLOCK)) };
            if let Some(values) = values {
                // SAFETY: as above.
                unsafe { values.token(place, at, (&mut v[filled * dv..][..dv], 1)) };
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
