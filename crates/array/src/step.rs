//! A step as a model writes it: lazy tensors that can't outlive it, and states that it moves forward in place.
//!
//! Owns the recording. Refuses, by its types, everything that made lazy arrays leak: a [`Tensor`] is a copyable
//! index branded with its step, so it can't be returned, stored, captured or mixed with another step's; a
//! [`Version`] is consumed by the write that makes the next one; a [`Param`] (a host integer) is no tensor.
//! A tensor owns no memory either way: even a forged one would pin nothing.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::Location;

use crate::device::BufferId;
use crate::dims::Shape;
use crate::error::{Error, Result};
use crate::inputs::TABLES;
use crate::key::{Key, Outputs};
use crate::op::{DeltaHeads, Id, Map, Op, Scoring};
use crate::state::{State, StateRef};
use crate::weight::Weight;

/// Ties a value to one step: invariant, so that two steps never unify.
type Brand<'s> = PhantomData<fn(&'s ()) -> &'s ()>;

/// One recorded operation.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// The shape of its tensor; `None` if it makes none.
    pub shape: Option<Shape>,
    /// Where in the model it was written.
    pub at: &'static Location<'static>,
}

#[derive(Default)]
pub(crate) struct Recording {
    pub(crate) nodes: Vec<Node>,
    opened: Vec<BufferId>,
    emitted: bool,
    error: Option<Error>,
}

/// Something that can be recorded as a step; in practice a model with its caches.
///
/// It sees the key and nothing of any request, so that nothing of a request can be baked into a plan.
pub trait Record {
    /// Writes the step.
    fn record<'s>(&self, step: Step<'s>);
}

/// A step that is being recorded.
#[derive(Clone, Copy)]
pub struct Step<'s> {
    recording: &'s RefCell<Recording>,
    key: Key,
    brand: Brand<'s>,
}

/// A lazy `[rows, cols]` tensor of f32, alive within its step only.
#[derive(Clone, Copy)]
#[must_use = "a tensor that nobody reads is dropped from the plan"]
pub struct Tensor<'s> {
    step: Step<'s>,
    id: Id,
}

/// Host integers that kernels read at launch. Not a tensor: no arithmetic leads from here into one.
#[derive(Clone, Copy)]
pub struct Param<'s> {
    step: Step<'s>,
    field: Field,
}

#[derive(Clone, Copy, PartialEq)]
enum Field {
    Ids,
    Positions,
}

/// One version of a state within a step. Writing consumes it and yields the next.
#[must_use = "the next version is what later operations must read"]
pub struct Version<'s> {
    state: StateRef,
    brand: Brand<'s>,
}

/// Records a step. Branding keeps everything of the step inside of `write`.
///
/// # Errors
/// The first operation whose arguments don't fit, with the line that wrote it.
pub(crate) fn record(key: Key, write: impl for<'s> FnOnce(Step<'s>)) -> Result<Vec<Node>> {
    let recording = RefCell::default();
    write(Step { recording: &recording, key, brand: PhantomData });
    let Recording { nodes, error, .. } = recording.into_inner();
    match error {
        Some(error) => Err(error),
        None => Ok(nodes),
    }
}

impl<'s> Step<'s> {
    /// The capacities that the step is recorded for.
    pub fn key(self) -> Key {
        self.key
    }

    /// The ids of the tokens, `[T]`.
    pub fn ids(self) -> Param<'s> {
        Param { step: self, field: Field::Ids }
    }

    /// The absolute positions of the tokens, `[T]`.
    pub fn positions(self) -> Param<'s> {
        Param { step: self, field: Field::Positions }
    }

    /// Opens a state for this step. A state can be opened once a step.
    #[track_caller]
    pub fn open(self, state: &State) -> Version<'s> {
        let mut rec = self.recording.borrow_mut();
        if rec.opened.contains(&state.r.buffer) {
            rec.fail("open", "the state is open already; pass its version on".into());
        }
        if state.r.table >= TABLES {
            rec.fail("open", format!("block table {} of {TABLES}", state.r.table));
        }
        rec.opened.push(state.r.buffer);
        Version { state: state.r, brand: PhantomData }
    }

    /// Makes `x` the result of the step, which has one at most. Without wanted results this does nothing, and what
    /// leads here is dead code.
    #[track_caller]
    pub fn emit(self, x: Tensor<'s>) {
        if self.key.outputs != Outputs::None {
            let mut rec = self.recording.borrow_mut();
            if std::mem::replace(&mut rec.emitted, true) {
                rec.fail("emit", "the step has a result already".into());
            }
            drop(rec);
            let _ = self.push(Op::Emit { x: x.id });
        }
    }

    #[track_caller]
    fn push(self, op: Op) -> Tensor<'s> {
        let mut rec = self.recording.borrow_mut();
        // No closure here: it would be the caller that `fail` sees.
        let shape = match op.shape(|id| rec.shape(id)) {
            Ok(shape) => shape,
            Err(what) => {
                rec.fail(op.name(), what);
                Some(Shape::tokens(1))
            }
        };
        rec.nodes.push(Node { op, shape, at: Location::caller() });
        Tensor { step: self, id: rec.nodes.len() as Id - 1 }
    }
}

impl Recording {
    /// Every id handed out belongs to a node with a tensor, or recording has failed already.
    fn shape(&self, id: Id) -> Shape {
        self.nodes[id as usize].shape.unwrap_or(Shape::tokens(1))
    }

