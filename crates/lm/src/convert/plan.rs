//! What will be written, from names and shapes alone.
//!
//! Owns the way from the tensors of a source to those of the layout: roots, experts that become a stack, tensors that
//! are taken apart. Refuses experts with gaps, and shapes that a rule can't take apart. No weight is read here.

use std::collections::BTreeMap;

use longrun_array::format::Format;
use longrun_array::quant::encode::Float;

use super::quantize::Mode;
use super::rules::{self, Make};
use super::{Options, tensor};
use crate::checkpoint::{Checkpoint, RawDtype, RawTensor};
use crate::config::{Config, Family};
use crate::error::{Error, Result};
use crate::weights::is_harmless;

/// All that will be written.
pub(super) struct Plan {
    /// Sorted by name.
    pub(super) outputs: Vec<Output>,
    /// The type of most plain numbers.
    pub(super) dtype: Float,
    /// The mode that the config names for all.
    pub(super) mode: Option<Mode>,
}

impl Plan {
    /// Numbers of the model.
    pub(super) fn parameters(&self) -> u64 {
        self.outputs.iter().map(|output| output.numbers() as u64).sum()
    }
}

/// One weight of the layout: a tensor, or three of them if it is quantised.
pub(super) struct Output {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// One after another they are its rows.
    pub(super) parts: Vec<Part>,
    pub(super) stored: Stored,
}

/// How an output is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stored {
    Float(Float),
    /// Codes of a mode; the type is that of the numbers, and of scales that are floats.
    Codes(Mode, Float),
    /// Integers, as they are.
    Raw(safetensors::Dtype),
}

impl Output {
    pub(super) fn numbers(&self) -> usize {
        self.shape.iter().product()
    }

    /// The name without `.weight`, by which configs call it.
    pub(super) fn base(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }
}

/// A tensor of the source, or some rows of it, on the way to an output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) tensor: String,
    /// It is seen as so many matrices of `[rows, cols]`.
    pub(super) view: [usize; 3],
    /// These rows of each matrix, in this order; all if empty.
    pub(super) rows: Vec<usize>,
    /// Then rows become columns.
    pub(super) turned: bool,
    /// Then these rows, again all if empty.
    pub(super) keep: Vec<usize>,
    /// Then each row is multiplied: by nothing, by one number, or by its own.
    pub(super) times: Vec<f32>,
    /// Then this is added.
    pub(super) add: f32,
    /// Then the logarithm of what it is less than 0 is taken.
    pub(super) ln: bool,
}

impl Part {
    fn whole(t: &RawTensor<'_>) -> Self {
        let cols = t.shape.last().copied().unwrap_or(1);
        let rows = t.shape.len().checked_sub(2).map_or(1, |i| t.shape[i]);
        let matrices = t.shape.iter().rev().skip(2).product();
        Self::of(t, [matrices, rows, cols])
    }

    fn of(t: &RawTensor<'_>, view: [usize; 3]) -> Self {
        Self {
            tensor: t.name.to_owned(),
            view,
            rows: Vec::new(),
            turned: false,
            keep: Vec::new(),
            times: Vec::new(),
            add: 0.0,
            ln: false,
        }
    }
}

/// GGUF's number for integers of 32 bits.
const GGML_I32: u32 = 26;

/// What stands before the names inside of a model, as writers have it.
const ROOTS: [&str; 5] =
    ["language_model.model.", "model.language_model.", "model.", "backbone.", "language_model."];

/// The same in the layout, and what stands before the head.
fn roots(family: Family) -> [&'static str; 2] {
    match family {
        Family::Qwen35 | Family::Qwen35Moe => ["language_model.model.", "language_model."],
        Family::Mamba2 | Family::NemotronH => ["backbone.", ""],
        _ => ["model.", ""],
    }
}

struct Planner<'a> {
    source: &'a Checkpoint,
    shape: &'a Config,
    options: &'a Options<'a>,
    dtype: Float,
    /// Norms and taps are as the layout has them.
    is_mlx: bool,
    drafts: BTreeMap<String, Draft>,
}

/// An output as far as it is known: parts by their place in it.
struct Draft {
    shape: Vec<usize>,
    parts: BTreeMap<usize, Part>,
    float: Option<Float>,
    raw: Option<safetensors::Dtype>,
    many: Many,
}

/// How several parts make one output.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Many {
    /// There is one.
    No,
    /// They are matrices of a stack.
    Stack,
    /// They are rows of a matrix.
    Joined,
}

