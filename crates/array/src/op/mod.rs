//! The closed set of operations: what each computes, its shape rule, and what it writes in place.
//!
//! Every operation has one line of maths here, a plain kernel in `cpu/reference.rs` that is its definition, and
//! fast kernels beside it. Adding one is adding a variant: the compiler lists the places that then miss it.

mod heads;
mod shape;

use crate::low_rank::LowRankRef;
use crate::state::StateRef;
use crate::weight::WeightRef;

pub use heads::{DeltaHeads, RopeHeads, SsmHeads};
pub use shape::{MOST_KEY, MOST_SHARED_HEADS, MOST_STREAMS, MOST_TAPS};

/// A tensor of a recorded step, by the place of the node that makes it.
pub type Id = u32;

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Map {
    /// `x * sigmoid(x)`
    Silu,
    /// `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`
    GeluTanh,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `max(x, 0)^2`
    Relu2,
    /// `x * s`
    Scale(f32),
    /// `c * tanh(x / c)`
    Softcap(f32),
}

/// What a gate does to the number beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Glu {
    /// `f(gate) * x`
    Of(Map),
    /// `silu(min(gate, limit)) * clamp(x, -limit, limit)`
    Clipped {
        /// The largest gate, and the largest size of `x`.
        limit: f32,
    },
    /// `g * sigmoid(alpha * g) * (clamp(x, -limit, limit) + 1)` with `g = min(gate, limit)`
    Shifted {
        /// The largest gate, and the largest size of `x`.
        limit: f32,
        /// Slope of the sigmoid.
        alpha: f32,
    },
}

impl From<Map> for Glu {
    fn from(f: Map) -> Self {
        Self::Of(f)
    }
}

/// A router's score of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// `sqrt(ln(1 + exp(x)))`
    SqrtSoftplus,
}

/// Experts stand in `count` equal groups; the `keep` groups whose two best experts have the largest sum are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many.
    pub count: usize,
    /// Groups that are looked at.
    pub keep: usize,
}

/// How expert weights come from router logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring {
    /// What a logit becomes.
    pub score: Score,
    /// Only the best groups are looked at.
    pub groups: Option<Groups>,
    /// Divide the chosen weights by their sum plus 1e-20.
    pub renormalize: bool,
    /// Factor on the weights, at the end.
    pub scale: f32,
}

impl Scoring {
    /// Softmax over all experts, the best ones divided by their sum if `renormalize`.
    pub const fn softmax(renormalize: bool) -> Self {
        Self { score: Score::Softmax, groups: None, renormalize, scale: 1.0 }
    }
}

/// How frequencies of a [`Op::RopeTable`] change with a row's stretch, the number that its
/// [`RowInput`](crate::RowInput) carries from its first token to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// They don't.
    None,
    /// Frequency `i` of `n` is times `stretch^(-2i / (2n - 2))`, in f64.
    Power,
    /// There are two sets of frequencies; a stretch above 1 takes the second.
    Choice,
}

/// Where attention finds its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// In a state of their own.
    Of(StateRef),
    /// They are the first `dim` numbers of each key.
    Keys {
        /// Numbers of a value head.
        dim: usize,
    },
}

/// The only keys that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// `[T, n]`: numbers of units in rising order as the bits of u32, then `u32::MAX`: what [`Op::Select`] makes.
    pub list: Id,
    /// Positions of a unit. Those after the last whole unit are always seen.
    pub every: usize,
}

/// How the number under a decay's exponent comes about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DecayCurve {
    /// `neg_a * softplus(x + bias)`
    Softplus,
    /// `low * sigmoid(-neg_a * (x + bias))`; `low` is below 0.
    Bounded {
        /// The lowest.
        low: f32,
    },
}

/// Positions after which the running sum of a [`Op::Decay`] starts again.
pub const SUM_BLOCK: usize = 64;

