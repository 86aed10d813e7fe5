//! The executor: one model, its caches and its plans; rows of tokens in, logits out.
//!
//! Owns the runtime. Everything that reads tokens goes through [`Executor::run`]: generating, checking against
//! reference vectors, soaking. It knows no text, no sampling and no order of service.

use longrun_array::{
    Device, Head, Inputs, Key, Limits, Outputs, Record, RowInput, Runtime, Step, Stored, Usage,
    Wanted,
};

use crate::cache::{self, Caches, Pools, Room, Sequence};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::models::{self, Model};
use crate::rope::RopeSpec;
use crate::weights::{Progress, Source};

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
    /// The type of keys and values.
    pub kv: Stored,
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
        let model = models::load(&runtime, config, source, progress)?;
        let (caches, pools) = cache::make(&runtime, &model.caches(), room, setup.kv)?;
        let bound = Bound { model, caches };
        let keys = keys(room, setup.per_token);
        runtime.prepare(&bound, &keys, pools.widths())?;
        let inputs = runtime.inputs();
        let rows = keys.iter().map(|k| k.output_capacity()).max().unwrap_or(0);
        let logits = vec![0.0; rows * config.vocab];
        let (vocab, rope) = (config.vocab, config.rope.clone());
        Ok(Self { runtime, bound, pools, inputs, logits, vocab, rope })
    }

    /// A place for one more sequence, of `most` tokens at most: its positions may depend on that.
    ///
    /// # Errors
    /// All rows are taken.
    pub fn admit(&mut self, most: usize) -> Result<Sequence> {
        self.pools.admit(self.rope.stretch(most))
    }

    /// The pools that sequences live in.
    pub fn pools(&mut self) -> &mut Pools {
        &mut self.pools
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
            self.pools.reserve(span.seq, span.ids.len())?;
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
