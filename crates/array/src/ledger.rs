//! The ledger: how many buffers are alive, counted in objects first and in bytes second.
//!
//! Owns every count that this crate publishes and the limit on objects. Refuses an allocation that would pass the
//! limit, in words that can't be taken for bytes. It knows nothing of devices: the runtime's memory tells it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Parameters of a model.
    Weight,
    /// Memory that outlives a step and is written in place.
    State,
    /// Temporaries of a step, laid out by its plan.
    Arena,
    /// Step inputs and outputs.
    Io,
    /// Links of a leak that was planted on purpose (feature `leak-lab`).
    Lab,
}

impl Tag {
    /// Every tag, in declaration order.
    pub const ALL: [Self; 5] = [Self::Weight, Self::State, Self::Arena, Self::Io, Self::Lab];

    /// The name used in metrics and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::State => "state",
            Self::Arena => "arena",
            Self::Io => "io",
            Self::Lab => "lab",
        }
    }
}

/// The named operations in which the number of live buffers may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Weights are read.
    Load,
    /// Plans are compiled: the arena and the step inputs and outputs are made.
    Prepare,
    /// State for sequences is made.
    Admit,
    /// A leak is planted on purpose.
    Lab,
}

impl Growth {
    /// Every kind of growth, in declaration order.
    pub const ALL: [Self; 4] = [Self::Load, Self::Prepare, Self::Admit, Self::Lab];
}

/// Objects and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of buffers.
    pub buffers: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Count {
    fn add(&mut self, bytes: usize) {
        self.buffers += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.buffers -= 1;
        self.bytes -= bytes;
    }
}

/// Size classes are powers of two: class `c` holds buffers of at most `2^c` bytes and more than `2^(c-1)`.
pub const CLASSES: usize = 64;

/// The class of a buffer of `bytes`.
pub fn size_class(bytes: usize) -> usize {
    bytes.max(1).next_power_of_two().trailing_zeros() as usize
}

/// A copy of all counts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Buffers in use, those that wait for a step in flight included.
    pub live: Count,
    /// Freed buffers that are kept for reuse.
    pub cached: Count,
    /// Of the live ones: freed by their owner, and waiting for a step in flight.
    pub retired: Count,
    /// The most that was ever live.
    pub peak: Count,
    /// Live buffers by [`Tag`], in the order of [`Tag::ALL`].
    pub by_tag: [Count; Tag::ALL.len()],
    /// Live buffers by size class, see [`size_class`].
    pub by_class: [Count; CLASSES],
    /// Buffers ever made, by [`Growth`], in the order of [`Growth::ALL`].
    pub grown: [usize; Growth::ALL.len()],
    /// The most live plus cached buffers that are allowed.
    pub limit: usize,
}

impl Usage {
    /// The live count of one tag.
    pub fn tag(&self, tag: Tag) -> Count {
        self.by_tag[tag as usize]
    }

    /// The classes that hold live buffers: (largest bytes of the class, count), small to large.
    pub fn classes(&self) -> impl Iterator<Item = (usize, Count)> + '_ {
        let filled = self.by_class.iter().enumerate().filter(|(_, c)| c.buffers > 0);
        filled.map(|(class, count)| (1 << class, *count))
    }
}

/// An allocation was refused because of the number of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReached {
    /// The counts when it was refused.
    pub usage: Box<Usage>,
    /// What was asked for.
    pub bytes: usize,
    /// For what.
    pub tag: Tag,
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let u = &self.usage;
        write!(
            f,
            "the limit on the number of buffers was reached: {} live + {} cached of {} allowed (these are objects, \
             not bytes: all of them hold {} bytes); refused {} bytes for a {} buffer",
            u.live.buffers,
            u.cached.buffers,
            u.limit,
            u.live.bytes,
            self.bytes,
            self.tag.name()
        )?;
        let mut classes: Vec<_> = u.classes().collect();
        classes.sort_by_key(|(_, c)| std::cmp::Reverse(c.buffers));
        f.write_str("; fullest size classes:")?;
        for (bytes, count) in classes.iter().take(3) {
            write!(f, " <= {bytes} B: {}", count.buffers)?;
        }
        let mut tags: Vec<_> = Tag::ALL.iter().map(|&t| (u.tag(t).buffers, t.name())).collect();
        tags.sort_by(|a, b| b.cmp(a));
        f.write_str("; fullest tags:")?;
        for (count, name) in tags.iter().take(3).filter(|(count, _)| *count > 0) {
            write!(f, " {name}: {count}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LimitReached {}

/// The shared book. Cloning gives another handle on the same book.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Mutex<Usage>>);

impl Ledger {
    /// An empty book that allows `limit` live plus cached buffers.
    pub fn new(limit: usize) -> Self {
        let zero = Count::default();
        Self(Arc::new(Mutex::new(Usage {
            live: zero,
            cached: zero,
            retired: zero,
            peak: zero,
            by_tag: [zero; Tag::ALL.len()],
            by_class: [zero; CLASSES],
            grown: [0; Growth::ALL.len()],
            limit,
        })))
    }

    /// All counts now.
    pub fn usage(&self) -> Usage {
        *self.book()
    }

    /// The number of live buffers now.
    pub fn live(&self) -> usize {
        self.book().live.buffers
    }

    fn book(&self) -> MutexGuard<'_, Usage> {
        // The book is plain integers, changed in full by each method: a poisoned lock still holds a true one.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks whether one more object may exist. Must come before the driver is asked for memory.
    pub(crate) fn admit(&self, bytes: usize, tag: Tag) -> Result<(), LimitReached> {
        let book = self.book();
        if book.live.buffers + book.cached.buffers < book.limit {
            return Ok(());
        }
        Err(LimitReached { usage: Box::new(*book), bytes, tag })
    }

    pub(crate) fn count_new(&self, bytes: usize, tag: Tag, growth: Growth) {
        let mut book = self.book();
        book.live.add(bytes);
        book.by_tag[tag as usize].add(bytes);
        book.by_class[size_class(bytes)].add(bytes);
        book.grown[growth as usize] += 1;
        book.peak.buffers = book.peak.buffers.max(book.live.buffers);
        book.peak.bytes = book.peak.bytes.max(book.live.bytes);
    }

    pub(crate) fn count_freed(&self, bytes: usize, tag: Tag) {
        let mut book = self.book();
        book.live.remove(bytes);
        book.by_tag[tag as usize].remove(bytes);
        book.by_class[size_class(bytes)].remove(bytes);
    }

    pub(crate) fn count_retired(&self, bytes: usize) {
        self.book().retired.add(bytes);
    }

    pub(crate) fn count_settled(&self, bytes: usize) {
        self.book().retired.remove(bytes);
    }

    pub(crate) fn count_cached(&self, bytes: usize) {
        self.book().cached.add(bytes);
    }

    pub(crate) fn count_uncached(&self, bytes: usize) {
        self.book().cached.remove(bytes);
    }
}
