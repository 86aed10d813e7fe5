//! One match over the operations of a plan: which kernel runs, on which tensors.

use std::time::{Duration, Instant};

use super::attention::{self, Spec};
use super::context::Context;
use super::delta::{self, DeltaArgs};
use super::experts::{self, DownWeights, Routed, UpWeights};
use super::hyper::Mixing;
use super::low_rank::Pairs;
use super::ops::{Norm, Turns};
use super::recurrent::{ConvArgs, DecayArgs};
use super::route::Router;
use super::select::{Indexer, Pooled};
use super::ssm::Scan;
use super::view::{Mat, MatMut};
use super::{carry, hyper, linear, low_rank, ops, recurrent, reference, route, select, ssm};
use crate::op::{Op, RopeHeads};

/// Runs every operation of the plan in order. `plain` takes the reference kernels; `result` is the output buffer; `times`
/// gets how long each node took.
pub(super) fn run(
    c: &Context<'_>,
    plain: bool,
    result: usize,
    mut times: Option<&mut Vec<Duration>>,
) {
    times.iter_mut().for_each(|times| times.clear());
    for node in 0..c.plan.nodes.len() {
        match &mut times {
            None => run_node(c, node, plain, result),
            Some(times) => {
                let began = Instant::now();
                run_node(c, node, plain, result);
                times.push(began.elapsed());
            }
        }
    }
}

fn run_node(c: &Context<'_>, node: usize, plain: bool, result: usize) {
    if plain {
        run_plain(c, node)
    } else {
        run_fast(c, node)
    }
    match c.plan.nodes[node].op {
        Op::WriteKv { x, state } if plain => attention::write_reference(c, c.get(x), state),
        Op::WriteKv { x, state } => attention::write_kv(c, c.get(x), state),
        Op::Carry { x, state } => carry::carry(c, c.get(x), state),
        Op::Emit { x } => emit(c, c.get(x), result),
        _ => {}
    }
}

/// The arguments of operations that have several, as both kinds of kernels take them.
impl<'a> Context<'a> {
    fn attention(&self, op: Op) -> (Mat<'a>, Spec<'a>) {
        let Op::Attention { q, keys, values, heads, scale, window, softcap, .. } = op else {
            unreachable!("matched by the caller")
        };
        let Op::Attention { sinks, entries, chosen, .. } = op else { unreachable!("as above") };
        let sinks = sinks.map(|w| self.vector(w));
        let chosen = chosen.map(|c| (self.get(c.list), c.every));
        let spec = Spec { keys, values, heads, scale, window, softcap, sinks, entries, chosen };
        (self.get(q), spec)
    }

    fn select(&self, op: Op) -> Indexer<'a> {
        let Op::Select { q, weights, keys, heads, k, scale } = op else {
            unreachable!("matched by the caller")
        };
        Indexer { q: self.get(q), weights: self.get(weights), keys, heads, k, scale }
    }

    fn scan(&self, op: Op) -> Scan<'a> {
        let Op::Ssm { x, b, c, dt, neg_a, bias, skip, low, high, heads, .. } = op else {
            unreachable!("matched by the caller")
        };
        let [x, b, c, dt] = [x, b, c, dt].map(|id| self.get(id));
        let [neg_a, bias, skip] = [neg_a, bias, skip].map(|w| self.vector(w));
        Scan { x, b, c, dt, neg_a, bias, skip, limits: (low, high), heads }
    }

    fn delta(&self, op: Op) -> DeltaArgs<'a> {
        let Op::DeltaRule { q, k, v, decay, beta, heads, .. } = op else {
            unreachable!("matched by the caller")
        };
        let [q, k, v, decay, beta] = [q, k, v, decay, beta].map(|id| self.get(id));
        DeltaArgs { q, k, v, decay, beta, heads }
    }
}

