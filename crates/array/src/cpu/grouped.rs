//! Pairs of tokens and ranks in the order of their experts.
//!
//! Owns a node's scratch where experts take many rows at once: the order, the activations in it, and what threads have
//! of their own. Nothing of it outlives the node.

use std::ops::Range;

use super::context::{Context, StateMem};
use super::experts::{FEW, Routed};
use super::linear::{Activations, PIECE_ROWS, Pieces, quantises};
use super::view::{Mat, share};
use crate::device::MatrixSpec;
use crate::matmul::{quantize_activations, quantized_row_bytes};
use crate::op::Op;
use crate::plan::Plan;
use crate::weight::{WeightKind, WeightRef};

/// The most pairs of an expert that are multiplied at once.
pub(super) const CHUNK: usize = 48;

/// Everything in a scratch starts on a cache line.
const LINE: usize = 64;

/// Scratch of experts for `rows` tokens.
pub(super) fn scratch_bytes(
    plan: &Plan,
    node: usize,
    rows: usize,
    exact: bool,
    threads: usize,
) -> usize {
    let of = |routing, w: WeightRef| match w.kind {
        WeightKind::Matrix(spec) => Some((rows * plan.place(routing).shape.cols / 2, spec)),
        WeightKind::Vector { .. } => None,
    };
    let (found, alone, own) = match plan.nodes[node].op {
        Op::ExpertsUp { routing, up, .. } => (of(routing, up), rows, 2 * CHUNK * PIECE_ROWS),
        Op::ExpertsDown { routing, down, .. } => {
            let found = of(routing, down);
            let pairs = found.map_or(0, |(pairs, _)| pairs);
            (found, pairs, pairs * PIECE_ROWS)
        }
        _ => return 0,
    };
    let Some((pairs, spec)) = found else { return 0 };
    let one_by_one =
        if quantises(&spec, exact) { alone * quantized_row_bytes(spec.cols) } else { 0 };
    let words = 2 * (spec.experts + 1) + 2 * pairs;
    let many = (words * 4).next_multiple_of(LINE)
        + pairs * row_bytes(&spec, exact)
        + threads * own * size_of::<f32>();
    if rows <= FEW { one_by_one } else { many.max(one_by_one) }
}

/// Bytes of a row of activations; an odd number of cache lines, so that rows do not fall on each other in the cache.
fn row_bytes(spec: &MatrixSpec, exact: bool) -> usize {
    match quantises(spec, exact) {
        true => quantized_row_bytes(spec.cols),
        false => ((spec.cols * 4).div_ceil(LINE) | 1) * LINE,
    }
}

/// What is left of a node's scratch.
pub(super) struct Rest<'a>(&'a mut [u8]);

impl<'a> Rest<'a> {
    fn take(self, bytes: usize) -> (&'a mut [u8], Self) {
        assert!(bytes <= self.0.len(), "scratch is too small");
        let (taken, rest) = self.0.split_at_mut(bytes);
        (taken, Self(rest))
    }

    /// Pieces of `unit` numbers, one for each thread.
    pub(super) fn of_threads(self, unit: usize) -> StateMem {
        StateMem::pieces(self.0.as_mut_ptr(), self.0.len(), unit)
    }
}

/// Pairs `t * ranks + rank`, those of each expert one after the other, in order.
pub(super) struct Groups<'a> {
    /// Pairs of the experts before each.
    before: &'a [u32],
    /// Chunks of those.
    chunks: &'a [u32],
    order: &'a [u32],
    /// Where in the order each pair is.
    places: &'a [u32],
}

