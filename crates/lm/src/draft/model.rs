//! Drafts from a smaller model of the same vocabulary.
//!
//! Owns that model's executor and a sequence for each row. It reads what the rows read, a chunk behind if need be, and its
//! own guesses as tokens that may turn out wrong.

use longrun_array::Wanted;

use super::{Ask, Draft};
use crate::cache::Sequence;
use crate::engine::RowId;
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
    row: RowId,
    seq: Sequence,
    /// Tokens that it has read as guesses, the last ones.
    guessed: Vec<u32>,
}

impl DraftModel {
    /// At most `most` drafts a row by the model of `exec`, whose room must be that of the main model: as many rows, as long
    /// a context, and room for `most` drafts.
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

    /// The reader of a row, which has let go of its wrong guesses.
    fn reader(&mut self, ask: &Ask<'_>) -> Result<usize> {
        let i = match self.rows.iter().position(|reader| reader.row == ask.row) {
            Some(i) => i,
            None => {
                let seq = self.exec.admit(ask.text_most)?;
                self.rows.push(Reader { row: ask.row, seq, guessed: Vec::new() });
                self.rows.len() - 1
            }
        };
        let reader = &mut self.rows[i];
        let sure = reader.seq.past - reader.seq.drafts();
        let said = ask.ids.get(sure..).unwrap_or(&[]);
        let right = reader.guessed.iter().zip(said).take_while(|(a, b)| a == b).count();
        reader.seq.accept(right);
        reader.guessed.clear();
        Ok(i)
    }

    /// Reads what the rows have said since, a chunk at most; then each row that is up to date has its first draft.
    fn catch_up(&mut self, asks: &mut [Ask<'_>]) -> Result<Vec<usize>> {
        let places = asks.iter().map(|ask| self.reader(ask)).collect::<Result<Vec<usize>>>()?;
        let chunk = self.exec.room().chunk;
        let mut ready = Vec::new();
        for (a, (ask, place)) in asks.iter_mut().zip(places).enumerate() {
            let reader = &mut self.rows[place];
            let new = &ask.ids[reader.seq.past..];
            let ids = &new[..new.len().min(chunk)];
            let wanted = if ids.len() == new.len() { Wanted::Last } else { Wanted::None };
            let span = Span { seq: &mut reader.seq, ids, wanted, drafts: 0 };
            let logits = self.exec.run(&mut [span])?;
            if wanted == Wanted::Last {
                ask.drafts.extend(ask.chooser.choose(logits, ask.ids.len()));
                ready.push(a);
            }
        }
        Ok(ready)
    }

    /// One more draft for each of the rows `ready`, from the one before.
    fn go_on(&mut self, asks: &mut [Ask<'_>], ready: &[usize]) -> Result<()> {
        let vocab = self.exec.vocab();
        let wants = |ask: &Ask<'_>| ask.drafts.last().is_some() && ask.drafts.len() < ask.most;
        let mut spans = Vec::new();
        for reader in &mut self.rows {
            let ask = ready.iter().map(|&a| &asks[a]).find(|ask| ask.row == reader.row);
            let Some(ask) = ask.filter(|ask| wants(ask)) else { continue };
            let last = ask.drafts.len() - 1;
            reader.guessed.push(ask.drafts[last]);
            let drafts = reader.guessed.len();
            let ids = &ask.drafts[last..];
            spans.push((
                reader.row,
                Span { seq: &mut reader.seq, ids, wanted: Wanted::Last, drafts },
            ));
        }
        let (rows, mut spans): (Vec<RowId>, Vec<Span<'_>>) = spans.into_iter().unzip();
        if spans.is_empty() {
            return Ok(());
        }
        let logits = self.exec.run(&mut spans)?.chunks_exact_mut(vocab);
        for (row, logits) in rows.iter().zip(logits) {
            for ask in asks.iter_mut().filter(|ask| ask.row == *row) {
                let at = ask.ids.len() + ask.drafts.len();
                ask.drafts.extend(ask.chooser.choose(logits, at));
            }
        }
        Ok(())
    }
}

impl Draft for DraftModel {
    fn most(&self) -> usize {
        self.most
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
        let ready = self.catch_up(asks)?;
        for _ in 1..self.most {
            self.go_on(asks, &ready)?;
        }
        Ok(())
    }

    fn release(&mut self, row: RowId) {
        if let Some(i) = self.rows.iter().position(|reader| reader.row == row) {
            self.exec.release(self.rows.swap_remove(i).seq);
        }
    }
}
