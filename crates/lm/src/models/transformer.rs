//! The plain pre-norm transformer: llama, mistral (a window), qwen2 and seed_oss (biases), qwen3 (norms over heads),
//! smollm3 (layers without positions), phi3 (joined projections), ministral3 (queries that grow with their position);
//! and with experts qwen2_moe, qwen3_moe, mixtral, glm4_moe, minimax_m2 (norms over all heads at once) and gpt_oss
//! (windows in every second layer, sinks, biases everywhere).
//!
//! `dead_values` is the lab animal: its values also go into a second cache that nobody reads.

use longrun_array::Tensor;

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches, PagedId};
use crate::config::{Config, Family};
use crate::error::Result;
use crate::nn::{Attention, AttentionKind, FeedForward, Linear, RmsNorm, Ropes};
use crate::weights::Weights;

/// One block: `h = x + attention(norm x)`, `h + mlp(norm h)`.
pub(super) struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_norm: RmsNorm,
    mlp: FeedForward,
    /// Values once more, which nobody reads.
    dead: Option<(Linear, PagedId)>,
}

impl Block for Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let kind = AttentionKind {
            norms: c.qk_norms,
            wide_norms: c.family == Family::MiniMaxM2,
            sinks: c.family == Family::GptOss,
            gated: false,
        };
        let sparse = matches!(c.family, Family::Mixtral | Family::MiniMaxM2);
        let mlp = if sparse { "block_sparse_moe" } else { "mlp" };
        let dead = match c.family {
            Family::DeadValues => {
                let v = w.at("self_attn").linear(
                    "v_proj",
                    [c.kv_heads * c.head_dim, c.hidden],
                    false,
                )?;
                Some((v, caches.values(c.kv_heads, c.head_dim, None)))
            }
            _ => None,
        };
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            attention: Attention::load(&w.at("self_attn"), c, i, caches, kind)?,
            post_norm: w.norm("post_attention_layernorm", c.hidden)?,
            mlp: FeedForward::load(&w.at(mlp), c, i)?,
            dead,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.input_norm.apply(x);
        if let Some((v, dead)) = &self.dead {
            // The write happens all the same, because every write is a root.
            let _ = caches.paged(x.step(), *dead).write(v.apply(y));
        }
        let h = x + self.attention.forward(y, ropes, caches);
        h + self.mlp.forward(self.post_norm.apply(h))
    }
}
