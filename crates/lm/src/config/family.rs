//! The families that this build runs, and what sets them apart at a glance.

use crate::error::{Error, Result};

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
    Phi3,
    SeedOss,
    Olmo2,
    Olmo3,
    Glm4,
    Glm4Moe,
    Ministral3,
    MiniMaxM2,
    GptOss,
    Lfm2,
    DeepSeekV3,
    DeepSeekV32,
    KimiLinear,
    Mamba2,
    NemotronH,
    FalconH1,
    Granite,
    GraniteMoeHybrid,
    Gemma4,
    DeepSeekV4,
    Glm5Next,
    /// llama with a second value cache that is written and never read (for tests and soaks only): the cache half whose
    /// lazy chain kills other engines.
    DeadValues,
}

use Family as F;

impl Family {
    /// Every family with its `model_type` names; the first is the one that people use.
    pub const NAMES: [(Self, &'static [&'static str]); 35] = [
        (F::Llama, &["llama"]),
        (F::Mistral, &["mistral"]),
        (F::Qwen2, &["qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"]),
        (F::Qwen3, &["qwen3", "qwen3_vl_text"]),
        (F::Qwen3Moe, &["qwen3_moe"]),
        (F::SmolLm3, &["smollm3"]),
        (F::Qwen2Moe, &["qwen2_moe"]),
        (F::Mixtral, &["mixtral"]),
        (F::Gemma2, &["gemma2"]),
        (F::Gemma3, &["gemma3", "gemma3_text"]),
        (F::Qwen3Next, &["qwen3_next"]),
        (F::Qwen35, &["qwen3_5", "qwen3_5_text"]),
        (F::Qwen35Moe, &["qwen3_5_moe", "qwen3_5_moe_text"]),
        (F::Phi3, &["phi3"]),
        (F::SeedOss, &["seed_oss"]),
        (F::Olmo2, &["olmo2"]),
        (F::Olmo3, &["olmo3"]),
        (F::Glm4, &["glm4"]),
        (F::Glm4Moe, &["glm4_moe"]),
        (F::Ministral3, &["ministral3"]),
        (F::MiniMaxM2, &["minimax_m2"]),
        (F::GptOss, &["gpt_oss"]),
        (F::Lfm2, &["lfm2"]),
        (F::DeepSeekV3, &["deepseek_v3", "kimi_k2"]),
        (F::DeepSeekV32, &["deepseek_v32"]),
        (F::KimiLinear, &["kimi_linear"]),
        (F::Mamba2, &["mamba2"]),
        (F::NemotronH, &["nemotron_h"]),
        (F::FalconH1, &["falcon_h1"]),
        (F::Granite, &["granite", "granitemoe", "granitemoeshared"]),
        (F::GraniteMoeHybrid, &["granitemoehybrid"]),
        (F::Gemma4, &["gemma4", "gemma4_text"]),
        (F::DeepSeekV4, &["deepseek_v4"]),
        (F::Glm5Next, &["glm5_next", "glm5_next_text"]),
        (F::DeadValues, &["dead_values"]),
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

    /// Norm weights are stored less 1.
    pub(super) fn stores_norms_less_one(self) -> bool {
        matches!(self, F::Gemma2 | F::Gemma3) || self.is_delta_hybrid()
    }

    pub(super) fn is_gemma(self) -> bool {
        matches!(self, F::Gemma2 | F::Gemma3 | F::Gemma4)
    }

    /// Queries, keys and values have biases if nothing is said.
    pub(super) fn has_qkv_bias(self) -> bool {
        matches!(self, F::Qwen2 | F::Qwen2Moe | F::Glm4 | F::SeedOss | F::GptOss)
    }

    /// The output of attention has no bias, even where queries, keys and values have some.
    pub(super) fn has_plain_output(self) -> bool {
        matches!(self, F::Qwen2 | F::Qwen2Moe | F::Glm4 | F::Glm4Moe | F::SeedOss)
    }

    /// The expert that serves every token has a gate on it.
    pub(crate) fn gates_shared_expert(self) -> bool {
        matches!(self, F::Qwen2Moe | F::Qwen3Next | F::Qwen35Moe)
    }

    pub(super) fn has_experts(self) -> bool {
        matches!(self, F::Qwen2Moe | F::Qwen3Moe | F::Mixtral | F::Qwen3Next | F::Qwen35Moe)
            || self.routes_by_sigmoid()
            || matches!(self, F::GptOss | F::GraniteMoeHybrid | F::DeepSeekV4)
    }

    /// Experts are scored one by one, with a correction that only chooses.
    pub(super) fn routes_by_sigmoid(self) -> bool {
        matches!(self, F::Glm4Moe | F::MiniMaxM2 | F::DeepSeekV3 | F::DeepSeekV32)
            || matches!(self, F::KimiLinear | F::NemotronH | F::Glm5Next)
    }

    /// Layers of the delta rule with a decay for each channel of a key.
    pub(super) fn is_kda(self) -> bool {
        matches!(self, F::KimiLinear | F::Glm5Next)
    }

    /// Keys and values of all heads are made from one latent.
    pub(super) fn is_latent(self) -> bool {
        matches!(self, F::DeepSeekV3 | F::DeepSeekV32 | F::KimiLinear | F::Glm5Next)
    }

    /// An indexer chooses what attention looks at.
    pub(super) fn has_indexer(self) -> bool {
        matches!(self, F::DeepSeekV32 | F::DeepSeekV4 | F::Glm5Next)
    }

    /// The residual is a few streams.
    pub(super) fn has_streams(self) -> bool {
        matches!(self, F::DeepSeekV4 | F::Glm5Next)
    }

    /// Layers of the gated delta rule with one decay a head.
    pub(crate) fn is_delta_hybrid(self) -> bool {
        matches!(self, F::Qwen3Next | F::Qwen35 | F::Qwen35Moe)
    }
}
