//! The closed set of operations: what each computes, its shape rule, and what it writes in place.
//!
//! Every operation has one line of maths here, a plain kernel in `cpu/reference.rs` that is its definition, and
//! fast kernels beside it. Adding one is adding a variant: the compiler lists the places that then miss it.

use crate::dims::{Axis, Shape};
use crate::state::{StateKind, StateRef};
use crate::weight::{WeightKind, WeightRef};

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
    /// `x * s`
    Scale(f32),
    /// `c * tanh(x / c)`
    Softcap(f32),
}

/// How expert weights come from router logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts, the `k` best, divided by their sum if `renormalize`.
    Softmax {
        /// Divide the chosen weights by their sum.
        renormalize: bool,
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
    /// `cos, sin of positions[t] * freq[i] -> [T, 2 * len]`: all cosines, then all sines, both times `scale`.
    RopeTable { freq: WeightRef, scale: f32 },

    // --- views and rows
    /// `x[:, start..start + cols]`, no copy.
    Columns { x: Id, start: usize, cols: usize },
    /// The rows whose results are wanted: `[T, c] -> [O, c]`.
    TakeOutputs { x: Id },

    // --- element by element
    /// `a + b`
    Add { a: Id, b: Id },
    /// `f(x)`
    Apply { x: Id, f: Map },
    /// `f(gate) * x`; a gate of one column serves the whole row.
    Gate { gate: Id, x: Id, f: Map },

    // --- norms, each over groups of `group` columns
    /// `x / sqrt(mean x^2 + eps) * weight`
    RmsNorm { x: Id, weight: WeightRef, group: usize, eps: f32 },
    /// `x / sqrt(mean x^2 + eps) * weight * silu(gate)`
    GatedRmsNorm { x: Id, gate: Id, weight: WeightRef, group: usize, eps: f32 },
    /// `x / sqrt(sum x^2 + eps) * scale`
    UnitNorm { x: Id, group: usize, eps: f32, scale: f32 },

    // --- matrices
    /// `x W^T (+ bias) -> [_, rows of W]`
    Linear { x: Id, weight: WeightRef, bias: Option<WeightRef> },
    /// The `k` best experts a token -> `[T, 2k]`: their weights, then their numbers.
    Route { logits: Id, k: usize, scoring: Scoring },
    /// `f(x G_e^T) * (x U_e^T)` for each routed expert `e`, in rank order -> `[T, k * rows of G]`
    ExpertsUp { x: Id, routing: Id, gate: WeightRef, up: WeightRef, f: Map },
    /// `sum over ranks of weight * (x_rank D_e^T) -> [T, rows of D]`, summed in rank order.
    ExpertsDown { x: Id, routing: Id, down: WeightRef },

    // --- positions
    /// Rotates the first `2 * pairs` columns of each head of `dim` by a [`Op::RopeTable`]; pairs are `(i, i + pairs)`,
    /// or `(2i, 2i + 1)` if `interleaved`.
    Rope { x: Id, table: Id, dim: usize, interleaved: bool },

    // --- state, in place
    /// Writes row `t` to its position's place in paged `state`.
    WriteKv { x: Id, state: StateRef },
    /// Softmax attention of `heads` query heads over the row's positions up to its own, at most `window` of them.
    Attention {
        q: Id,
        keys: StateRef,
        values: StateRef,
        heads: usize,
        scale: f32,
        window: Option<usize>,
        softcap: Option<f32>,
    },
    /// Causal depthwise convolution over each row's tokens, then `f`: silu, or `Scale(1.0)` for nothing; `taps` is
    /// `[K, cols]`, oldest first. The state holds the last `K - 1` inputs.
    Conv { x: Id, taps: WeightRef, state: StateRef, f: Map },
    /// `exp(c[t] - c[t-1])`, a decay in (0, 1] -> `[T, cols]`, where `c` is the running sum of
    /// `neg_a * softplus(x + bias)` since the last position that is a multiple of [`SUM_BLOCK`], added in f64 and
    /// rounded to f32. The state holds it as `[cols, 2]`, f32 and remainder. So decays from token to token and over a
    /// stretch of a block are differences of the same numbers.
    Decay { x: Id, neg_a: WeightRef, bias: WeightRef, state: StateRef },
    /// Gated delta rule, one token after the other: `M *= g; d = beta (v - M^T k); M += k d^T; y = M^T q`. State
    /// `[hv, dk, dv]`; value head `h` uses key head `h / (hv / hk)`.
    DeltaRule { q: Id, k: Id, v: Id, decay: Id, beta: Id, state: StateRef, heads: DeltaHeads },

    // --- out
    /// Makes `x` the result of the step.
    Emit { x: Id },
}

