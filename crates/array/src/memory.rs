//! Owned device memory: who holds a buffer, when it may go, and the book it is counted in.
//!
//! Owns the device, the retire list (buffers freed by their owner while a step in flight may still use them) and a
//! bounded store of freed buffers for reuse. Refuses to give memory that the ledger does not admit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{BufferId, Device, Ticket};
use crate::error::{Error, Result};
use crate::ledger::{Growth, Ledger, Tag};

/// Device memory with one owner; dropping it gives the memory back.
pub(crate) struct Buffer {
    pub(crate) id: BufferId,
    pub(crate) bytes: usize,
    tag: Tag,
    memory: Memory,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory.release(self.id, self.bytes, self.tag);
    }
}

/// The device and everything allocated on it. Cloning gives another handle.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) ledger: Ledger,
    inner: Arc<Mutex<Inner>>,
}

struct Retired {
    id: BufferId,
    bytes: usize,
    tag: Tag,
    until: Ticket,
}

pub(crate) struct Inner {
    pub(crate) device: Box<dyn Device>,
    /// Number of the next step; all before it were launched.
    pub(crate) issued: u64,
    /// All steps before this one have finished.
    pub(crate) finished: u64,
    retired: Vec<Retired>,
    /// Freed buffers by exact size.
    cache: BTreeMap<usize, Vec<BufferId>>,
    cached_bytes: usize,
    cache_limit: usize,
}

impl Memory {
    pub(crate) fn new(device: Box<dyn Device>, ledger: Ledger, cache_limit: usize) -> Self {
        let inner = Inner {
            device,
            issued: 0,
            finished: 0,
            retired: Vec::new(),
            cache: BTreeMap::new(),
            cached_bytes: 0,
            cache_limit,
        };
        Self { ledger, inner: Arc::new(Mutex::new(inner)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under the lock comes from a kernel; the lists here are changed only between kernels.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn allocate(&self, bytes: usize, tag: Tag, growth: Growth) -> Result<Buffer> {
        let mut inner = self.lock();
        let reused = inner.take_cached(bytes, &self.ledger);
        let id = match reused {
            Some(id) => id,
            None => {
                if self.ledger.admit(bytes, tag).is_err() {
                    inner.drop_cache(&self.ledger);
                    self.ledger.admit(bytes, tag)?;
                }
                inner.device.allocate(bytes).ok_or_else(|| Error::Memory {
                    device: inner.device.name(),
                    bytes,
                    tag: tag.name(),
                })?
            }
        };
        self.ledger.count_new(bytes, tag, growth);
        Ok(Buffer { id, bytes, tag, memory: self.clone() })
    }

    fn release(&self, id: BufferId, bytes: usize, tag: Tag) {
        let mut inner = self.lock();
        if inner.finished < inner.issued {
            let until = Ticket(inner.issued - 1);
            self.ledger.count_retired(bytes);
            inner.retired.push(Retired { id, bytes, tag, until });
        } else {
            inner.give_back(id, bytes, tag, &self.ledger);
        }
    }

    /// Notes that all steps up to `ticket` have finished; frees what waited for them.
    pub(crate) fn settle(&self, inner: &mut Inner, ticket: Ticket) {
        inner.finished = inner.finished.max(ticket.0 + 1);
        let mut i = 0;
        while i < inner.retired.len() {
            if inner.retired[i].until.0 < inner.finished {
                let r = inner.retired.swap_remove(i);
                self.ledger.count_settled(r.bytes);
                inner.give_back(r.id, r.bytes, r.tag, &self.ledger);
            } else {
                i += 1;
            }
        }
    }
}

impl Inner {
    fn take_cached(&mut self, bytes: usize, ledger: &Ledger) -> Option<BufferId> {
        let ids = self.cache.get_mut(&bytes)?;
        let id = ids.pop()?;
        if ids.is_empty() {
            self.cache.remove(&bytes);
        }
        self.cached_bytes -= bytes;
        ledger.count_uncached(bytes);
        Some(id)
    }

    fn give_back(&mut self, id: BufferId, bytes: usize, tag: Tag, ledger: &Ledger) {
        ledger.count_freed(bytes, tag);
        if self.cached_bytes + bytes <= self.cache_limit {
            self.cache.entry(bytes).or_default().push(id);
            self.cached_bytes += bytes;
            ledger.count_cached(bytes);
        } else {
            self.device.free(id);
        }
    }

    fn drop_cache(&mut self, ledger: &Ledger) {
        for (bytes, ids) in std::mem::take(&mut self.cache) {
            for id in ids {
                self.device.free(id);
                ledger.count_uncached(bytes);
            }
        }
        self.cached_bytes = 0;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for ids in std::mem::take(&mut self.cache).into_values() {
            ids.into_iter().for_each(|id| self.device.free(id));
        }
    }
}
