//! Caches: what sequences keep on the device between steps, as pools that are made once.
//!
//! Owns the states (keys and values in blocks, recurrent records in slots), the free lists, and a sequence's place
//! in them. A sequence is integers: joining, leaving and growing move integers, never arrays.

use longrun_array::{BLOCK, Runtime, State, StateKind, Step, Stored, TABLES, Version};

use crate::error::{Error, Kind, Result};

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

impl Paged {
    /// Its type where the model's is `kv`. An indexer's keys stay f32: a rounding that is small in a sum of values makes
    /// another choice here, and the difference of that is as large as a result (docs/memory.md has figures).
    fn stored(&self, kv: Stored) -> Stored {
        if self.indexer { Stored::F32 } else { kv }
    }
}

/// What a model keeps between steps. Layers add what they need while they load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSpec {
    paged: Vec<Paged>,
    records: Vec<usize>,
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

    /// Says that only an indexer reads this cache.
    pub fn mark_indexer(&mut self, id: PagedId) {
        self.paged[id.0].indexer = true;
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
        self.paged.iter().chain(&self.records).map(State::bytes).sum()
    }
}

/// Blocks of all caches that read equally far back and have an entry for equally many tokens: one free list, one block
/// table a sequence.
struct BlockPool {
    window: Option<usize>,
    every: usize,
    /// Entries of a sequence's table; block `j` is entry `j % width`.
    width: usize,
    free: Vec<u32>,
    total: usize,
}

impl BlockPool {
    fn new(window: Option<usize>, every: usize, room: &Room) -> Self {
        let of = |tokens: usize| tokens.div_ceil(every).div_ceil(BLOCK);
        let whole = of(room.context);
        let (width, total) = match window {
            // The blocks that a chunk and the window behind its first token can touch.
            Some(w) => {
                let width = ((w + room.chunk).div_ceil(BLOCK) + 1).min(whole);
                (width, width * room.rows)
            }
            // Where several tokens share an entry, the last block of each row may be almost empty.
            None => {
                let odd = if every == 1 { 0 } else { room.rows };
                (whole, (of(room.tokens) + odd).max(whole))
            }
        };
        Self { window, every, width, free: (0..total as u32).rev().collect(), total }
    }

    /// The first position that a token at `pos` reads.
    fn first_read(&self, pos: usize) -> usize {
        self.window.map_or(0, |w| (pos + 1).saturating_sub(w))
    }
}

/// All pools of a model.
pub struct Pools {
    blocks: Vec<BlockPool>,
    slots: Vec<u32>,
    room: Room,
}

/// A sequence's place in the pools. Give it back with [`Pools::release`].
#[derive(Debug)]
pub struct Sequence {
    /// Its record in slot states.
    pub slot: u32,
    /// Tokens that its states hold.
    pub past: usize,
    /// What its positions are stretched by, from its first token to its last.
    pub stretch: f32,
    /// Block tables, one for each pool.
    pub tables: [Vec<u32>; TABLES],
    /// The blocks held in each table, by number in the sequence.
    held: [std::ops::Range<usize>; TABLES],
}

