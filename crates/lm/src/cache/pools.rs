//! Pools: where sequences and snapshots keep their blocks and slots.
//!
//! Owns the free lists and a sequence's place in them. A sequence is integers: joining, leaving, growing, keeping a
//! snapshot and going on from one move integers. What has to be copied on the device (the record of a slot, the block
//! that a sequence goes on writing while others hold it) is noted as a [`Copied`] for the executor.

use std::ops::Range;

use longrun_array::{BLOCK, TABLES};

use super::Room;
use super::blocks::BlockPool;
use crate::error::{Error, Kind, Result};

/// All pools of a model.
pub struct Pools {
    blocks: Vec<BlockPool>,
    slots: Vec<u32>,
    slot_count: usize,
    /// Sequences keep a record in their slot.
    records: bool,
    /// Sequences and snapshots there are now.
    rows: usize,
    snapshots: usize,
    room: Room,
    copies: Vec<Copied>,
}

/// What is to be copied before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// A block of every cache of a pool.
    Block { pool: usize, from: u32, to: u32 },
    /// A slot of every record.
    Slot { from: u32, to: u32 },
}

/// A sequence's place in the pools. Give it back with [`Pools::release`].
#[derive(Debug)]
pub struct Sequence {
    /// Its record in slot states.
    pub slot: u32,
    /// Tokens that were read, those that may turn out wrong included.
    pub past: usize,
    /// How many of them, the last ones, may still turn out wrong.
    pub(crate) logged: usize,
    /// What its positions are stretched by, from its first token to its last.
    pub stretch: f32,
    /// The slot of its adapter, from its first token to its last; 0 for none.
    pub(crate) adapter: usize,
    /// Block tables, one for each pool.
    pub tables: [Vec<u32>; TABLES],
    /// The blocks held in each table, by number in the sequence.
    held: [Range<usize>; TABLES],
}

/// What a sequence's states held at one moment: shared blocks, and a copy of its record. Give it back with
/// [`Executor::forget`](crate::executor::Executor::forget).
#[derive(Debug)]
pub struct Snapshot {
    past: usize,
    /// How many of the last tokens the record has in its log; all were right.
    logged: usize,
    stretch: f32,
    slot: Option<u32>,
    held: [Held; TABLES],
}

/// What a snapshot is beside its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Facts {
    /// Tokens that it holds.
    pub(crate) past: usize,
    /// How many of the last ones are in the log of its record.
    pub(crate) logged: usize,
    /// What its positions are stretched by.
    pub(crate) stretch: f32,
}

/// Blocks `first..first + blocks.len()` of a sequence.
#[derive(Debug, Default)]
struct Held {
    first: usize,
    blocks: Box<[u32]>,
}

impl Snapshot {
    /// Tokens that it holds.
    pub fn past(&self) -> usize {
        self.past
    }

    /// What its positions are stretched by.
    pub fn stretch(&self) -> f32 {
        self.stretch
    }

    /// All that it is beside its memory, which is what has to be written down with the memory's contents.
    pub(crate) fn facts(&self) -> Facts {
        // What is new here has to go to disk, too.
        let &Self { past, logged, stretch, slot, held: _ } = self;
        // Without a record there is no log.
        Facts { past, logged: if slot.is_some() { logged } else { 0 }, stretch }
    }

    /// Its copy of the record, if the model has any.
    pub(crate) fn slot(&self) -> Option<u32> {
        self.slot
    }

    /// The first of its blocks of a pool, by number in the sequence, and the blocks.
    pub(crate) fn blocks(&self, pool: usize) -> (usize, &[u32]) {
        (self.held[pool].first, &self.held[pool].blocks)
    }
}

impl Pools {
    pub(super) fn new(groups: &[(Option<usize>, usize)], records: bool, room: Room) -> Self {
        let pool =
            |(window, every): &(Option<usize>, usize)| BlockPool::new(*window, *every, &room);
        let slot_count = room.rows + if records { room.snapshots } else { 0 };
        Self {
            blocks: groups.iter().map(pool).collect(),
            slots: (0..slot_count as u32).rev().collect(),
            slot_count,
            records,
            rows: 0,
            snapshots: 0,
            room,
            copies: Vec::new(),
        }
    }

