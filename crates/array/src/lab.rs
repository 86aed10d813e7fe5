//! The leak lab (feature `leak-lab`): plants the historical leaks on purpose, to show that the checks can fail.
//!
//! Owns the planted chains. A chain is what a lazy array library holds when a field is rebuilt from itself and
//! never read: one live buffer a link. Absent from normal builds.

use crate::error::Result;
use crate::ledger::{Growth, Tag};
use crate::memory::{Buffer, Memory};
use crate::runtime::Runtime;

/// A leak to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Chains that grow side by side, one a layer.
    pub chains: usize,
    /// Bytes that each link pins.
    pub link_bytes: usize,
    /// Steps between links.
    pub every: usize,
}

/// Planted chains and the switches of the nets that should catch them.
#[derive(Default)]
pub struct Lab {
    leak: Option<Leak>,
    links: Vec<Buffer>,
    steps: usize,
    strict: bool,
    first_flag: Option<usize>,
}

impl Lab {
    /// One step has run: each chain grows by a link.
    pub(crate) fn advance(&mut self, memory: &Memory) -> Result<()> {
        self.steps += 1;
        let Some(leak) = self.leak.filter(|l| self.steps.is_multiple_of(l.every)) else {
            return Ok(());
        };
        for _ in 0..leak.chains {
            self.links.push(memory.allocate(leak.link_bytes, Tag::Lab, Growth::Lab)?);
        }
        Ok(())
    }

    /// The equality check has found a difference: a report, unless it is to be an error.
    pub(crate) fn tolerates(&mut self) -> bool {
        self.first_flag.get_or_insert(self.steps);
        !self.strict
    }
}

impl Runtime {
    /// Plants a leak. With `strict` the equality check stays an error, else it is a report: see
    /// [`Runtime::first_flagged_step`].
    pub fn plant(&mut self, leak: Leak, strict: bool) {
        self.lab = Lab { leak: Some(leak), strict, ..Lab::default() };
    }

    /// Drops all links, as evaluating the field would.
    pub fn heal(&mut self) {
        self.lab.links.clear();
    }

    /// The first step, counted from 1 since planting, at which the equality check saw a difference.
    pub fn first_flagged_step(&self) -> Option<usize> {
        self.lab.first_flag
    }
}
