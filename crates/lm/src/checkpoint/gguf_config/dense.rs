//! Families of attention and plain MLPs, or of experts that are configured as one of these.

use serde_json::{Value, json};

use super::keys::Keys;
use super::{Config, number, rope, set, set_some};
use crate::{Error, Result};

/// Every sixth layer of Gemma 3 sees everything, the others a window; every second one of Gemma 2.
const GEMMA3_PATTERN: u64 = 6;
const GEMMA2_PATTERN: u64 = 2;
const GEMMA2_WINDOW: u64 = 4096;
const OLMO3_PATTERN: u64 = 4;
const LOCAL_THETA: f64 = 10_000.0;
/// Gemmas of these depths (27B) scale queries by the model's width instead of the head's.
const WIDE_QUERY_LAYERS: [(&str, u64); 2] = [("gemma2", 46), ("gemma3", 62)];

/// An architecture whose name is that of its family.
pub(super) fn plain(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", keys.arch);
    Ok(())
}

/// Llama and the models that GGUF files under its name (Mistral, Mixtral, SmolLM2).
pub(super) fn llama(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "rope_interleaved", true);
    if let Some(experts) = keys.uint("expert_count")?.filter(|n| *n > 0) {
        set(config, "model_type", "mixtral");
        set(config, "num_local_experts", experts);
        set(config, "num_experts_per_tok", keys.need("expert_used_count")?);
        set_some(config, "intermediate_size", keys.uniform("expert_feed_forward_length")?);
        return Ok(());
    }
    set(config, "model_type", "llama");
    set(config, "mlp_bias", keys.has_tensor("blk.0.ffn_up.bias"));
    Ok(())
}

/// Mistral Small 3 and Ministral 3, whose positions are stretched.
pub(super) fn mistral3(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "rope_interleaved", true);
    let yarn = config["rope_parameters"]["rope_type"] == "yarn";
    set(config, "model_type", if yarn { "ministral3" } else { "mistral" });
    let beta = keys.float("attention.temperature_scale")?;
    if !yarn {
        return match beta {
            None | Some(0.0) => Ok(()),
            Some(beta) => {
                let what = format!("queries that grow by {beta} without yarn");
                Err(Error::unsupported(what).at(keys.key("attention.temperature_scale")))
            }
        };
    }
    rope::stretch_scores(keys, config, 1.0)?;
    if let Some(rope) = config.get_mut("rope_parameters").and_then(Value::as_object_mut) {
        // The format has no word for it.
        if rope.contains_key("mscale") {
            set(rope, "mscale", 1.0);
        }
        set_some(rope, "llama_4_scaling_beta", beta);
    }
    Ok(())
}

/// Every fourth layer has no positions; the file does not say so.
pub(super) fn smollm3(_: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "smollm3");
    set(config, "rope_interleaved", true);
    set(config, "no_rope_layer_interval", 4);
    Ok(())
}

pub(super) fn phi3(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "phi3");
    let window = keys.uint("attention.sliding_window")?.filter(|window| *window > 0);
    set_some(config, "sliding_window", window);
    Ok(())
}

/// With sections of positions, rows of q and k are permuted to halves; without, pairs are neighbours.
pub(super) fn glm4(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "glm4");
    set(config, "rope_interleaved", !keys.has_key("rope.dimension_sections"));
    Ok(())
}

/// Olmo 2, and 3 if there is a window.
pub(super) fn olmo2(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let Some(window) = keys.uint("attention.sliding_window")?.filter(|window| *window > 0) else {
        set(config, "model_type", "olmo2");
        return Ok(());
    };
    set(config, "model_type", "olmo3");
    windows(keys, config, window, OLMO3_PATTERN)?;
    let full = config["rope_parameters"].take();
    let theta = full["rope_theta"].as_f64().unwrap_or(LOCAL_THETA);
    rope::two_kinds(config, full, keys.float("rope.freq_base_swa")?.unwrap_or(theta));
    Ok(())
}

pub(super) fn seed_oss(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "seed_oss");
    set(config, "attention_out_bias", keys.has_tensor("blk.0.attn_output.bias"));
    Ok(())
}

