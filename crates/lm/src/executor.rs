//! The executor: one model, its caches and its plans; rows of tokens in, logits out.
//!
//! Owns the runtime. Everything that reads tokens goes through [`Executor::run`]: generating, checking against
//! reference vectors, soaking. It knows no text, no sampling and no order of service.

mod adapters;
mod mtp;
mod profile;
mod units;

use std::cell::RefCell;

use longrun_array::{
    BLOCK, Device, Head, IN_FLIGHT, InputLayout, Inputs, Key, Limits, Outputs, Record, RowInput,
    Rows, Runtime, Step, Stored, Tag, Usage, Wanted,
};

use crate::adapter::{Adapters, Slots};
use crate::budget::{Memory, Parts, divide};
use crate::cache::{self, CacheSpec, Caches, Copied, Pools, Room, Sequence, Snapshot};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::models::{self, Model};
use crate::rope::RopeSpec;
use crate::weights::{Progress, Source};
pub use mtp::MtpSpan;
pub use units::Fingerprint;
pub(crate) use units::Unit;

/// One row of a step: a sequence and the tokens that it reads now.
pub struct Span<'a> {
    /// Moved forward by the step.
    pub seq: &'a mut Sequence,
    /// The tokens, at positions `seq.past..`.
    pub ids: &'a [u32],
    /// Which of them have logits.
    pub wanted: Wanted,
    /// How many tokens may turn out wrong after the step: the last ones of these, or all of these and those before that
    /// may turn out wrong now. [`Sequence::accept`] says of them which were right.
    pub drafts: usize,
}

/// What an executor is made for.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Room for sequences.
    pub room: Room,
    /// Logits for every token may be wanted.
    pub per_token: bool,
    /// Results are last hidden states, behind the last norm, and not logits: for embeddings.
    pub hidden: bool,
    /// The checkpoint's head that guesses further tokens is loaded, see [`Executor::run_mtp`].
    pub mtp: bool,
    /// Results that a step may have if it has so many tokens, and not only one a row and draft: of prompts that are
    /// scored. More than [`Key::MOST`] rows are not possible.
    pub results: usize,
    /// Limits of the runtime.
    pub limits: Limits,
    /// The type of keys and values.
    pub kv: Stored,
    /// Room for adapters that rows choose.
    pub adapters: Adapters,
    /// What everything on the device may take. Then the numbers of tokens and snapshots of `room` are what fits; as many
    /// snapshots as were asked for, unless that is 0, are the most.
    pub memory: Option<Memory>,
}

impl Setup {
    /// A room as it is, keys and values in f32, logits for the last token of a row, no adapters.
    pub fn new(room: Room) -> Self {
        let (limits, kv, adapters) = (Limits::default(), Stored::F32, Adapters::default());
        let (per_token, hidden, mtp, results) = (false, false, false, 0);
        Self { room, per_token, hidden, mtp, results, limits, kv, adapters, memory: None }
    }
}

/// A model with its caches, as one recordable step.
struct Bound {
    model: Box<dyn Model>,
    caches: Caches,
    pools: Pools,
}

impl Bound {
    fn new(runtime: &Runtime, model: Box<dyn Model>, spec: &CacheSpec, room: Room) -> Result<Self> {
        let (caches, pools) = cache::make(runtime, spec, room)?;
        Ok(Self { model, caches, pools })
    }
}

impl Record for Bound {
    fn record<'s>(&self, step: Step<'s>) {
        self.model.forward(step, &self.caches);
    }
}

/// A model that is ready to read tokens.
pub struct Executor {
    // Plans name the states and weights of `bound`: they are dropped before it.
    runtime: Runtime,
    bound: Bound,
    inputs: Inputs,
    /// Logits or hidden states: `[results, cols]`.
    results: Vec<f32>,
    cols: usize,
    vocab: usize,
    rope: RopeSpec,
    head: Head,
    per_token: bool,
    most_results: usize,
    /// There is a head that guesses further tokens.
    mtp: bool,
    parts: Parts,
    fingerprint: Fingerprint,
    slots: Slots,
}

