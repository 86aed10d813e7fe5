//! What adapters put beside linear layers.
//!
//! Owns bringing the two matrices of an adapter that all rows have to the device, in f32, with rows in the order of the
//! layer's; and the room for those that rows choose. Refuses a matrix of another shape.

use std::cell::RefCell;
use std::collections::BTreeSet;

use longrun_array::{Format, MatrixSpec, Weight};

use super::{HostMatrix, Source, Weights};
use crate::adapter::Slots;
use crate::error::Result;
use crate::nn::Beside;

impl<'a> Weights<'a> {
    /// Adds the adapter of the checkpoint, if it has one, and notes in `adapted` which linear layers were there to
    /// take it.
    pub fn with_adapter(mut self, adapted: &'a RefCell<BTreeSet<String>>) -> Self {
        self.adapted = Some(adapted);
        self
    }

    /// Makes room for adapters that rows choose beside every linear layer, and notes it in `slots`.
    pub(crate) fn with_slots(mut self, slots: &'a RefCell<Slots>) -> Self {
        self.slots = Some(slots);
        self
    }

    /// What stands beside the rows `order` of `name [rows, cols]`, or beside all of them.
    pub(super) fn beside(
        &self,
        name: &str,
        shape: [usize; 2],
        order: Option<&[usize]>,
    ) -> Result<Option<Box<Beside>>> {
        let fixed = self.adapter(name, shape, order)?;
        let slots = match self.slots {
            Some(slots) => slots.borrow_mut().add(self.runtime, self.full(name), shape, order)?,
            None => None,
        };
        let some = fixed.is_some() || slots.is_some();
        Ok(some.then(|| Box::new(Beside { fixed, slots })))
    }

    /// The adapter's part beside the rows `order` of `name [rows, cols]`, or beside all of them.
    fn adapter(
        &self,
        name: &str,
        shape: [usize; 2],
        order: Option<&[usize]>,
    ) -> Result<Option<[Weight; 2]>> {
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
        let pair = [put(&all(&delta.a, [delta.rank, shape[1]]))?, put(&b)?];
        let new = adapted.borrow_mut().insert(full.clone());
        if let Some((read, _)) = self.read.filter(|_| new) {
            read.borrow_mut().adapter(&full, delta);
        }
        Ok(Some(pair))
    }
}
