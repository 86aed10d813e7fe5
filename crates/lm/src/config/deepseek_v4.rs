//! What a config says of DeepSeek V4: layers with a window and entries of two rates, grouped outputs, routing by id.

use serde_json::{Map, Value};

use super::Mixer;
use super::fields::Fields;
use crate::error::{Error, Result};
use crate::rope::RopeSpec;

/// What DeepSeek V4 adds to a config.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepSeekV4Config {
    /// Rank of queries.
    pub q_rank: usize,
    /// Groups of heads that the output takes one by one.
    pub groups: usize,
    /// What each of them comes to.
    pub group_rank: usize,
    /// Tokens of an entry where an indexer chooses entries.
    pub sparse_every: usize,
    /// Tokens of an entry where all of them are seen.
    pub heavy_every: usize,
    /// Positions in layers with entries.
    pub entry_rope: RopeSpec,
    /// Layers whose experts are those that a table has for a token's id.
    pub hashed: Vec<bool>,
}

const SPARSE: &str = "compressed_sparse_attention";
const HEAVY: &str = "heavily_compressed_attention";

pub(super) fn deepseek_v4(
    f: &Fields<'_>,
    [heads, dim, layers]: [usize; 3],
) -> Result<DeepSeekV4Config> {
    let [sparse_every, heavy_every] = rates(f)?;
    let groups = f.size("o_groups")?;
    if !heads.is_multiple_of(groups) {
        return Err(Error::file(format!("{heads} heads in {groups} groups")).at("o_groups"));
    }
    Ok(DeepSeekV4Config {
        q_rank: f.size("q_lora_rank")?,
        groups,
        group_rank: f.size("o_lora_rank")?,
        sparse_every,
        heavy_every,
        entry_rope: rope(f, dim, "compress")?,
        hashed: hashed(f, layers)?,
    })
}

fn rates(f: &Fields<'_>) -> Result<[usize; 2]> {
    let named = match f.get("compress_rates") {
        None => None,
        Some(v) if v.is_object() => Some(Fields::new(v, v)),
        Some(other) => return Err(Fields::wrong("compress_rates", other, "an object")),
    };
    let rate = |name: &str, old: &str, default| match &named {
        Some(named) => named.size_or(name, default),
        None => f.size_or(old, default),
    };
    Ok([rate(SPARSE, "compress_rate_csa", 4)?, rate(HEAVY, "compress_rate_hca", 128)?])
}

/// What each layer sees beside its window: `layer_types`, or the rates of layers as they were first written.
pub(super) fn mixers(f: &Fields<'_>, layers: usize) -> Result<Vec<Mixer>> {
    let (name, list) = match f.list("layer_types")? {
        Some(list) => ("layer_types", Some(list)),
        None => ("compress_ratios", f.list("compress_ratios")?),
    };
    f.size("sliding_window")?;
    let Some(list) = list else {
        let kind =
            |i: usize| if i < 2 || i.is_multiple_of(2) { Mixer::Heavy } else { Mixer::Sparse };
        return Ok((0..layers).map(kind).collect());
    };
    // Layers behind the last one guess further tokens.
    if list.len() < layers {
        return Err(Error::file(format!("{} entries for {layers} layers", list.len())).at(name));
    }
    let kind = |v: &Value| match (v.as_str(), v.as_u64()) {
        (Some("sliding_attention"), _) | (_, Some(0)) => Ok(Mixer::Sliding),
        (Some(SPARSE), _) | (_, Some(4)) => Ok(Mixer::Sparse),
        (Some(HEAVY), _) | (_, Some(128)) => Ok(Mixer::Heavy),
        _ => Err(Error::unsupported(format!("{v} is not known here")).at(name)),
    };
    list[..layers].iter().map(kind).collect()
}

fn hashed(f: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    let name = "mlp_layer_types";
    let Some(list) = f.list(name)? else {
        let first = f.count("num_hash_layers")?.unwrap_or(3);
        return Ok((0..layers).map(|i| i < first).collect());
    };
    if list.len() < layers {
        return Err(Error::file(format!("{} entries for {layers} layers", list.len())).at(name));
    }
    let kind = |v: &Value| match v.as_str() {
        Some("hash_moe") => Ok(true),
        Some("moe") => Ok(false),
        _ => Err(Error::unsupported(format!("{v} is not known here")).at(name)),
    };
    list[..layers].iter().map(kind).collect()
}

/// Positions of `main` layers, with a window alone, or of layers that `compress`. Their scaling never grows cosines, and
/// is that of the latter where a config does not tell them apart.
pub(super) fn rope(f: &Fields<'_>, dim: usize, layers: &str) -> Result<RopeSpec> {
    let (theta, default) = match layers {
        "main" => ("rope_theta", 1e4),
        _ => ("compress_rope_theta", 1.6e5),
    };
    let theta = f.number(theta)?.unwrap_or(default);
    let given = f.get("rope_parameters").or(f.get("rope_scaling"));
    let partial = match (f.number("partial_rotary_factor")?, f.count("qk_rope_head_dim")?) {
        (Some(partial), _) => partial,
        (None, Some(rope)) => rope as f64 / dim as f64,
        (None, None) => 0.125,
    };
    let nested = given.is_some_and(|v| v.get("main").is_some() && v.get("compress").is_some());
    let own = match given {
        Some(given) if nested => given.get(layers).cloned(),
        Some(given) if layers == "compress" => {
            let mut own = given.as_object().cloned().unwrap_or_else(Map::new);
            let elsewhere = ["main", "compress", "rope_theta", "partial_rotary_factor"];
            own.retain(|name, _| !elsewhere.contains(&name.as_str()));
            let kind = own.get("rope_type").or(own.get("type")).and_then(Value::as_str);
            if kind == Some("yarn") {
                own.entry("attention_factor").or_insert(1.0.into());
            }
            Some(own.into())
        }
        _ => None,
    };
    let at = |e: Error| e.at("rope_parameters");
    let spec = RopeSpec::new(own.as_ref(), dim, theta, partial).map_err(at)?;
    if spec.stretches() {
        return Err(at(Error::unsupported("positions that depend on the length of a text")));
    }
    Ok(spec)
}
