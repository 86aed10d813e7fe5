//! Low-rank matrices beside a linear layer, a pair for each adapter slot: the weights in which rows of one step differ.
//!
//! Owns their memory, made once for a number of slots and a rank, and the layout of it. A pair is written between steps;
//! plans stay as they are, since which slot a row uses is one of its integers. Refuses what is larger than the room, and
//! scales: whoever writes a pair has put it into the second matrix.

use crate::device::BufferId;
use crate::ledger::{Growth, Tag};
use crate::memory::Buffer;
use crate::{Error, Result, Runtime};

/// The most numbers of a rank or of a side of a matrix: their product in bytes must be far from overflow.
const MOST_SIDE: usize = 1 << 28;

/// The room for low-rank matrices beside a linear layer of `[rows, cols]`.
///
/// Its memory has, in words: the rank of each slot as u32, `[slots]` in whole cache lines; then for each slot `A`,
/// `[rank, cols]`, and `B` turned, `[rank, rows]`, in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRankSpec {
    /// Adapters at the same time. A row names one by 1 to `slots`, or 0 for none.
    pub slots: usize,
    /// The largest rank.
    pub rank: usize,
    /// Outputs of the layer.
    pub rows: usize,
    /// Inputs of the layer.
    pub cols: usize,
}

impl LowRankSpec {
    /// Words before the first slot.
    pub(crate) const fn header(&self) -> usize {
        self.slots.next_multiple_of(16)
    }

    /// Words of a slot.
    pub(crate) const fn unit(&self) -> usize {
        self.rank * (self.cols + self.rows)
    }

    /// Bytes of all of it, `None` for sizes that can't be.
    pub fn bytes(&self) -> Option<usize> {
        let sides = [self.slots, self.rank, self.rows, self.cols];
        if sides.iter().any(|n| !(1..=MOST_SIDE).contains(n)) {
            return None;
        }
        let unit = self.rank.checked_mul(self.cols + self.rows)?;
        self.slots.checked_mul(unit)?.checked_add(self.header())?.checked_mul(4)
    }
}

/// Low-rank matrices as operations name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRankRef {
    /// Their memory.
    pub buffer: BufferId,
    /// What it holds.
    pub spec: LowRankSpec,
}

impl LowRankRef {
    /// Whether they are for a layer of `[rows, cols]`; if not, what is wrong.
    pub(crate) fn check(&self, layer: [usize; 2]) -> std::result::Result<(), String> {
        let own = [self.spec.rows, self.spec.cols];
        match own == layer {
            true => Ok(()),
            false => Err(format!("low-rank matrices for {own:?} beside {layer:?}")),
        }
    }
}

/// The low-rank matrices of a linear layer. Every slot is empty at first.
pub struct LowRank {
    buffer: Buffer,
    pub(crate) r: LowRankRef,
}

impl LowRank {
    /// Room as `spec` has it.
    ///
    /// # Errors
    /// The sizes can't be; the object limit or the device's memory is reached.
    pub fn new(runtime: &Runtime, spec: LowRankSpec) -> Result<Self> {
        let bytes = spec.bytes().ok_or_else(|| bad(format!("{spec:?} can't be made")))?;
        let buffer = runtime.memory().allocate(bytes, Tag::Weight, Growth::Load)?;
        Ok(Self { r: LowRankRef { buffer: buffer.id, spec }, buffer })
    }

    /// The room.
    pub fn spec(&self) -> LowRankSpec {
        self.r.spec
    }

    /// Bytes of its memory.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes
    }

    /// Puts `a [rank, cols]` and `b [rows, rank]`, both row by row, into slot `slot`, in place of what is there; empty
    /// ones leave it empty. A row that names the slot has `B (A x)` added to the layer's result, with the scale that is
    /// in `b`.
    ///
    /// # Errors
    /// There is no such slot, the matrices do not fit the layer or each other, their rank is too large; a step is in
    /// flight, it belongs to another runtime, or the device failed: then no row may name the slot until it is written.
    pub fn write(&self, runtime: &mut Runtime, slot: usize, a: &[f32], b: &[f32]) -> Result<()> {
        let LowRankSpec { slots, rank: most, rows, cols } = self.r.spec;
        if !runtime.memory().is(&self.buffer.memory) {
            return Err(bad("they belong to another runtime".into()));
        }
        if !(1..=slots).contains(&slot) {
            return Err(bad(format!("slot {slot} of {slots}")));
        }
        let rank = a.len() / cols;
        if a.len() != rank * cols || b.len() != rank * rows {
            let what = format!("{} and {} numbers beside a [{rows}, {cols}]", a.len(), b.len());
            return Err(bad(what));
        }
        if rank > most {
            return Err(bad(format!("a rank of {rank}, there is room for {most}")));
        }
        let turned: Vec<f32> =
            (0..rank).flat_map(|r| b.iter().skip(r).step_by(rank).copied()).collect();
        let at = self.r.spec.header() + (slot - 1) * self.r.spec.unit();
        self.upload(runtime, at, a)?;
        self.upload(runtime, at + rank * cols, &turned)?;
        self.upload(runtime, slot - 1, &[f32::from_bits(rank as u32)])
    }

    /// Writes words from word `at` on.
    fn upload(&self, runtime: &Runtime, at: usize, numbers: &[f32]) -> Result<()> {
        let mut inner = runtime.memory().lock();
        inner.idle()?;
        let bytes = crate::bytes::of_f32(numbers);
        inner.device.upload(self.r.buffer, at * 4, bytes).map_err(Error::Device)
    }
}

fn bad(what: String) -> Error {
    Error::Weight { name: "low-rank matrices".into(), what }
}
