//! What compressed attention needs: pooling groups of tokens into entries, and choosing the best entries.
//!
//! Scores are sums in one order, written out, in both kinds of kernels: a choice is made of bits, and a sum that is
//! off by one would be another choice. Pooling finds a group's tokens wherever they are: in the row's record, in its log
//! or in the step, so it does not matter where a prompt is cut.

use super::attention::scores;
use super::context::{Context, StateMem};
use super::lanes::{exp, per_isa};
use super::paged::{Paged, with_scratch};
use super::record::{Row, log};
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

/// Some columns of a group's tokens, from `from` on.
#[derive(Clone, Copy)]
struct Part {
    group: usize,
    from: usize,
}

impl Pooled<'_> {
    /// Columns that only the group after a token's own sees: the first half.
    fn half(&self) -> usize {
        if self.overlap { self.x.cols / 2 } else { 0 }
    }

    /// What the column `at` of the result of a group is made of: of the group before, and of its own.
    fn parts(&self, group: usize, at: usize) -> [Option<Part>; 2] {
        let before = if self.overlap { group.checked_sub(1) } else { None };
        [before.map(|group| Part { group, from: at }), Some(Part { group, from: self.half() + at })]
    }
}

/// Where pooling finds what tokens brought.
#[derive(Clone, Copy)]
struct Brought<'a> {
    p: Pooled<'a>,
    mem: StateMem,
    row: Row,
}

impl Brought<'_> {
    /// Where the `x` and the `gate` of a row of the open group, or of the group before, are in a record.
    fn places(&self, open: bool, i: usize, from: usize) -> [usize; 2] {
        let (n, cols) = (self.p.every, self.p.x.cols);
        let (start, cols) = if open { (0, cols) } else { (2 * n * cols, self.p.half()) };
        [i, n + i].map(|i| start + i * cols + from)
    }

    /// `len` columns from `from` on of the `x` and the `gate` of a token in the open group or after it; or in the group
    /// before, of which a record has the first half.
    fn columns(&self, position: usize, from: usize, len: usize) -> [&[f32]; 2] {
        let Self { p, mem, row } = self;
        if let Some(i) = position.checked_sub(row.start) {
            let [x, gate] = [row.input(mem, i, p.x, 0), row.input(mem, i, p.gate, p.x.cols)];
            return [&x[from..from + len], &gate[from..from + len]];
        }
        let open = position / p.every == row.start / p.every;
        // SAFETY: these columns of the slot belong to this thread, which does not write them meanwhile.
        self.places(open, position % p.every, from).map(|at| unsafe { mem.read(row.slot, at, len) })
    }

    /// Brings the record forward over the confirmed tokens: `len` columns from `at` on, and with overlap those of the
    /// other half, `half` columns on. The open group's rows are those of the last tokens, a ring.
    fn confirm(&self, at: usize, len: usize, half: usize) {
        let Self { p, mem, row } = self;
        let (n, end) = (p.every, row.start + row.confirmed);
        // SAFETY: these columns of a slot belong to one thread, which holds no other borrow of them.
        let write = |at| unsafe { mem.write(row.slot, at, len) };
        // The group before first: its tokens may be in the ring.
        let parts = [(false, at), (true, half + at), (true, at)];
        for (open, from) in parts.into_iter().skip(if p.overlap { 0 } else { 2 }) {
            if row.fresh {
                (0..n).flat_map(|i| self.places(open, i, from)).for_each(|at| write(at).fill(0.0));
            }
            let tokens = match open {
                true => row.start.max(end.saturating_sub(n))..end,
                false if end / n > row.start / n => end / n * n - n..end / n * n,
                false => 0..0,
            };
            for position in tokens {
                let places = self.places(open, position % n, from).into_iter();
                let brought = self.columns(position, from, len);
                places.zip(brought).for_each(|(at, x)| write(at).copy_from_slice(x));
            }
        }
    }
}