impl Executor {
    /// Loads a model onto a device and prepares every plan that `setup` can need.
    ///
    /// # Errors
    /// A weight is missing or misshapen; memory or objects run out.
    pub fn new(
        device: Box<dyn Device>,
        config: &Config,
        source: Source<'_>,
        setup: Setup,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let mut runtime = Runtime::new(device, setup.limits);
        let room = clamp(setup.room)?;
        let slots = RefCell::new(Slots::new(setup.adapters)?);
        let wanted = [setup.mtp, setup.hidden];
        let (model, seen) = models::load_with(&runtime, config, source, &slots, progress, wanted)?;
        let (slots, weights) = (slots.into_inner(), runtime.usage().live.bytes);
        let spec = model.caches().stored_as(setup.kv);
        let head = if setup.hidden { Head::Hidden } else { Head::Logits };
        let most_results = most_results(room, setup);
        let keys = keys(room, head, setup.per_token, setup.mtp, most_results);
        // Plans have to be made once to know what steps take.
        let trial = Room { context: room.context.min(BLOCK), tokens: 0, snapshots: 0, ..room };
        let (bound, room) = match setup.memory {
            None => (Bound::new(&runtime, model, &spec, room)?, room),
            Some(memory) => {
                let bound = Bound::new(&runtime, model, &spec, trial)?;
                runtime.prepare(&bound, &keys, bound.pools.widths())?;
                let steps = step_bytes(&runtime) + input_growth(&keys, &spec, trial, room);
                let room = divide(&spec, room, memory, weights + steps)?;
                let Bound { model, .. } = bound;
                (Bound::new(&runtime, model, &spec, room)?, room)
            }
        };
        runtime.prepare(&bound, &keys, bound.pools.widths())?;
        let (all, adapters) =
            (Parts::of(&spec, room, weights, step_bytes(&runtime)), slots.bytes());
        let parts = Parts { weights: weights - adapters, adapters, ..all };
        let inputs = runtime.inputs();
        let rows = keys.iter().map(|k| k.output_capacity()).max().unwrap_or(0);
        let cols = if setup.hidden { config.hidden } else { config.vocab };
        let widest = if setup.mtp { cols.max(config.vocab) } else { cols };
        Ok(Self {
            fingerprint: Fingerprint::new(&runtime, config, seen, &spec, &bound.caches),
            runtime,
            bound,
            inputs,
            results: vec![0.0; rows * widest],
            cols,
            vocab: config.vocab,
            rope: config.rope.clone(),
            head,
            per_token: setup.per_token,
            most_results,
            mtp: setup.mtp,
            parts,
            slots,
        })
    }

    /// Where the bytes of the device go. It never changes.
    pub fn parts(&self) -> Parts {
        self.parts
    }

    /// A place for one more sequence, of `most` tokens at most: its positions may depend on that.
    ///
    /// # Errors
    /// All rows are taken.
    pub fn admit(&mut self, most: usize) -> Result<Sequence> {
        self.bound.pools.admit(self.rope.stretch(most))
    }

    /// Takes a sequence's place back.
    pub fn release(&mut self, seq: Sequence) {
        self.slots.give_back(seq.adapter);
        self.bound.pools.release(seq);
    }

    /// The pools that sequences live in.
    pub fn pools(&self) -> &Pools {
        &self.bound.pools
    }

    /// Holds room for `count` more tokens of a sequence; false if no block is free for them.
    ///
    /// # Errors
    /// The context is full, or the device failed to copy what others hold too.
    pub fn reserve(&mut self, seq: &mut Sequence, count: usize) -> Result<bool> {
        let done = self.bound.pools.reserve(seq, count);
        self.copy()?;
        done
    }

    /// What a sequence's states hold now, to go on from later; `None` without room for one more snapshot.
    ///
    /// # Errors
    /// The device failed to copy its record.
    pub fn keep(&mut self, seq: &Sequence) -> Result<Option<Snapshot>> {
        let Some(kept) = self.bound.pools.keep(seq) else { return Ok(None) };
        if let Err(error) = self.copy() {
            self.bound.pools.forget(kept);
            return Err(error);
        }
        Ok(Some(kept))
    }

    /// How many of the first `common` tokens of a snapshot a sequence can go on from.
    pub fn serves(&self, snapshot: &Snapshot, common: usize) -> usize {
        self.bound.pools.serves(snapshot, common)
    }

    /// A sequence that goes on from the first `cut` tokens of a snapshot, of which [`serves`](Self::serves) said so.
    ///
    /// # Errors
    /// All rows are taken, or the device failed to copy the record.
    pub fn restore(&mut self, snapshot: &Snapshot, cut: usize) -> Result<Sequence> {
        let seq = self.bound.pools.restore(snapshot, cut)?;
        if let Err(error) = self.copy() {
            self.bound.pools.release(seq);
            return Err(error);
        }
        Ok(seq)
    }

