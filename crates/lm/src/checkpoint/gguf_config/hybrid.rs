//! Families of which some layers remember instead of looking back: delta rules, selective scans, convolutions.

use serde_json::Value;

use super::keys::Keys;
use super::{Config, dense, experts, number, set, set_some};
use crate::{Error, Result};

/// `layer_types`: what each layer is called.
fn layer_types(config: &mut Config, name: impl Fn(u64) -> &'static str) {
    let layers = number(config, "num_hidden_layers");
    set(config, "layer_types", (0..layers).map(name).collect::<Vec<_>>());
}

/// Qwen3-Next and Qwen3.5, dense or with experts.
pub(super) fn qwen(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "norm_weight_shifted", true);
    let (heads, inner) = (keys.size("ssm.time_step_rank")?, keys.size("ssm.inner_size")?);
    set(config, "linear_num_key_heads", keys.size("ssm.group_count")?);
    set(config, "linear_num_value_heads", heads);
    set(config, "linear_key_head_dim", keys.size("ssm.state_size")?);
    set(config, "linear_value_head_dim", inner / heads);
    set(config, "linear_conv_kernel_dim", keys.size("ssm.conv_kernel")?);
    layer_types(config, |layer| match keys.layer_has(layer, "ssm_conv1d.weight") {
        true => "linear_attention",
        false => "full_attention",
    });
    // Gates are in the projection of queries.
    set(config, "attn_output_gate", true);
    let kind = match keys.arch {
        "qwen3next" => "qwen3_next",
        "qwen35" => "qwen3_5_text",
        _ => "qwen3_5_moe_text",
    };
    set(config, "model_type", kind);
    set(config, "linear_value_heads_tiled", keys.arch != "qwen3next");
    if keys.arch != "qwen35" {
        experts::qwen_experts(keys, config)?;
    }
    Ok(())
}

pub(super) fn kimi_linear(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "kimi_linear");
    experts::kimi(keys, config)?;
    set(config, "linear_num_heads", number(config, "num_attention_heads"));
    set(config, "linear_head_dim", keys.size("kda.head_dim")?);
    set(config, "linear_conv_kernel_dim", keys.size("ssm.conv_kernel")?);
    if keys.float("kda.gate_lower_bound")?.is_some() || keys.bool("kda.safe_gate")? == Some(true) {
        let what = "decays with a bound are not known of kimi-linear";
        return Err(Error::unsupported(what).at(keys.key("kda.gate_lower_bound")));
    }
    layer_types(config, |layer| match keys.layer_has(layer, "ssm_a") {
        true => "linear_attention",
        false => "full_attention",
    });
    // It has no positions, so stretched ones mean nothing.
    config.remove("rope_parameters");
    Ok(())
}

/// Sizes of a selective scan: heads, numbers of a head, of its state, groups, taps.
fn scan(keys: &Keys<'_>) -> Result<[u64; 5]> {
    let (heads, inner) = (keys.size("ssm.time_step_rank")?, keys.size("ssm.inner_size")?);
    if !inner.is_multiple_of(heads) {
        let what = format!("{inner} columns in {heads} heads");
        return Err(Error::file(what).at(keys.key("ssm.inner_size")));
    }
    let groups = keys.uint("ssm.group_count")?.filter(|n| *n > 0).unwrap_or(1);
    let (state, taps) = (keys.size("ssm.state_size")?, keys.size("ssm.conv_kernel")?);
    Ok([heads, inner / heads, state, groups, taps])
}

/// Whether any layer has a tensor.
fn any(keys: &Keys<'_>, config: &Config, name: &str) -> bool {
    (0..number(config, "num_hidden_layers")).any(|layer| keys.layer_has(layer, name))
}

pub(super) fn mamba2(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "mamba2");
    let [heads, dim, state, groups, taps] = scan(keys)?;
    for (name, n) in [
        ("num_heads", heads),
        ("head_dim", dim),
        ("state_size", state),
        ("n_groups", groups),
        ("conv_kernel", taps),
    ] {
        set(config, name, n);
    }
    set(config, "layer_norm_epsilon", config["rms_norm_eps"].clone());
    set(config, "use_conv_bias", any(keys, config, "ssm_conv1d.bias"));
    set(config, "use_bias", any(keys, config, "ssm_in.bias"));
    Ok(())
}

