//! Caches: what sequences keep on the device between steps, as pools that are made once.
//!
//! Owns the states (keys and values in blocks, recurrent records in slots) and what a model asks for; `pools.rs` has the
//! free lists and a sequence's place in them, `blocks.rs` one free list.

mod blocks;
mod pools;
#[cfg(test)]
mod tests;

use longrun_array::{Runtime, State, StateKind, Step, TABLES, Version};

use crate::error::{Error, Result};
pub(crate) use pools::Copied;
pub use pools::{Pools, Sequence, Snapshot};

/// A paged cache of a model, by its place in [`CacheSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedId(usize);

/// A recurrent record of a model, by its place in [`CacheSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId(usize);

/// What one paged cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Paged {
    kind: StateKind,
    /// Only the last tokens are ever read.
    window: Option<usize>,
    /// Tokens that share one entry.
    every: usize,
}

/// What a model keeps between steps. Layers add what they need while they load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSpec {
    paged: Vec<Paged>,
    records: Vec<usize>,
}

impl CacheSpec {
    fn add(&mut self, kind: StateKind, window: Option<usize>, every: usize) -> PagedId {
        self.paged.push(Paged { kind, window, every });
        PagedId(self.paged.len() - 1)
    }

    /// Keys of each token, `heads` of `dim` numbers. With one head they may be their own values. With a window only the
    /// last tokens are ever read.
    pub fn keys(&mut self, heads: usize, dim: usize, window: Option<usize>) -> PagedId {
        self.add(StateKind::Keys { heads, dim }, window, 1)
    }

    /// Values of each token, alike.
    pub fn values(&mut self, heads: usize, dim: usize, window: Option<usize>) -> PagedId {
        self.add(StateKind::Values { heads, dim }, window, 1)
    }

    /// One key of `dim` numbers for each `every` tokens.
    pub fn entries(&mut self, dim: usize, every: usize) -> PagedId {
        self.add(StateKind::Keys { heads: 1, dim }, None, every)
    }

    /// A record of `len` numbers for each sequence.
    pub fn record(&mut self, len: usize) -> RecordId {
        self.records.push(len);
        RecordId(self.records.len() - 1)
    }
}

/// How much room sequences get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Sequences at the same time.
    pub rows: usize,
    /// The most tokens of one sequence.
    pub context: usize,
    /// The most tokens of all sequences together, in whole blocks each.
    pub tokens: usize,
    /// The most tokens of one sequence that a step reads.
    pub chunk: usize,
    /// Snapshots at the same time, see [`Pools`].
    pub snapshots: usize,
}

/// The states of all layers.
pub struct Caches {
    paged: Vec<State>,
    records: Vec<State>,
}

impl Caches {
    /// Opens a paged cache for this step.
    #[track_caller]
    pub(crate) fn paged<'s>(&self, step: Step<'s>, id: PagedId) -> Version<'s> {
        step.open(&self.paged[id.0])
    }

    /// Opens a record for this step.
    #[track_caller]
    pub(crate) fn record<'s>(&self, step: Step<'s>, id: RecordId) -> Version<'s> {
        step.open(&self.records[id.0])
    }

    /// Bytes of all states.
    pub fn bytes(&self) -> usize {
        self.paged.iter().chain(&self.records).map(State::bytes).sum()
    }

    /// What the bytes of each state mean, in words to compare.
    pub(crate) fn forms(&self) -> Vec<String> {
        self.paged.iter().chain(&self.records).map(State::form).collect()
    }

    /// The paged caches of a pool, in a fixed order.
    pub(crate) fn of_pool(&self, pool: usize) -> impl Iterator<Item = &State> {
        self.paged.iter().filter(move |state| state.table() == pool)
    }

    /// The records, in a fixed order.
    pub(crate) fn records(&self) -> &[State] {
        &self.records
    }
}

/// Makes the states that `spec` asks for, and the pools that hand them out.
///
/// # Errors
/// Memory or objects run out, or layers differ in more windows than there are block tables.
pub fn make(runtime: &Runtime, spec: &CacheSpec, room: Room) -> Result<(Caches, Pools)> {
    let mut groups: Vec<(Option<usize>, usize)> = Vec::new();
    for paged in &spec.paged {
        if !groups.contains(&(paged.window, paged.every)) {
            groups.push((paged.window, paged.every));
        }
    }
    if groups.len() > TABLES {
        let what = format!("caches with {} different windows, the most is {TABLES}", groups.len());
        return Err(Error::unsupported(what));
    }
    let pools = Pools::new(&groups, !spec.records.is_empty(), room);
    let totals: Vec<_> = pools.totals().collect();
    let paged = spec.paged.iter().map(|p| {
        let table = groups.iter().position(|g| *g == (p.window, p.every)).unwrap_or(0);
        State::entries(runtime, p.kind, totals[table], table, p.every)
    });
    let paged = paged.collect::<longrun_array::Result<_>>()?;
    let slots = pools.slot_count();
    let records = spec.records.iter();
    let records = records.map(|&len| State::new(runtime, StateKind::Slots { len }, slots, 0));
    let records = records.collect::<longrun_array::Result<_>>()?;
    Ok((Caches { paged, records }, pools))
}
