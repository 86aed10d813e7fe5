//! Step inputs: every host integer that a step's kernels read, in one block that is uploaded once.
//!
//! Owns the layout of the block and the checks that make it consistent. A step is ragged: a flat list of tokens,
//! grouped in rows (sequences). Decoding is one token a row, reading a prompt is many; one step may hold both.
//!
//! Nothing here is a tensor. What advances from step to step (positions, lengths, slots, block tables) is an
//! integer on the host, so there is no chain of lazy values that could grow.

use crate::error::{Error, Result};
use crate::key::{Key, Outputs};

/// How many block tables a step can carry: one for each group of pools whose blocks live equally long.
pub const TABLES: usize = 4;

/// Tokens in one block of a paged state.
pub const BLOCK: usize = 32;

/// Where each field of an input block lies, in words (u32). Fixed by a plan key and the widths of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputLayout {
    /// Room for tokens.
    pub tokens: usize,
    /// Room for rows.
    pub rows: usize,
    /// Room for results.
    pub outputs: usize,
    /// Entries a row of each block table; a table is a ring: block `j` of a row is entry `j % width`.
    pub widths: [usize; TABLES],
}

const HEADER: usize = 4;
/// Words of a row beside its block tables.
const ROW_FIELDS: usize = 9;

/// What the integers of a step must stay below, slots of adapters aside, for the plan that they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Rows of the smallest table that ids are looked up in.
    pub ids: usize,
    /// Slots of the smallest state of records.
    pub slots: usize,
    /// Tokens of the shortest log.
    pub drafts: usize,
    /// Slots of the fewest low-rank matrices, which a row may not exceed; 0 without any.
    pub adapters: usize,
    /// Tokens of the shortest state of carried numbers that is read.
    pub carried: usize,
}

impl Bounds {
    /// No bounds.
    pub const NONE: Self = {
        let most = usize::MAX;
        Self { ids: most, slots: most, drafts: most, adapters: 0, carried: most }
    };
}

impl InputLayout {
    /// The layout of a key.
    pub fn new(key: Key, widths: [usize; TABLES]) -> Self {
        Self {
            tokens: key.tokens.capacity(),
            rows: key.rows.capacity(),
            outputs: key.output_capacity(),
            widths,
        }
    }

    fn tables_at(&self) -> usize {
        HEADER + 3 * self.tokens + ROW_FIELDS * self.rows + self.outputs
    }

    /// Words in the block.
    pub fn words(&self) -> usize {
        self.tables_at() + self.rows * self.widths.iter().sum::<usize>()
    }

    fn table_at(&self, table: usize) -> usize {
        self.tables_at() + self.rows * self.widths[..table].iter().sum::<usize>()
    }
}

/// Which tokens of a row have a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    None,
    /// The last one.
    Last,
    /// All.
    All,
}

/// One row of a step.
///
/// Its text is what its records hold, then the first `logged` tokens of its log, then the tokens that it reads now. The
/// first `confirmed` of the last two are put into the records; the others are kept in the log, as tokens that may turn
/// out wrong. A row without such tokens has `logged: 0, confirmed: ids.len()`. What was logged behind the first `logged`
/// tokens is forgotten.
#[derive(Clone, Copy, Debug)]
pub struct RowInput<'a> {
    /// The tokens to read, at positions `past..past + ids.len()`.
    pub ids: &'a [u32],
    /// Tokens of the row before these, its `logged` ones included.
    pub past: usize,
    /// Tokens at the start of its log that were right.
    pub logged: usize,
    /// How many of the logged tokens and these are put into the records: all logged ones and any of these; or none, then
    /// these are logged behind the logged ones.
    pub confirmed: usize,
    /// Its place in slot states.
    pub slot: u32,
    /// Which slot of [`LowRank`](crate::LowRank) matrices it uses, from 1 on; 0 for none.
    pub adapter: usize,
    /// Which of its tokens have a result.
    pub wanted: Wanted,
    /// What its positions are stretched by, if the model's positions can be; the same from its first token to its last.
    pub stretch: f32,
    /// The unit of carried numbers that its first token reads, where a plan does; the others read those that follow.
    pub carried: usize,
    /// Its block tables, at most as long as their widths. Reading a position whose block is missing fails the step.
    pub tables: [&'a [u32]; TABLES],
}

