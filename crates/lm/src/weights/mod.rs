//! One checkpoint or one seed behind the same line of code: a name and a shape in, a weight on the device out.
//!
//! Owns what is done to weights at load: choosing rows, joining experts, folding a `+ 1` into a norm. Refuses a tensor
//! whose shape is not the one that the model asks for.

mod adapted;
mod draw;
mod experts;
mod host;
mod leftovers;
mod made;
mod seen;
mod stacks;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;

use longrun_array::{Format, MatrixSpec, Runtime, Weight};

use draw::{Draw, bf16};
pub(crate) use host::HostMatrix;
pub(crate) use leftovers::{is_harmless, nothing_is_left};
pub use made::{Made, Storage};
pub use seen::Seen;

use crate::adapter::Slots;
use crate::checkpoint::{Checkpoint, TensorView};
use crate::error::{Error, Result};
use crate::nn::{Linear, RmsNorm};

/// Where weights come from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Files.
    Checkpoint(&'a Checkpoint),
    /// Random numbers: the same seed and names give the same weights.
    Seed(u64),
    /// Numbers that are made up at once, for measuring.
    Made(&'a Made),
}

/// Called with (tensors read, of how many about) while a model loads.
pub type Progress<'a> = &'a dyn Fn(usize, usize);

/// Weights below one name.
#[derive(Clone)]
pub struct Weights<'a> {
    pub(crate) runtime: &'a Runtime,
    source: Source<'a>,
    /// What stands before every name in the files: `model.`, `language_model.model.`, ...
    root: &'a str,
    prefix: String,
    less_one: bool,
    eps: f32,
    /// All tensors that were read, and whom to tell.
    read: Option<(&'a RefCell<Seen>, Progress<'a>)>,
    /// The names of those that an adapter went beside.
    adapted: Option<&'a RefCell<BTreeSet<String>>>,
    /// Where there is room for adapters that rows choose.
    slots: Option<&'a RefCell<Slots>>,
    /// Nobody wants logits.
    hidden: bool,
}

/// The prefixes that writers put before the embedding.
const ROOTS: [&str; 5] =
    ["model.", "language_model.model.", "model.language_model.", "backbone.", ""];

/// The names that writers give the embedding.
const EMBEDDINGS: [&str; 4] = ["embed_tokens", "embeddings", "embedding", "embed"];

/// The names that writers give the head.
const HEADS: [&str; 2] = ["lm_head", "head"];

impl<'a> Weights<'a> {
    /// All weights of a source. `less_one` says that norm weights are stored less 1; `eps` goes into every norm.
    pub fn new(runtime: &'a Runtime, source: Source<'a>, less_one: bool, eps: f32) -> Self {
        let has = |root: &&&str| match source {
            Source::Checkpoint(c) => {
                EMBEDDINGS.iter().any(|name| c.raw(&format!("{root}{name}.weight")).is_some())
            }
            Source::Seed(_) | Source::Made(_) => true,
        };
        let root = ROOTS.iter().find(has).copied().unwrap_or("model.");
        let (prefix, read, adapted, slots) = (String::new(), None, None, None);
        let hidden = false;
        Self { runtime, source, root, prefix, less_one, eps, read, adapted, slots, hidden }
    }

    /// Notes each tensor that is read, and reports it.
    pub fn with_progress(mut self, read: &'a RefCell<Seen>, report: Progress<'a>) -> Self {
        self.read = Some((read, report));
        self
    }

    /// Whether only hidden states are wanted: then a head that the files have not is no error.
    pub(crate) fn for_hidden(self, hidden: bool) -> Self {
        Self { hidden, ..self }
    }

    /// The weights below `name`.
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// The weights that stand beside those of the text model: where the files have `name`, or behind no other prefix.
    pub(crate) fn outside(&self, name: &str) -> Self {
        let above = self.root.strip_suffix("model.").unwrap_or("");
        let at = |root| Self { root, prefix: String::new(), ..self.clone() };
        let found = ["", above, self.root].into_iter().find(|root| at(root).in_files(name));
        at(found.unwrap_or(""))
    }

