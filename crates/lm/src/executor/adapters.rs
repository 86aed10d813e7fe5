//! Adapters that sequences choose: into slots and out of them, and which of them a sequence uses.
//!
//! Owns nothing: the slots are in `adapter/slots.rs`. Making, filling and emptying them leaves the number of live buffers
//! as it is.

use super::Executor;
use crate::adapter::{Adapter, Identity};
use crate::cache::Sequence;
use crate::error::Result;

impl Executor {
    /// How many slots for adapters there are. They are counted from 1; 0 stands for no adapter.
    pub fn adapter_slots(&self) -> usize {
        self.slots.count()
    }

    /// What is in a slot: `None` if that is nothing, or there is no such slot.
    pub fn adapter(&self, slot: usize) -> Option<Identity> {
        self.slots.identity(slot)
    }

    /// Whether any slot has this adapter.
    pub(crate) fn has_adapter(&self, identity: Identity) -> bool {
        self.slots.has(identity)
    }

    /// # Errors
    /// Nothing is in this slot.
    pub(crate) fn check_adapter(&self, slot: usize) -> Result<()> {
        self.slots.check_held(slot)
    }

    /// Puts an adapter into a slot, in place of what is there.
    ///
    /// # Errors
    /// There is no such slot, a sequence uses it, or the adapter does not fit: its rank is above the room's, a layer of
    /// it is not there or takes none, a shape is another. Then what was there stays. The device failed: then the slot is
    /// empty.
    pub fn load_adapter(&mut self, slot: usize, adapter: &Adapter) -> Result<()> {
        self.slots.set(&mut self.runtime, slot, Some(adapter))
    }

    /// Leaves a slot empty.
    ///
    /// # Errors
    /// There is no such slot, a sequence uses it, or the device failed.
    pub fn unload_adapter(&mut self, slot: usize) -> Result<()> {
        self.slots.set(&mut self.runtime, slot, None)
    }

    /// Has a sequence use the adapter in `slot` (0 for none) from now on. What it has read, it has to have read with the
    /// same one.
    ///
    /// # Errors
    /// Nothing is in the slot; the sequence then uses what it did.
    pub fn use_adapter(&mut self, seq: &mut Sequence, slot: usize) -> Result<()> {
        self.slots.take(slot)?;
        self.slots.give_back(std::mem::replace(&mut seq.adapter, slot));
        Ok(())
    }
}
