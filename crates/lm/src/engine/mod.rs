//! The generation loop: admit, schedule, make room, read, sample, keep. A batch of one is a batch.
//!
//! Owns the rows in service, the requests that wait and the snapshots between them. Everything that generates drives this
//! loop and no other, by hand ([`Engine::step`]) or on a thread of its own ([`Service`]). Rows join and leave between
//! steps; a row's tokens do not depend on its neighbours.
//!
//! ```
//! use longrun_lm::array::{CpuDevice, CpuOptions};
//! use longrun_lm::cache::Room;
//! use longrun_lm::engine::{Engine, Event, Request, Service};
//! use longrun_lm::executor::{Executor, Setup};
//! use longrun_lm::source::{ModelName, ModelSource};
//! use longrun_lm::tiny::TinyShape;
//!
//! let model = ModelSource::open(ModelName::Tiny("qwen3_next", TinyShape::default()))?;
//! let room = Room { rows: 4, context: 128, tokens: 512, chunk: 32, snapshots: 8, drafts: 0 };
//! let setup = Setup::new(room);
//! let device = Box::new(CpuDevice::new(CpuOptions::default()));
//! let exec = Executor::new(device, &model.config, model.weights(0), setup, &|_, _| {})?;
//! let service = Service::start(Engine::new(exec))?;
//! let events = service.submit(Request::new(vec![1, 2, 3], 5))?;
//! assert_eq!(events.filter(|event| matches!(event, Event::Token { .. })).count(), 5);
//! # Ok::<(), longrun_lm::Error>(())
//! ```

mod request;
mod row;
mod service;
mod stats;
mod text;

use std::collections::VecDeque;
use std::path::Path;

use longrun_array::Profile;

use crate::adapter::Adapter;
use crate::cache::Sequence;
use crate::draft::{Ask, Draft, Read};
use crate::error::{Error, Result};
use crate::executor::{Executor, Span};
use crate::prefix::disk::{self, Loaded, Saved};
use crate::prefix::{Miss, Prefixes};
use crate::schedule::{self, Want};

pub use request::{Event, FinishReason, Mask, Priority, Request, RowId, Score, TokenMask};
use row::{End, Row};
pub use service::{Events, Looker, Service, Sink, View};
pub use stats::Stats;
use text::Text;

/// Steps after which a request that waits counts as more urgent by one priority.
const PATIENCE: u64 = 512;

/// Rows in service on one executor.
pub struct Engine {
    exec: Executor,
    prefixes: Prefixes,
    /// Those without a place, with the step at which they came.
    waiting: VecDeque<(u64, Text)>,
    /// Oldest first.
    rows: Vec<Row>,
    wants: Vec<Want>,
    shares: Vec<usize>,
    next_id: u64,
    drafter: Option<Box<dyn Draft>>,
    draft_error: Option<Error>,
    /// Tokens of one step at most.
    budget: usize,
    stats: Stats,
}

impl Engine {
    /// An engine without rows.
    pub fn new(exec: Executor) -> Self {
        let room = exec.room();
        Self {
            budget: room.step_tokens(),
            exec,
            drafter: None,
            draft_error: None,
            prefixes: Prefixes::default(),
            waiting: VecDeque::new(),
            rows: Vec::new(),
            wants: Vec::new(),
            shares: Vec::new(),
            next_id: 0,
            stats: Stats::default(),
        }
    }

    /// The same with drafts. The executor's room has to be for as many a row as the drafter makes.
    #[must_use]
    pub fn with_drafts(self, drafter: Box<dyn Draft>) -> Self {
        Self { drafter: Some(drafter), ..self }
    }

    /// The executor, for its counts.
    pub fn executor(&self) -> &Executor {
        &self.exec
    }

    /// Profiles steps of the model from now on, or does so no more; what was seen before is forgotten either way. Those
    /// of a model that drafts are not seen.
    pub fn profile(&mut self, on: bool) {
        self.exec.profile(on);
    }

    /// Where the time of steps went since [`profile`](Self::profile) was switched on; `None` while it is off.
    pub fn profiled(&self) -> Option<&Profile> {
        self.exec.profiled()
    }

    /// The executor, for the leak lab.
    #[cfg(feature = "leak-lab")]
    pub fn executor_mut(&mut self) -> &mut Executor {
        &mut self.exec
    }

    /// The snapshots between requests.
    pub fn prefixes(&self) -> &Prefixes {
        &self.prefixes
    }

    /// Lets go of all snapshots.
    pub fn clear_prefixes(&mut self) {
        self.prefixes.clear(&mut self.exec);
    }

    /// Why there are no drafts any more, if the drafter has failed.
    pub fn draft_error(&self) -> Option<&Error> {
        self.draft_error.as_ref()
    }

