//! What an executor's states hold, as bytes that another executor can take: blocks and slots, out and in.
//!
//! Owns the answer to whether another one may: the fingerprint. Refuses to know where bytes go or come from.

use longrun_array::{BLOCK, Runtime, State};
use twox_hash::XxHash3_128;

use super::Executor;
use crate::cache::{CacheSpec, Caches, Facts, Snapshot};
use crate::config::Config;
use crate::error::Result;

/// What has to agree where states travel from one executor to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The model: its config, its weights, its adapter.
    pub model: u128,
    /// What its states look like and what computes them: caches, types, block size, device, kernels, this program's
    /// version.
    pub form: u128,
}

impl Fingerprint {
    pub(super) fn new(
        runtime: &Runtime,
        config: &Config,
        weights: u128,
        spec: &CacheSpec,
        caches: &Caches,
    ) -> Self {
        let hash = |text: String| XxHash3_128::oneshot(text.as_bytes());
        let (version, device) = (env!("CARGO_PKG_VERSION"), runtime.numerics());
        let model = hash(format!("{weights:032x} {config:?}"));
        let form = hash(format!("{version} {device} {BLOCK} {spec:?} {:?}", caches.forms()));
        Self { model, form }
    }
}

/// A block of all caches of a pool, or a slot of all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Block { pool: usize, block: u32 },
    Slot(u32),
}

impl Unit {
    /// Its states in a fixed order, and which unit of each it is.
    fn states(self, caches: &Caches) -> (Vec<&State>, usize) {
        match self {
            Self::Block { pool, block } => (caches.of_pool(pool).collect(), block as usize),
            Self::Slot(slot) => (caches.records().iter().collect(), slot as usize),
        }
    }
}

impl Executor {
    /// What has to agree with another executor that takes this one's states.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Bytes of a block of this pool, or of a slot.
    pub(crate) fn unit_bytes(&self, unit: Unit) -> usize {
        unit.states(&self.bound.caches).0.into_iter().map(State::unit_bytes).sum()
    }

    /// Appends the bytes of a unit to `bytes`.
    ///
    /// # Errors
    /// There is no such unit, or the device failed.
    pub(crate) fn read_unit(&mut self, unit: Unit, bytes: &mut Vec<u8>) -> Result<()> {
        let (states, at) = unit.states(&self.bound.caches);
        let runtime = &mut self.runtime;
        Ok(states.into_iter().try_for_each(|state| runtime.read_unit(state, at, bytes))?)
    }

    /// Overwrites a unit with as many bytes as [`read_unit`](Self::read_unit) gave.
    ///
    /// # Errors
    /// As [`read_unit`](Self::read_unit), or `bytes` is shorter than the unit.
    pub(crate) fn write_unit(&mut self, unit: Unit, mut bytes: &[u8]) -> Result<()> {
        let (states, at) = unit.states(&self.bound.caches);
        for state in states {
            let (part, rest) = bytes.split_at(state.unit_bytes().min(bytes.len()));
            self.runtime.write_unit(state, at, part)?;
            bytes = rest;
        }
        Ok(())
    }

    /// A snapshot's memory, to be filled with [`write_unit`](Self::write_unit); `None` without room. `blocks` has those
    /// of each pool in order: one that another snapshot holds, or `None` for a free one.
    pub(crate) fn adopt(&mut self, facts: Facts, blocks: &[Vec<Option<u32>>]) -> Option<Snapshot> {
        self.bound.pools.adopt(facts, blocks)
    }
}
