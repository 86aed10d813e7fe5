//! From the values of `--model` and `--device` to a model that reads tokens, with a bar while it loads.

use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

use longrun_lm::adapter::Adapter;
use longrun_lm::array::{CpuDevice, CpuOptions, CudaDevice, Device, NullDevice, Stored};
use longrun_lm::budget::Parts;
use longrun_lm::cache::{CacheType, Caches, Room};
use longrun_lm::checkpoint::EmbeddedFile;
use longrun_lm::draft::{DraftModel, Lookup, Mtp};
use longrun_lm::engine::Engine;
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::source::{ModelName, ModelSource};
use longrun_lm::tiny::TinyShape;
use longrun_lm::weights::Storage;
use longrun_lm::{Error, Kind, Result};

use crate::args::{AdapterArgs, DeviceArgs, DeviceName, DraftArgs, KvArgs, KvName, QuantName};
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
    if let Some(name) = text.strip_prefix(SHAPE) {
        return ModelSource::open(ModelName::Shape(name, Storage::Bf16));
    }
    let path = Path::new(text);
    if text == "demo" && !path.exists() {
        return ModelSource::open(ModelName::Embedded(DEMO));
    }
    ModelSource::open(ModelName::Path(&place(path)?))
}

/// The same, with the weights of a shape stored as `quant` says.
pub(crate) fn open_stored(text: &str, quant: Option<QuantName>) -> Result<ModelSource> {
    let storage = match quant {
        None => return open(text, TinyShape::default()),
        Some(QuantName::Bf16) => Storage::Bf16,
        Some(QuantName::Q8) => Storage::Q8,
        Some(QuantName::Q4) => Storage::Q4,
        Some(QuantName::Q4K) => Storage::Q4K,
    };
    match text.strip_prefix(SHAPE) {
        Some(name) => ModelSource::open(ModelName::Shape(name, storage)),
        None => {
            let error = Error::usage(format!("{text} says itself how its weights are stored"));
            Err(error.at("--quant").hint("only shapes are asked"))
        }
    }
}

/// What names of shapes begin with.
pub(crate) const SHAPE: &str = "shape:";

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
    device: DeviceArgs,
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
    let (exec, _) = load(&source, self::device(device)?, Setup::new(room), seed)?;
    let drafter = DraftModel::new(exec, args.drafts, engine.executor()).map_err(place)?;
    Ok(engine.with_drafts(Box::new(drafter)))
}

/// The drafter that is the checkpoint's own head.
const OWN_HEAD: &str = "mtp";

/// The most drafts of a step.
const MOST_DRAFTS: usize = 32;

/// Lookup follows ends of at most and at least so many tokens.
const LOOKUP: (usize, usize) = (4, 2);

/// The device that runs a model.
///
/// # Errors
/// It is not there, or can't be used: what is missing, and what to do.
pub(crate) fn device(args: DeviceArgs) -> Result<Box<dyn Device>> {
    if args.device == Some(DeviceName::Null) {
        let error = Error::usage("null runs nothing, and here is something to run");
        return Err(error.at("--device").hint("leave it to soak and bench, or take cpu or cuda"));
    }
    device_or_null(args)
}

/// The same, or one that runs nothing.
///
/// # Errors
/// As [`device`].
pub(crate) fn device_or_null(args: DeviceArgs) -> Result<Box<dyn Device>> {
    match (args.device, args.cpu_flag()) {
        (Some(DeviceName::Null), _) => Ok(Box::new(NullDevice::new())),
        (Some(DeviceName::Cpu), _) | (None, Some(_)) => Ok(cpu(args)),
        (Some(DeviceName::Cuda(_)), Some(flag)) => {
            let error = Error::usage("it is for the CPU, and --device names a GPU").at(flag);
            Err(error.hint("leave one of both out"))
        }
        (Some(DeviceName::Cuda(ordinal)), None) => {
            let place =
                |what| Error::new(Kind::Device, what).at(format!("--device cuda:{ordinal}"));
            Ok(Box::new(CudaDevice::new(ordinal).map_err(place)?))
        }
        (None, None) => Ok(automatic(args)),
    }
}

/// The first GPU, if there is one that can be used. One that is there and can't is worth a word.
fn automatic(args: DeviceArgs) -> Box<dyn Device> {
    if !matches!(CudaDevice::count(), Ok(1..)) {
        return cpu(args);
    }
    match CudaDevice::new(0) {
        Ok(device) => Box::new(device),
        Err(what) => {
            show::note(&format!("longrun: the CPU is used and not the GPU that is there: {what}"));
            cpu(args)
        }
    }
}

fn cpu(args: DeviceArgs) -> Box<dyn Device> {
    let threads = args.threads.map_or(0, usize::from);
    Box::new(CpuDevice::new(CpuOptions { threads, exact: args.exact, ..CpuOptions::default() }))
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

/// Loads the weights and says where, and what the caches take. Gives the seconds that it took, too.
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
    show::note(&format!("device: {}", exec.device_name()));
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
