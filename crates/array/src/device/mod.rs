//! The boundary to a device: a handful of verbs, narrow enough that a device that runs nothing is forty lines.
//!
//! Owns the trait and the numbers that cross it. A device owns memory by [`BufferId`], compiled plans by
//! [`PlanId`], and the order in which launched steps run (always launch order). It counts nothing: the ledger does.
//! It decides nothing about lifetimes either: the runtime's memory never frees a buffer that a step in flight may use.
//!
//! The trait is made for a device that runs behind the host: [`Device::launch`] returns a [`Ticket`] at once and
//! [`Device::wait`] settles it; inputs are one upload into a ring of [`IN_FLIGHT`] blocks, outputs a ring as deep.

pub(crate) mod null;

use std::sync::Arc;
use std::time::Duration;

use crate::format::Format;
use crate::inputs::{InputLayout, Inputs};
use crate::plan::Plan;
use crate::profile::Peaks;

pub use null::NullDevice;

/// How many steps may be launched and not yet waited for.
pub const IN_FLIGHT: usize = 2;

/// A piece of device memory. The device gives the number; it is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A compiled plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanId(pub u32);

/// A launched step: its number, counted from 0 since the runtime was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

impl Ticket {
    /// The place of the step in the rings of inputs and outputs.
    pub const fn ring(self) -> usize {
        (self.0 % IN_FLIGHT as u64) as usize
    }
}

/// A matrix as a file holds it: `experts` times `[rows, cols]`, row-major, in `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixSpec {
    /// How the numbers are stored in the file.
    pub format: Format,
    /// How many matrices of this shape follow each other; 1 for a plain matrix.
    pub experts: usize,
    /// Rows (outputs) of one matrix.
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
}

/// The buffers that every plan of a runtime uses besides weights and states.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    /// Temporaries.
    pub arena: BufferId,
    /// Step inputs, a ring.
    pub inputs: [BufferId; IN_FLIGHT],
    /// Step outputs, a ring.
    pub outputs: [BufferId; IN_FLIGHT],
}

/// A machine that runs plans.
///
/// Errors are clauses without a final stop; the runtime says where they came from.
pub trait Device: Send {
    /// A name for people: `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// All that the bits of a result and the bytes of a state depend on, beside plan and inputs: kernels, settings,
    /// layouts. Where states travel between devices, both must say the same.
    fn numerics(&self) -> String {
        self.name()
    }

    /// Zeroed memory of `bytes`, aligned for any kernel. `None` when there is no more.
    fn allocate(&mut self, bytes: usize) -> Option<BufferId>;

    /// Gives memory back. No step in flight uses it.
    fn free(&mut self, buffer: BufferId);

    /// Copies `bytes` into a buffer at byte `offset`.
    ///
    /// # Errors
    /// The range is outside of the buffer, or the buffer is gone.
    fn upload(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), String>;

    /// Copies from a buffer at byte `offset` into `bytes`.
    ///
    /// # Errors
    /// The range is outside of the buffer, or the buffer is gone.
    fn download(&mut self, buffer: BufferId, offset: usize, bytes: &mut [u8])
    -> Result<(), String>;

    /// Copies `bytes` within a buffer from byte `from` to byte `to`, behind all steps launched before and ahead of all
    /// launched after. The ranges do not overlap.
    ///
    /// # Errors
    /// A range is outside of the buffer, or the buffer is gone.
    fn copy(
        &mut self,
        buffer: BufferId,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), String>;

    /// The bytes that a matrix takes in the layout that the kernels like, `None` if its shape is impossible.
    fn matrix_bytes(&self, spec: &MatrixSpec) -> Option<usize>;

    /// Brings a matrix from file layout into the kernels' layout, in `buffer`.
    ///
    /// # Errors
    /// `rows` is not as long as the spec says.
    fn load_matrix(
        &mut self,
        buffer: BufferId,
        spec: &MatrixSpec,
        rows: &[u8],
    ) -> Result<(), String>;

    /// Bytes of scratch memory that the node `node` of a plan wants, for `rows` live rows at most.
    fn scratch_bytes(&self, plan: &Plan, node: usize, rows: usize) -> usize;

    /// Makes a plan ready to be launched any number of times, without allocation.
    ///
    /// # Errors
    /// The device has no kernel for an operation of the plan, or names a buffer that is gone.
    fn compile(&mut self, plan: Arc<Plan>, shared: Shared) -> Result<PlanId, String>;

    /// Drops a compiled plan.
    fn discard(&mut self, plan: PlanId);

    /// Starts one step: uploads the inputs to ring place [`Ticket::ring`] and runs the plan after all steps before.
    ///
    /// # Errors
    /// A kernel or the driver failed. The states that the step writes are then undefined.
    fn launch(&mut self, plan: PlanId, inputs: &Inputs, ticket: Ticket) -> Result<(), String>;

    /// Waits until a launched step has finished.
    ///
    /// # Errors
    /// The step failed.
    fn wait(&mut self, ticket: Ticket) -> Result<(), String>;

    /// Whether products with such a matrix are of 8-bit integers, and not of f32.
    fn multiplies_integers(&self, spec: &MatrixSpec) -> bool {
        spec.format.quantises_activations()
    }

    /// Measures how long each node of a plan takes, from the next launch on, or does so no more. A device that can't has
    /// no [`times`](Self::times).
    fn measure(&mut self, _on: bool) {}

    /// How long each node took in the step of `ticket`, which was the last one in its place of the ring and was waited
    /// for, in step with the nodes of its plan. `None` where nothing was measured.
    fn times(&self, _ticket: Ticket) -> Option<&[Duration]> {
        None
    }

    /// What the machine can do at most, measured now, in less than a second; `None` if it runs nothing.
    fn peaks(&self) -> Option<Peaks> {
        None
    }

    /// Bytes of its memory that are free now, and all of them; `None` where that is not the device's to say.
    fn memory(&self) -> Option<(usize, usize)> {
        None
    }

    /// Bytes that a block of inputs takes on the device.
    fn input_bytes(&self, layout: &InputLayout) -> usize {
        layout.words() * 4
    }
}
