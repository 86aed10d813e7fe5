//! How hidden states become the vector of a text, as a checkpoint's files say it.
//!
//! Owns both words for it: the modules of sentence-transformers and GGUF's `pooling_type`. Refuses by name what is not
//! computed here: other modes, further layers, tokens that see later ones, prompts that files put before every text.

use serde_json::Value;

use crate::checkpoint::{Checkpoint, Gguf, Module, Modules};
use crate::error::{Error, Kind, Result};

/// Which hidden states of a text count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingMode {
    /// The mean of all.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
}

impl PoolingMode {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
        }
    }
}

/// From the hidden states of a text to its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Which of them count.
    pub mode: PoolingMode,
    /// The vector has length 1.
    pub normalize: bool,
}

/// A vector is divided by its length or by this, whichever is larger.
const LEAST_LENGTH: f64 = 1e-12;

impl Pooling {
    /// What a checkpoint says; `None` for a model that makes no embeddings.
    ///
    /// # Errors
    /// `Unsupported`, with the name of what is not computed here; `File` if files contradict themselves.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let found = match (checkpoint.modules()?, checkpoint.gguf()) {
            (Some(modules), _) => of_modules(modules, checkpoint.config_number("hidden_size")),
            (None, Some(gguf)) => of_gguf(gguf),
            (None, None) => Ok(None),
        };
        let found = match found {
            Ok(Some(found)) => looks_back(checkpoint).map(|()| Some(found)),
            other => other,
        };
        found.map_err(|e| e.at(checkpoint.source()))
    }

    /// The vector of a text of `tokens` tokens, from the sum of the hidden states that count.
    pub(super) fn vector(self, mut sum: Vec<f64>, tokens: usize) -> Result<Vec<f32>> {
        let scale = match self.mode {
            PoolingMode::Mean => tokens as f64,
            PoolingMode::Cls | PoolingMode::Last => 1.0,
        };
        sum.iter_mut().for_each(|x| *x /= scale);
        if self.normalize {
            normalize(&mut sum);
        }
        let vector: Vec<f32> = sum.iter().map(|x| *x as f32).collect();
        if vector.iter().all(|x| x.is_finite()) {
            return Ok(vector);
        }
        Err(Error::new(Kind::Device, "the model's hidden states are not finite")
            .hint("its weights are damaged, or its numbers too large for their type"))
    }
}

fn normalize(vector: &mut [f64]) {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt().max(LEAST_LENGTH);
    vector.iter_mut().for_each(|x| *x /= length);
}

/// The first numbers of a vector, made as long as 1 again: what is left when a model was taught to say most in them.
pub fn shortened(vector: &[f32], width: usize) -> Vec<f32> {
    let mut first: Vec<f64> = vector.iter().take(width).map(|x| f64::from(*x)).collect();
    normalize(&mut first);
    first.iter().map(|x| *x as f32).collect()
}

/// Tokens here see what is before them and nothing else.
fn looks_back(checkpoint: &Checkpoint) -> Result<()> {
    let config = checkpoint.config();
    let says = |name: &str, value: bool| {
        let said = [config.get(name), config["text_config"].get(name)];
        said.contains(&Some(&Value::Bool(value)))
    };
    let key = checkpoint.gguf().map(|gguf| arch_key(gguf, "attention.causal")).transpose()?;
    let causal = match (&key, checkpoint.gguf()) {
        (Some(key), Some(gguf)) => gguf.bool(key)?,
        _ => None,
    };
    let place = match () {
        () if says("is_causal", false) => "is_causal",
        () if says("use_bidirectional_attention", true) => "use_bidirectional_attention",
        () if causal == Some(false) => "attention.causal",
        () => return Ok(()),
    };
    let what = "tokens that see later ones are not supported";
    Err(Error::unsupported(what).at(place).hint("use a model whose attention is causal"))
}

