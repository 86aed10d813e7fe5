//! The cost of one node: one line for each operation of the closed set.
//!
//! Owns the walk and what works number by number; matrices and states have files of their own.

use super::{Cost, Kind, LiveRow};
use crate::device::{Device, MatrixSpec};
use crate::dims::Axis;
use crate::op::{Id, Op};
use crate::plan::Plan;
use crate::weight::{WeightKind, WeightRef};

/// Bytes of an f32.
pub(super) const F32: u64 = 4;

/// A plan with the rows that are live.
pub(super) struct Meter<'a> {
    pub(super) plan: &'a Plan,
    pub(super) device: &'a dyn Device,
    pub(super) rows: &'a [LiveRow],
    tokens: u64,
    outputs: u64,
}

/// Only f32 operations.
pub(super) fn flops(flops: u64) -> Cost {
    Cost { flops, ..Cost::default() }
}

impl<'a> Meter<'a> {
    pub(super) fn new(plan: &'a Plan, device: &'a dyn Device, rows: &'a [LiveRow]) -> Self {
        let tokens = rows.iter().map(|row| row.tokens as u64).sum();
        let outputs = rows.iter().map(|row| row.results as u64).sum();
        Self { plan, device, rows, tokens, outputs }
    }

    pub(super) fn live(&self, axis: Axis) -> u64 {
        match axis {
            Axis::Tokens => self.tokens,
            Axis::Outputs => self.outputs,
        }
    }

    /// Live rows and columns of a tensor.
    pub(super) fn shape(&self, id: Id) -> (u64, u64) {
        self.plan.nodes[id as usize].shape.map_or((0, 0), |s| (self.live(s.rows), s.cols as u64))
    }

    /// Numbers of a tensor.
    pub(super) fn numbers(&self, id: Id) -> u64 {
        let (rows, cols) = self.shape(id);
        rows * cols
    }

    /// What a profile counts the node as.
    pub(super) fn kind(&self, node: usize) -> Kind {
        let op = self.plan.nodes[node].op;
        let matrices = op.weights().filter_map(|w| match w.kind {
            WeightKind::Matrix(spec) => Some(spec.format),
            WeightKind::Vector { .. } => None,
        });
        Kind { op: op.name(), format: matrices.last() }
    }

    /// What the node costs; nothing where no row of it is live.
    pub(super) fn node(&self, node: usize) -> Cost {
        let (op, shape) = (self.plan.nodes[node].op, self.plan.nodes[node].shape);
        let live = shape.is_none_or(|s| self.live(s.rows) > 0) && self.tokens > 0;
        if !live || !self.plan.is_launched(node) {
            return Cost::default();
        }
        let mut cost = self.work(node);
        cost.arena_bytes += self.tensors(node) * F32;
        cost.weight_bytes += vectors(op);
        cost
    }

    /// Numbers of the tensors that it reads, and of the one that it makes.
    fn tensors(&self, node: usize) -> u64 {
        let op = self.plan.nodes[node].op;
        let made = self.numbers(node as Id);
        match op {
            Op::TakeOutputs { .. } => 2 * made,
            // Into the output.
            Op::Emit { x } => 2 * self.numbers(x),
            _ => made + op.reads().map(|id| self.numbers(id)).sum::<u64>(),
        }
    }

