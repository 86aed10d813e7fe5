//! A Hugging Face style `config.json` made from the metadata of a GGUF file.
//!
//! Owns the keys and defaults of each known architecture, and the ways in which GGUF stores weights differently, as
//! flags for the model code:
//! - `rope_interleaved`: rows of q and k are permuted so that rope turns pairs `(2i, 2i + 1)`;
//! - `norm_weight_shifted`: the 1 that the model adds to norm weights is already in the file;
//! - `linear_value_heads_tiled`: value head `i` of a delta layer belongs to key head `i mod key heads`.
//!
//! Refuses models whose layers differ in a way that the config cannot say.

mod dense;
mod experts;
mod hybrid;
mod hyper;
mod keys;
mod rope;

use serde_json::{Map, Value, json};

use self::keys::Keys;
use super::gguf::Gguf;
use super::gguf_names;
use super::source::Bytes;
use crate::{Error, Result};

/// Texts of tokens that end a turn or a document. Files name only one of them as their `eos`.
const END_TOKENS: [&str; 6] =
    ["<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>"];
/// Such texts of single architectures; others use the same for other things.
const OWN_END_TOKENS: &[(&[&str], &[&str])] = &[
    (&["phi3"], &["<|end|>"]),
    (&["gpt-oss"], &["<|return|>", "<|call|>"]),
    (&["gemma4"], &["<turn|>"]),
    (&["glm4", "glm4moe", "glm5-next"], &["<|user|>", "<|observation|>"]),
];
/// Keys with further ids at which generation stops.
const END_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// A config as it grows.
type Config = Map<String, Value>;

/// The name of the model's architecture.
pub(super) fn architecture(gguf: &Gguf) -> Result<&str> {
    let key = "general.architecture";
    gguf.str(key)?.ok_or_else(|| gguf.missing(key))
}

/// Tensors whose numbers are in the config.
pub(super) fn is_in_config(arch: &str, name: &str) -> bool {
    match name {
        "rope_factors_long.weight" | "rope_factors_short.weight" => arch == "phi3",
        "rope_freqs.weight" => arch == "gemma4",
        _ => false,
    }
}

/// The config of the model in `gguf` with the bytes of its files. An unknown architecture gives only its `model_type`.
///
/// # Errors
/// If a key that the architecture needs is missing, has another type or cannot be expressed.
pub(super) fn config(gguf: &Gguf, shards: &[Bytes]) -> Result<Value> {
    let arch = architecture(gguf)?;
    if !gguf_names::knows(arch) {
        return Ok(json!({ "model_type": arch }));
    }
    let keys = Keys { gguf, arch, shards };
    let mut config = common(&keys)?;
    let family = match arch {
        "llama" => dense::llama,
        "mistral3" => dense::mistral3,
        "smollm3" => dense::smollm3,
        "phi3" => dense::phi3,
        "glm4" => dense::glm4,
        "olmo2" => dense::olmo2,
        "seed_oss" => dense::seed_oss,
        "gemma2" => dense::gemma2,
        "gemma3" => dense::gemma3,
        "gemma4" => dense::gemma4,
        "granite" | "granitemoe" => dense::granite,
        "qwen2moe" | "qwen3moe" => experts::qwen,
        "glm4moe" => experts::glm4_moe,
        "minimax-m2" => experts::minimax,
        "gpt-oss" => experts::gpt_oss,
        "deepseek2" | "deepseek32" => experts::deepseek,
        "deepseek4" => hyper::deepseek_v4,
        "glm5-next" => hyper::glm5_next,
        "kimi-linear" => hybrid::kimi_linear,
        "qwen3next" | "qwen35" | "qwen35moe" => hybrid::qwen,
        "mamba2" => hybrid::mamba2,
        "nemotron_h" | "nemotron_h_moe" => hybrid::nemotron_h,
        "granitehybrid" => hybrid::granite,
        "falcon-h1" => hybrid::falcon_h1,
        "lfm2" => hybrid::lfm2,
        _ => dense::plain,
    };
    family(&keys, &mut config)?;
    Ok(Value::Object(config))
}

fn set(config: &mut Config, key: &str, value: impl Into<Value>) {
    config.insert(key.into(), value.into());
}

/// Sets what the file has.
fn set_some(config: &mut Config, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        set(config, key, value);
    }
}

/// A number that is there already.
fn number(config: &Config, key: &str) -> u64 {
    config.get(key).and_then(Value::as_u64).unwrap_or_default()
}