    /// Takes a snapshot's place back.
    pub fn forget(&mut self, snapshot: Snapshot) {
        self.bound.pools.forget(snapshot);
    }

    /// What the positions of a text of `most` tokens are stretched by.
    pub fn stretch(&self, most: usize) -> f32 {
        self.rope.stretch(most)
    }

    /// Copies on the device what the pools have noted.
    fn copy(&mut self) -> Result<()> {
        let (runtime, caches) = (&mut self.runtime, &self.bound.caches);
        for copied in self.bound.pools.take_copies() {
            match copied {
                Copied::Block { pool, from, to } => caches
                    .of_pool(pool)
                    .try_for_each(|s| runtime.copy_unit(s, from as usize, to as usize))?,
                Copied::Slot { from, to } => caches
                    .records()
                    .iter()
                    .try_for_each(|s| runtime.copy_unit(s, from as usize, to as usize))?,
            }
        }
        Ok(())
    }

    /// Whether no sequence holds a place in the pools.
    pub fn all_free(&self) -> bool {
        self.bound.pools.all_free()
    }

    /// The room that was made.
    pub fn room(&self) -> Room {
        self.bound.pools.room()
    }

    /// All counts now.
    pub fn usage(&self) -> Usage {
        self.runtime.usage()
    }

    /// Bytes of all caches.
    pub fn cache_bytes(&self) -> usize {
        self.bound.caches.bytes()
    }

    /// All caches.
    pub fn caches(&self) -> &Caches {
        &self.bound.caches
    }

    /// How many plans there are. It never changes.
    pub fn plans(&self) -> usize {
        self.runtime.plans()
    }

    /// The device's name.
    pub fn device_name(&self) -> String {
        self.runtime.device_name()
    }

    /// The runtime, for the leak lab.
    #[cfg(feature = "leak-lab")]
    pub fn runtime(&mut self) -> &mut Runtime {
        &mut self.runtime
    }

    /// Whether results are logits, and not hidden states.
    pub fn gives_logits(&self) -> bool {
        self.head == Head::Logits
    }

    /// Whether each token of a step can have a result, however many there are.
    pub fn gives_all(&self) -> bool {
        self.per_token
    }

    /// How many results a step can have, if it has so many tokens; more if all are of rows and their drafts.
    pub fn most_results(&self) -> usize {
        self.most_results
    }

    /// Numbers of a result: the vocabulary, or the width of hidden states.
    pub fn width(&self) -> usize {
        self.cols
    }