/// One operation. `T` is the number of live tokens, `O` of wanted results; all tensors are `[T or O, cols]`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are the letters of the maths above them
pub enum Op {
    // --- sources
    /// `table[ids[t]] * scale -> [T, cols of table]`
    Embed { table: WeightRef, scale: f32 },
    /// `cos, sin of p * freq[i] -> [T, 2 * len]`: all cosines, then all sines, both times `scale`; `p` is `positions[t]`
    /// rounded down to a multiple of `every`.
    RopeTable { freq: WeightRef, scale: f32, every: usize, stretch: Stretch },
    /// `1 + beta * ln(1 + floor(positions[t] / every)) -> [T, 1]`
    PositionScale { beta: f32, every: usize },
    /// What earlier tokens have left, `state[carried[row] + i]` for token `i` of its row -> `[T, cols of state]`.
    Carried { state: StateRef },

    // --- views and rows
    /// `x[:, start..start + cols]`, no copy.
    Columns { x: Id, start: usize, cols: usize },
    /// Both tensors cut into `groups` pieces, and the pieces side by side: `a_0 | b_0 | a_1 | b_1 ..`
    Concat { a: Id, b: Id, groups: usize },
    /// The rows whose results are wanted: `[T, c] -> [O, c]`.
    TakeOutputs { x: Id },

    // --- element by element
    /// `a + b`
    Add { a: Id, b: Id },
    /// `f(x)`
    Apply { x: Id, f: Map },
    /// `f(gate, x)`, in the plain case `f(gate) * x`; a gate of one column serves the whole row.
    Gate { gate: Id, x: Id, f: Glu },