fn of_modules(modules: &Modules, hidden: Option<usize>) -> Result<Option<Pooling>> {
    let mut found = None;
    for (i, module) in modules.list.iter().enumerate() {
        found = match (module.kind.as_str(), i, found) {
            ("Transformer", 0, None) => no_lower_case(module).map(|()| None)?,
            ("Pooling", 1, None) => {
                let mode =
                    mode(&module.config, hidden).map_err(|e| e.at("the config of Pooling"))?;
                Some(Pooling { mode, normalize: false })
            }
            ("Normalize", _, Some(pooling)) => Some(Pooling { normalize: true, ..pooling }),
            (other, ..) => {
                let what =
                    format!("module {i} of the embedding is {other}, which is not supported");
                let hint = "without modules.json the model is one that goes on with texts";
                return Err(Error::unsupported(what).at("modules.json").hint(hint));
            }
        };
    }
    let prompt = &modules.settings["default_prompt_name"];
    match prompt.as_str().map(|name| &modules.settings["prompts"][name]) {
        Some(Value::String(text)) if !text.is_empty() && found.is_some() => {
            let what = "a prompt before every text is not supported";
            Err(Error::unsupported(what)
                .at("default_prompt_name")
                .at("config_sentence_transformers.json")
                .hint("take it out, and let clients send it with their texts"))
        }
        _ => Ok(found),
    }
}

fn no_lower_case(module: &Module) -> Result<()> {
    if module.config["do_lower_case"] == true {
        let error = Error::unsupported("texts in lower case are not supported");
        return Err(error.at("do_lower_case").at("sentence_bert_config.json"));
    }
    Ok(())
}

/// The one mode of a `Pooling` module's config.
fn mode(config: &Value, hidden: Option<usize>) -> Result<PoolingMode> {
    let mut modes = Vec::new();
    for (name, value) in config.as_object().into_iter().flatten() {
        let refused = || Error::unsupported(format!("{value} is not supported")).at(name);
        let mode = match (name.as_str(), value) {
            (_, Value::Null | Value::Bool(false)) if name != "include_prompt" => continue,
            ("include_prompt", Value::Null | Value::Bool(true)) => continue,
            ("word_embedding_dimension" | "embedding_dimension", width) => {
                if hidden.is_some_and(|hidden| width.as_u64() != Some(hidden as u64)) {
                    let what = format!("it is {width}, the model's width another");
                    return Err(Error::file(what)
                        .at(name)
                        .hint("the files are of different models"));
                }
                continue;
            }
            ("pooling_mode_mean_tokens", Value::Bool(true)) => PoolingMode::Mean,
            ("pooling_mode_cls_token", Value::Bool(true)) => PoolingMode::Cls,
            ("pooling_mode_lasttoken", Value::Bool(true)) => PoolingMode::Last,
            ("pooling_mode", Value::String(word)) => match word.as_str() {
                "mean" => PoolingMode::Mean,
                "cls" => PoolingMode::Cls,
                "lasttoken" => PoolingMode::Last,
                _ => return Err(refused()),
            },
            _ => return Err(refused()),
        };
        modes.push(mode);
    }
    match modes[..] {
        [mode] => Ok(mode),
        [] => Err(Error::file("it names no mode of pooling").hint("download the folder again")),
        _ => Err(Error::unsupported("several modes of pooling at once are not supported")),
    }
}

fn arch_key(gguf: &Gguf, name: &str) -> Result<String> {
    let key = "general.architecture";
    let arch = gguf.str(key)?.ok_or_else(|| gguf.missing(key))?;
    Ok(format!("{arch}.{name}"))
}

/// Who reads such files makes every vector as long as 1.
fn of_gguf(gguf: &Gguf) -> Result<Option<Pooling>> {
    let key = arch_key(gguf, "pooling_type")?;
    let mode = match gguf.uint(&key)? {
        None | Some(0) => return Ok(None),
        Some(1) => PoolingMode::Mean,
        Some(2) => PoolingMode::Cls,
        Some(3) => PoolingMode::Last,
        Some(4) => {
            let what = "a model that ranks makes no vectors, and ranking is not supported";
            return Err(Error::unsupported(what).at(key));
        }
        Some(other) => {
            return Err(Error::unsupported(format!("{other} is no known way to pool")).at(key));
        }
    };
    Ok(Some(Pooling { mode, normalize: true }))
}
