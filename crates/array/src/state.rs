//! State: the only memory that crosses a step. Owned, made once, written in place.
//!
//! Owns the handle and the shapes that a state can have. Refuses to grow, to be cloned and to be seen as a tensor:
//! inside a step it is a [`Version`](crate::step::Version), and only the operations that say so write to it.

use crate::device::BufferId;
use crate::inputs::BLOCK;
use crate::ledger::{Growth, Tag};
use crate::memory::Buffer;
use crate::stored::{Layout, Stored};
use crate::{Error, Result, Runtime};

/// How the numbers of a state are laid out. Those of paged kinds are as [`Stored`] says, all others f32.
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
    /// One record a sequence: `[slots, len + log]`. The record of a row counts as zeros while nothing was put into it,
    /// that is, while the row's past is no longer than its log.
    Slots {
        /// Numbers of one record.
        len: usize,
        /// What lies behind each record: `[depth, inputs]`.
        log: Log,
    },
    /// What the tokens of a step leave to a later step: `[units, cols]`, unit `t` from token `t` of the last step that
    /// wrote.
    Carry {
        /// Numbers of a token.
        cols: usize,
    },
}

/// The log of a record: what tokens brought that are not, or not yet, put into it. See [`RowInput`](crate::RowInput).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Numbers that a token brings to the operation.
    pub inputs: usize,
    /// The most tokens.
    pub depth: usize,
}

impl Log {
    /// No room for any token.
    pub const NONE: Self = Self { inputs: 0, depth: 0 };
}

impl StateKind {
    /// Records of `len` numbers without logs.
    pub const fn slots(len: usize) -> Self {
        Self::Slots { len, log: Log::NONE }
    }

    /// Numbers in one block, or of one slot or token.
    pub const fn unit(self) -> usize {
        match self {
            Self::Keys { heads, dim } | Self::Values { heads, dim } => heads * dim * BLOCK,
            Self::Slots { len, log } => len.saturating_add(log.inputs.saturating_mul(log.depth)),
            Self::Carry { cols } => cols,
        }
    }

    /// Whether block tables lead to its blocks.
    pub const fn is_paged(self) -> bool {
        matches!(self, Self::Keys { .. } | Self::Values { .. })
    }

    /// Bytes of one block of numbers of this type, or of one slot or token.
    pub const fn unit_bytes(self, stored: Stored) -> usize {
        match self {
            Self::Keys { heads, dim } | Self::Values { heads, dim } => {
                heads.saturating_mul(BLOCK * stored.bytes(dim))
            }
            Self::Slots { .. } | Self::Carry { .. } => self.unit().saturating_mul(4),
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
    /// Which block table leads to its blocks (unused unless it is paged).
    pub table: usize,
    /// Blocks, slots, or tokens that carry.
    pub units: usize,
    /// Tokens that share one entry of a paged state.
    pub every: usize,
    /// The type of its numbers: f32 unless it is paged.
    pub stored: Stored,
}

impl StateRef {
    /// Bytes of one block or slot. They hold all there is of it, so a block is copied as one range of bytes.
    pub const fn unit_bytes(self) -> usize {
        self.kind.unit_bytes(self.stored)
    }

    /// Numbers that a token carries, or what is wrong.
    pub(crate) fn carried(self) -> std::result::Result<usize, String> {
        match self.kind {
            StateKind::Carry { cols } => Ok(cols),
            kind => Err(format!("the state is {kind:?}, wants what tokens carry")),
        }
    }
}

/// Memory that outlives a step.
pub struct State {
    buffer: Buffer,
    pub(crate) r: StateRef,
}

impl State {
    /// Zeroed state of `units` blocks, slots or tokens, in f32. Paged kinds are addressed through block table `table`.
    ///
    /// # Errors
    /// The object limit or the device's memory is reached.
    pub fn new(runtime: &Runtime, kind: StateKind, units: usize, table: usize) -> Result<Self> {
        Self::entries(runtime, kind, units, table, 1, Stored::F32)
    }

    /// As [`new`](Self::new), of numbers of another type, with one entry for each `every` tokens: block `j` holds the
    /// entries of positions `j * BLOCK * every..`.
    ///
    /// # Errors
    /// As [`new`](Self::new); or slots of another type than f32 are asked for.
    pub fn entries(
        runtime: &Runtime,
        kind: StateKind,
        units: usize,
        table: usize,
        every: usize,
        stored: Stored,
    ) -> Result<Self> {
        if !kind.is_paged() && stored != Stored::F32 {
            let what = format!("{kind:?} is f32, not {}: only paged states can be", stored.name());
            return Err(Error::Device(what));
        }
        let bytes = units.saturating_mul(kind.unit_bytes(stored));
        let buffer = runtime.memory().allocate(bytes, Tag::State, Growth::Admit)?;
        let r = StateRef { buffer: buffer.id, kind, table, units, every, stored };
        Ok(Self { buffer, r })
    }

    /// All its numbers, in the layout of its [`StateKind`] and as f32, as the last step has left them.
    ///
    /// # Errors
    /// A step is in flight, the state belongs to another runtime, or the device failed.
    pub fn read(&self, runtime: &Runtime) -> Result<Vec<f32>> {
        if !self.belongs_to(runtime) {
            return Err(Error::Device("the state belongs to another runtime".into()));
        }
        let mut inner = runtime.memory().lock();
        inner.idle()?;
        if self.r.stored == Stored::F32 {
            let mut numbers = vec![0.0; self.bytes() / 4];
            let bytes = crate::bytes::of_f32_mut(&mut numbers);
            inner.device.download(self.r.buffer, 0, bytes).map_err(Error::Device)?;
            return Ok(numbers);
        }
        let mut bytes = vec![0; self.bytes()];
        inner.device.download(self.r.buffer, 0, &mut bytes).map_err(Error::Device)?;
        let layout = Layout::of(self.r.kind, self.r.stored).map(|(_, layout)| layout);
        Ok(layout.map_or(Vec::new(), |layout| layout.numbers(&bytes)))
    }

    /// The type of its numbers.
    pub fn stored(&self) -> Stored {
        self.r.stored
    }

    /// Bytes of one block or slot.
    pub fn unit_bytes(&self) -> usize {
        self.r.unit_bytes()
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

    /// How it is laid out.
    pub fn kind(&self) -> StateKind {
        self.r.kind
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes
    }
}
