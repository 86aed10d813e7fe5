//! A Hugging Face style `config.json` made from the metadata of a GGUF file.
//!
//! Owns the keys and defaults of each known architecture, and the two ways in which GGUF stores
//! weights differently, as flags for the model code:
//! - `rope_interleaved`: rows of q and k are permuted so that rope turns pairs `(2i, 2i + 1)`;
//! - `norm_weight_shifted`: the 1 that the model adds to norm weights is already in the file.
//!
//! Refuses models whose layers differ in a way that the config cannot say.

use serde_json::{Map, Value, json};

use super::gguf::{Gguf, GgufNumber, GgufValue};
use super::gguf_names;
use crate::{Error, Result};

/// Texts of tokens that end a turn or a document. Files name only one of them as their `eos`.
const END_TOKENS: [&str; 6] =
    ["<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>"];
/// Keys with further ids at which generation stops.
const END_KEYS: [&str; 3] =
    ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// Gemma 3: every sixth layer sees everything, the others a window.
const GEMMA3_PATTERN: u64 = 6;
const GEMMA3_LOCAL_THETA: f64 = 10_000.0;
/// Gemma 3 of this depth (27B) scales queries by the model's width instead of the head's.
const GEMMA3_WIDE_QUERY_LAYERS: u64 = 62;

/// The name of the model's architecture.
pub(super) fn architecture(gguf: &Gguf) -> Result<&str> {
    let key = "general.architecture";
    gguf.str(key)?.ok_or_else(|| gguf.missing(key))
}

/// The config of the model in `gguf`. An unknown architecture gives only its `model_type`.
///
/// # Errors
/// If a key that the architecture needs is missing, has another type or cannot be expressed.
pub(super) fn config(gguf: &Gguf) -> Result<Value> {
    let arch = architecture(gguf)?;
    if !gguf_names::knows(arch) {
        return Ok(json!({ "model_type": arch }));
    }
    let keys = Keys { gguf, arch };
    let mut config = common(&keys)?;
    match arch {
        "llama" => llama(&keys, &mut config)?,
        "qwen3moe" => qwen3_moe(&keys, &mut config)?,
        "gemma3" => gemma3(&keys, &mut config)?,
        _ => set(&mut config, "model_type", arch),
    }
    Ok(Value::Object(config))
}

/// The metadata seen through the prefix of its architecture.
struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        Ok(self.gguf.float(&self.key(key))?.map(shortest))
    }

    fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.gguf.uint(&self.key(key))
    }

    fn need(&self, key: &str) -> Result<u64> {
        self.uint(key)?.ok_or_else(|| self.gguf.missing(&self.key(key)))
    }

    /// A count that a file may give once or once a layer; the layers must agree.
    fn uniform(&self, key: &str) -> Result<Option<u64>> {
        let full = self.key(key);
        let Some(GgufValue::Numbers(numbers)) = self.gguf.get(&full) else {
            return self.gguf.uint(&full);
        };
        let mut values = numbers.iter().map(|value| value.as_uint());
        let first = values.next().flatten();
        if numbers.kind() == GgufNumber::F32 || first.is_none() || values.any(|v| v != first) {
            let what = format!("{full:?} differs from layer to layer");
            return Err(Error::unsupported(what));
        }
        Ok(first)
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensors().contains_key(name)
    }

    /// Layers, bounded by what the file has: each has at least one tensor.
    fn layers(&self) -> Result<u64> {
        let layers = self.need("block_count")?;
        let tensors = self.gguf.tensors().len();
        if layers > tensors as u64 {
            let what = format!("it claims {layers} layers with {tensors} tensors in all");
            return Err(Error::file(what).at(self.key("block_count")));
        }
        Ok(layers)
    }

    /// Rows of the embedding, or what the metadata says if there is none.
    fn vocabulary(&self) -> Result<u64> {
        if let Some(embedding) = self.gguf.tensors().get("token_embd.weight")
            && let Some(rows) = embedding.shape.first()
        {
            return Ok(*rows as u64);
        }
        self.need("vocab_size")
    }
}

