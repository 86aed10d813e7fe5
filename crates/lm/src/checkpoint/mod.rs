//! One opened model: its weights, its config and its small text files, whatever the container.
//!
//! Owns finding the files of a model and joining their tensors under Hugging Face names; a weight
//! that its writer packed into several tensors is one tensor here. Refuses to load: weights stay in
//! the mapped files until they are asked for, one at a time. What the config means is the models'
//! business, what the tokenizer files mean is the text layer's.

mod gguf;
mod gguf_config;
mod gguf_names;
mod gguf_parts;
mod modules;
mod packed;
mod safetensors;
mod source;
mod summary;
mod tensor;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

pub use gguf::{Gguf, GgufNumber, GgufNumbers, GgufStrings, GgufValue};
pub use modules::{Module, Modules};
pub use packed::Packing;
pub(crate) use packed::widened;
pub use source::EmbeddedFile;
pub use summary::{FormatTotal, Summary, TensorLine};
pub use tensor::{RawDtype, RawTensor, TensorView};

use self::packed::Packed;
use self::source::{Bytes, Folder};
use self::tensor::Located;
use crate::adapter::Adapter;
use crate::{Error, Result};

const MIB: u64 = 1 << 20;
/// Largest `config.json` and `generation_config.json`.
const MAX_CONFIG: u64 = 4 * MIB;
/// Largest `model.safetensors.index.json`.
const MAX_INDEX: u64 = 64 * MIB;
/// The text files kept for others, with the largest size of each.
const TEXT_FILES: [(&str, u64); 4] = [
    ("tokenizer.json", 256 * MIB),
    ("tokenizer_config.json", 16 * MIB),
    ("chat_template.jinja", 4 * MIB),
    ("special_tokens_map.json", 4 * MIB),
];
/// Their names.
pub(crate) const TEXT_FILE_NAMES: [&str; TEXT_FILES.len()] = {
    let mut names = [""; TEXT_FILES.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = TEXT_FILES[i].0;
        i += 1;
    }
    names
};
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// One opened model.
pub struct Checkpoint {
    source: String,
    shards: Vec<Bytes>,
    tensors: BTreeMap<String, Entry>,
    mlx: bool,
    config: Value,
    generation_config: Option<Value>,
    files: Vec<(&'static str, Cow<'static, [u8]>)>,
    gguf: Option<Gguf>,
    /// Read when the files are opened; wrong ones matter only to who asks for them.
    modules: Result<Option<Modules>>,
    adapter: Option<Adapter>,
}

/// A tensor and the shard that holds it.
#[derive(Clone, Debug)]
struct Placed {
    shard: usize,
    located: Located,
}

/// A tensor as users see it.
enum Entry {
    Plain(Placed),
    Packed(Box<Packed>),
}

impl Entry {
    /// The tensors of the files that it is made of.
    fn parts(&self) -> impl Iterator<Item = &Placed> {
        let (plain, packed) = match self {
            Self::Plain(placed) => (Some(placed), None),
            Self::Packed(packed) => (None, Some(packed.parts())),
        };
        plain.into_iter().chain(packed.into_iter().flatten())
    }
}