/// The head counts and sizes of a delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Key heads.
    pub hk: usize,
    /// Value heads, a multiple of `hk`.
    pub hv: usize,
    /// Numbers of a key head.
    pub dk: usize,
    /// Numbers of a value head.
    pub dv: usize,
}

impl DeltaHeads {
    /// Columns of all keys (or queries).
    pub const fn keys(&self) -> usize {
        self.hk * self.dk
    }

    /// Columns of all values.
    pub const fn values(&self) -> usize {
        self.hv * self.dv
    }
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
            Self::Columns { .. } => "columns",
            Self::TakeOutputs { .. } => "take_outputs",
            Self::Add { .. } => "add",
            Self::Apply { .. } => "apply",
            Self::Gate { .. } => "gate",
            Self::RmsNorm { .. } => "rms_norm",
            Self::GatedRmsNorm { .. } => "gated_rms_norm",
            Self::UnitNorm { .. } => "unit_norm",
            Self::Linear { .. } => "linear",
            Self::Route { .. } => "route",
            Self::ExpertsUp { .. } => "experts_up",
            Self::ExpertsDown { .. } => "experts_down",
            Self::Rope { .. } => "rope",
            Self::WriteKv { .. } => "write_kv",
            Self::Attention { .. } => "attention",
            Self::Conv { .. } => "conv",
            Self::Decay { .. } => "decay",
            Self::DeltaRule { .. } => "delta_rule",
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
            Self::Embed { .. } | Self::RopeTable { .. } => {}
            Self::Columns { x, .. }
            | Self::TakeOutputs { x }
            | Self::Apply { x, .. }
            | Self::RmsNorm { x, .. }
            | Self::UnitNorm { x, .. }
            | Self::Linear { x, .. }
            | Self::Route { logits: x, .. }
            | Self::WriteKv { x, .. }
            | Self::Attention { q: x, .. }
            | Self::Conv { x, .. }
            | Self::Decay { x, .. }
            | Self::Emit { x } => f(x),
            Self::Add { a, b }
            | Self::Gate { gate: a, x: b, .. }
            | Self::GatedRmsNorm { gate: a, x: b, .. }
            | Self::ExpertsUp { routing: a, x: b, .. }
            | Self::ExpertsDown { routing: a, x: b, .. }
            | Self::Rope { table: a, x: b, .. } => [a, b].into_iter().for_each(f),
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
            | Self::ExpertsDown { down: w, .. }
            | Self::Conv { taps: w, .. } => [Some(w), None],
            Self::Linear { weight, bias, .. } => [Some(weight), bias],
            Self::ExpertsUp { gate: a, up: b, .. } | Self::Decay { neg_a: a, bias: b, .. } => {
                [Some(a), Some(b)]
            }
            _ => [None, None],
        };
        refs.into_iter().flatten()
    }

    /// The states it reads or writes.
    pub fn states(&self) -> impl Iterator<Item = StateRef> {
        let refs = match *self {
            Self::WriteKv { state, .. }
            | Self::Conv { state, .. }
            | Self::Decay { state, .. }
            | Self::DeltaRule { state, .. } => [Some(state), None],
            Self::Attention { keys, values, .. } => [Some(keys), Some(values)],
            _ => [None, None],
        };
        refs.into_iter().flatten()
    }

    /// What it does besides making a tensor.
    pub const fn effect(&self) -> Effect {
        match *self {
            Self::WriteKv { state, .. }
            | Self::Conv { state, .. }
            | Self::Decay { state, .. }
            | Self::DeltaRule { state, .. } => Effect::Writes(state),
            Self::Emit { .. } => Effect::Emits,
            _ => Effect::Pure,
        }
    }

    /// The shape of the tensor it makes, `None` if it makes none; or what is wrong with its arguments.
    pub fn shape(&self, of: impl Fn(Id) -> Shape) -> Result<Option<Shape>, String> {
        let shape = match *self {
            Self::Embed { table, .. } => Shape::tokens(plain_matrix(table)?.cols),
            Self::RopeTable { freq, .. } => Shape::tokens(2 * vector(freq)?),
            Self::Columns { x, start, cols } => {
                let s = of(x);
                let end = start.saturating_add(cols);
                ensure(cols > 0 && end <= s.cols, || {
                    format!("columns {start}..{end} of {}", s.cols)
                })?;
                Shape { cols, ..s }
            }
            Self::TakeOutputs { x } => Shape { rows: Axis::Outputs, ..tokens(of(x))? },
            Self::Add { a, b } => same(of(a), of(b))?,
            Self::Apply { x, .. } => of(x),
            Self::Gate { gate, x, .. } => {
                let (g, s) = (of(gate), of(x));
                if g.cols == 1 && g.rows == s.rows { s } else { same(g, s)? }
            }
            Self::RmsNorm { x, weight, group, .. } => norm(of(x), weight, group)?,
            Self::GatedRmsNorm { x, gate, weight, group, .. } => {
                norm(same(of(x), of(gate))?, weight, group)?
            }
            Self::UnitNorm { x, group, .. } => groups(of(x), group)?,
            Self::Linear { x, weight, bias } => linear(of(x), weight, bias)?,
            Self::Route { logits, k, .. } => {
                let s = of(logits);
                ensure(k > 0 && k <= s.cols, || format!("{k} of {} experts", s.cols))?;
                Shape { cols: 2 * k, ..s }
            }
            Self::ExpertsUp { x, routing, gate, up, .. } => {
                let (g, u) = (matrix(gate)?, matrix(up)?);
                ensure(g.experts == u.experts && g.rows == u.rows && g.cols == u.cols, || {
                    format!("gate {g:?} and up {u:?} differ")
                })?;
                ensure(of(x).cols == g.cols, || {
                    format!("x has {} columns, experts want {}", of(x).cols, g.cols)
                })?;
                Shape { cols: ranks(of(x), of(routing))? * g.rows, ..of(x) }
            }
            Self::ExpertsDown { x, routing, down } => {
                let d = matrix(down)?;
                let k = ranks(of(x), of(routing))?;
                ensure(of(x).cols == k * d.cols, || {
                    format!("x has {} columns, {k} experts of {} want more", of(x).cols, d.cols)
                })?;
                Shape { cols: d.rows, ..of(x) }
            }
            Self::Rope { x, table, dim, .. } => {
                let t = of(table);
                same_rows(of(x), t)?;
                ensure(t.cols <= dim, || format!("{} rotated columns in heads of {dim}", t.cols))?;
                groups(of(x), dim)?
            }
            Self::WriteKv { x, state } => {
                let unit = state.kind.unit() / crate::inputs::BLOCK;
                ensure(!matches!(state.kind, StateKind::Slots { .. }), || {
                    "wants a paged state".into()
                })?;
                ensure(tokens(of(x))?.cols == unit, || {
                    format!("x has {} columns, the state wants {unit}", of(x).cols)
                })?;
                return Ok(None);
            }
            Self::Attention { q, keys, values, heads, window, softcap, .. } => {
                attention(tokens(of(q))?, keys, values, heads, (window, softcap))?
            }
            Self::Conv { x, taps, state, .. } => conv(tokens(of(x))?, taps, state)?,
            Self::Decay { x, neg_a, bias, state } => {
                let s = tokens(of(x))?;
                let (a, b) = (vector(neg_a)?, vector(bias)?);
                slots(state, 2 * s.cols)?;
                ensure(a == s.cols && b == s.cols, || {
                    format!("x has {} columns, weights {a} and {b}", s.cols)
                })?;
                s
            }
            Self::DeltaRule { q, k, v, decay, beta, state, heads } => {
                let args = [q, k, v, decay, beta].map(of);
                args.into_iter().try_for_each(|s| tokens(s).map(|_| ()))?;
                let cols = args.map(|s| s.cols);
                let want = [heads.keys(), heads.keys(), heads.values(), heads.hv, heads.hv];
                ensure(cols == want, || format!("columns {cols:?}, wants {want:?}"))?;
                ensure(heads.hv.is_multiple_of(heads.hk), || "value heads per key head".into())?;
                slots(state, heads.hv * heads.dk * heads.dv)?;
                args[2]
            }
            Self::Emit { .. } => return Ok(None),
        };
        Ok(Some(shape))
    }
}

