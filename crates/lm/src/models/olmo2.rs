//! Olmo 2 and 3 and GLM-4: a norm after each half of a block, `h = x + norm(attention(x))`, `h + norm(mlp(h))`.
//!
//! Olmo has no norms before the halves, and norms of queries and keys over all heads at once; in Olmo 3 three of four
//! layers see a window, with positions of their own. GLM-4 has norms before the halves too, no norms of queries, and
//! turns every second pair of columns.

use longrun_array::{Map, Tensor};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Family};
use crate::error::Result;
use crate::nn::{Attention, AttentionKind, Mlp, RmsNorm, Ropes};
use crate::weights::Weights;

pub(super) struct Layer {
    /// Before attention, and before the MLP.
    before: Option<[RmsNorm; 2]>,
    attention: Attention,
    after_attention: RmsNorm,
    mlp: Mlp,
    after_mlp: RmsNorm,
}

impl Block for Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let norm = |name: &str| w.norm(name, c.hidden);
        // What olmo calls the norm after attention, GLM calls so before the MLP.
        let (before, after) = if c.family == Family::Glm4 {
            let before = [norm("input_layernorm")?, norm("post_attention_layernorm")?];
            (Some(before), ["post_self_attn_layernorm", "post_mlp_layernorm"])
        } else {
            (None, ["post_attention_layernorm", "post_feedforward_layernorm"])
        };
        let kind =
            AttentionKind { norms: c.qk_norms, wide_norms: true, ..AttentionKind::default() };
        Ok(Self {
            before,
            attention: Attention::load(&w.at("self_attn"), c, i, caches, kind)?,
            after_attention: norm(after[0])?,
            mlp: Mlp::load(&w.at("mlp"), c, c.intermediate, Map::Silu)?,
            after_mlp: norm(after[1])?,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let before = |x: Tensor<'s>, half: usize| match &self.before {
            Some(norms) => norms[half].apply(x),
            None => x,
        };
        let h = x + self.after_attention.apply(self.attention.forward(before(x, 0), ropes, caches));
        h + self.after_mlp.apply(self.mlp.forward(before(h, 1)))
    }
}
