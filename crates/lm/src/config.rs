//! What a checkpoint's `config.json` says, checked and in one vocabulary.
//!
//! Owns the names that different writers use (original checkpoints, transformers 5, MLX, GGUF metadata translated by
//! [`crate::checkpoint`]) and their defaults. Refuses what would change the maths and is not known here.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::rope::RopeSpec;

/// The families that this build runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    SmolLm3,
    Qwen2Moe,
    Mixtral,
    Gemma2,
    Gemma3,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    /// llama with a second value cache that is written and never read (for tests and soaks only): the cache half whose
    /// lazy chain kills other engines.
    DeadValues,
}

impl Family {
    /// Every family with its `model_type` names; the first is the one that people use.
    pub const NAMES: [(Self, &'static [&'static str]); 14] = [
        (Self::Llama, &["llama"]),
        (Self::Mistral, &["mistral"]),
        (Self::Qwen2, &["qwen2"]),
        (Self::Qwen3, &["qwen3"]),
        (Self::Qwen3Moe, &["qwen3_moe"]),
        (Self::SmolLm3, &["smollm3"]),
        (Self::Qwen2Moe, &["qwen2_moe"]),
        (Self::Mixtral, &["mixtral"]),
        (Self::Gemma2, &["gemma2"]),
        (Self::Gemma3, &["gemma3", "gemma3_text"]),
        (Self::Qwen3Next, &["qwen3_next"]),
        (Self::Qwen35, &["qwen3_5", "qwen3_5_text"]),
        (Self::Qwen35Moe, &["qwen3_5_moe", "qwen3_5_moe_text"]),
        (Self::DeadValues, &["dead_values"]),
    ];

    /// The family of a `model_type`.
    ///
    /// # Errors
    /// The name is not known; the message lists those that are.
    pub fn of(model_type: &str) -> Result<Self> {
        let mut all = Self::NAMES.iter();
        match all.find(|(_, names)| names.contains(&model_type)) {
            Some((family, _)) => Ok(*family),
            None => {
                let known: Vec<_> = Self::NAMES.iter().map(|(_, names)| names[0]).collect();
                Err(Error::unsupported(format!("the model family \"{model_type}\" is not known"))
                    .hint(format!("this build runs {}", known.join(", "))))
            }
        }
    }

    /// The name that people use.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(f, _)| *f == self).map_or("?", |(_, names)| names[0])
    }

    fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Queries, keys and values have biases, and the output has none.
    fn has_qkv_bias(self) -> bool {
        matches!(self, Self::Qwen2 | Self::Qwen2Moe)
    }

    fn has_experts(self) -> bool {
        use Family::{Mixtral, Qwen2Moe, Qwen3Moe, Qwen3Next, Qwen35Moe};
        matches!(self, Qwen2Moe | Qwen3Moe | Mixtral | Qwen3Next | Qwen35Moe)
    }

    fn is_hybrid(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }
}

/// What a layer mixes tokens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Attention over everything before.
    Full,
    /// Attention over a window.
    Sliding,
    /// Gated delta rule.
    Linear,
}

/// Experts of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// How many.
    pub experts: usize,
    /// How many serve a token.
    pub per_token: usize,
    /// Their inner width.
    pub intermediate: usize,
    /// The inner width of the expert that serves every token; 0 without.
    pub shared_intermediate: usize,
    /// The weights of the chosen are divided by their sum.
    pub renormalize: bool,
    /// Layers with a plain MLP instead.
    pub dense_layers: Vec<usize>,
    /// Only every n-th layer has experts.
    pub every: usize,
}

/// Sizes of a gated delta layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DeltaConfig {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub taps: usize,
}

/// A model's shape.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Config {
    pub family: Family,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
    pub vocab: usize,
    pub eps: f32,
    /// The most tokens of a sequence that the model was made for.
    pub context: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// What each layer mixes tokens with.
    pub mixers: Vec<Mixer>,
    /// The window of sliding layers.
    pub window: Option<usize>,
    /// Whether each layer rotates its queries and keys.
    pub rotates: Vec<bool>,
    pub rope: RopeSpec,
    /// The positions of sliding layers where they differ.
    pub sliding_rope: Option<RopeSpec>,
    /// Pairs are `(2i, 2i + 1)`: llama in GGUF files.
    pub rope_interleaved: bool,
    pub attention_bias: bool,
    pub output_bias: bool,
    pub mlp_bias: bool,
    /// Factor on attention scores.
    pub scale: f32,
    pub softcap: Option<f32>,
    pub final_softcap: Option<f32>,
    /// Norm weights are stored less 1.
    pub norms_less_one: bool,
    pub moe: Option<MoeConfig>,
    pub delta: Option<DeltaConfig>,
    /// Ids that end a text, of `config.json`.
    pub eos: Vec<u32>,
}

