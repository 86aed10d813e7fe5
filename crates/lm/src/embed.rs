//! Embeddings: texts in, a vector for each out, made of the model's last hidden states.
//!
//! Owns the loop of texts that join and leave, and the sums over their hidden states. A text's vector has the same bits
//! alone or beside others, and however it is cut. Refuses to know text, and to answer with tokens: that is
//! [`Engine`](crate::engine::Engine)'s. How to pool is in `embed/pooling.rs`, the thread in `embed/service.rs`.

mod pooling;
mod service;

use std::collections::VecDeque;

use longrun_array::{BLOCK, Wanted};

pub use pooling::{Pooling, PoolingMode, shortened};
pub use service::{Answer, EmbedService, JobId};

use crate::cache::{Room, Sequence};
use crate::engine::Stats;
use crate::error::{Error, Kind, Result};
use crate::executor::{Executor, Setup, Span};
use crate::schedule::{Want, share};

/// A text of an embedder. Later ones are larger, by 1 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextId(u64);

/// A text that is through, and its vector, `[width]`.
pub type Done = (TextId, Result<Vec<f32>>);

/// A text that has no place yet.
struct Text {
    id: TextId,
    /// Those that have to be read.
    ids: Vec<u32>,
    /// Tokens of all of it: positions of some models depend on that.
    length: usize,
}

impl Text {
    fn blocks(&self) -> usize {
        self.ids.len().div_ceil(BLOCK)
    }
}

/// A text in service.
struct Row {
    text: Text,
    seq: Sequence,
    /// Tokens that it reads in the step at hand.
    share: usize,
    /// Of the hidden states that were read and count.
    sum: Vec<f64>,
    error: Option<Error>,
}

impl Row {
    fn left(&self) -> usize {
        self.text.ids.len() - self.seq.past
    }
}

/// A model that makes vectors.
pub struct Embedder {
    exec: Executor,
    pooling: Pooling,
    next_id: u64,
    waiting: VecDeque<Text>,
    /// Oldest first.
    rows: Vec<Row>,
    stats: Stats,
}

impl Embedder {
    /// What the executor of an embedder is made for: hidden states, of every token if all of them count.
    pub fn setup(pooling: Pooling, room: Room) -> Setup {
        let per_token = pooling.mode == PoolingMode::Mean;
        Setup { hidden: true, per_token, ..Setup::new(Room { drafts: 0, ..room }) }
    }

    /// An embedder of an executor that was made with [`setup`](Self::setup).
    ///
    /// # Errors
    /// [`Kind::Usage`] if it gives logits, or too few hidden states.
    pub fn new(exec: Executor, pooling: Pooling) -> Result<Self> {
        let needs_all = pooling.mode == PoolingMode::Mean;
        if exec.gives_logits() || (needs_all && !exec.gives_all()) {
            let what = "the executor does not give the hidden states that embeddings are made of";
            return Err(Error::usage(what).hint("make it with Embedder::setup"));
        }
        let (waiting, rows) = (VecDeque::new(), Vec::new());
        Ok(Self { exec, pooling, next_id: 0, waiting, rows, stats: Stats::default() })
    }

    /// The executor.
    pub fn executor(&self) -> &Executor {
        &self.exec
    }