    // --- norms, each over groups of `group` columns; a weight may hold several groups
    /// `x / sqrt(mean x^2 + eps) * weight`
    RmsNorm { x: Id, weight: WeightRef, group: usize, eps: f32 },
    /// `x / sqrt(mean x^2 + eps) * weight * f(gate)`
    GatedRmsNorm { x: Id, gate: Id, weight: WeightRef, group: usize, eps: f32, f: Map },
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`, over groups as wide as the weight.
    LayerNorm { x: Id, weight: WeightRef, bias: WeightRef, eps: f32 },
    /// `x / sqrt(sum x^2 + eps) * scale`
    UnitNorm { x: Id, group: usize, eps: f32, scale: f32 },

    // --- matrices
    /// `x W^T (+ bias) -> [_, rows of W]`. With `low_rank`, `B_a (A_a x)` is added to what rows of adapter `a` have;
    /// nothing is touched where `a` is 0 or its slot is empty.
    Linear { x: Id, weight: WeightRef, bias: Option<WeightRef>, low_rank: Option<LowRankRef> },
    /// Group `g` of the columns by matrix `g` of a stack -> `[_, groups * rows]`
    GroupedLinear { x: Id, weight: WeightRef },
    /// The `k` experts a token -> `[T, 2k]`: their weights, then their numbers. The best by score plus `bias`, best
    /// first; or those that `table [ids, k]` has for the token's id. Weights are scores, without `bias`; at the end
    /// times `gain[e]` of the expert.
    Route {
        logits: Id,
        k: usize,
        scoring: Scoring,
        bias: Option<WeightRef>,
        table: Option<WeightRef>,
        gain: Option<WeightRef>,
    },
    /// `f(x G_e^T, x U_e^T)` for each routed expert `e`, in rank order -> `[T, k * rows of U]`; `bias` (of gate, of up)
    /// `[experts, rows]` is added before `f`. Without a gate, `f` is that of `x U_e^T` alone.
    ExpertsUp {
        x: Id,
        routing: Id,
        gate: Option<WeightRef>,
        up: WeightRef,
        bias: Option<[WeightRef; 2]>,
        f: Glu,
    },
    /// `sum over ranks of weight * (x_rank D_e^T + bias_e) -> [T, rows of D]`, summed in rank order.
    ExpertsDown { x: Id, routing: Id, down: WeightRef, bias: Option<WeightRef> },

    // --- hyper-connections: `n` residual streams side by side, `[T, n * H]`
    /// From `z = [pre n | post n | comb n x n]`: `sigmoid(z s_0 + base) + eps`, `2 sigmoid(z s_1 + base)`, and
    /// `softmax over each row of (z s_2 + base), plus eps`, whose columns, then `iters - 1` times rows and columns, are
    /// divided by their sums plus `eps`. With `n` columns and one scale only `pre`.
    HyperWeights { z: Id, scale: WeightRef, base: WeightRef, n: usize, iters: usize, eps: f32 },
    /// `sum over i of weights[i] * stream_i -> [T, H]`
    HyperIn { streams: Id, weights: Id },
    /// Stream `k` becomes `post[k] * y + sum over j of comb[j, k] * stream_j`; weights are `[post n | comb n x n]`.
    HyperOut { streams: Id, y: Id, weights: Id },

    // --- positions
    /// Rotates `2 * pairs` columns from `start` on of each head of `dim` by a [`Op::RopeTable`], backwards if `inverse`;
    /// pairs are `(i, i + pairs)`, or `(2i, 2i + 1)` if `interleaved`.
    Rope { x: Id, table: Id, dim: usize, start: usize, interleaved: bool, inverse: bool },

    // --- state, in place; a log has `x`, `x | gate` (pool), `k | v | decay | beta` (delta rule) or `x | b | dt` (scan)
    /// Writes row `t` to its position's place in paged `state`. Where a state has an entry for each `every` tokens, the
    /// last of them writes it.
    WriteKv { x: Id, state: StateRef },
    /// Leaves row `t` to later steps: `state[t] = x[t]`.
    Carry { x: Id, state: StateRef },
    /// Softmax attention of `heads` query heads over the row's positions up to its own, at most `window` of them; with
    /// `entries`, also over the entries of whole groups of tokens up to its own, which are their own values. `chosen`
    /// leaves only these entries, or without entries only these positions. A sink is one more score without a value.
    Attention {
        q: Id,
        keys: StateRef,
        values: Values,
        heads: usize,
        scale: f32,
        window: Option<usize>,
        softcap: Option<f32>,
        sinks: Option<WeightRef>,
        entries: Option<StateRef>,
        chosen: Option<Chosen>,
    },
    /// The `k` entries with the best `sum over heads of weights[h] * relu(scale * q_h . key)`, of those of whole groups
    /// of tokens up to the own, in rising order as the bits of u32; then `u32::MAX`. Of equals the first.
    Select { q: Id, weights: Id, keys: StateRef, heads: usize, k: usize, scale: f32 },
    /// At each last token of `every`: per column the sum over the group of `softmax(gate + bias) * x`; elsewhere 0.
    /// `bias` is `[every, cols]`. With `overlap`, columns are two halves: the first of the group before (nothing for the
    /// first group) and the second of this one share one softmax. The state holds the open group's `x`, then its
    /// `gate`, each `[every, cols]`; then the first halves of the group before alike.
    Pool { x: Id, gate: Id, bias: WeightRef, state: StateRef, every: usize, overlap: bool },
    /// Causal depthwise convolution over each row's tokens, plus `bias`, then `f`: silu, or `Scale(1.0)` for nothing;
    /// `taps` is `[K, cols]`, oldest first. The state holds the last `K - 1` inputs.
    Conv { x: Id, taps: WeightRef, bias: Option<WeightRef>, state: StateRef, f: Map },
    /// `exp(c[t] - c[t-1])`, a decay in (0, 1] -> `[T, cols]`, where `c` is the running sum of a [`DecayCurve`] since
    /// the last position that is a multiple of [`SUM_BLOCK`], added in f64 and rounded to f32. The state holds it as
    /// `[cols, 2]`, f32 and remainder, its form after each token. So decays from token to token and over a stretch of a
    /// block are differences of the same numbers.
    Decay { x: Id, neg_a: WeightRef, bias: WeightRef, state: StateRef, f: DecayCurve },
    /// Gated delta rule, one token after the other: `M *= g; d = beta (v - M^T k); M += k d^T; y = M^T q`. State
    /// `[hv, dk, dv]`; value head `h` uses key head `h / (hv / hk)`. `g` is a number a value head, or `dk` of them, one
    /// for each row of `M`.
    DeltaRule { q: Id, k: Id, v: Id, decay: Id, beta: Id, state: StateRef, heads: DeltaHeads },
    /// Selective scan (Mamba 2), one token after the other: `d = clamp(softplus(dt + bias), low, high)`,
    /// `M = exp(d neg_a) M + d b x^T`, `y = M^T c + skip x`. State `[heads, state, dim]`; head `h` uses `b` and `c` of
    /// group `h / (heads / groups)`.
    Ssm {
        x: Id,
        b: Id,
        c: Id,
        dt: Id,
        neg_a: WeightRef,
        bias: WeightRef,
        skip: WeightRef,
        low: f32,
        high: f32,
        state: StateRef,
        heads: SsmHeads,
    },

    // --- out
    /// Makes `x` the result of the step.
    Emit { x: Id },
}

/// What an operation does besides making a tensor. Effects are roots: they happen in their step, read or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None: dead if nobody reads its tensor.
    Pure,
    /// Writes a state in place.
    Writes(StateRef),
    /// Hands a result to the host.
    Emits,
}

impl Op {
    /// The name in messages and profiles.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Embed { .. } => "embed",
            Self::RopeTable { .. } => "rope_table",
            Self::PositionScale { .. } => "position_scale",
            Self::Carried { .. } => "carried",
            Self::Columns { .. } => "columns",
            Self::Concat { .. } => "concat",
            Self::TakeOutputs { .. } => "take_outputs",
            Self::Add { .. } => "add",
            Self::Apply { .. } => "apply",
            Self::Gate { .. } => "gate",
            Self::RmsNorm { .. } => "rms_norm",
            Self::GatedRmsNorm { .. } => "gated_rms_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::UnitNorm { .. } => "unit_norm",
            Self::Linear { .. } => "linear",
            Self::GroupedLinear { .. } => "grouped_linear",
            Self::Route { .. } => "route",
            Self::ExpertsUp { .. } => "experts_up",
            Self::ExpertsDown { .. } => "experts_down",
            Self::HyperWeights { .. } => "hyper_weights",
            Self::HyperIn { .. } => "hyper_in",
            Self::HyperOut { .. } => "hyper_out",
            Self::Rope { .. } => "rope",
            Self::WriteKv { .. } => "write_kv",
            Self::Carry { .. } => "carry",
            Self::Attention { .. } => "attention",
            Self::Select { .. } => "select",
            Self::Pool { .. } => "pool",
            Self::Conv { .. } => "conv",
            Self::Decay { .. } => "decay",
            Self::DeltaRule { .. } => "delta_rule",
            Self::Ssm { .. } => "ssm",
            Self::Emit { .. } => "emit",
        }
    }

    /// The tensors it reads.
    pub fn reads(&self) -> impl Iterator<Item = Id> {
        let mut ids = [None; 5];
        let mut op = *self;
        let mut n = 0;
        op.each_read(|id| {
            ids[n] = Some(*id);
            n += 1;
        });
        ids.into_iter().flatten()
    }

    /// Visits the tensors it reads, so that they can be renamed.
    pub(crate) fn each_read(&mut self, mut f: impl FnMut(&mut Id)) {
        match self {
            Self::Embed { .. }
            | Self::RopeTable { .. }
            | Self::PositionScale { .. }
            | Self::Carried { .. } => {}
            Self::Columns { x, .. }
            | Self::TakeOutputs { x }
            | Self::Apply { x, .. }
            | Self::RmsNorm { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::UnitNorm { x, .. }
            | Self::Linear { x, .. }
            | Self::GroupedLinear { x, .. }
            | Self::Route { logits: x, .. }
            | Self::HyperWeights { z: x, .. }
            | Self::WriteKv { x, .. }
            | Self::Carry { x, .. }
            | Self::Conv { x, .. }
            | Self::Decay { x, .. }
            | Self::Emit { x } => f(x),
            Self::Attention { q, chosen, .. } => {
                f(q);
                chosen.iter_mut().for_each(|c| f(&mut c.list));
            }
            Self::Add { a, b }
            | Self::Concat { a, b, .. }
            | Self::Gate { gate: a, x: b, .. }
            | Self::GatedRmsNorm { gate: a, x: b, .. }
            | Self::ExpertsUp { routing: a, x: b, .. }
            | Self::ExpertsDown { routing: a, x: b, .. }
            | Self::HyperIn { streams: a, weights: b }
            | Self::Select { q: a, weights: b, .. }
            | Self::Pool { x: a, gate: b, .. }
            | Self::Rope { table: a, x: b, .. } => [a, b].into_iter().for_each(f),
            Self::HyperOut { streams, y, weights } => [streams, y, weights].into_iter().for_each(f),
            Self::Ssm { x, b, c, dt, .. } => [x, b, c, dt].into_iter().for_each(f),
            Self::DeltaRule { q, k, v, decay, beta, .. } => {
                [q, k, v, decay, beta].into_iter().for_each(f);
            }
        }
    }

    /// The weights it reads.
    pub fn weights(&self) -> impl Iterator<Item = WeightRef> {
        let refs = match *self {
            Self::Embed { table: w, .. }
            | Self::RopeTable { freq: w, .. }
            | Self::RmsNorm { weight: w, .. }
            | Self::GatedRmsNorm { weight: w, .. }
            | Self::GroupedLinear { weight: w, .. }
            | Self::Pool { bias: w, .. } => [Some(w), None, None, None],
            Self::Linear { weight: w, bias, .. }
            | Self::ExpertsDown { down: w, bias, .. }
            | Self::Conv { taps: w, bias, .. } => [Some(w), bias, None, None],
            Self::Route { bias, table, gain, .. } => [bias, table, gain, None],
            Self::Attention { sinks, .. } => [sinks, None, None, None],
            Self::ExpertsUp { gate, up, bias, .. } => {
                [gate, Some(up), bias.map(|b| b[0]), bias.map(|b| b[1])]
            }
            Self::LayerNorm { weight: a, bias: b, .. }
            | Self::HyperWeights { scale: a, base: b, .. }
            | Self::Decay { neg_a: a, bias: b, .. } => [Some(a), Some(b), None, None],
            Self::Ssm { neg_a, bias, skip, .. } => [Some(neg_a), Some(bias), Some(skip), None],
            _ => [None; 4],
        };
        refs.into_iter().flatten()
    }

    /// The low-rank matrices it reads.
    pub const fn low_rank(&self) -> Option<LowRankRef> {
        match *self {
            Self::Linear { low_rank, .. } => low_rank,
            _ => None,
        }
    }

    /// The states it reads or writes.
    pub fn states(&self) -> impl Iterator<Item = StateRef> {
        let refs = match *self {
            Self::Attention { keys, values, entries, .. } => {
                let values = match values {
                    Values::Of(values) => Some(values),
                    Values::Keys { .. } => None,
                };
                [Some(keys), values, entries]
            }
            Self::Select { keys: state, .. } | Self::Carried { state } => [Some(state), None, None],
            other => match other.effect() {
                Effect::Writes(state) => [Some(state), None, None],
                Effect::Pure | Effect::Emits => [None; 3],
            },
        };
        refs.into_iter().flatten()
    }

    /// What it does besides making a tensor.
    pub const fn effect(&self) -> Effect {
        match *self {
            Self::WriteKv { state, .. }
            | Self::Carry { state, .. }
            | Self::Pool { state, .. }
            | Self::Conv { state, .. }
            | Self::Decay { state, .. }
            | Self::DeltaRule { state, .. }
            | Self::Ssm { state, .. } => Effect::Writes(state),
            Self::Emit { .. } => Effect::Emits,
            _ => Effect::Pure,
        }
    }
}
