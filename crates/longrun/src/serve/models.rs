//! The models of a server, by name: which are loaded, and which give way.
//!
//! Owns who answers to which name, and every change of what is loaded, one at a time. A model that has to go first ends
//! what it was asked for; it stays if the one that was to come is none, and comes back if that one fails. Refuses names
//! that nobody has, with those that there are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longrun_lm::{Error, Kind, Result};
use serde_json::{Value, json};

use super::error::{ApiError, ApiResult};
use super::loaded::Loaded;
use super::metrics::Metrics;
use super::served::Served;
use super::tasks::{background, outlasting};
use super::wire::now;
use crate::args::{MemoryArg, ServeArgs};
use crate::{machine, model, show};

/// What clients say that have no model in mind.
const ANY: [&str; 2] = ["default", "default_model"];

/// The part of the memory that is free at the start that models get if nothing is said.
const SHARE: f64 = 0.7;
/// The same of a GPU's own memory.
const GPU_SHARE: f64 = 0.9;

/// How often it is looked whether a model is free of requests.
const LOOK: Duration = Duration::from_millis(20);

/// A model by name, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) path: String,
    /// The one that flags about files are for.
    pub(crate) is_first: bool,
}

struct Entry {
    spec: Spec,
    loaded: Option<Arc<Loaded>>,
    used: Instant,
}

/// All models.
pub(crate) struct Models {
    args: ServeArgs,
    metrics: Arc<Metrics>,
    /// Bytes of each.
    memory: usize,
    entries: Mutex<Vec<Entry>>,
    /// Held while one comes or goes.
    change: tokio::sync::Mutex<()>,
    created: u64,
}

impl Models {
    /// Loads the first model, and as many of the others as may be loaded at the same time.
    ///
    /// # Errors
    /// Two have the same name; one can't be loaded.
    pub(crate) fn open(args: ServeArgs, metrics: Arc<Metrics>) -> Result<Self> {
        let path = args.model.clone().unwrap_or_else(|| "demo".to_owned());
        let name = args.alias.clone().unwrap_or_else(|| path.clone());
        let mut specs = vec![Spec { name, path, is_first: true }];
        specs.extend(args.also.iter().map(|(name, path)| Spec {
            name: name.clone(),
            path: path.display().to_string(),
            is_first: false,
        }));
        let adapters = args.lora.iter().map(|(name, _)| name.as_str());
        let mut names: Vec<&str> = specs.iter().map(|s| s.name.as_str()).chain(adapters).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|two| two[0] == two[1]) {
            return Err(Error::usage(format!("two models are called {:?}", twice[0])));
        }
        let most = args.max_loaded.unwrap_or(specs.len()).clamp(1, specs.len());
        let memory = budget(&args)? / most;
        let entry = |spec| Entry { spec, loaded: None, used: Instant::now() };
        let entries = Mutex::new(specs.into_iter().map(entry).collect());
        let change = tokio::sync::Mutex::default();
        let models = Self { args, metrics, memory, entries, change, created: now() };
        (0..most).try_for_each(|i| models.bring(i))?;
        Ok(models)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of a name, or of an adapter's name; the first one if none is named. It is loaded if it has to be.
    pub(crate) async fn get(self: &Arc<Self>, name: Option<&str>) -> ApiResult<Arc<Served>> {
        let (i, adapter) = self.find(name)?;
        let loaded = match self.loaded_at(i) {
            Some(loaded) => loaded,
            None => self.load(i).await?,
        };
        let Some(name) = adapter else {
            let name = loaded.name.clone();
            return Ok(Arc::new(Served { name, loaded, adapter: None }));
        };
        background(move || {
            let adapter = loaded.adapters.take(&name, loaded.engine()?)?;
            Ok(Arc::new(Served { name, adapter: Some(adapter), loaded }))
        })
        .await
    }

    /// The same, of a model that goes on with texts.
    pub(crate) async fn writer(self: &Arc<Self>, name: Option<&str>) -> ApiResult<Arc<Served>> {
        let served = self.get(name).await?;
        served.engine()?;
        Ok(served)
    }