pub(super) fn nemotron_h(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "nemotron_h");
    config.remove("hidden_act");
    // No layer has positions.
    config.remove("rope_parameters");
    let [heads, dim, state, groups, taps] = scan(keys)?;
    for (name, n) in [
        ("mamba_num_heads", heads),
        ("mamba_head_dim", dim),
        ("ssm_state_size", state),
        ("mamba_n_groups", groups),
        ("mamba_d_conv", taps),
    ] {
        set(config, name, n);
    }
    let epsilon = keys.float("attention.layer_norm_epsilon")?;
    let epsilon = epsilon.map_or_else(|| config["rms_norm_eps"].clone(), Value::from);
    set(config, "layer_norm_epsilon", epsilon);
    set(config, "mamba_conv_bias", any(keys, config, "ssm_conv1d.bias"));
    set(config, "use_bias", any(keys, config, "ssm_in.bias"));
    set(config, "mlp_bias", any(keys, config, "ffn_up.bias"));
    set(config, "attention_bias", any(keys, config, "attn_q.bias"));
    nemotron_layers(keys, config)?;
    if let Some(n) = keys.uint("expert_count")?.filter(|n| *n > 0) {
        set(config, "n_routed_experts", n);
        set(config, "num_experts_per_tok", keys.uniform_needed("expert_used_count")?);
        set(config, "moe_intermediate_size", keys.uniform_needed("expert_feed_forward_length")?);
        set_some(config, "n_shared_experts", keys.uint("expert_shared_count")?);
        let shared = keys.uint("expert_shared_feed_forward_length")?;
        set_some(config, "moe_shared_expert_intermediate_size", shared);
        set(config, "norm_topk_prob", keys.bool("expert_weights_norm")?.unwrap_or(false));
        let scale = keys.float("expert_weights_scale")?.filter(|scale| *scale != 0.0);
        set(config, "routed_scaling_factor", scale.unwrap_or(1.0));
        set_some(config, "n_group", keys.uint("expert_group_count")?.filter(|n| *n > 0));
        set_some(config, "topk_group", keys.uint("expert_group_used_count")?.filter(|n| *n > 0));
        set_some(config, "moe_latent_size", keys.uint("moe_latent_size")?.filter(|n| *n > 0));
    }
    Ok(())
}

fn nemotron_layers(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let kind = |layer: u64| {
        let kinds = [
            ("ssm_in.weight", "mamba"),
            ("attn_output.weight", "attention"),
            ("ffn_gate_inp.weight", "moe"),
            ("ffn_up.weight", "mlp"),
        ];
        let found = kinds.iter().find(|(name, _)| keys.layer_has(layer, name));
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            Error::unsupported(format!("layer {layer} is none of scan, attention, MLP, experts"))
        })
    };
    let layers = number(config, "num_hidden_layers");
    let kinds: Vec<&str> = (0..layers).map(kind).collect::<Result<_>>()?;
    set(config, "layers_block_type", kinds);
    Ok(())
}

/// Sizes under the names that Bamba's kin have.
fn bamba(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    let [heads, dim, state, groups, taps] = scan(keys)?;
    for (name, n) in [
        ("mamba_n_heads", heads),
        ("mamba_d_head", dim),
        ("mamba_d_state", state),
        ("mamba_n_groups", groups),
        ("mamba_d_conv", taps),
    ] {
        set(config, name, n);
    }
    set(config, "mamba_conv_bias", any(keys, config, "ssm_conv1d.bias"));
    set(config, "mamba_proj_bias", any(keys, config, "ssm_in.bias"));
    Ok(())
}

/// Granite 4: scans and attention, with or without experts and positions.
pub(super) fn granite(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "granitemoehybrid");
    set(config, "rope_interleaved", true);
    dense::granite_factors(keys, config)?;
    bamba(keys, config)?;
    let turned = keys.bool("rope.scaling.finetuned")?.unwrap_or(true);
    set(config, "position_embedding_type", if turned { "rope" } else { "nope" });
    layer_types(config, |layer| match keys.layer_has(layer, "ssm_in.weight") {
        true => "mamba",
        false => "attention",
    });
    set(config, "attention_bias", any(keys, config, "attn_q.bias"));
    let shared = keys.uint("expert_shared_feed_forward_length")?.filter(|n| *n > 0);
    let shared = shared.or(keys.rows_of("ffn_up_shexp.weight"));
    set_some(config, "shared_intermediate_size", shared.or(keys.rows_of("ffn_up.weight")));
    if let Some(n) = keys.uint("expert_count")?.filter(|n| *n > 0) {
        set(config, "num_local_experts", n);
        set(config, "num_experts_per_tok", keys.need("expert_used_count")?);
    }
    Ok(())
}

/// Falcon-H1. Its factors are in the weights; where its scans have norms, the gate is inside of them.
pub(super) fn falcon_h1(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "falcon_h1");
    bamba(keys, config)?;
    set(config, "projectors_bias", any(keys, config, "ssm_out.bias"));
    set(config, "mlp_bias", any(keys, config, "ffn_up.bias"));
    set(config, "mamba_rms_norm", any(keys, config, "ssm_norm.weight"));
    set(config, "mamba_norm_before_gate", false);
    Ok(())
}

pub(super) fn lfm2(keys: &Keys<'_>, config: &mut Config) -> Result<()> {
    set(config, "model_type", "lfm2");
    set(config, "norm_eps", config["rms_norm_eps"].clone());
    set(config, "block_auto_adjust_ff_dim", false);
    set(config, "conv_L_cache", keys.size("shortconv.l_cache")?);
    set(config, "conv_bias", any(keys, config, "shortconv.in_proj.bias"));
    layer_types(config, |layer| match keys.layer_has(layer, "shortconv.conv.weight") {
        true => "conv",
        false => "full_attention",
    });
    Ok(())
}
