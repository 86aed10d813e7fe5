//! What can be done with a tensor inside of its step: one method an operation.
//!
//! Owns the arguments as models write them. A method checks nothing itself: the shape rules do.

use super::{Step, Tensor, Version};
use crate::low_rank::LowRank;
use crate::op::{
    Chosen, DecayCurve, DeltaHeads, Glu, Map, Op, RopeHeads, Scoring, SsmHeads, Values,
};
use crate::weight::Weight;

/// What attention needs to know besides its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// The most positions a query sees, itself included.
    pub window: Option<usize>,
    /// Scores become `c * tanh(score / c)`.
    pub softcap: Option<f32>,
}

impl<'s> Tensor<'s> {
    /// The step that it belongs to.
    pub fn step(self) -> Step<'s> {
        self.step
    }

    /// Numbers in a row.
    pub fn cols(self) -> usize {
        self.step.recording.borrow().shape(self.id).cols
    }

    /// Columns `start..start + cols`, without a copy.
    #[track_caller]
    pub fn columns(self, start: usize, cols: usize) -> Self {
        self.step.push(Op::Columns { x: self.id, start, cols })
    }

    /// Consecutive columns of these widths.
    #[track_caller]
    pub fn split<const N: usize>(self, widths: [usize; N]) -> [Self; N] {
        let mut start = 0;
        let mut parts = [self; N];
        for (part, width) in parts.iter_mut().zip(widths) {
            *part = self.columns(start, width);
            start += width;
        }
        parts
    }

    /// The rows whose results are wanted: `[T, c] -> [O, c]`.
    #[track_caller]
    pub fn take_outputs(self) -> Self {
        self.step.push(Op::TakeOutputs { x: self.id })
    }

    /// `f(x)`
    #[track_caller]
    pub fn apply(self, f: Map) -> Self {
        self.step.push(Op::Apply { x: self.id, f })
    }

    /// `f(gate, self)`, in the plain case `f(gate) * self`; a gate of one column serves the whole row.
    #[track_caller]
    pub fn gated(self, gate: Self, f: impl Into<Glu>) -> Self {
        self.step.push(Op::Gate { gate: gate.id, x: self.id, f: f.into() })
    }

    /// This tensor and `other` cut into `groups` pieces, and the pieces side by side: `a_0 | b_0 | a_1 | b_1 ..`
    #[track_caller]
    pub fn concat(self, other: Self, groups: usize) -> Self {
        self.step.push(Op::Concat { a: self.id, b: other.id, groups })
    }

    /// RMS norm over groups; `weight` is as wide as one, or as several that follow each other.
    #[track_caller]
    pub fn rms_norm(self, weight: &Weight, group: usize, eps: f32) -> Self {
        self.step.push(Op::RmsNorm { x: self.id, weight: weight.r, group, eps })
    }

    /// RMS norm over groups, then times `f(gate)`.
    #[track_caller]
    pub fn gated_rms_norm(
        self,
        gate: Self,
        weight: &Weight,
        group: usize,
        eps: f32,
        f: Map,
    ) -> Self {
        let (x, gate) = (self.id, gate.id);
        self.step.push(Op::GatedRmsNorm { x, gate, weight: weight.r, group, eps, f })
    }

    /// Mean 0 and variance 1 over groups as wide as `weight`, times `weight`, plus `bias`.
    #[track_caller]
    pub fn layer_norm(self, weight: &Weight, bias: &Weight, eps: f32) -> Self {
        self.step.push(Op::LayerNorm { x: self.id, weight: weight.r, bias: bias.r, eps })
    }

    /// Each group divided by its length, times `scale`.
    #[track_caller]
    pub fn unit_norm(self, group: usize, eps: f32, scale: f32) -> Self {
        self.step.push(Op::UnitNorm { x: self.id, group, eps, scale })
    }

    /// `x W^T (+ bias)`
    #[track_caller]
    pub fn linear(self, weight: &Weight, bias: Option<&Weight>) -> Self {
        let (x, weight, bias) = (self.id, weight.r, bias.map(|b| b.r));
        self.step.push(Op::Linear { x, weight, bias, low_rank: None })
    }

    /// `x W^T (+ bias)`, and for each row what the adapter that it names has in `low_rank`.
    #[track_caller]
    pub fn linear_beside(self, weight: &Weight, bias: Option<&Weight>, low_rank: &LowRank) -> Self {
        let (x, weight, bias) = (self.id, weight.r, bias.map(|b| b.r));
        self.step.push(Op::Linear { x, weight, bias, low_rank: Some(low_rank.r) })
    }

    /// Group `g` of the columns by matrix `g` of the stack `weight`.
    #[track_caller]
    pub fn grouped_linear(self, weight: &Weight) -> Self {
        self.step.push(Op::GroupedLinear { x: self.id, weight: weight.r })
    }

    /// Of router logits `[T, experts]`: the `k` best, weights then numbers, `[T, 2k]`.
    #[track_caller]
    pub fn route(self, k: usize, scoring: Scoring) -> Self {
        self.push_route(k, scoring, [None; 3])
    }

    /// The same, the best by score plus `bias [experts]`.
    #[track_caller]
    pub fn route_with(self, k: usize, scoring: Scoring, bias: &Weight) -> Self {
        self.push_route(k, scoring, [Some(bias), None, None])
    }

    /// The same, but the experts are those that `table [ids, k]` has for the token's id.
    #[track_caller]
    pub fn route_by_id(self, k: usize, scoring: Scoring, table: &Weight) -> Self {
        self.push_route(k, scoring, [None, Some(table), None])
    }

    /// The same, each expert's weight times its `gain [experts]` at the end.
    #[track_caller]
    pub fn route_with_gain(self, k: usize, scoring: Scoring, gain: &Weight) -> Self {
        self.push_route(k, scoring, [None, None, Some(gain)])
    }

    #[track_caller]
    fn push_route(self, k: usize, scoring: Scoring, weights: [Option<&Weight>; 3]) -> Self {
        let [bias, table, gain] = weights.map(|w| w.map(|w| w.r));
        self.step.push(Op::Route { logits: self.id, k, scoring, bias, table, gain })
    }

    /// The hidden activations of the routed experts, `[T, k * I]`.
    #[track_caller]
    pub fn experts_up(self, routing: Self, up: ExpertsUp<'_>) -> Self {
        let (x, routing, f) = (self.id, routing.id, up.f);
        let bias = up.bias.map(|[gate, up]| [gate.r, up.r]);
        let (gate, up) = (up.gate.map(|g| g.r), up.up.r);
        self.step.push(Op::ExpertsUp { x, routing, gate, up, bias, f })
    }

    /// The weighted sum of the routed experts' outputs, `[T, k * I] -> [T, H]`; `bias` is `[experts, H]`.
    #[track_caller]
    pub fn experts_down(self, routing: Self, down: &Weight, bias: Option<&Weight>) -> Self {
        let (x, routing, bias) = (self.id, routing.id, bias.map(|b| b.r));
        self.step.push(Op::ExpertsDown { x, routing, down: down.r, bias })
    }

    /// The weights of hyper-connections of `n` streams, see [`Op::HyperWeights`].
    #[track_caller]
    pub fn hyper_weights(
        self,
        scale: &Weight,
        base: &Weight,
        n: usize,
        (iters, eps): (usize, f32),
    ) -> Self {
        let (scale, base) = (scale.r, base.r);
        self.step.push(Op::HyperWeights { z: self.id, scale, base, n, iters, eps })
    }

    /// The weighted sum of these streams: `[T, n * H]` and `[T, n]` give `[T, H]`.
    #[track_caller]
    pub fn hyper_in(self, weights: Self) -> Self {
        self.step.push(Op::HyperIn { streams: self.id, weights: weights.id })
    }

    /// These streams mixed, and `y` added to each as `weights [T, n + n * n]` say.
    #[track_caller]
    pub fn hyper_out(self, y: Self, weights: Self) -> Self {
        let (y, weights) = (y.id, weights.id);
        self.step.push(Op::HyperOut { streams: self.id, y, weights })
    }

    /// Rotary positions on the first columns of each head of `dim`, from [`Param::rope_table`](super::Param::rope_table).
    #[track_caller]
    pub fn rope(self, table: Self, dim: usize, interleaved: bool) -> Self {
        self.rope_at(table, RopeHeads { dim, start: 0, interleaved, inverse: false })
    }

    /// Rotary positions on any columns of each head, in any direction.
    #[track_caller]
    pub fn rope_at(self, table: Self, heads: RopeHeads) -> Self {
        let RopeHeads { dim, start, interleaved, inverse } = heads;
        let (x, table) = (self.id, table.id);
        self.step.push(Op::Rope { x, table, dim, start, interleaved, inverse })
    }

    /// Attention of these queries, `[T, heads * dim] -> [T, heads * dim of values]`.
    #[track_caller]
    pub fn attend(self, keys: &Version<'s>, values: &Version<'s>, spec: AttentionSpec) -> Self {
        self.attend_to(Seen::new(keys, values), spec)
    }

    /// Attention with all that a model may add to it, see [`Seen`].
    #[track_caller]
    pub fn attend_to(self, seen: Seen<'_, 's>, spec: AttentionSpec) -> Self {
        let AttentionSpec { heads, scale, window, softcap } = spec;
        let values = match seen.values {
            SeenValues::Of(values) => Values::Of(values.state),
            SeenValues::Keys(dim) => Values::Keys { dim },
        };
        self.step.push(Op::Attention {
            q: self.id,
            keys: seen.keys.state,
            values,
            heads,
            scale,
            window,
            softcap,
            sinks: seen.sinks.map(|w| w.r),
            entries: seen.entries.map(|e| e.state),
            chosen: seen.chosen.map(|c| Chosen { list: c.list.id, every: c.every }),
        })
    }

    /// The `k` entries of `keys` that these indexer queries (`heads`, `[T, heads * dim]`, with `weights [T, heads]`)
    /// score best.
    #[track_caller]
    pub fn select(
        self,
        weights: Self,
        keys: &Version<'s>,
        (heads, k, scale): (usize, usize, f32),
    ) -> Choice<'s> {
        let (every, keys) = (keys.state.every, keys.state);
        let op = Op::Select { q: self.id, weights: weights.id, keys, heads, k, scale };
        Choice { list: self.step.push(op), every }
    }

    /// Of each group of `every` tokens one row, at its last token; `bias` is `[every, cols]`. See [`Op::Pool`].
    #[track_caller]
    pub fn pool(
        self,
        gate: Self,
        bias: &Weight,
        open: Version<'s>,
        (every, overlap): (usize, bool),
    ) -> (Self, Version<'s>) {
        let (x, gate, bias) = (self.id, gate.id, bias.r);
        (self.step.push(Op::Pool { x, gate, bias, state: open.state, every, overlap }), open)
    }

    /// Causal depthwise convolution, then `f` (silu or `Scale(1.0)`); moves the row's window forward.
    #[track_caller]
    pub fn conv(
        self,
        taps: &Weight,
        bias: Option<&Weight>,
        window: Version<'s>,
        f: Map,
    ) -> (Self, Version<'s>) {
        let bias = bias.map(|b| b.r);
        let op = Op::Conv { x: self.id, taps: taps.r, bias, state: window.state, f };
        (self.step.push(op), window)
    }

    /// The decays of a delta rule, from running sums of `f`, which move forward.
    #[track_caller]
    pub fn decay(
        self,
        neg_a: &Weight,
        bias: &Weight,
        sums: Version<'s>,
        f: DecayCurve,
    ) -> (Self, Version<'s>) {
        let (x, neg_a, bias) = (self.id, neg_a.r, bias.r);
        (self.step.push(Op::Decay { x, neg_a, bias, state: sums.state, f }), sums)
    }
}

