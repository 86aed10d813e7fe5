//! Caches: what sequences keep on the device between steps, as pools that are made once.
//!
//! Owns the states (keys and values in blocks, recurrent records in slots), the free lists, and a sequence's place
//! in them. A sequence is integers: joining, leaving and growing move integers, never arrays.

use longrun_array::{BLOCK, Runtime, State, StateKind, Step, TABLES, Tensor, Version};

use crate::error::{Error, Kind, Result};

/// What one attention layer keeps of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Key (and value) heads.
    pub heads: usize,
    /// Numbers of a head.
    pub dim: usize,
    /// Only the last tokens are ever read.
    pub window: Option<usize>,
    /// A second value cache that is written and never read.
    pub dead_values: bool,
}

/// What one recurrent layer keeps of each sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSpec {
    /// Numbers of the convolution window.
    pub window: usize,
    /// Running sums of decays.
    pub sums: usize,
    /// Numbers of the memory.
    pub memory: usize,
}

/// What a model keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSpec {
    /// Attention layers in order.
    pub kv: Vec<KvSpec>,
    /// Recurrent layers in order.
    pub delta: Vec<DeltaSpec>,
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

struct Kv {
    keys: State,
    values: State,
    dead: Option<State>,
}

struct Delta {
    window: State,
    sums: State,
    memory: State,
}

/// The states of all layers.
pub struct Caches {
    kv: Vec<Kv>,
    delta: Vec<Delta>,
}

impl Caches {
    /// Opens the cache of attention layer `slot`, writes this step's keys and values, and gives both to read.
    #[track_caller]
    pub(crate) fn write<'s>(
        &self,
        slot: usize,
        k: Tensor<'s>,
        v: Tensor<'s>,
    ) -> (Version<'s>, Version<'s>) {
        let (step, kv) = (k.step(), &self.kv[slot]);
        if let Some(dead) = &kv.dead {
            // Never read again: the write happens all the same, because every write is a root.
            let _ = step.open(dead).write(v);
        }
        (step.open(&kv.keys).write(k), step.open(&kv.values).write(v))
    }

    /// Opens the convolution window, the decay sums and the memory of recurrent layer `slot`.
    #[track_caller]
    pub(crate) fn open_delta<'s>(&self, step: Step<'s>, slot: usize) -> [Version<'s>; 3] {
        let delta = &self.delta[slot];
        [&delta.window, &delta.sums, &delta.memory].map(|state| step.open(state))
    }

    /// Bytes of all states.
    pub fn bytes(&self) -> usize {
        let kv = self.kv.iter().map(|kv| {
            kv.keys.bytes() + kv.values.bytes() + kv.dead.as_ref().map_or(0, State::bytes)
        });
        let delta = self.delta.iter().map(|d| d.window.bytes() + d.sums.bytes() + d.memory.bytes());
        kv.chain(delta).sum()
    }
}

/// Blocks of all attention layers that read equally far back: one free list, one block table a sequence.
struct BlockPool {
    window: Option<usize>,
    /// Entries of a sequence's table; block `j` is entry `j % width`.
    width: usize,
    free: Vec<u32>,
    total: usize,
}

impl BlockPool {
    fn new(window: Option<usize>, room: &Room) -> Self {
        let whole = room.context.div_ceil(BLOCK);
        let (width, total) = match window {
            // The blocks that a chunk and the window behind its first token can touch.
            Some(w) => {
                let width = ((w + room.chunk).div_ceil(BLOCK) + 1).min(whole);
                (width, width * room.rows)
            }
            None => (whole, room.tokens.div_ceil(BLOCK).max(whole)),
        };
        Self { window, width, free: (0..total as u32).rev().collect(), total }
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
    /// Block tables, one for each pool.
    pub tables: [Vec<u32>; TABLES],
    /// The blocks held in each table, by number in the sequence.
    held: [std::ops::Range<usize>; TABLES],
}

/// Makes the states that `spec` asks for, and the pools that hand them out.
///
/// # Errors
/// Memory or objects run out, or layers differ in more windows than there are block tables.
pub fn make(runtime: &Runtime, spec: &CacheSpec, room: Room) -> Result<(Caches, Pools)> {
    let mut windows: Vec<Option<usize>> = Vec::new();
    for kv in &spec.kv {
        if !windows.contains(&kv.window) {
            windows.push(kv.window);
        }
    }
    if windows.len() > TABLES {
        let what = format!("layers with {} different windows, the most is {TABLES}", windows.len());
        return Err(Error::unsupported(what));
    }
    let blocks: Vec<_> = windows.iter().map(|w| BlockPool::new(*w, &room)).collect();
    let kv = spec.kv.iter().map(|kv| {
        let table = windows.iter().position(|w| *w == kv.window).unwrap_or(0);
        let units = blocks[table].total;
        let KvSpec { heads, dim, .. } = *kv;
        let values = || State::new(runtime, StateKind::Values { heads, dim }, units, table);
        Ok(Kv {
            keys: State::new(runtime, StateKind::Keys { heads, dim }, units, table)?,
            values: values()?,
            dead: if kv.dead_values { Some(values()?) } else { None },
        })
    });
    let kv = kv.collect::<Result<_>>()?;
    let delta = spec.delta.iter().map(|d| {
        let slots = |len| State::new(runtime, StateKind::Slots { len }, room.rows, 0);
        Ok(Delta { window: slots(d.window)?, sums: slots(d.sums)?, memory: slots(d.memory)? })
    });
    let delta = delta.collect::<Result<_>>()?;
    let slots = (0..room.rows as u32).rev().collect();
    Ok((Caches { kv, delta }, Pools { blocks, slots, room }))
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

    /// A place for one more sequence.
    ///
    /// # Errors
    /// All rows are taken.
    pub fn admit(&mut self) -> Result<Sequence> {
        let slot = self.slots.pop().ok_or_else(|| {
            Error::new(Kind::Limit, format!("all {} rows are taken", self.room.rows))
        })?;
        let tables = std::array::from_fn(|i| vec![0; self.blocks.get(i).map_or(0, |p| p.width)]);
        Ok(Sequence { slot, past: 0, tables, held: Default::default() })
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
            while held.end < end.div_ceil(BLOCK) {
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

    proptest! {
        /// Sequences that join, grow and leave in any order never share a block, hold all that their next token
        /// reads, and give everything back.
        #[test]
        fn blocks_are_held_once_and_come_back(
            moves in proptest::collection::vec((0usize..4, 1usize..40), 1..120)
        ) {
            let runtime = Runtime::new(Box::new(NullDevice::new()), Limits::default());
            let kv = |window| KvSpec { heads: 1, dim: 8, window, dead_values: false };
            let spec = CacheSpec { kv: vec![kv(None), kv(Some(70)), kv(Some(1))], delta: vec![] };
            let room = Room { rows: 4, context: 400, tokens: 800, chunk: 40 };
            let (_caches, mut pools) = make(&runtime, &spec, room).unwrap();
            let live = runtime.usage().live;
            let mut seqs: Vec<Option<Sequence>> = (0..4).map(|_| None).collect();
            for (who, count) in moves {
                let Some(seq) = &mut seqs[who] else {
                    seqs[who] = Some(pools.admit().unwrap());
                    continue;
                };
                if pools.reserve(seq, count).is_err() {
                    pools.release(seqs[who].take().unwrap());
                    continue;
                }
                for i in 0..3 {
                    let first = pools.blocks[i].first_read(seq.past) / BLOCK;
                    prop_assert!(seq.held[i].start <= first);
                    prop_assert!(seq.held[i].end * BLOCK >= seq.past + count);
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
