//! What an operation is recorded with: the plan, addresses of its tensors, weights and states, and the list of launches.
//!
//! Owns the translation from ids and references to addresses, each checked against the size of the buffer it lies in.
//! What is recorded holds addresses and capacities and nothing of a request: live counts are read by kernels.

use super::arguments::{Argument, Arguments, LowRank, Mat, Matrix, State, StepInputs, Vector};
use super::sources::Family;
use super::weights;
use crate::device::{BufferId, IN_FLIGHT, MatrixSpec, Shared};
use crate::dims::Axis;
use crate::low_rank::LowRankRef;
use crate::op::Id;
use crate::plan::{Place, Plan};
use crate::state::{StateKind, StateRef};
use crate::stored::Stored;
use crate::weight::{WeightKind, WeightRef};

/// Lanes of a warp.
pub(super) const WARP: u32 = 32;

/// A kernel that is to run, with its arguments.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) node: usize,
    pub(super) kernel: (Family, &'static str),
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(super) shared: u32,
    pub(super) arguments: Arguments,
}

impl Launch {
    /// One more argument.
    pub(super) fn arg(&mut self, argument: impl Argument) -> &mut Self {
        self.arguments.push(argument);
        self
    }

    /// Checks the arguments against the kernel's source: what makes it safe to run.
    pub(super) fn check(&self) -> Result<(), String> {
        let (family, name) = self.kernel;
        let wanted = family.parameters(name).ok_or_else(|| format!("there is no kernel {name}"))?;
        let given = self.arguments.types();
        if wanted != given {
            return Err(format!("the kernel {name} takes {wanted:?}, is given {given:?}"));
        }
        let [grid, block] = [self.grid, self.block].map(|[x, y, z]| (x.min(y).min(z), y.max(z)));
        if grid.0 == 0
            || block.0 == 0
            || grid.1 > 65_535
            || self.block.iter().product::<u32>() > 1024
        {
            return Err(format!("the kernel {name} can't have {self:?}"));
        }
        Ok(())
    }
}

/// Where buffers are, and how many bytes they have.
pub(super) type Buffers<'a> = &'a dyn Fn(BufferId) -> Option<(u64, usize)>;