/// The matrices of experts on the way in; biases are `[experts, rows]`, of gate and of up.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct ExpertsUp<'a> {
    pub gate: Option<&'a Weight>,
    pub up: &'a Weight,
    pub bias: Option<[&'a Weight; 2]>,
    pub f: Glu,
}

impl<'a> ExpertsUp<'a> {
    /// Gated experts without biases.
    pub fn gated(gate: &'a Weight, up: &'a Weight, f: impl Into<Glu>) -> Self {
        Self { gate: Some(gate), up, bias: None, f: f.into() }
    }
}

/// The units of positions that an indexer has chosen, [`Op::Select`].
#[derive(Clone, Copy)]
pub struct Choice<'s> {
    list: Tensor<'s>,
    every: usize,
}

impl<'s> Choice<'s> {
    /// Their numbers in rising order as the bits of u32, then `u32::MAX`: `[T, k]`.
    pub fn list(self) -> Tensor<'s> {
        self.list
    }
}

/// What queries look at.
#[derive(Clone, Copy)]
pub struct Seen<'a, 's> {
    /// One key a token.
    pub keys: &'a Version<'s>,
    /// Their values.
    pub values: SeenValues<'a, 's>,
    /// Keys that are their own values, one for each few tokens.
    pub entries: Option<&'a Version<'s>>,
    /// Only these entries are seen; without entries, only these positions.
    pub chosen: Option<Choice<'s>>,
    /// A score without a value for each head, `[heads]`.
    pub sinks: Option<&'a Weight>,
}

