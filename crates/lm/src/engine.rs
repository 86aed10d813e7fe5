//! The generation loop: schedule, read, sample, settle. A batch of one is a batch.
//!
//! Owns the rows in service. `generate` and `soak` drive this loop and no other. Rows join and leave between steps;
//! a row's tokens do not depend on its neighbours.

use std::sync::Arc;

use longrun_array::Wanted;

use crate::cache::Sequence;
use crate::error::{Error, Result};
use crate::executor::{Executor, Span};
use crate::sample::{Choice, History, Sampler, SamplingParams};
use crate::schedule;

/// What a row is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// How many tokens to generate at most; at least one.
    pub max_tokens: usize,
    /// How to choose them.
    pub params: SamplingParams,
    /// Ids that end the text.
    pub stop_ids: Arc<[u32]>,
}

/// A row in service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(pub u64);

/// Why a row has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text.
    Stop,
    /// All tokens that were asked for are there.
    Length,
}

/// What happened in a step.
#[derive(Clone, Debug)]
pub enum Event {
    /// More of a prompt was read.
    Progress {
        /// Which row.
        row: RowId,
        /// Tokens read.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen.
    Token {
        /// Which row.
        row: RowId,
        /// The token, with its logprobs if they were asked for. A token that ends the text is reported too.
        choice: Choice,
    },
    /// The row is done, and its memory is back.
    Finished {
        /// Which row.
        row: RowId,
        /// Why.
        reason: FinishReason,
    },
    /// The row failed, and its memory is back.
    Failed {
        /// Which row.
        row: RowId,
        /// Why.
        error: Error,
    },
}

struct Row {
    id: RowId,
    seq: Sequence,
    /// Tokens that wait to be read: the prompt, later the last token chosen.
    waiting: Vec<u32>,
    /// How many of them have been read.
    read: usize,
    sampler: Sampler,
    history: History,
    left: usize,
    stop_ids: Arc<[u32]>,
}

/// Rows in service on one executor.
pub struct Engine {
    exec: Executor,
    /// Oldest first.
    rows: Vec<Row>,
    shares: Vec<usize>,
    next_id: u64,
    /// Tokens of one step at most.
    budget: usize,
}

impl Engine {
    /// An engine without rows.
    pub fn new(exec: Executor) -> Self {
        let room = exec.room();
        let budget = (room.chunk + room.rows - 1).min(longrun_array::Key::MOST.0);
        Self { exec, rows: Vec::new(), shares: Vec::new(), next_id: 0, budget }
    }

    /// The executor, for its counts.
    pub fn executor(&self) -> &Executor {
        &self.exec
    }

    /// The executor, for the leak lab.
    #[cfg(feature = "leak-lab")]
    pub fn executor_mut(&mut self) -> &mut Executor {
        &mut self.exec
    }

    /// Rows in service.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Takes a request into service.
    ///
    /// # Errors
    /// The prompt is empty, names an unknown id, or does not fit the context with the tokens asked for; a sampling
    /// parameter is impossible; all rows are taken.
    pub fn admit(&mut self, request: Request) -> Result<RowId> {
        let (prompt, context) = (request.prompt.len(), self.exec.room().context);
        if prompt == 0 {
            return Err(Error::usage("the prompt has no tokens").hint("give it some text"));
        }
        if request.max_tokens == 0 {
            return Err(Error::usage("0 tokens were asked for").at("max_tokens"));
        }
        if prompt.saturating_add(request.max_tokens) > context {
            let (max, have) = (request.max_tokens, context);
            let what = format!(
                "a prompt of {prompt} tokens and {max} more do not fit the context of {have}"
            );
            return Err(Error::usage(what).hint("shorten the prompt or ask for fewer tokens"));
        }
        let vocab = self.exec.vocab();
        if let Some(id) = request.prompt.iter().find(|&&id| id as usize >= vocab) {
            let what = format!("token {id} is outside of the vocabulary of {vocab}");
            return Err(Error::usage(what).at("prompt"));
        }
        let sampler = Sampler::new(request.params, vocab)?;
        let mut history = sampler.history();
        history.extend(&request.prompt);
        let seq = self.exec.admit(prompt + request.max_tokens)?;
        let id = RowId(self.next_id);
        self.next_id += 1;
        self.rows.push(Row {
            id,
            seq,
            waiting: request.prompt,
            read: 0,
            sampler,
            history,
            left: request.max_tokens,
            stop_ids: request.stop_ids,
        });
        Ok(id)
    }

