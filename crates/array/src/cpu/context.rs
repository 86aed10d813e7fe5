//! What a kernel of the CPU device is given: the step's integers, its tensors, weights and states, and the threads.
//!
//! Owns the translation from ids and references to memory. Everything is checked against the size of the buffer it
//! lies in; a kernel that is handed out here can't reach outside of it.

use super::lanes::Isa;
use super::memory::HostBuffer;
use super::pool::Pool;
use super::view::{Mat, MatMut};
use crate::device::{BufferId, MatrixSpec};
use crate::dims::Axis;
use crate::inputs::Ragged;
use crate::low_rank::LowRankRef;
use crate::op::Id;
use crate::plan::{Place, Plan};
use crate::state::{StateKind, StateRef};
use crate::weight::{WeightKind, WeightRef};

/// One launch.
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) b: Ragged<'a>,
    pub(crate) pool: &'a Pool,
    pub(crate) isa: Isa,
    /// Quantised weights meet f32 activations.
    pub(crate) exact: bool,
    pub(crate) buffers: &'a [Option<HostBuffer>],
    /// `plan.arena_len` numbers.
    pub(crate) arena: *mut f32,
    /// The address of each buffer, for states.
    pub(crate) addresses: &'a [*mut u8],
}

// SAFETY: the pointers lead to the arena and to states, which kernels hand out to threads in disjoint pieces.
unsafe impl Sync for Context<'_> {}

/// A state's memory: `units` pieces of `unit` bytes. In a slot, a record of `record` numbers comes first, then its log of
/// `inputs` numbers a token.
#[derive(Clone, Copy)]
pub(crate) struct StateMem {
    ptr: *mut u8,
    unit: usize,
    units: usize,
    record: usize,
    inputs: usize,
}

// SAFETY: kernels hand out pieces of a state to threads so that no piece is written by two.
unsafe impl Sync for StateMem {}

impl StateMem {
    /// Where byte `at` of piece `unit` is, `len` bytes before the piece's end or more.
    #[inline]
    fn at(&self, unit: usize, at: usize, len: usize) -> *mut u8 {
        let inside = unit < self.units && at + len <= self.unit;
        assert!(inside, "a step names block {unit} of {}", self.units);
        // SAFETY: inside of the state's buffer, which `Context::state` has measured.
        unsafe { self.ptr.add(unit * self.unit + at) }
    }

    /// `len` bytes at byte `at` of piece `unit`, to be read.
    ///
    /// # Safety
    /// Nobody writes them meanwhile.
    #[inline]
    pub(crate) unsafe fn bytes(&self, unit: usize, at: usize, len: usize) -> &[u8] {
        // SAFETY: inside of the state's buffer; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.at(unit, at, len), len) }
    }

    /// `len` bytes at byte `at` of piece `unit`, to be written.
    ///
    /// # Safety
    /// Nobody else touches them meanwhile.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_mut(&self, unit: usize, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: inside of the state's buffer; the caller excludes others.
        unsafe { std::slice::from_raw_parts_mut(self.at(unit, at, len), len) }
    }

    /// Where number `at` of piece `unit` of a state of f32 is, `len` numbers before the piece's end or more.
    #[inline]
    pub(crate) fn numbers(&self, unit: usize, at: usize, len: usize) -> *mut f32 {
        self.at(unit, at * 4, len * 4).cast()
    }

    /// `len` numbers at number `at` of piece `unit` of a state of f32, to be read.
    ///
    /// # Safety
    /// Nobody writes them meanwhile.
    #[inline]
    pub(crate) unsafe fn read(&self, unit: usize, at: usize, len: usize) -> &[f32] {
        let from = self.at(unit, at * 4, len * 4).cast();
        // SAFETY: inside of the state's buffer, whose units are whole numbers; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(from, len) }
    }

    /// `len` numbers at number `at` of piece `unit` of a state of f32, to be written.
    ///
    /// # Safety
    /// Nobody else touches them meanwhile.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn write(&self, unit: usize, at: usize, len: usize) -> &mut [f32] {
        let to = self.at(unit, at * 4, len * 4).cast();
        // SAFETY: inside of the state's buffer, whose units are whole numbers; the caller excludes others.
        unsafe { std::slice::from_raw_parts_mut(to, len) }
    }
}

impl StateMem {
    /// Pieces of `unit` numbers, as many as `len` bytes at `ptr` are: they are a kernel's own.
    pub(crate) fn pieces(ptr: *mut u8, len: usize, unit: usize) -> Self {
        let bytes = unit * 4;
        Self { ptr, unit: bytes, units: len / bytes.max(1), record: unit, inputs: 0 }
    }