impl Checkpoint {
    /// Opens the model at `path`: a `.gguf` file, or a folder with `config.json` and safetensors
    /// files, or a folder with exactly one `.gguf` file or the parts of one model.
    ///
    /// # Errors
    /// `File` if a part is missing, damaged or contradicts another part.
    pub fn open(path: &Path) -> Result<Self> {
        let label = path.display().to_string();
        let meta = fs::metadata(path).map_err(|e| {
            Error::file(format!("cannot open the model: {e}"))
                .at(&label)
                .hint("name a folder with config.json and safetensors, or a .gguf file")
        })?;
        if meta.is_dir() {
            return Self::open_folder(&Folder::Disk(path.into())).map_err(|e| e.at(label));
        }
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            return Err(Error::usage("a safetensors file alone is no model")
                .at(label)
                .hint("name the folder that holds it and its config.json"));
        }
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let folder = Folder::Disk(parent.unwrap_or(Path::new(".")).into());
        // A name that is not Unicode is no part's.
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let opened = source::map_file(path)
            .and_then(|bytes| Self::from_gguf(&folder, name, bytes, label.clone()));
        opened.map_err(|e| e.at(label))
    }

    /// Opens a model compiled into the program: the files of a folder by name.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_embedded(files: &'static [EmbeddedFile]) -> Result<Self> {
        let folder = Folder::Embedded(files);
        Self::open_folder(&folder).map_err(|e| e.at(folder.label()))
    }

    fn open_folder(folder: &Folder) -> Result<Self> {
        let names = folder.weight_files()?;
        let config = read_object(folder, "config.json")?;
        let (safetensors, mut ggufs): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.ends_with(".safetensors"));
        // A vision projector lies beside its model and is not one.
        ggufs.retain(|name| !name.starts_with("mmproj"));
        gguf_parts::one_of_each(&mut ggufs);
        let mut checkpoint = match (config, ggufs.as_slice()) {
            (Some(config), _) if !safetensors.is_empty() => {
                Self::from_safetensors(folder, config, &safetensors)?
            }
            (_, [one]) => {
                let bytes = folder.map(one)?;
                Self::from_gguf(folder, one, bytes, folder.label()).map_err(|e| e.at(one))?
            }
            (None, []) if !safetensors.is_empty() => {
                return Err(Error::file("config.json is missing"));
            }
            (_, []) => {
                return Err(Error::file("the folder has neither safetensors nor GGUF weights")
                    .hint("download the model's *.safetensors or one .gguf file"));
            }
            (_, many) => {
                let what = format!("the folder has {} GGUF files: {}", many.len(), listed(many));
                return Err(Error::file(what).hint("name one of them"));
            }
        };
        checkpoint.generation_config = read_object(folder, "generation_config.json")?;
        checkpoint.modules = modules::read(folder);
        for (name, limit) in TEXT_FILES {
            if let Some(bytes) = folder.read(name, limit)? {
                checkpoint.files.push((name, bytes));
            }
        }
        Ok(checkpoint)
    }

    fn from_safetensors(folder: &Folder, config: Value, names: &[String]) -> Result<Self> {
        let mut files = Files::default();
        if names.iter().any(|name| name == SINGLE) {
            files.add(folder, SINGLE)?;
        } else if let Some(index) = folder.read(INDEX, MAX_INDEX)? {
            files.add_indexed(folder, &index).map_err(|e| e.at(INDEX))?;
        } else {
            let shards: Vec<_> = names.iter().filter(|name| name.starts_with("model")).collect();
            for name in &shards {
                files.add(folder, name)?;
            }
            if shards.is_empty() {
                return Err(Error::file("no weight file is called model*.safetensors")
                    .hint("rename the weights to model.safetensors"));
            }
        }
        let Files { shards, mut tensors, mlx } = files;
        let packed = packed::gather(&mut tensors, &shards, &config)?;
        let plain = tensors.into_iter().map(|(name, placed)| (name, Entry::Plain(placed)));
        let packed = packed.into_iter().map(|(name, one)| (name, Entry::Packed(one.into())));
        let mut checkpoint = Self::empty(folder.label(), config);
        checkpoint.tensors = plain.chain(packed).collect();
        checkpoint.shards = shards;
        checkpoint.mlx = mlx || checkpoint.config["quantization"].is_object();
        Ok(checkpoint)
    }

    /// The model of which the file `name` of `folder` is all or a part.
    fn from_gguf(folder: &Folder, name: &str, bytes: Bytes, source: String) -> Result<Self> {
        let (gguf, shards) = gguf_parts::read(folder, name, bytes)?;
        let mut checkpoint = Self::empty(source, gguf_config::config(&gguf, &shards)?);
        let arch = gguf_config::architecture(&gguf)?;
        for (name, placed) in gguf.tensors() {
            if gguf_config::is_in_config(arch, name) {
                continue;
            }
            let hf = gguf_names::hf_name(arch, name).unwrap_or_else(|| name.clone());
            if checkpoint.tensors.insert(hf, Entry::Plain(placed.clone())).is_some() {
                return Err(Error::file("another tensor has the same meaning").at(name));
            }
        }
        checkpoint.shards = shards;
        checkpoint.gguf = Some(gguf);
        Ok(checkpoint)
    }

    fn empty(source: String, config: Value) -> Self {
        Self {
            source,
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            mlx: false,
            config,
            generation_config: None,
            files: Vec::new(),
            gguf: None,
            modules: Ok(None),
            adapter: None,
        }
    }

    /// The weight `name`, or `None` where [`weight`](Self::weight) would fail.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.weight(name).ok()
    }

    /// The weight `name`. One in several tensors is put together now, in memory of its own.
    ///
    /// # Errors
    /// `File` if it is absent or has scales that are no numbers; `Unsupported` if it is stored in a
    /// way that is no weight format.
    pub fn weight(&self, name: &str) -> Result<TensorView<'_>> {
        let (name, entry) = self.tensors.get_key_value(name).ok_or_else(|| {
            Error::file(format!("the tensor {name:?} is missing"))
                .at(&self.source)
                .hint("the download is incomplete, or config.json is of another model")
        })?;
        if let Entry::Packed(packed) = entry {
            let assembled = packed.assemble(&self.shards);
            let (format, data) = assembled.map_err(|e| e.at(name).at(&self.source))?;
            return Ok(TensorView { name, shape: &packed.shape, format, data: data.into() });
        }
        let RawTensor { shape, dtype, data, .. } = self.view(name, entry);
        let format = dtype.format().ok_or_else(|| {
            let what = format!("the tensor {name:?} is stored as {dtype}");
            Error::unsupported(what).at(&self.source).hint("use a file in a supported format")
        })?;
        Ok(TensorView { name, shape, format, data: data.into() })
    }

    /// The tensor `name` whatever its type.
    pub fn raw(&self, name: &str) -> Option<RawTensor<'_>> {
        self.tensors.get_key_value(name).map(|(name, entry)| self.view(name, entry))
    }

    /// The weights, sorted by name; tensors that [`weight`](Self::weight) refuses are left out.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.tensors.keys().filter_map(|name| self.tensor(name))
    }

    /// All tensors, sorted by name.
    pub fn raw_tensors(&self) -> impl ExactSizeIterator<Item = RawTensor<'_>> {
        self.tensors.iter().map(|(name, entry)| self.view(name, entry))
    }

    fn view<'a>(&'a self, name: &'a str, entry: &'a Entry) -> RawTensor<'a> {
        let (placed, shape, dtype) = match entry {
            Entry::Plain(placed) => (placed, &placed.located.shape, placed.located.dtype),
            Entry::Packed(packed) => {
                (packed.codes(), &packed.shape, RawDtype::Packed(packed.packing))
            }
        };
        // Ranges were checked against the file when its header was read.
        let data = &self.shards[placed.shard][placed.located.range.clone()];
        let stored = entry.parts().map(|part| part.located.range.len()).sum();
        RawTensor { name, shape, dtype, data, stored }
    }

    /// Lets go of the memory behind tensor `name` once it is packed. Reading it again works.
    pub fn release(&self, name: &str) {
        for part in self.tensors.get(name).into_iter().flat_map(Entry::parts) {
            self.shards[part.shard].forget(part.located.range.clone());
        }
    }

    /// Whether the files have the form that MLX gives them: it keeps the norms and convolutions of some families
    /// otherwise than the library that the families come from. Convolutions show it by their shape.
    pub fn is_mlx(&self) -> bool {
        let taps = self.tensors.iter().find(|(name, _)| name.ends_with("conv1d.weight"));
        match taps.map(|(name, entry)| self.view(name, entry).shape) {
            Some(&[_, between, last]) if between != last => last == 1,
            _ => self.mlx,
        }
    }

    /// The number `name` of the config, or of its text part.
    pub(crate) fn config_number(&self, name: &str) -> Option<usize> {
        let value = self.config["text_config"].get(name).or_else(|| self.config.get(name));
        usize::try_from(value?.as_u64()?).ok()
    }

    /// Puts `adapter` beside the weights: models add it as they load.
    #[must_use]
    pub fn with_adapter(self, adapter: Adapter) -> Self {
        Self { adapter: Some(adapter), ..self }
    }

    /// What [`with_adapter`](Self::with_adapter) has put here.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// `config.json`, an object; for GGUF one in its style made from the metadata.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// `generation_config.json`, an object, if there is one.
    pub fn generation_config(&self) -> Option<&Value> {
        self.generation_config.as_ref()
    }

    /// The bytes of `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` or
    /// `special_tokens_map.json`, if the model has that file.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.iter().find(|file| file.0 == name).map(|file| &*file.1)
    }

    /// What a folder of sentence-transformers has around the model; `None` for any other.
    ///
    /// # Errors
    /// `File` if one of its files is damaged or lies outside of the folder.
    pub fn modules(&self) -> Result<Option<&Modules>> {
        self.modules.as_ref().map(Option::as_ref).map_err(|e| e.clone().at(&self.source))
    }

    /// The metadata, if the model is a GGUF file.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.gguf.as_ref()
    }

    /// Where the model was opened, for messages.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the files hold, without reading weights.
    pub fn summary(&self) -> Summary {
        Summary::of(self)
    }
}