    /// Ends a row without an event; its memory is back when this returns. Unknown rows are ignored.
    pub fn cancel(&mut self, row: RowId) {
        if let Some(i) = self.rows.iter().position(|r| r.id == row) {
            let row = self.rows.remove(i);
            self.exec.pools().release(row.seq);
        }
    }

    /// One step: every row that can go on goes on. What happened is appended to `events`.
    ///
    /// # Errors
    /// The step failed. All rows in it have ended, with a [`Event::Failed`] each, and their memory is back.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let waiting = self.rows.iter().map(|r| r.waiting.len() - r.read);
        schedule::share(waiting, self.budget, self.exec.room().chunk, &mut self.shares);
        let result = self.read_and_sample(events);
        if let Err(error) = &result {
            for (i, share) in self.shares.iter_mut().enumerate().filter(|(_, s)| **s > 0) {
                events.push(Event::Failed { row: self.rows[i].id, error: error.clone() });
                self.rows[i].left = 0;
                *share = 0;
            }
        }
        self.release_ended();
        result
    }

    /// Reads each row's share and chooses a token for each row that has read all it had.
    fn read_and_sample(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let mut spans: Vec<Span<'_>> = Vec::with_capacity(self.rows.len());
        for (row, share) in self.rows.iter_mut().zip(&self.shares).filter(|(_, s)| **s > 0) {
            let ids = &row.waiting[row.read..row.read + share];
            let last = row.read + share == row.waiting.len();
            let wanted = if last { Wanted::Last } else { Wanted::None };
            spans.push(Span { seq: &mut row.seq, ids, wanted, drafts: 0 });
        }
        let vocab = self.exec.vocab();
        let mut logits = self.exec.run(&mut spans)?.chunks_exact_mut(vocab);
        for (row, share) in self.rows.iter_mut().zip(&self.shares).filter(|(_, s)| **s > 0) {
            row.read += share;
            if row.waiting.len() > 1 {
                let (row, done, total) = (row.id, row.read, row.waiting.len());
                events.push(Event::Progress { row, done, total });
            }
            if row.read == row.waiting.len() {
                row.settle(logits.next().expect("a result a row"), events);
            }
        }
        Ok(())
    }

    fn release_ended(&mut self) {
        let pools = self.exec.pools();
        for row in self.rows.extract_if(.., |r| r.left == 0) {
            pools.release(row.seq);
        }
    }
}

impl Row {
    /// Chooses the next token; ends the row if it was the last.
    fn settle(&mut self, logits: &mut [f32], events: &mut Vec<Event>) {
        let row = self.id;
        let choice = match self.sampler.sample(logits, &self.history, self.seq.past as u64) {
            Ok(choice) => choice,
            Err(error) => {
                self.left = 0;
                return events.push(Event::Failed { row, error });
            }
        };
        let id = choice.id;
        events.push(Event::Token { row, choice });
        self.history.push(id);
        self.left -= 1;
        let stop = self.stop_ids.contains(&id);
        if stop || self.left == 0 {
            self.left = 0;
            let reason = if stop { FinishReason::Stop } else { FinishReason::Length };
            return events.push(Event::Finished { row, reason });
        }
        self.waiting.clear();
        self.waiting.push(id);
        self.read = 0;
    }
}