/// The most that a dimension may be: above it is a lie, and products of three stay below 2^64.
const MOST: usize = 1 << 20;
/// The most tokens that a context may be made for: ten million are known.
const MOST_CONTEXT: usize = 1 << 24;

impl Config {
    /// Reads a `config.json`; a vision checkpoint gives its text part.
    ///
    /// # Errors
    /// A field is missing, impossible or unknown and would change the maths; the message names it.
    pub fn new(json: &Value) -> Result<Self> {
        Self::read(json).map_err(|e| e.at("config.json"))
    }

    fn read(json: &Value) -> Result<Self> {
        let text = json.get("text_config").filter(|t| t.is_object()).unwrap_or(json);
        let f = Fields { text, outer: json };
        let name = f.str("model_type")?.ok_or_else(|| f.missing("model_type"))?;
        let family = Family::of(name).map_err(|e| e.at("model_type"))?;
        let [hidden, layers, heads] =
            [f.size("hidden_size")?, f.size("num_hidden_layers")?, f.size("num_attention_heads")?];
        let kv_heads = f.size_or("num_key_value_heads", heads)?;
        let head_dim = f.size_or("head_dim", hidden / heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let what = format!("{heads} heads can't share {kv_heads} key heads");
            return Err(Error::file(what).at("num_key_value_heads"));
        }
        if !head_dim.is_multiple_of(2) {
            let what = format!("{head_dim} columns of a head can't be rotated in pairs");
            return Err(Error::file(what).at("head_dim"));
        }
        check_activation(&f, family)?;
        // Where windows are switched off, some writers leave a 0.
        let off = !f.bool_or("use_sliding_window", true)?;
        let off = off && f.get("sliding_window").is_some_and(|v| v.as_u64() == Some(0));
        let window = if off { None } else { f.size_opt("sliding_window")? };
        let mixers = mixers(&f, family, layers, window)?;
        let (rope, sliding_rope) = ropes(&f, family, head_dim)?;
        let rotates = rotates(&f, family, layers)?;
        let gemma = family.is_gemma();
        let scalar = f.positive("query_pre_attn_scalar")?.map_or(head_dim as f64, f64::from);
        let shifted = f.bool_or("norm_weight_shifted", false)?;
        Ok(Self {
            family,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: f.size_or("intermediate_size", hidden)?,
            vocab: f.size("vocab_size")?,
            eps: f.positive("rms_norm_eps")?.unwrap_or(1e-6),
            context: f.size_up_to("max_position_embeddings", MOST_CONTEXT)?.unwrap_or(4096),
            tied: f.bool_or("tie_word_embeddings", gemma)?,
            mixers,
            window,
            rope,
            sliding_rope,
            rotates,
            rope_interleaved: f.bool_or("rope_interleaved", false)?,
            attention_bias: f.bool_or("attention_bias", family.has_qkv_bias())?,
            output_bias: f.bool_or("attention_bias", false)? && !family.has_qkv_bias(),
            mlp_bias: f.bool_or("mlp_bias", false)?,
            scale: if gemma { scalar.powf(-0.5) as f32 } else { (head_dim as f32).powf(-0.5) },
            softcap: f.positive("attn_logit_softcapping")?,
            final_softcap: f.positive("final_logit_softcapping")?,
            norms_less_one: (gemma || family.is_hybrid()) && !shifted,
            moe: if family.has_experts() { Some(experts(&f, family)?) } else { None },
            delta: if family.is_hybrid() { Some(delta(&f)?) } else { None },
            eos: ids(f.get("eos_token_id"))?,
        })
    }
}

/// A number or a list of numbers, as ids.
///
/// # Errors
/// It is something else.
pub fn ids(value: Option<&Value>) -> Result<Vec<u32>> {
    let id = |v: &Value| {
        let id = v.as_u64().and_then(|n| u32::try_from(n).ok());
        id.ok_or_else(|| Error::file(format!("{v} is no token id")).at("eos_token_id"))
    };
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(id).collect(),
        Some(one) => Ok(vec![id(one)?]),
    }
}