    fn full(&self, name: &str) -> String {
        format!("{}{}{name}", self.root, self.prefix)
    }

    fn tensor(&self, c: &'a Checkpoint, name: &str) -> Result<TensorView<'a>> {
        let full = self.full(name);
        let tensor = c.weight(&full)?;
        self.note(c, full, &tensor.format.name(), tensor.shape, &tensor.data);
        Ok(tensor)
    }

    /// Notes that this tensor was read.
    fn note(&self, c: &Checkpoint, full: String, kind: &str, shape: &[usize], bytes: &[u8]) {
        if let Some((read, report)) = self.read {
            read.borrow_mut().tensor(full, kind, shape, bytes);
            report(read.borrow().names().len(), c.raw_tensors().len());
        }
    }

    /// Whether the checkpoint has `name`; what is drawn or made up has everything.
    pub fn has(&self, name: &str) -> bool {
        match self.source {
            Source::Checkpoint(c) => c.raw(&self.full(name)).is_some(),
            Source::Seed(_) | Source::Made(_) => true,
        }
    }

    /// Whether the files have `name`; a seed has no files.
    pub(crate) fn in_files(&self, name: &str) -> bool {
        matches!(self.source, Source::Checkpoint(c) if c.raw(&self.full(name)).is_some())
    }

    /// The first of these names that the files have; the first of all where they have none.
    pub(crate) fn first_named<'n>(&self, names: &[&'n str]) -> &'n str {
        names.iter().find(|name| self.in_files(name)).unwrap_or(&names[0])
    }

    /// The first of these that the files have as `NAME.weight`; the first of all where they have none.
    pub(crate) fn first_of<'n>(&self, names: &[&'n str]) -> &'n str {
        let has = |name: &&&str| self.in_files(&format!("{name}.weight"));
        names.iter().find(has).unwrap_or(&names[0])
    }

    /// Whether the files have a tensor of exactly this name.
    pub fn has_file_tensor(&self, name: &str) -> bool {
        matches!(self.source, Source::Checkpoint(c) if c.raw(name).is_some())
    }

    /// The numbers of the tensor of exactly this name.
    ///
    /// # Errors
    /// The tensor is missing or of another size.
    pub fn file_numbers(&self, name: &str, count: usize) -> Result<Vec<f32>> {
        Self { root: "", prefix: String::new(), ..self.clone() }.numbers(name, count, 0.0)
    }

    /// `count` numbers, each through `f`; a seed draws them around `around`. Any shape with as many numbers is taken.
    ///
    /// # Errors
    /// The tensor is missing or of another size.
    pub fn vector(
        &self,
        name: &str,
        count: usize,
        around: f32,
        f: impl Fn(f32) -> f32,
    ) -> Result<Weight> {
        let numbers: Vec<f32> = self.numbers(name, count, around)?.into_iter().map(f).collect();
        Ok(Weight::vector(self.runtime, &self.full(name), &numbers)?)
    }

    /// `count` numbers of a tensor of any shape, on the host.
    ///
    /// # Errors
    /// The tensor is missing or of another size.
    pub fn numbers(&self, name: &str, count: usize, around: f32) -> Result<Vec<f32>> {
        let drawn = |seed| {
            let mut rng = Draw::new(seed, &self.full(name));
            Ok((0..count).map(|_| around + 0.1 * rng.normal()).collect())
        };
        let c = match self.source {
            Source::Checkpoint(c) => c,
            Source::Seed(seed) => return drawn(seed),
            Source::Made(_) => return drawn(0),
        };
        let t = self.tensor(c, name)?;
        if t.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) != Some(count) {
            return Err(self.misshapen(&t, &[count]));
        }
        let mut numbers = vec![0.0; count];
        t.format.dequantize_row(&t.data, &mut numbers);
        Ok(numbers)
    }

    /// What a decay's exponent is a multiple of, below 0: `-exp(A_log)`, or `A`, which GGUF has, as it is.
    ///
    /// # Errors
    /// The tensor is missing or of another size.
    pub(crate) fn decay_rates(&self, count: usize) -> Result<Vec<f32>> {
        if self.in_files("A") {
            return self.numbers("A", count, -1.0);
        }
        let logs = self.numbers("A_log", count, 0.0)?;
        Ok(logs.into_iter().map(|a| -a.exp()).collect())
    }

    /// The taps of a depthwise convolution, `[K, channels]`; files have them channel by channel.
    ///
    /// # Errors
    /// The tensor is missing or of another size.
    pub fn conv_taps(&self, name: &str, channels: usize, k: usize) -> Result<Vec<f32>> {
        let by_channel = self.numbers(name, channels * k, 0.3)?;
        Ok((0..channels * k).map(|i| by_channel[i % channels * k + i / channels]).collect())
    }

    fn misshapen(&self, t: &TensorView<'_>, want: &[usize]) -> Error {
        let (name, shape) = (t.name, t.shape);
        Error::file(format!("tensor {name:?} is {shape:?}, config.json makes it {want:?}"))
            .hint("the files are of different models, or damaged")
    }

    /// An RMS norm over groups of `len`.
    ///
    /// # Errors
    /// As [`vector`](Self::vector).
    pub fn norm(&self, name: &str, len: usize) -> Result<RmsNorm> {
        let (around, shift) = if self.less_one { (0.0, 1.0) } else { (1.0, 0.0) };
        let weight = self.vector(&format!("{name}.weight"), len, around, |w| w + shift)?;
        Ok(RmsNorm { weight, group: len, eps: self.eps })
    }

    /// An RMS norm whose weight is stored as it is, whatever the other norms do.
    ///
    /// # Errors
    /// As [`vector`](Self::vector).
    pub fn plain_norm(&self, name: &str, len: usize) -> Result<RmsNorm> {
        Self { less_one: false, ..self.clone() }.norm(name, len)
    }

    /// The matrix `name` as the files hold it.
    ///
    /// # Errors
    /// The tensor is missing or has another shape.
    pub(crate) fn host(&self, name: &str, [rows, cols]: [usize; 2]) -> Result<HostMatrix<'a>> {
        let c = match self.source {
            Source::Checkpoint(c) => c,
            Source::Made(made) => return Ok(made.matrix(&self.full(name), [rows, cols])),
            Source::Seed(seed) => {
                let mut rng = Draw::new(seed, &self.full(name));
                let scale = 1.2 / (cols as f32).sqrt();
                let bytes = (0..rows * cols).flat_map(|_| bf16(scale * rng.normal())).collect();
                return Ok(HostMatrix {
                    format: Format::BF16,
                    rows,
                    cols,
                    bytes: Cow::Owned(bytes),
                });
            }
        };
        let t = self.tensor(c, name)?;
        // Some writers have a matrix of one row as a vector.
        if t.shape != [rows, cols] && (rows != 1 || t.shape != [cols]) {
            return Err(self.misshapen(&t, &[rows, cols]));
        }
        Ok(HostMatrix { format: t.format, rows, cols, bytes: t.data })
    }

    /// Brings `host` to the device: one matrix, or `experts` of them behind each other.
    ///
    /// # Errors
    /// Memory or objects run out, or the shape can't be.
    pub(crate) fn put(&self, name: &str, host: &HostMatrix<'_>, experts: usize) -> Result<Weight> {
        let HostMatrix { format, rows, cols, .. } = *host;
        let spec = MatrixSpec { format, experts, rows, cols };
        let weight = Weight::matrix(self.runtime, &self.full(name), spec, &host.bytes)?;
        if let Source::Checkpoint(c) = self.source {
            c.release(&self.full(name));
        }
        Ok(weight)
    }

    /// A matrix `[rows, cols]`.
    ///
    /// # Errors
    /// The tensor is missing or has another shape; memory runs out.
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Weight> {
        self.put(name, &self.host(name, shape)?, 1)
    }

    /// `name.weight [rows, cols]`, and `name.bias` if `bias`.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn linear(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Linear> {
        let weight_name = format!("{name}.weight");
        let weight = self.matrix(&weight_name, shape)?;
        let adapter = self.beside(&weight_name, shape, None)?;
        let bias = match bias {
            true => Some(self.vector(&format!("{name}.bias"), shape[0], 0.0, |b| b)?),
            false => None,
        };
        Ok(Linear { weight, bias, adapter })
    }

    /// The rows `order` of `name.weight [rows, cols]`: some of them, or in another order.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn linear_rows(
        &self,
        name: &str,
        shape: [usize; 2],
        order: impl Iterator<Item = usize>,
    ) -> Result<Linear> {
        let name = format!("{name}.weight");
        let order: Vec<usize> = order.collect();
        let rows = self.host(&name, shape)?.take_rows(order.iter().copied());
        let adapter = self.beside(&name, shape, Some(&order))?;
        Ok(Linear { weight: self.put(&name, &rows, 1)?, bias: None, adapter })
    }

    /// The prefix and the name of the head, if the files have any.
    fn head_place(&self) -> Option<(&'a str, &'static str)> {
        let outside = self.root.strip_suffix("model.").unwrap_or("");
        let at = |root| Self { root, prefix: String::new(), ..self.clone() };
        let mut all = HEADS.iter().flat_map(|head| [outside, "", self.root].map(|r| (r, *head)));
        all.find(|(root, head)| at(root).in_files(&format!("{head}.weight")))
    }

    /// Whether the files have `name.weight`, and not as one more copy of the model's embedding (of its head, if `head`).
    pub(crate) fn has_own(&self, name: &str, head: bool) -> bool {
        let Source::Checkpoint(c) = self.source else { return false };
        let bytes = |name: &str| c.raw(&format!("{name}.weight")).map(|t| t.data);
        let Some(own) = bytes(&self.full(name)) else { return false };
        let head = self.head_place().filter(|_| head).map(|(root, head)| format!("{root}{head}"));
        let mut embeddings = EMBEDDINGS.iter().map(|name| format!("{}{name}", self.root));
        match head {
            Some(head) => bytes(&head) != Some(own),
            None => embeddings.all(|main| bytes(&main) != Some(own)),
        }
    }

    /// The embedding `[vocab, hidden]`, and the head, which is the same matrix if `tied`, unless the files have another.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn embedding_and_head(
        &self,
        [vocab, hidden]: [usize; 2],
        tied: bool,
    ) -> Result<(Weight, Linear)> {
        let name = format!("{}.weight", self.first_of(&EMBEDDINGS));
        let embedding = self.matrix(&name, [vocab, hidden])?;
        let at = |root| Self { root, prefix: String::new(), ..self.clone() };
        let found = self.head_place();
        let (root, head) = found.map_or((None, HEADS[0]), |(root, head)| (Some(root), head));
        // A word about tying may be another model's, or outdated; a second copy of the embedding is none.
        let is_own = || match (self.source, root) {
            (Source::Checkpoint(c), Some(root)) => {
                let bytes = |name: String| c.raw(&name).map(|t| t.data);
                bytes(self.full(&name)) != bytes(at(root).full(&format!("{head}.weight")))
            }
            _ => false,
        };
        // What no step uses may be any matrix of its shape.
        let is_unused = self.hidden && found.is_none();
        if is_unused || (tied && !is_own()) {
            let weight = embedding.clone();
            return Ok((embedding, Linear { weight, bias: None, adapter: None }));
        }
        let head = at(root.unwrap_or("")).linear(head, [vocab, hidden], false)?;
        Ok((embedding, head))
    }
}
