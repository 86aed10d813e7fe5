//! What a checkpoint holds, for people and for programs, told from its headers alone.
//!
//! Owns counting and layout of the report. Refuses to read weights.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Checkpoint, RawTensor};

/// What a checkpoint holds. Printed with `{}` it is a few lines; `{:#}` lists every tensor too.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Where it was opened.
    pub source: String,
    /// `safetensors`, `GGUF v3`.
    pub container: String,
    /// The model's own name, if the file has one.
    pub name: Option<String>,
    /// `model_type` of the config.
    pub model_type: Option<String>,
    /// `architectures` of the config, or GGUF's `general.architecture`.
    pub architectures: Vec<String>,
    /// Numbers stored in all tensors together.
    pub parameters: u64,
    /// Bytes of all tensors together.
    pub bytes: u64,
    /// Totals by storage type.
    pub formats: BTreeMap<String, FormatTotal>,
    /// Context length in tokens, if the config states one.
    pub context_length: Option<u64>,
    /// `tokenizer.json`, `GGUF (gpt2)`, if there is a tokenizer.
    pub tokenizer: Option<String>,
    /// Whether there is a chat template.
    pub chat_template: bool,
    /// Every tensor, sorted by name.
    pub tensors: Vec<TensorLine>,
}

/// Totals of one storage type.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FormatTotal {
    /// Tensors of this type.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether this build can use them as weights.
    pub usable: bool,
}

/// One tensor.
#[derive(Clone, Debug, Serialize)]
pub struct TensorLine {
    /// Its name, Hugging Face style where known.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Storage type.
    pub dtype: String,
}

impl Summary {
    pub(super) fn of(checkpoint: &Checkpoint) -> Self {
        let config = checkpoint.config();
        let gguf = checkpoint.gguf();
        let gguf_text = |key| gguf.and_then(|gguf| gguf.str(key).ok().flatten());
        let mut summary = Self {
            source: checkpoint.source().into(),
            container: match gguf {
                Some(gguf) => format!("GGUF v{}", gguf.version()),
                None => "safetensors".into(),
            },
            name: gguf_text("general.name").map(str::to_owned),
            model_type: config["model_type"].as_str().map(str::to_owned),
            architectures: match gguf_text("general.architecture") {
                Some(arch) => vec![arch.into()],
                None => strings(&config["architectures"]),
            },
            parameters: 0,
            bytes: 0,
            formats: BTreeMap::new(),
            context_length: ["/max_position_embeddings", "/text_config/max_position_embeddings"]
                .iter()
                .find_map(|path| config.pointer(path)?.as_u64()),
            tokenizer: match checkpoint.file("tokenizer.json") {
                Some(_) => Some("tokenizer.json".into()),
                None => gguf_text("tokenizer.ggml.model").map(|kind| format!("GGUF ({kind})")),
            },
            chat_template: checkpoint.file("chat_template.jinja").is_some()
                || gguf_text("tokenizer.chat_template").is_some()
                || checkpoint.file("tokenizer_config.json").is_some_and(has_chat_template),
            tensors: Vec::with_capacity(checkpoint.raw_tensors().len()),
        };
        checkpoint.raw_tensors().for_each(|tensor| summary.add(&tensor));
        summary
    }

    fn add(&mut self, tensor: &RawTensor<'_>) {
        let dtype = tensor.dtype.name();
        let elements: u64 = tensor.shape.iter().map(|dim| *dim as u64).product();
        self.parameters = self.parameters.saturating_add(elements);
        self.bytes += tensor.stored as u64;
        let total = self.formats.entry(dtype.clone().into_owned()).or_default();
        total.tensors += 1;
        total.bytes += tensor.stored as u64;
        total.usable = tensor.dtype.is_weight();
        let (name, shape) = (tensor.name.to_owned(), tensor.shape.to_vec());
        self.tensors.push(TensorLine { name, shape, dtype: dtype.into_owned() });
    }
}

fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| item.as_str()).map(str::to_owned).collect()
}

fn has_chat_template(tokenizer_config: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Config {
        chat_template: Option<IgnoredAny>,
    }
    serde_json::from_slice::<Config>(tokenizer_config).is_ok_and(|c| c.chat_template.is_some())
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".into());
        writeln!(f, "source          {}", self.source)?;
        writeln!(f, "container       {}", self.container)?;
        if let Some(name) = &self.name {
            writeln!(f, "name            {name}")?;
        }
        writeln!(f, "model type      {}", or_none(&self.model_type))?;
        writeln!(f, "architectures   {}", self.architectures.join(", "))?;
        writeln!(f, "parameters      {:.1} M", self.parameters as f64 / 1e6)?;
        match self.context_length {
            Some(tokens) => writeln!(f, "context length  {tokens}")?,
            None => writeln!(f, "context length  not stated")?,
        }
        writeln!(f, "tokenizer       {}", or_none(&self.tokenizer))?;
        writeln!(f, "chat template   {}", if self.chat_template { "yes" } else { "no" })?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            f,
            "weights         {:.1} MiB in {} tensors",
            mib(self.bytes),
            self.tensors.len()
        )?;
        for (name, total) in &self.formats {
            let note = if total.usable { "" } else { "  (not usable as weights)" };
            let (tensors, size) = (total.tensors, mib(total.bytes));
            writeln!(f, "  {name:<12} {tensors:>6} tensors {size:>10.1} MiB{note}")?;
        }
        if f.alternate() {
            for TensorLine { name, shape, dtype } in &self.tensors {
                writeln!(f, "{name}  {shape:?}  {dtype}")?;
            }
        }
        Ok(())
    }
}