    /// Writes all snapshots to the store of this model in `folder`, in place of what it holds; see [`disk`].
    ///
    /// # Errors
    /// The folder can't be written to, or the device failed; what was there is as it was.
    pub fn save_prefixes(&mut self, folder: &Path) -> Result<Saved> {
        disk::save(&self.prefixes, &mut self.exec, folder)
    }

    /// Keeps the snapshots of the store of this model in `folder`, as far as they fit; lets nothing go for them. What
    /// does not fit or is not right is left out, and the result says why.
    ///
    /// # Errors
    /// The device failed; what was loaded before is kept.
    pub fn load_prefixes(&mut self, folder: &Path) -> Result<Loaded> {
        disk::load(&mut self.prefixes, &mut self.exec, folder)
    }

    /// Requests in the engine: in service, or waiting for a place.
    pub fn rows(&self) -> usize {
        self.rows.len() + self.waiting.len()
    }

    /// Requests that wait for a place.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Counts so far.
    pub fn stats(&self) -> Stats {
        Stats { evicted: self.prefixes.evicted(), ..self.stats }
    }

    /// Takes a request. It gets a place in a later step, when there is one.
    ///
    /// # Errors
    /// As [`Request::validate`]: what can never fit is refused here, with the numbers.
    pub fn submit(&mut self, request: Request) -> Result<RowId> {
        let id = RowId(self.next_id);
        self.submit_as(id, request)?;
        Ok(id)
    }

    /// The same under an id that is higher than all before.
    fn submit_as(&mut self, id: RowId, request: Request) -> Result<()> {
        if !self.exec.gives_logits() {
            let what = "the executor gives hidden states, an engine needs logits";
            return Err(Error::usage(what));
        }
        let vocab = self.exec.vocab();
        request.validate(self.exec.room().context, vocab)?;
        self.exec.check_adapter(request.adapter).map_err(|e| e.at("adapter"))?;
        let text = Text::new(id, request, vocab)?;
        self.next_id = self.next_id.max(id.0 + 1);
        self.waiting.push_back((self.stats.steps, text));
        Ok(())
    }

    /// Puts an adapter into a slot, or leaves it empty, between two steps. What was kept with another adapter is not used
    /// with this one.
    ///
    /// # Errors
    /// A request in the engine uses the slot; or as [`Executor::load_adapter`].
    pub fn set_adapter(&mut self, slot: usize, adapter: Option<&Adapter>) -> Result<()> {
        let texts = self.rows.iter().map(|row| &row.text);
        let texts = texts.chain(self.waiting.iter().map(|(_, text)| text));
        let users = texts.filter(|text| text.adapter == slot).count();
        if slot > 0 && users > 0 {
            let what = format!("adapter slot {slot} is in use by {users} requests");
            return Err(Error::usage(what).hint("wait until they have ended, or cancel them"));
        }
        match adapter {
            Some(adapter) => self.exec.load_adapter(slot, adapter),
            None => self.exec.unload_adapter(slot),
        }
    }

    /// Ends a row without an event; its memory is back when this returns, and what it had read is kept for later texts.
    /// Unknown rows are ignored.
    pub fn cancel(&mut self, row: RowId) {
        if let Some(i) = self.waiting.iter().position(|(_, text)| text.id == row) {
            self.waiting.remove(i);
            self.stats.cancelled += 1;
        }
        if let Some(i) = self.rows.iter().position(|r| r.text.id == row) {
            let row = self.rows.remove(i);
            self.stats.cancelled += 1;
            let ids = &row.text.ids[..row.seq.past];
            // Without the snapshot a later text reads again: nothing is lost but time.
            let _ = self.prefixes.keep(&mut self.exec, &row.seq, ids);
            self.leave(row);
        }
    }