    /// What each operation computes, and what it moves beside tensors and vectors.
    fn work(&self, node: usize) -> Cost {
        let (op, made) = (self.plan.nodes[node].op, self.numbers(node as Id));
        match op {
            // Views and copies.
            Op::Columns { .. } | Op::Concat { .. } | Op::TakeOutputs { .. } | Op::Emit { .. } => {
                Cost::default()
            }
            Op::Embed { table, scale } => self.embed(table, scale, made),
            // The angle, cosine and sine, and both times the scale.
            Op::RopeTable { .. } => flops(5 * made / 2),
            Op::PositionScale { .. } => flops(5 * made),
            Op::Add { .. } | Op::Apply { .. } => flops(made),
            Op::Gate { .. } => flops(2 * made),
            // The square, its sum; times the root, times the weight.
            Op::RmsNorm { .. } => flops(4 * made),
            Op::GatedRmsNorm { .. } => flops(6 * made),
            Op::LayerNorm { .. } => flops(7 * made),
            Op::UnitNorm { .. } => flops(3 * made),
            Op::Linear { x, weight, bias, low_rank } => {
                let mut cost = self.linear(x, weight, low_rank);
                cost.flops += bias.map_or(0, |_| made);
                cost
            }
            Op::GroupedLinear { x, weight } => self.grouped(x, weight),
            Op::Route { logits, bias, table, gain, .. } => {
                let each = 1 + [bias, gain].iter().flatten().count() as u64;
                self.route(logits, made, each, table.is_some())
            }
            Op::ExpertsUp { routing, gate, up, bias, .. } => {
                self.experts_up(routing, gate, up, bias.is_some())
            }
            Op::ExpertsDown { routing, down, bias, .. } => {
                self.experts_down(routing, down, bias.is_some())
            }
            Op::HyperWeights { z, n, iters, .. } => self.hyper_weights(z, n as u64, iters as u64),
            Op::HyperIn { streams, .. } => flops(2 * self.numbers(streams)),
            Op::HyperOut { y, .. } => self.hyper_out(node as Id, y),
            // Of a pair both numbers times cosine and sine, and two sums.
            Op::Rope { x, table, dim, .. } => {
                flops(3 * self.numbers(table) * (self.shape(x).1 / dim as u64))
            }
            Op::WriteKv { state, .. } => self.write_kv(state),
            Op::Carried { .. } => Cost { state_bytes: made * F32, ..Cost::default() },
            Op::Carry { x, .. } => Cost { state_bytes: self.numbers(x) * F32, ..Cost::default() },
            Op::Attention { .. } => self.attention(op),
            Op::Select { keys, heads, k, .. } => self.select(keys, heads, k),
            Op::Pool { state, every, overlap, .. } => {
                self.pool(state, (every, self.shape(node as Id).1), overlap)
            }
            Op::Conv { x, taps, bias, state, .. } => self.conv(x, taps, bias.is_some(), state),
            Op::Decay { x, state, .. } => self.decay(x, state),
            Op::DeltaRule { state, heads, .. } => self.delta_rule(state, heads),
            Op::Ssm { state, heads, .. } => self.ssm(state, heads),
        }
    }

    /// What a router does with each score, and with the weights that it gives: `made` weights and numbers.
    fn route(&self, logits: Id, made: u64, each: u64, looked_up: bool) -> Cost {
        let weight_bytes = if looked_up { made / 2 * F32 } else { 0 };
        Cost { weight_bytes, ..flops(each * self.numbers(logits) + made) }
    }

    /// Of each of `n` streams a product with `y`, and a multiply-add with every stream.
    fn hyper_out(&self, streams: Id, y: Id) -> Cost {
        let n = self.shape(streams).1 / self.shape(y).1.max(1);
        flops(self.numbers(streams) * (2 * n + 1))
    }

    /// Each number: scale, base, function. Of the matrix: a softmax, and sums and quotients of its rows and columns.
    fn hyper_weights(&self, z: Id, n: u64, iters: u64) -> Cost {
        let (rows, cols) = self.shape(z);
        let square = if cols == n { 0 } else { 2 * n * n * (2 * iters).saturating_sub(1) };
        flops(rows * (3 * cols + square))
    }
}

/// Bytes of the vectors that an operation reads whole.
fn vectors(op: Op) -> u64 {
    let table = match op {
        Op::Route { table, .. } => table,
        _ => None,
    };
    let bytes = |w: WeightRef| match w.kind {
        WeightKind::Vector { len } if Some(w) != table => len as u64 * F32,
        WeightKind::Vector { .. } | WeightKind::Matrix(_) => 0,
    };
    op.weights().map(bytes).sum()
}

/// The matrix that a weight is, of which recording has made sure.
pub(super) fn matrix(w: WeightRef) -> Option<MatrixSpec> {
    match w.kind {
        WeightKind::Matrix(spec) => Some(spec),
        WeightKind::Vector { .. } => None,
    }
}
