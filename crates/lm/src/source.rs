//! What a user names as a model: a folder, a GGUF file, the demo inside of the binary, a tiny random one, or the shape of
//! a real one.
//!
//! Owns the way from a name to everything that serving needs but the weights on a device: config, tokenizer,
//! template, defaults.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::adapter::Adapter;
use crate::checkpoint::{Checkpoint, EmbeddedFile, Gguf};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::sample::Defaults;
use crate::shapes;
use crate::text::{ChatTemplate, GgufVocab, Tokenizer};
use crate::tiny::{self, TinyShape};
use crate::weights::{Made, Source, Storage};

/// Where a model is.
#[derive(Clone, Copy, Debug)]
pub enum ModelName<'a> {
    /// A folder or a GGUF file.
    Path(&'a Path),
    /// Files compiled into the program.
    Embedded(&'static [EmbeddedFile]),
    /// `tiny:FAMILY`
    Tiny(&'a str, TinyShape),
    /// `shape:NAME`, whose weights are made up and so stored.
    Shape(&'a str, Storage),
}

/// A model by name, without its weights on a device.
pub struct ModelSource {
    checkpoint: Option<Checkpoint>,
    made: Option<Made>,
    /// Its shape.
    pub config: Config,
    /// Absent for shapes, for tiny models, unless they read text, and for checkpoints without one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Absent where the model has none.
    pub template: Option<ChatTemplate>,
    /// What its maker recommends.
    pub defaults: Defaults,
    /// Every id that ends a text.
    pub eos: Arc<[u32]>,
}

impl ModelSource {
    /// Opens a model.
    ///
    /// # Errors
    /// A file is missing or damaged, or names something that is not known; the message says which.
    pub fn open(name: ModelName<'_>) -> Result<Self> {
        let checkpoint = match name {
            ModelName::Path(path) => Checkpoint::open(path)?,
            ModelName::Embedded(files) => Checkpoint::from_embedded(files)?,
            ModelName::Tiny(family, shape) => {
                let config = Config::loose(&tiny::config(family, shape)?)?;
                return Self::tiny(config, shape);
            }
            ModelName::Shape(name, storage) => {
                let config = Config::new(&shapes::config(name)?)?;
                let made = Some(Made::new(storage, &config));
                return Ok(Self { made, ..Self::tiny(config, TinyShape::default())? });
            }
        };
        Self::from_checkpoint(checkpoint)
    }

    fn tiny(config: Config, shape: TinyShape) -> Result<Self> {
        let (checkpoint, defaults) = (None, Defaults::default());
        let (tokenizer, template, eos) = if shape.text {
            let (tokenizer, template, end) = tiny::text()?;
            (Some(Arc::new(tokenizer)), Some(template), Arc::from([end]))
        } else {
            (None, None, Arc::from([]))
        };
        let made = None;
        Ok(Self { checkpoint, made, config, tokenizer, template, defaults, eos })
    }

    fn from_checkpoint(checkpoint: Checkpoint) -> Result<Self> {
        let place = |e: Error| e.at(checkpoint.source());
        let config = Config::new(checkpoint.config()).map_err(place)?;
        let tokenizer_config = json_file(&checkpoint, "tokenizer_config.json").map_err(place)?;
        let tokenizer = tokenizer(&checkpoint, tokenizer_config.as_ref()).map_err(place)?;
        let template =
            template(&checkpoint, tokenizer_config.as_ref(), tokenizer.as_ref()).map_err(place)?;
        let defaults = match checkpoint.generation_config() {
            Some(json) => Defaults::from_generation_config(json)
                .map_err(|e| place(e.at("generation_config.json")))?,
            None => Defaults::default(),
        };
        let mut eos = defaults.eos.clone();
        eos.extend(&config.eos);
        eos.extend(tokenizer.as_ref().and_then(Tokenizer::eos));
        eos.sort_unstable();
        eos.dedup();
        let tokenizer = tokenizer.map(Arc::new);
        Ok(Self {
            config,
            tokenizer,
            template,
            defaults,
            eos: eos.into(),
            made: None,
            checkpoint: Some(checkpoint),
        })
    }

    /// The model with `adapter` beside its weights.
    ///
    /// # Errors
    /// It is a tiny model, or a shape.
    pub fn with_adapter(self, adapter: Adapter) -> Result<Self> {
        match self.checkpoint {
            Some(checkpoint) => {
                Ok(Self { checkpoint: Some(checkpoint.with_adapter(adapter)), ..self })
            }
            None => Err(Error::usage("a model of random weights takes no adapter").at("--adapter")),
        }
    }

    /// Where its weights come from; `seed` is for tiny models.
    pub fn weights(&self, seed: u64) -> Source<'_> {
        match (&self.checkpoint, &self.made) {
            (Some(checkpoint), _) => Source::Checkpoint(checkpoint),
            (None, Some(made)) => Source::Made(made),
            (None, None) => Source::Seed(seed),
        }
    }

    /// How the matrices of a shape are stored.
    pub fn storage(&self) -> Option<Storage> {
        self.made.as_ref().map(Made::storage)
    }

    /// Its files, unless it is a tiny model or a shape.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.checkpoint.as_ref()
    }
}

fn json_file(checkpoint: &Checkpoint, name: &str) -> Result<Option<Value>> {
    let Some(bytes) = checkpoint.file(name) else { return Ok(None) };
    let json = serde_json::from_slice(bytes);
    json.map(Some).map_err(|e| Error::file(format!("it is not valid JSON: {e}")).at(name))
}

fn tokenizer(checkpoint: &Checkpoint, config: Option<&Value>) -> Result<Option<Tokenizer>> {
    if let Some(json) = checkpoint.file("tokenizer.json") {
        return Tokenizer::from_json(json, config).map(Some).map_err(|e| e.at("tokenizer.json"));
    }
    match checkpoint.gguf() {
        Some(gguf) if gguf.get("tokenizer.ggml.model").is_some() => {
            Tokenizer::from_gguf(&vocab(gguf)?).map(Some)
        }
        _ => Ok(None),
    }
}

/// The tokenizer's part of a GGUF file's metadata.
fn vocab(gguf: &Gguf) -> Result<GgufVocab> {
    let text = |key: &str| Ok::<_, Error>(gguf.str(key)?.map(str::to_owned));
    let id = |key: &str| Ok::<_, Error>(gguf.uint(key)?.and_then(|n| u32::try_from(n).ok()));
    let list = |key: &str| {
        let strings = gguf.strings(key)?;
        Ok::<_, Error>(strings.map_or(Vec::new(), |s| s.iter().map(str::to_owned).collect()))
    };
    let (scores, types) =
        (gguf.floats("tokenizer.ggml.scores")?, gguf.ints("tokenizer.ggml.token_type")?);
    Ok(GgufVocab {
        model: text("tokenizer.ggml.model")?.unwrap_or_default(),
        pre: text("tokenizer.ggml.pre")?,
        tokens: list("tokenizer.ggml.tokens")?,
        scores: scores.map_or(Vec::new(), |s| s.map(|x| x as f32).collect()),
        types: types.map_or(Vec::new(), |t| t.map(|n| n as i32).collect()),
        merges: list("tokenizer.ggml.merges")?,
        bos: id("tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id")?,
        unk: id("tokenizer.ggml.unknown_token_id")?,
        add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?,
        add_eos: gguf.bool("tokenizer.ggml.add_eos_token")?,
        add_space_prefix: gguf.bool("tokenizer.ggml.add_space_prefix")?,
    })
}

fn template(
    checkpoint: &Checkpoint,
    config: Option<&Value>,
    tokenizer: Option<&Tokenizer>,
) -> Result<Option<ChatTemplate>> {
    let empty = Value::Object(serde_json::Map::new());
    let config = config.unwrap_or(&empty);
    if let Some(source) = checkpoint.file("chat_template.jinja") {
        let source = std::str::from_utf8(source)
            .map_err(|_| Error::file("it is not UTF-8").at("chat_template.jinja"))?;
        let template = ChatTemplate::new(source).map_err(|e| e.at("chat_template.jinja"))?;
        return Ok(Some(template.with_tokens_of(config)));
    }
    if let Some(source) = checkpoint.gguf().and_then(|g| g.str("tokenizer.chat_template").ok()?) {
        let mut template =
            ChatTemplate::new(source).map_err(|e| e.at("tokenizer.chat_template"))?;
        let text = |id: Option<u32>| tokenizer?.token_bytes(id?);
        let [bos, eos] = [tokenizer.and_then(Tokenizer::bos), tokenizer.and_then(Tokenizer::eos)];
        for (name, id) in [("bos_token", bos), ("eos_token", eos)] {
            if let Some(bytes) = text(id) {
                template = template.with_token(name, &String::from_utf8_lossy(&bytes));
            }
        }
        return Ok(Some(template));
    }
    ChatTemplate::from_config(config).map_err(|e| e.at("tokenizer_config.json"))
}