fn check_activation(f: &Fields<'_>, family: Family) -> Result<()> {
    let name = f.str("hidden_activation")?.or(f.str("hidden_act")?);
    let gemma = family.is_gemma();
    match name {
        None => Ok(()),
        Some("silu" | "swish") if !gemma => Ok(()),
        Some("gelu_pytorch_tanh" | "gelu_tanh") if gemma => Ok(()),
        Some(other) => {
            let what = format!("activation \"{other}\" is not known for {}", family.name());
            Err(Error::unsupported(what).at("hidden_act"))
        }
    }
}

fn mixers(
    f: &Fields<'_>,
    family: Family,
    layers: usize,
    window: Option<usize>,
) -> Result<Vec<Mixer>> {
    if let Some(list) = f.list("layer_types")? {
        if list.len() != layers {
            let what = format!("{} entries for {layers} layers", list.len());
            return Err(Error::file(what).at("layer_types"));
        }
        let kind = |v: &Value| match v.as_str() {
            Some("full_attention") => Ok(Mixer::Full),
            Some("sliding_attention") if window.is_some() => Ok(Mixer::Sliding),
            Some("linear_attention") if family.is_hybrid() => Ok(Mixer::Linear),
            _ => Err(Error::unsupported(format!("{v} is not known here")).at("layer_types")),
        };
        return list.iter().map(kind).collect();
    }
    let pattern = f.size_or("sliding_window_pattern", 0)?;
    let pattern = if pattern > 0 { pattern } else { f.size_or("_sliding_window_pattern", 6)? };
    let interval = f.size_or("full_attention_interval", 4)?;
    let sliding = f.bool_or("use_sliding_window", family == Family::Mistral)?;
    let kind = |i: usize| match family {
        Family::Gemma3 if !(i + 1).is_multiple_of(pattern) => Mixer::Sliding,
        Family::Gemma2 if i.is_multiple_of(2) => Mixer::Sliding,
        _ if family.is_hybrid() && !(i + 1).is_multiple_of(interval) => Mixer::Linear,
        Family::Mistral | Family::Qwen2 | Family::Qwen3 if sliding && window.is_some() => {
            Mixer::Sliding
        }
        _ => Mixer::Full,
    };
    if family.is_gemma() && window.is_none() {
        return Err(f.missing("sliding_window"));
    }
    Ok((0..layers).map(kind).collect())
}

/// Layers whose entry in `no_rope_layers` is 0, or every n-th one of smollm3, do not rotate.
fn rotates(f: &Fields<'_>, family: Family, layers: usize) -> Result<Vec<bool>> {
    if family != Family::SmolLm3 {
        return Ok(vec![true; layers]);
    }
    let Some(list) = f.list("no_rope_layers")? else {
        let every = f.size_or("no_rope_layer_interval", 4)?;
        return Ok((0..layers).map(|i| !(i + 1).is_multiple_of(every)).collect());
    };
    if list.len() != layers {
        let what = format!("{} entries for {layers} layers", list.len());
        return Err(Error::file(what).at("no_rope_layers"));
    }
    Ok(list.iter().map(|v| v.as_u64() != Some(0)).collect())
}

fn ropes(f: &Fields<'_>, family: Family, dim: usize) -> Result<(RopeSpec, Option<RopeSpec>)> {
    let theta = f.number("rope_theta")?;
    let partial = f.number("partial_rotary_factor")?;
    let partial = partial.unwrap_or(if family.is_hybrid() { 0.25 } else { 1.0 });
    let default = if family == Family::Gemma3 { 1e6 } else { 1e4 };
    let read = |value: Option<&Value>, theta: f64| {
        RopeSpec::new(value, dim, theta, partial).map_err(|e| e.at("rope_parameters"))
    };
    let object = |name: &str| match f.get(name) {
        Some(other) if !other.is_object() => Err(Fields::wrong(name, other, "an object")),
        object => Ok(object),
    };
    let given = object("rope_parameters")?.or(object("rope_scaling")?);
    let kinds = given.and_then(|v| Some((v.get("full_attention")?, v.get("sliding_attention")?)));
    if let Some((full, sliding)) = kinds {
        return Ok((read(Some(full), default)?, Some(read(Some(sliding), 1e4)?)));
    }
    let rope = read(given, theta.unwrap_or(default))?;
    let local = f.number("rope_local_base_freq")?.unwrap_or(1e4);
    let sliding = (family == Family::Gemma3).then(|| read(None, local)).transpose()?;
    Ok((rope, sliding))
}