fn set(config: &mut Map<String, Value>, key: &str, value: impl Into<Value>) {
    config.insert(key.into(), value.into());
}

/// The decimal that was meant by a float stored in 32 bits: 1e-6, not 9.999999974752427e-7.
fn shortest(wide: f64) -> f64 {
    let narrow = wide as f32;
    if f64::from(narrow) != wide {
        return wide;
    }
    narrow.to_string().parse().unwrap_or(wide)
}

/// What all known architectures share.
fn common(keys: &Keys<'_>) -> Result<Map<String, Value>> {
    let hidden = keys.need("embedding_length")?;
    let heads = keys
        .uniform("attention.head_count")?
        .filter(|heads| *heads > 0)
        .ok_or_else(|| Error::file("it must be at least 1").at(keys.key("attention.head_count")))?;
    let head_dim = keys.uint("attention.key_length")?.unwrap_or(hidden / heads);
    if let Some(value_dim) = keys.uint("attention.value_length")?.filter(|dim| *dim != head_dim) {
        let what = format!("values of {value_dim} beside keys of {head_dim} in a head");
        return Err(Error::unsupported(what).at(keys.key("attention.value_length")));
    }
    let mut config = Map::new();
    set(&mut config, "hidden_size", hidden);
    set(&mut config, "num_hidden_layers", keys.layers()?);
    set(&mut config, "num_attention_heads", heads);
    let key_heads = keys.uniform("attention.head_count_kv")?.unwrap_or(heads);
    set(&mut config, "num_key_value_heads", key_heads);
    set(&mut config, "head_dim", head_dim);
    if let Some(width) = keys.uniform("feed_forward_length")? {
        set(&mut config, "intermediate_size", width);
    }
    set(&mut config, "vocab_size", keys.vocabulary()?);
    let epsilon = "attention.layer_norm_rms_epsilon";
    let epsilon = keys.float(epsilon)?.ok_or_else(|| keys.gguf.missing(&keys.key(epsilon)))?;
    set(&mut config, "rms_norm_eps", epsilon);
    set(&mut config, "max_position_embeddings", keys.need("context_length")?);
    set(&mut config, "hidden_act", "silu");
    set(&mut config, "attention_bias", keys.has_tensor("blk.0.attn_q.bias"));
    set(&mut config, "tie_word_embeddings", !keys.has_tensor("output.weight"));
    set(&mut config, "rope_parameters", rope(keys, head_dim)?);
    if let Some(id) = keys.gguf.uint("tokenizer.ggml.bos_token_id")? {
        set(&mut config, "bos_token_id", id);
    }
    set(&mut config, "eos_token_id", end_ids(keys.gguf)?);
    Ok(config)
}

/// Every id that ends generation, the file's own `eos` first.
fn end_ids(gguf: &Gguf) -> Result<Value> {
    let mut ids: Vec<u64> = Vec::new();
    for key in END_KEYS {
        ids.extend(gguf.uint(key)?);
    }
    if let Some(tokens) = gguf.strings("tokenizer.ggml.tokens")? {
        let ends = tokens.iter().zip(0..).filter(|(text, _)| END_TOKENS.contains(text));
        // A vocabulary has each text once; a hostile one must not make the list long.
        ids.extend(ends.map(|(_, id)| id).take(END_TOKENS.len()));
    }
    let mut unique = Vec::new();
    for id in ids {
        if !unique.contains(&id) {
            unique.push(id);
        }
    }
    Ok(unique.into())
}

