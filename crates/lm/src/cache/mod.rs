//! Caches: what sequences keep on the device between steps, as pools that are made once.
//!
//! Owns the states (keys and values in blocks, recurrent records in slots, what tokens leave to the next step) and what a
//! model asks for; `pools.rs` has the free lists and a sequence's place in them, `blocks.rs` one free list.

mod blocks;
mod pools;
#[cfg(test)]
mod tests;

use longrun_array::{
    BLOCK, Key, Log, Runtime, State, StateKind, Step, Stored, TABLES, Tokens, Version,
};

use crate::error::{Error, Result};
pub(crate) use pools::{Copied, Facts};
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
    /// Only an indexer reads it.
    indexer: bool,
}

/// What a model keeps between steps. Layers add what they need while they load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSpec {
    paged: Vec<Paged>,
    records: Vec<Record>,
    /// Numbers that each token of a step leaves to the next step.
    carried: Option<usize>,
    kv: Stored,
}

/// What one recurrent record keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// Numbers of the record.
    len: usize,
    /// Numbers that a token brings to it.
    inputs: usize,
}

impl Record {
    fn kind(self, room: Room) -> StateKind {
        StateKind::Slots { len: self.len, log: Log { inputs: self.inputs, depth: room.drafts } }
    }
}

impl CacheSpec {
    fn add(&mut self, kind: StateKind, window: Option<usize>, every: usize) -> PagedId {
        self.paged.push(Paged { kind, window, every, indexer: false });
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

    /// Says that only an indexer reads this cache. It stays f32: a rounding that is small in a sum of values makes
    /// another choice here, and the difference of that is as large as a result (docs/memory.md has figures).
    pub fn mark_indexer(&mut self, id: PagedId) {
        self.paged[id.0].indexer = true;
    }

    /// With keys and values of this type; f32 until told otherwise.
    #[must_use]
    pub fn stored_as(self, kv: Stored) -> Self {
        Self { kv, ..self }
    }

    fn stored(&self, paged: &Paged) -> Stored {
        if paged.indexer { Stored::F32 } else { self.kv }
    }

    /// Caches that read equally far back and have an entry for equally many tokens share a pool: windows and tokens of
    /// each.
    fn groups(&self) -> Vec<(Option<usize>, usize)> {
        let mut groups: Vec<(Option<usize>, usize)> = Vec::new();
        for paged in &self.paged {
            if !groups.contains(&(paged.window, paged.every)) {
                groups.push((paged.window, paged.every));
            }
        }
        groups
    }

    /// Bytes of all states for `room`.
    pub(crate) fn bytes(&self, room: Room) -> usize {
        let (paged, records) = self.parts(room);
        paged.into_iter().map(|(_, bytes)| bytes).fold(records, usize::saturating_add)
    }

    /// Of these, what rows take however long their texts are: records and windows, and what their tokens leave to the
    /// next step.
    pub(crate) fn fixed_bytes(&self, room: Room) -> usize {
        let (paged, records) = self.parts(Room { snapshots: 0, ..room });
        let windows = paged.into_iter().filter(|(p, _)| p.window.is_some());
        windows.map(|(_, bytes)| bytes).fold(records, usize::saturating_add)
    }

    /// Entries a row of each block table for `room`.
    pub(crate) fn widths(&self, room: Room) -> [usize; TABLES] {
        Pools::new(&self.groups(), !self.records.is_empty(), room).widths()
    }

    /// Bytes of each paged cache, and of all records.
    fn parts(&self, room: Room) -> (Vec<(Paged, usize)>, usize) {
        let pools = Pools::new(&self.groups(), !self.records.is_empty(), room);
        let totals: Vec<_> = pools.totals().collect();
        let groups = self.groups();
        let paged = self.paged.iter().map(|p| {
            let pool = groups.iter().position(|g| *g == (p.window, p.every)).unwrap_or(0);
            (*p, p.kind.unit_bytes(self.stored(p)).saturating_mul(totals[pool]))
        });
        let slot = |record: &Record| record.kind(room).unit_bytes(Stored::F32);
        let slots = self.records.iter().map(slot).fold(0, usize::saturating_add);
        let records = slots.saturating_mul(pools.slot_count());
        (paged.collect(), records.saturating_add(self.carried_bytes(room)))
    }

    fn carried_bytes(&self, room: Room) -> usize {
        let bytes = |cols| StateKind::Carry { cols }.unit_bytes(Stored::F32);
        self.carried.map_or(0, |cols| bytes(cols).saturating_mul(room.units()))
    }

    /// A record of `len` numbers for each sequence, for an operation to which a token brings `inputs` numbers.
    pub fn record(&mut self, len: usize, inputs: usize) -> RecordId {
        self.records.push(Record { len, inputs });
        RecordId(self.records.len() - 1)
    }

    /// `cols` numbers that each token of a step leaves to the next step, whoever's that is. There is one such state.
    pub fn carry(&mut self, cols: usize) {
        self.carried = Some(cols);
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
    /// The most tokens of one sequence that may turn out wrong; 0 costs nothing.
    pub drafts: usize,
}

impl Room {
    /// The most tokens of a step: a chunk for one row, and for each of the others a token with its drafts.
    pub(crate) fn step_tokens(self) -> usize {
        let each = 1 + self.drafts;
        (self.chunk.max(each) + (self.rows - 1) * each).min(Key::MOST.0)
    }

    /// The same in whole steps of the key ladder.
    fn units(self) -> usize {
        let tokens = self.step_tokens();
        let fits = Tokens::ALL.into_iter().map(Tokens::capacity).find(|room| *room >= tokens);
        fits.unwrap_or(Key::MOST.0)
    }
}

/// The caches of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheType {
    /// The type.
    pub stored: Stored,
    /// How many caches have it.
    pub caches: usize,
    /// Bytes that a token takes in all of them; in those with a window for as long as it is inside.
    pub token_bytes: f64,
}

/// The states of all layers.
pub struct Caches {
    types: Vec<CacheType>,
    paged: Vec<State>,
    records: Vec<State>,
    carried: Option<State>,
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

