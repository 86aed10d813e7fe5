//! From the value of `--model` to a model that reads tokens, with a bar while it loads.

use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

use longrun_lm::adapter::Adapter;
use longrun_lm::array::{CpuDevice, CpuOptions, Device, NullDevice, Stored};
use longrun_lm::budget::Parts;
use longrun_lm::cache::{CacheType, Caches, Room};
use longrun_lm::checkpoint::EmbeddedFile;
use longrun_lm::draft::{DraftModel, Lookup, Mtp};
use longrun_lm::engine::Engine;
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::source::{ModelName, ModelSource};
use longrun_lm::tiny::TinyShape;
use longrun_lm::{Error, Result};

use crate::args::{AdapterArgs, CpuArgs, DeviceName, DraftArgs, KvArgs, KvName};
use crate::hub::HubName;
use crate::show;

/// The storyteller inside of this program.
pub(crate) const DEMO: &[EmbeddedFile] = &[
    ("config.json", include_bytes!("../../../models/demo/config.json")),
    ("generation_config.json", include_bytes!("../../../models/demo/generation_config.json")),
    ("tokenizer.json", include_bytes!("../../../models/demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../models/demo/tokenizer_config.json")),
    ("model.safetensors", include_bytes!("../../../models/demo/model.safetensors")),
];

/// Opens the model that a name stands for.
pub(crate) fn open(text: &str, shape: TinyShape) -> Result<ModelSource> {
    if let Some(family) = text.strip_prefix("tiny:") {
        return ModelSource::open(ModelName::Tiny(family, shape));
    }
    let path = Path::new(text);
    if text == "demo" && !path.exists() {
        return ModelSource::open(ModelName::Embedded(DEMO));
    }
    ModelSource::open(ModelName::Path(&place(path)?))
}

/// The files of a model: `path` itself, or those of the hub if there is no such path and it looks like a name there.
pub(crate) fn place(path: &Path) -> Result<Cow<'_, Path>> {
    let name = path.to_str().filter(|_| path.symlink_metadata().is_err()).and_then(HubName::parse);
    match name {
        Some(name) => name.find().map(Cow::Owned),
        None => Ok(Cow::Borrowed(path)),
    }
}

/// The model with the adapter that `args` name.
pub(crate) fn adapted(source: ModelSource, args: &AdapterArgs) -> Result<ModelSource> {
    match &args.adapter {
        Some(folder) => source.with_adapter(Adapter::open(folder)?),
        None => Ok(source),
    }
}

/// Drafts that the room has to be for.
pub(crate) fn drafts(args: &DraftArgs) -> Result<usize> {
    if args.draft.is_some() && !(1..=MOST_DRAFTS).contains(&args.drafts) {
        let what = format!("{} is not 1 to {MOST_DRAFTS}", args.drafts);
        return Err(Error::usage(what).at("--drafts"));
    }
    Ok(if args.draft.is_some() { args.drafts } else { 0 })
}

/// Whether drafts are by the checkpoint's own head, which then has to be loaded.
pub(crate) fn by_own_head(args: &DraftArgs) -> bool {
    args.draft.as_deref() == Some(OWN_HEAD)
}

/// The engine with the drafts that `args` ask for.
pub(crate) fn with_drafts(
    engine: Engine,
    args: &DraftArgs,
    cpu: CpuArgs,
    seed: u64,
    shape: TinyShape,
) -> Result<Engine> {
    let Some(name) = &args.draft else { return Ok(engine) };
    let place = |e: Error| e.at("--draft");
    match name.as_str() {
        "lookup" => {
            let lookup = Lookup::new(args.drafts, LOOKUP.0, LOOKUP.1);
            return Ok(engine.with_drafts(Box::new(lookup)));
        }
        OWN_HEAD => {
            let drafter = Mtp::new(args.drafts, engine.executor()).map_err(place)?;
            return Ok(engine.with_drafts(Box::new(drafter)));
        }
        _ => {}
    }
    let source = open(name, shape).map_err(place)?;
    let room = engine.executor().room();
    // It keeps nothing for later texts.
    let tokens = room.tokens.min(room.rows.saturating_mul(room.context));
    let room = Room { tokens, snapshots: 0, ..room };
    if source.config.context < room.context {
        let (have, want) = (source.config.context, room.context);
        let what = format!("the draft model's context is {have} tokens, {want} are needed");
        return Err(place(Error::usage(what)));
    }
    let (exec, _) = load(&source, self::cpu(cpu), Setup::new(room), seed)?;
    let drafter = DraftModel::new(exec, args.drafts, engine.executor()).map_err(place)?;
    Ok(engine.with_drafts(Box::new(drafter)))
}

