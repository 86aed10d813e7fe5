//! Writes a model in the layout of MLX checkpoints: the names, shapes and conventions of its model classes.
//!
//! Owns the order of things: a plan from names and shapes alone (`plan`), then one tensor after another from the
//! source to the files ([`write`]), then config and text files, then the rename that makes the folder appear. Refuses
//! a folder that exists. It never holds more than one tensor of the source.

mod config;
mod plan;
mod quantize;
mod rules;
mod tensor;
mod write;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use longrun_array::quant::encode::Float;
use serde_json::Value;

pub use quantize::{Mixed, Mode, Quantize};
pub(crate) use rules::is_router;

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::weights::Progress;

/// What to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// How to quantise; `None` writes plain numbers.
    pub quantize: Option<Quantize>,
    /// The type of what is not quantised; `None` keeps that of the source.
    pub dtype: Option<Float>,
    /// Where text files lie that [`Checkpoint::file`] does not keep.
    pub folder: Option<&'a Path>,
}

/// What was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Weight files.
    pub files: usize,
    /// Bytes of tensors.
    pub bytes: u64,
    /// Numbers of the model.
    pub parameters: u64,
    /// What a user should know of it.
    pub notes: Vec<String>,
}

/// Text files that go along if the source has them, beside those that [`Checkpoint::file`] keeps.
const MORE_FILES: [&str; 5] =
    ["tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json", "chat_template.json"];
/// The most bytes of one of them.
const MOST_TEXT: u64 = 256 << 20;

/// Writes the model `source`, with its adapter if it has one, as the new folder `to`.
///
/// # Errors
/// `to` exists or can't be written; a tensor of the source is damaged or in a form that the layout has no place for.
/// Nothing called `to` is left then.
pub fn convert(
    source: &Checkpoint,
    to: &Path,
    options: &Options<'_>,
    progress: Progress<'_>,
) -> Result<Written> {
    if fs::symlink_metadata(to).is_ok() {
        let what = "exists already";
        return Err(Error::usage(what).at(to.display()).hint("name a new folder, or remove it"));
    }
    let shape = Config::new(source.config()).map_err(|e| e.at(source.source()))?;
    let plan = plan::plan(source, &shape, options).map_err(|e| e.at(source.source()))?;
    if let Some(adapter) = source.adapter() {
        let parts = plan.outputs.iter().flat_map(|output| &output.parts);
        adapter.check_used(parts.map(|part| part.tensor.as_str()))?;
    }
    let json = config::config(source, &shape, &plan, options)?;
    let folder = Partial::beside(to)?;
    let place = |e: Error| e.at(to.display());
    let (files, bytes) = write::weights(source, &plan, &folder.path, progress)?;
    text_files(source, options, &json, &folder.path).map_err(place)?;
    folder.become_whole(to).map_err(place)?;
    Ok(Written { files, bytes, parameters: plan.parameters(), notes: notes(source, &shape) })
}

fn notes(source: &Checkpoint, shape: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    if !config::is_known_to_mlx(shape.family, source.config()) {
        let name = shape.family.name();
        notes.push(format!("mlx-lm has no {name}: only longrun can read the result"));
    }
    if source.gguf().is_some() {
        notes.push(
            "a GGUF file has no tokenizer.json: add that of the original model for text".to_owned(),
        );
    }
    notes
}

fn text_files(source: &Checkpoint, options: &Options<'_>, config: &Value, to: &Path) -> Result<()> {
    let json = |name: &str, value: &Value| {
        let text = serde_json::to_string_pretty(value);
        let text = text.map_err(|e| Error::file(e.to_string()).at(name))?;
        write::whole(&to.join(name), (text + "\n").as_bytes())
    };
    json("config.json", config)?;
    if let Some(generation) = source.generation_config() {
        json("generation_config.json", generation)?;
    }
    for name in crate::checkpoint::TEXT_FILE_NAMES {
        if let Some(bytes) = source.file(name) {
            write::whole(&to.join(name), bytes)?;
        }
    }
    for name in MORE_FILES {
        let Some(from) = options.folder.map(|folder| folder.join(name)) else { continue };
        match fs::metadata(&from) {
            Ok(meta) if meta.is_file() && meta.len() <= MOST_TEXT => {
                let bytes = fs::read(&from).map_err(|e| unwritable(&e).at(from.display()))?;
                write::whole(&to.join(name), &bytes)?;
            }
            _ => {}
        }
    }
    let template = source.gguf().and_then(|g| g.str("tokenizer.chat_template").ok()?);
    match template {
        Some(template) => write::whole(&to.join("chat_template.jinja"), template.as_bytes()),
        None => Ok(()),
    }
}

/// A folder in the making; it goes when it is dropped before it is whole.
struct Partial {
    path: PathBuf,
    whole: bool,
}

impl Partial {
    fn beside(to: &Path) -> Result<Self> {
        let name = to.file_name().ok_or_else(|| {
            Error::usage("is no name for a folder").at(to.display()).hint("name a new folder")
        })?;
        let name = format!(".{}.partial-{}", name.to_string_lossy(), std::process::id());
        let path = parent(to).join(name);
        fs::create_dir(&path).map_err(|e| {
            let hint = "the folder that it goes into must exist and be writable";
            unwritable(&e).at(path.display()).hint(hint)
        })?;
        Ok(Self { path, whole: false })
    }

    fn become_whole(mut self, to: &Path) -> Result<()> {
        let sync = |path: &Path| File::open(path).and_then(|folder| folder.sync_all());
        sync(&self.path)
            .and_then(|()| fs::rename(&self.path, to))
            .and_then(|()| sync(parent(to)))
            .map_err(|e| unwritable(&e))?;
        self.whole = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.whole {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn unwritable(error: &std::io::Error) -> Error {
    Error::file(format!("can't be written: {error}"))
}
