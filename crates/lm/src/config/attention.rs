//! What a config says of attention: which layers, windows, positions.

use serde_json::Value;

use super::delta::kda_mixers;
use super::fields::Fields;
use super::{Family, Mixer, ssm};
use crate::error::{Error, Result};
use crate::rope::{RopeSpec, Scaling};

/// The most tokens that a context may be made for: ten million are known.
const MOST_CONTEXT: usize = 1 << 24;

/// Query heads, key heads, and numbers of a head; all 0 for a family without attention.
pub(super) fn heads(f: &Fields<'_>, family: Family, hidden: usize) -> Result<[usize; 3]> {
    if family == Family::Mamba2 {
        return Ok([0; 3]);
    }
    let heads = f.size("num_attention_heads")?;
    let kv_heads = f.size_or("num_key_value_heads", heads)?;
    let dim = match f.size_opt("head_dim")? {
        Some(dim) => dim,
        None => f.size_or("attention_head_dim", hidden / heads)?,
    };
    if !heads.is_multiple_of(kv_heads) {
        let what = format!("{heads} heads can't share {kv_heads} key heads");
        return Err(Error::file(what).at("num_key_value_heads"));
    }
    if !dim.is_multiple_of(2) {
        let what = format!("{dim} columns of a head can't be rotated in pairs");
        return Err(Error::file(what).at("head_dim"));
    }
    Ok([heads, kv_heads, dim])
}

/// What norms add to a mean square.
pub(super) fn eps(f: &Fields<'_>, family: Family) -> Result<f32> {
    match family {
        Family::Mamba2 | Family::NemotronH => Ok(f.positive("layer_norm_epsilon")?.unwrap_or(1e-5)),
        _ => Ok(f.positive("rms_norm_eps")?.unwrap_or(1e-6)),
    }
}

/// The most tokens of a sequence. Without attention there is nothing that ends.
pub(super) fn context(f: &Fields<'_>, family: Family) -> Result<usize> {
    let said = f.size_up_to("max_position_embeddings", MOST_CONTEXT)?;
    let said = said.or(f.size_up_to("model_max_length", MOST_CONTEXT)?);
    Ok(said.unwrap_or(if family == Family::Mamba2 { MOST_CONTEXT } else { 4096 }))
}

pub(super) fn mixers(
    f: &Fields<'_>,
    family: Family,
    layers: usize,
    window: Option<usize>,
) -> Result<Vec<Mixer>> {
    if let Some(mixers) = ssm::mixers(f, family, layers)? {
        return Ok(mixers);
    }
    if let Some(list) = f.list("layer_types")? {
        if list.len() != layers {
            let what = format!("{} entries for {layers} layers", list.len());
            return Err(Error::file(what).at("layer_types"));
        }
        let kind = |v: &Value| match v.as_str() {
            Some("full_attention" | "indexed_attention") => Ok(Mixer::Full),
            Some("sliding_attention") if window.is_some() => Ok(Mixer::Sliding),
            Some("linear_attention") if family.is_delta_hybrid() || family.is_kda() => {
                Ok(Mixer::Linear)
            }
            _ => Err(Error::unsupported(format!("{v} is not known here")).at("layer_types")),
        };
        return list.iter().map(kind).collect();
    }
    if family == Family::KimiLinear {
        return kda_mixers(f, layers);
    }
    let pattern = f.size_or("sliding_window_pattern", 0)?;
    let pattern = if pattern > 0 { pattern } else { f.size_or("_sliding_window_pattern", 6)? };
    let interval = f.size_or("full_attention_interval", 4)?;
    let sliding = f.bool_or("use_sliding_window", family == Family::Mistral)?;
    let kind = |i: usize| match family {
        Family::Gemma3 if !(i + 1).is_multiple_of(pattern) => Mixer::Sliding,
        Family::Gemma2 if i.is_multiple_of(2) => Mixer::Sliding,
        _ if family.is_delta_hybrid() && !(i + 1).is_multiple_of(interval) => Mixer::Linear,
        Family::Mistral | Family::Qwen2 | Family::Qwen3 if sliding && window.is_some() => {
            Mixer::Sliding
        }
        _ => Mixer::Full,
    };
    if family.is_gemma() && window.is_none() {
        return Err(f.missing("sliding_window"));
    }
    Ok((0..layers).map(kind).collect())
}

/// Layers whose entry in `no_rope_layers` is 0, or every n-th one of smollm3, do not rotate; some families never do.
pub(super) fn rotates(f: &Fields<'_>, family: Family, layers: usize) -> Result<Vec<bool>> {
    match family {
        Family::SmolLm3 => {}
        Family::NemotronH | Family::KimiLinear => return Ok(vec![false; layers]),
        Family::GraniteMoeHybrid => match f.str("position_embedding_type")? {
            None | Some("nope") => return Ok(vec![false; layers]),
            Some("rope") => return Ok(vec![true; layers]),
            Some(other) => {
                let what = format!("positions by \"{other}\" are not known here");
                return Err(Error::unsupported(what).at("position_embedding_type"));
            }
        },
        _ => return Ok(vec![true; layers]),
    }
    let Some(list) = f.list("no_rope_layers")? else {
        let every = f.size_or("no_rope_layer_interval", 4)?;
        return Ok((0..layers).map(|i| !(i + 1).is_multiple_of(every)).collect());
    };
    if list.len() != layers {
        let what = format!("{} entries for {layers} layers", list.len());
        return Err(Error::file(what).at("no_rope_layers"));
    }
    Ok(list.iter().map(|v| v.as_u64() != Some(0)).collect())
}

pub(super) fn ropes(
    f: &Fields<'_>,
    family: Family,
    dim: usize,
) -> Result<(RopeSpec, Option<RopeSpec>)> {
    if dim == 0 {
        let none = RopeSpec { rotary: 0, theta: 1e4, scaling: Scaling::None };
        return Ok((none, None));
    }
    let theta = f.number("rope_theta")?;
    let partial = f.number("partial_rotary_factor")?;
    let partial = partial.unwrap_or(if family.is_delta_hybrid() { 0.25 } else { 1.0 });
    let default = if family == Family::Gemma3 { 1e6 } else { 1e4 };
    let read = |value: Option<&Value>, theta: f64| {
        RopeSpec::new(value, dim, theta, partial).map_err(|e| e.at("rope_parameters"))
    };
    let object = |name: &str| match f.get(name) {
        Some(other) if !other.is_object() => Err(Fields::wrong(name, other, "an object")),
        object => Ok(object),
    };
    let given = object("rope_parameters")?.or(object("rope_scaling")?);
    let kinds = given.and_then(|v| Some((v.get("full_attention")?, v.get("sliding_attention")?)));
    if let Some((full, sliding)) = kinds {
        return Ok((read(Some(full), default)?, Some(read(Some(sliding), 1e4)?)));
    }
    let rope = read(given, theta.unwrap_or(default))?;
    let local = f.number("rope_local_base_freq")?.unwrap_or(1e4);
    let sliding = (family == Family::Gemma3).then(|| read(None, local)).transpose()?;
    Ok((rope, sliding))
}