fn ensure(ok: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if ok { Ok(()) } else { Err(what()) }
}

/// A row of these operations is a token at a position, not a wanted result.
fn tokens(s: Shape) -> Result<Shape, String> {
    ensure(s.rows == Axis::Tokens, || "wants all tokens, has the wanted results only".into())?;
    Ok(s)
}

fn same_rows(a: Shape, b: Shape) -> Result<(), String> {
    ensure(a.rows == b.rows, || format!("rows of {:?} and of {:?}", a.rows, b.rows))
}

/// How many experts a row of `x` is routed to.
fn ranks(x: Shape, routing: Shape) -> Result<usize, String> {
    same_rows(x, routing)?;
    ensure(routing.cols.is_multiple_of(2), || format!("a routing of {} columns", routing.cols))?;
    Ok(routing.cols / 2)
}

fn same(a: Shape, b: Shape) -> Result<Shape, String> {
    ensure(a == b, || format!("shapes {a:?} and {b:?} differ"))?;
    Ok(a)
}

fn groups(s: Shape, group: usize) -> Result<Shape, String> {
    ensure(group > 0 && s.cols.is_multiple_of(group), || {
        format!("{} columns in groups of {group}", s.cols)
    })?;
    Ok(s)
}

fn norm(s: Shape, weight: WeightRef, group: usize) -> Result<Shape, String> {
    let len = vector(weight)?;
    ensure(len == group, || format!("groups of {group} with a weight of {len}"))?;
    groups(s, group)
}