/// Where values are.
#[derive(Clone, Copy)]
pub enum SeenValues<'a, 's> {
    /// In a state of their own.
    Of(&'a Version<'s>),
    /// The first so many numbers of each key.
    Keys(usize),
}

impl<'a, 's> Seen<'a, 's> {
    /// Keys and values.
    pub fn new(keys: &'a Version<'s>, values: &'a Version<'s>) -> Self {
        let values = SeenValues::Of(values);
        Self { keys, values, entries: None, chosen: None, sinks: None }
    }

    /// Keys whose first `dim` numbers are their values.
    pub fn latent(keys: &'a Version<'s>, dim: usize) -> Self {
        let values = SeenValues::Keys(dim);
        Self { keys, values, entries: None, chosen: None, sinks: None }
    }
}

/// The arguments of a delta rule, each `[T, _]`.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Delta<'s> {
    pub q: Tensor<'s>,
    pub k: Tensor<'s>,
    pub v: Tensor<'s>,
    pub decay: Tensor<'s>,
    pub beta: Tensor<'s>,
}

impl<'s> Delta<'s> {
    /// Runs the gated delta rule over each row's tokens, `-> [T, hv * dv]`; moves `memory` forward.
    #[track_caller]
    pub fn rule(self, heads: DeltaHeads, memory: Version<'s>) -> (Tensor<'s>, Version<'s>) {
        let [q, k, v, decay, beta] = [self.q, self.k, self.v, self.decay, self.beta].map(|t| t.id);
        let op = Op::DeltaRule { q, k, v, decay, beta, state: memory.state, heads };
        (self.q.step.push(op), memory)
    }
}

/// The arguments of a selective scan, see [`Op::Ssm`].
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Scan<'a, 's> {
    pub x: Tensor<'s>,
    pub b: Tensor<'s>,
    pub c: Tensor<'s>,
    pub dt: Tensor<'s>,
    pub neg_a: &'a Weight,
    pub bias: &'a Weight,
    pub skip: &'a Weight,
    /// The least and the most that a step may be.
    pub limits: (f32, f32),
}

impl<'s> Scan<'_, 's> {
    /// Runs the scan over each row's tokens, `-> [T, heads * dim]`; moves `memory` forward.
    #[track_caller]
    pub fn run(self, heads: SsmHeads, memory: Version<'s>) -> (Tensor<'s>, Version<'s>) {
        let [x, b, c, dt] = [self.x, self.b, self.c, self.dt].map(|t| t.id);
        let [neg_a, bias, skip] = [self.neg_a, self.bias, self.skip].map(|w| w.r);
        let ((low, high), state) = (self.limits, memory.state);
        let op = Op::Ssm { x, b, c, dt, neg_a, bias, skip, low, high, state, heads };
        (self.x.step.push(op), memory)
    }
}