/// A plan that is being recorded.
pub(super) struct Recorder<'a> {
    pub(super) plan: &'a Plan,
    buffers: Buffers<'a>,
    shared: Shared,
    node: usize,
    /// Multiprocessors of the device.
    pub(super) processors: u32,
    pub(super) launches: Vec<Launch>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        buffers: Buffers<'a>,
        shared: Shared,
        processors: u32,
    ) -> Result<Self, String> {
        let launches = Vec::new();
        let new = Self { plan, buffers, shared, node: 0, processors, launches };
        new.address(shared.arena, plan.arena_len * 4)?;
        new.address(shared.inputs[0], plan.layout.words() * 4)?;
        Ok(new)
    }

    /// What is recorded from now on belongs to `node`.
    pub(super) fn begin(&mut self, node: usize) {
        self.node = node;
    }

    /// The address of a buffer of at least so many bytes.
    fn address(&self, id: BufferId, bytes: usize) -> Result<u64, String> {
        let (address, len) = (self.buffers)(id).ok_or_else(|| format!("{id:?} is gone"))?;
        if len < bytes {
            return Err(format!("{bytes} bytes of a buffer of {len}"));
        }
        Ok(address)
    }

    /// The block of step inputs.
    pub(super) fn step(&self) -> Result<StepInputs, String> {
        let words = self.address(self.shared.inputs[0], 0)?;
        Ok(StepInputs::new(words, &self.plan.layout))
    }

    fn mat(&self, place: Place) -> Result<Mat, String> {
        let arena = self.address(self.shared.arena, 0)?;
        let end = place.offset + (self.plan.capacity(place.shape.rows).max(1) - 1) * place.stride;
        if end + place.shape.cols > self.plan.arena_len {
            return Err("a tensor lies outside of the arena".into());
        }
        Ok(Mat {
            at: arena + 4 * place.offset as u64,
            cols: place.shape.cols as u32,
            stride: place.stride as u32,
            outputs: u32::from(place.shape.rows == Axis::Outputs),
            zero: 0,
        })
    }

    /// A tensor to be read.
    pub(super) fn get(&self, id: Id) -> Result<Mat, String> {
        self.mat(self.plan.place(id))
    }

    /// The tensor that this node makes.
    pub(super) fn out(&self) -> Result<Mat, String> {
        self.mat(self.plan.place(self.node as Id))
    }

    /// Room for rows of a tensor.
    pub(super) fn room(&self, mat: &Mat) -> u32 {
        let axis = if mat.outputs == 1 { Axis::Outputs } else { Axis::Tokens };
        self.plan.capacity(axis) as u32
    }

    /// The address and bytes of this node's scratch.
    pub(super) fn scratch(&self) -> Result<(u64, usize), String> {
        let (offset, len) = self.plan.scratch[self.node];
        Ok((self.address(self.shared.arena, (offset + len) * 4)? + 4 * offset as u64, len * 4))
    }

    /// A vector weight.
    pub(super) fn vector(&self, w: WeightRef) -> Result<Vector, String> {
        let len = w.vector()?;
        Ok(Vector { at: self.address(w.buffer, len * 4)?, len: len as u32, zero: 0 })
    }

    /// A vector weight, or one that isn't there.
    pub(super) fn maybe(&self, w: Option<WeightRef>) -> Result<Vector, String> {
        w.map_or(Ok(Vector::NONE), |w| self.vector(w))
    }

    /// A matrix weight, with its address.
    pub(super) fn matrix(&self, w: WeightRef) -> Result<(MatrixSpec, Matrix), String> {
        let WeightKind::Matrix(spec) = w.kind else { return Err("wants a matrix".into()) };
        let bytes = weights::matrix_bytes(&spec).ok_or("a matrix of impossible shape")?;
        Ok((spec, weights::matrix(&spec, self.address(w.buffer, bytes)?)))
    }

    /// Low-rank matrices.
    pub(super) fn low_rank(&self, l: LowRankRef) -> Result<LowRank, String> {
        let bytes = l.spec.bytes().ok_or("low-rank matrices of impossible shape")?;
        let at = self.address(l.buffer, bytes)?;
        let header = l.spec.header() as u32;
        let [slots, rank, rows, cols] =
            [l.spec.slots, l.spec.rank, l.spec.rows, l.spec.cols].map(|n| n as u32);
        Ok(LowRank { at, slots, rank, rows, cols, header, zero: 0 })
    }

    /// A state.
    pub(super) fn state(&self, s: StateRef) -> Result<State, String> {
        let at = self.address(s.buffer, s.units * s.unit_bytes())?;
        let (heads, dim, record, inputs) = match s.kind {
            StateKind::Keys { heads, dim } | StateKind::Values { heads, dim } => (heads, dim, 0, 0),
            StateKind::Slots { len, log } => (0, 0, len, log.inputs),
            StateKind::Carry { cols } => (0, 0, cols, 0),
        };
        let [heads, dim, record, inputs, units, table, every] =
            [heads, dim, record, inputs, s.units, s.table, s.every].map(|n| n as u32);
        let stored = match s.stored {
            Stored::F32 => 0,
            Stored::F16 => 1,
            Stored::BF16 => 2,
            Stored::Q8 => 3,
            Stored::Q4 => 4,
        };
        let keys = u32::from(matches!(s.kind, StateKind::Keys { .. }));
        let unit = s.unit_bytes() as u64;
        Ok(State {
            at,
            unit,
            units,
            table,
            every,
            stored,
            keys,
            heads,
            dim,
            record,
            inputs,
            zero: 0,
        })
    }

    /// The output buffers, which hold so many numbers.
    pub(super) fn outputs(&self, numbers: usize) -> Result<[u64; IN_FLIGHT], String> {
        let [a, b] = self.shared.outputs;
        Ok([self.address(a, numbers * 4)?, self.address(b, numbers * 4)?])
    }

    /// Adds a launch of `grid` blocks of `block` threads.
    pub(super) fn launch(
        &mut self,
        kernel: (Family, &'static str),
        grid: [u32; 3],
        block: [u32; 3],
    ) -> &mut Launch {
        let (node, arguments) = (self.node, Arguments::default());
        self.launches.push(Launch { node, kernel, grid, block, shared: 0, arguments });
        let last = self.launches.len() - 1;
        &mut self.launches[last]
    }
}
