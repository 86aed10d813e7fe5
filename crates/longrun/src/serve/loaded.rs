//! One model in service: its files, its work on a thread of its own, its adapters, and what requests need to know of it.
//!
//! Owns the way from flags to a model that works. Refuses a budget that the model does not fit, with the numbers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longrun_lm::answer::Format;
use longrun_lm::budget::{Memory, Parts};
use longrun_lm::cache::Room;
use longrun_lm::embed::EmbedService;
use longrun_lm::engine::{Service, Stats, View};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::grammar::{CallShape, GrammarFactory};
use longrun_lm::source::ModelSource;
use longrun_lm::text::ChatTemplate;
use longrun_lm::tiny::TinyShape;
use longrun_lm::{Error, Result};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::error::ApiResult;
use super::loras::Loras;
use super::metrics::Metrics;
use super::models::Spec;
use super::work::{self, Work};
use crate::args::ServeArgs;
use crate::{model, show};

/// Tiny models are spoken to.
pub(crate) const TINY: TinyShape = TinyShape {
    layers: None,
    interval: None,
    experts: None,
    hidden: None,
    attention_only: false,
    text: true,
};

/// What stands around reasoning, as ids.
pub(crate) struct ReasoningTags {
    /// Absent if it is not one token.
    pub(crate) open: Option<u32>,
    pub(crate) close: Arc<[u32]>,
    /// The end is one token: there is no other way to write it.
    pub(crate) is_exact: bool,
}

/// A model that answers.
pub(crate) struct Loaded {
    pub(crate) name: String,
    /// Where its files are.
    pub(crate) path: String,
    pub(crate) source: ModelSource,
    pub(crate) work: Work,
    /// Tokens of a text at most.
    pub(crate) context: usize,
    pub(crate) vocab: usize,
    /// The model's state can't be cut anywhere: it matters where it is kept.
    pub(crate) is_exact: bool,
    pub(crate) format: Arc<Format>,
    /// Special tokens that are part of an answer's form.
    pub(crate) visible: Arc<[u32]>,
    /// Where reasoning begins and ends, if the model's form has a place for it.
    pub(crate) reasoning: Option<ReasoningTags>,
    /// How calls are written, if that can be forced.
    pub(crate) calls: Option<CallShape>,
    /// Absent without a tokenizer.
    pub(crate) grammars: Option<GrammarFactory>,
    /// Seconds since 1970 at which it was loaded.
    pub(crate) created: u64,
    pub(crate) parts: Parts,
    pub(crate) room: Room,
    pub(crate) plans: usize,
    pub(crate) device: String,
    /// How long a request may take.
    pub(crate) timeout: Option<Duration>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) adapters: Loras,
    /// What the metrics have taken over of the engine's counts.
    pub(crate) counted: Mutex<Stats>,
    cache_dir: Option<PathBuf>,
}

impl Loaded {
    /// Opens the files of a model, which says whether there is one.
    pub(crate) fn source(spec: &Spec, args: &ServeArgs) -> Result<ModelSource> {
        let mut source = model::open(&spec.path, TINY)?;
        if spec.is_first {
            source = model::adapted(source, &args.adapter)?;
            if let Some(file) = &args.chat_template {
                source.template = Some(template(file, &source)?);
            }
        }
        Ok(source)
    }

    /// Loads a model into `bytes` of memory and starts its work.
    pub(crate) fn open(
        spec: &Spec,
        source: ModelSource,
        args: &ServeArgs,
        bytes: usize,
        metrics: &Arc<Metrics>,
    ) -> Result<Self> {
        let named = if spec.is_first { &args.lora[..] } else { &[] };
        let adapters = Loras::open(named, args.max_loras)?;
        let pooling = work::pooling(&source)?;
        let setup = work::setup(pooling, room(args, &source)?, args, &adapters)?;
        let exec = executor(spec, &source, args, bytes, setup)?;
        let (parts, room, plans) = (exec.parts(), exec.room(), exec.plans());
        let (is_exact, vocab, device) = (exec.pools().is_exact(), exec.vocab(), exec.device_name());
        let work = Work::start(exec, pooling, spec, args, &adapters)?;
        let format = Arc::new(format(&source));
        let visible = visible(&format, &source);
        let reasoning = reasoning_tags(&format, &source);
        let calls = source.template.as_ref();
        let calls = calls.and_then(|t| CallShape::shown_by(t, &format));
        let grammars = source.tokenizer.as_ref();
        let grammars =
            grammars.map(|t| GrammarFactory::marking(Arc::clone(t), vocab, &source.eos, &visible));
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Ok(Self {
            name: spec.name.clone(),
            path: spec.path.clone(),
            work,
            source,
            context: room.context,
            vocab,
            is_exact,
            visible,
            reasoning,
            calls,
            grammars,
            format,
            created,
            parts,
            room,
            plans,
            device,
            timeout: args.timeout.map(Duration::from_secs),
            metrics: Arc::clone(metrics),
            adapters,
            counted: Mutex::default(),
            cache_dir: args.cache_dir.clone(),
        })
    }

