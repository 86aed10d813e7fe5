//! What an adapter puts beside linear layers.
//!
//! Owns bringing its two matrices to the device, in f32, with rows in the order of the layer's. Refuses one of another
//! shape.

use std::cell::RefCell;
use std::collections::BTreeSet;

use longrun_array::{Format, MatrixSpec, Weight};

use super::{HostMatrix, Source, Weights};
use crate::error::Result;
use crate::nn::LowRank;

impl<'a> Weights<'a> {
    /// Adds the adapter of the checkpoint, if it has one, and notes in `adapted` which linear layers were there to
    /// take it.
    pub fn with_adapter(mut self, adapted: &'a RefCell<BTreeSet<String>>) -> Self {
        self.adapted = Some(adapted);
        self
    }

    /// The adapter's part beside the rows `order` of `name [rows, cols]`, or beside all of them.
    pub(super) fn adapter(
        &self,
        name: &str,
        shape: [usize; 2],
        order: Option<&[usize]>,
    ) -> Result<Option<Box<LowRank>>> {
        let (Source::Checkpoint(c), Some(adapted)) = (self.source, self.adapted) else {
            return Ok(None);
        };
        let full = self.full(name);
        let Some(delta) = c.adapter().and_then(|adapter| adapter.delta(&full)) else {
            return Ok(None);
        };
        delta.check(shape).map_err(|e| e.at(&full))?;
        let all = |numbers: &[f32], shape| HostMatrix::of_numbers(numbers, shape, Format::F32);
        let b = all(&delta.b, [shape[0], delta.rank]);
        let b = match order {
            Some(order) => b.take_rows(order.iter().copied()),
            None => b,
        };
        let put = |host: &HostMatrix<'_>| {
            let HostMatrix { format, rows, cols, .. } = *host;
            let spec = MatrixSpec { format, experts: 1, rows, cols };
            Weight::matrix(self.runtime, &full, spec, &host.bytes)
        };
        let pair = LowRank { a: put(&all(&delta.a, [delta.rank, shape[1]]))?, b: put(&b)? };
        let new = adapted.borrow_mut().insert(full.clone());
        if let Some((read, _)) = self.read.filter(|_| new) {
            read.borrow_mut().adapter(&full, delta);
        }
        Ok(Some(Box::new(pair)))
    }
}