fn linear(s: Shape, weight: WeightRef, bias: Option<WeightRef>) -> Result<Shape, String> {
    let m = plain_matrix(weight)?;
    ensure(s.cols == m.cols, || format!("x has {} columns, the matrix wants {}", s.cols, m.cols))?;
    if let Some(bias) = bias {
        let len = vector(bias)?;
        ensure(len == m.rows, || format!("a bias of {len} for {} rows", m.rows))?;
    }
    Ok(Shape { cols: m.rows, ..s })
}

fn attention(
    q: Shape,
    keys: StateRef,
    values: StateRef,
    heads: usize,
    (window, softcap): (Option<usize>, Option<f32>),
) -> Result<Shape, String> {
    let (StateKind::Keys { heads: hk, dim }, StateKind::Values { heads: hv, dim: dv }) =
        (keys.kind, values.kind)
    else {
        return Err(format!("wants keys and values, has {:?} and {:?}", keys.kind, values.kind));
    };
    ensure(hk == hv && heads.is_multiple_of(hk), || format!("{heads} heads over {hk} and {hv}"))?;
    ensure(keys.table == values.table, || "keys and values have different tables".into())?;
    ensure(q.cols == heads * dim, || format!("q has {} columns, wants {heads} x {dim}", q.cols))?;
    ensure(heads / hk <= MOST_SHARED_HEADS, || {
        format!("{} query heads a key head, at most {MOST_SHARED_HEADS}", heads / hk)
    })?;
    ensure(window != Some(0), || "a window of 0".into())?;
    ensure(softcap.is_none_or(|c| c > 0.0), || format!("a softcap of {softcap:?}"))?;
    Ok(Shape { cols: heads * dv, ..q })
}

/// The most taps of a convolution.
pub const MOST_TAPS: usize = 8;

/// The most query heads that share a key head.
pub const MOST_SHARED_HEADS: usize = 64;

fn conv(x: Shape, taps: WeightRef, state: StateRef) -> Result<Shape, String> {
    let taps = vector(taps)?;
    ensure(taps.is_multiple_of(x.cols) && taps >= x.cols, || {
        format!("{taps} taps for {} columns", x.cols)
    })?;
    ensure(taps / x.cols <= MOST_TAPS, || format!("{} taps, at most {MOST_TAPS}", taps / x.cols))?;
    slots(state, taps - x.cols)?;
    Ok(x)
}

fn slots(state: StateRef, want: usize) -> Result<(), String> {
    ensure(state.kind == StateKind::Slots { len: want }, || {
        format!("the state is {:?}, wants slots of {want}", state.kind)
    })
}

fn matrix(w: WeightRef) -> Result<crate::device::MatrixSpec, String> {
    match w.kind {
        WeightKind::Matrix(spec) => Ok(spec),
        WeightKind::Vector { len } => Err(format!("wants a matrix, has a vector of {len}")),
    }
}

fn plain_matrix(w: WeightRef) -> Result<crate::device::MatrixSpec, String> {
    let m = matrix(w)?;
    ensure(m.experts == 1, || "a stack of experts is not one matrix".into())?;
    Ok(m)
}

fn vector(w: WeightRef) -> Result<usize, String> {
    match w.kind {
        WeightKind::Vector { len } => Ok(len),
        WeightKind::Matrix(spec) => Err(format!("wants a vector, has a matrix {spec:?}")),
    }
}
