//! One checkpoint or one seed behind the same line of code: a name and a shape in, a weight on the device out.
//!
//! Owns what is done to weights at load: choosing rows, joining experts, folding a `+ 1` into a norm. Refuses a tensor
//! whose shape is not the one that the model asks for.

use std::borrow::Cow;
use std::cell::Cell;

use longrun_array::{Format, MatrixSpec, Runtime, Weight};

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
    progress: Option<(&'a Cell<usize>, Progress<'a>)>,
}

/// The prefixes that writers put before `embed_tokens.weight`.
const ROOTS: [&str; 4] = ["model.", "language_model.model.", "model.language_model.", ""];

/// A matrix in host memory, row-major.
struct HostMatrix<'a> {
    format: Format,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Weights<'a> {
    /// All weights of a source. `less_one` says that norm weights are stored less 1; `eps` goes into every norm.
    pub fn new(runtime: &'a Runtime, source: Source<'a>, less_one: bool, eps: f32) -> Self {
        let has = |root: &&&str| match source {
            Source::Checkpoint(c) => c.raw(&format!("{root}embed_tokens.weight")).is_some(),
            Source::Seed(_) => true,
        };
        let root = ROOTS.iter().find(has).copied().unwrap_or("model.");
        Self { runtime, source, root, prefix: String::new(), less_one, eps, progress: None }
    }

    /// Reports each tensor that is read.
    pub fn with_progress(mut self, read: &'a Cell<usize>, report: Progress<'a>) -> Self {
        self.progress = Some((read, report));
        self
    }

    /// The weights below `name`.
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    fn full(&self, name: &str) -> String {
        format!("{}{}{name}", self.root, self.prefix)
    }

    fn tensor(&self, c: &'a Checkpoint, name: &str) -> Result<TensorView<'a>> {
        if let Some((read, report)) = self.progress {
            read.set(read.get() + 1);
            report(read.get(), c.raw_tensors().len());
        }
        c.weight(&self.full(name))
    }

    /// Whether the checkpoint has `name`; a seed has everything.
    pub fn has(&self, name: &str) -> bool {
        match self.source {
            Source::Checkpoint(c) => c.raw(&self.full(name)).is_some(),
            Source::Seed(_) => true,
        }
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
        let c = match self.source {
            Source::Checkpoint(c) => c,
            Source::Seed(seed) => {
                let mut rng = Draw::new(seed, &self.full(name));
                return Ok((0..count).map(|_| around + 0.1 * rng.normal()).collect());
            }
        };
        let t = self.tensor(c, name)?;
        if t.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) != Some(count) {
            return Err(self.misshapen(&t, &[count]));
        }
        let mut numbers = vec![0.0; count];
        t.format.dequantize_row(t.data, &mut numbers);
        Ok(numbers)
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

    fn host(&self, name: &str, [rows, cols]: [usize; 2]) -> Result<HostMatrix<'a>> {
        let c = match self.source {
            Source::Checkpoint(c) => c,
            Source::Seed(seed) => {
                let mut rng = Draw::new(seed, &self.full(name));
                let scale = 1.2 / (cols as f32).sqrt();
                let bytes = (0..rows * cols).flat_map(|_| bf16(scale * rng.normal())).collect();
                return Ok(HostMatrix { format: Format::BF16, bytes: Cow::Owned(bytes) });
            }
        };
        let t = self.tensor(c, name)?;
        if t.shape != [rows, cols] {
            return Err(self.misshapen(&t, &[rows, cols]));
        }
        Ok(HostMatrix { format: t.format, bytes: Cow::Borrowed(t.data) })
    }

    fn load(&self, name: &str, spec: MatrixSpec, bytes: &[u8]) -> Result<Weight> {
        let weight = Weight::matrix(self.runtime, &self.full(name), spec, bytes)?;
        if let Source::Checkpoint(c) = self.source {
            c.release(&self.full(name));
        }
        Ok(weight)
    }

    /// A matrix `[rows, cols]`.
    ///
    /// # Errors
    /// The tensor is missing or has another shape; memory runs out.
    pub fn matrix(&self, name: &str, [rows, cols]: [usize; 2]) -> Result<Weight> {
        let host = self.host(name, [rows, cols])?;
        let spec = MatrixSpec { format: host.format, experts: 1, rows, cols };
        self.load(name, spec, &host.bytes)
    }

    /// `name.weight [rows, cols]`, and `name.bias` if `bias`.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn linear(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Linear> {
        let weight = self.matrix(&format!("{name}.weight"), shape)?;
        let bias = match bias {
            true => Some(self.vector(&format!("{name}.bias"), shape[0], 0.0, |b| b)?),
            false => None,
        };
        Ok(Linear { weight, bias })
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
        let host = self.host(&name, shape)?;
        let row = host.bytes.len() / shape[0];
        let mut bytes = Vec::with_capacity(host.bytes.len());
        order.for_each(|r| bytes.extend_from_slice(&host.bytes[r * row..][..row]));
        let (rows, cols) = (bytes.len() / row, shape[1]);
        let spec = MatrixSpec { format: host.format, experts: 1, rows, cols };
        let weight = Weight::matrix(self.runtime, &self.full(&name), spec, &bytes)?;
        Ok(Linear { weight, bias: None })
    }

    /// One projection of all experts, `[experts, rows, cols]`: stacked as `experts.NAME` (or `.weight`), as
    /// `switch_mlp.NAME.weight`, or one tensor an expert, `experts.E.NAME.weight`.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix); experts in different formats.
    pub fn experts(&self, name: &str, experts: usize, [rows, cols]: [usize; 2]) -> Result<Weight> {
        let spec = |format| MatrixSpec { format, experts, rows, cols };
        if let Source::Checkpoint(c) = self.source {
            let stacked = [
                format!("experts.{name}"),
                format!("experts.{name}.weight"),
                format!("switch_mlp.{name}.weight"),
            ];
            if let Some(stacked) = stacked.iter().find(|n| c.raw(&self.full(n)).is_some()) {
                let t = self.tensor(c, stacked)?;
                if t.shape != [experts, rows, cols] {
                    return Err(self.misshapen(&t, &[experts, rows, cols]));
                }
                return self.load(stacked, spec(t.format), t.data);
            }
        }
        // It grows with the files: a config's word for the number of experts is no reason to take memory.
        let mut all: Option<(Format, Vec<u8>)> = None;
        for e in 0..experts {
            let one = format!("experts.{e}.{name}.weight");
            let host = self.host(&one, [rows, cols])?;
            let (format, bytes) = all.get_or_insert((host.format, Vec::new()));
            if *format != host.format {
                let what = format!("{} is {}, its neighbours are not", one, host.format.name());
                return Err(Error::unsupported(what));
            }
            bytes.extend_from_slice(&host.bytes);
        }
        let (format, bytes) = all.ok_or_else(|| Error::file("a mixture of 0 experts"))?;
        self.load(name, spec(format), &bytes)
    }

    /// The halves of the stacked `experts.gate_up_proj [experts, 2 * rows, cols]`, or the two projections
    /// `names`.
    ///
    /// # Errors
    /// As [`experts`](Self::experts).
    pub fn gate_up(
        &self,
        names: [&str; 2],
        experts: usize,
        [rows, cols]: [usize; 2],
    ) -> Result<[Weight; 2]> {
        let fused = "experts.gate_up_proj";
        let c = match self.source {
            Source::Checkpoint(c) if c.raw(&self.full(fused)).is_some() => c,
            _ => {
                let shape = [rows, cols];
                return Ok([
                    self.experts(names[0], experts, shape)?,
                    self.experts(names[1], experts, shape)?,
                ]);
            }
        };
        let t = self.tensor(c, fused)?;
        if t.shape != [experts, 2 * rows, cols] {
            return Err(self.misshapen(&t, &[experts, 2 * rows, cols]));
        }
        let half = t.data.len() / experts / 2;
        let spec = MatrixSpec { format: t.format, experts, rows, cols };
        let part = |second: usize| -> Result<Weight> {
            let halves = t.data.chunks_exact(half).skip(second).step_by(2);
            let bytes: Vec<u8> = halves.flatten().copied().collect();
            Ok(Weight::matrix(self.runtime, &self.full(fused), spec, &bytes)?)
        };
        Ok([part(0)?, part(1)?])
    }

    /// The embedding `[vocab, hidden]`, and the head, which is the same matrix if `tied`.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn embedding_and_head(
        &self,
        [vocab, hidden]: [usize; 2],
        tied: bool,
    ) -> Result<(Weight, Linear)> {
        let embedding = self.matrix("embed_tokens.weight", [vocab, hidden])?;
        let weight = if tied {
            embedding.clone()
        } else {
            let outside = self.root.strip_suffix("model.").unwrap_or("");
            let names = [outside, "", self.root];
            let has = |root: &&str| match self.source {
                Source::Checkpoint(c) => c.raw(&format!("{root}lm_head.weight")).is_some(),
                Source::Seed(_) => true,
            };
            let root = names.into_iter().find(has).unwrap_or("");
            Self { root, ..self.clone() }.matrix("lm_head.weight", [vocab, hidden])?
        };
        Ok((embedding, Linear { weight, bias: None }))
    }
}

/// The bytes of the bf16 nearest to `x`, ties to even.
fn bf16(x: f32) -> [u8; 2] {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    ((rounded >> 16) as u16).to_le_bytes()
}

/// Random numbers of one tensor: SplitMix64 from a seed and a name.
struct Draw(u64);

impl Draw {
    fn new(seed: u64, name: &str) -> Self {
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        Self(
            name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv)
                ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        )
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// About normal: the sum of four uniforms, variance 1.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: i32 = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as i32).sum();
        (sum - 131_070) as f32 / 37_837.0
    }
}
