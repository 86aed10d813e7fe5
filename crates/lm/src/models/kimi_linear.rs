//! Kimi Linear: delta attention with a decay for each channel in most layers, latent attention without positions in
//! the others; experts after the first layers.
//!
//! `h = x + mixer(norm x)`, `h + ff(norm h)`.

use longrun_array::Tensor;

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Mixer};
use crate::error::{Error, Result};
use crate::nn::{FeedForward, Kda, Mla, RmsNorm, Ropes};
use crate::weights::Weights;

enum TokenMixer {
    Delta(Box<Kda>),
    Attention(Box<Mla>),
}

pub(super) struct Layer {
    input_norm: RmsNorm,
    mixer: TokenMixer,
    post_norm: RmsNorm,
    mlp: FeedForward,
}

impl Block for Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let k = &c.kda.ok_or_else(|| Error::file("a hybrid without delta attention"))?;
        let attention = &w.at("self_attn");
        // Files have either name for a plain MLP, too.
        let moe = "block_sparse_moe";
        let files = ["gate.weight", "gate_proj.weight"].map(|name| format!("{moe}.{name}"));
        let mlp = if files.iter().any(|name| w.in_files(name)) { moe } else { "mlp" };
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            mixer: match c.mixers[i] {
                Mixer::Linear => TokenMixer::Delta(Box::new(Kda::load(attention, c, k, caches)?)),
                _ => TokenMixer::Attention(Box::new(Mla::load(attention, c, caches)?)),
            },
            post_norm: w.norm("post_attention_layernorm", c.hidden)?,
            mlp: FeedForward::load(&w.at(mlp), c, i)?,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, _: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.input_norm.apply(x);
        let h = x + match &self.mixer {
            TokenMixer::Delta(delta) => delta.forward(y, caches),
            TokenMixer::Attention(attention) => attention.forward(y, None, caches),
        };
        h + self.mlp.forward(self.post_norm.apply(h))
    }
}
