//! Mixtures of experts: of a few tokens each pair of a token and one of its experts alone, of more the pairs of each
//! expert together.
//!
//! Owns the order of the pairs and the scratch that it takes. A product has the same bits alone and among others, and
//! what experts bring to a token is added in the order of its ranks, so both ways give the same.

use super::context::Context;
use super::grouped::{CHUNK, Groups, sorted};
use super::lanes::per_isa;
use super::linear::{Activations, PIECE_ROWS, Piece, quantises};
use super::ops::{glu_row, map_in_place};
use super::view::{Mat, MatMut, share, share_by};
use crate::device::MatrixSpec;
use crate::op::Glu;
use crate::panel::PANEL_ROWS;
use crate::weight::WeightRef;

/// The tensors of both expert kernels.
#[derive(Clone, Copy)]
pub(super) struct Routed<'a> {
    pub(super) x: Mat<'a>,
    pub(super) routing: Mat<'a>,
    pub(super) node: usize,
}

impl Routed<'_> {
    pub(super) fn ranks(&self) -> usize {
        self.routing.cols / 2
    }

    /// The expert of rank `rank` of token `t`.
    pub(super) fn expert(&self, t: usize, rank: usize, spec: &MatrixSpec) -> usize {
        let e = self.routing.row(t)[self.ranks() + rank] as usize;
        assert!(e < spec.experts, "expert {e} of {}", spec.experts);
        e
    }
}

/// The weights of experts on the way in; biases are `[experts, rows]`.
#[derive(Clone, Copy)]
pub(super) struct UpWeights<'a> {
    pub(super) gate: Option<WeightRef>,
    pub(super) up: WeightRef,
    pub(super) bias: Option<[&'a [f32]; 2]>,
    pub(super) f: Glu,
}

/// The weights of experts on the way out.
#[derive(Clone, Copy)]
pub(super) struct DownWeights<'a> {
    pub(super) down: WeightRef,
    pub(super) bias: Option<&'a [f32]>,
}

/// Tokens up to which pairs are taken one by one: hardly any two of them meet at an expert.
pub(super) const FEW: usize = 4;

/// `f(x G_e^T, x U_e^T)` for each routed expert.
pub(super) fn experts_up(c: &Context<'_>, r: Routed<'_>, weights: UpWeights<'_>, out: &MatMut<'_>) {
    let UpWeights { gate, up, bias, f } = weights;
    let ((spec, u), gate) = (c.matrix(up), gate.map(|g| c.matrix(g)));
    let other_form = |(g, _)| quantises(&g, c.exact) != quantises(&spec, c.exact);
    if r.x.rows <= FEW || gate.is_some_and(other_form) {
        return experts_up_one_by_one(c, r, weights, out);
    }
    let (inner, ranks) = (spec.rows, r.ranks());
    let (groups, rest) = Groups::new(c, r, &spec);
    let (x, rest) = sorted(c, r.x, &spec, &groups, rest);
    // Results of gate and up, for each thread.
    let own = rest.of_threads(2 * CHUNK * PIECE_ROWS);
    let pieces = inner.div_ceil(PIECE_ROWS);
    let cost = spec.cols * PIECE_ROWS / 32 * groups.pairs() / groups.chunks().max(1);
    share_by(c.pool, groups.chunks() * pieces, cost, |thread, items| {
        // SAFETY: a thread's piece of the scratch is its own.
        let (hidden, gates) =
            unsafe { own.write(thread, 0, own.record()) }.split_at_mut(CHUNK * PIECE_ROWS);
        for (chunk, at) in items.map(|i| (i / pieces, i % pieces * PIECE_ROWS)) {
            let (e, pairs) = groups.chunk(chunk);
            let (n, x) = (PIECE_ROWS.min(inner - at), x.rows(pairs.clone()));
            let product = |(spec, w): (MatrixSpec, _), bias: Option<&[f32]>, y: &mut [f32]| {
                x.multiply(c.isa, Piece::new(&spec, w, e, at), y);
                for y in y.chunks_exact_mut(n) {
                    add_bias(y, bias, e * inner + at);
                }
            };
            let hidden = &mut hidden[..pairs.len() * n];
            product((spec, u), bias.map(|b| b[1]), hidden);
            match (gate, f) {
                (Some(gate), _) => {
                    let gates = &mut gates[..hidden.len()];
                    product(gate, bias.map(|b| b[0]), gates);
                    glu_row(c.isa, f, hidden, gates);
                }
                (None, Glu::Of(f)) => map_in_place(c.isa, f, hidden),
                (None, _) => unreachable!("recording checks that there is a gate"),
            }
            for (pair, hidden) in groups.order(pairs).iter().zip(hidden.chunks_exact(n)) {
                let (t, rank) = (*pair as usize / ranks, *pair as usize % ranks);
                // SAFETY: each piece of the output belongs to one item.
                unsafe { out.piece(t, rank * inner + at, n) }.copy_from_slice(hidden);
            }
        }
    });
}

