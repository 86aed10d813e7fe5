//! What a checkpoint's `config.json` says, checked and in one vocabulary.
//!
//! Owns the names that different writers use (original checkpoints, transformers 5, MLX, GGUF metadata translated by
//! [`crate::checkpoint`]) and their defaults. Refuses what would change the maths and is not known here.

mod acting;
mod attention;
mod conv;
mod deepseek_v4;
mod delta;
mod family;
mod fields;
mod gemma4;
mod hyper;
mod kpool;
mod mla;
mod moe;
mod multipliers;
mod ssm;

use serde_json::Value;

pub use conv::ConvConfig;
pub use deepseek_v4::DeepSeekV4Config;
pub use delta::{DeltaConfig, KdaConfig};
pub use family::Family;
pub(crate) use fields::Fields;
pub use gemma4::{Gemma4Config, Gemma4Experts};
pub use hyper::HyperConfig;
pub use kpool::KPoolConfig;
pub use mla::{IndexerConfig, MlaConfig};
pub use moe::MoeConfig;
pub use multipliers::Multipliers;
pub use ssm::{SsmConfig, SsmGate};

use crate::error::{Error, Result};
use crate::rope::RopeSpec;

/// What a layer mixes tokens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Attention over everything before.
    Full,
    /// Attention over a window.
    Sliding,
    /// A recurrence: the gated delta rule, a selective scan, or a short convolution.
    Linear,
    /// Attention over a window, and over the best of entries that a few tokens share.
    Sparse,
    /// Attention over a window, and over entries that many tokens share.
    Heavy,
    /// Nothing: the layer is an MLP.
    Mlp,
    /// Nothing: the layer is a mixture of experts.
    Experts,
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
    /// Queries are times `1 + beta ln(1 + floor(position / every))`: `(beta, every)`.
    pub query_growth: Option<(f32, usize)>,
    /// Norms over heads, or over all heads at once where the family has these.
    pub qk_norms: bool,
    pub softcap: Option<f32>,
    pub final_softcap: Option<f32>,
    /// Norm weights are stored less 1.
    pub norms_less_one: bool,
    pub moe: Option<MoeConfig>,
    pub delta: Option<DeltaConfig>,
    pub conv: Option<ConvConfig>,
    pub mla: Option<MlaConfig>,
    pub gemma4: Option<Gemma4Config>,
    pub kpool: Option<KPoolConfig>,
    pub hyper: Option<HyperConfig>,
    pub deepseek_v4: Option<DeepSeekV4Config>,
    pub kda: Option<KdaConfig>,
    pub ssm: Option<SsmConfig>,
    pub multipliers: Multipliers,
    pub indexer: Option<IndexerConfig>,
    /// Ids that end a text, of `config.json`.
    pub eos: Vec<u32>,
}

impl Config {
    /// Reads a `config.json`; a vision checkpoint gives its text part.
    ///
    /// # Errors
    /// A field is missing, impossible or unknown and would change the maths; the message names it.
    pub fn new(json: &Value) -> Result<Self> {
        let f = Fields::of(json);
        let config = Self::read(&f).and_then(|config| {
            acting::all_is_read(&f, config.family.name())?;
            Ok(config)
        });
        config.map_err(|e| e.at("config.json"))
    }

    /// Reads a config that may have fields of other families.
    ///
    /// # Errors
    /// A field is missing or impossible; the message names it.
    pub fn loose(json: &Value) -> Result<Self> {
        Self::read(&Fields::of(json)).map_err(|e| e.at("config.json"))
    }

