//! Fields that change the maths, in the words of all families.
//!
//! Owns the list. A field of it that a config sets to something that changes the maths, and that nobody has read, is an
//! error: the family at hand does not compute it.

use serde_json::Value;

use super::fields::Fields;
use crate::error::{Error, Result};

/// Numbers that change nothing, besides none at all.
const NONE: &[f64] = &[];
const ZERO: &[f64] = &[0.0];
const ONE: &[f64] = &[1.0];

/// Names, and the numbers at which they change nothing. `false`, `null` and what is empty never change anything.
const ACTING: &[(&[f64], &[&str])] = &[
    (
        ZERO,
        &[
            "activation_sparsity_pattern",
            "alibi",
            "attention_chunk_size",
            "attn_logit_softcapping",
            "clip_qkv",
            "final_logit_softcapping",
            "first_k_dense_replace",
            "hidden_size_per_layer_input",
            "index_topk",
            "kv_lora_rank",
            "laurel_rank",
            "logit_softcap",
            "logits_soft_cap",
            "n_shared_experts",
            "num_experts",
            "num_kv_shared_layers",
            "num_local_experts",
            "num_shared_experts",
            "n_routed_experts",
            "q_lora_rank",
            "qk_rope_head_dim",
            "residual_scale",
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "sliding_window",
            "sliding_window_pattern",
            "swiglu_limit",
        ],
    ),
    (
        ONE,
        &[
            "altup_num_inputs",
            "attention_in_multiplier",
            "attention_out_multiplier",
            "embedding_multiplier",
            "hc_mult",
            "key_multiplier",
            "lm_head_multiplier",
            "logit_scale",
            "logits_scaling",
            "mlp_multipliers",
            "moe_layer_freq",
            "n_group",
            "num_expert_group",
            "partial_rotary_factor",
            "residual_multiplier",
            "rotary_pct",
            "routed_scaling_factor",
            "scale_emb",
            "ssm_in_multiplier",
            "ssm_multipliers",
            "ssm_out_multiplier",
            "topk_group",
        ],
    ),
    (
        NONE,
        &[
            "add_bias_linear",
            "add_qkv_bias",
            "attention_bias",
            "attention_k_eq_v",
            "attention_multiplier",
            "attention_out_bias",
            "attention_output_bias",
            "attn_output_gate",
            "attn_temperature_tuning",
            "attn_type_list",
            "compress_rates",
            "compress_ratios",
            "dim_model_base",
            "embedding_layernorm",
            "enable_moe_block",
            "hidden_act",
            "hidden_activation",
            "hybrid_override_pattern",
            "layer_types",
            "layers_block_type",
            "linear_attn_config",
            "lm_head_bias",
            "mlp_bias",
            "mlp_hidden_act",
            "mlp_layer_types",
            "mlp_only_layers",
            "no_rope_layer_interval",
            "no_rope_layers",
            "norm_topk_prob",
            "parallel_attn",
            "parallel_residual",
            "position_embedding_type",
            "qk_layernorm",
            "qk_norm",
            "qk_norm_type",
            "qkv_bias",
            "query_pre_attn_scalar",
            "rope_interleave",
            "rope_local_base_freq",
            "rope_parameters",
            "rope_scaling",
            "rotary_dim",
            "scale_depth",
            "scoring_func",
            "ssm_state_size",
            "use_bias",
            "use_double_wide_mlp",
            "use_mup",
            "use_parallel_residual",
            "use_qk_norm",
            "use_qkv_bias",
        ],
    ),
];

/// Checks that each field which changes the maths was read.
///
/// # Errors
/// One was not; the message names it.
pub(super) fn all_is_read(f: &Fields<'_>, family: &str) -> Result<()> {
    let names = ACTING.iter().flat_map(|(neutral, names)| names.iter().map(|n| (*n, *neutral)));
    for (name, neutral) in names.filter(|(name, _)| !f.was_read(name)) {
        let Some(value) = f.get(name) else { continue };
        if acts(value, neutral) {
            let mut shown = value.to_string();
            shown.truncate(shown.floor_char_boundary(60));
            let what = format!("{shown} would change the maths, and {family} does not compute it");
            return Err(Error::unsupported(what).at(name));
        }
    }
    Ok(())
}

/// Whether `value` changes the maths, if these numbers don't.
fn acts(value: &Value, neutral: &[f64]) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::Number(n) => n.as_f64().is_none_or(|n| !neutral.contains(&n)),
        // How positions are given where nothing else is said.
        Value::String(s) => !matches!(s.as_str(), "" | "rope"),
        Value::Array(list) => list.iter().any(|v| acts(v, neutral)),
        Value::Object(map) => !map.is_empty(),
    }
}