fn run_fast(c: &Context<'_>, node: usize) {
    let op = c.plan.nodes[node].op;
    match op {
        Op::Columns { .. } | Op::WriteKv { .. } | Op::Carry { .. } | Op::Emit { .. } => {}
        Op::Carried { state } => carry::carried(c, state, &c.out(node)),
        Op::Embed { table, scale } => linear::embed(c, table, scale, &c.out(node)),
        Op::RopeTable { freq, scale, every, stretch } => {
            let turns = Turns { freq: c.vector(freq), scale, every, stretch };
            ops::rope_table(c, turns, &c.out(node));
        }
        Op::PositionScale { beta, every } => ops::position_scale(c, beta, every, &c.out(node)),
        Op::TakeOutputs { x } => take_outputs(c, c.get(x), &c.out(node)),
        Op::Concat { a, b, groups } => {
            ops::concat(c, (c.get(a), c.get(b)), groups, &c.out(node));
        }
        Op::Add { a, b } => ops::add(c, c.get(a), c.get(b), &c.out(node)),
        Op::Apply { x, f } => ops::apply(c, f, c.get(x), &c.out(node)),
        Op::Gate { gate, x, f } => ops::gate(c, f, c.get(gate), c.get(x), &c.out(node)),
        Op::RmsNorm { x, weight, group, eps } => {
            let norm = Norm { weight: c.vector(weight), group, eps };
            ops::rms_norm(c, c.get(x), norm, &c.out(node));
        }
        Op::GatedRmsNorm { x, gate, weight, group, eps, f } => {
            let norm = Norm { weight: c.vector(weight), group, eps };
            ops::gated_rms_norm(c, c.get(x), (c.get(gate), f), norm, &c.out(node));
        }
        Op::LayerNorm { x, weight, bias, eps } => {
            let weights = (c.vector(weight), c.vector(bias), eps);
            ops::layer_norm(c, c.get(x), weights, &c.out(node));
        }
        Op::UnitNorm { x, group, eps, scale } => {
            ops::unit_norm(c, c.get(x), (group, eps, scale), &c.out(node));
        }
        Op::Linear { .. }
        | Op::GroupedLinear { .. }
        | Op::ExpertsUp { .. }
        | Op::ExpertsDown { .. } => run_matrix(c, node, false),
        Op::Rope { x, table, dim, start, interleaved, inverse } => {
            let heads = RopeHeads { dim, start, interleaved, inverse };
            ops::rope(c, c.get(x), c.get(table), heads, &c.out(node));
        }
        Op::Route { .. } | Op::HyperWeights { .. } | Op::HyperIn { .. } | Op::HyperOut { .. } => {
            run_mixing(c, node, false)
        }
        Op::Attention { .. }
        | Op::Select { .. }
        | Op::Pool { .. }
        | Op::Conv { .. }
        | Op::Decay { .. }
        | Op::DeltaRule { .. }
        | Op::Ssm { .. } => run_stateful(c, node, false),
    }
}

/// Matrices: the plain twin of a product is chosen inside; `plain` is for what is beside them, and for experts one by
/// one.
fn run_matrix(c: &Context<'_>, node: usize, plain: bool) {
    let out = &c.out(node);
    let routed = |x, routing| Routed { x: c.get(x), routing: c.get(routing), node };
    match c.plan.nodes[node].op {
        Op::Linear { x, weight, bias, low_rank } => {
            linear::linear(c, c.get(x), weight, bias.map(|b| c.vector(b)), node, out);
            if let Some(l) = low_rank {
                let pairs = Pairs::new(c, l, c.plan.place(x).shape.rows);
                if plain {
                    reference::low_rank(c.get(x), pairs, out);
                } else {
                    low_rank::add(c, c.get(x), pairs, node, out);
                }
            }
        }
        Op::GroupedLinear { x, weight } => {
            linear::grouped_linear(c, c.get(x), weight, node, out);
        }
        Op::ExpertsUp { x, routing, gate, up, bias, f } => {
            let bias = bias.map(|pair| pair.map(|b| c.vector(b)));
            let weights = UpWeights { gate, up, bias, f };
            let up = if plain { experts::experts_up_one_by_one } else { experts::experts_up };
            up(c, routed(x, routing), weights, out);
        }
        Op::ExpertsDown { x, routing, down, bias } => {
            let weights = DownWeights { down, bias: bias.map(|b| c.vector(b)) };
            let down = if plain { experts::experts_down_one_by_one } else { experts::experts_down };
            down(c, routed(x, routing), weights, out);
        }
        _ => unreachable!("only matrices come here"),
    }
}

/// Routers and hyper-connections, by the plain kernels or the fast ones.
fn run_mixing(c: &Context<'_>, node: usize, plain: bool) {
    let out = &c.out(node);
    match c.plan.nodes[node].op {
        Op::Route { logits, k, scoring, bias, table, gain } => {
            let [bias, table, gain] = [bias, table, gain].map(|w| w.map(|w| c.vector(w)));
            let router = Router { k, scoring, bias, table, gain };
            let route = if plain { route::reference } else { route::route };
            route(c, c.get(logits), router, out);
        }
        Op::HyperWeights { z, scale, base, n, iters, eps } => {
            let mixing = Mixing { scale: c.vector(scale), base: c.vector(base), n, iters, eps };
            if plain {
                hyper::weights_reference(c.get(z), mixing, out);
            } else {
                hyper::weights(c, c.get(z), mixing, out);
            }
        }
        Op::HyperIn { streams, weights } => {
            let (streams, weights) = (c.get(streams), c.get(weights));
            if plain {
                hyper::mix_in_reference(streams, weights, out);
            } else {
                hyper::mix_in(c, streams, weights, out);
            }
        }
        Op::HyperOut { streams, y, weights } => {
            let args = (c.get(streams), c.get(y), c.get(weights));
            if plain {
                hyper::mix_out_reference(args, out);
            } else {
                hyper::mix_out(c, args, out);
            }
        }
        _ => unreachable!("only mixing comes here"),
    }
}

