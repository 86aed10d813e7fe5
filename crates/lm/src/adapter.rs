//! LoRA adapters: what a fine-tune adds to the matrices of a model.
//!
//! Owns both layouts (MLX's `adapters.safetensors`, PEFT's `adapter_model.safetensors`) and their settings. Refuses
//! every kind of fine-tune that is not a plain product of two small matrices beside a linear layer, by name, and
//! numbers that are not finite. Whether an adapter fits a model shows when the model loads: each of its matrices must
//! find its layer.

mod mlx;
mod peft;
mod slots;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use twox_hash::XxHash3_128;

use longrun_array::format::Format;

use crate::error::{Error, Result};
pub(crate) use slots::Slots;

/// The most bytes of an adapter's settings.
const MOST_CONFIG: u64 = 4 << 20;
/// The most bytes of its matrices.
const MOST_WEIGHTS: u64 = 16 << 30;

/// How many adapters rows may choose between, and how large they may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Adapters at the same time; with 0 there is no room, and nothing is computed or kept for any.
    pub slots: usize,
    /// The largest rank.
    pub rank: usize,
}

/// What an adapter is told by: a hash of its matrices. 0 stands for no adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(pub(crate) u128);

/// Two small matrices: a layer's result grows by `b (a x)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// `[rank, cols]`
    pub(crate) a: Vec<f32>,
    /// `[rows, rank]`, times the scale.
    pub(crate) b: Vec<f32>,
    pub(crate) rank: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Delta {
    /// Adds `b a` to `numbers`, which are the rows from `first` on of a weight of `all` rows.
    ///
    /// # Errors
    /// The weight has another shape.
    pub(crate) fn add_to(
        &self,
        numbers: &mut [f32],
        first: usize,
        [all, cols]: [usize; 2],
    ) -> Result<()> {
        self.check([all, cols])?;
        let mut sum = vec![0.0_f64; cols];
        for (row, b) in
            numbers.chunks_exact_mut(cols).zip(self.b.chunks_exact(self.rank).skip(first))
        {
            sum.fill(0.0);
            for (b, a) in b.iter().zip(self.a.chunks_exact(cols)) {
                sum.iter_mut().zip(a).for_each(|(sum, a)| *sum += f64::from(*b) * f64::from(*a));
            }
            row.iter_mut().zip(&sum).for_each(|(x, sum)| *x = (f64::from(*x) + sum) as f32);
        }
        Ok(())
    }

    /// All that it is, for a hash.
    pub(crate) fn hash_into(&self, hasher: &mut XxHash3_128) {
        [self.rank, self.rows, self.cols]
            .iter()
            .for_each(|n| hasher.write(&(*n as u64).to_le_bytes()));
        for numbers in [&self.a, &self.b] {
            numbers.iter().for_each(|x| hasher.write(&x.to_le_bytes()));
        }
    }

    /// # Errors
    /// A weight of `shape` is not the one that this was made for.
    pub(crate) fn check(&self, shape: [usize; 2]) -> Result<()> {
        let own = [self.rows, self.cols];
        if own == shape {
            return Ok(());
        }
        Err(Error::file(format!(
            "the adapter is for a weight of {own:?}, the model's is {shape:?}"
        ))
        .hint("the adapter was made for another model"))
    }
}

/// An opened adapter.
#[derive(Clone, Debug)]
pub struct Adapter {
    source: String,
    /// By the name of the layer below the model's root.
    deltas: BTreeMap<String, Delta>,
}

impl Adapter {
    /// Opens the folder `path` of an adapter in either layout.
    ///
    /// # Errors
    /// A file is missing or damaged, or the adapter is of a kind that is not supported; the message names it.
    pub fn open(path: &Path) -> Result<Self> {
        let source = path.display().to_string();
        let deltas = Self::read(path).map_err(|e| e.at(&source))?;
        Ok(Self { source, deltas })
    }

    /// The largest rank of its matrices.
    pub fn rank(&self) -> usize {
        self.deltas.values().map(|delta| delta.rank).max().unwrap_or(0)
    }

    fn read(folder: &Path) -> Result<BTreeMap<String, Delta>> {
        let (mlx, peft) = ("adapters.safetensors", "adapter_model.safetensors");
        let has = |name: &str| folder.join(name).is_file();
        let (name, is_mlx) = match (has(mlx), has(peft)) {
            (true, false) => (mlx, true),
            (false, true) => (peft, false),
            (true, true) => {
                let what = format!("both {mlx} and {peft} are there");
                return Err(Error::file(what).hint("keep one of them"));
            }
            (false, false) => {
                let what = format!("neither {mlx} nor {peft} is there");
                let hint = "name the folder of a LoRA adapter (pickled .bin files are not read)";
                return Err(Error::file(what).hint(hint));
            }
        };
        let config = bounded(&folder.join("adapter_config.json"), MOST_CONFIG);
        let config = config.and_then(|bytes| {
            serde_json::from_slice::<Value>(&bytes).map_err(|e| Error::file(e.to_string()))
        });
        let config = config.map_err(|e| e.at("adapter_config.json"))?;
        let bytes = bounded(&folder.join(name), MOST_WEIGHTS).map_err(|e| e.at(name))?;
        let file = SafeTensors::deserialize(&bytes);
        let file =
            file.map_err(|e| Error::file(format!("not a safetensors file: {e}")).at(name))?;
        let deltas =
            if is_mlx { mlx::deltas(&config, &file) } else { peft::deltas(&config, &file) };
        let deltas = deltas?;
        match deltas.is_empty() {
            true => Err(Error::file("it has no matrices").at(name)),
            false => Ok(deltas),
        }
    }

