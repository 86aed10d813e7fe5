//! Adapters that rows choose: which layers have room for them, and which adapter is in which slot.
//!
//! Owns finding the place of each matrix, and putting a whole adapter into a slot between steps or none of it. Refuses
//! adapters that do not fit before it writes anything, and to change a slot that a sequence uses.

use std::sync::Arc;

use longrun_array::{LowRank, LowRankSpec, Runtime};

use super::{Adapter, Adapters, Identity};
use crate::error::{Error, Result};

/// The most adapters at the same time.
const MOST_SLOTS: usize = 1024;

/// The room for adapters beside the layers of a model.
pub(crate) struct Slots {
    room: Adapters,
    layers: Vec<Layer>,
    /// What is in each slot; the first stands for no adapter.
    held: Vec<Option<Identity>>,
    /// Sequences that use each; those without an adapter are not counted.
    users: Vec<usize>,
}

/// A layer, or some rows of one.
struct Layer {
    /// The name of its weight in the files, and its shape there.
    name: String,
    shape: [usize; 2],
    /// The rows of the weight that it has, if not all.
    order: Option<Box<[usize]>>,
    low_rank: Arc<LowRank>,
}

impl Layer {
    /// These of the rows of `b [rows, rank]`.
    fn rows(&self, b: &[f32], rank: usize) -> Vec<f32> {
        match &self.order {
            Some(order) => order.iter().flat_map(|row| &b[row * rank..][..rank]).copied().collect(),
            None => b.to_vec(),
        }
    }
}

impl Slots {
    /// No layers yet.
    ///
    /// # Errors
    /// There can't be so many slots, or adapters of no rank.
    pub(crate) fn new(room: Adapters) -> Result<Self> {
        let Adapters { slots, rank } = room;
        if slots > MOST_SLOTS {
            let error = Error::usage(format!("{slots} adapters at the same time"));
            return Err(error.hint(format!("at most {MOST_SLOTS} are possible")));
        }
        if slots > 0 && rank == 0 {
            let error = Error::usage("adapters of rank 0");
            return Err(error.hint("give the largest rank that any of them has"));
        }
        let mut held = vec![None; slots + 1];
        held[0] = Some(Identity::default());
        Ok(Self { room, layers: Vec::new(), users: vec![0; held.len()], held })
    }

    /// Makes room beside the rows `order` of the weight `name`, or beside all; `None` if there is none for any.
    ///
    /// # Errors
    /// Memory or objects run out.
    pub(crate) fn add(
        &mut self,
        runtime: &Runtime,
        name: String,
        shape: [usize; 2],
        order: Option<&[usize]>,
    ) -> Result<Option<Arc<LowRank>>> {
        let Adapters { slots, rank } = self.room;
        if slots == 0 {
            return Ok(None);
        }
        let rows = order.map_or(shape[0], <[usize]>::len);
        let spec = LowRankSpec { slots, rank, rows, cols: shape[1] };
        let low_rank = Arc::new(LowRank::new(runtime, spec)?);
        let order = order.map(Box::from);
        self.layers.push(Layer { name, shape, order, low_rank: low_rank.clone() });
        Ok(Some(low_rank))
    }

    /// Bytes of the room.
    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.low_rank.bytes()).sum()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.held.len() - 1
    }

    /// What is in a slot; `None` if that is nothing, or there is no such slot.
    pub(crate) fn identity(&self, slot: usize) -> Option<Identity> {
        self.held.get(slot).copied().flatten()
    }

    /// Whether any slot has it.
    pub(crate) fn has(&self, identity: Identity) -> bool {
        self.held.contains(&Some(identity))
    }

    /// One more sequence uses a slot.
    ///
    /// # Errors
    /// There is nothing in it.
    pub(crate) fn take(&mut self, slot: usize) -> Result<()> {
        self.check_held(slot)?;
        self.users[slot] += usize::from(slot > 0);
        Ok(())
    }

    /// # Errors
    /// There is no adapter in a slot, nor is it that of none.
    pub(crate) fn check_held(&self, slot: usize) -> Result<()> {
        match self.identity(slot) {
            Some(_) => Ok(()),
            None => Err(Error::usage(format!("no adapter is in slot {slot} of {}", self.count()))
                .hint("load one into it first, or ask for slot 0, which is none")),
        }
    }

    /// One sequence less uses a slot.
    pub(crate) fn give_back(&mut self, slot: usize) {
        self.users[slot] -= usize::from(slot > 0);
    }

    /// Puts an adapter into a slot, or leaves it empty, in place of what is there.
    ///
    /// # Errors
    /// There is no such slot, it is in use, or the adapter does not fit: then what was there stays. The device failed:
    /// then the slot is empty.
    pub(crate) fn set(
        &mut self,
        runtime: &mut Runtime,
        slot: usize,
        adapter: Option<&Adapter>,
    ) -> Result<()> {
        if slot == 0 || slot > self.count() {
            let what = format!("there is no adapter slot {slot}: there are {}", self.count());
            return Err(Error::usage(what).hint("slots are counted from 1; make more at the start"));
        }
        if self.users[slot] > 0 {
            let what = format!("adapter slot {slot} is in use by {} sequences", self.users[slot]);
            return Err(Error::usage(what).hint("wait until they have ended, or cancel them"));
        }
        if let Some(adapter) = adapter {
            self.check_fits(adapter)?;
        }
        // Nobody is given a slot whose adapter did not arrive whole.
        self.held[slot] = None;
        self.write(runtime, slot, adapter)?;
        self.held[slot] = adapter.map(Adapter::identity);
        Ok(())
    }

    fn check_fits(&self, adapter: &Adapter) -> Result<()> {
        let most = self.room.rank;
        for (name, delta) in &adapter.deltas {
            if delta.rank > most {
                let what = format!("a rank of {}, there is room for {most}", delta.rank);
                let error = Error::usage(what).at(name).at(&adapter.source);
                return Err(error.hint("make more room at the start"));
            }
        }
        for layer in &self.layers {
            if let Some(delta) = adapter.delta(&layer.name) {
                delta.check(layer.shape).map_err(|e| e.at(&layer.name).at(&adapter.source))?;
            }
        }
        adapter.check_used(self.layers.iter().map(|layer| layer.name.as_str()))
    }

    fn write(&self, runtime: &mut Runtime, slot: usize, adapter: Option<&Adapter>) -> Result<()> {
        for layer in &self.layers {
            match adapter.and_then(|adapter| adapter.delta(&layer.name)) {
                Some(delta) => {
                    let b = layer.rows(&delta.b, delta.rank);
                    layer.low_rank.write(runtime, slot, &delta.a, &b)?;
                }
                None => layer.low_rank.write(runtime, slot, &[], &[])?,
            }
        }
        Ok(())
    }
}
