//! Families with experts.

use super::keys::Keys;
use super::{Config, number, rope, set, set_some};
use crate::{Error, Result};
use serde_json::Value;

/// How the scores of experts are made, as GGUF numbers it.
const SOFTMAX: u64 = 1;
pub(super) const SIGMOID: u64 = 2;

/// Counts and widths of experts under the names of qwen.
fn counts(keys: &Keys<'_>, config: &mut Config, count: &str) -> Result<()> {
    set(config, count, keys.need("expert_count")?);
    set(config, "num_experts_per_tok", keys.need("expert_used_count")?);
    Ok(())
}

fn width(keys: &Keys<'_>, config: &Config) -> Result<u64> {
    let own = keys.uniform("expert_feed_forward_length")?.filter(|n| *n > 0);
    match own {
        Some(own) => Ok(own),
        // Early files give the width of all experts of a token.
        None => Ok(number(config, "intermediate_size") / keys.size("expert_used_count")?),
    }
}

/// The width of the expert that serves every token.
fn shared_width(keys: &Keys<'_>) -> Result<Option<u64>> {
    let said = keys.uint("expert_shared_feed_forward_length")?.filter(|n| *n > 0);
    Ok(said.or(keys.rows_of("ffn_up_shexp.weight")))
}

pub(super) fn qwen_experts(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    counts(keys, config, "num_experts")?;
    set(config, "moe_intermediate_size", width(keys, config)?);
    set_some(config, "shared_expert_intermediate_size", shared_width(keys)?);
    // The runtime that defined the format normalises for all but the first of these, whatever the file says.
    set(config, "norm_topk_prob", keys.arch != "qwen2moe");
    set(config, "decoder_sparse_step", 1);
    set(config, "mlp_only_layers", Vec::<u64>::new());
    Ok(())
}

pub(super) fn qwen(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", if keys.arch == "qwen2moe" { "qwen2_moe" } else { "qwen3_moe" });
    qwen_experts(keys, config)
}

/// Checks that experts are scored by sigmoids. Where a file does not say, the runtime that defined the format takes
/// `unsaid`.
pub(super) fn only_sigmoid(keys: &Keys<'_>, unsaid: u64) -> Result<()> {
    let key = "expert_gating_func";
    let said = keys.uint(key)?.filter(|n| *n > 0);
    match said.unwrap_or(unsaid) {
        SIGMOID => Ok(()),
        other => {
            let what = match other {
                SOFTMAX => "experts scored by softmax".to_owned(),
                other => format!("experts scored by rule {other}"),
            };
            let error = Error::unsupported(format!("{what} are not known of {}", keys.arch));
            Err(error.at(keys.key(key)).hint("DeepSeek V2 and its kin are not run here"))
        }
    }
}

/// What deepseek, glm and kimi have alike.
pub(super) fn grouped(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    counts(keys, config, "n_routed_experts")?;
    set(config, "moe_intermediate_size", width(keys, config)?);
    set_some(config, "n_shared_experts", keys.uint("expert_shared_count")?);
    let dense = keys.uint("leading_dense_block_count")?.unwrap_or(0);
    set(config, "first_k_dense_replace", dense);
    let scale = keys.float("expert_weights_scale")?.filter(|scale| *scale != 0.0);
    set(config, "routed_scaling_factor", scale.unwrap_or(1.0));
    set(config, "norm_topk_prob", keys.bool("expert_weights_norm")?.unwrap_or(false));
    set_some(config, "n_group", keys.uint("expert_group_count")?.filter(|n| *n > 0));
    set_some(config, "topk_group", keys.uint("expert_group_used_count")?.filter(|n| *n > 0));
    Ok(())
}

pub(super) fn glm4_moe(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    only_sigmoid(keys, SIGMOID)?;
    set(config, "model_type", "glm4_moe");
    grouped(keys, config)?;
    set(config, "use_qk_norm", keys.has_tensor("blk.0.attn_q_norm.weight"));
    Ok(())
}

pub(super) fn minimax(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    only_sigmoid(keys, SIGMOID)?;
    set(config, "model_type", "minimax_m2");
    counts(keys, config, "num_local_experts")?;
    set(config, "intermediate_size", width(keys, config)?);
    set(config, "use_qk_norm", keys.has_tensor("blk.0.attn_q_norm.weight"));
    Ok(())
}

pub(super) fn gpt_oss(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "gpt_oss");
    counts(keys, config, "num_local_experts")?;
    set(config, "intermediate_size", width(keys, config)?);
    set(config, "sliding_window", keys.size("attention.sliding_window")?);
    if keys.rows_of("ffn_gate_up_exps.weight").is_some() {
        let what = "gate and up of experts in one tensor are not known of gpt-oss";
        return Err(Error::unsupported(what).at("ffn_gate_up_exps.weight"));
    }
    if let Some(rope) = config.get_mut("rope_parameters").and_then(Value::as_object_mut) {
        set(rope, "truncate", false);
    }
    Ok(())
}

/// Sizes of latent attention. Early files give the sizes of unfolded heads instead.
pub(super) fn latent(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set_some(config, "q_lora_rank", keys.uint("attention.q_lora_rank")?.filter(|n| *n > 0));
    set(config, "kv_lora_rank", keys.size("attention.kv_lora_rank")?);
    let turned = keys.need("rope.dimension_count")?;
    let unfolded = |mla: &str, plain: &str| match keys.uint(mla)? {
        Some(n) => Ok(n),
        None => keys.need(plain),
    };
    let (key, plain) = ("attention.key_length_mla", "attention.key_length");
    let head = unfolded(key, plain)?;
    let nope = head.checked_sub(turned).filter(|n| *n > 0).ok_or_else(|| {
        Error::file(format!("{turned} turned columns of {head}")).at(keys.key(key))
    })?;
    set(config, "qk_nope_head_dim", nope);
    set(config, "qk_rope_head_dim", turned);
    set(config, "v_head_dim", unfolded("attention.value_length_mla", "attention.value_length")?);
    Ok(())
}

/// DeepSeek V3 and V3.2 and their kin.
pub(super) fn deepseek(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    only_sigmoid(keys, SOFTMAX)?;
    set(config, "model_type", "deepseek_v3");
    grouped(keys, config)?;
    latent(keys, config)?;
    rope::stretch_scores(keys, config, 0.1)?;
    if keys.arch == "deepseek32" {
        set(config, "model_type", "deepseek_v32");
        set(config, "index_n_heads", keys.size("attention.indexer.head_count")?);
        set(config, "index_head_dim", keys.size("attention.indexer.key_length")?);
        set(config, "index_topk", keys.size("attention.indexer.top_k")?);
    }
    Ok(())
}

pub(super) fn kimi(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    only_sigmoid(keys, SIGMOID)?;
    grouped(keys, config)?;
    // The file does not say it.
    set(config, "norm_topk_prob", true);
    latent(keys, config)
}
