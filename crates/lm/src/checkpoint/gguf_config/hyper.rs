//! Families with several residual streams.

use serde_json::Value;

use super::experts::{self, SIGMOID};
use super::keys::Keys;
use super::{Config, number, set};
use crate::{Error, Result};

/// Experts scored by the root of a softplus, as GGUF numbers it.
const SQRT_SOFTPLUS: u64 = 4;

/// Streams, and where the gates of experts are clipped.
fn streams(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "hc_mult", keys.size("hyper_connection.count")?);
    set(config, "hc_sinkhorn_iters", keys.size("hyper_connection.sinkhorn_iterations")?);
    let key = "hyper_connection.epsilon";
    let epsilon = keys.float(key)?.ok_or_else(|| keys.gguf.missing(&keys.key(key)))?;
    set(config, "hc_eps", epsilon);
    let key = "swiglu_clamp_exp";
    let limit = keys.uniform_float(key)?.ok_or_else(|| keys.gguf.missing(&keys.key(key)))?;
    let shared = keys.uniform_float("swiglu_clamp_shexp")?.unwrap_or(limit);
    if limit != shared {
        let what = format!("limits of {limit} and {shared} for experts that are shared");
        return Err(Error::unsupported(what).at(keys.key("swiglu_clamp_shexp")));
    }
    set(config, "swiglu_limit", limit);
    Ok(())
}

fn indexer(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "index_n_heads", keys.size("attention.indexer.head_count")?);
    set(config, "index_head_dim", keys.size("attention.indexer.key_length")?);
    set(config, "index_topk", keys.size("attention.indexer.top_k")?);
    Ok(())
}

pub(super) fn deepseek_v4(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let key = "expert_gating_func";
    if let Some(other) = keys.uint(key)?.filter(|n| *n != SQRT_SOFTPLUS) {
        let what = format!("experts scored by rule {other} are not known of deepseek4");
        return Err(Error::unsupported(what).at(keys.key(key)));
    }
    set(config, "model_type", "deepseek_v4");
    experts::grouped(keys, config)?;
    set(config, "scoring_func", "sqrtsoftplus");
    streams(keys, config)?;
    indexer(keys, config)?;
    set(config, "q_lora_rank", keys.size("attention.q_lora_rank")?);
    set(config, "qk_rope_head_dim", keys.size("rope.dimension_count")?);
    set(config, "sliding_window", keys.size("attention.sliding_window")?);
    set(config, "o_groups", keys.size("attention.output_group_count")?);
    set(config, "o_lora_rank", keys.size("attention.output_lora_rank")?);
    set(config, "num_hash_layers", keys.uint("hash_layer_count")?.unwrap_or(0));
    // Only layers with entries have stretched positions, and a base of their own.
    set(config, "rope_theta", config["rope_parameters"]["rope_theta"].clone());
    let key = "attention.compress_rope_freq_base";
    let theta = keys.float(key)?.ok_or_else(|| keys.gguf.missing(&keys.key(key)))?;
    set(config, "compress_rope_theta", theta);
    entries(keys, config)
}

/// What each layer sees beside its window, and how many tokens an entry is made of.
fn entries(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let key = "attention.compress_ratios";
    let rates = keys.per_layer(key, number(config, "num_hidden_layers"))?;
    let rates = rates.ok_or_else(|| keys.gguf.missing(&keys.key(key)))?;
    let kinds = ["compressed_sparse_attention", "heavily_compressed_attention"];
    let mut of_kind = [None; 2];
    let mut layers = Vec::new();
    for (rate, layer) in rates.into_iter().zip(0..) {
        let kind = match keys.layer_has(layer, "indexer.proj.weight") {
            _ if rate == 0 => {
                layers.push("sliding_attention");
                continue;
            }
            true => 0,
            false => 1,
        };
        if *of_kind[kind].get_or_insert(rate) != rate {
            let what = "entries of layers of one kind differ";
            return Err(Error::unsupported(what).at(keys.key(key)));
        }
        layers.push(kinds[kind]);
    }
    set(config, "layer_types", layers);
    let named = kinds.into_iter().zip(of_kind);
    let named: Config = named.filter_map(|(k, rate)| Some((k.into(), rate?.into()))).collect();
    set(config, "compress_rates", named);
    Ok(())
}

pub(super) fn glm5_next(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    experts::only_sigmoid(keys, SIGMOID)?;
    set(config, "model_type", "glm5_next_text");
    experts::grouped(keys, config)?;
    experts::latent(keys, config)?;
    streams(keys, config)?;
    indexer(keys, config)?;
    set(config, "index_kpool", keys.size("attention.indexer.kpool")?);
    let tail = keys.bool("attention.indexer.kpool_select_tail")?.unwrap_or(true);
    set(config, "index_kpool_always_select_tail", tail);
    // No layer has positions.
    config.remove("rope_parameters");
    set(config, "linear_num_heads", number(config, "num_attention_heads"));
    set(config, "linear_head_dim", keys.size("kda.head_dim")?);
    set(config, "linear_conv_kernel_dim", keys.size("ssm.conv_kernel")?);
    let lowest = keys.float("kda.gate_lower_bound")?.filter(|low| *low != 0.0);
    set(config, "linear_lower_bound", lowest);
    let layers = number(config, "num_hidden_layers");
    let words = |yes: &'static str, no: &'static str, name: &str| -> Value {
        let word = |layer| if keys.layer_has(layer, name) { yes } else { no };
        (0..layers).map(word).collect::<Vec<_>>().into()
    };
    set(config, "layer_types", words("linear_attention", "full_attention", "ssm_a"));
    set(config, "mlp_layer_types", words("sparse", "dense", "ffn_gate_inp.weight"));
    set(
        config,
        "indexer_types",
        match keys.per_layer("attention.indexer.types", layers)? {
            Some(own) => {
                let word = |own: u64| if own != 0 { "full" } else { "shared" };
                own.into_iter().map(word).collect::<Vec<_>>()
            }
            None => (0..layers).map(|_| "full").collect(),
        },
    );
    Ok(())
}
