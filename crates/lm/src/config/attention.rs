//! What a config says of attention: which layers, windows, positions.

use serde_json::Value;

use super::delta::kda_mixers;
use super::fields::Fields;
use super::{Family, Mixer, deepseek_v4, multipliers, ssm};
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
    // Where heads don't rotate, some writers leave a 0.
    let dim = match f.count("head_dim")? {
        Some(dim) if dim > 0 => dim,
        Some(_) if !family.is_latent() => return Err(f.missing("head_dim")),
        _ => f.size_or("attention_head_dim", hidden / heads)?,
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

/// The most tokens of a sequence. Without attention there is nothing that ends.
pub(super) fn context(f: &Fields<'_>, family: Family) -> Result<usize> {
    let said = f.size_up_to("max_position_embeddings", MOST_CONTEXT)?;
    let said = said.or(f.size_up_to("model_max_length", MOST_CONTEXT)?);
    Ok(said.unwrap_or(if family == Family::Mamba2 { MOST_CONTEXT } else { 4096 }))
}

/// Factor on attention scores.
pub(super) fn scale(f: &Fields<'_>, family: Family, head_dim: usize) -> Result<f32> {
    if let Some(scale) = multipliers::scale(f, family, head_dim)? {
        return Ok(scale);
    }
    if !family.is_gemma() {
        return Ok((head_dim.max(1) as f32).powf(-0.5));
    }
    let scalar = f.positive("query_pre_attn_scalar")?.map_or(head_dim as f64, f64::from);
    Ok(if family == Family::Gemma4 { 1.0 } else { scalar.powf(-0.5) as f32 })
}

/// The window of sliding layers.
pub(super) fn window(f: &Fields<'_>) -> Result<Option<usize>> {
    // Where windows are switched off, some writers leave a 0.
    let off = !f.bool_or("use_sliding_window", true)?;
    let off = off && f.get("sliding_window").is_some_and(|v| v.as_u64() == Some(0));
    if off { Ok(None) } else { f.size_opt("sliding_window") }
}

pub(super) fn mixers(
    f: &Fields<'_>,
    family: Family,
    rotates: &[bool],
    window: Option<usize>,
) -> Result<Vec<Mixer>> {
    let layers = rotates.len();
    if let Some(mixers) = ssm::mixers(f, family, layers)? {
        return Ok(mixers);
    }
    if family == Family::DeepSeekV4 {
        return deepseek_v4::mixers(f, layers);
    }
    let slides = slides(f, family, rotates, window)?;
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
            Some("conv") if family == Family::Lfm2 => Ok(Mixer::Linear),
            _ => Err(Error::unsupported(format!("{v} is not known here")).at("layer_types")),
        };
        return list.iter().map(kind).collect();
    }
    if family == Family::KimiLinear {
        return kda_mixers(f, layers);
    }
    let interval = f.size_or("full_attention_interval", 4)?;
    let mut attends = vec![true; layers];
    if let (Family::Lfm2, Some(list)) = (family, f.list("full_attn_idxs")?) {
        attends.fill(false);
        for value in list {
            let layer = value.as_u64().and_then(|n| attends.get_mut(usize::try_from(n).ok()?));
            let none = || Error::file(format!("{value} is no layer")).at("full_attn_idxs");
            *layer.ok_or_else(none)? = true;
        }
    }
    let kind = |i: usize| match family {
        _ if family.is_delta_hybrid() && !(i + 1).is_multiple_of(interval) => Mixer::Linear,
        _ if !attends[i] => Mixer::Linear,
        _ if slides[i] => Mixer::Sliding,
        _ => Mixer::Full,
    };
    Ok((0..layers).map(kind).collect())
}

