//! What compressed attention needs: pooling groups of tokens into entries, and choosing the best entries.
//!
//! Scores are sums in one order, written out, in both kinds of kernels: a choice is made of bits, and a sum that is
//! off by one would be another choice. Pooling takes a row's tokens one after the other and keeps the open group in the
//! row's slot, so it does not matter where a prompt is cut.

use super::attention::scores;
use super::context::{Context, StateMem};
use super::lanes::{exp, per_isa};
use super::paged::{Paged, with_scratch};
use super::recurrent::{slot, tokens};
use super::view::{Mat, MatMut, share};
use crate::inputs::BLOCK;
use crate::op::Op;
use crate::plan::Plan;
use crate::state::StateRef;

/// An indexer's queries and what they look at.
#[derive(Clone, Copy)]
pub(super) struct Indexer<'a> {
    pub(super) q: Mat<'a>,
    pub(super) weights: Mat<'a>,
    pub(super) keys: StateRef,
    pub(super) heads: usize,
    pub(super) k: usize,
    pub(super) scale: f32,
}

impl Indexer<'_> {
    /// Entries that token `t` may choose from.
    fn visible(&self, c: &Context<'_>, t: usize) -> usize {
        (c.b.positions[t] as usize + 1) / self.keys.every
    }
}

/// Scratch of a [`Op::Select`]: its best entries so far.
pub(super) fn scratch_bytes(plan: &Plan, node: usize, rows: usize) -> usize {
    match plan.nodes[node].op {
        Op::Select { k, .. } => rows * k * size_of::<u64>(),
        _ => 0,
    }
}

/// Chooses for each token; one token is one piece of work.
pub(super) fn select(c: &Context<'_>, ix: Indexer<'_>, node: usize, out: &MatMut<'_>) {
    let (keys, k) = (Paged::new(c, ix.keys), ix.k);
    let most = (0..c.b.tokens).map(|t| ix.visible(c, t)).max().unwrap_or(0);
    let cost = if most > k { most * ix.heads * keys.dims().1 / 16 } else { k / 4 };
    let (ptr, len) = c.scratch(node);
    let heaps = Scratch(ptr.cast());
    assert!(c.b.tokens * k * size_of::<u64>() <= len, "scratch is too small");
    let run = |t: usize, scratch: &mut [f32]| {
        // SAFETY: each token is one row, and each token is handed out once.
        let list = unsafe { out.piece(t, 0, k) };
        let visible = ix.visible(c, t);
        list.fill(f32::from_bits(u32::MAX));
        if visible <= k {
            let all = list.iter_mut().zip(0..visible as u32);
            return all.for_each(|(unit, e)| *unit = f32::from_bits(e));
        }
        // SAFETY: each token has its own part of the scratch, which was measured above.
        let best = Best { heap: unsafe { heaps.part(t * k, k) }, filled: 0 };
        choose(c, ix, keys, t, best, scratch);
        // SAFETY: as above; the other borrow of the part is gone.
        let ranks = unsafe { heaps.part(t * k, k) };
        let entries = ranks.iter().map(|rank| f32::from_bits(!(*rank as u32)));
        list.iter_mut().zip(entries).for_each(|(unit, e)| *unit = e);
        list.sort_unstable_by_key(|unit| unit.to_bits());
    };
    share(c.pool, out.rows, cost, |tokens| {
        if keys.decodes() {
            with_scratch(|scratch| tokens.for_each(|t| run(t, scratch)));
        } else {
            tokens.for_each(|t| run(t, &mut []));
        }
    });
}

/// Offers every entry that token `t` sees.
fn choose(
    c: &Context<'_>,
    ix: Indexer<'_>,
    keys: Paged,
    t: usize,
    mut best: Best<'_>,
    scratch: &mut [f32],
) {
    let (visible, q, weights) = (ix.visible(c, t), ix.q.row(t), ix.weights.row(t));
    for j in 0..visible.div_ceil(BLOCK) {
        let block = c.b.block(ix.keys.table, c.b.token_row[t] as usize, j);
        // SAFETY: no kernel writes states while this one runs.
        let keys = unsafe { keys.tile(c.isa, (block, 0), scratch) };
        let mut tile = [0.0; BLOCK];
        score_tile(c.isa, &mut tile, q, weights, keys, ix.scale);
        for (at, score) in tile.into_iter().enumerate().take(visible - j * BLOCK) {
            best.offer(score, (j * BLOCK + at) as u32);
        }
    }
}

/// Memory that threads write in disjoint parts.
struct Scratch(*mut u64);

// SAFETY: see `part`.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// # Safety
    /// The part is inside of the memory, which is aligned, and nobody else touches it.
    #[allow(clippy::mut_from_ref)]
    unsafe fn part(&self, at: usize, len: usize) -> &mut [u64] {
        // SAFETY: promised by the caller; any bits are numbers.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

/// The best entries so far, as a heap with the worst of them on top. A rank is the score's bits in an order of integers,
/// then the entry's, turned around: of equals the first is better.
struct Best<'a> {
    heap: &'a mut [u64],
    filled: usize,
}

