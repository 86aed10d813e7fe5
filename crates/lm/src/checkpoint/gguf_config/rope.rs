//! Positions: `rope_parameters` from metadata, and from the small tensors that some files keep divisors in.

use serde_json::Value;

use super::keys::{Keys, shortest};
use super::{Config, set, set_some};
use crate::{Error, Result};

/// `rope_parameters` for heads of `head_dim`. With a tensor `rope_freqs.weight` the type is `freq_factors`: inverse
/// frequency `i` is divided by that tensor's number `i`, which is how Llama 3's scaling is stored.
pub(super) fn parameters(keys: &Keys<'_>, head_dim: u64) -> Result<Config> {
    let mut rope = Config::new();
    set(&mut rope, "rope_theta", keys.float("rope.freq_base")?.unwrap_or(10_000.0));
    if let Some(turned) = keys.uint("rope.dimension_count")?.filter(|dim| *dim != head_dim) {
        set(&mut rope, "partial_rotary_factor", turned as f64 / head_dim.max(1) as f64);
    }
    let scaling = keys.key("rope.scaling.type");
    let old_factor = keys.float("rope.scale_linear")?.filter(|factor| *factor != 1.0);
    let long = keys.numbers_of("rope_factors_long.weight")?;
    let kind = match keys.gguf.str(&scaling)? {
        _ if keys.arch == "phi3" && long.is_some() => "longrope",
        _ if keys.has_tensor("rope_freqs.weight") => "freq_factors",
        Some("linear") => "linear",
        Some("yarn") => "yarn",
        None if old_factor.is_some() => "linear",
        None | Some("none") => "default",
        Some(other) => {
            return Err(Error::unsupported(format!("rope scaling {other:?}")).at(scaling));
        }
    };
    set(&mut rope, "rope_type", kind);
    if matches!(kind, "linear" | "yarn") {
        let factor = keys.float("rope.scaling.factor")?.or(old_factor);
        let factor = factor.ok_or_else(|| keys.gguf.missing(&keys.key("rope.scaling.factor")))?;
        set(&mut rope, "factor", factor);
    }
    match kind {
        "yarn" => yarn(keys, &mut rope)?,
        "longrope" => longrope(keys, &mut rope, long.unwrap_or_default())?,
        _ => {}
    }
    Ok(rope)
}

fn yarn(keys: &Keys<'_>, rope: &mut Config) -> Result<()> {
    let length = keys.uint("rope.scaling.original_context_length")?;
    set(rope, "original_max_position_embeddings", length);
    for (hf, key) in [
        ("beta_fast", "rope.scaling.yarn_beta_fast"),
        ("beta_slow", "rope.scaling.yarn_beta_slow"),
        ("attention_factor", "rope.scaling.yarn_attn_factor"),
    ] {
        set_some(rope, hf, keys.float(key)?);
    }
    Ok(())
}

fn longrope(keys: &Keys<'_>, rope: &mut Config, long: Vec<f64>) -> Result<()> {
    let name = "rope_factors_short.weight";
    let short = keys.numbers_of(name)?;
    let short = short.ok_or_else(|| Error::file("this tensor is missing").at(name))?;
    let list = |numbers: Vec<f64>| Value::from_iter(numbers.into_iter().map(shortest));
    set(rope, "long_factor", list(long));
    set(rope, "short_factor", list(short));
    let length = keys.need("rope.scaling.original_context_length")?;
    set(rope, "original_max_position_embeddings", length);
    set_some(rope, "attention_factor", keys.float("rope.scaling.attn_factor")?);
    Ok(())
}

/// What stretched positions do to the scores, where the files say it by a logarithm's factor `scale * mscale_all_dim`;
/// cosines and sines have no factor then.
pub(super) fn stretch_scores(keys: &Keys<'_>, config: &mut Config, scale: f64) -> Result<()> {
    let Some(log) = keys.float("rope.scaling.yarn_log_multiplier")?.filter(|log| *log != 0.0)
    else {
        return Ok(());
    };
    if let Some(rope) = config.get_mut("rope_parameters").and_then(Value::as_object_mut) {
        let all = shortest(f64::from((log / scale) as f32));
        set(rope, "mscale", all);
        set(rope, "mscale_all_dim", all);
    }
    Ok(())
}

/// Positions of layers that see everything, which are there already, and of those that see a window.
pub(super) fn two_kinds(config: &mut Config, full: Value, theta: f64) {
    let local = serde_json::json!({ "rope_theta": theta, "rope_type": "default" });
    let both = serde_json::json!({ "full_attention": full, "sliding_attention": local });
    set(config, "rope_parameters", both);
}
