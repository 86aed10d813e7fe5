//! A step as a model writes it: lazy tensors that can't outlive it, and states that it moves forward in place.
//!
//! Owns the recording. Refuses, by its types, everything that made lazy arrays leak: a [`Tensor`] is a copyable
//! index branded with its step, so it can't be returned, stored, captured or mixed with another step's; a
//! [`Version`] is consumed by the write that makes the next one; a [`Param`] (a host integer) is no tensor.
//! A tensor owns no memory either way: even a forged one would pin nothing.

mod tensor;

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::Location;

use crate::device::BufferId;
use crate::dims::Shape;
use crate::error::{Error, Result};
use crate::inputs::TABLES;
use crate::key::{Key, Outputs};
use crate::op::{Id, Op, Stretch};
use crate::state::{State, StateRef};
use crate::weight::Weight;

pub use tensor::{AttentionSpec, Choice, Delta, ExpertsUp, Scan, Seen, SeenValues};

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

    /// What tokens of an earlier step have left in `state`: those that each row's
    /// [`RowInput::carried`](crate::RowInput::carried) begins with, `[T, cols]`.
    #[track_caller]
    pub fn carried(self, state: &Version<'s>) -> Tensor<'s> {
        self.push(Op::Carried { state: state.state })
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
        self.rope_table_of(freq, scale, 1, Stretch::None)
    }

    /// The same for positions rounded down to multiples of `every`, with frequencies that a row may stretch.
    #[track_caller]
    pub fn rope_table_of(
        self,
        freq: &Weight,
        scale: f32,
        every: usize,
        stretch: Stretch,
    ) -> Tensor<'s> {
        self.expect(Field::Positions, "rope_table");
        self.step.push(Op::RopeTable { freq: freq.r, scale, every, stretch })
    }

    /// `1 + beta * ln(1 + floor(position / every)) -> [T, 1]`
    #[track_caller]
    pub fn scale(self, beta: f32, every: usize) -> Tensor<'s> {
        self.expect(Field::Positions, "position_scale");
        self.step.push(Op::PositionScale { beta, every })
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

    /// Leaves each token's row to later steps: `x: [T, cols]`, to a state with a unit for each token of the step.
    #[track_caller]
    pub fn carry(self, x: Tensor<'s>) -> Self {
        let (tokens, units) = (x.step.key.tokens.capacity(), self.state.units);
        if tokens > units {
            let what = format!("{tokens} tokens, the state has {units} units");
            x.step.recording.borrow_mut().fail("carry", what);
        }
        let _ = x.step.push(Op::Carry { x: x.id, state: self.state });
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