    /// What it is told by: the same matrices beside the same layers, whatever the folder and the layout.
    pub fn identity(&self) -> Identity {
        let mut hasher = XxHash3_128::new();
        for (name, delta) in &self.deltas {
            hasher.write(&(name.len() as u64).to_le_bytes());
            hasher.write(name.as_bytes());
            delta.hash_into(&mut hasher);
        }
        Identity(hasher.finish_128().max(1))
    }

    /// What is added to the tensor `name` of a checkpoint.
    pub(crate) fn delta(&self, name: &str) -> Option<&Delta> {
        self.deltas.get(layer(name.strip_suffix(".weight")?))
    }

    /// # Errors
    /// A layer of the adapter is not among those `used`, which are names of a checkpoint's tensors.
    pub(crate) fn check_used<'a>(&self, used: impl Iterator<Item = &'a str>) -> Result<()> {
        let used: BTreeSet<&str> =
            used.map(|name| layer(name.strip_suffix(".weight").unwrap_or(name))).collect();
        let left: Vec<_> =
            self.deltas.keys().map(String::as_str).filter(|name| !used.contains(name)).collect();
        let Some(first) = left.first() else { return Ok(()) };
        let what = format!("the model has no layer {first:?} that takes an adapter");
        let more = left.len() - 1;
        let what = if more > 0 { format!("{what}, nor {more} others") } else { what };
        Err(Error::unsupported(what).at(&self.source).hint(
            "adapters go beside linear layers; those of embeddings and experts are not supported",
        ))
    }
}

/// What writers put before the names of layers.
const ROOTS: [&str; 5] =
    ["language_model.model.", "model.language_model.", "language_model.", "model.", "backbone."];

/// The name below the root.
fn layer(name: &str) -> &str {
    ROOTS.iter().find_map(|root| name.strip_prefix(root)).unwrap_or(name)
}

fn bounded(path: &Path, most: u64) -> Result<Vec<u8>> {
    let unreadable = |e: std::io::Error| Error::file(format!("can't be read: {e}"));
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > most {
        return Err(Error::file(format!("{size} bytes, above the {most} allowed for it")));
    }
    fs::read(path).map_err(unreadable)
}

/// A matrix of an adapter.
struct Matrix {
    rows: usize,
    cols: usize,
    numbers: Vec<f32>,
}

impl Matrix {
    /// # Errors
    /// It is no matrix of floats, or has numbers that are not finite.
    fn read(file: &SafeTensors<'_>, name: &str) -> Result<Self> {
        let t = file.tensor(name).map_err(|e| Error::file(e.to_string()).at(name))?;
        let format = match t.dtype() {
            Dtype::F32 => Format::F32,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::BF16,
            other => {
                return Err(Error::unsupported(format!("is stored as {other:?}")).at(name));
            }
        };
        let &[rows, cols] = t.shape() else {
            let what = format!("is {:?}: adapters of stacked experts are not supported", t.shape());
            return Err(Error::unsupported(what).at(name));
        };
        if rows == 0 || cols == 0 {
            return Err(Error::file(format!("is [{rows}, {cols}]")).at(name));
        }
        // The file was found to hold so many.
        let mut numbers = vec![0.0; rows * cols];
        format.dequantize_row(t.data(), &mut numbers);
        match numbers.iter().all(|x| x.is_finite()) {
            true => Ok(Self { rows, cols, numbers }),
            false => Err(Error::file("has numbers that are not finite").at(name)),
        }
    }

    fn transposed(self) -> Self {
        let Self { rows, cols, numbers } = self;
        let turned = (0..rows * cols).map(|i| numbers[i % rows * cols + i / rows]).collect();
        Self { rows: cols, cols: rows, numbers: turned }
    }
}

/// `a [rank, cols]` and `b [rows, rank]` of the layer `name`.
///
/// # Errors
/// They do not fit each other, or `rank`.
fn delta(name: &str, a: Matrix, b: Matrix, rank: usize, scale: f64) -> Result<Delta> {
    if a.rows != rank || b.cols != rank {
        let what =
            format!("its matrices have ranks {} and {}, its settings {rank}", a.rows, b.cols);
        return Err(Error::file(what).at(name));
    }
    let numbers = b.numbers.iter().map(|x| (f64::from(*x) * scale) as f32);
    let numbers: Vec<f32> = numbers.collect();
    if !numbers.iter().all(|x| x.is_finite()) {
        return Err(
            Error::file(format!("the scale {scale} takes its numbers out of range")).at(name)
        );
    }
    Ok(Delta { a: a.numbers, b: numbers, rank, rows: b.rows, cols: a.cols })
}

/// The number `name` of `json`, which must be there and finite.
fn number(json: &Value, name: &str) -> Result<f64> {
    let value = &json[name];
    match value.as_f64().filter(|x| x.is_finite()) {
        Some(x) => Ok(x),
        None if value.is_null() => Err(Error::file("this field is missing").at(name)),
        None => Err(Error::file(format!("{} is no number", shown(value))).at(name)),
    }
}

/// The rank `name` of `json`.
fn rank(json: &Value, name: &str) -> Result<usize> {
    let rank = json[name].as_u64().and_then(|n| usize::try_from(n).ok());
    rank.filter(|n| (1..=1 << 16).contains(n))
        .ok_or_else(|| Error::file(format!("{} is no rank", shown(&json[name]))).at(name))
}

/// The start of a value.
fn shown(value: &Value) -> Cow<'static, str> {
    let mut text = value.to_string();
    text.truncate(text.floor_char_boundary(60));
    text.into()
}