impl RowInput<'_> {
    fn check_log(&self) -> Result<()> {
        let Self { ids, past, logged, confirmed, .. } = *self;
        if logged > past {
            return Err(Error::Inputs(format!("{logged} logged tokens of {past} before")));
        }
        let all = logged.saturating_add(ids.len());
        if confirmed > all || (confirmed > 0 && confirmed < logged) {
            let what = format!("{confirmed} confirmed tokens of {logged} logged and {}", ids.len());
            return Err(Error::Inputs(format!("{what} more; all logged ones are, or none at all")));
        }
        Ok(())
    }
}

/// The inputs of one step. Made once and filled again for each step; filling does not allocate.
#[derive(Debug)]
pub struct Inputs {
    pub(crate) words: Vec<u32>,
    pub(crate) key: Key,
    pub(crate) layout: InputLayout,
}

impl Inputs {
    /// Room for every key whose layout has at most `words` words.
    pub fn with_room(key: Key, widths: [usize; TABLES], words: usize) -> Self {
        Self { words: vec![0; words.max(HEADER)], key, layout: InputLayout::new(key, widths) }
    }

    /// Starts a step of plan `key`: no tokens, no rows.
    pub fn begin(&mut self, key: Key) {
        self.key = key;
        self.layout = InputLayout::new(key, self.layout.widths);
        self.words[..HEADER].fill(0);
    }

    /// The key of the step.
    pub fn key(&self) -> Key {
        self.key
    }

    /// How many results are wanted.
    pub fn results(&self) -> usize {
        self.words[2] as usize
    }

    /// The words of the block, for upload.
    pub fn words(&self) -> &[u32] {
        &self.words[..self.layout.words().min(self.words.len())]
    }

    /// Adds a row behind those already there.
    ///
    /// # Errors
    /// The key has no room for it, it is empty, a table is longer than its width, more is logged than the row has read,
    /// neither all logged tokens nor none are confirmed, or the inputs were made for smaller keys than the step's.
    pub fn push(&mut self, row: RowInput<'_>) -> Result<()> {
        let l = self.layout;
        if l.words() > self.words.len() {
            let (want, have) = (l.words(), self.words.len());
            return Err(Error::Inputs(format!("a step of {want} words does not fit into {have}")));
        }
        let [t, r, o] = [self.words[0], self.words[1], self.words[2]].map(|n| n as usize);
        let n = row.ids.len();
        let outs = match row.wanted {
            Wanted::None => 0,
            Wanted::Last => 1,
            Wanted::All => n,
        };
        if n == 0 || r + 1 > l.rows || t + n > l.tokens || o + outs > l.outputs {
            return Err(Error::Inputs(format!(
                "a row of {n} tokens and {outs} results does not fit: {t} of {} tokens, {r} of {} rows, {o} of {} \
                 results are taken",
                l.tokens, l.rows, l.outputs
            )));
        }
        let end = row.past.max(row.carried).saturating_add(n);
        if end > u32::MAX as usize {
            return Err(Error::Inputs(format!("position {end} is too large")));
        }
        row.check_log()?;
        let (mut at, w) = (HEADER, &mut self.words);
        w[at + t..at + t + n].copy_from_slice(row.ids);
        at += l.tokens;
        (0..n).for_each(|i| w[at + t + i] = (row.past + i) as u32);
        at += l.tokens;
        w[at + t..at + t + n].fill(r as u32);
        at += l.tokens;
        let adapter = u32::try_from(row.adapter).unwrap_or(u32::MAX);
        let [t32, n32, past, logged, confirmed, carried] =
            [t, n, row.past, row.logged, row.confirmed, row.carried].map(|n| n as u32);
        let (slot, stretch) = (row.slot, row.stretch.to_bits());
        let fields: [u32; ROW_FIELDS] =
            [t32, n32, past, logged, confirmed, slot, stretch, adapter, carried];
        for field in fields {
            w[at + r] = field;
            at += l.rows;
        }
        (0..outs).for_each(|i| w[at + o + i] = (t + n - outs + i) as u32);
        for (i, table) in row.tables.iter().enumerate() {
            if table.len() > l.widths[i] {
                let (have, room) = (table.len(), l.widths[i]);
                return Err(Error::Inputs(format!("table {i} has {have} entries, room is {room}")));
            }
            let start = l.table_at(i) + r * l.widths[i];
            let entries = &mut w[start..start + l.widths[i]];
            entries[..table.len()].copy_from_slice(table);
            // Not the blocks of an earlier step's row: no state has this block.
            entries[table.len()..].fill(u32::MAX);
        }
        w[0] = (t + n) as u32;
        w[1] = (r + 1) as u32;
        w[2] = (o + outs) as u32;
        Ok(())
    }

