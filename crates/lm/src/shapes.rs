//! `shape:NAME`: the shape of a real model, for weights that are made up and never on a disk.
//!
//! Owns the configs, in the words of each checkpoint's `config.json`; of a model that also sees there is the text part.

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The names of all shapes.
pub const NAMES: [&str; 4] = ["llama-8b", "qwen3-0.6b", "qwen3.5-35b-a3b", "tiny"];

/// The config of a shape.
///
/// # Errors
/// There is no such shape; the message lists those that there are.
pub fn config(name: &str) -> Result<Value> {
    Ok(match name {
        "llama-8b" => llama_8b(),
        "qwen3-0.6b" => qwen3_0_6b(),
        "qwen3.5-35b-a3b" => qwen35_35b_a3b(),
        "tiny" => tiny(),
        _ => {
            let what = format!("the shape {name:?} is not known");
            return Err(Error::usage(what).hint(format!("there are {}", NAMES.join(", "))));
        }
    })
}

/// Llama 3.1 8B.
fn llama_8b() -> Value {
    json!({
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "attention_bias": false,
        "mlp_bias": false,
        "tie_word_embeddings": false,
    })
}

/// Qwen3 0.6B.
fn qwen3_0_6b() -> Value {
    json!({
        "model_type": "qwen3",
        "hidden_act": "silu",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "attention_bias": false,
        "tie_word_embeddings": true,
    })
}

/// Qwen3.5 35B A3B, the text part.
fn qwen35_35b_a3b() -> Value {
    json!({
        "model_type": "qwen3_5_moe_text",
        "hidden_act": "silu",
        "vocab_size": 248_320,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "attn_output_gate": true,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
        },
        "attention_bias": false,
        "tie_word_embeddings": false,
    })
}

/// The last one in small, for machines without an accelerator.
fn tiny() -> Value {
    let mut config = qwen35_35b_a3b();
    for (name, size) in [
        ("vocab_size", 512),
        ("hidden_size", 256),
        ("num_hidden_layers", 4),
        ("num_attention_heads", 4),
        ("head_dim", 64),
        ("linear_num_key_heads", 2),
        ("linear_num_value_heads", 4),
        ("linear_key_head_dim", 32),
        ("linear_value_head_dim", 32),
        ("num_experts", 8),
        ("num_experts_per_tok", 2),
        ("moe_intermediate_size", 256),
        ("shared_expert_intermediate_size", 256),
        ("max_position_embeddings", 4096),
    ] {
        config[name] = size.into();
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Mixer};

    #[test]
    fn every_shape_is_a_config_that_loads() {
        for name in NAMES {
            Config::new(&config(name).unwrap()).unwrap();
        }
        let error = config("llama").unwrap_err().to_string();
        assert!(error.contains("llama-8b, qwen3-0.6b"), "{error}");
    }

    #[test]
    fn every_fourth_layer_of_the_hybrid_attends() {
        let c = Config::new(&config("qwen3.5-35b-a3b").unwrap()).unwrap();
        let full = |i: usize| c.mixers[i] == Mixer::Full;
        assert!((0..40).all(|i| full(i) == (i % 4 == 3)));
        let moe = c.moe.unwrap();
        assert_eq!((moe.experts, moe.per_token, moe.intermediate), (256, 8, 512));
        assert!(moe.scoring.renormalize && moe.shared_intermediate == 512 && !c.tied);
    }
}