    /// Ids in the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Runs one step and moves each sequence forward. Gives the wanted logits, `[results, vocab]`, or hidden states,
    /// `[results, hidden]`, row after row, for the caller to change as it likes until the next step.
    ///
    /// # Errors
    /// The rows don't fit the room, or the step fails; sequences then stay where they were.
    pub fn run(&mut self, spans: &mut [Span<'_>]) -> Result<&mut [f32]> {
        let tokens = spans.iter().map(|s| s.ids.len()).sum();
        let results = spans.iter().map(|s| match s.wanted {
            Wanted::None => 0,
            Wanted::Last => 1,
            Wanted::All => s.ids.len(),
        });
        let key = fit(tokens, spans.len(), results.sum(), self.head, self.per_token);
        let key = key.ok_or_else(|| too_large(tokens, spans.len()))?;
        self.inputs.begin(key);
        for span in spans.iter_mut() {
            let confirmed = confirmed(span, self.bound.pools.room().drafts)?;
            if !self.reserve(span.seq, span.ids.len())? {
                let (_, all) = self.bound.pools.paged();
                let what = format!("all {all} blocks of {BLOCK} tokens are taken");
                return Err(Error::new(Kind::Limit, what));
            }
            self.inputs.push(RowInput {
                ids: span.ids,
                past: span.seq.past,
                logged: span.seq.logged,
                confirmed,
                slot: span.seq.slot,
                adapter: span.seq.adapter,
                wanted: span.wanted,
                stretch: span.seq.stretch,
                carried: 0,
                tables: span.seq.used_tables(),
            })?;
        }
        let count = self.launch(self.cols)?;
        for span in spans.iter_mut() {
            span.seq.past += span.ids.len();
            span.seq.logged = span.drafts;
        }
        Ok(&mut self.results[..count])
    }

    /// Runs the step that `inputs` has; gives how many numbers its results of `cols` columns have.
    fn launch(&mut self, cols: usize) -> Result<usize> {
        let count = self.inputs.results() * cols;
        let ticket = self.runtime.launch(&self.inputs)?;
        self.runtime.wait(ticket, &mut self.results[..count])?;
        Ok(count)
    }
}

fn too_large(tokens: usize, rows: usize) -> Error {
    Error::usage(format!("{tokens} tokens in {rows} rows do not fit one step"))
}

/// How many of a row's drafts and tokens can't turn out wrong any more.
fn confirmed(span: &Span<'_>, most: usize) -> Result<usize> {
    let (logged, drafts, n) = (span.seq.drafts(), span.drafts, span.ids.len());
    let left = (logged + n).checked_sub(drafts).filter(|_| drafts <= most);
    left.ok_or_else(|| {
        let what = format!("{drafts} of {logged} drafts and {n} tokens can't stay drafts");
        Error::usage(what).hint(format!("the room is for {most} drafts a row"))
    })
}

/// The key of a step. Unless results for every token were prepared, a few of them take the place of rows: a result for
/// each token of a large step is a lot of memory.
fn fit(tokens: usize, rows: usize, results: usize, head: Head, per_token: bool) -> Option<Key> {
    let (rows, outputs) = match results {
        0 => (rows, Outputs::None),
        n if n <= rows => (rows, Outputs::PerRow),
        n if n <= Key::MOST.1 && !per_token => (n, Outputs::PerRow),
        _ => (rows, Outputs::PerToken),
    };
    Key::fit(tokens, rows, outputs, head)
}

/// Tokens of all sequences together at most: their block numbers take memory on the host.
pub(crate) const MOST_TOKENS: usize = 1 << 28;

/// Chunks are not made shorter than this for the sake of other rows.
const LEAST_CHUNK: usize = 64;

/// Bytes of temporaries, and of inputs and outputs of steps.
fn step_bytes(runtime: &Runtime) -> usize {
    let usage = runtime.usage();
    usage.tag(Tag::Arena).bytes + usage.tag(Tag::Io).bytes
}

/// Bytes by which inputs grow from one room to another: block tables are as long as the context.
fn input_growth(keys: &[Key], spec: &CacheSpec, from: Room, to: Room) -> usize {
    let bytes = |room| {
        let layout = |key: &Key| InputLayout::new(*key, spec.widths(room)).words() * 4;
        keys.iter().map(layout).max().unwrap_or(0)
    };
    IN_FLIGHT * (bytes(to) - bytes(from))
}

/// The room in whole steps of the key ladder.
fn clamp(room: Room) -> Result<Room> {
    let (tokens, rows) = Key::MOST;
    if room.rows == 0 || room.rows > rows || room.context == 0 {
        let what = format!("{} rows of {} tokens can't be made", room.rows, room.context);
        return Err(Error::usage(what).hint(format!("1 to {rows} rows are possible")));
    }
    if room.context.max(room.tokens) > MOST_TOKENS {
        let what = format!("room for {} tokens can't be made", room.context.max(room.tokens));
        return Err(Error::usage(what).hint(format!("{MOST_TOKENS} tokens are possible")));
    }
    let drafts = room.drafts.min(tokens - 1);
    // A chunk has room beside the tokens and drafts of all other rows, or prompts would be read in pieces of pieces.
    let others = (room.rows - 1) * (1 + drafts);
    let chunk = room.chunk.clamp(1, tokens.saturating_sub(others).max(LEAST_CHUNK));
    Ok(Room { chunk, drafts, ..room })
}

/// How many results a step can have, whoever has them.
fn most_results(room: Room, setup: Setup) -> usize {
    if setup.per_token {
        return room.step_tokens();
    }
    setup.results.max(room.rows * (1 + room.drafts)).min(Key::MOST.1)
}

/// Every key that steps of this room can have, of which each may have `most_results` results.
fn keys(room: Room, head: Head, per_token: bool, mtp: bool, most_results: usize) -> Vec<Key> {
    let (each, most) = (1 + room.drafts, room.step_tokens());
    let mut keys: Vec<Key> = Vec::new();
    for (tokens, rows) in (1..=most).flat_map(|t| (1..=room.rows.min(t)).map(move |r| (t, r))) {
        let results = if per_token { tokens } else { (rows * each).max(most_results).min(tokens) };
        let steps = Rows::ALL.map(|r| r.capacity().min(results));
        for results in [0, rows, results].into_iter().chain(steps) {
            let key = fit(tokens, rows, results, head, per_token);
            keys.extend(key.filter(|k| !keys.contains(k)));
        }
        let key = mtp::key(tokens, rows).filter(|k| mtp && !keys.contains(k));
        keys.extend(key);
    }
    keys
}