    /// Its engine.
    ///
    /// # Errors
    /// It has none: it makes embeddings.
    pub(crate) fn engine(&self) -> ApiResult<&Service> {
        match &self.work {
            Work::Engine(service) => Ok(service),
            Work::Embedder(_) => Err(work::no_text(&self.name)),
        }
    }

    /// Its embedder.
    ///
    /// # Errors
    /// It has none: it makes text.
    pub(crate) fn embedder(&self) -> ApiResult<&EmbedService> {
        match &self.work {
            Work::Embedder(service) => Ok(service),
            Work::Engine(_) => Err(work::no_embeddings(&self.name)),
        }
    }

    /// What its thread looks like after the step under way; `None` if it has stopped.
    pub(crate) async fn look(&self) -> Option<View> {
        let (sender, view) = oneshot::channel();
        self.work.look_with(Box::new(move |view| _ = sender.send(view))).ok()?;
        view.await.ok()
    }

    /// What OpenAI calls the state of the server.
    pub(crate) fn fingerprint(&self) -> &'static str {
        concat!("longrun-", env!("CARGO_PKG_VERSION"))
    }

    /// The model as clients see it in lists.
    pub(crate) fn object(&self) -> Value {
        let Parts { weights, steps, adapters, rows, tokens, snapshots } = self.parts;
        json!({
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "longrun",
            "max_model_len": self.context,
            "longrun": {
                "loaded": true,
                "family": self.source.config.family.name(),
                "device": self.device,
                "embedding_size": self.embedder().ok().map(EmbedService::width),
                "rows": self.room.rows,
                "tokens": self.room.tokens,
                "snapshots": self.room.snapshots,
                "bytes": {
                    "weights": weights,
                    "steps": steps,
                    "adapters": adapters,
                    "rows": rows,
                    "tokens": tokens,
                    "snapshots": snapshots,
                },
            },
        })
    }

    /// Stops its work, and saves what later texts may begin with.
    pub(crate) fn close(self) -> Result<()> {
        match self.work {
            Work::Engine(service) => {
                let mut engine = service.stop()?;
                if let Some(folder) = &self.cache_dir {
                    let saved = engine.save_prefixes(folder)?;
                    show::note(&format!("{}: {saved:?} to {}", self.name, folder.display()));
                }
            }
            Work::Embedder(service) => drop(service.stop()?),
        }
        self.metrics.forget(&self.name);
        Ok(())
    }
}

/// An executor of a model within `bytes` of memory.
fn executor(
    spec: &Spec,
    source: &ModelSource,
    args: &ServeArgs,
    bytes: usize,
    setup: Setup,
) -> Result<Executor> {
    let memory = Some(Memory { bytes, shorten: args.context.is_none() });
    let setup = Setup { memory, ..setup };
    let (exec, seconds) = model::load(source, model::device(args.device)?, setup, args.seed)?;
    let (taken, name) = (show::bytes(exec.parts().total() as u64), &spec.name);
    let all = show::bytes(bytes as u64);
    show::note(&format!("{name}: loaded in {seconds:.2} s, into {taken} of {all}"));
    Ok(exec)
}

fn template(file: &Path, source: &ModelSource) -> Result<ChatTemplate> {
    let place = |e: Error| e.at(file.display()).at("--chat-template");
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|e| place(Error::file(format!("can't be read: {e}"))))?;
    let template = ChatTemplate::new(&text).map_err(place)?;
    Ok(match &source.template {
        Some(old) => template.with_tokens_like(old),
        None => template,
    })
}

fn room(args: &ServeArgs, source: &ModelSource) -> Result<Room> {
    let most = source.config.context;
    if args.context.is_some_and(|context| context > most) {
        let what = format!("the model's context is {most} tokens");
        return Err(Error::usage(what).at("--context").hint("ask for at most that"));
    }
    Ok(Room {
        rows: args.max_rows,
        context: args.context.unwrap_or(most),
        tokens: 0,
        chunk: args.chunk,
        snapshots: args.max_snapshots.unwrap_or(16 * args.max_rows).max(1),
        drafts: model::drafts(&args.draft)?,
    })
}

fn format(source: &ModelSource) -> Format {
    let template = source.template.as_ref().map(ChatTemplate::text);
    let has = |text: &str| source.tokenizer.as_ref().is_some_and(|t| t.token_id(text).is_some());
    Format::detect(template, &has, source.config.family.name())
}

/// The special tokens that an answer's form is made of.
fn visible(format: &Format, source: &ModelSource) -> Arc<[u32]> {
    let Some(tokenizer) = &source.tokenizer else { return Arc::from([]) };
    format.markers().into_iter().filter_map(|text| tokenizer.token_id(text)).collect()
}

fn reasoning_tags(format: &Format, source: &ModelSource) -> Option<ReasoningTags> {
    let tokenizer = source.tokenizer.as_ref()?;
    let (start, end) = (format.reasoning_start()?, format.reasoning_end()?);
    let one = tokenizer.token_id(end);
    let close = match one {
        Some(id) => Arc::from([id]),
        None => tokenizer.encode(end, false).ok()?.into(),
    };
    Some(ReasoningTags { open: tokenizer.token_id(start), close, is_exact: one.is_some() })
}