    /// One step: every row that can go on goes on. What happened is appended to `events`.
    ///
    /// # Errors
    /// The step failed. All rows in it have ended, with a [`Event::Failed`] each, and their memory is back.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Result<()> {
        self.admit(events);
        self.draft();
        self.share();
        self.make_room();
        let result = self.read_and_sample(events);
        if result.is_ok() {
            self.observe();
        }
        if let Err(error) = &result {
            for row in self.rows.iter_mut().filter(|row| row.share > 0) {
                row.end = Some(End::Failed(error.clone()));
            }
        }
        self.keep();
        self.release_ended(events);
        self.stats.steps += 1;
        result
    }

    /// Ends everything with an error: something outside of a step went wrong.
    fn fail_all(&mut self, error: &Error, events: &mut Vec<Event>) {
        self.rows.iter_mut().for_each(|row| row.end = Some(End::Failed(error.clone())));
        self.release_ended(events);
        for (_, text) in self.waiting.drain(..) {
            self.stats.failed += 1;
            events.push(Event::Failed { row: text.id, error: error.clone() });
        }
    }

    /// Gives places to those that wait, the most urgent first, as long as there are places and memory.
    fn admit(&mut self, events: &mut Vec<Event>) {
        while self.rows.len() < self.exec.room().rows {
            let now = self.stats.steps;
            let urgency = |(came, text): &(u64, Text)| {
                (text.priority as u64 + (now - came) / PATIENCE, std::cmp::Reverse(text.id))
            };
            let next = (0..self.waiting.len()).max_by_key(|&i| urgency(&self.waiting[i]));
            let Some((came, text)) = next.and_then(|i| self.waiting.remove(i)) else { return };
            match self.place(&text) {
                Ok(Some((seq, miss))) => self.start(text, seq, miss, events),
                Ok(None) => return self.waiting.push_front((came, text)),
                Err(error) => {
                    self.stats.failed += 1;
                    events.push(Event::Failed { row: text.id, error });
                }
            }
        }
    }

    /// A place for a text, as far along as a kept beginning allows; `None` if it has to wait for memory.
    fn place(&mut self, text: &Text) -> Result<Option<(Sequence, Option<Miss>)>> {
        let most = text.most();
        let stretch = self.exec.stretch(most);
        let found = self.prefixes.find(&self.exec, text.reusable(), text.adapter, stretch);
        let cut = found.hit.map_or(0, |(_, cut)| cut);
        let (need, spare) = (text.ids.len(), self.rows.len());
        let fits = |exec: &Executor| exec.pools().has_room(cut, need, spare);
        if !self.rows.is_empty() && !fits(&self.exec) {
            let held: usize = self.rows.iter().map(|row| row.seq.blocks()).sum();
            if !self.exec.pools().could_have_room(cut, need, spare, held) {
                return Ok(None);
            }
        }
        let restored = match found.hit {
            Some((place, cut)) => self.prefixes.restore(&mut self.exec, place, cut)?,
            None => None,
        };
        let mut seq = match restored {
            Some(seq) => seq,
            None => self.exec.admit(most)?,
        };
        if let Err(error) = self.exec.use_adapter(&mut seq, text.adapter) {
            self.exec.release(seq);
            return Err(error);
        }
        while !fits(&self.exec) && self.prefixes.evict(&mut self.exec) {}
        if !self.rows.is_empty() && !fits(&self.exec) {
            self.exec.release(seq);
            return Ok(None);
        }
        Ok(Some((seq, found.miss)))
    }

    fn start(&mut self, text: Text, seq: Sequence, miss: Option<Miss>, events: &mut Vec<Event>) {
        if !text.preempted {
            let (row, cached) = (text.id, seq.past);
            self.stats.count_start(cached, miss);
            events.push(Event::Started { row, cached, miss });
        }
        let at = self.rows.partition_point(|row| row.text.id < text.id);
        self.rows.insert(at, Row::new(text, seq));
    }

    /// Asks for drafts for rows that decode. A drafter that fails is one no more.
    fn draft(&mut self) {
        let Some(drafter) = &mut self.drafter else { return };
        let most = drafter.most().min(self.exec.room().drafts);
        let mut asks: Vec<Ask<'_>> = Vec::new();
        for row in &mut self.rows {
            let useful = row.useful_drafts(&self.exec, most);
            if useful > 0 {
                asks.push(row.text.ask(useful, &mut row.drafts));
            }
        }
        if let Err(error) = drafter.draft(&mut asks) {
            self.stop_drafting(error);
        }
    }

    /// Lets the drafter see what rows have read, those that have failed aside.
    fn observe(&mut self) {
        let Some(drafter) = &mut self.drafter else { return };
        let most = drafter.most().min(self.exec.room().drafts);
        let mut reads: Vec<Read<'_>> = Vec::new();
        for row in self.rows.iter_mut().filter(|row| row.share > 0) {
            let most = match row.end {
                None => row.useful_drafts(&self.exec, most),
                Some(End::Finished(_)) => 0,
                Some(End::Failed(_)) => continue,
            };
            reads.push(row.read(most));
        }
        if !reads.is_empty()
            && let Err(error) = drafter.observe(&mut self.exec, &mut reads)
        {
            self.stop_drafting(error);
        }
    }

    fn stop_drafting(&mut self, error: Error) {
        self.draft_error = Some(error);
        self.drafter = None;
        self.rows.iter_mut().for_each(|row| row.drafts.clear());
    }

    fn share(&mut self) {
        let scoring = self.rows.iter().filter(|row| row.is_scoring()).count();
        let others = self.rows.iter().filter(|row| !row.is_scoring());
        let others: usize = others.map(|row| 1 + row.drafts.len()).sum();
        let left = self.exec.most_results().saturating_sub(others);
        // One a row always fits.
        let most = (left / scoring.max(1)).max(1);
        self.wants.clear();
        self.wants.extend(self.rows.iter().map(|row| row.want(&self.exec, most)));
        let chunk = self.exec.room().chunk;
        schedule::share(&self.wants, self.budget, chunk, &mut self.shares);
        self.rows.iter_mut().zip(&self.shares).for_each(|(row, share)| row.share = *share);
    }

    /// Holds the blocks that rows need for their shares. When there are none, snapshots go first, then the youngest row
    /// of the lowest priority.
    fn make_room(&mut self) {
        let mut i = 0;
        while i < self.rows.len() {
            let row = &mut self.rows[i];
            match self.exec.reserve(&mut row.seq, row.share) {
                Ok(true) => i += 1,
                Ok(false) if self.prefixes.evict(&mut self.exec) => {}
                Ok(false) => {
                    let urgency = |&j: &usize| {
                        let text = &self.rows[j].text;
                        (text.priority, std::cmp::Reverse(text.id))
                    };
                    let least = (0..self.rows.len()).min_by_key(urgency).unwrap_or(i);
                    if self.rows.len() == 1 {
                        return self.fail(i, &Error::new(crate::Kind::Limit, "no block is free"));
                    }
                    self.preempt(least);
                    i -= usize::from(least < i);
                }
                Err(error) => {
                    self.fail(i, &error);
                    i += 1;
                }
            }
        }
    }

    fn fail(&mut self, i: usize, error: &Error) {
        self.rows[i].share = 0;
        self.rows[i].end = Some(End::Failed(error.clone()));
    }

    /// Takes a row's place. It waits for another one and reads its text again.
    fn preempt(&mut self, i: usize) {
        let row = self.rows.remove(i);
        let mut text = self.leave(row);
        text.preempted = true;
        self.stats.preempted += 1;
        self.waiting.push_front((self.stats.steps, text));
    }

    /// Reads each row's share and chooses a token for each row that has read all it had.
    fn read_and_sample(&mut self, events: &mut Vec<Event>) -> Result<()> {
        let mut spans: Vec<Span<'_>> = Vec::with_capacity(self.rows.len());
        let mut tokens = 0;
        for row in self.rows.iter_mut().filter(|row| row.share > 0) {
            (row.from, row.before) = (row.seq.past, tokens);
            let span = row.span();
            tokens += span.ids.len();
            spans.push(span);
        }
        if spans.is_empty() {
            return Ok(());
        }
        let vocab = self.exec.vocab();
        let mut logits = self.exec.run(&mut spans)?.chunks_exact_mut(vocab);
        for row in self.rows.iter_mut().filter(|row| row.share > 0) {
            let (before, prompt) = (row.text.ids.len(), row.text.prompt);
            let read = row.seq.past.min(prompt) - (row.seq.past - row.share).min(prompt);
            let drafts = row.drafts.len();
            let mut own = logits.by_ref().take(row.results);
            let right = row.settle(&mut own, events);
            // Those of wrong drafts are not the next row's.
            own.for_each(drop);
            self.stats.prompt_tokens += read as u64;
            self.stats.generated_tokens += (row.text.ids.len() - before) as u64;
            self.stats.drafted += drafts as u64;
            self.stats.accepted += right as u64;
        }
        Ok(())
    }

    fn keep(&mut self) {
        for row in &mut self.rows {
            if row.share == 0 || matches!(row.end, Some(End::Failed(_))) {
                continue;
            }
            if let Err(error) = row.keep(&mut self.exec, &mut self.prefixes) {
                row.end = Some(End::Failed(error));
            }
        }
    }

    fn release_ended(&mut self, events: &mut Vec<Event>) {
        for mut row in self.rows.extract_if(.., |row| row.end.is_some()) {
            let id = row.text.id;
            let event = match &mut row.end {
                Some(End::Failed(error)) => {
                    self.stats.failed += 1;
                    Event::Failed { row: id, error: error.clone() }
                }
                Some(End::Finished(reason)) => {
                    self.stats.finished += 1;
                    Event::Finished { row: id, reason: *reason }
                }
                None => continue,
            };
            self.drafter.iter_mut().for_each(|drafter| drafter.release(id.0));
            row.leave(&mut self.exec, &mut self.prefixes);
            events.push(event);
        }
    }

    fn leave(&mut self, row: Row) -> Text {
        self.drafter.iter_mut().for_each(|drafter| drafter.release(row.text.id.0));
        row.leave(&mut self.exec, &mut self.prefixes)
    }
}