/// What reads or moves a state, by the plain kernels or the fast ones.
fn run_stateful(c: &Context<'_>, node: usize, plain: bool) {
    let (op, out) = (c.plan.nodes[node].op, &c.out(node));
    match op {
        Op::Attention { .. } => {
            let (q, spec) = c.attention(op);
            let attend = if plain { attention::reference } else { attention::attention };
            attend(c, q, spec, out);
        }
        Op::Select { .. } if plain => select::select_reference(c, c.select(op), out),
        Op::Select { .. } => select::select(c, c.select(op), node, out),
        Op::Pool { x, gate, bias, state, every, overlap } => {
            let (x, gate, bias) = (c.get(x), c.get(gate), c.vector(bias));
            let pool = if plain { select::pool_reference } else { select::pool };
            pool(c, Pooled { x, gate, bias, every, overlap }, c.state(state), out);
        }
        Op::Conv { x, taps, bias, state, f } => {
            let bias = bias.map(|b| c.vector(b));
            let args = ConvArgs { x: c.get(x), taps: c.vector(taps), bias, f };
            let conv = if plain { reference::conv } else { recurrent::conv };
            conv(c, args, c.state(state), out);
        }
        Op::Decay { x, neg_a, bias, state, f } => {
            let (neg_a, bias) = (c.vector(neg_a), c.vector(bias));
            let decay = if plain { reference::decay } else { recurrent::decay };
            decay(c, DecayArgs { x: c.get(x), neg_a, bias, f }, c.state(state), out);
        }
        Op::DeltaRule { state, .. } => {
            let (args, mem) = (c.delta(op), c.state(state));
            if plain {
                reference::delta_rule(c, args, mem, out);
            } else {
                delta::delta_rule(c, args, (mem, node), out);
            }
        }
        Op::Ssm { state, .. } => {
            let (args, mem) = (c.scan(op), c.state(state));
            if plain {
                ssm::reference(c, args, mem, out);
            } else {
                ssm::ssm(c, args, (mem, node), out);
            }
        }
        _ => unreachable!("only what has a state comes here"),
    }
}

fn run_plain(c: &Context<'_>, node: usize) {
    let op = c.plan.nodes[node].op;
    match op {
        Op::Add { a, b } => reference::add(c.get(a), c.get(b), &c.out(node)),
        Op::Apply { x, f } => reference::apply(f, c.get(x), &c.out(node)),
        Op::Gate { gate, x, f } => reference::gate(f, c.get(gate), c.get(x), &c.out(node)),
        Op::RopeTable { freq, scale, every, stretch } => {
            let turns = Turns { freq: c.vector(freq), scale, every, stretch };
            reference::rope_table(c, turns, &c.out(node));
        }
        Op::PositionScale { beta, every } => {
            reference::position_scale(c, beta, every, &c.out(node))
        }
        Op::RmsNorm { x, weight, group, eps } => {
            let norm = Norm { weight: c.vector(weight), group, eps };
            reference::rms_norm(c.get(x), norm, &c.out(node));
        }
        Op::GatedRmsNorm { x, gate, weight, group, eps, f } => {
            let norm = Norm { weight: c.vector(weight), group, eps };
            reference::gated_rms_norm(c.get(x), (c.get(gate), f), norm, &c.out(node));
        }
        Op::LayerNorm { x, weight, bias, eps } => {
            let weights = (c.vector(weight), c.vector(bias), eps);
            reference::layer_norm(c.get(x), weights, &c.out(node));
        }
        Op::UnitNorm { x, group, eps, scale } => {
            reference::unit_norm(c.get(x), (group, eps, scale), &c.out(node));
        }
        Op::Rope { x, table, dim, start, interleaved, inverse } => {
            let heads = RopeHeads { dim, start, interleaved, inverse };
            reference::rope(c.get(x), c.get(table), heads, &c.out(node));
        }
        Op::Route { .. } | Op::HyperWeights { .. } | Op::HyperIn { .. } | Op::HyperOut { .. } => {
            run_mixing(c, node, true)
        }
        Op::Attention { .. }
        | Op::Select { .. }
        | Op::Pool { .. }
        | Op::Conv { .. }
        | Op::Decay { .. }
        | Op::DeltaRule { .. }
        | Op::Ssm { .. } => run_stateful(c, node, true),
        Op::Linear { .. } | Op::ExpertsUp { .. } | Op::ExpertsDown { .. } => {
            run_matrix(c, node, true)
        }
        // Copies, and matrices.
        Op::Columns { .. }
        | Op::Concat { .. }
        | Op::TakeOutputs { .. }
        | Op::Embed { .. }
        | Op::Carried { .. }
        | Op::GroupedLinear { .. }
        | Op::WriteKv { .. }
        | Op::Carry { .. }
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
