//! `tiny:FAMILY`: a small model of any family, with random weights from a seed, for tests and soaks.
//!
//! Owns the shapes. The weights come from the same loading code as a checkpoint's.

mod text;

use serde_json::{Value, json};

use crate::config::{Config, Family};
use crate::error::{Error, Result};
use crate::text::{ChatTemplate, Tokenizer};

/// Shape flags; `None` is the family's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct TinyShape {
    /// Layers.
    pub layers: Option<usize>,
    /// Every n-th layer of a hybrid attends; every n-th of gemma3 sees everything.
    pub interval: Option<usize>,
    /// Experts of a mixture.
    pub experts: Option<usize>,
    /// Width of the residual stream, a multiple of 16.
    pub hidden: Option<usize>,
    /// No recurrent layers.
    pub attention_only: bool,
    /// It reads and writes text: a vocabulary of bytes and of the marks of ChatML.
    pub text: bool,
}

/// The tokenizer, the template and the end of a text of tiny models that read text.
///
/// # Errors
/// There is none: what is built in is sound.
pub fn text() -> Result<(Tokenizer, ChatTemplate, u32)> {
    Ok((text::tokenizer()?, text::template()?, text::END))
}

/// The config of a tiny model, in the words of a `config.json`.
///
/// # Errors
/// The family is not known or the shape is impossible.
pub fn config(family: &str, shape: TinyShape) -> Result<Value> {
    Family::of(family)?;
    let hidden = shape.hidden.unwrap_or(64);
    if hidden == 0 || !hidden.is_multiple_of(16) || hidden > 1 << 14 {
        return Err(Error::usage(format!("{hidden} is no positive multiple of 16")).at("--hidden"));
    }
    let layers = shape.layers.unwrap_or(8);
    let experts = shape.experts.unwrap_or(8);
    let interval = shape.interval.unwrap_or(if family == "gemma3" { 6 } else { 4 });
    if layers == 0 || experts == 0 || interval == 0 || layers > 4096 || experts > 4096 {
        let what = format!("{layers} layers, {experts} experts, interval {interval} can't be");
        return Err(Error::usage(what));
    }
    let mut config = common(family, [hidden, layers, experts, interval]);
    recurrent(&mut config, family, interval, layers);
    compressed(&mut config, family, interval, layers);
    if family == "ministral3" {
        config["rope_parameters"] = json!({"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1});
    }
    if shape.text {
        config["vocab_size"] = text::VOCAB.into();
    }
    if shape.attention_only {
        config["layer_types"] = vec!["full_attention"; layers].into();
    }
    Ok(config)
}

/// What most families read.
fn common(family: &str, [hidden, layers, experts, interval]: [usize; 4]) -> Value {
    json!({
        "model_type": family,
        "vocab_size": 160,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1 << 24,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true,
        "sliding_window": 64,
        "sliding_window_pattern": interval,
        "rope_parameters": {"rope_type": "default"},
        "use_qk_norm": true,
        "first_k_dense_replace": 1,
        "full_attn_idxs": (1..=layers / interval).map(|i| i * interval - 1).collect::<Vec<_>>(),
        "full_attention_interval": interval,
        "num_experts": experts,
        "num_experts_per_tok": experts.min(2),
        "moe_intermediate_size": hidden / 2,
        "shared_expert_intermediate_size": hidden / 2,
        "norm_topk_prob": true,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "index_n_heads": 4,
        "index_head_dim": 16,
        "index_topk": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
    })
}

/// Adds the sizes of selective scans and of delta attention, in the words of their families, and the list of layers
/// where a family has no interval.
fn recurrent(config: &mut Value, family: &str, interval: usize, layers: usize) {
    for (names, size) in [
        (&["mamba_num_heads", "mamba_n_heads", "num_heads", "linear_num_heads"][..], 4),
        (&["mamba_head_dim", "mamba_d_head", "linear_head_dim"], 16),
        (&["ssm_state_size", "mamba_d_state", "state_size"], 16),
        (&["n_groups", "mamba_n_groups"], 2),
        (&["conv_kernel", "mamba_d_conv"], 4),
        (&["n_routed_experts", "num_local_experts"], config["num_experts"].as_u64().unwrap_or(1)),
        (&["moe_shared_expert_intermediate_size"], 32),
    ] {
        names.iter().for_each(|name| config[*name] = size.into());
    }
    if family.starts_with("granite") {
        config["shared_intermediate_size"] = 32.into();
    }
    let kinds: &[&str] = match family {
        "nemotron_h" => &["mamba", "moe", "mlp"],
        "granitemoehybrid" => &["mamba"],
        "kimi_linear" | "glm5_next" => &["linear_attention"],
        _ => return,
    };
    let kind = |i: usize| match (i + 1).is_multiple_of(interval) {
        true => "full_attention",
        false => kinds[(i - i / interval) % kinds.len()],
    };
    config["layer_types"] = (0..layers).map(kind).collect();
}

/// Adds the sizes of residual streams, of entries and of pools, and what layers of single families share.
fn compressed(config: &mut Value, family: &str, interval: usize, layers: usize) {
    let rates = json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 16});
    let own = match family {
        "deepseek_v4" => {
            let kinds = ["compressed_sparse_attention", "heavily_compressed_attention"];
            let kind = |i: usize| *kinds.get(i % 3).unwrap_or(&"sliding_attention");
            let kinds: Vec<_> = (0..layers).map(kind).collect();
            json!({"o_groups": 2, "o_lora_rank": 16, "compress_rates": rates, "layer_types": kinds,
                "hc_mult": 4})
        }
        "glm5_next" => json!({"index_kpool": 4, "qk_rope_head_dim": 0, "hc_mult": 4}),
        "gemma4" => {
            let shared = if interval > 1 && layers >= 2 * interval { 2 } else { 0 };
            json!({"global_head_dim": 32, "attention_k_eq_v": true, "num_kv_shared_layers": shared,
                "hidden_size_per_layer_input": 16, "enable_moe_block": true,
                "top_k_experts": config["num_experts_per_tok"], "rope_parameters": null})
        }
        _ => return,
    };
    if let (Some(config), Value::Object(own)) = (config.as_object_mut(), own) {
        config.extend(own);
    }
}

/// The layers of a model that carry a recurrent state.
pub fn linear_layers(config: &Config) -> usize {
    config.mixers.iter().filter(|m| **m == crate::config::Mixer::Linear).count()
}
