//! Gemma 2 and 3 (text): a norm before and after each half of a block, scaled embeddings, GELU, windows in most layers.
//!
//! Gemma 2 caps scores and logits, and every second layer sees everything. Gemma 3 has norms over heads instead, and
//! every sixth layer sees everything, with its own positions.

use longrun_array::{Map, Tensor};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches};
use crate::config::Config;
use crate::error::Result;
use crate::nn::{Attention, AttentionKind, Mlp, RmsNorm, Ropes};
use crate::weights::Weights;

pub(super) struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    pre_mlp_norm: RmsNorm,
    mlp: Mlp,
    post_mlp_norm: RmsNorm,
}

impl Block for Layer {
    fn embedding_scale(c: &Config) -> f32 {
        (c.hidden as f32).sqrt()
    }

    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let kind = AttentionKind { norms: c.qk_norms, ..Default::default() };
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            attention: Attention::load(&w.at("self_attn"), c, i, caches, kind)?,
            post_attention_norm: w.norm("post_attention_layernorm", c.hidden)?,
            pre_mlp_norm: w.norm("pre_feedforward_layernorm", c.hidden)?,
            mlp: Mlp::load(&w.at("mlp"), c, c.intermediate, Map::GeluTanh)?,
            post_mlp_norm: w.norm("post_feedforward_layernorm", c.hidden)?,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.attention.forward(self.input_norm.apply(x), ropes, caches);
        let h = x + self.post_attention_norm.apply(y);
        let y = self.mlp.forward(self.pre_mlp_norm.apply(h));
        h + self.post_mlp_norm.apply(y)
    }
}
