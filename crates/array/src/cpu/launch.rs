//! One match over the operations of a plan: which kernel runs, on which tensors.

use super::attention::{self, Spec};
use super::context::Context;
use super::linear::Routed;
use super::recurrent::{self, DeltaArgs};
use super::view::MatMut;
use super::{linear, ops, reference};
use crate::op::Op;

/// Runs every operation of the plan in order. `plain` takes the reference kernels; `result` is the output buffer.
pub(super) fn run(c: &Context<'_>, plain: bool, result: usize) {
    for node in 0..c.plan.nodes.len() {
        if plain {
            run_plain(c, node)
        } else {
            run_fast(c, node)
        }
        match c.plan.nodes[node].op {
            Op::WriteKv { x, state } => attention::write_kv(c, c.get(x), state),
            Op::Emit { x } => emit(c, c.get(x), result),
            _ => {}
        }
    }
}

fn run_fast(c: &Context<'_>, node: usize) {
    match c.plan.nodes[node].op {
        Op::Columns { .. } | Op::WriteKv { .. } | Op::Emit { .. } => {}
        Op::Embed { table, scale } => linear::embed(c, table, scale, &c.out(node)),
        Op::RopeTable { freq, scale } => ops::rope_table(c, c.vector(freq), scale, &c.out(node)),
        Op::TakeOutputs { x } => take_outputs(c, c.get(x), &c.out(node)),
        Op::Add { a, b } => ops::add(c, c.get(a), c.get(b), &c.out(node)),
        Op::Apply { x, f } => ops::apply(c, f, c.get(x), &c.out(node)),
        Op::Gate { gate, x, f } => ops::gate(c, f, c.get(gate), c.get(x), &c.out(node)),
        Op::RmsNorm { x, weight, eps, .. } => {
            ops::rms_norm(c, c.get(x), c.vector(weight), eps, &c.out(node));
        }
        Op::GatedRmsNorm { x, gate, weight, eps, .. } => {
            ops::gated_rms_norm(c, c.get(x), c.get(gate), c.vector(weight), eps, &c.out(node));
        }
        Op::UnitNorm { x, group, eps, scale } => {
            ops::unit_norm(c, c.get(x), (group, eps, scale), &c.out(node));
        }
        Op::Linear { x, weight, bias } => {
            linear::linear(c, c.get(x), weight, bias.map(|b| c.vector(b)), node, &c.out(node));
        }
        Op::Route { logits, k, scoring } => {
            ops::route(c, c.get(logits), k, scoring, &c.out(node));
        }
        Op::ExpertsUp { x, routing, gate, up, f } => {
            let routed = Routed { x: c.get(x), routing: c.get(routing), node };
            linear::experts_up(c, routed, (gate, up, f), &c.out(node));
        }
        Op::ExpertsDown { x, routing, down } => {
            let routed = Routed { x: c.get(x), routing: c.get(routing), node };
            linear::experts_down(c, routed, down, &c.out(node));
        }
        Op::Rope { x, table, dim, interleaved } => {
            ops::rope(c, c.get(x), c.get(table), (dim, interleaved), &c.out(node));
        }
        Op::Attention { q, keys, values, heads, scale, window, softcap } => {
            let spec = Spec { keys, values, heads, scale, window, softcap };
            attention::attention(c, c.get(q), spec, &c.out(node));
        }
        Op::Conv { x, taps, state, f } => {
            recurrent::conv(c, c.get(x), c.vector(taps), c.state(state), f, &c.out(node));
        }
        Op::Decay { x, neg_a, bias, state } => {
            let weights = (c.vector(neg_a), c.vector(bias));
            recurrent::decay(c, c.get(x), weights, c.state(state), &c.out(node));
        }
        Op::DeltaRule { q, k, v, decay, beta, state, heads } => {
            let [q, k, v, decay, beta] = [q, k, v, decay, beta].map(|id| c.get(id));
            let args = DeltaArgs { q, k, v, decay, beta, heads };
            recurrent::delta_rule(c, args, c.state(state), &c.out(node));
        }
    }
}

fn run_plain(c: &Context<'_>, node: usize) {
    match c.plan.nodes[node].op {
        Op::Add { a, b } => reference::add(c.get(a), c.get(b), &c.out(node)),
        Op::Apply { x, f } => reference::apply(f, c.get(x), &c.out(node)),
        Op::Gate { gate, x, f } => {
            let (g, x) = (c.get(gate), c.get(x));
            let at = |j: usize| if g.cols == 1 { 0 } else { j };
            reference::fill(&c.out(node), |i, j| reference::map(f, g.row(i)[at(j)]) * x.row(i)[j]);
        }
        Op::RopeTable { freq, scale } => {
            reference::rope_table(c.b.positions, c.vector(freq), scale, &c.out(node));
        }
        Op::RmsNorm { x, weight, eps, .. } => {
            reference::rms_norm(c.get(x), c.vector(weight), eps, &c.out(node));
        }
        Op::GatedRmsNorm { x, gate, weight, eps, .. } => {
            let weight = c.vector(weight);
            reference::gated_rms_norm(c.get(x), c.get(gate), weight, eps, &c.out(node));
        }
        Op::UnitNorm { x, group, eps, scale } => {
            reference::unit_norm(c.get(x), (group, eps, scale), &c.out(node));
        }
        Op::Route { logits, k, scoring } => {
            reference::route(c.get(logits), k, scoring, &c.out(node));
        }
        Op::Rope { x, table, dim, interleaved } => {
            reference::rope(c.get(x), c.get(table), (dim, interleaved), &c.out(node));
        }
        Op::Attention { q, keys, values, heads, scale, window, softcap } => {
            let spec = Spec { keys, values, heads, scale, window, softcap };
            attention::reference(c, c.get(q), spec, &c.out(node));
        }
        Op::Conv { x, taps, state, f } => {
            reference::conv(c, c.get(x), c.vector(taps), c.state(state), f, &c.out(node));
        }
        Op::Decay { x, neg_a, bias, state } => {
            let weights = (c.vector(neg_a), c.vector(bias));
            reference::decay(c, c.get(x), weights, c.state(state), &c.out(node));
        }
        Op::DeltaRule { q, k, v, decay, beta, state, heads } => {
            let [q, k, v, decay, beta] = [q, k, v, decay, beta].map(|id| c.get(id));
            let args = DeltaArgs { q, k, v, decay, beta, heads };
            reference::delta_rule(c, args, c.state(state), &c.out(node));
        }
        // Copies, and matrices, whose twin is chosen inside of `linear`.
        Op::Columns { .. }
        | Op::TakeOutputs { .. }
        | Op::Embed { .. }
        | Op::Linear { .. }
        | Op::ExpertsUp { .. }
        | Op::ExpertsDown { .. }
        | Op::WriteKv { .. }
        | Op::Emit { .. } => run_fast(c, node),
    }
}

fn take_outputs(c: &Context<'_>, x: super::view::Mat<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols / 16, |i, row| {
        row.copy_from_slice(x.row(c.b.out_token[i] as usize));
    });
}

fn emit(c: &Context<'_>, x: super::view::Mat<'_>, result: usize) {
    let bytes = c.buffers[result].as_ref().map_or(0, super::memory::HostBuffer::len);
    assert!(x.rows * x.cols * 4 <= bytes, "the result is larger than its buffer");
    // SAFETY: the output buffer holds the result (checked above) and nothing else of this launch touches it.
    let out = unsafe { MatMut::new(c.addresses[result].cast(), x.rows, x.cols, x.cols) };
    out.for_rows(c.pool, out.cols / 16, |i, row| row.copy_from_slice(x.row(i)));
}