/// Granite 3, dense or with experts: factors have names of their own.
pub(super) fn granite(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "granite");
    set(config, "rope_interleaved", true);
    granite_factors(keys, config)?;
    if let Some(experts) = keys.uint("expert_count")?.filter(|n| *n > 0) {
        set(config, "model_type", "granitemoe");
        set(config, "num_local_experts", experts);
        set(config, "num_experts_per_tok", keys.need("expert_used_count")?);
        let shared = keys.uint("expert_shared_feed_forward_length")?.filter(|n| *n > 0);
        set_some(
            config,
            "shared_intermediate_size",
            shared.or(keys.rows_of("ffn_up_shexp.weight")),
        );
    }
    Ok(())
}

pub(super) fn granite_factors(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    for (hf, key) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        set_some(config, hf, keys.float(key)?.filter(|factor| *factor != 0.0));
    }
    // Without one, scores have the usual factor.
    if !config.contains_key("attention_multiplier") {
        let root = (number(config, "head_dim").max(1) as f64).sqrt();
        set(config, "attention_multiplier", 1.0 / root);
    }
    Ok(())
}

/// `layer_types`: each layer that is not every `every`-th sees `window` tokens.
fn windows(keys: &Keys<'_>, config: &mut Config, window: u64, every: u64) -> Result<()> {
    set(config, "sliding_window", window);
    let layers = number(config, "num_hidden_layers");
    let slides = keys.pattern("attention.sliding_window_pattern", layers, every)?;
    set_layer_types(config, &slides);
    Ok(())
}

fn set_layer_types(config: &mut Config, slides: &[bool]) {
    let kind = |slides: &bool| if *slides { "sliding_attention" } else { "full_attention" };
    set(config, "layer_types", slides.iter().map(kind).collect::<Vec<_>>());
}

/// What all Gemmas have.
fn gemma(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    config.remove("hidden_act");
    set(config, "hidden_activation", "gelu_pytorch_tanh");
    let cap = keys.float("final_logit_softcapping")?.filter(|cap| *cap != 0.0);
    set(config, "final_logit_softcapping", cap);
    Ok(())
}

/// The norms and the scale of Gemma 2 and 3.
fn early_gemma(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    gemma(keys, config)?;
    set(config, "norm_weight_shifted", true);
    let layers = number(config, "num_hidden_layers");
    let scalar = match WIDE_QUERY_LAYERS.contains(&(keys.arch, layers)) {
        true => number(config, "hidden_size") / number(config, "num_attention_heads").max(1),
        false => number(config, "head_dim"),
    };
    set(config, "query_pre_attn_scalar", scalar);
    let cap = keys.float("attn_logit_softcapping")?.filter(|cap| *cap != 0.0);
    set(config, "attn_logit_softcapping", cap);
    Ok(())
}

pub(super) fn gemma2(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "gemma2");
    early_gemma(keys, config)?;
    let window = keys.uint("attention.sliding_window")?.unwrap_or(GEMMA2_WINDOW);
    windows(keys, config, window, GEMMA2_PATTERN)
}

