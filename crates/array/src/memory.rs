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
    pub(crate) memory: Memory,
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
    ledger: Ledger,
    pub(crate) device: Box<dyn Device>,
    /// Number of the next step; all before it were launched.
    pub(crate) issued: u64,
    /// All steps before this one have finished.
    pub(crate) finished: u64,
    /// Buffers that have an owner, each with a number that no other owner ever has. A freed buffer that is reused keeps
    /// its id, so an id alone does not tell whose memory it is.
    owners: BTreeMap<BufferId, u64>,
    next_owner: u64,
    /// Counts buffers that lost their owner: unchanged means that [`Inner::owners`] holds what it held.
    pub(crate) releases: u64,
    retired: Vec<Retired>,
    /// Freed buffers by exact size.
    cache: BTreeMap<usize, Vec<BufferId>>,
    cached_bytes: usize,
    cache_limit: usize,
}

impl Memory {
    pub(crate) fn new(device: Box<dyn Device>, ledger: Ledger, cache_limit: usize) -> Self {
        let inner = Inner {
            ledger: ledger.clone(),
            device,
            issued: 0,
            finished: 0,
            owners: BTreeMap::new(),
            next_owner: 0,
            releases: 0,
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
        let id = match inner.reuse(bytes)? {
            Some(id) => id,
            None => inner.allocate(bytes, tag)?,
        };
        let owner = inner.next_owner;
        inner.next_owner += 1;
        inner.owners.insert(id, owner);
        self.ledger.count_new(bytes, tag, growth);
        Ok(Buffer { id, bytes, tag, memory: self.clone() })
    }

    /// Whether both are handles on one device.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    fn release(&self, id: BufferId, bytes: usize, tag: Tag) {
        let mut inner = self.lock();
        inner.owners.remove(&id);
        inner.releases += 1;
        if inner.finished < inner.issued {
            let until = Ticket(inner.issued - 1);
            self.ledger.count_retired(bytes);
            inner.retired.push(Retired { id, bytes, tag, until });
        } else {
            inner.give_back(id, bytes, tag);
        }
    }
}

/// What freed memory is overwritten with before it is reused, a piece at a time.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

impl Inner {
    /// Steps that were launched and not yet waited for.
    pub(crate) fn in_flight(&self) -> u64 {
        self.issued - self.finished
    }

    /// An error if a step is in flight.
    pub(crate) fn idle(&self) -> Result<()> {
        match self.in_flight() {
            0 => Ok(()),
            steps => Err(Error::InFlight { steps }),
        }
    }

    /// The owner of a buffer now, if it has one.
    pub(crate) fn owner(&self, id: BufferId) -> Option<u64> {
        self.owners.get(&id).copied()
    }

    /// Notes that all steps up to `ticket` have finished; frees what waited for them.
    pub(crate) fn settle(&mut self, ticket: Ticket) {
        self.finished = self.finished.max(ticket.0 + 1);
        let mut i = 0;
        while i < self.retired.len() {
            if self.retired[i].until.0 < self.finished {
                let r = self.retired.swap_remove(i);
                self.ledger.count_settled(r.bytes);
                self.give_back(r.id, r.bytes, r.tag);
            } else {
                i += 1;
            }
        }
    }

    /// Waits for all steps in flight, whose results nobody will read, and frees what waited for them.
    pub(crate) fn finish(&mut self) {
        for ticket in (self.finished..self.issued).map(Ticket) {
            // A step that failed has finished too.
            let _ = self.device.wait(ticket);
            self.settle(ticket);
        }
    }

    /// A cached buffer of exactly `bytes`, zeroed.
    fn reuse(&mut self, bytes: usize) -> Result<Option<BufferId>> {
        let Some(ids) = self.cache.get_mut(&bytes) else { return Ok(None) };
        let id = ids.pop();
        if ids.is_empty() {
            self.cache.remove(&bytes);
        }
        let Some(id) = id else { return Ok(None) };
        self.cached_bytes -= bytes;
        self.ledger.count_uncached(bytes);
        for at in (0..bytes).step_by(ZEROS.len()) {
            let len = ZEROS.len().min(bytes - at);
            if let Err(what) = self.device.upload(id, at, &ZEROS[..len]) {
                self.device.free(id);
                return Err(Error::Device(what));
            }
        }
        Ok(Some(id))
    }

    /// A new buffer. What is cached goes before anything is refused.
    fn allocate(&mut self, bytes: usize, tag: Tag) -> Result<BufferId> {
        if self.ledger.admit(bytes, tag).is_err() {
            self.drop_cache();
            self.ledger.admit(bytes, tag)?;
        }
        if let Some(id) = self.device.allocate(bytes) {
            return Ok(id);
        }
        self.drop_cache();
        let id = self.device.allocate(bytes);
        id.ok_or_else(|| Error::Memory {
            device: self.device.name(),
            bytes,
            tag: tag.name(),
            live: self.ledger.usage().live.bytes,
            left: self
                .device
                .memory()
                .map_or_else(String::new, |(free, all)| format!("; {free} of {all} are free")),
        })
    }

    fn give_back(&mut self, id: BufferId, bytes: usize, tag: Tag) {
        self.ledger.count_freed(bytes, tag);
        if bytes <= self.cache_limit - self.cached_bytes {
            self.cache.entry(bytes).or_default().push(id);
            self.cached_bytes += bytes;
            self.ledger.count_cached(bytes);
        } else {
            self.device.free(id);
        }
    }

    fn drop_cache(&mut self) {
        for (bytes, ids) in std::mem::take(&mut self.cache) {
            for id in ids {
                self.device.free(id);
                self.ledger.count_uncached(bytes);
            }
        }
        self.cached_bytes = 0;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.drop_cache();
    }
}