/// Pools each row's tokens; a piece of work is some columns of a row. See [`Op::Pool`] for the slot.
pub(super) fn pool(c: &Context<'_>, p: Pooled<'_>, mem: StateMem, out: &MatMut<'_>) {
    let n = p.every;
    let chunks = out.cols.div_ceil(COLUMNS);
    share(c.pool, c.b.rows * chunks, 8 * COLUMNS * c.b.tokens / c.b.rows.max(1), |items| {
        for (row, chunk) in items.map(|i| (Row::new(c, i / chunks), i % chunks)) {
            let at = chunk * COLUMNS;
            let len = COLUMNS.min(out.cols - at);
            let brought = Brought { p, mem, row };
            for (i, t) in (0..row.all).filter_map(|i| Some((i, row.token(i)?))) {
                // SAFETY: a token belongs to one row, and the columns to one thread.
                let out = unsafe { out.piece(t, at, len) };
                let (group, last) = ((row.start + i) / n, (row.start + i + 1).is_multiple_of(n));
                if last {
                    pool_columns(c.isa, out, p.parts(group, at), brought);
                } else {
                    out.fill(0.0);
                }
            }
            if row.confirmed > 0 {
                brought.confirm(at, len, out.cols);
            }
        }
    });
    log(c, mem, [p.x, p.gate]);
}

per_isa! {
    /// One softmax over the tokens of all parts for each column, at most [`COLUMNS`] of them.
    fn pool_columns(out: &mut [f32], parts: [Option<Part>; 2], brought: Brought<'_>) {
        let (len, n, cols) = (out.len(), brought.p.every, brought.p.x.cols);
        let (mut max, mut sum) = ([f32::NEG_INFINITY; COLUMNS], [0.0f32; COLUMNS]);
        for part in parts.into_iter().flatten() {
            for j in 0..n {
                let [_, gate] = brought.columns(part.group * n + j, part.from, len);
                let bias = &brought.p.bias[part.from + j * cols..][..len];
                for ((max, gate), bias) in max.iter_mut().zip(gate).zip(bias) {
                    let gate = gate + bias;
                    *max = if gate > *max { gate } else { *max };
                }
            }
        }
        out.fill(0.0);
        for part in parts.into_iter().flatten() {
            for j in 0..n {
                let [x, gate] = brought.columns(part.group * n + j, part.from, len);
                let bias = &brought.p.bias[part.from + j * cols..][..len];
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
    let (n, cols, half) = (p.every, p.x.cols, p.half());
    // Where `x` of a part's first token is in a record, where its `gate`, and how far tokens are apart.
    let place = |part: Part, group: usize| match part.group == group {
        true => (part.from, n * cols + part.from, cols),
        false => (2 * n * cols + part.from, 2 * n * cols + n * half + part.from, half),
    };
    for row in (0..c.b.rows).map(|row| Row::new(c, row)) {
        row.walk(mem, |record, i| {
            let (group, in_group) = ((row.start + i) / n, (row.start + i) % n);
            let [x, gate] = [row.input(&mem, i, p.x, 0), row.input(&mem, i, p.gate, cols)];
            record[in_group * cols..][..cols].copy_from_slice(x);
            record[(n + in_group) * cols..][..cols].copy_from_slice(gate);
            let last = in_group + 1 == n;
            for col in 0..out.cols {
                let taken: Vec<(f32, f32)> = p
                    .parts(group, col)
                    .into_iter()
                    .flatten()
                    .flat_map(|part| (0..n).map(move |j| (part, j)))
                    .map(|(part, j)| {
                        let (x, gate, stride) = place(part, group);
                        let bias = p.bias[part.from + j * cols];
                        (record[x + j * stride], record[gate + j * stride] + bias)
                    })
                    .collect();
                let max = taken.iter().fold(f32::NEG_INFINITY, |max, (_, gate)| max.max(*gate));
                let sum: f32 = taken.iter().map(|(_, gate)| (gate - max).exp()).sum();
                let pooled: f32 = taken.iter().map(|(x, gate)| (gate - max).exp() / sum * x).sum();
                // SAFETY: one thread, one number at a time.
                unsafe { row.result(out, i, col, &mut [0.0])[0] = if last { pooled } else { 0.0 } };
            }
            for (j, l) in (0..n).flat_map(|j| (0..half).map(move |l| (j, l))).filter(|_| last) {
                record[2 * n * cols + j * half + l] = record[j * cols + l];
                record[2 * n * cols + (n + j) * half + l] = record[(n + j) * cols + l];
            }
        });
    }
    log(c, mem, [p.x, p.gate]);
}