/// Gemma 3. Most files say nothing of the window's pattern and the local rope: they are constants.
pub(super) fn gemma3(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "gemma3_text");
    early_gemma(keys, config)?;
    match keys.uint("attention.sliding_window")?.filter(|window| *window > 0) {
        Some(window) => windows(keys, config, window, GEMMA3_PATTERN)?,
        None => {
            let layers = number(config, "num_hidden_layers");
            set_layer_types(config, &(0..layers).map(|_| false).collect::<Vec<_>>());
        }
    }
    let full = config["rope_parameters"].take();
    rope::two_kinds(config, full, keys.float("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA));
    Ok(())
}

pub(super) fn gemma4(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "gemma4_text");
    gemma(keys, config)?;
    let (layers, window) =
        (number(config, "num_hidden_layers"), keys.size("attention.sliding_window")?);
    let pattern = "attention.sliding_window_pattern";
    let slides = keys.per_layer(pattern, layers)?;
    let slides = slides.ok_or_else(|| keys.gguf.missing(&keys.key(pattern)))?;
    let slides: Vec<bool> = slides.into_iter().map(|flag| flag != 0).collect();
    set(config, "sliding_window", window);
    set_layer_types(config, &slides);
    gemma4_heads(keys, config, &slides)?;
    gemma4_widths(keys, config, layers)?;

    let theta = keys.float("rope.freq_base")?.unwrap_or(1e6);
    let local = keys.float("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA);
    let dim = number(config, "global_head_dim").max(1);
    let full = json!({
        "rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": turned_part(keys, dim)?
    });
    rope::two_kinds(config, full, local);
    if let Some(experts) = keys.uint("expert_count")?.filter(|n| *n > 0) {
        set(config, "enable_moe_block", true);
        set(config, "num_experts", experts);
        set(config, "top_k_experts", keys.need("expert_used_count")?);
        set(config, "moe_intermediate_size", keys.need("expert_feed_forward_length")?);
    }
    Ok(())
}

/// Layers that see everything have heads of another size, and may have fewer for keys.
fn gemma4_heads(keys: &Keys<'_>, config: &mut Config, slides: &[bool]) -> Result<()> {
    set(config, "global_head_dim", keys.size("attention.key_length")?);
    set(config, "head_dim", keys.size("attention.key_length_swa")?);
    let layers = number(config, "num_hidden_layers");
    let Some(heads) = keys.per_layer("attention.head_count_kv", layers)? else {
        return gemma4_values(keys, config, slides);
    };
    let of = |local: bool| {
        let mut of_kind = slides.iter().zip(&heads).filter(|(s, _)| **s == local).map(|(_, n)| *n);
        let first = of_kind.next();
        match first.is_some_and(|first| of_kind.any(|n| n != first)) {
            true => {
                let what = "key heads of layers of one kind differ";
                Err(Error::unsupported(what).at(keys.key("attention.head_count_kv")))
            }
            false => Ok(first),
        }
    };
    let (local, global) = (of(true)?, of(false)?);
    set_some(config, "num_key_value_heads", local.or(global));
    set_some(config, "num_global_key_value_heads", global);
    gemma4_values(keys, config, slides)
}

/// Where layers that see everything have no projection of values, keys are values, too.
fn gemma4_values(keys: &Keys<'_>, config: &mut Config, slides: &[bool]) -> Result<()> {
    let full = slides.iter().zip(0..).filter(|(slides, _)| !**slides).map(|(_, layer)| layer);
    let keyed = |layer: u64| keys.layer_has(layer, "attn_k.weight");
    let same = full.clone().any(|i| keyed(i) && !keys.layer_has(i, "attn_v.weight"));
    set(config, "attention_k_eq_v", same);
    match config.get("num_global_key_value_heads").cloned() {
        Some(global) if !same && global != config["num_key_value_heads"] => {
            let what = "fewer key heads in layers that see everything, with values of their own";
            Err(Error::unsupported(what).at(keys.key("attention.head_count_kv")))
        }
        _ => Ok(()),
    }
}

/// Layers that read others' keys, and inner widths.
fn gemma4_widths(keys: &Keys<'_>, config: &mut Config, layers: u64) -> Result<()> {
    let shared = keys.uint("attention.shared_kv_layers")?.unwrap_or(0);
    set(config, "num_kv_shared_layers", shared);
    let own = keys.uint("embedding_length_per_layer_input")?.unwrap_or(0);
    set(config, "hidden_size_per_layer_input", own);
    let Some(widths) = keys.per_layer("feed_forward_length", layers)? else { return Ok(()) };
    let width = number(config, "intermediate_size");
    let wide = widths.iter().any(|w| *w != width);
    let first_shared = layers.saturating_sub(shared);
    let fits =
        |(i, w): (u64, &u64)| *w == if wide && i >= first_shared { 2 * width } else { width };
    if !(0..).zip(&widths).all(fits) {
        let what = "inner widths that are no rule of this family";
        return Err(Error::unsupported(what).at(keys.key("feed_forward_length")));
    }
    set(config, "use_double_wide_mlp", wide);
    Ok(())
}

/// The part of a head that turns: the other pairs have divisors without end.
fn turned_part(keys: &Keys<'_>, dim: u64) -> Result<f64> {
    let name = "rope_freqs.weight";
    let Some(divisors) = keys.numbers_of(name)? else { return Ok(1.0) };
    let turned = divisors.iter().take_while(|d| **d == 1.0).count();
    let still = divisors[turned..].iter().all(|d| *d >= 1e20);
    if !still || divisors.len() as u64 * 2 != dim {
        return Err(Error::unsupported("divisors of frequencies other than 1 and none").at(name));
    }
    Ok(2.0 * turned as f64 / dim as f64)
}