fn rank(score: f32, entry: u32) -> u64 {
    // Zeros of both signs are equal.
    let bits = (score + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!entry)
}

impl Best<'_> {
    fn offer(&mut self, score: f32, entry: u32) {
        let rank = rank(score, entry);
        if self.filled < self.heap.len() {
            self.heap[self.filled] = rank;
            self.filled += 1;
            if self.filled == self.heap.len() {
                (0..self.filled / 2).rev().for_each(|i| self.sink(i));
            }
        } else if rank > self.heap[0] {
            self.heap[0] = rank;
            self.sink(0);
        }
    }

    /// Moves what stands at `i` down to its place.
    fn sink(&mut self, mut i: usize) {
        loop {
            let children = (2 * i + 1..2 * i + 3).filter(|&child| child < self.heap.len());
            match children.min_by_key(|&child| self.heap[child]) {
                Some(child) if self.heap[child] < self.heap[i] => {
                    self.heap.swap(child, i);
                    i = child;
                }
                _ => return,
            }
        }
    }
}

per_isa! {
    /// The scores of a tile of keys `[dim, BLOCK]`, head after head.
    fn score_tile(
        tile: &mut [f32; BLOCK],
        q: &[f32],
        weights: &[f32],
        keys: &[f32],
        scale: f32,
    ) {
        for (q, weight) in q.chunks_exact(keys.len() / BLOCK).zip(weights) {
            for (score, dot) in tile.iter_mut().zip(scores(q, keys)) {
                let dot = dot * scale;
                let dot = if dot > 0.0 { dot } else { 0.0 };
                *score = dot.mul_add(*weight, *score);
            }
        }
    }
}

/// The plain twin of [`select`]: everything is sorted.
pub(super) fn select_reference(c: &Context<'_>, ix: Indexer<'_>, out: &MatMut<'_>) {
    let keys = Paged::new(c, ix.keys);
    let (_, dim) = keys.dims();
    for t in 0..out.rows {
        let score = |e: usize| {
            let block = c.b.block(ix.keys.table, c.b.token_row[t] as usize, e / BLOCK);
            // SAFETY: no kernel writes states while this one runs.
            let key = |d: usize| unsafe { keys.number(block, 0, d, e % BLOCK) };
            (0..ix.heads).fold(0.0_f32, |score, h| {
                let q = &ix.q.row(t)[h * dim..][..dim];
                let dot = q.iter().enumerate().fold(0.0, |dot, (d, q)| key(d).mul_add(*q, dot));
                (dot * ix.scale).max(0.0).mul_add(ix.weights.row(t)[h], score)
            })
        };
        let mut entries: Vec<(f32, usize)> = (0..ix.visible(c, t)).map(|e| (score(e), e)).collect();
        entries.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal));
        let mut best: Vec<u32> = entries.iter().take(ix.k).map(|e| e.1 as u32).collect();
        best.sort_unstable();
        best.resize(ix.k, u32::MAX);
        // SAFETY: one thread, one row at a time.
        let out = unsafe { out.piece(t, 0, ix.k) };
        out.iter_mut().zip(best).for_each(|(unit, e)| *unit = f32::from_bits(e));
    }
}

/// Tokens on their way into entries.
#[derive(Clone, Copy)]
pub(super) struct Pooled<'a> {
    pub(super) x: Mat<'a>,
    pub(super) gate: Mat<'a>,
    /// `[every, cols]`
    pub(super) bias: &'a [f32],
    pub(super) every: usize,
    pub(super) overlap: bool,
}

/// Columns that one piece of pooling takes.
const COLUMNS: usize = 64;

/// Some columns of a group's tokens: where their `x`, `gate` and bias begin, and how far their rows are apart.
#[derive(Clone, Copy)]
struct Part {
    x: usize,
    gate: usize,
    stride: usize,
    bias: usize,
}

impl Pooled<'_> {
    /// What the column `at` of a result is made of: of the open group, and with overlap of the group before.
    fn parts(&self, at: usize) -> (Part, Option<Part>) {
        let (n, cols) = (self.every, self.x.cols);
        let half = if self.overlap { cols / 2 } else { 0 };
        let open = Part { x: half + at, gate: n * cols + half + at, stride: cols, bias: half + at };
        let (x, gate) = (2 * n * cols + at, 2 * n * cols + n * half + at);
        let before = Part { x, gate, stride: half, bias: at };
        (open, self.overlap.then_some(before))
    }
}

