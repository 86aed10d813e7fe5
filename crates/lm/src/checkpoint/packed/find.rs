//! Finding packed weights among the tensors of a safetensors checkpoint.
//!
//! Owns the names that writers give to parts. Every part must be taken by a weight: one that is
//! left would mean numbers that nobody accounted for.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde_json::Value;

use super::super::tensor::RawDtype;
use super::config::Method;
use super::{Bytes, Grid, Packed, Placed, fp, ints, mlx};
use crate::{Error, Result};

/// Endings of names that only parts of packed weights have.
const PARTS: [&str; 18] = [
    ".qweight",
    ".qzeros",
    ".scales",
    ".biases",
    ".global_scale",
    ".g_idx",
    ".weight_packed",
    ".weight_shape",
    ".weight_scale",
    ".weight_scale_inv",
    "_proj_scale_inv",
    ".weight_scale_2",
    ".weight_global_scale",
    ".weight_zero_point",
    ".weight_g_idx",
    ".absmax",
    ".SCB",
    ".weight_format",
];

/// What the finders of single methods work with.
pub(super) struct Parts<'a> {
    tensors: &'a mut BTreeMap<String, Placed>,
    pub(super) shards: &'a [Bytes],
    pub(super) method: Method<'a>,
}

/// Takes the parts of packed weights out of `tensors` and gives the weights back by name.
///
/// # Errors
/// `Unsupported` for a method that is not known, `File` for parts that do not fit or belong to no
/// weight.
pub(in super::super) fn gather(
    tensors: &mut BTreeMap<String, Placed>,
    shards: &[Bytes],
    config: &Value,
) -> Result<BTreeMap<String, Packed>> {
    let method = Method::of(config)?;
    let found: Vec<(String, Finder)> = tensors.keys().filter_map(|n| finder(tensors, n)).collect();
    let mut parts = Parts { tensors, shards, method };
    let mut weights = BTreeMap::new();
    for (base, Finder { name, find }) in found {
        let packed = find(&mut parts, &base).and_then(Packed::checked).map_err(|e| e.at(&base))?;
        let name = format!("{base}{name}");
        if parts.tensors.contains_key(&name) || weights.contains_key(&name) {
            return Err(Error::file("it is there both packed and as it is").at(name));
        }
        weights.insert(name, packed);
    }
    let is_part =
        |name: &&String| PARTS.iter().any(|part| name.ends_with(part)) || is_scale(tensors, name);
    match tensors.keys().find(is_part) {
        Some(name) => Err(Error::unsupported("it belongs to no weight that this build can read")
            .at(name)
            .hint("the weights are packed in a way that config.json does not say")),
        None => Ok(weights),
    }
}

/// How the weight behind a tensor is found, and what its name ends in.
struct Finder {
    name: &'static str,
    find: fn(&mut Parts<'_>, &str) -> Result<Packed>,
}

/// The weight that the tensor `name` is the mark of: what its name begins with, and its finder.
fn finder(tensors: &BTreeMap<String, Placed>, name: &str) -> Option<(String, Finder)> {
    let has = |base: &str, ending: &str| tensors.contains_key(&format!("{base}{ending}"));
    let weight = |base: &str, find| Some((base.to_owned(), Finder { name: ".weight", find }));
    if let Some(base) = name.strip_suffix(".qweight") {
        weight(base, ints::by_columns)
    } else if let Some(base) = name.strip_suffix(".weight_packed") {
        weight(base, ints::compressed)
    } else if let Some(base) = name.strip_suffix(".scales") {
        if has(base, ".qweight") { None } else { weight(base, mlx::weight) }
    } else if let Some(base) = name.strip_suffix("_blocks") {
        let find = fp::blocks;
        has(base, "_scales").then(|| (base.to_owned(), Finder { name: "", find }))
    } else if let Some(base) = name.strip_suffix("_scale_inv") {
        // Stacked experts are called X, other weights X.weight: either stands before the ending.
        let find = fp::inverse;
        has(base, "").then(|| (base.to_owned(), Finder { name: "", find }))
    } else if let Some(base) = name.strip_suffix(".weight_scale") {
        if has(base, ".weight_packed") { None } else { weight(base, fp::scaled) }
    } else if is_scale(tensors, name) {
        weight(name.strip_suffix(".scale")?, fp::plain)
    } else {
        None
    }
}

/// Whether the tensor `name` is called `X.scale` and belongs to codes: other models have weights of
/// that name.
fn is_scale(tensors: &BTreeMap<String, Placed>, name: &str) -> bool {
    let Some(base) = name.strip_suffix(".scale") else { return false };
    let dtype = |name: &str| tensors.get(name).map(|placed| placed.located.dtype);
    let codes = dtype(&format!("{base}.weight")).is_some_and(|dtype| dtype.format().is_none());
    codes || dtype(name) == Some(RawDtype::Safetensors(Dtype::F8_E8M0))
}

impl Parts<'_> {
    /// Takes the tensor `base` + `ending`, if there is one.
    pub(super) fn take(&mut self, base: &str, ending: &str) -> Option<Placed> {
        self.tensors.remove(&format!("{base}{ending}"))
    }

    /// Takes the tensor `base` + `ending`.
    pub(super) fn need(&mut self, base: &str, ending: &str) -> Result<Placed> {
        self.take(base, ending)
            .ok_or_else(|| Error::file(format!("the tensor \"{base}{ending}\" is missing")))
    }
}

/// Refuses a tensor of another type.
pub(super) fn expect(what: &str, placed: &Placed, dtypes: &[Dtype]) -> Result<()> {
    let have = placed.located.dtype;
    if dtypes.iter().any(|dtype| have == RawDtype::from_safetensors(*dtype)) {
        return Ok(());
    }
    Err(Error::unsupported(format!("its {what} are stored as {have}")))
}

/// The last dimension of a tensor and those before it.
pub(super) fn split_last<'a>(what: &str, placed: &'a Placed) -> Result<(&'a [usize], usize)> {
    match &*placed.located.shape {
        [rest @ .., last] if !rest.is_empty() => Ok((rest, *last)),
        shape => Err(Error::file(format!("its {what} are {shape:?}"))),
    }
}

/// A grid with numbers for single rows and, across, for `group` columns each.
pub(super) fn rows_grid(rows: usize, groups: usize, group: usize) -> Grid {
    Grid { size: [rows, groups], block: [1, group], turned: false }
}