/// Which layers see a window only, where the config does not list them.
fn slides(
    f: &Fields<'_>,
    family: Family,
    rotates: &[bool],
    window: Option<usize>,
) -> Result<Vec<bool>> {
    let layers = rotates.len();
    let pattern = f.size_or("sliding_window_pattern", 0)?;
    let pattern = if pattern > 0 { pattern } else { f.size_or("_sliding_window_pattern", 6)? };
    let switched = f.bool_or("use_sliding_window", false)?;
    let full_first = f.count("max_window_layers")?.unwrap_or(28);
    let slides = |i: usize| match family {
        Family::Gemma3 | Family::Gemma4 => !(i + 1).is_multiple_of(pattern),
        Family::Gemma2 | Family::GptOss => i.is_multiple_of(2),
        Family::Olmo3 => !(i + 1).is_multiple_of(4),
        Family::Mistral | Family::Mixtral | Family::Ministral3 | Family::Phi3 => true,
        Family::Qwen2 | Family::Qwen3 => switched && i >= full_first,
        Family::Qwen2Moe => switched && i.is_multiple_of(2) && i < full_first,
        Family::Qwen3Moe => switched,
        Family::SmolLm3 => switched && !rotates[i],
        _ => false,
    };
    let slides: Vec<bool> = (0..layers).map(slides).collect();
    let must = family.is_gemma() || switched || matches!(family, Family::Olmo3 | Family::GptOss);
    if must && window.is_none() && slides.contains(&true) {
        return Err(f.missing("sliding_window"));
    }
    Ok(slides.into_iter().map(|s| s && window.is_some()).collect())
}

/// Whether queries, keys and values have biases, and whether the output has one.
pub(super) fn biases(f: &Fields<'_>, family: Family) -> Result<(bool, bool)> {
    let given = f.bool_or("attention_bias", family.has_qkv_bias())?;
    let given = f.bool_or("qkv_bias", given)?;
    let output = match family {
        Family::SeedOss => f.bool_or("attention_out_bias", false)?,
        _ => given && !family.has_plain_output(),
    };
    Ok((given, output))
}

/// Whether queries and keys have norms.
pub(super) fn qk_norms(f: &Fields<'_>, family: Family) -> Result<bool> {
    Ok(match family {
        Family::Qwen3 | Family::Qwen3Moe | Family::Gemma3 | Family::Lfm2 => true,
        Family::Olmo2 | Family::Olmo3 => true,
        Family::Glm4Moe => f.bool_or("use_qk_norm", false)?,
        Family::MiniMaxM2 => {
            if let Some(kind) = f.str("qk_norm_type")?.filter(|kind| *kind != "per_layer") {
                let what = format!("norms of queries and keys \"{kind}\" are not known");
                return Err(Error::unsupported(what).at("qk_norm_type"));
            }
            if f.list("attn_type_list")?.is_some_and(|l| l.iter().any(|v| v.as_u64() != Some(1))) {
                let what = "layers without softmax attention are not known here";
                return Err(Error::unsupported(what).at("attn_type_list"));
            }
            f.bool_or("use_qk_norm", true)?
        }
        _ => family.is_delta_hybrid(),
    })
}

/// Gates of attention's output, where a family can't do without.
pub(super) fn check_gate(f: &Fields<'_>, family: Family) -> Result<()> {
    if family.is_delta_hybrid() && !f.bool_or("attn_output_gate", true)? {
        let what = format!("attention without a gate is not known for {}", family.name());
        return Err(Error::unsupported(what).at("attn_output_gate"));
    }
    Ok(())
}

/// Factor on queries that grows with their position.
pub(super) fn query_growth(f: &Fields<'_>, family: Family) -> Result<Option<(f32, usize)>> {
    let rope = f.get("rope_parameters").or(f.get("rope_scaling"));
    let name = "llama_4_scaling_beta";
    let Some(beta) = rope.and_then(|rope| rope.get(name)).filter(|beta| !beta.is_null()) else {
        return Ok(None);
    };
    let beta = beta
        .as_f64()
        .filter(|b| b.is_finite())
        .ok_or_else(|| Fields::wrong(name, beta, "a number"))?;
    if beta == 0.0 {
        return Ok(None);
    }
    if family != Family::Ministral3 {
        let what = format!("growing queries are not known for {}", family.name());
        return Err(Error::unsupported(what).at(name));
    }
    let every = "original_max_position_embeddings";
    let value = rope.and_then(|rope| rope.get(every)).ok_or_else(|| f.missing(every))?;
    let n = value.as_f64().filter(|n| (1.0..1e9).contains(n) && n.fract() == 0.0);
    let n = n.ok_or_else(|| Fields::wrong(every, value, "a positive size that can be"))?;
    Ok(Some((beta as f32, n as usize)))
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
    f.get("no_rope_layer_interval");
    if list.len() != layers {
        let what = format!("{} entries for {layers} layers", list.len());
        return Err(Error::file(what).at("no_rope_layers"));
    }
    Ok(list.iter().map(|v| v.as_u64() != Some(0)).collect())
}

