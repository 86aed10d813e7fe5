//! Drafts by the head of the checkpoint itself (multi-token prediction).
//!
//! Owns the order of its steps. It reads right behind the model, prompts too, so that its keys and values lie beside the
//! model's, in the same blocks, and come and go with them: with kept beginnings, copies, preemption. Where a beginning
//! was cut, its last entry is of the token that came after in the other text. That is one entry of the head's, and the
//! text is the model's.

use super::{Ask, Draft, Read};
use crate::error::{Error, Result};
use crate::executor::{Executor, MtpSpan};

/// The head of a checkpoint that guesses further tokens.
#[derive(Clone, Debug)]
pub struct Mtp {
    most: usize,
    guesses: Vec<Guess>,
}

/// What may follow a text of `length` tokens.
#[derive(Clone, Debug)]
struct Guess {
    row: u64,
    length: usize,
    /// Where the head's last step has left its hidden state.
    place: usize,
    drafts: Vec<u32>,
}

impl Mtp {
    /// At most `most` drafts a row by the head of `main`.
    ///
    /// # Errors
    /// It was set up without its head, or without room for as many drafts.
    pub fn new(most: usize, main: &Executor) -> Result<Self> {
        let room = main.room().drafts;
        if !main.has_mtp() || room < most {
            let with = if main.has_mtp() { "with" } else { "without" };
            let what = format!("a model {with} its head and with room for {room} drafts");
            return Err(Error::usage(what).hint(format!("its head and {most} drafts are needed")));
        }
        Ok(Self { most, guesses: Vec::new() })
    }

    /// Reads what the model has read; each row that wants any has its first draft.
    fn follow(&mut self, exec: &mut Executor, reads: &mut [Read<'_>]) -> Result<()> {
        let (mut spans, mut places, mut end) = (Vec::new(), Vec::new(), 0);
        for read in &*reads {
            let ids = read.ids.get(read.from + 1..=read.seq.past);
            let ids = ids.ok_or_else(|| Error::usage("the next token of a row is not known"))?;
            let &Read { ref seq, from: past, carried, .. } = read;
            spans.push(MtpSpan { seq, ids, past, carried, wanted: read.most > 0 });
            end += ids.len();
            places.push(end - 1);
        }
        let vocab = exec.vocab();
        let logits = exec.run_mtp(&spans)?.chunks_exact_mut(vocab);
        let wanting = reads.iter_mut().zip(places).filter(|(read, _)| read.most > 0);
        for ((read, place), logits) in wanting.zip(logits) {
            let (row, length, drafts) = (read.row, read.ids.len(), Vec::new());
            let mut guess = Guess { row, length, place, drafts };
            guess.choose(read, logits);
            self.guesses.push(guess);
        }
        Ok(())
    }

    /// One more draft for each row that has `n` and can use more.
    fn go_on(&mut self, exec: &mut Executor, reads: &mut [Read<'_>], n: usize) -> Result<()> {
        let (mut rows, mut spans) = (Vec::new(), Vec::new());
        for (i, read) in reads.iter_mut().enumerate().filter(|(_, read)| n < read.most) {
            let guess = self.guesses.iter().position(|g| g.row == read.row && g.drafts.len() == n);
            let Some(at) = guess else { continue };
            let Guess { place: carried, ref drafts, .. } = self.guesses[at];
            // The model will read there next. Without a block for that, fewer drafts will do.
            if !exec.reserve(read.seq, n)? {
                continue;
            }
            let (seq, ids) = (&*read.seq, &drafts[n - 1..]);
            spans.push(MtpSpan { seq, ids, past: seq.past + n - 1, carried, wanted: true });
            rows.push((i, at));
        }
        if spans.is_empty() {
            return Ok(());
        }
        let vocab = exec.vocab();
        let logits = exec.run_mtp(&spans)?.chunks_exact_mut(vocab);
        for (place, ((i, at), logits)) in rows.into_iter().zip(logits).enumerate() {
            self.guesses[at].place = place;
            self.guesses[at].choose(&mut reads[i], logits);
        }
        Ok(())
    }
}

impl Guess {
    /// One more draft, by its logits; none if they are broken.
    fn choose(&mut self, read: &mut Read<'_>, logits: &mut [f32]) {
        self.drafts.extend(read.chooser.choose(logits, self.length + self.drafts.len()));
    }
}

impl Draft for Mtp {
    fn most(&self) -> usize {
        self.most
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
        for ask in asks {
            let of_text = |g: &&Guess| g.row == ask.row && g.length == ask.ids.len();
            let drafts = self.guesses.iter().find(of_text).map_or(&[][..], |g| &g.drafts);
            ask.drafts.extend(&drafts[..drafts.len().min(ask.most)]);
        }
        Ok(())
    }

    fn observe(&mut self, exec: &mut Executor, reads: &mut [Read<'_>]) -> Result<()> {
        reads.iter().for_each(|read| self.release(read.row));
        self.follow(exec, reads)?;
        (1..self.most).try_for_each(|n| self.go_on(exec, reads, n))
    }

    fn release(&mut self, row: u64) {
        self.guesses.retain(|guess| guess.row != row);
    }
}
