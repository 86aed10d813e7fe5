//! Attention in pieces of some query rows that see the same keys: tokens that follow each other in a row of the step,
//! and the heads that share a key head.
//!
//! Owns how queries are cut into pieces and pieces are shared among threads. A piece looks at a block of keys and
//! values once for all of its queries. Nothing of that changes a bit: queries don't meet.

use std::ops::Range;

use super::super::context::Context;
use super::super::paged::{Paged, with_scratch};
use super::super::view::{Mat, MatMut, share};
use super::Spec;
use super::kernels::{Merge, Query};
use super::tile::Running;
use crate::inputs::BLOCK;
use crate::state::StateRef;

/// The most queries of a piece: what they need beside keys and values should stay in the first cache.
const ROWS: usize = 32;

/// One attention.
#[derive(Clone, Copy)]
struct Attention<'a> {
    c: &'a Context<'a>,
    spec: Spec<'a>,
    q: Mat<'a>,
    out: &'a MatMut<'a>,
    keys: Paged,
    values: Paged,
    /// Key heads, query heads of each, numbers of a key, of a value.
    heads: usize,
    per_key: usize,
    dim: usize,
    dv: usize,
}

/// Some queries of a row of the step under key head `head`: token by token, each token's head by head.
struct Piece {
    row: usize,
    head: usize,
    queries: Range<usize>,
}

pub(super) fn attention(
    c: &Context<'_>,
    q: Mat<'_>,
    spec: Spec,
    values: StateRef,
    out: &MatMut<'_>,
) {
    let (heads, dim, dv) = spec.dims();
    let (keys, values) = (Paged::new(c, spec.keys), Paged::new(c, values));
    let per_key = spec.heads / heads;
    let a = Attention { c, spec, q, out, keys, values, heads, per_key, dim, dv };
    let (mut looks, mut pieces) = (0, 0);
    a.for_pieces(|piece, blocks| {
        looks += piece.queries.len() * blocks;
        pieces += 1;
    });
    // With few pieces threads share them query by query, though some keys are then read twice.
    let whole = pieces >= 4 * c.pool.threads();
    share(c.pool, looks, (dim + dv) / 2, |range| {
        let work = |scratch: &mut [f32]| a.work(range, whole, scratch);
        match [keys, values].iter().any(Paged::decodes) {
            true => with_scratch(work),
            false => work(&mut []),
        }
    });
}

impl Attention<'_> {
    /// Calls `f` with each piece and the number of blocks that it looks at.
    fn for_pieces(&self, mut f: impl FnMut(Piece, usize)) {
        for row in 0..self.c.b.rows {
            let queries = self.c.b.row_count[row] as usize * self.per_key;
            for head in 0..self.heads {
                for first in (0..queries).step_by(ROWS) {
                    let piece = Piece { row, head, queries: first..queries.min(first + ROWS) };
                    let blocks = self.blocks(&piece).len();
                    f(piece, blocks);
                }
            }
        }
    }

    /// Does some of the looks of queries at blocks, counted over all pieces: a query, or if pieces are to stay `whole`
    /// a piece, belongs to whom its first look belongs to.
    fn work(&self, range: Range<usize>, whole: bool, scratch: &mut [f32]) {
        let mut look = 0;
        self.for_pieces(|piece, blocks| {
            let (first, count) = (look, piece.queries.len());
            look += count * blocks;
            let queries = if whole {
                if range.contains(&first) { 0..count } else { 0..0 }
            } else {
                let before = |end: usize| end.saturating_sub(first).div_ceil(blocks).min(count);
                before(range.start)..before(range.end)
            };
            if !queries.is_empty() {
                let start = piece.queries.start;
                let queries = start + queries.start..start + queries.end;
                self.run(Piece { queries, ..piece }, scratch);
            }
        });
    }

    /// The position of a query.
    fn position(&self, row: usize, query: usize) -> usize {
        self.c.b.row_past[row] as usize + query / self.per_key
    }

    /// The blocks that a piece looks at.
    fn blocks(&self, piece: &Piece) -> Range<usize> {
        let first = *self.spec.visible(self.position(piece.row, piece.queries.start)).start();
        let last = self.position(piece.row, piece.queries.end - 1);
        first / BLOCK..last / BLOCK + 1
    }

    fn query(&self, piece: &Piece, query: usize) -> Query<'_> {
        let (token, h) = (query / self.per_key, query % self.per_key);
        let t = self.c.b.row_first[piece.row] as usize + token;
        let h = piece.head * self.per_key + h;
        let sink = self.spec.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]);
        // SAFETY: these columns are one query's, and each query is in one piece.
        let sums = unsafe { self.out.piece(t, h * self.dv, self.dv) };
        Query {
            q: &self.q.row(t)[h * self.dim..][..self.dim],
            sums,
            fresh: true,
            run: Running::from(sink),
            seen: 0..0,
        }
    }

    fn run(&self, piece: Piece, scratch: &mut [f32]) {
        let Self { c, spec, keys, values, dim, .. } = self;
        let count = piece.queries.len();
        let mut queries: [Query<'_>; ROWS] = std::array::from_fn(|i| match i < count {
            true => self.query(&piece, piece.queries.start + i),
            false => Query { q: &[], sums: &mut [], fresh: true, run: Running::START, seen: 0..0 },
        });
        let queries = &mut queries[..count];
        let (k, v) = scratch.split_at_mut(scratch.len().min(dim * BLOCK));
        let blocks = self.blocks(&piece);
        for j in blocks.clone() {
            for (i, query) in queries.iter_mut().enumerate() {
                let visible = spec.visible(self.position(piece.row, piece.queries.start + i));
                let place = |p: usize| p.saturating_sub(j * BLOCK).min(BLOCK);
                query.seen = place(*visible.start())..place(visible.end() + 1);
            }
            let place = |j| (c.b.block(spec.keys.table, piece.row, j), piece.head);
            let next = (j + 1 < blocks.end).then(|| place(j + 1));
            let place = place(j);
            let merge = Merge {
                queries: &mut *queries,
                // SAFETY: no kernel writes states while attention runs.
                k: unsafe { keys.numbers(c.isa, place, k) },
                // SAFETY: as above.
                v: unsafe { values.numbers(c.isa, place, v) },
                // SAFETY: as above.
                ahead: [keys, values].map(|state| unsafe { state.ahead(next?) }),
                scale: spec.scale,
                softcap: spec.softcap.unwrap_or(0.0),
            };
            // SAFETY: the kernel has no pointers but those of its slices, which it measures.
            unsafe { c.isa.run(merge) };
        }
        queries.iter_mut().for_each(Query::end);
    }
}