fn theta_of(family: Family) -> f64 {
    match family {
        Family::Gemma3 | Family::Mixtral | Family::Lfm2 | Family::Ministral3 => 1e6,
        Family::SmolLm3 => 2e6,
        Family::MiniMaxM2 => 5e6,
        Family::Olmo3 => 5e5,
        Family::GptOss => 1.5e5,
        _ => 1e4,
    }
}

/// The part of a head that rotates, unless positions say so themselves.
fn partial_of(f: &Fields<'_>, family: Family, dim: usize) -> Result<f64> {
    let given = f.number("partial_rotary_factor")?;
    if let (Family::MiniMaxM2, Some(n)) = (family, f.size_opt("rotary_dim")?) {
        return Ok(n as f64 / dim as f64);
    }
    let half = matches!(family, Family::Glm4 | Family::Glm4Moe);
    let default = if family.is_delta_hybrid() {
        0.25
    } else if half {
        0.5
    } else {
        1.0
    };
    Ok(given.unwrap_or(default))
}

/// Positions as transformers completes them: with the lengths that the variants look for.
fn completed(f: &Fields<'_>, family: Family, value: &Value, context: usize) -> Result<Value> {
    let mut value = value.clone();
    if let Some(map) = value.as_object_mut() {
        let original = "original_max_position_embeddings";
        let outside = f.size_up_to(original, MOST_CONTEXT)?;
        if let Some(outside) = outside {
            map.insert(original.into(), outside.into());
        }
        if family == Family::Phi3 {
            map.entry(original).or_insert(4096.into());
        }
        map.insert("max_position_embeddings".into(), context.into());
        // Early files of phi3 name their variant otherwise.
        for name in ["rope_type", "type"] {
            let old = map.get(name).and_then(Value::as_str);
            if family == Family::Phi3 && old.is_some_and(|t| matches!(t, "su" | "yarn")) {
                map.insert(name.into(), "longrope".into());
            }
        }
    }
    Ok(value)
}

pub(super) fn ropes(
    f: &Fields<'_>,
    family: Family,
    dim: usize,
    context: usize,
) -> Result<(RopeSpec, Option<RopeSpec>)> {
    if family == Family::DeepSeekV4 {
        return Ok((deepseek_v4::rope(f, dim, "main")?, None));
    }
    if dim == 0 {
        let none = RopeSpec { rotary: 0, theta: 1e4, scaling: Scaling::None };
        return Ok((none, None));
    }
    let theta = f.number("rope_theta")?;
    let partial = partial_of(f, family, dim)?;
    let default = theta_of(family);
    let read = |value: Option<&Value>, theta: f64| {
        let value = value.map(|v| completed(f, family, v, context)).transpose()?;
        RopeSpec::new(value.as_ref(), dim, theta, partial).map_err(|e| e.at("rope_parameters"))
    };
    let object = |name: &str| match f.get(name) {
        Some(other) if !other.is_object() => Err(Fields::wrong(name, other, "an object")),
        object => Ok(object),
    };
    let (new, old) = (object("rope_parameters")?, object("rope_scaling")?);
    let given = new.or(old);
    if given.is_none() && matches!(family, Family::GptOss | Family::Ministral3) {
        return Err(f.missing("rope_parameters"));
    }
    let base = match family {
        Family::Gemma3 => f.number("rope_local_base_freq")?.unwrap_or(1e4),
        _ => default,
    };
    let kinds = given.and_then(|v| Some((v.get("full_attention")?, v.get("sliding_attention")?)));
    let (rope, sliding) = if let Some((full, sliding)) = kinds {
        let local = if family == Family::Gemma3 { base } else { theta.unwrap_or(default) };
        (read(Some(full), theta.unwrap_or(default))?, Some(read(Some(sliding), local)?))
    } else {
        let rope = read(given, theta.unwrap_or(default))?;
        let local = match family {
            Family::Gemma3 => Some(base),
            Family::Olmo3 => Some(theta.unwrap_or(default)),
            _ => None,
        };
        (rope, local.map(|theta| read(None, theta)).transpose()?)
    };
    // A sequence has one stretch, which is that of the layers that see everything.
    if let Some(sliding) = sliding.as_ref().filter(|s| s.stretches() && **s != rope) {
        let what = format!("positions of sliding layers that depend on the length: {sliding:?}");
        return Err(Error::unsupported(what).at("rope_parameters"));
    }
    Ok((rope, sliding))
}