/// What all known architectures share.
fn common(keys: &Keys<'_>) -> Result<Config> {
    let hidden = keys.need("embedding_length")?;
    let mut config = Map::new();
    set(&mut config, "hidden_size", hidden);
    set(&mut config, "num_hidden_layers", keys.layers()?);
    if keys.arch != "mamba2" {
        heads(keys, &mut config, hidden)?;
    }
    set(&mut config, "vocab_size", keys.vocabulary()?);
    let epsilon = "attention.layer_norm_rms_epsilon";
    let epsilon = keys.float(epsilon)?.ok_or_else(|| keys.gguf.missing(&keys.key(epsilon)))?;
    set(&mut config, "rms_norm_eps", epsilon);
    set(&mut config, "max_position_embeddings", keys.need("context_length")?);
    set(&mut config, "hidden_act", "silu");
    let biased = ["blk.0.attn_q.bias", "blk.0.attn_qkv.bias", "blk.0.attn_kv_a_mqa.bias"];
    set(&mut config, "attention_bias", biased.iter().any(|name| keys.has_tensor(name)));
    set(&mut config, "tie_word_embeddings", !keys.has_tensor("output.weight"));
    if let Some(id) = keys.gguf.uint("tokenizer.ggml.bos_token_id")? {
        set(&mut config, "bos_token_id", id);
    }
    set(&mut config, "eos_token_id", end_ids(keys)?);
    Ok(config)
}

/// Heads, their size, positions, and the inner width of the MLP.
fn heads(keys: &Keys<'_>, config: &mut Config, hidden: u64) -> Result<()> {
    let heads = keys
        .uniform("attention.head_count")?
        .filter(|heads| *heads > 0)
        .ok_or_else(|| Error::file("it must be at least 1").at(keys.key("attention.head_count")))?;
    set(config, "num_attention_heads", heads);
    let latent = keys.has_key("attention.kv_lora_rank");
    let per_layer = ["gemma4", "lfm2", "granitehybrid", "nemotron_h", "nemotron_h_moe"];
    let key_heads = match latent {
        true => Some(heads),
        false if per_layer.contains(&keys.arch) => keys.largest("attention.head_count_kv")?,
        false => keys.uniform("attention.head_count_kv")?,
    };
    set(config, "num_key_value_heads", key_heads.filter(|n| *n > 0).unwrap_or(heads));
    let key_length = keys.uint("attention.key_length")?;
    let head_dim = match latent {
        // Without turned columns this size is nobody's.
        true => match keys.need("rope.dimension_count")? {
            0 => key_length.unwrap_or(hidden / heads),
            turned => turned,
        },
        false => key_length.unwrap_or(hidden / heads),
    };
    let value_dim = keys.uint("attention.value_length")?.unwrap_or(head_dim);
    if !latent && value_dim != head_dim {
        let what = format!("values of {value_dim} beside keys of {head_dim} in a head");
        return Err(Error::unsupported(what).at(keys.key("attention.value_length")));
    }
    set(config, "head_dim", head_dim);
    let width = match keys.arch {
        "gemma4" => keys.smallest("feed_forward_length")?,
        "nemotron_h" | "nemotron_h_moe" => {
            keys.rows_of("ffn_up.weight").or(keys.largest("feed_forward_length")?)
        }
        _ => keys.uniform("feed_forward_length")?,
    };
    set_some(config, "intermediate_size", width);
    set(config, "rope_parameters", rope::parameters(keys, head_dim)?);
    Ok(())
}

/// Every id that ends generation, the file's own `eos` first.
fn end_ids(keys: &Keys<'_>) -> Result<Value> {
    let mut ids: Vec<u64> = Vec::new();
    for key in END_KEYS {
        ids.extend(keys.gguf.uint(key)?);
    }
    let own = OWN_END_TOKENS.iter().find(|(archs, _)| archs.contains(&keys.arch));
    let own = own.map_or(&[][..], |(_, texts)| texts);
    if let Some(tokens) = keys.gguf.strings("tokenizer.ggml.tokens")? {
        let is_end = |text: &&str| END_TOKENS.contains(text) || own.contains(text);
        let ends = tokens.iter().zip(0..).filter(|(text, _)| is_end(text));
        // A vocabulary has each text once; a hostile one must not make the list long.
        ids.extend(ends.map(|(_, id)| id).take(END_TOKENS.len() + own.len()));
    }
    let mut unique = Vec::new();
    for id in ids {
        if !unique.contains(&id) {
            unique.push(id);
        }
    }
    Ok(unique.into())
}