/// # Errors
/// A tensor has a shape that its rule can't take, experts are missing, or two tensors have the same meaning.
pub(super) fn plan(source: &Checkpoint, shape: &Config, options: &Options<'_>) -> Result<Plan> {
    if let Some(name) = ["linear_value_heads_tiled"].iter().find(|n| source.config()[**n] == true) {
        let what = format!("{name} has no place in the layout of MLX");
        return Err(Error::unsupported(what).hint("convert the original checkpoint instead"));
    }
    if shape.family == Family::Glm4 && !shape.rope_interleaved {
        let what = "its rows are in another order than that of the layout of MLX";
        return Err(Error::unsupported(what).hint("convert the original checkpoint instead"));
    }
    let dtype = options.dtype.unwrap_or_else(|| tensor::main_type(source));
    let is_mlx = source.is_mlx();
    let drafts = BTreeMap::new();
    let mut planner = Planner { source, shape, options, dtype, is_mlx, drafts };
    for t in source.raw_tensors() {
        planner.add(&t).map_err(|e| e.at(t.name))?;
    }
    planner.finish()
}

impl Planner<'_> {
    fn add(&mut self, t: &RawTensor<'_>) -> Result<()> {
        if is_harmless(t.name, self.shape) || t.name.starts_with("rope_f") {
            return Ok(());
        }
        let [root, head_root] = roots(self.shape.family);
        let inner = t.name.strip_prefix("language_model.").unwrap_or(t.name);
        if ["lm_head.", "model.lm_head.", "head."].iter().any(|head| inner.starts_with(head)) {
            let name = inner.strip_prefix("model.").unwrap_or(inner);
            let name = format!("{head_root}{name}");
            let part = self.adjusted("lm_head.weight", Part::whole(t))?;
            return if self.shape.tied { Ok(()) } else { self.put(name, t, t.shape, part) };
        }
        let path = ROOTS.iter().find_map(|root| t.name.strip_prefix(root)).unwrap_or(t.name);
        if self.is_superfluous(path) {
            return Ok(());
        }
        self.make(&|name: &str| format!("{root}{name}"), path, t)
    }

    /// gemma4's later layers share keys, and the files have some for them all the same.
    fn is_superfluous(&self, path: &str) -> bool {
        let own = ["self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm."];
        if self.shape.family != Family::Gemma4 || !own.iter().any(|part| path.contains(part)) {
            return false;
        }
        let count = self.source.config_number("num_kv_shared_layers").unwrap_or(0);
        let number = path.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let layer = number.and_then(|(n, _)| n.parse::<usize>().ok());
        layer.is_some_and(|layer| layer >= self.shape.layers.saturating_sub(count))
    }

    fn make(
        &mut self,
        rooted: &dyn Fn(&str) -> String,
        path: &str,
        t: &RawTensor<'_>,
    ) -> Result<()> {
        let experts = self.shape.moe.is_some();
        let Some(fit) = rules::fit(self.shape.family, experts, path) else {
            let part = self.adjusted(path, Part::whole(t))?;
            return self.put(rooted(path), t, t.shape, part);
        };
        let named = |name: &str| match fit.before {
            "" => rooted(name),
            before => rooted(&format!("{before}.{name}")),
        };
        match fit.make {
            Make::As(name) => self.put(named(name), t, t.shape, Part::whole(t)),
            Make::Expert(name) => self.put_expert(named(name), t, fit.number),
            Make::Halves(names) => self.put_halves(names.map(named), t),
            Make::Pairs(names) => self.put_pairs(names.map(named), t),
            Make::Turned(name) => self.put_turned(named(name), t),
            Make::Taps(name) => {
                let Some(&taps) = t.shape.last() else { return Err(misshapen(t, "taps")) };
                let shape = match *t.shape {
                    [_, _, 1] => t.shape.to_vec(),
                    _ => vec![t.shape.iter().rev().skip(1).product(), taps, 1],
                };
                self.put(named(name), t, &shape, Part::whole(t))
            }
            Make::Joined(name, place) => {
                let [rows, cols] = *t.shape else { return Err(misshapen(t, "[rows, cols]")) };
                self.put_at(named(name), t, &[rows, cols], place, Part::whole(t), Many::Joined)
            }
            Make::Decays(name) => {
                let count = t.shape.iter().product();
                let shape = match self.shape.family {
                    Family::KimiLinear => vec![1, 1, count, 1],
                    _ => vec![count],
                };
                let part = Part { ln: true, ..Part::of(t, [1, 1, count]) };
                self.put(named(name), t, &shape, part)
            }
            Make::LatentHeads(names) => self.put_latent_heads(names.map(named), t),
            Make::PlusOne => {
                let shifted = self.is_mlx || self.source.config()["norm_weight_shifted"] == true;
                let add = if shifted { 0.0 } else { 1.0 };
                self.put(rooted(path), t, t.shape, Part { add, ..Part::whole(t) })
            }
            Make::Flat => self.put(rooted(path), t, &[t.shape.iter().product()], Part::whole(t)),
        }
    }

    /// What the maths of the layout's classes asks for beside names.
    fn adjusted(&self, path: &str, part: Part) -> Result<Part> {
        let (shape, json) = (self.shape, self.source.config());
        if shape.family == Family::FalconH1 && !self.is_mlx {
            let times = tensor::falcon_factor(json, shape, path)?;
            // Each number of a bias is a row of its own.
            let [matrices, rows, cols] = part.view;
            let view = if times.len() > 1 && rows == 1 { [matrices, cols, 1] } else { part.view };
            return Ok(Part { times, view, ..part });
        }
        let is = |end: &str| path.ends_with(end);
        let gemma = matches!(shape.family, Family::Gemma2 | Family::Gemma3);
        if gemma && json["norm_weight_shifted"] == true && is("norm.weight") {
            return Ok(Part { add: -1.0, ..part });
        }
        let rotated = ["q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"];
        let native = shape.family == Family::Glm4;
        if !native && json["rope_interleaved"] == true && rotated.iter().any(|end| is(end)) {
            // Rows of a head are (0, d/2, 1, d/2 + 1, ..); the layout has them in their natural order.
            let [matrices, rows, cols] = part.view;
            let view = if is(".bias") { [matrices, cols, rows] } else { [matrices, rows, cols] };
            let (d, half) = (shape.head_dim, shape.head_dim / 2);
            let from = |r: usize| r / d * d + 2 * (r % half) + r % d / half;
            return Ok(Part { view, rows: (0..view[1]).map(from).collect(), ..part });
        }
        Ok(part)
    }

    fn put_expert(&mut self, name: String, t: &RawTensor<'_>, number: usize) -> Result<()> {
        let [rows, cols] = *t.shape else { return Err(misshapen(t, "[rows, cols]")) };
        self.put_at(name, t, &[0, rows, cols], number, Part::whole(t), Many::Stack)
    }

    fn put_halves(&mut self, names: [String; 2], t: &RawTensor<'_>) -> Result<()> {
        let whole = Part::whole(t);
        let half = whole.view[1] / 2;
        if !whole.view[1].is_multiple_of(2) || t.shape.len() < 2 {
            return Err(misshapen(t, "[.., an even number of rows, cols]"));
        }
        let mut shape = t.shape.to_vec();
        let at = shape.len() - 2;
        shape[at] = half;
        for (second, name) in names.into_iter().enumerate() {
            let rows = (second * half..(second + 1) * half).collect();
            self.put(name, t, &shape, Part { rows, ..whole.clone() })?;
        }
        Ok(())
    }

    fn put_pairs(&mut self, names: [String; 2], t: &RawTensor<'_>) -> Result<()> {
        let by_rows = matches!(t.dtype, RawDtype::Packed(_));
        for (second, name) in names.into_iter().enumerate() {
            let every = |n: usize| (second..n).step_by(2).collect::<Vec<_>>();
            match *t.shape {
                [experts, double] => {
                    let part = Part { rows: every(double), ..Part::of(t, [experts, double, 1]) };
                    self.put(name, t, &[experts, double / 2], part)?;
                }
                [experts, double, cols] if by_rows => {
                    let part = Part { rows: every(double), ..Part::whole(t) };
                    self.put(name, t, &[experts, double / 2, cols], part)?;
                }
                [experts, cols, double] => {
                    let part = Part { turned: true, keep: every(double), ..Part::whole(t) };
                    self.put(name, t, &[experts, double / 2, cols], part)?;
                }
                _ => return Err(misshapen(t, "[experts, cols, 2 rows]")),
            }
        }
        Ok(())
    }

    fn put_turned(&mut self, name: String, t: &RawTensor<'_>) -> Result<()> {
        let [experts, cols, rows] = *t.shape else {
            return Err(misshapen(t, "[experts, cols, rows]"));
        };
        let turned = !matches!(t.dtype, RawDtype::Packed(_)) && self.source.gguf().is_none();
        let shape = if turned { [experts, rows, cols] } else { [experts, cols, rows] };
        self.put(name, t, &shape, Part { turned, ..Part::whole(t) })
    }

    fn put_latent_heads(&mut self, names: [String; 2], t: &RawTensor<'_>) -> Result<()> {
        let mla = self.shape.mla.ok_or_else(|| Error::file("config.json has no latent"))?;
        let (heads, head) = (self.shape.heads, mla.nope + mla.value);
        if *t.shape != [heads * head, mla.kv_rank] {
            return Err(misshapen(t, &format!("[{}, {}]", heads * head, mla.kv_rank)));
        }
        let [keys, values] = names;
        let part = Part::of(t, [heads, head, mla.kv_rank]);
        let rows = (0..mla.nope).collect();
        let shape = [heads, mla.kv_rank, mla.nope];
        self.put(keys, t, &shape, Part { rows, turned: true, ..part.clone() })?;
        let rows = (mla.nope..head).collect();
        self.put(values, t, &[heads, mla.value, mla.kv_rank], Part { rows, ..part })
    }

    fn put(&mut self, name: String, t: &RawTensor<'_>, shape: &[usize], part: Part) -> Result<()> {
        self.put_at(name, t, shape, 0, part, Many::No)
    }

    fn put_at(
        &mut self,
        name: String,
        t: &RawTensor<'_>,
        shape: &[usize],
        place: usize,
        part: Part,
        many: Many,
    ) -> Result<()> {
        let (float, raw) = match t.dtype {
            RawDtype::Weight(Format::F32) => (Some(Float::F32), None),
            RawDtype::Weight(Format::F16) => (Some(Float::F16), None),
            RawDtype::Weight(Format::BF16) => (Some(Float::BF16), None),
            RawDtype::Weight(_) | RawDtype::Packed(_) => (None, None),
            RawDtype::Safetensors(dtype) if is_integer(dtype) => (None, Some(dtype)),
            RawDtype::Ggml(GGML_I32) => (None, Some(safetensors::Dtype::I32)),
            RawDtype::Safetensors(_) | RawDtype::Ggml(_) => {
                // The same refusal as for any other use of it.
                return self.source.weight(t.name).map(|_| ());
            }
        };
        let shape = shape.to_vec();
        let new = Draft { shape, parts: BTreeMap::new(), float, raw, many };
        let draft = self.drafts.entry(name).or_insert(new);
        let same = draft.many == many && draft.raw == raw;
        if !same || draft.parts.insert(place, part).is_some() {
            return Err(Error::file("another tensor has the same meaning"));
        }
        Ok(())
    }

    fn finish(self) -> Result<Plan> {
        let quantize = self.options.quantize;
        let mut outputs = Vec::new();
        for (name, draft) in self.drafts {
            let output = finished(name, draft, |draft, path| {
                let float = draft.float.unwrap_or(self.dtype);
                // Files that mix types do so by accident of their writer if they are GGUF.
                let cast = self.options.dtype.is_some() || self.source.gguf().is_some();
                let keeps = rules::keeps_type(path) && self.dtype != Float::F32;
                if cast && !keeps { self.dtype } else { float }
            })?;
            outputs.push(output);
        }
        for output in &mut outputs {
            let Stored::Float(float) = output.stored else { continue };
            let &[.., _, cols] = output.shape.as_slice() else { continue };
            let (family, layers) = (self.shape.family, self.shape.layers);
            let mode = match (output.name.strip_suffix(".weight"), quantize) {
                (Some(base), Some(how)) => how.mode_of(family, base, cols, layers),
                _ => None,
            };
            if let Some(mode) = mode {
                output.stored = Stored::Codes(mode, float);
            }
        }
        let mode = quantize.map(super::Quantize::default_mode);
        Ok(Plan { outputs, dtype: self.dtype, mode })
    }
}