    /// How hidden states become vectors.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        self.exec.width()
    }

    /// What it has done so far. Each text counts as one that has started and ended.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Texts in service, and texts that wait.
    pub fn texts(&self) -> (usize, usize) {
        (self.rows.len(), self.waiting.len())
    }

    /// Takes a text, as it is: beginning and end tokens are the tokenizer's.
    ///
    /// # Errors
    /// [`Kind::Usage`] if it is empty, longer than the context, or not of this vocabulary.
    pub fn submit(&mut self, mut ids: Vec<u32>) -> Result<TextId> {
        check(&ids, self.exec.room().context, self.exec.vocab())?;
        let length = ids.len();
        if self.pooling.mode == PoolingMode::Cls {
            // No token sees a later one: the first one's state is the same without them.
            ids.truncate(1);
        }
        let id = TextId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Text { id, ids, length });
        Ok(id)
    }

    /// Ends a text without a vector. Unknown ones are ignored.
    pub fn cancel(&mut self, id: TextId) {
        if let Some(i) = self.waiting.iter().position(|text| text.id == id) {
            self.waiting.remove(i);
            self.stats.cancelled += 1;
        }
        if let Some(i) = self.rows.iter().position(|row| row.text.id == id) {
            let row = self.rows.remove(i);
            self.exec.release(row.seq);
            self.stats.cancelled += 1;
        }
    }

    /// One step: every text that has a place is read on. Those that are through are appended to `done`.
    ///
    /// # Errors
    /// The step failed. All texts in it have ended with the error, and their memory is back.
    pub fn step(&mut self, done: &mut Vec<Done>) -> Result<()> {
        self.admit(done);
        self.share();
        let ran = self.run();
        if let Err(error) = &ran {
            let in_step = self.rows.iter_mut().filter(|row| row.share > 0);
            in_step.for_each(|row| row.error = Some(error.clone()));
        }
        self.release_ended(done);
        ran
    }

    /// The vectors of texts, in their order.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), before any is read; other texts are under way; or the first error of a step.
    pub fn embed(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        if self.texts() != (0, 0) {
            return Err(
                Error::usage("other texts are under way").hint("step until they are through")
            );
        }
        let (context, vocab) = (self.exec.room().context, self.exec.vocab());
        texts.iter().try_for_each(|ids| check(ids, context, vocab))?;
        texts.iter().try_for_each(|ids| self.submit(ids.clone()).map(drop))?;
        let mut done = Vec::new();
        while !self.rows.is_empty() || !self.waiting.is_empty() {
            // The texts of the step are told.
            let _ = self.step(&mut done);
        }
        done.sort_by_key(|(id, _)| *id);
        done.into_iter().map(|(_, vector)| vector).collect()
    }

    /// Gives places to those that wait, in their order, as long as there are places and blocks for all of each.
    fn admit(&mut self, done: &mut Vec<Done>) {
        let room = self.exec.room();
        let mut held: usize = self.rows.iter().map(|row| row.text.blocks()).sum();
        while self.rows.len() < room.rows {
            // One alone always has room: the context is no longer than that.
            let fits = |text: &mut Text| held == 0 || held + text.blocks() <= room.tokens / BLOCK;
            let Some(text) = self.waiting.pop_front_if(fits) else { return };
            held += text.blocks();
            self.stats.started += 1;
            match self.exec.admit(text.length) {
                Ok(seq) => {
                    let sum = vec![0.0; self.exec.width()];
                    self.rows.push(Row { text, seq, share: 0, sum, error: None });
                }
                Err(error) => {
                    self.stats.failed += 1;
                    done.push((text.id, Err(error)));
                }
            }
        }
    }

    fn share(&mut self) {
        let room = self.exec.room();
        let want = |row: &Row| Want { tokens: row.left(), drafts: 0, weight: 1 };
        let wants: Vec<Want> = self.rows.iter().map(want).collect();
        let mut shares = Vec::with_capacity(wants.len());
        share(&wants, room.step_tokens(), room.chunk, &mut shares);
        self.rows.iter_mut().zip(shares).for_each(|(row, share)| row.share = share);
    }

    fn run(&mut self) -> Result<()> {
        let mode = self.pooling.mode;
        let mut spans = Vec::with_capacity(self.rows.len());
        let mut counts = Vec::with_capacity(self.rows.len());
        for row in self.rows.iter_mut().filter(|row| row.share > 0) {
            let is_last = row.share == row.left();
            let (wanted, count) = match mode {
                PoolingMode::Mean => (Wanted::All, row.share),
                PoolingMode::Cls | PoolingMode::Last if is_last => (Wanted::Last, 1),
                PoolingMode::Cls | PoolingMode::Last => (Wanted::None, 0),
            };
            let ids = &row.text.ids[row.seq.past..][..row.share];
            spans.push(Span { seq: &mut row.seq, ids, wanted, drafts: 0 });
            counts.push(count);
        }
        if spans.is_empty() {
            return Ok(());
        }
        self.stats.steps += 1;
        let width = self.exec.width();
        let mut states = self.exec.run(&mut spans)?.chunks_exact(width);
        let rows = self.rows.iter_mut().filter(|row| row.share > 0);
        for (row, count) in rows.zip(counts) {
            // Token by token, whatever the chunks: sums have the same bits.
            for state in states.by_ref().take(count) {
                row.sum.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            self.stats.prompt_tokens += row.share as u64;
        }
        Ok(())
    }

    /// Ends the rows that have read all, and those with an error.
    fn release_ended(&mut self, done: &mut Vec<Done>) {
        let Self { exec, rows, stats, pooling, .. } = self;
        for row in rows.extract_if(.., |row| row.left() == 0 || row.error.is_some()) {
            let Row { text, seq, sum, error, .. } = row;
            exec.release(seq);
            let vector = match error {
                Some(error) => Err(error),
                None => pooling.vector(sum, text.length),
            };
            *if vector.is_ok() { &mut stats.finished } else { &mut stats.failed } += 1;
            done.push((text.id, vector));
        }
    }

    /// Ends all there is with an error.
    fn fail_all(&mut self, error: &Error, done: &mut Vec<Done>) {
        self.rows.iter_mut().for_each(|row| row.error = Some(error.clone()));
        self.release_ended(done);
        for text in self.waiting.drain(..) {
            self.stats.failed += 1;
            done.push((text.id, Err(error.clone())));
        }
    }
}

/// Whether a text can be read.
fn check(ids: &[u32], context: usize, vocab: usize) -> Result<()> {
    if ids.is_empty() {
        return Err(Error::usage("a text has no tokens").hint("leave it out"));
    }
    if ids.len() > context {
        let what = format!("a text has {} tokens, the context is {context}", ids.len());
        return Err(Error::new(Kind::Usage, what).hint("cut it into shorter ones"));
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(Error::usage(format!("token {id} is outside of the vocabulary of {vocab}")));
    }
    Ok(())
}