    #[track_caller]
    fn fail(&mut self, op: &'static str, what: String) {
        self.error.get_or_insert(Error::Record { op, at: Location::caller(), what });
    }
}

impl<'s> Param<'s> {
    /// `table[ids] * scale -> [T, cols of table]`
    #[track_caller]
    pub fn embed(self, table: &Weight, scale: f32) -> Tensor<'s> {
        self.expect(Field::Ids, "embed");
        self.step.push(Op::Embed { table: table.r, scale })
    }

    /// Cosines and sines of `positions * freq`, times `scale`: what [`Tensor::rope`] wants.
    #[track_caller]
    pub fn rope_table(self, freq: &Weight, scale: f32) -> Tensor<'s> {
        self.expect(Field::Positions, "rope_table");
        self.step.push(Op::RopeTable { freq: freq.r, scale })
    }

    #[track_caller]
    fn expect(self, field: Field, op: &'static str) {
        if self.field != field {
            self.step.recording.borrow_mut().fail(op, "wants another step input".into());
        }
    }
}

impl<'s> Version<'s> {
    /// Writes each token's row at its position: `x: [T, heads * dim]`.
    #[track_caller]
    pub fn write(self, x: Tensor<'s>) -> Self {
        let _ = x.step.push(Op::WriteKv { x: x.id, state: self.state });
        self
    }
}

impl std::ops::Add for Tensor<'_> {
    type Output = Self;

    #[track_caller]
    fn add(self, other: Self) -> Self {
        self.step.push(Op::Add { a: self.id, b: other.id })
    }
}

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

    /// `f(gate) * self`; a gate of one column serves the whole row.
    #[track_caller]
    pub fn gated(self, gate: Self, f: Map) -> Self {
        self.step.push(Op::Gate { gate: gate.id, x: self.id, f })
    }

    /// RMS norm over groups as wide as `weight`.
    #[track_caller]
    pub fn rms_norm(self, weight: &Weight, group: usize, eps: f32) -> Self {
        self.step.push(Op::RmsNorm { x: self.id, weight: weight.r, group, eps })
    }

    /// RMS norm over groups, then times `silu(gate)`.
    #[track_caller]
    pub fn gated_rms_norm(self, gate: Self, weight: &Weight, group: usize, eps: f32) -> Self {
        let (x, gate) = (self.id, gate.id);
        self.step.push(Op::GatedRmsNorm { x, gate, weight: weight.r, group, eps })
    }

    /// Each group divided by its length, times `scale`.
    #[track_caller]
    pub fn unit_norm(self, group: usize, eps: f32, scale: f32) -> Self {
        self.step.push(Op::UnitNorm { x: self.id, group, eps, scale })
    }

    /// `x W^T (+ bias)`
    #[track_caller]
    pub fn linear(self, weight: &Weight, bias: Option<&Weight>) -> Self {
        self.step.push(Op::Linear { x: self.id, weight: weight.r, bias: bias.map(|b| b.r) })
    }

    /// Of router logits `[T, experts]`: the `k` best, weights then numbers, `[T, 2k]`.
    #[track_caller]
    pub fn route(self, k: usize, scoring: Scoring) -> Self {
        self.step.push(Op::Route { logits: self.id, k, scoring })
    }

    /// The hidden activations of the routed experts, `[T, k * I]`.
    #[track_caller]
    pub fn experts_up(self, routing: Self, gate: &Weight, up: &Weight, f: Map) -> Self {
        let (x, routing) = (self.id, routing.id);
        self.step.push(Op::ExpertsUp { x, routing, gate: gate.r, up: up.r, f })
    }

    /// The weighted sum of the routed experts' outputs, `[T, k * I] -> [T, H]`.
    #[track_caller]
    pub fn experts_down(self, routing: Self, down: &Weight) -> Self {
        let (x, routing) = (self.id, routing.id);
        self.step.push(Op::ExpertsDown { x, routing, down: down.r })
    }

    /// Rotary positions on heads of `dim`, from [`Param::rope_table`].
    #[track_caller]
    pub fn rope(self, table: Self, dim: usize, interleaved: bool) -> Self {
        self.step.push(Op::Rope { x: self.id, table: table.id, dim, interleaved })
    }

    /// Attention of these queries, `[T, heads * dim] -> [T, heads * dim of values]`.
    #[track_caller]
    pub fn attend(self, keys: &Version<'s>, values: &Version<'s>, spec: AttentionSpec) -> Self {
        let AttentionSpec { heads, scale, window, softcap } = spec;
        let (keys, values) = (keys.state, values.state);
        self.step.push(Op::Attention { q: self.id, keys, values, heads, scale, window, softcap })
    }

    /// Causal depthwise convolution, then `f` (silu or `Scale(1.0)`); moves the row's window forward.
    #[track_caller]
    pub fn conv(self, taps: &Weight, window: Version<'s>, f: Map) -> (Self, Version<'s>) {
        let op = Op::Conv { x: self.id, taps: taps.r, state: window.state, f };
        (self.step.push(op), window)
    }

    /// The decays of a delta rule, from running sums of `neg_a * softplus(x + bias)`, which move forward.
    #[track_caller]
    pub fn decay(self, neg_a: &Weight, bias: &Weight, sums: Version<'s>) -> (Self, Version<'s>) {
        let (x, neg_a, bias) = (self.id, neg_a.r, bias.r);
        (self.step.push(Op::Decay { x, neg_a, bias, state: sums.state }), sums)
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
