//! State: the only memory that crosses a step. Owned, made once, written in place.
//!
//! Owns the handle and the shapes that a state can have. Refuses to grow, to be cloned and to be seen as a tensor:
//! inside a step it is a [`Version`](crate::step::Version), and only the operations that say so write to it.

use crate::device::BufferId;
use crate::inputs::BLOCK;
use crate::ledger::{Growth, Tag};
use crate::memory::Buffer;
use crate::{Error, Result, Runtime};

/// How a state is laid out. All numbers are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// Paged attention keys: `[blocks, heads, dim, BLOCK]`, so that a tile of scores needs no horizontal sums. They may
    /// be their own values.
    Keys {
        /// Key heads.
        heads: usize,
        /// Numbers of one head.
        dim: usize,
    },
    /// Paged attention values: `[blocks, heads, BLOCK, dim]`.
    Values {
        /// Value heads.
        heads: usize,
        /// Numbers of one head.
        dim: usize,
    },
    /// One record a sequence: `[slots, len]`. The record of a row whose past is 0 counts as zeros.
    Slots {
        /// Numbers of one record.
        len: usize,
    },
}

impl StateKind {
    /// Numbers in one block or slot.
    pub const fn unit(self) -> usize {
        match self {
            Self::Keys { heads, dim } | Self::Values { heads, dim } => heads * dim * BLOCK,
            Self::Slots { len } => len,
        }
    }
}

/// A state as operations name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRef {
    /// Its memory.
    pub buffer: BufferId,
    /// Its layout.
    pub kind: StateKind,
    /// Which block table leads to its blocks (unused for slots).
    pub table: usize,
    /// Blocks or slots.
    pub units: usize,
    /// Tokens that share one entry of a paged state.
    pub every: usize,
}

/// Memory that outlives a step.
pub struct State {
    buffer: Buffer,
    pub(crate) r: StateRef,
}

impl State {
    /// Zeroed state of `units` blocks or slots. Paged kinds are addressed through block table `table`.
    ///
    /// # Errors
    /// The object limit or the device's memory is reached.
    pub fn new(runtime: &Runtime, kind: StateKind, units: usize, table: usize) -> Result<Self> {
        Self::entries(runtime, kind, units, table, 1)
    }

    /// As [`new`](Self::new), with one entry for each `every` tokens: block `j` holds the entries of positions
    /// `j * BLOCK * every..`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn entries(
        runtime: &Runtime,
        kind: StateKind,
        units: usize,
        table: usize,
        every: usize,
    ) -> Result<Self> {
        let bytes = units.saturating_mul(kind.unit()).saturating_mul(4);
        let buffer = runtime.memory().allocate(bytes, Tag::State, Growth::Admit)?;
        let r = StateRef { buffer: buffer.id, kind, table, units, every };
        Ok(Self { buffer, r })
    }

    /// All its numbers, in the layout of its [`StateKind`], as the last step has left them.
    ///
    /// # Errors
    /// A step is in flight, the state belongs to another runtime, or the device failed.
    pub fn read(&self, runtime: &Runtime) -> Result<Vec<f32>> {
        if !self.belongs_to(runtime) {
            return Err(Error::Device("the state belongs to another runtime".into()));
        }
        let mut inner = runtime.memory().lock();
        inner.idle()?;
        let mut numbers = vec![0.0; self.bytes() / 4];
        let bytes = crate::bytes::of_f32_mut(&mut numbers);
        inner.device.download(self.r.buffer, 0, bytes).map_err(Error::Device)?;
        Ok(numbers)
    }

    /// Which block table leads to its blocks.
    pub fn table(&self) -> usize {
        self.r.table
    }

    /// All that the bytes of a block or slot mean, in words to compare: states with the same form can take each other's.
    pub fn form(&self) -> String {
        format!("{:?}", StateRef { buffer: BufferId(0), units: 0, ..self.r })
    }

    pub(crate) fn belongs_to(&self, runtime: &Runtime) -> bool {
        runtime.memory().is(&self.buffer.memory)
    }

    /// Bytes of one block or slot.
    pub fn unit_bytes(&self) -> usize {
        self.r.kind.unit() * 4
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes
    }
}