/// `rope_parameters`. With a tensor `rope_freqs.weight` the type is `freq_factors`: inverse
/// frequency `i` is divided by that tensor's number `i`, which is how Llama 3's scaling is stored.
fn rope(keys: &Keys<'_>, head_dim: u64) -> Result<Map<String, Value>> {
    let mut rope = Map::new();
    set(&mut rope, "rope_theta", keys.float("rope.freq_base")?.unwrap_or(10_000.0));
    if let Some(turned) = keys.uint("rope.dimension_count")?.filter(|dim| *dim != head_dim) {
        set(&mut rope, "partial_rotary_factor", turned as f64 / head_dim.max(1) as f64);
    }
    let scaling = keys.key("rope.scaling.type");
    let old_factor = keys.float("rope.scale_linear")?.filter(|factor| *factor != 1.0);
    let kind = match keys.gguf.str(&scaling)? {
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
    if kind == "yarn" {
        let length = keys.uint("rope.scaling.original_context_length")?;
        set(&mut rope, "original_max_position_embeddings", length);
        for (hf, key) in [
            ("beta_fast", "rope.scaling.yarn_beta_fast"),
            ("beta_slow", "rope.scaling.yarn_beta_slow"),
        ] {
            if let Some(value) = keys.float(key)? {
                set(&mut rope, hf, value);
            }
        }
    }
    Ok(rope)
}

/// Llama and the models that GGUF files under its name (Mistral, SmolLM2).
fn llama(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    if keys.uint("expert_count")?.unwrap_or(0) > 0 {
        return Err(Error::unsupported("Mixtral as GGUF").hint("use its safetensors"));
    }
    set(config, "model_type", "llama");
    set(config, "mlp_bias", keys.has_tensor("blk.0.ffn_up.bias"));
    set(config, "rope_interleaved", true);
    Ok(())
}

fn qwen3_moe(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    set(config, "model_type", "qwen3_moe");
    set(config, "num_experts", keys.need("expert_count")?);
    set(config, "num_experts_per_tok", keys.need("expert_used_count")?);
    set(config, "moe_intermediate_size", keys.need("expert_feed_forward_length")?);
    // The runtime that defined the format always normalises for this architecture.
    set(config, "norm_topk_prob", true);
    set(config, "decoder_sparse_step", 1);
    set(config, "mlp_only_layers", Vec::<u64>::new());
    Ok(())
}

/// Gemma 3. The file says nothing of the window's pattern and the local rope: they are constants.
fn gemma3(keys: &Keys<'_>, config: &mut Map<String, Value>) -> Result<()> {
    let field = |config: &Map<String, Value>, key: &str| config[key].as_u64().unwrap_or_default();
    let layers = field(config, "num_hidden_layers");
    let heads = field(config, "num_attention_heads");
    let (hidden, head_dim) = (field(config, "hidden_size"), field(config, "head_dim"));
    set(config, "model_type", "gemma3_text");
    set(config, "hidden_activation", "gelu_pytorch_tanh");
    config.remove("hidden_act");
    let wide = layers == GEMMA3_WIDE_QUERY_LAYERS;
    set(config, "query_pre_attn_scalar", if wide { hidden / heads } else { head_dim });
    let cap = keys.float("final_logit_softcapping")?.filter(|cap| *cap != 0.0);
    set(config, "final_logit_softcapping", cap);
    set(config, "attn_logit_softcapping", Value::Null);
    let window = keys.uint("attention.sliding_window")?.filter(|window| *window > 0);
    set(config, "sliding_window", window);
    let is_local = |layer: u64| window.is_some() && !(layer + 1).is_multiple_of(GEMMA3_PATTERN);
    let kinds = (0..layers).map(|layer| match is_local(layer) {
        true => "sliding_attention",
        false => "full_attention",
    });
    set(config, "layer_types", kinds.collect::<Vec<_>>());
    let global = config["rope_parameters"].take();
    let theta = keys.float("rope.freq_base_swa")?.unwrap_or(GEMMA3_LOCAL_THETA);
    let local = json!({ "rope_theta": theta, "rope_type": "default" });
    let rope = json!({ "full_attention": global, "sliding_attention": local });
    set(config, "rope_parameters", rope);
    set(config, "norm_weight_shifted", true);
    Ok(())
}