fn finished(name: String, draft: Draft, float: impl Fn(&Draft, &str) -> Float) -> Result<Output> {
    let stored = match draft.raw {
        Some(dtype) => Stored::Raw(dtype),
        None => Stored::Float(float(&draft, &name)),
    };
    let Draft { mut shape, parts, many, .. } = draft;
    if many != Many::No {
        let count = if many == Many::Joined { 2 } else { parts.len() };
        if let Some(gap) = (0..count).find(|place| !parts.contains_key(place)) {
            return Err(Error::file(format!("part {gap} is missing")).at(name));
        }
        let view = parts[&0].view;
        if let Some(other) = parts.values().find(|part| part.view != view) {
            let what = format!("experts are {:?} and {:?}", &view[1..], &other.view[1..]);
            return Err(Error::file(what).at(name));
        }
        shape[0] = if many == Many::Stack { count } else { count * shape[0] };
    }
    Ok(Output { name, shape, parts: parts.into_values().collect(), stored })
}

fn is_integer(dtype: safetensors::Dtype) -> bool {
    use safetensors::Dtype as D;
    matches!(dtype, D::I64 | D::I32 | D::I16 | D::I8 | D::U64 | D::U32 | D::U16)
}

fn misshapen(t: &RawTensor<'_>, want: &str) -> Error {
    Error::file(format!("is {:?}, wants {want}", t.shape))
}