    fn read(f: &Fields<'_>) -> Result<Self> {
        let family = family_of(f)?;
        let [hidden, layers] = [f.size("hidden_size")?, ssm::layers(f, family)?];
        let [heads, kv_heads, head_dim] = attention::heads(f, family, hidden)?;
        check_activation(f, family)?;
        attention::check_gate(f, family)?;
        let window = attention::window(f)?;
        let rotates = attention::rotates(f, family, layers)?;
        let mut mixers = attention::mixers(f, family, &rotates, window)?;
        let is = |one: Family| family == one;
        let gemma4 = only(is(Family::Gemma4), || gemma4::gemma4(f, kv_heads, &mut mixers))?;
        let indexer = only(family.has_indexer(), || mla::indexer(f))?;
        let pooled = indexer.filter(|_| is(Family::Glm5Next));
        let kpool = pooled.map(|i| kpool::kpool(f, i, &mixers)).transpose()?;
        let eps = eps(f, family)?;
        let mla = only(family.is_latent(), || mla::mla(f, family, eps))?;
        let rotated = mla.map(|m| m.rope).filter(|rope| *rope > 0).unwrap_or(head_dim);
        let context = attention::context(f, family)?;
        let (rope, sliding_rope) = match &gemma4 {
            Some(g) => gemma4::ropes(f, head_dim, g.global_dim)?,
            None => attention::ropes(f, family, rotated, context)?,
        };
        let (attention_bias, output_bias) = attention::biases(f, family)?;
        Ok(Self {
            family,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate: moe::dense_intermediate(f, family, hidden)?,
            vocab: f.size("vocab_size")?,
            eps,
            context,
            tied: tied(f, family)?,
            mixers,
            window,
            rope,
            sliding_rope,
            rotates,
            rope_interleaved: f.bool_or("rope_interleaved", family == Family::Glm4)?,
            attention_bias,
            output_bias,
            mlp_bias: f.bool_or("mlp_bias", false)?,
            scale: attention::scale(f, family, head_dim)?,
            query_growth: attention::query_growth(f, family)?,
            qk_norms: attention::qk_norms(f, family)?,
            softcap: f.positive("attn_logit_softcapping")?,
            final_softcap: f.positive("final_logit_softcapping")?,
            norms_less_one: norms_less_one(f, family)?,
            moe: only(moe::has_experts(f, family)?, || moe::moe(f, family, layers))?,
            delta: only(family.is_delta_hybrid(), || delta::delta(f))?,
            kda: only(family.is_kda(), || delta::kda(f, family))?,
            ssm: ssm::ssm(f, family, hidden)?,
            multipliers: multipliers::multipliers(f, family)?,
            conv: only(is(Family::Lfm2), || conv::conv(f))?,
            mla,
            indexer,
            gemma4,
            kpool,
            hyper: only(family.has_streams(), || hyper::hyper(f))?,
            deepseek_v4: only(is(Family::DeepSeekV4), || {
                deepseek_v4::deepseek_v4(f, [heads, head_dim, layers])
            })?,
            eos: ids(f.get("eos_token_id"))?,
        })
    }
}

/// What only some families have.
fn only<T>(has: bool, read: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    has.then(read).transpose()
}

fn family_of(f: &Fields<'_>) -> Result<Family> {
    let name = f.str("model_type")?.ok_or_else(|| f.missing("model_type"))?;
    Family::of(name).map_err(|e| e.at("model_type"))
}

/// Norm weights are stored less 1, unless a file says that its writer has added it.
fn norms_less_one(f: &Fields<'_>, family: Family) -> Result<bool> {
    let shifted = f.bool_or("norm_weight_shifted", false)?;
    Ok(family.stores_norms_less_one() && !shifted)
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

fn eps(f: &Fields<'_>, family: Family) -> Result<f32> {
    Ok(match family {
        Family::Lfm2 => f.positive("norm_eps")?.unwrap_or(1e-5),
        Family::Mamba2 | Family::NemotronH => f.positive("layer_norm_epsilon")?.unwrap_or(1e-5),
        _ => f.positive("rms_norm_eps")?.unwrap_or(1e-6),
    })
}

fn tied(f: &Fields<'_>, family: Family) -> Result<bool> {
    if family == Family::Lfm2 && f.get("tie_embedding").is_some() {
        return f.bool_or("tie_embedding", true);
    }
    let name = "tie_word_embeddings";
    // A model with towers says it outside, where its text part may have the default.
    let outside = f.outer.get(name) == Some(&Value::Bool(true));
    Ok(f.bool_or(name, family.is_gemma() || family == Family::Lfm2)? || outside)
}

fn check_activation(f: &Fields<'_>, family: Family) -> Result<()> {
    let gemma = family.is_gemma();
    if family == Family::NemotronH {
        let name = f.str("mlp_hidden_act")?.unwrap_or("relu2");
        return match name {
            "relu2" => Ok(()),
            other => {
                let what = format!("activation \"{other}\" is not known for {}", family.name());
                Err(Error::unsupported(what).at("mlp_hidden_act"))
            }
        };
    }
    match f.str("hidden_activation")?.or(f.str("hidden_act")?) {
        None => Ok(()),
        Some("silu" | "swish") if !gemma => Ok(()),
        Some("gelu_pytorch_tanh" | "gelu_tanh") if gemma => Ok(()),
        Some(other) => {
            let what = format!("activation \"{other}\" is not known for {}", family.name());
            Err(Error::unsupported(what).at("hidden_act"))
        }
    }
}