/// The safetensors files of a folder, as far as they were read.
#[derive(Default)]
struct Files {
    shards: Vec<Bytes>,
    tensors: BTreeMap<String, Placed>,
    mlx: bool,
}

impl Files {
    /// Adds the shards that `index` names and holds it to what it says.
    fn add_indexed(&mut self, folder: &Folder, index: &[u8]) -> Result<()> {
        let index: Index = serde_json::from_slice(index)
            .map_err(|e| Error::file(format!("the index is not valid: {e}")))?;
        let mut shards: BTreeMap<&str, usize> = BTreeMap::new();
        for name in index.weight_map.values() {
            if !shards.contains_key(name.as_str()) {
                source::plain_name(name)?;
                if !name.ends_with(".safetensors") {
                    return Err(Error::file(format!("{name:?} is no safetensors file")));
                }
                shards.insert(name, self.shards.len());
                self.add(folder, name)?;
            }
        }
        for (tensor, shard) in &index.weight_map {
            let placed = self.tensors.get(tensor).map(|placed| placed.shard);
            if placed != shards.get(shard.as_str()).copied() {
                return Err(Error::file(format!("the tensor {tensor:?} is not in {shard:?}"))
                    .hint("index and shards are of different downloads; download both again"));
            }
        }
        Ok(())
    }