    /// Opens what tokens leave to the next step, if they do.
    #[track_caller]
    pub(crate) fn carried<'s>(&self, step: Step<'s>) -> Option<Version<'s>> {
        self.carried.as_ref().map(|state| step.open(state))
    }

    /// The types of paged caches, from the widest to the narrowest, and what a token takes of each. Records are f32
    /// always: what is added to them stays for the rest of the text, and so would its rounding.
    pub fn types(&self) -> &[CacheType] {
        &self.types
    }

    /// Bytes of the records of one sequence.
    pub fn record_bytes(&self) -> usize {
        self.records.iter().map(State::unit_bytes).sum()
    }

    /// Bytes of all states.
    pub fn bytes(&self) -> usize {
        self.paged.iter().chain(&self.records).chain(&self.carried).map(State::bytes).sum()
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
    let groups = spec.groups();
    if groups.len() > TABLES {
        let what = format!("caches with {} different windows, the most is {TABLES}", groups.len());
        return Err(Error::unsupported(what));
    }
    let pools = Pools::new(&groups, !spec.records.is_empty(), room);
    let totals: Vec<_> = pools.totals().collect();
    let paged = spec.paged.iter().map(|p| {
        let table = groups.iter().position(|g| *g == (p.window, p.every)).unwrap_or(0);
        State::entries(runtime, p.kind, totals[table], table, p.every, spec.stored(p))
    });
    let paged = paged.collect::<longrun_array::Result<Vec<_>>>()?;
    let slots = pools.slot_count();
    let records = spec.records.iter();
    let records = records.map(|record| State::new(runtime, record.kind(room), slots, 0));
    let records = records.collect::<longrun_array::Result<_>>()?;
    let carry = |cols| State::new(runtime, StateKind::Carry { cols }, room.units(), 0);
    let carried = spec.carried.map(carry).transpose()?;
    Ok((Caches { types: types(spec, &paged), paged, records, carried }, pools))
}

fn types(spec: &CacheSpec, states: &[State]) -> Vec<CacheType> {
    let of_type = |stored: Stored| {
        let states = spec.paged.iter().zip(states).filter(|(_, state)| state.stored() == stored);
        let bytes =
            |(p, state): (&Paged, &State)| state.unit_bytes() as f64 / (BLOCK * p.every) as f64;
        let token_bytes = states.clone().map(bytes).sum();
        CacheType { stored, caches: states.count(), token_bytes }
    };
    Stored::ALL.into_iter().map(of_type).filter(|of| of.caches > 0).collect()
}