    /// What kernels read.
    pub fn ragged(&self) -> Ragged<'_> {
        Ragged::new(&self.layout, &self.words)
    }

    /// Checks the integers that kernels use as indices: ids, slots, adapters, carried units, and what logs hold.
    pub(crate) fn check(&self, bounds: &Bounds) -> Result<()> {
        let (b, &Bounds { ids, slots, drafts: depth, adapters, carried }) = (self.ragged(), bounds);
        if let Some(id) = b.ids.iter().find(|&&id| id as usize >= ids) {
            return Err(Error::Inputs(format!("id {id} is outside of a table of {ids} rows")));
        }
        for (i, slot) in b.row_slot.iter().enumerate() {
            if *slot as usize >= slots {
                return Err(Error::Inputs(format!("slot {slot} is outside of {slots} slots")));
            }
            if b.row_slot[..i].contains(slot) {
                return Err(Error::Inputs(format!("slot {slot} belongs to two rows")));
            }
        }
        if let Some(adapter) = b.row_adapter.iter().find(|&&a| a as usize > adapters) {
            let what = format!("adapter {adapter} is outside of {adapters} slots; 0 is none");
            return Err(Error::Inputs(what));
        }
        for row in 0..b.rows {
            let [logged, confirmed, count] =
                [b.row_logged, b.row_confirmed, b.row_count].map(|field| field[row] as usize);
            let most = logged.max(logged + count - confirmed);
            if most > depth {
                let what = format!("a log of {most} tokens, there is room for {depth}");
                return Err(Error::Inputs(what));
            }
        }
        for (first, count) in b.row_carried.iter().zip(b.row_count) {
            let end = *first as usize + *count as usize;
            if end > carried {
                return Err(Error::Inputs(format!("{end} carried tokens, there are {carried}")));
            }
        }
        if b.tokens == 0 {
            return Err(Error::Inputs("a step without tokens".into()));
        }
        if self.key.outputs == Outputs::None && b.outputs > 0 {
            return Err(Error::Inputs("results are wanted from a plan without any".into()));
        }
        Ok(())
    }
}

/// The live part of an input block, as kernels read it.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Ragged<'a> {
    pub tokens: usize,
    pub rows: usize,
    pub outputs: usize,
    /// `[tokens]`
    pub ids: &'a [u32],
    /// `[tokens]`, absolute.
    pub positions: &'a [u32],
    /// `[tokens]`
    pub token_row: &'a [u32],
    /// `[rows]`, the first token of each.
    pub row_first: &'a [u32],
    /// `[rows]`, its number of tokens.
    pub row_count: &'a [u32],
    /// `[rows]`, the position of its first token.
    pub row_past: &'a [u32],
    /// `[rows]`, tokens before it that its records don't hold but its log.
    pub row_logged: &'a [u32],
    /// `[rows]`, how many of the logged tokens and its own are put into its records.
    pub row_confirmed: &'a [u32],
    /// `[rows]`, its place in slot states.
    pub row_slot: &'a [u32],
    /// `[rows]`, what its positions are stretched by, as the bits of f32.
    pub row_stretch: &'a [u32],
    /// `[rows]`, its slot of low-rank matrices, 0 for none.
    pub row_adapter: &'a [u32],
    /// `[rows]`, the unit of carried numbers that its first token reads.
    pub row_carried: &'a [u32],
    /// `[outputs]`, the token of each result.
    pub out_token: &'a [u32],
    tables: [&'a [u32]; TABLES],
    widths: [usize; TABLES],
}

impl<'a> Ragged<'a> {
    /// Reads a block of `layout`.
    pub fn new(layout: &InputLayout, words: &'a [u32]) -> Self {
        let [tokens, rows, outputs] = [words[0], words[1], words[2]].map(|n| n as usize);
        let mut at = HEADER;
        let mut field = |room: usize, live: usize| {
            let part = &words[at..at + live];
            at += room;
            part
        };
        let l = layout;
        Self {
            tokens,
            rows,
            outputs,
            ids: field(l.tokens, tokens),
            positions: field(l.tokens, tokens),
            token_row: field(l.tokens, tokens),
            row_first: field(l.rows, rows),
            row_count: field(l.rows, rows),
            row_past: field(l.rows, rows),
            row_logged: field(l.rows, rows),
            row_confirmed: field(l.rows, rows),
            row_slot: field(l.rows, rows),
            row_stretch: field(l.rows, rows),
            row_adapter: field(l.rows, rows),
            row_carried: field(l.rows, rows),
            out_token: field(l.outputs, outputs),
            tables: std::array::from_fn(|i| {
                let at = l.table_at(i);
                &words[at..at + rows * l.widths[i]]
            }),
            widths: l.widths,
        }
    }