    /// Maps the safetensors file `name` and adds its tensors.
    fn add(&mut self, folder: &Folder, name: &str) -> Result<()> {
        let bytes = folder.map(name)?;
        let parsed = safetensors::parse(&bytes).map_err(|e| e.at(name))?;
        self.mlx |= parsed.mlx;
        let shard = self.shards.len();
        self.shards.push(bytes);
        for (tensor, located) in parsed.tensors {
            if self.tensors.contains_key(&tensor) {
                let what = format!("the tensor {tensor:?} is in another file too");
                return Err(Error::file(what).at(name).hint("remove files of another download"));
            }
            self.tensors.insert(tensor, Placed { shard, located });
        }
        Ok(())
    }
}

impl fmt::Debug for Checkpoint {
    /// Short: a vocabulary in a panic message helps nobody.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({:?}, {} tensors)", self.source, self.tensors.len())
    }
}

/// The part of `model.safetensors.index.json` that matters: tensor name -> file name.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The JSON object in the file `name`, if there is such a file.
fn read_object(folder: &Folder, name: &str) -> Result<Option<Value>> {
    let Some(bytes) = folder.read(name, MAX_CONFIG)? else { return Ok(None) };
    match serde_json::from_slice(&bytes).or_else(|error| match infinities_named(&bytes) {
        Some(bytes) => serde_json::from_slice(&bytes),
        None => Err(error),
    }) {
        Ok(value @ Value::Object(_)) => Ok(Some(value)),
        Ok(_) => Err(Error::file("it is not a JSON object").at(name)),
        Err(error) => Err(Error::file(format!("it is not valid JSON: {error}")).at(name)),
    }
}

/// JSON in which each bare `Infinity`, as Python writes it, is an object as transformers writes it; `None` if there is
/// none.
fn infinities_named(bytes: &[u8]) -> Option<Vec<u8>> {
    let (bare, minus) = (b"Infinity", b"-Infinity");
    let mut named = Vec::new();
    let (mut i, mut found, mut quoted) = (0, false, false);
    while let Some(byte) = bytes.get(i) {
        let word = [&minus[..], bare].into_iter().find(|w| !quoted && bytes[i..].starts_with(w));
        if let Some(word) = word {
            found = true;
            named.extend_from_slice(b"{\"__float__\": \"");
            named.extend_from_slice(word);
            named.extend_from_slice(b"\"}");
            i += word.len();
            continue;
        }
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                named.push(*byte);
                i += 1;
            }
            _ => {}
        }
        named.extend(bytes.get(i));
        i += 1;
    }
    found.then_some(named)
}

/// The first few names, for a message.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 4 { format!("{shown}, ...") } else { shown }
}
