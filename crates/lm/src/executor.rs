//! The executor: one model, its caches and its plans; rows of tokens in, logits out.
//!
//! Owns the runtime. Everything that reads tokens goes through [`Executor::run`]: generating, checking against
//! reference vectors, soaking. It knows no text, no sampling and no order of service.

mod units;

use longrun_array::{
    BLOCK, Device, Head, Inputs, Key, Limits, Outputs, Record, RowInput, Runtime, Step, Usage,
    Wanted,
};

use crate::cache::{self, Caches, Copied, Pools, Room, Sequence, Snapshot};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::models::{self, Model};
use crate::rope::RopeSpec;
use crate::weights::{Progress, Source};
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
}

/// What an executor is made for.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Room for sequences.
    pub room: Room,
    /// Logits for every token may be wanted.
    pub per_token: bool,
    /// Limits of the runtime.
    pub limits: Limits,
}

/// A model with its caches, as one recordable step.
struct Bound {
    model: Box<dyn Model>,
    caches: Caches,
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
    pools: Pools,
    inputs: Inputs,
    logits: Vec<f32>,
    vocab: usize,
    rope: RopeSpec,
    fingerprint: Fingerprint,
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
        let (model, weights) = models::load(&runtime, config, source, progress)?;
        let (caches, pools) = cache::make(&runtime, &model.caches(), room)?;
        let fingerprint = Fingerprint::new(&runtime, config, weights, &model.caches(), &caches);
        let bound = Bound { model, caches };
        let keys = keys(room, setup.per_token);
        runtime.prepare(&bound, &keys, pools.widths())?;
        let inputs = runtime.inputs();
        let rows = keys.iter().map(|k| k.output_capacity()).max().unwrap_or(0);
        let logits = vec![0.0; rows * config.vocab];
        let (vocab, rope) = (config.vocab, config.rope.clone());
        Ok(Self { runtime, bound, pools, inputs, logits, vocab, rope, fingerprint })
    }

    /// A place for one more sequence, of `most` tokens at most: its positions may depend on that.
    ///
    /// # Errors
    /// All rows are taken.
    pub fn admit(&mut self, most: usize) -> Result<Sequence> {
        self.pools.admit(self.rope.stretch(most))
    }

    /// Takes a sequence's place back.
    pub fn release(&mut self, seq: Sequence) {
        self.pools.release(seq);
    }

    /// The pools that sequences live in.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Holds room for `count` more tokens of a sequence; false if no block is free for them.
    ///
    /// # Errors
    /// The context is full, or the device failed to copy what others hold too.
    pub fn reserve(&mut self, seq: &mut Sequence, count: usize) -> Result<bool> {
        let done = self.pools.reserve(seq, count);
        self.copy()?;
        done
    }

    /// What a sequence's states hold now, to go on from later; `None` without room for one more snapshot.
    ///
    /// # Errors
    /// The device failed to copy its record.
    pub fn keep(&mut self, seq: &Sequence) -> Result<Option<Snapshot>> {
        let Some(kept) = self.pools.keep(seq) else { return Ok(None) };
        if let Err(error) = self.copy() {
            self.pools.forget(kept);
            return Err(error);
        }
        Ok(Some(kept))
    }

    /// How many of the first `common` tokens of a snapshot a sequence can go on from.
    pub fn serves(&self, snapshot: &Snapshot, common: usize) -> usize {
        self.pools.serves(snapshot, common)
    }

    /// A sequence that goes on from the first `cut` tokens of a snapshot, of which [`serves`](Self::serves) said so.
    ///
    /// # Errors
    /// All rows are taken, or the device failed to copy the record.
    pub fn restore(&mut self, snapshot: &Snapshot, cut: usize) -> Result<Sequence> {
        let seq = self.pools.restore(snapshot, cut)?;
        if let Err(error) = self.copy() {
            self.pools.release(seq);
            return Err(error);
        }
        Ok(seq)
    }

    /// Takes a snapshot's place back.
    pub fn forget(&mut self, snapshot: Snapshot) {
        self.pools.forget(snapshot);
    }

    /// What the positions of a text of `most` tokens are stretched by.
    pub fn stretch(&self, most: usize) -> f32 {
        self.rope.stretch(most)
    }

    /// Copies on the device what the pools have noted.
    fn copy(&mut self) -> Result<()> {
        let (runtime, caches) = (&mut self.runtime, &self.bound.caches);
        for copied in self.pools.take_copies() {
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
        self.pools.all_free()
    }

    /// The room that was made.
    pub fn room(&self) -> Room {
        self.pools.room()
    }

    /// All counts now.
    pub fn usage(&self) -> Usage {
        self.runtime.usage()
    }

    /// Bytes of all caches.
    pub fn cache_bytes(&self) -> usize {
        self.bound.caches.bytes()
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

    /// Ids in the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Runs one step and moves each sequence forward. Gives the wanted logits, `[results, vocab]`, row after row, for
    /// the caller to change as it likes until the next step.
    ///
    /// # Errors
    /// The rows don't fit the room, or the step fails; sequences then stay where they were.
    pub fn run(&mut self, spans: &mut [Span<'_>]) -> Result<&mut [f32]> {
        let tokens = spans.iter().map(|s| s.ids.len()).sum();
        let outputs = spans.iter().map(|s| s.wanted).fold(Outputs::None, |all, w| match w {
            Wanted::None => all,
            Wanted::Last => all.max(Outputs::PerRow),
            Wanted::All => Outputs::PerToken,
        });
        let key = Key::fit(tokens, spans.len(), outputs, Head::Logits).ok_or_else(|| {
            Error::usage(format!("{tokens} tokens in {} rows do not fit one step", spans.len()))
        })?;
        self.inputs.begin(key);
        for span in spans.iter_mut() {
            if !self.reserve(span.seq, span.ids.len())? {
                let (_, all) = self.pools.paged();
                let what = format!("all {all} blocks of {BLOCK} tokens are taken");
                return Err(Error::new(Kind::Limit, what));
            }
            self.inputs.push(RowInput {
                ids: span.ids,
                past: span.seq.past,
                slot: span.seq.slot,
                wanted: span.wanted,
                stretch: span.seq.stretch,
                tables: span.seq.used_tables(),
            })?;
        }
        let ticket = self.runtime.launch(&self.inputs)?;
        let results = &mut self.logits[..self.inputs.results() * self.vocab];
        self.runtime.wait(ticket, results)?;
        spans.iter_mut().for_each(|s| s.seq.past += s.ids.len());
        Ok(results)
    }
}

/// Tokens of all sequences together at most: their block numbers take memory on the host.
const MOST_TOKENS: usize = 1 << 28;

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
    Ok(Room { chunk: room.chunk.clamp(1, tokens), ..room })
}

/// Every key that steps of this room can have.
fn keys(room: Room, per_token: bool) -> Vec<Key> {
    let mut kinds = vec![Outputs::None, Outputs::PerRow];
    if per_token {
        kinds.push(Outputs::PerToken);
    }
    // A step reads a chunk for one row, and a token for each of the others.
    let most = (room.chunk + room.rows - 1).min(Key::MOST.0);
    let mut keys: Vec<Key> = Vec::new();
    for (tokens, rows) in (1..=most).flat_map(|t| (1..=room.rows.min(t)).map(move |r| (t, r))) {
        for outputs in &kinds {
            let key = Key::fit(tokens, rows, *outputs, Head::Logits);
            keys.extend(key.filter(|k| !keys.contains(k)));
        }
    }
    keys
}