/// Pools each row's tokens; a piece of work is some columns of a row. See [`Op::Pool`] for the slot.
pub(super) fn pool(c: &Context<'_>, p: Pooled<'_>, mem: StateMem, out: &MatMut<'_>) {
    let (n, cols) = (p.every, p.x.cols);
    let chunks = out.cols.div_ceil(COLUMNS);
    share(c.pool, c.b.rows * chunks, 8 * COLUMNS * c.b.tokens / c.b.rows.max(1), |items| {
        for (row, chunk) in items.map(|i| (i / chunks, i % chunks)) {
            let (at, slot) = (chunk * COLUMNS, slot(c, row).0);
            let len = COLUMNS.min(out.cols - at);
            let (open, before) = p.parts(at);
            for t in tokens(c, row) {
                let (group, i) = (c.b.positions[t] as usize / n, c.b.positions[t] as usize % n);
                // The halves of columns that belong to this piece.
                for from in [Some(at), p.overlap.then_some(out.cols + at)].into_iter().flatten() {
                    for (x, first) in [(p.x, 0), (p.gate, n * cols)] {
                        // SAFETY: these columns of a slot belong to one thread.
                        unsafe { mem.write(slot, first + i * cols + from, len) }
                            .copy_from_slice(&x.row(t)[from..from + len]);
                    }
                }
                // SAFETY: a token belongs to one row, and the columns to one thread.
                let out = unsafe { out.piece(t, at, len) };
                if i + 1 < n {
                    out.fill(0.0);
                    continue;
                }
                let earlier = before.filter(|_| group > 0);
                pool_columns(c.isa, out, [earlier, Some(open)], mem, slot, p.bias, n, cols);
                if let Some(before) = before {
                    for j in 0..n {
                        for (from, to) in [(at, before.x), (n * cols + at, before.gate)] {
                            // SAFETY: as above; the two ranges are apart.
                            let from = unsafe { mem.read(slot, from + j * cols, len) };
                            // SAFETY: as above.
                            unsafe { mem.write(slot, to + j * before.stride, len) }
                                .copy_from_slice(from);
                        }
                    }
                }
            }
        }
    });
}

per_isa! {
    /// One softmax over the tokens of all parts for each column, at most [`COLUMNS`] of them.
    fn pool_columns(
        out: &mut [f32],
        parts: [Option<Part>; 2],
        mem: StateMem,
        slot: usize,
        bias: &[f32],
        n: usize,
        cols: usize,
    ) {
        let len = out.len();
        let (mut max, mut sum) = ([f32::NEG_INFINITY; COLUMNS], [0.0f32; COLUMNS]);
        for part in parts.into_iter().flatten() {
            for j in 0..n {
                // SAFETY: these columns of the slot belong to this thread, which does not write them here.
                let gate = unsafe { mem.read(slot, part.gate + j * part.stride, len) };
                let bias = &bias[part.bias + j * cols..][..len];
                for ((max, gate), bias) in max.iter_mut().zip(gate).zip(bias) {
                    let gate = gate + bias;
                    *max = if gate > *max { gate } else { *max };
                }
            }
        }
        out.fill(0.0);
        for part in parts.into_iter().flatten() {
            for j in 0..n {
                // SAFETY: as above.
                let gate = unsafe { mem.read(slot, part.gate + j * part.stride, len) };
                // SAFETY: as above.
                let x = unsafe { mem.read(slot, part.x + j * part.stride, len) };
                let bias = &bias[part.bias + j * cols..][..len];
                for l in 0..len {
                    let e = exp(gate[l] + bias[l] - max[l]);
                    sum[l] += e;
                    out[l] = e.mul_add(x[l], out[l]);
                }
            }
        }
        out.iter_mut().zip(sum).for_each(|(out, sum)| *out /= sum);
    }
}

/// The plain twin of [`pool`].
pub(super) fn pool_reference(c: &Context<'_>, p: Pooled<'_>, mem: StateMem, out: &MatMut<'_>) {
    let (n, cols) = (p.every, p.x.cols);
    let half = if p.overlap { cols / 2 } else { 0 };
    for row in 0..c.b.rows {
        // SAFETY: one thread; slots of different rows differ.
        let state = unsafe { mem.write(slot(c, row).0, 0, 2 * n * (cols + half)) };
        for t in tokens(c, row) {
            let (group, i) = (c.b.positions[t] as usize / n, c.b.positions[t] as usize % n);
            state[i * cols..][..cols].copy_from_slice(p.x.row(t));
            state[(n + i) * cols..][..cols].copy_from_slice(p.gate.row(t));
            for col in 0..out.cols {
                let (open, before) = p.parts(col);
                let parts = before.filter(|_| group > 0).into_iter().chain([open]);
                let taken: Vec<(f32, f32)> = parts
                    .flat_map(|part| (0..n).map(move |j| (part, j)))
                    .map(|(part, j)| {
                        let gate = state[part.gate + j * part.stride];
                        let x = state[part.x + j * part.stride];
                        (x, gate + p.bias[part.bias + j * cols])
                    })
                    .collect();
                let max = taken.iter().fold(f32::NEG_INFINITY, |max, (_, gate)| max.max(*gate));
                let sum: f32 = taken.iter().map(|(_, gate)| (gate - max).exp()).sum();
                let pooled: f32 = taken.iter().map(|(x, gate)| (gate - max).exp() / sum * x).sum();
                // SAFETY: one thread, one number at a time.
                unsafe { out.piece(t, col, 1)[0] = if i + 1 == n { pooled } else { 0.0 } };
            }
            if i + 1 == n {
                for (j, l) in (0..n).flat_map(|j| (0..half).map(move |l| (j, l))) {
                    state[2 * n * cols + j * half + l] = state[j * cols + l];
                    state[2 * n * cols + (n + j) * half + l] = state[(n + j) * cols + l];
                }
            }
        }
    }
}