    /// Numbers of a record.
    pub(crate) fn record(&self) -> usize {
        self.record
    }

    /// `len` numbers at `at` of what token `i` in the log of slot `slot` has brought.
    ///
    /// # Safety
    /// Nobody writes them meanwhile.
    pub(crate) unsafe fn logged(&self, slot: usize, i: usize, at: usize, len: usize) -> &[f32] {
        // SAFETY: promised by the caller.
        unsafe { self.read(slot, self.record + i * self.inputs + at, len) }
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// Nobody else touches them meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn logged_mut(
        &self,
        slot: usize,
        i: usize,
        at: usize,
        len: usize,
    ) -> &mut [f32] {
        // SAFETY: promised by the caller.
        unsafe { self.write(slot, self.record + i * self.inputs + at, len) }
    }
}

impl<'a> Context<'a> {
    fn live(&self, axis: Axis) -> usize {
        match axis {
            Axis::Tokens => self.b.tokens,
            Axis::Outputs => self.b.outputs,
        }
    }

    fn bounds(&self, place: Place) -> usize {
        let rows = self.live(place.shape.rows);
        let end = place.offset + rows.saturating_sub(1) * place.stride + place.shape.cols;
        assert!(end <= self.plan.arena_len, "a tensor lies outside of the arena");
        rows
    }

    /// A tensor to be read.
    pub(crate) fn get(&self, id: Id) -> Mat<'a> {
        let p = self.plan.place(id);
        let rows = self.bounds(p);
        // SAFETY: the place is inside of the arena, and the planner keeps what a kernel reads apart from what it
        // writes.
        unsafe { Mat::new(self.arena.add(p.offset), rows, p.shape.cols, p.stride) }
    }

    /// The tensor that node `node` makes.
    pub(crate) fn out(&self, node: usize) -> MatMut<'a> {
        let p = self.plan.place(node as Id);
        let rows = self.bounds(p);
        // SAFETY: as in `get`; kernels run one after the other, so this is the only access to the node's tensor.
        unsafe { MatMut::new(self.arena.add(p.offset), rows, p.shape.cols, p.stride) }
    }

    /// The scratch bytes of a node.
    pub(crate) fn scratch(&self, node: usize) -> (*mut u8, usize) {
        let (offset, len) = self.plan.scratch[node];
        assert!(offset + len <= self.plan.arena_len, "scratch lies outside of the arena");
        // SAFETY: inside of the arena.
        (unsafe { self.arena.add(offset) }.cast(), len * 4)
    }

    fn buffer(&self, id: BufferId) -> &'a HostBuffer {
        self.buffers[id.0 as usize].as_ref().expect("launch checks that every buffer is alive")
    }

    /// A vector weight.
    pub(crate) fn vector(&self, w: WeightRef) -> &'a [f32] {
        let WeightKind::Vector { len } = w.kind else { unreachable!("recording checks the kind") };
        &self.buffer(w.buffer).numbers()[..len]
    }

    /// A matrix weight in the device's layout.
    pub(crate) fn matrix(&self, w: WeightRef) -> (MatrixSpec, &'a [u8]) {
        let WeightKind::Matrix(spec) = w.kind else { unreachable!("recording checks the kind") };
        (spec, self.buffer(w.buffer).bytes())
    }

    /// Low-rank matrices, all slots of them.
    pub(crate) fn low_rank(&self, l: LowRankRef) -> &'a [f32] {
        self.buffer(l.buffer).numbers()
    }

    /// The token that row `i` of a tensor stands for.
    pub(crate) fn token(&self, axis: Axis, i: usize) -> usize {
        match axis {
            Axis::Tokens => i,
            Axis::Outputs => self.b.out_token[i] as usize,
        }
    }

    /// A state.
    pub(crate) fn state(&self, s: StateRef) -> StateMem {
        let unit = s.unit_bytes();
        assert!(self.buffer(s.buffer).len() >= s.units * unit);
        let (record, inputs) = match s.kind {
            StateKind::Slots { len, log } => (len, log.inputs),
            StateKind::Keys { .. } | StateKind::Values { .. } | StateKind::Carry { .. } => (0, 0),
        };
        let ptr = self.addresses[s.buffer.0 as usize];
        StateMem { ptr, unit, units: s.units, record, inputs }
    }

    /// The scratch of a node in pieces of `unit` numbers, one for each thread; none where it has no scratch.
    pub(crate) fn own(&self, node: usize, unit: usize) -> StateMem {
        let (ptr, len) = self.scratch(node);
        StateMem::pieces(ptr, len, unit)
    }
}