/// The plain way of [`experts_up`].
pub(super) fn experts_up_one_by_one(
    c: &Context<'_>,
    r: Routed<'_>,
    weights: UpWeights<'_>,
    out: &MatMut<'_>,
) {
    let UpWeights { gate, up, bias, f } = weights;
    let ((spec, u), gate) = (c.matrix(up), gate.map(|g| c.matrix(g)));
    let inner = spec.rows;
    let x = Activations::new(c, r.x, &spec, r.node);
    // A gate in another format may want the activations in another form.
    let gate_x = gate.map(|(g, _)| {
        if quantises(&g, c.exact) == quantises(&spec, c.exact) {
            x
        } else {
            Activations::Float(r.x)
        }
    });
    let pieces = inner.div_ceil(PIECE_ROWS);
    let ranks = r.ranks();
    share(c.pool, r.x.rows * ranks * pieces, spec.cols * PIECE_ROWS / 16, |items| {
        for (pair, piece) in items.map(|i| (i / pieces, i % pieces)) {
            let (t, rank, at) = (pair / ranks, pair % ranks, piece * PIECE_ROWS);
            let e = r.expert(t, rank, &spec);
            let n = PIECE_ROWS.min(inner - at);
            // SAFETY: each piece of the output belongs to one item.
            let out = unsafe { out.piece(t, rank * inner + at, n) };
            x.multiply_one(c.isa, t, 1, Piece::new(&spec, u, e, at), out);
            add_bias(out, bias.map(|b| b[1]), e * inner + at);
            match (gate, gate_x, f) {
                (Some((spec, g)), Some(x), _) => {
                    let mut hidden = [0.0f32; PIECE_ROWS];
                    x.multiply_one(c.isa, t, 1, Piece::new(&spec, g, e, at), &mut hidden[..n]);
                    add_bias(&mut hidden[..n], bias.map(|b| b[0]), e * inner + at);
                    glu_row(c.isa, f, out, &hidden[..n]);
                }
                (_, _, Glu::Of(f)) => map_in_place(c.isa, f, out),
                _ => unreachable!("recording checks that there is a gate"),
            }
        }
    });
}

fn add_bias(out: &mut [f32], bias: Option<&[f32]>, at: usize) {
    if let Some(bias) = bias {
        out.iter_mut().zip(&bias[at..]).for_each(|(o, b)| *o += b);
    }
}

per_isa! {
    /// The sum of the rows of `brought` at `places`, each as long as `out`, in order and times their weights.
    fn add_up(out: &mut [f32], weights: &[f32], places: &[u32], brought: &[f32]) {
        out.fill(0.0);
        for (weight, place) in weights.iter().zip(places) {
            let y = &brought[*place as usize * out.len()..][..out.len()];
            out.iter_mut().zip(y).for_each(|(o, y)| *o += weight * y);
        }
    }
}

/// The sum over ranks of `weight * (x_rank D_e^T + bias_e)`, in rank order.
pub(super) fn experts_down(
    c: &Context<'_>,
    r: Routed<'_>,
    weights: DownWeights<'_>,
    out: &MatMut<'_>,
) {
    if r.x.rows <= FEW {
        return experts_down_one_by_one(c, r, weights, out);
    }
    let (spec, d) = c.matrix(weights.down);
    let ranks = r.ranks();
    let (groups, rest) = Groups::new(c, r, &spec);
    let (x, rest) = sorted(c, r.x, &spec, &groups, rest);
    // What all pairs bring to the outputs of a piece, for each thread.
    let own = rest.of_threads(groups.pairs() * PIECE_ROWS);
    // As wide as there is enough for the threads.
    let panels = spec.rows.div_ceil(PANEL_ROWS);
    let wide = (panels / (4 * c.pool.threads())).clamp(1, PIECE_ROWS / PANEL_ROWS) * PANEL_ROWS;
    let cost = groups.pairs() * spec.cols * wide / 64;
    share_by(c.pool, spec.rows.div_ceil(wide), cost, |thread, pieces| {
        for piece in pieces {
            let outputs = piece * wide..((piece + 1) * wide).min(spec.rows);
            // SAFETY: a thread's piece of the scratch is its own.
            let brought = unsafe { own.write(thread, 0, groups.pairs() * outputs.len()) };
            for (e, pairs) in (0..groups.chunks()).map(|chunk| groups.chunk(chunk)) {
                let y = &mut brought[pairs.start * outputs.len()..pairs.end * outputs.len()];
                x.rows(pairs).multiply(c.isa, Piece::of(&spec, d, e, outputs.clone()), y);
                for y in y.chunks_exact_mut(outputs.len()) {
                    add_bias(y, weights.bias, e * spec.rows + outputs.start);
                }
            }
            for t in 0..r.x.rows {
                // SAFETY: each piece of the output belongs to one item.
                let out = unsafe { out.piece(t, outputs.start, outputs.len()) };
                let places = groups.places(t * ranks..(t + 1) * ranks);
                add_up(c.isa, out, &r.routing.row(t)[..ranks], places, brought);
            }
        }
    });
}

/// The plain way of [`experts_down`].
pub(super) fn experts_down_one_by_one(
    c: &Context<'_>,
    r: Routed<'_>,
    DownWeights { down, bias }: DownWeights<'_>,
    out: &MatMut<'_>,
) {
    let (spec, d) = c.matrix(down);
    let x = Activations::new(c, r.x, &spec, r.node);
    let ranks = r.ranks();
    let cost = ranks * spec.cols * PIECE_ROWS / 32;
    let pieces = spec.rows.div_ceil(PIECE_ROWS);
    share(c.pool, r.x.rows * pieces, cost, |items| {
        for (t, piece) in items.map(|i| (i / pieces, i % pieces)) {
            let at = piece * PIECE_ROWS;
            let n = PIECE_ROWS.min(spec.rows - at);
            // SAFETY: each piece of the output belongs to one item.
            let out = unsafe { out.piece(t, at, n) };
            out.fill(0.0);
            for rank in 0..ranks {
                let e = r.expert(t, rank, &spec);
                let mut y = [0.0f32; PIECE_ROWS];
                let piece = Piece::new(&spec, d, e, at);
                x.multiply_one(c.isa, t * ranks + rank, ranks, piece, &mut y[..n]);
                add_bias(&mut y[..n], bias, e * spec.rows + at);
                let weight = r.routing.row(t)[rank];
                out.iter_mut().zip(y).for_each(|(o, y)| *o += weight * y);
            }
        }
    });
}