fn experts(f: &Fields<'_>, family: Family) -> Result<MoeConfig> {
    let experts = match f.size_opt("num_experts")? {
        Some(n) => n,
        None => f.size("num_local_experts")?,
    };
    let layer = |v: &Value| {
        let n = v.as_u64().and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| Error::file(format!("{v} is no layer")).at("mlp_only_layers"))
    };
    let dense = f.list("mlp_only_layers")?.map(|list| list.iter().map(layer).collect());
    let alone = matches!(family, Family::Qwen3Moe | Family::Mixtral);
    let shared = if alone { 0 } else { f.size("shared_expert_intermediate_size")? };
    let mixtral = family == Family::Mixtral;
    let moe = MoeConfig {
        experts,
        per_token: f.size("num_experts_per_tok")?,
        intermediate: f.size(if mixtral {
            "intermediate_size"
        } else {
            "moe_intermediate_size"
        })?,
        shared_intermediate: shared,
        renormalize: mixtral || f.bool_or("norm_topk_prob", family == Family::Qwen35Moe)?,
        dense_layers: dense.unwrap_or(Ok(Vec::new()))?,
        every: f.size_or("decoder_sparse_step", 1)?,
    };
    if moe.per_token > moe.experts {
        let what = format!("{} of {} experts", moe.per_token, moe.experts);
        return Err(Error::file(what).at("num_experts_per_tok"));
    }
    Ok(moe)
}

fn delta(f: &Fields<'_>) -> Result<DeltaConfig> {
    let d = DeltaConfig {
        key_heads: f.size("linear_num_key_heads")?,
        value_heads: f.size("linear_num_value_heads")?,
        key_dim: f.size("linear_key_head_dim")?,
        value_dim: f.size("linear_value_head_dim")?,
        taps: f.size_or("linear_conv_kernel_dim", 4)?,
    };
    if !d.value_heads.is_multiple_of(d.key_heads) {
        let what = format!("{} value heads for {} key heads", d.value_heads, d.key_heads);
        return Err(Error::file(what).at("linear_num_value_heads"));
    }
    Ok(d)
}

/// The fields of a config: those of the text part first, then the outer ones.
struct Fields<'a> {
    text: &'a Value,
    outer: &'a Value,
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        let value = self.text.get(name).or_else(|| self.outer.get(name));
        value.filter(|v| !v.is_null())
    }

    fn missing(&self, name: &str) -> Error {
        Error::file("this field is missing").at(name)
    }

    fn wrong(name: &str, value: &Value, want: &str) -> Error {
        let mut shown = value.to_string();
        shown.truncate(shown.floor_char_boundary(60));
        Error::file(format!("{shown} is not {want}")).at(name)
    }

    fn size_up_to(&self, name: &str, most: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let n = value.as_u64().and_then(|n| usize::try_from(n).ok());
        match n.filter(|&n| n > 0 && n <= most) {
            Some(n) => Ok(Some(n)),
            None => Err(Self::wrong(name, value, "a positive size that can be")),
        }
    }

    fn size_opt(&self, name: &str) -> Result<Option<usize>> {
        self.size_up_to(name, MOST)
    }

    fn size(&self, name: &str) -> Result<usize> {
        self.size_opt(name)?.ok_or_else(|| self.missing(name))
    }

    fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.size_opt(name)?.unwrap_or(default))
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64().filter(|x| x.is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(Self::wrong(name, value, "a number")),
        }
    }

    /// A number above 0 that single precision holds.
    fn positive(&self, name: &str) -> Result<Option<f32>> {
        let Some(x) = self.number(name)? else { return Ok(None) };
        match (x as f32).is_normal() && x > 0.0 {
            true => Ok(Some(x as f32)),
            false => Err(Error::file(format!("{x} is not a number above 0")).at(name)),
        }
    }

    fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(Self::wrong(name, other, "a list")),
        }
    }

    fn bool_or(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(Self::wrong(name, other, "true or false")),
        }
    }

    fn str(&self, name: &str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(Self::wrong(name, other, "a string")),
        }
    }
}
