//! Weights: read-only memory of a model, shared by cloning the handle.
//!
//! Owns the check that bytes fit a shape. How a matrix lies in memory is the device's choice, made at load.

use std::sync::Arc;

use crate::device::{BufferId, MatrixSpec};
use crate::ledger::{Growth, Tag};
use crate::memory::Buffer;
use crate::{Error, Result, Runtime};

/// What a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKind {
    /// A matrix, or a stack of them (experts), in the device's layout.
    Matrix(MatrixSpec),
    /// `len` f32 numbers in order: norms, biases, convolution taps, frequencies.
    Vector {
        /// How many.
        len: usize,
    },
}

/// A weight as operations name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightRef {
    /// Its memory.
    pub buffer: BufferId,
    /// What it is.
    pub kind: WeightKind,
}

impl WeightRef {
    /// How many numbers a vector has.
    pub(crate) fn vector(self) -> std::result::Result<usize, String> {
        match self.kind {
            WeightKind::Vector { len } => Ok(len),
            WeightKind::Matrix(spec) => Err(format!("wants a vector, has a matrix {spec:?}")),
        }
    }
}

/// A weight. Clones share the memory (a tied embedding is one weight).
#[derive(Clone)]
pub struct Weight {
    buffer: Arc<Buffer>,
    pub(crate) r: WeightRef,
}

impl Weight {
    /// A matrix from its file bytes, row-major.
    ///
    /// # Errors
    /// The bytes do not fit the shape, or there are none; the object limit or the device's memory is reached.
    pub fn matrix(runtime: &Runtime, name: &str, spec: MatrixSpec, rows: &[u8]) -> Result<Self> {
        let bad = |what: String| Error::Weight { name: name.into(), what };
        let want = spec.format.row_bytes(spec.cols).and_then(|b| {
            b.checked_mul(spec.rows)?.checked_mul(spec.experts).filter(|&bytes| bytes > 0)
        });
        if want != Some(rows.len()) {
            let (have, f) = (rows.len(), spec.format.name());
            let [e, n, k] = [spec.experts, spec.rows, spec.cols];
            return Err(bad(format!("{have} bytes can't be {e} x [{n}, {k}] in {f}")));
        }
        let memory = runtime.memory();
        let size = memory.lock().device.matrix_bytes(&spec);
        let size = size.ok_or_else(|| bad("the device has no layout for this shape".into()))?;
        let buffer = memory.allocate(size, Tag::Weight, Growth::Load)?;
        memory.lock().device.load_matrix(buffer.id, &spec, rows).map_err(bad)?;
        let r = WeightRef { buffer: buffer.id, kind: WeightKind::Matrix(spec) };
        Ok(Self { buffer: Arc::new(buffer), r })
    }

    /// A vector.
    ///
    /// # Errors
    /// The object limit or the device's memory is reached.
    pub fn vector(runtime: &Runtime, name: &str, numbers: &[f32]) -> Result<Self> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let memory = runtime.memory();
        let buffer = memory.allocate(bytes.len().max(4), Tag::Weight, Growth::Load)?;
        let done = memory.lock().device.upload(buffer.id, 0, &bytes);
        done.map_err(|what| Error::Weight { name: name.into(), what })?;
        let kind = WeightKind::Vector { len: numbers.len() };
        Ok(Self { r: WeightRef { buffer: buffer.id, kind }, buffer: Arc::new(buffer) })
    }

    /// Bytes of its memory on the device.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes
    }

    /// What it is.
    pub fn kind(&self) -> WeightKind {
        self.r.kind
    }
}