    /// Which model it is, and the adapter's name if the name is that.
    fn find(&self, name: Option<&str>) -> ApiResult<(usize, Option<String>)> {
        let Some(name) = name.filter(|name| !ANY.contains(name)) else { return Ok((0, None)) };
        let entries = self.entries();
        if let Some(i) = entries.iter().position(|entry| entry.spec.name == name) {
            return Ok((i, None));
        }
        let adapters = || self.args.lora.iter().map(|(name, _)| name.as_str());
        if adapters().any(|adapter| adapter == name) {
            return Ok((0, Some(name.to_owned())));
        }
        let names: Vec<&str> =
            entries.iter().map(|entry| entry.spec.name.as_str()).chain(adapters()).collect();
        let what = format!("The model {name:?} does not exist; there are: {}", names.join(", "));
        let error = ApiError::not_found(what);
        Err(ApiError { param: Some("model".into()), code: Some("model_not_found"), ..error })
    }

    /// Every name that finds a model.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut all = ANY.map(str::to_owned).to_vec();
        all.extend(self.entries().iter().map(|entry| entry.spec.name.clone()));
        all.extend(self.args.lora.iter().map(|(name, _)| name.clone()));
        all
    }

    fn loaded_at(&self, i: usize) -> Option<Arc<Loaded>> {
        let entry = &mut self.entries()[i];
        entry.used = Instant::now();
        entry.loaded.clone()
    }

    /// Loads a model. It goes on if the client that asked for it has gone.
    async fn load(self: &Arc<Self>, i: usize) -> ApiResult<Arc<Loaded>> {
        let models = Arc::clone(self);
        outlasting(async move {
            let _change = models.change.lock().await;
            if let Some(loaded) = models.loaded_at(i) {
                return Ok(loaded);
            }
            models.swap(i).await
        })
        .await
    }

    /// Brings a model in, and sends the one away that was not used for the longest time, if there are too many.
    async fn swap(self: &Arc<Self>, i: usize) -> ApiResult<Arc<Loaded>> {
        let models = Arc::clone(self);
        let bring = move |i| {
            let models = Arc::clone(&models);
            background(move || Ok(models.bring(i)?))
        };
        // A model that isn't one sends nobody away.
        let spec = self.entries()[i].spec.clone();
        let checked = Arc::clone(self);
        background(move || Ok(Loaded::source(&spec, &checked.args).map(|_| ())?)).await?;
        let gone = match self.oldest() {
            Some(oldest) => {
                // It is gone even if what it kept could not be saved.
                if let Err(error) = self.unload(oldest).await {
                    tracing::error!(error = error.message, "a model was not saved");
                }
                Some(oldest)
            }
            None => None,
        };
        if let Err(error) = bring(i).await {
            if let Some(gone) = gone {
                bring(gone).await?;
            }
            return Err(error);
        }
        self.loaded_at(i).ok_or_else(|| ApiError::bug("a model that was loaded is not"))
    }

    /// The one that has to go before another comes.
    fn oldest(&self) -> Option<usize> {
        let entries = self.entries();
        let loaded = entries.iter().enumerate().filter(|(_, entry)| entry.loaded.is_some());
        let most = self.args.max_loaded.unwrap_or(entries.len()).max(1);
        if loaded.clone().count() < most {
            return None;
        }
        loaded.min_by_key(|(_, entry)| entry.used).map(|(i, _)| i)
    }

    /// Loads a model, here and now.
    fn bring(&self, i: usize) -> Result<()> {
        let spec = self.entries()[i].spec.clone();
        let source = Loaded::source(&spec, &self.args)?;
        let loaded = Loaded::open(&spec, source, &self.args, self.memory, &self.metrics)?;
        self.entries()[i].loaded = Some(Arc::new(loaded));
        Ok(())
    }

    /// Ends a model's work, once all that it was asked for is answered; no new requests find it meanwhile.
    async fn unload(&self, i: usize) -> ApiResult<()> {
        let Some(mut loaded) = self.entries()[i].loaded.take() else { return Ok(()) };
        let loaded = loop {
            match Arc::try_unwrap(loaded) {
                Ok(loaded) => break loaded,
                Err(used) => loaded = used,
            }
            tokio::time::sleep(LOOK).await;
        };
        background(move || Ok(loaded.close()?)).await
    }

    /// Loads a model for requests to come.
    pub(crate) async fn ask_for(self: &Arc<Self>, name: &str) -> ApiResult<()> {
        let (i, _) = self.find(Some(name))?;
        if self.loaded_at(i).is_none() {
            self.load(i).await?;
        }
        Ok(())
    }

    /// Unloads a model once it has answered; it comes back when somebody asks for it.
    pub(crate) async fn let_go(self: &Arc<Self>, name: &str) -> ApiResult<()> {
        let (i, _) = self.find(Some(name))?;
        let models = Arc::clone(self);
        outlasting(async move {
            let _change = models.change.lock().await;
            models.unload(i).await
        })
        .await
    }

    /// Unloads models that nobody has asked for in a while, for ever.
    pub(crate) async fn unload_idle(self: Arc<Self>, after: Duration) {
        loop {
            tokio::time::sleep(after.min(Duration::from_secs(1)).max(LOOK)).await;
            let _change = self.change.lock().await;
            let idle = |entry: &Entry| {
                let unused = entry.loaded.as_ref().is_some_and(|m| Arc::strong_count(m) == 1);
                unused && entry.used.elapsed() >= after
            };
            let idle = self.entries().iter().position(idle);
            if let Some(i) = idle {
                show::note(&format!(
                    "{}: unloaded, nobody asks for it",
                    self.entries()[i].spec.name
                ));
                if let Err(error) = self.unload(i).await {
                    tracing::error!(error = error.message, "a model was not saved");
                }
            }
        }
    }

    /// Those that are loaded.
    pub(crate) fn loaded(&self) -> Vec<Arc<Loaded>> {
        self.entries().iter().filter_map(|entry| entry.loaded.clone()).collect()
    }

    /// The model of a name as clients see it, whether it is loaded or not.
    pub(crate) fn object(&self, name: &str) -> ApiResult<Value> {
        let (i, adapter) = self.find(Some(name))?;
        let parent = self.entries()[i].spec.name.clone();
        Ok(match adapter {
            Some(adapter) => self.adapter_object(&adapter, &parent),
            None => self.model_object(i),
        })
    }

    /// All of them.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let count = self.entries().len();
        let mut all: Vec<Value> = (0..count).map(|i| self.model_object(i)).collect();
        let parent = self.entries()[0].spec.name.clone();
        let adapters = self.args.lora.iter();
        all.extend(adapters.map(|(name, _)| self.adapter_object(name, &parent)));
        all
    }

    fn model_object(&self, i: usize) -> Value {
        let entry = &self.entries()[i];
        match &entry.loaded {
            Some(loaded) => loaded.object(),
            None => json!({
                "id": entry.spec.name,
                "object": "model",
                "created": self.created,
                "owned_by": "longrun",
                "longrun": {"loaded": false},
            }),
        }
    }

    fn adapter_object(&self, name: &str, parent: &str) -> Value {
        json!({
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "longrun",
            "parent": parent,
        })
    }

    /// Lets all of them go.
    pub(crate) fn take_all(&self) -> Vec<Arc<Loaded>> {
        self.entries().iter_mut().filter_map(|entry| entry.loaded.take()).collect()
    }
}

/// Bytes that all models may take.
fn budget(args: &ServeArgs) -> Result<usize> {
    let part = match args.memory {
        Some(MemoryArg::Bytes(bytes)) => return Ok(bytes),
        Some(MemoryArg::Fraction(part)) => Some(part),
        None => None,
    };
    // Nobody else is about to use a GPU's memory, as programs of all kinds are with the system's.
    let (free, share) = match model::device(args.device)?.memory() {
        Some((free, _)) => (Some(free), GPU_SHARE),
        None => (machine::available(), SHARE),
    };
    let free = free.ok_or_else(|| {
        Error::new(Kind::Unsupported, "this system does not say how much memory is free")
            .at("--memory")
            .hint("give it as a size, such as 8GiB")
    })?;
    Ok((free as f64 * part.unwrap_or(share)) as usize)
}