/// The drafter that is the checkpoint's own head.
const OWN_HEAD: &str = "mtp";

/// The most drafts of a step.
const MOST_DRAFTS: usize = 32;

/// Lookup follows ends of at most and at least so many tokens.
const LOOKUP: (usize, usize) = (4, 2);

/// A CPU device.
pub(crate) fn cpu(args: CpuArgs) -> Box<dyn Device> {
    let threads = args.threads.map_or(0, usize::from);
    Box::new(CpuDevice::new(CpuOptions { threads, exact: args.exact, ..CpuOptions::default() }))
}

/// A device that runs nothing.
pub(crate) fn null() -> Box<dyn Device> {
    Box::new(NullDevice::new())
}

/// The device of a name.
pub(crate) fn device(name: DeviceName, args: CpuArgs) -> Box<dyn Device> {
    match name {
        DeviceName::Null => null(),
        DeviceName::Cpu => cpu(args),
    }
}

/// The type of keys and values.
pub(crate) fn stored(args: KvArgs) -> Stored {
    match args.kv_type {
        KvName::F32 => Stored::F32,
        KvName::F16 => Stored::F16,
        KvName::Bf16 => Stored::BF16,
        KvName::Q8 => Stored::Q8,
        KvName::Q4 => Stored::Q4,
    }
}

/// Loads the weights and says what the caches take. Gives the seconds that it took, too.
pub(crate) fn load(
    source: &ModelSource,
    device: Box<dyn Device>,
    setup: Setup,
    seed: u64,
) -> Result<(Executor, f64)> {
    let start = Instant::now();
    let bar = show::bar("loading");
    let report = |read: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(read as u64);
    };
    let weights = source.weights(seed);
    let exec = Executor::new(device, &source.config, weights, setup, &report);
    bar.finish_and_clear();
    let exec = exec?;
    show::note(&caches_line(exec.caches()));
    show::note(&memory_line(exec.parts(), exec.room()));
    Ok((exec, start.elapsed().as_secs_f64()))
}

/// What types caches have and what they take.
fn caches_line(caches: &Caches) -> String {
    let part = |of: &CacheType| {
        format!("{} in {}, {} bytes a token", of.caches, of.stored.name(), of.token_bytes)
    };
    let mut parts: Vec<String> = caches.types().iter().map(part).collect();
    if caches.record_bytes() > 0 {
        parts.push(format!("records in f32, {} bytes a row", caches.record_bytes()));
    }
    format!("caches: {}", parts.join("; "))
}

/// Where the bytes of the device go, and what they are room for.
fn memory_line(parts: Parts, room: Room) -> String {
    let size = |bytes: usize| show::bytes(bytes as u64);
    let weights = match parts.adapters {
        0 => size(parts.weights),
        bytes => format!("{}, adapters {}", size(parts.weights), size(bytes)),
    };
    format!(
        "memory: {}: weights {}, steps {}, rows {}, tokens {}, snapshots {}; {} x {} tokens, {} in all, {} snapshots",
        size(parts.total()),
        weights,
        size(parts.steps),
        size(parts.rows),
        size(parts.tokens),
        size(parts.snapshots),
        room.rows,
        room.context,
        room.tokens,
        room.snapshots,
    )
}