/// Makes the states that `spec` asks for, keys and values of type `kv`, and the pools that hand them out.
///
/// # Errors
/// Memory or objects run out, or layers differ in more windows than there are block tables.
pub fn make(
    runtime: &Runtime,
    spec: &CacheSpec,
    room: Room,
    kv: Stored,
) -> Result<(Caches, Pools)> {
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
    let blocks: Vec<_> =
        groups.iter().map(|(window, every)| BlockPool::new(*window, *every, &room)).collect();
    let paged = spec.paged.iter().map(|p| {
        let table = groups.iter().position(|g| *g == (p.window, p.every)).unwrap_or(0);
        State::entries(runtime, p.kind, blocks[table].total, table, p.every, p.stored(kv))
    });
    let paged = paged.collect::<longrun_array::Result<Vec<_>>>()?;
    let records = spec.records.iter();
    let records = records.map(|&len| State::new(runtime, StateKind::Slots { len }, room.rows, 0));
    let records = records.collect::<longrun_array::Result<_>>()?;
    let slots = (0..room.rows as u32).rev().collect();
    Ok((Caches { types: types(spec, &paged), paged, records }, Pools { blocks, slots, room }))
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

impl Pools {
    /// Entries a row of each block table.
    pub fn widths(&self) -> [usize; TABLES] {
        std::array::from_fn(|i| self.blocks.get(i).map_or(0, |p| p.width))
    }

    /// The room that was made.
    pub fn room(&self) -> Room {
        self.room
    }

    /// Whether every block and slot is free.
    pub fn all_free(&self) -> bool {
        self.slots.len() == self.room.rows
            && self.blocks.iter().all(|pool| pool.free.len() == pool.total)
    }

    /// A place for one more sequence, whose positions are stretched by `stretch` (1 where they can't be).
    ///
    /// # Errors
    /// All rows are taken.
    pub fn admit(&mut self, stretch: f32) -> Result<Sequence> {
        let slot = self.slots.pop().ok_or_else(|| {
            Error::new(Kind::Limit, format!("all {} rows are taken", self.room.rows))
        })?;
        let tables = std::array::from_fn(|i| vec![0; self.blocks.get(i).map_or(0, |p| p.width)]);
        Ok(Sequence { slot, past: 0, stretch, tables, held: Default::default() })
    }

    /// Gives everything back.
    pub fn release(&mut self, mut seq: Sequence) {
        for (i, pool) in self.blocks.iter_mut().enumerate() {
            for j in std::mem::take(&mut seq.held[i]) {
                pool.free.push(seq.tables[i][j % pool.width]);
            }
        }
        self.slots.push(seq.slot);
    }

    /// Holds blocks for `count` more tokens; lets go of those that have left a window.
    ///
    /// # Errors
    /// The context is full or no block is free. What was taken for this sequence stays with it.
    pub fn reserve(&mut self, seq: &mut Sequence, count: usize) -> Result<()> {
        let end = seq.past + count;
        if end > self.room.context {
            let what = format!("{end} tokens are more than the context of {}", self.room.context);
            return Err(Error::new(Kind::Limit, what));
        }
        for (i, pool) in self.blocks.iter_mut().enumerate() {
            let (table, held) = (&mut seq.tables[i], &mut seq.held[i]);
            let gone = pool.first_read(seq.past) / BLOCK;
            while held.start < gone.min(held.end) {
                pool.free.push(table[held.start % pool.width]);
                held.start += 1;
            }
            held.start = held.start.max(gone).min(held.end.max(gone));
            held.end = held.end.max(held.start);
            while held.end < (end / pool.every).div_ceil(BLOCK) {
                let block = pool.free.pop().ok_or_else(|| {
                    Error::new(
                        Kind::Limit,
                        format!("all {} blocks of {BLOCK} tokens are taken", pool.total),
                    )
                })?;
                table[held.end % pool.width] = block;
                held.end += 1;
            }
        }
        Ok(())
    }
}

impl Sequence {
    /// The used part of each block table, as a step's inputs want it.
    pub fn used_tables(&self) -> [&[u32]; TABLES] {
        std::array::from_fn(|i| {
            let table = &self.tables[i];
            &table[..self.held[i].end.min(table.len())]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longrun_array::{Limits, NullDevice};
    use proptest::prelude::*;

    #[test]
    fn each_cache_has_its_type_and_tokens_their_bytes() {
        let runtime = Runtime::new(Box::new(NullDevice::new()), Limits::default());
        let mut spec = CacheSpec::default();
        spec.keys(2, 64, None);
        spec.values(2, 64, Some(70));
        let index = spec.entries(32, 4);
        spec.mark_indexer(index);
        spec.record(10);
        let room = Room { rows: 3, context: 100, tokens: 300, chunk: 8 };
        let list = |kv| {
            let (caches, _) = make(&runtime, &spec, room, kv).unwrap();
            assert_eq!(caches.record_bytes(), 40);
            caches.types().iter().map(|t| (t.stored, t.caches, t.token_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(list(Stored::F32), [(Stored::F32, 3, 1024.0 + 32.0)]);
        assert_eq!(list(Stored::Q8), [(Stored::F32, 1, 32.0), (Stored::Q8, 2, 272.0)]);
        assert_eq!(list(Stored::Q4), [(Stored::F32, 1, 32.0), (Stored::Q4, 2, 160.0)]);
    }

    proptest! {
        /// Sequences that join, grow and leave in any order never share a block, hold all that their next token
        /// reads, and give everything back.
        #[test]
        fn blocks_are_held_once_and_come_back(
            moves in proptest::collection::vec((0usize..4, 1usize..40), 1..120)
        ) {
            let runtime = Runtime::new(Box::new(NullDevice::new()), Limits::default());
            let mut spec = CacheSpec::default();
            for window in [None, Some(70), Some(1)] {
                spec.keys(1, 8, window);
            }
            spec.entries(8, 4);
            let room = Room { rows: 4, context: 400, tokens: 800, chunk: 40 };
            let (_caches, mut pools) = make(&runtime, &spec, room, Stored::F32).unwrap();
            let live = runtime.usage().live;
            let mut seqs: Vec<Option<Sequence>> = (0..4).map(|_| None).collect();
            for (who, count) in moves {
                let Some(seq) = &mut seqs[who] else {
                    seqs[who] = Some(pools.admit(1.0).unwrap());
                    continue;
                };
                if pools.reserve(seq, count).is_err() {
                    pools.release(seqs[who].take().unwrap());
                    continue;
                }
                for i in 0..4 {
                    let first = pools.blocks[i].first_read(seq.past) / BLOCK;
                    prop_assert!(seq.held[i].start <= first);
                    let entries = (seq.past + count) / pools.blocks[i].every;
                    prop_assert!(seq.held[i].end * BLOCK >= entries);
                    prop_assert!(seq.held[i].len() <= pools.blocks[i].width);
                }
                seq.past += count;
                for (i, pool) in pools.blocks.iter().enumerate() {
                    let mut all = pool.free.clone();
                    for seq in seqs.iter().flatten() {
                        all.extend(seq.held[i].clone().map(|j| seq.tables[i][j % pool.width]));
                    }
                    all.sort_unstable();
                    prop_assert_eq!(all, (0..pool.total as u32).collect::<Vec<_>>());
                }
            }
            seqs.into_iter().flatten().for_each(|seq| pools.release(seq));
            prop_assert!(pools.all_free());
            prop_assert_eq!(runtime.usage().live, live);
        }
    }
}