impl<'a> Groups<'a> {
    /// Sorts the pairs of a step into the node's scratch.
    pub(super) fn new(c: &Context<'a>, r: Routed<'_>, spec: &MatrixSpec) -> (Self, Rest<'a>) {
        let (ranks, experts) = (r.ranks(), spec.experts);
        let pairs = r.x.rows * ranks;
        let (ptr, len) = c.scratch(r.node);
        // SAFETY: the scratch is the node's own, and this is the only borrow of it.
        let rest = Rest(unsafe { std::slice::from_raw_parts_mut(ptr, len) });
        let words = 2 * (experts + 1) + 2 * pairs;
        let (bytes, rest) = rest.take((words * 4).next_multiple_of(LINE));
        // SAFETY: the scratch starts on a cache line, and any bytes are words.
        let words: &mut [u32] =
            unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), words) };
        let expert = |pair: usize| r.expert(pair / ranks, pair % ranks, spec);
        (Self::sort(words, experts, expert), rest)
    }

    /// Sorts the pairs `0..pairs` by their experts into `2 * (experts + 1) + 2 * pairs` words.
    fn sort(words: &'a mut [u32], experts: usize, expert: impl Fn(usize) -> usize) -> Self {
        let (before, words) = words.split_at_mut(experts + 1);
        let (chunks, words) = words.split_at_mut(experts + 1);
        let pairs = words.len() / 2;
        let (order, places) = words.split_at_mut(pairs);
        before.fill(0);
        (0..pairs).for_each(|pair| before[expert(pair) + 1] += 1);
        chunks[0] = 0;
        for e in 0..experts {
            chunks[e + 1] = chunks[e] + before[e + 1].div_ceil(CHUNK as u32);
            before[e + 1] += before[e];
        }
        // Each expert's beginning moves to its end, which is the beginning of the next.
        for (pair, place) in places.iter_mut().enumerate() {
            let next = &mut before[expert(pair)];
            *place = *next;
            order[*next as usize] = pair as u32;
            *next += 1;
        }
        before.copy_within(..experts, 1);
        before[0] = 0;
        Self { before, chunks, order, places }
    }

    pub(super) fn pairs(&self) -> usize {
        self.order.len()
    }

    /// How many pieces of at most [`CHUNK`] pairs of one expert there are.
    pub(super) fn chunks(&self) -> usize {
        self.chunks.last().map_or(0, |n| *n as usize)
    }

    /// The expert of a chunk, and its places in the order.
    pub(super) fn chunk(&self, chunk: usize) -> (usize, Range<usize>) {
        let e = self.chunks.partition_point(|before| *before as usize <= chunk) - 1;
        let [first, end] = [0, 1].map(|i| self.before[e + i] as usize);
        let [i, of] =
            [chunk - self.chunks[e] as usize, (self.chunks[e + 1] - self.chunks[e]) as usize];
        // As even as it can be.
        let at = |i: usize| first + (end - first) * i / of;
        (e, at(i)..at(i + 1))
    }

    /// The pairs at these places.
    pub(super) fn order(&self, places: Range<usize>) -> &[u32] {
        &self.order[places]
    }

    /// The places of these pairs.
    pub(super) fn places(&self, pairs: Range<usize>) -> &[u32] {
        &self.places[pairs]
    }
}

/// The activations of all pairs in order, in the form that the matrix wants. `x` is `[T, cols]`, or `[T, ranks * cols]`.
pub(super) fn sorted<'a>(
    c: &Context<'_>,
    x: Mat<'_>,
    spec: &MatrixSpec,
    groups: &Groups<'_>,
    rest: Rest<'a>,
) -> (Activations<'a>, Rest<'a>) {
    let (cols, bytes, pairs) = (spec.cols, row_bytes(spec, c.exact), groups.pairs());
    let (memory, rest) = rest.take(pairs * bytes);
    let (ranks, own) = (pairs / x.rows.max(1), x.cols > cols);
    let quantised = quantises(spec, c.exact);
    let to = Pieces(memory.as_mut_ptr());
    share(c.pool, pairs, cols / 4, |places| {
        for place in places {
            let (t, rank) =
                (groups.order[place] as usize / ranks, groups.order[place] as usize % ranks);
            let x = &x.row(t)[if own { rank * cols } else { 0 }..][..cols];
            // SAFETY: each row is written by one thread, inside of the memory.
            let to = unsafe { to.piece(place * bytes, bytes) };
            if quantised {
                quantize_activations(c.isa, x, to);
            } else {
                to.as_chunks_mut().0.iter_mut().zip(x).for_each(|(to, x)| *to = x.to_ne_bytes());
            }
        }
    });
    let memory = &*memory;
    if quantised {
        return (Activations::Quantized(memory, cols), rest);
    }
    // SAFETY: the rows were just written, on whole cache lines, and are borrowed for as long as the result.
    let rows = unsafe { Mat::new(memory.as_ptr().cast(), pairs, cols, bytes / 4) };
    (Activations::Float(rows), rest)
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, Groups};

    #[test]
    fn every_pair_is_in_one_chunk_of_its_expert() {
        let mut seed = 1_u32;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) as usize % below
        };
        for case in 0..300 {
            let (experts, pairs) = (draw(9) + 1, draw(400));
            let of: Vec<usize> = (0..pairs).map(|_| draw(experts).min(draw(experts))).collect();
            let mut words = vec![7; 2 * (experts + 1) + 2 * pairs];
            let groups = Groups::sort(&mut words, experts, |pair| of[pair]);
            assert_eq!(groups.pairs(), pairs);
            let mut next = 0;
            for (e, places) in (0..groups.chunks()).map(|chunk| groups.chunk(chunk)) {
                assert!(places.start == next && (1..=CHUNK).contains(&places.len()), "case {case}");
                next = places.end;
                assert!(groups.order(places).iter().all(|pair| of[*pair as usize] == e));
            }
            assert_eq!(next, pairs, "case {case}");
            for (pair, place) in groups.places(0..pairs).iter().enumerate() {
                assert_eq!(groups.order[*place as usize] as usize, pair);
            }
            let order = groups.order(0..pairs);
            let sorted = |w: &[u32]| (of[w[0] as usize], w[0]) < (of[w[1] as usize], w[1]);
            assert!(order.windows(2).all(sorted), "case {case}");
        }
    }
}
