//! One pool of blocks: who is free, and how many hold each of the others.
//!
//! Owns the free list and the holders' counts. A block belongs to all sequences and snapshots that hold it; it is
//! written only while one does. Refuses to know what is in a block.

use longrun_array::BLOCK;

use super::Room;

/// Blocks of all caches that read equally far back and have an entry for equally many tokens: one free list, one block
/// table a sequence.
pub(super) struct BlockPool {
    pub(super) window: Option<usize>,
    pub(super) every: usize,
    /// Entries of a sequence's table; block `j` is entry `j % width`.
    pub(super) width: usize,
    free: Vec<u32>,
    /// How many hold each block.
    holders: Vec<u32>,
}

impl BlockPool {
    pub(super) fn new(window: Option<usize>, every: usize, room: &Room) -> Self {
        let whole = blocks_of(room.context, every);
        let (width, total) = match window {
            // The blocks that drafts, a chunk and the window behind their first token can touch.
            Some(w) => {
                let reads = room.drafts + room.chunk.max(1 + room.drafts);
                let width = ((w + reads).div_ceil(BLOCK) + 1).min(whole);
                (width, width * (room.rows + room.snapshots))
            }
            // Where several tokens share an entry, the last block of each row and snapshot may be almost empty.
            None => {
                let odd = if every == 1 { 0 } else { room.rows + room.snapshots };
                (whole, (blocks_of(room.tokens, every) + odd).max(whole))
            }
        };
        let free = (0..total as u32).rev().collect();
        Self { window, every, width, free, holders: vec![0; total] }
    }

    /// The first position that a token at `pos` reads.
    pub(super) fn first_read(&self, pos: usize) -> usize {
        self.window.map_or(0, |w| (pos + 1).saturating_sub(w))
    }

    /// The block in which the first position lies that a token at `pos` reads.
    pub(super) fn first_block(&self, pos: usize) -> usize {
        self.first_read(pos) / self.every / BLOCK
    }

    /// Blocks that hold the entries of `tokens` tokens.
    pub(super) fn blocks(&self, tokens: usize) -> usize {
        (tokens / self.every).div_ceil(BLOCK)
    }

    /// Blocks that a sequence of `past` tokens takes on its way to `end`; that in which `past` lies may have to be
    /// copied.
    pub(super) fn lacks(&self, past: usize, end: usize) -> usize {
        self.blocks(end).saturating_sub(past / self.every / BLOCK)
    }

    pub(super) fn total(&self) -> usize {
        self.holders.len()
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// A free block, held once.
    pub(super) fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// One more holder.
    pub(super) fn hold(&mut self, block: u32) {
        self.holders[block as usize] += 1;
    }

    /// One holder less; without any the block is free.
    pub(super) fn drop(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(block);
        }
    }

    /// Whether more than one hold it, so that nobody may write to it.
    pub(super) fn is_shared(&self, block: u32) -> bool {
        self.holders[block as usize] > 1
    }

    /// Holders of every block.
    #[cfg(test)]
    pub(super) fn holders(&self) -> &[u32] {
        &self.holders
    }
}

/// Blocks for `tokens` tokens with an entry for each `every` of them, the last one begun.
fn blocks_of(tokens: usize, every: usize) -> usize {
    tokens.div_ceil(every).div_ceil(BLOCK)
}
