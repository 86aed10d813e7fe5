//! What a loaded model does: it goes on with texts, or it makes vectors of them.
//!
//! Owns the choice between both, which the model's files make, and the way from an executor to a thread that works. A
//! request for what a model does not do is refused by name.

use longrun_lm::cache::Room;
use longrun_lm::embed::{EmbedService, Embedder, Pooling};
use longrun_lm::engine::{Engine, Looker, Service};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::source::ModelSource;
use longrun_lm::{Error, Result};

use super::error::ApiError;
use super::loaded::TINY;
use super::loras::Loras;
use super::models::Spec;
use crate::args::ServeArgs;
use crate::{model, show};

/// Tokens of prompts that a step can score at least, however few rows there are.
const SCORED: usize = 16;

/// A model on a thread of its own.
pub(crate) enum Work {
    Engine(Service),
    Embedder(EmbedService),
}

/// How a model pools, if its files say that it makes embeddings.
pub(crate) fn pooling(source: &ModelSource) -> Result<Option<Pooling>> {
    source.checkpoint().map_or(Ok(None), Pooling::of)
}

/// What an executor is made for.
pub(crate) fn setup(
    pooling: Option<Pooling>,
    room: Room,
    args: &ServeArgs,
    adapters: &Loras,
) -> Result<Setup> {
    let kv = model::stored(args.kv);
    match pooling {
        Some(_) if adapters.room().slots > 0 => {
            let what = "a model that makes embeddings takes no adapters by request";
            Err(Error::usage(what).at("--lora").hint("put one beside all of it with --adapter"))
        }
        // Nothing is kept between texts; a room for no snapshots would be one for as many as fit.
        Some(pooling) => {
            Ok(Setup { kv, ..Embedder::setup(pooling, Room { snapshots: 1, ..room }) })
        }
        None => {
            let mtp = model::by_own_head(&args.draft);
            let (adapters, results) = (adapters.room(), SCORED);
            Ok(Setup { kv, mtp, adapters, results, ..Setup::new(room) })
        }
    }
}

impl Work {
    /// Starts what an executor was made for.
    pub(crate) fn start(
        exec: Executor,
        pooling: Option<Pooling>,
        spec: &Spec,
        args: &ServeArgs,
        adapters: &Loras,
    ) -> Result<Self> {
        if let Some(pooling) = pooling {
            let embedder = Embedder::new(exec, pooling)?;
            show::note(&format!(
                "{}: its files say how to pool ({}{}): it makes embeddings of {} numbers, and no text",
                spec.name,
                pooling.mode.name(),
                if pooling.normalize { ", of length 1" } else { "" },
                embedder.width(),
            ));
            return Ok(Self::Embedder(EmbedService::start(embedder)?));
        }
        let mut engine =
            model::with_drafts(Engine::new(exec), &args.draft, args.device, args.seed, TINY)?;
        adapters.fill(&mut engine)?;
        if let Some(folder) = &args.cache_dir {
            let loaded = engine.load_prefixes(folder)?;
            show::note(&format!("{}: {loaded:?} from {}", spec.name, folder.display()));
        }
        Ok(Self::Engine(Service::start(engine)?))
    }

    /// Tells `looker` what it looks like after the step under way.
    pub(crate) fn look_with(&self, looker: Looker) -> Result<()> {
        match self {
            Self::Engine(service) => service.look_with(looker),
            Self::Embedder(service) => service.look_with(looker),
        }
    }
}

/// A request for text to a model that makes none.
pub(crate) fn no_text(name: &str) -> ApiError {
    let what = format!(
        "{name} makes embeddings and no text: its files say how to pool hidden states; send texts to /v1/embeddings"
    );
    ApiError { code: Some("no_text"), ..ApiError::bad(what) }
}

/// A request for vectors to a model that makes none.
pub(crate) fn no_embeddings(name: &str) -> ApiError {
    let what = format!(
        "{name} makes no embeddings: its files do not say how to pool hidden states (modules.json of \
         sentence-transformers, or pooling_type of GGUF)"
    );
    ApiError { code: Some("no_embeddings"), ..ApiError::bad(what) }
}