    /// The block that holds positions `j * BLOCK..(j + 1) * BLOCK` of `row`, in table `table`.
    #[inline]
    pub fn block(&self, table: usize, row: usize, j: usize) -> usize {
        let width = self.widths[table];
        self.tables[table][row * width + j % width] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Head;

    #[test]
    fn rows_are_read_back_as_they_were_pushed() {
        let key = Key::fit(10, 3, Outputs::PerRow, Head::Logits).unwrap();
        let widths = [2, 3, 0, 0];
        let words = InputLayout::new(key, widths).words();
        let mut inputs = Inputs::with_room(key, widths, words);
        for _ in 0..2 {
            inputs.begin(key);
            let row = RowInput {
                ids: &[5, 6, 7],
                past: 40,
                logged: 1,
                confirmed: 2,
                slot: 2,
                adapter: 1,
                wanted: Wanted::Last,
                stretch: 1.0,
                carried: 6,
                tables: [&[9, 8], &[1], &[], &[]],
            };
            inputs.push(row).unwrap();
            let row = RowInput { logged: 0, confirmed: 1, slot: 0, adapter: 2, carried: 1, ..row };
            let fresh = RowInput { ids: &[4], past: 0, ..row };
            inputs.push(fresh).unwrap();
            let b = inputs.ragged();
            assert_eq!((b.tokens, b.rows, b.outputs), (4, 2, 2));
            assert_eq!(b.positions, [40, 41, 42, 0]);
            assert_eq!(b.token_row, [0, 0, 0, 1]);
            assert_eq!((b.row_first, b.row_count), (&[0, 3][..], &[3, 1][..]));
            assert_eq!((b.row_logged, b.row_confirmed), (&[1, 0][..], &[2, 1][..]));
            assert_eq!((b.row_past, b.row_slot), (&[40, 0][..], &[2, 0][..]));
            assert_eq!((b.row_adapter, b.row_carried), (&[1, 2][..], &[6, 1][..]));
            assert_eq!(b.out_token, [2, 3]);
            assert_eq!((b.block(0, 1, 3), b.block(1, 0, 0)), (8, 1));
        }
        let fits = Bounds { ids: 8, slots: 3, drafts: 2, adapters: 2, carried: 9 };
        inputs.check(&fits).unwrap();
        for bounds in [
            Bounds { ids: 7, ..fits },
            Bounds { slots: 2, ..fits },
            Bounds { drafts: 1, ..fits },
            Bounds { adapters: 1, ..fits },
            Bounds { carried: 8, ..fits },
        ] {
            assert!(inputs.check(&bounds).is_err(), "{bounds:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let key = Key::fit(1, 1, Outputs::PerRow, Head::Logits).unwrap();
        let mut inputs = Inputs::with_room(key, [1, 0, 0, 0], 64);
        inputs.begin(key);
        let row = RowInput {
            ids: &[1],
            past: 0,
            logged: 0,
            confirmed: 1,
            slot: 0,
            adapter: 0,
            wanted: Wanted::Last,
            stretch: 1.0,
            carried: 0,
            tables: [&[]; TABLES],
        };
        assert!(inputs.push(RowInput { ids: &[], ..row }).is_err());
        assert!(inputs.push(RowInput { ids: &[1, 2], ..row }).is_err());
        assert!(inputs.push(RowInput { tables: [&[1, 2], &[], &[], &[]], ..row }).is_err());
        assert!(inputs.push(RowInput { past: u32::MAX as usize, ..row }).is_err());
        assert!(inputs.push(RowInput { carried: u32::MAX as usize, ..row }).is_err());
        for (past, logged, confirmed) in [(0, 1, 1), (9, 2, 1), (9, 0, 2), (9, 2, 4)] {
            assert!(inputs.push(RowInput { past, logged, confirmed, ..row }).is_err());
        }
        assert!(inputs.push(RowInput { logged: usize::MAX, past: usize::MAX, ..row }).is_err());
        assert_eq!(inputs.ragged().tokens, 0);
        inputs.push(row).unwrap();
        assert!(inputs.push(row).is_err());
    }
}
