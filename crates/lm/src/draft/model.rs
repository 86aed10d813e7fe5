//! Drafts from a smaller model of the same vocabulary.
//!
//! Owns that model's executor and a sequence for each row. It reads what the rows read, a chunk behind if need be, and
//! its own guesses as tokens that may turn out wrong.

use longrun_array::Wanted;

use super::{Ask, Draft};
use crate::cache::Sequence;
use crate::error::{Error, Result};
use crate::executor::{Executor, Span};

/// A model that guesses for another one.
pub struct DraftModel {
    exec: Executor,
    most: usize,
    rows: Vec<Reader>,
}

/// How far the draft model has read a row's text.
struct Reader {
    row: u64,
    seq: Sequence,
    /// Tokens that it has read as guesses, the last ones.
    guessed: Vec<u32>,
}

impl DraftModel {
    /// At most `most` drafts a row by the model of `exec`, whose room must be that of the main model: as many rows, as
    /// long a context, and room for `most` drafts.
    ///
    /// # Errors
    /// The room or the vocabulary is another one.
    pub fn new(exec: Executor, most: usize, main: &Executor) -> Result<Self> {
        let (room, want) = (exec.room(), main.room());
        if exec.vocab() != main.vocab() {
            let (ours, theirs) = (exec.vocab(), main.vocab());
            let what = format!("a draft model of {ours} ids for a model of {theirs}");
            return Err(Error::usage(what).hint("a draft model must have the same tokenizer"));
        }
        if room.rows < want.rows || room.context < want.context || room.drafts < most {
            return Err(Error::usage(format!(
                "a draft model with room for {} rows of {} tokens and {} drafts, {} of {} and {most} are needed",
                room.rows, room.context, room.drafts, want.rows, want.context
            )));
        }
        Ok(Self { exec, most, rows: Vec::new() })
    }

    /// Its executor, for its counts.
    pub fn executor(&self) -> &Executor {
        &self.exec
    }

    /// Has a reader for each row, which lets go of its wrong guesses.
    fn meet(&mut self, asks: &[Ask<'_>]) -> Result<()> {
        for ask in asks {
            if self.rows.iter().all(|reader| reader.row != ask.row) {
                let seq = self.exec.admit(ask.text_most)?;
                self.rows.push(Reader { row: ask.row, seq, guessed: Vec::new() });
            }
        }
        for reader in &mut self.rows {
            let Some(ask) = asks.iter().find(|ask| ask.row == reader.row) else { continue };
            let sure = reader.seq.past - reader.seq.drafts();
            let said = ask.ids.get(sure..).unwrap_or(&[]);
            let right = reader.guessed.iter().zip(said).take_while(|(a, b)| a == b).count();
            reader.seq.accept(right);
            reader.guessed.clear();
        }
        Ok(())
    }

    /// Reads what the rows have said since, as much as one step can; a row that is then up to date has its first draft.
    fn catch_up(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
        let room = self.exec.room();
        let (mut left, chunk) = (room.step_tokens(), room.chunk);
        let (mut rows, mut spans) = (Vec::new(), Vec::new());
        for reader in &mut self.rows {
            let Some(ask) = asks.iter().find(|ask| ask.row == reader.row) else { continue };
            let new = &ask.ids[reader.seq.past..];
            let ids = &new[..new.len().min(chunk).min(left)];
            if ids.is_empty() {
                continue;
            }
            left -= ids.len();
            let wanted = if ids.len() == new.len() { Wanted::Last } else { Wanted::None };
            rows.extend(Some(reader.row).filter(|_| wanted == Wanted::Last));
            spans.push(Span { seq: &mut reader.seq, ids, wanted, drafts: 0 });
        }
        if spans.is_empty() {
            return Ok(());
        }
        let logits = self.exec.run(&mut spans)?;
        choose(asks, &rows, logits);
        Ok(())
    }

    /// One more draft for each row that has one and can use more.
    fn go_on(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
        let (mut rows, mut spans) = (Vec::new(), Vec::new());
        for reader in &mut self.rows {
            let ask = asks.iter().find(|ask| ask.row == reader.row);
            let Some(ask) = ask.filter(|ask| ask.drafts.len() < ask.most) else { continue };
            let Some(ids) = ask.drafts.last_chunk::<1>() else { continue };
            reader.guessed.extend(ids);
            let drafts = reader.guessed.len();
            rows.push(reader.row);
            spans.push(Span { seq: &mut reader.seq, ids, wanted: Wanted::Last, drafts });
        }
        if spans.is_empty() {
            return Ok(());
        }
        let logits = self.exec.run(&mut spans)?;
        choose(asks, &rows, logits);
        Ok(())
    }
}

/// One more draft for each of `rows`, by its logits.
fn choose(asks: &mut [Ask<'_>], rows: &[u64], logits: &mut [f32]) {
    let vocab = logits.len() / rows.len().max(1);
    for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocab.max(1))) {
        for ask in asks.iter_mut().filter(|ask| ask.row == *row) {
            let position = ask.ids.len() + ask.drafts.len();
            ask.drafts.extend(ask.chooser.choose(logits, position));
        }
    }
}

impl Draft for DraftModel {
    fn most(&self) -> usize {
        self.most
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
        self.meet(asks)?;
        self.catch_up(asks)?;
        (1..self.most).try_for_each(|_| self.go_on(asks))
    }

    fn release(&mut self, row: u64) {
        if let Some(i) = self.rows.iter().position(|reader| reader.row == row) {
            self.exec.release(self.rows.swap_remove(i).seq);
        }
    }
}
