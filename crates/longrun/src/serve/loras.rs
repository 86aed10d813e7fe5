//! Adapters by name, and the slots of a model that they take turns in.
//!
//! Owns who is in which slot. An adapter leaves a slot only when no request uses it; one that finds no slot is refused
//! for now, and may come again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use longrun_lm::adapter::{Adapter, Adapters};
use longrun_lm::engine::{Engine, Service};
use longrun_lm::{Error, Result};

use super::error::{ApiError, ApiResult};

/// The adapters of a model.
pub(crate) struct Loras {
    named: Vec<(String, Adapter)>,
    rank: usize,
    slots: Mutex<Vec<Slot>>,
}

/// A slot of the engine; the first one is slot 1 there.
#[derive(Default)]
struct Slot {
    /// Which of the named ones is in it.
    adapter: Option<usize>,
    users: Arc<()>,
    /// Grows with each use of any.
    used: u64,
}

/// An adapter that stays in its slot as long as this lives.
pub(crate) struct InUse {
    slot: usize,
    _user: Arc<()>,
}

impl InUse {
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }
}

impl Loras {
    /// Opens adapters, of which `most` are in slots at the same time.
    ///
    /// # Errors
    /// One is no adapter, or there is no slot for any.
    pub(crate) fn open(named: &[(String, PathBuf)], most: Option<usize>) -> Result<Self> {
        let open = |(name, path): &(String, PathBuf)| Ok((name.clone(), Adapter::open(path)?));
        let named = named.iter().map(open).collect::<Result<Vec<_>>>();
        let named = named.map_err(|e| e.at("--lora"))?;
        let slots = most.unwrap_or(named.len()).min(named.len());
        if slots == 0 && !named.is_empty() {
            return Err(Error::usage("no adapter has a place").at("--max-loras"));
        }
        let rank = named.iter().map(|(_, adapter)| adapter.rank()).max().unwrap_or(0);
        let slots = std::iter::repeat_with(Slot::default).take(slots).collect();
        Ok(Self { named, rank, slots: Mutex::new(slots) })
    }

    /// What the engine has to have room for.
    pub(crate) fn room(&self) -> Adapters {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Adapters { slots: slots.len(), rank: self.rank }
    }

    /// Puts the first ones into the slots.
    ///
    /// # Errors
    /// One of all is not for this model.
    pub(crate) fn fill(&self, engine: &mut Engine) -> Result<()> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // Each is tried, the first ones last: a wrong one is known at the start.
        for (i, (name, adapter)) in self.named.iter().enumerate().rev() {
            let slot = i % slots.len();
            let set = engine.set_adapter(slot + 1, Some(adapter));
            set.map_err(|e| e.at(name).at("--lora"))?;
            slots[slot].adapter = Some(i);
        }
        Ok(())
    }

    /// An adapter in a slot. It waits for the step under way if it has to be put there.
    pub(crate) fn take(&self, name: &str, service: &Service) -> ApiResult<InUse> {
        let wanted = self.named.iter().position(|(known, _)| known == name);
        let wanted = wanted.ok_or_else(|| ApiError::not_found(format!("no adapter {name:?}")))?;
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let now = slots.iter().map(|slot| slot.used).max().unwrap_or(0) + 1;
        let there = slots.iter().position(|slot| slot.adapter == Some(wanted));
        let place = match there {
            Some(place) => place,
            None => {
                let free =
                    slots.iter().enumerate().filter(|(_, s)| Arc::strong_count(&s.users) == 1);
                let oldest = free.min_by_key(|(_, slot)| slot.used).map(|(i, _)| i);
                let place = oldest.ok_or_else(|| {
                    ApiError::unavailable("all slots of adapters are in use; see --max-loras")
                })?;
                slots[place].adapter = None;
                service.set_adapter(place + 1, Some(self.named[wanted].1.clone()))?;
                slots[place].adapter = Some(wanted);
                place
            }
        };
        slots[place].used = now;
        Ok(InUse { slot: place + 1, _user: Arc::clone(&slots[place].users) })
    }
}