    /// Blocks of each pool.
    pub(super) fn totals(&self) -> impl Iterator<Item = usize> {
        self.blocks.iter().map(BlockPool::total)
    }

    /// Slots of every record.
    pub(super) fn slot_count(&self) -> usize {
        self.slot_count
    }

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
        self.rows == 0
            && self.snapshots == 0
            && self.slots.len() == self.slot_count
            && self.blocks.iter().all(|pool| pool.free() == pool.total())
    }

    /// Sequences there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Snapshots there are.
    pub fn snapshots(&self) -> usize {
        self.snapshots
    }

    /// Whether a snapshot serves only texts that begin with all of it, and takes memory of its own: the model keeps
    /// records or reads windows.
    pub fn is_exact(&self) -> bool {
        self.records || self.blocks.iter().any(|pool| pool.window.is_some())
    }

    /// Blocks that are free and there are, of all pools that grow with the text.
    pub fn paged(&self) -> (usize, usize) {
        self.grows().fold((0, 0), |(free, total), p| (free + p.free(), total + p.total()))
    }

    /// A place for one more sequence, whose positions are stretched by `stretch` (1 where they can't be).
    ///
    /// # Errors
    /// All rows are taken.
    pub fn admit(&mut self, stretch: f32) -> Result<Sequence> {
        let all = Error::new(Kind::Limit, format!("all {} rows are taken", self.room.rows));
        if self.rows == self.room.rows {
            return Err(all);
        }
        let slot = self.slots.pop().ok_or(all)?;
        self.rows += 1;
        let tables = std::array::from_fn(|i| vec![0; self.blocks.get(i).map_or(0, |p| p.width)]);
        let held = Default::default();
        Ok(Sequence { slot, past: 0, logged: 0, stretch, adapter: 0, tables, held })
    }

    /// Gives everything back.
    pub fn release(&mut self, mut seq: Sequence) {
        for (i, pool) in self.blocks.iter_mut().enumerate() {
            for j in std::mem::take(&mut seq.held[i]) {
                pool.drop(seq.tables[i][j % pool.width]);
            }
        }
        self.slots.push(seq.slot);
        self.rows -= 1;
    }

    /// Holds blocks for `count` more tokens; lets go of those that have left a window; has blocks that are written to
    /// for itself. False if no block is free: what was taken for this sequence stays with it.
    ///
    /// # Errors
    /// The context is full.
    pub fn reserve(&mut self, seq: &mut Sequence, count: usize) -> Result<bool> {
        let end = seq.past + count;
        if end > self.room.context {
            let what = format!("{end} tokens are more than the context of {}", self.room.context);
            return Err(Error::new(Kind::Limit, what));
        }
        for i in 0..self.blocks.len() {
            self.let_go(seq, i);
            if !self.unshare(seq, i, end) || !self.extend(seq, i, end) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Lets go of the blocks of pool `i` that no later token reads.
    fn let_go(&mut self, seq: &mut Sequence, i: usize) {
        let pool = &mut self.blocks[i];
        let (table, held) = (&seq.tables[i], &mut seq.held[i]);
        // Tokens that turn out wrong are read again, with what lies in their windows.
        let gone = pool.first_block(seq.past - seq.logged);
        while held.start < gone.min(held.end) {
            pool.drop(table[held.start % pool.width]);
            held.start += 1;
        }
        held.start = held.start.max(gone).min(held.end.max(gone));
        held.end = held.end.max(held.start);
    }

    /// Takes copies of held blocks that tokens up to `end` write to, where others hold them too.
    fn unshare(&mut self, seq: &mut Sequence, i: usize, end: usize) -> bool {
        let pool = &mut self.blocks[i];
        let written = seq.past / pool.every / BLOCK..pool.blocks(end);
        for j in written.start.max(seq.held[i].start)..written.end.min(seq.held[i].end) {
            let from = &mut seq.tables[i][j % pool.width];
            if pool.is_shared(*from) {
                let Some(to) = pool.take() else { return false };
                self.copies.push(Copied::Block { pool: i, from: *from, to });
                pool.drop(*from);
                *from = to;
            }
        }
        true
    }

    fn extend(&mut self, seq: &mut Sequence, i: usize, end: usize) -> bool {
        let pool = &mut self.blocks[i];
        while seq.held[i].end < pool.blocks(end) {
            let Some(block) = pool.take() else { return false };
            seq.tables[i][seq.held[i].end % pool.width] = block;
            seq.held[i].end += 1;
        }
        true
    }

    /// What the sequence's states hold now, all of whose tokens are right; `None` without room for one more snapshot.
    pub(crate) fn keep(&mut self, seq: &Sequence) -> Option<Snapshot> {
        if self.snapshots == self.room.snapshots {
            return None;
        }
        let slot = if self.records { Some(self.slots.pop()?) } else { None };
        if let Some(to) = slot {
            self.copies.push(Copied::Slot { from: seq.slot, to });
        }
        self.snapshots += 1;
        let held = std::array::from_fn(|i| match self.blocks.get_mut(i) {
            Some(pool) => {
                let (first, end) = (seq.held[i].start, pool.blocks(seq.past));
                let block = |j: usize| seq.tables[i][j % pool.width];
                let blocks: Box<[u32]> = (first..end.max(first)).map(block).collect();
                blocks.iter().for_each(|b| pool.hold(*b));
                Held { first, blocks }
            }
            None => Held::default(),
        });
        Some(Snapshot { past: seq.past, logged: seq.logged, stretch: seq.stretch, slot, held })
    }

    /// How many of the first `common` tokens of a snapshot a sequence can go on from.
    pub(crate) fn serves(&self, snapshot: &Snapshot, common: usize) -> usize {
        if common >= snapshot.past {
            return snapshot.past;
        }
        let window = |(pool, held): (&BlockPool, &Held)| pool.first_block(common) >= held.first;
        let whole = !self.records && self.blocks.iter().zip(&snapshot.held).all(window);
        if whole { common } else { 0 }
    }

    /// A sequence that goes on from the first `cut` tokens of a snapshot, of which [`serves`](Self::serves) said so.
    ///
    /// # Errors
    /// All rows are taken.
    pub(crate) fn restore(&mut self, snapshot: &Snapshot, cut: usize) -> Result<Sequence> {
        let mut seq = self.admit(snapshot.stretch)?;
        if cut == 0 {
            return Ok(seq);
        }
        seq.past = cut;
        // Without records nothing is in a log.
        seq.logged = if snapshot.slot.is_some() { snapshot.logged } else { 0 };
        if let Some(from) = snapshot.slot {
            self.copies.push(Copied::Slot { from, to: seq.slot });
        }
        for (i, pool) in self.blocks.iter_mut().enumerate() {
            let held = &snapshot.held[i];
            let count = pool.blocks(cut).saturating_sub(held.first).min(held.blocks.len());
            for (j, block) in (held.first..).zip(&held.blocks[..count]) {
                pool.hold(*block);
                seq.tables[i][j % pool.width] = *block;
            }
            seq.held[i] = held.first..held.first + count;
        }
        Ok(seq)
    }

    /// Pools of blocks there are.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// Whether sequences keep a record in their slot.
    pub(crate) fn has_records(&self) -> bool {
        self.records
    }

    /// The blocks of a pool that the next token after `past` reads, by number in the sequence: what a snapshot has to
    /// hold.
    pub(crate) fn needs(&self, pool: usize, past: usize) -> Range<usize> {
        let pool = &self.blocks[pool];
        let end = pool.blocks(past);
        pool.first_block(past).min(end)..end
    }

    /// A snapshot's memory before all of its contents are known: a slot if there are records, and of each pool the blocks
    /// that it [`needs`](Self::needs), in their order: one that another snapshot holds, or `None` for a free one. `None`
    /// without room, and for a length or lists that can't be.
    pub(crate) fn adopt(&mut self, facts: Facts, blocks: &[Vec<Option<u32>>]) -> Option<Snapshot> {
        let Facts { past, logged, stretch } = facts;
        let needs = (0..self.count()).map(|i| self.needs(i, past).len());
        let fits = past <= self.room.context && logged <= past.min(self.room.drafts);
        let fits = fits && needs.eq(blocks.iter().map(Vec::len));
        if !fits || self.snapshots == self.room.snapshots {
            return None;
        }
        let news = |list: &[Option<u32>]| list.iter().filter(|block| block.is_none()).count();
        let short = |(pool, list): (&BlockPool, &Vec<_>)| pool.free() < news(list);
        if self.blocks.iter().zip(blocks).any(short) || (self.records && self.slots.is_empty()) {
            return None;
        }
        let slot = if self.records { self.slots.pop() } else { None };
        self.snapshots += 1;
        let first: [usize; TABLES] = std::array::from_fn(|i| match blocks.get(i) {
            Some(_) => self.needs(i, past).start,
            None => 0,
        });
        let held = std::array::from_fn(|i| match self.blocks.get_mut(i) {
            Some(pool) => {
                let held = blocks[i].iter().filter_map(|shared| match shared {
                    Some(block) => {
                        pool.hold(*block);
                        Some(*block)
                    }
                    None => pool.take(),
                });
                Held { first: first[i], blocks: held.collect() }
            }
            None => Held::default(),
        });
        Some(Snapshot { past, logged, stretch, slot, held })
    }

    /// Gives a snapshot's memory back.
    pub(crate) fn forget(&mut self, snapshot: Snapshot) {
        for (pool, held) in self.blocks.iter_mut().zip(&snapshot.held) {
            held.blocks.iter().for_each(|block| pool.drop(*block));
        }
        self.slots.extend(snapshot.slot);
        self.snapshots -= 1;
    }

    /// Whether a sequence that holds `past` tokens can grow to `end` and leave `spare` blocks, as it stands now.
    pub(crate) fn has_room(&self, past: usize, end: usize, spare: usize) -> bool {
        self.grows().all(|pool| pool.free() >= pool.lacks(past, end) + spare)
    }

    /// Whether it could if all but `held` blocks were free.
    pub(crate) fn could_have_room(
        &self,
        past: usize,
        end: usize,
        spare: usize,
        held: usize,
    ) -> bool {
        self.grows().all(|pool| pool.total() >= pool.lacks(past, end) + spare + held)
    }

    /// Pools that grow with the text.
    fn grows(&self) -> impl Iterator<Item = &BlockPool> {
        self.blocks.iter().filter(|pool| pool.window.is_none())
    }

    /// What is to be copied on the device, since the last time.
    pub(crate) fn take_copies(&mut self) -> Vec<Copied> {
        std::mem::take(&mut self.copies)
    }

    #[cfg(test)]
    pub(super) fn pools(&self) -> &[BlockPool] {
        &self.blocks
    }
}

impl Sequence {
    /// How many of the last tokens may still turn out wrong. Those that were not let go by [`accept`](Self::accept) count
    /// as right once a step reads more.
    pub fn drafts(&self) -> usize {
        self.logged
    }

    /// Of the tokens that may turn out wrong, the first `right` were right (at most all are); lets go of the others.
    pub fn accept(&mut self, right: usize) {
        let right = right.min(self.logged);
        self.past -= self.logged - right;
        self.logged = right;
    }

    /// The used part of each block table, as a step's inputs want it.
    pub fn used_tables(&self) -> [&[u32]; TABLES] {
        std::array::from_fn(|i| {
            let table = &self.tables[i];
            &table[..self.held[i].end.min(table.len())]
        })
    }

    /// The most blocks that it holds in one pool.
    pub(crate) fn blocks(&self) -> usize {
        self.held.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }

    #[cfg(test)]
    pub(super) fn held(&self, pool: usize) -> Range<usize> {
        self.held[pool].clone()
    }
}
