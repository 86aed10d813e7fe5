//! What a config says of Gemma 4: layers of two head sizes, shared keys and values, inputs of single layers, experts.

use serde_json::Value;

use super::Mixer;
use super::fields::Fields;
use crate::error::{Error, Result};
use crate::rope::RopeSpec;

/// What Gemma 4 adds to a config.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemma4Config {
    /// Numbers of a head in layers that see everything.
    pub global_dim: usize,
    /// Their key heads.
    pub global_kv_heads: usize,
    /// Their values come from the projection of their keys.
    pub values_of_keys: bool,
    /// The layer whose keys and values each layer reads; its own number where it has some.
    pub sources: Vec<usize>,
    /// Layers without keys and values of their own have an MLP of twice the inner width.
    pub double_wide: bool,
    /// Numbers that each layer gets of its own for each token; 0 without.
    pub layer_input: usize,
    /// Experts beside each MLP.
    pub experts: Option<Gemma4Experts>,
}

/// Experts beside an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Gemma4Experts {
    pub count: usize,
    pub per_token: usize,
    pub intermediate: usize,
}

/// The last layer sees everything, whatever the config says.
pub(super) fn gemma4(
    f: &Fields<'_>,
    kv_heads: usize,
    mixers: &mut [Mixer],
) -> Result<Gemma4Config> {
    if let Some(last) = mixers.last_mut() {
        *last = Mixer::Full;
    }
    let mixers = &*mixers;
    if let Some(other) = f.str("use_bidirectional_attention")?.filter(|s| *s != "vision") {
        let what = format!("attention to what comes later (\"{other}\") is not known here");
        return Err(Error::unsupported(what).at("use_bidirectional_attention"));
    }
    let values_of_keys = f.bool_or("attention_k_eq_v", false)?;
    let (global_dim, global_kv_heads) = globals(f, kv_heads, values_of_keys, mixers)?;
    let layer_input = f.count("hidden_size_per_layer_input")?.unwrap_or(256);
    let (vocab, own) = (f.size("vocab_size")?, f.size_opt("vocab_size_per_layer_input")?);
    if layer_input > 0 && own.is_some_and(|own| own != vocab) {
        let what = format!("inputs of layers for {own:?} ids of {vocab} are not known here");
        return Err(Error::unsupported(what).at("vocab_size_per_layer_input"));
    }
    let experts = match f.bool_or("enable_moe_block", false)? {
        true => Some(experts(f)?),
        false => None,
    };
    Ok(Gemma4Config {
        global_dim,
        global_kv_heads,
        values_of_keys,
        sources: sources(mixers, f.count("num_kv_shared_layers")?.unwrap_or(0))?,
        double_wide: f.bool_or("use_double_wide_mlp", false)?,
        layer_input,
        experts,
    })
}

/// Head size and key heads of layers that see everything: fields of their own, or the overrides of single layers that
/// transformers writes.
fn globals(
    f: &Fields<'_>,
    kv_heads: usize,
    values_of_keys: bool,
    mixers: &[Mixer],
) -> Result<(usize, usize)> {
    let own = if values_of_keys { f.size_opt("num_global_key_value_heads")? } else { None };
    let mut globals = (f.size_opt("global_head_dim")?.unwrap_or(512), own.unwrap_or(kv_heads));
    if let Some(layers) = f.get("per_layer_config").and_then(Value::as_object) {
        let size = |layer: &Value, name: &str, default: usize| match layer.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(_) => Fields::new(layer, layer).size(name),
        };
        let plain = (f.size("head_dim")?, kv_heads);
        let full = mixers.iter().enumerate().filter(|(_, m)| **m == Mixer::Full).map(|(i, _)| i);
        let of = |i: usize| match layers.get(&i.to_string()) {
            None => Ok(plain),
            Some(layer) => Ok((
                size(layer, "head_dim", plain.0)?,
                size(layer, "num_key_value_heads", plain.1)?,
            )),
        };
        let all = full.clone().map(of).collect::<Result<Vec<_>>>()?;
        let others = layers.keys().filter(|k| !full.clone().any(|i| **k == i.to_string()));
        if all.windows(2).any(|w| w[0] != w[1]) || others.count() > 0 {
            let what = "layers of one kind that differ are not known here";
            return Err(Error::unsupported(what).at("per_layer_config"));
        }
        globals = all.first().copied().unwrap_or(plain);
    }
    let (dim, heads) = globals;
    if !dim.is_multiple_of(2) || !f.size("num_attention_heads")?.is_multiple_of(heads) {
        let what = format!("{heads} key heads of {dim} can't be");
        return Err(Error::file(what).at("global_head_dim"));
    }
    Ok(globals)
}

/// The last `shared` layers read what the last layer of their kind before them has written.
fn sources(mixers: &[Mixer], shared: usize) -> Result<Vec<usize>> {
    let at = "num_kv_shared_layers";
    let first = mixers
        .len()
        .checked_sub(shared)
        .ok_or_else(|| Error::file(format!("{shared} layers of {} share", mixers.len())).at(at))?;
    let source = |(i, mixer): (usize, &Mixer)| {
        if i < first {
            return Ok(i);
        }
        mixers[..first].iter().rposition(|m| m == mixer).ok_or_else(|| {
            Error::file(format!("layer {i} has no layer of its kind to share with")).at(at)
        })
    };
    mixers.iter().enumerate().map(source).collect()
}

fn experts(f: &Fields<'_>) -> Result<Gemma4Experts> {
    let experts = Gemma4Experts {
        count: f.size("num_experts")?,
        per_token: f.size("top_k_experts")?,
        intermediate: f.size("moe_intermediate_size")?,
    };
    if experts.per_token > experts.count {
        let what = format!("{} of {} experts", experts.per_token, experts.count);
        return Err(Error::file(what).at("top_k_experts"));
    }
    Ok(experts)
}

/// Positions of layers that see everything, and of those that see a window.
pub(super) fn ropes(
    f: &Fields<'_>,
    dim: usize,
    global_dim: usize,
) -> Result<(RopeSpec, Option<RopeSpec>)> {
    let plain = serde_json::json!({"rope_type": "proportional", "partial_rotary_factor": 0.25});
    let given = f.get("rope_parameters");
    let (full, sliding) = match given {
        None => (Some(&plain), None),
        Some(given) => (given.get("full_attention"), given.get("sliding_attention")),
    };
    if given.is_some() && (full.is_none() || sliding.is_none()) {
        let what = "positions are wanted for full_attention and sliding_attention";
        return Err(Error::file(what).at("rope_parameters"));
    }
    let read = |value, dim, theta| {
        RopeSpec::new(value, dim, theta, 1.0).map_err(|e| e.at("rope_parameters"))
    };
    Ok((read(full, global_dim, 1e6)?, Some(read(sliding, dim, 1e4)?)))
}
