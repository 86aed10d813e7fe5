//! Gemma 2 and 3 (text): a norm before and after each half of a block, scaled embeddings, GELU, windows in most layers.
//!
//! Gemma 2 caps scores and logits, and every second layer sees everything. Gemma 3 has norms over heads instead, and
//! every sixth layer sees everything, with its own positions.

use longrun_array::{Map, Step, Tensor, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Mixer};
use crate::error::Result;
use crate::nn::{Attention, AttentionKind, Head, Mlp, RmsNorm, Rope};
use crate::weights::Weights;

struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    pre_mlp_norm: RmsNorm,
    mlp: Mlp,
    post_mlp_norm: RmsNorm,
    local: bool,
}

impl Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let kind = AttentionKind { norms: c.qk_norms, ..Default::default() };
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            attention: Attention::load(&w.at("self_attn"), c, i, caches, kind)?,
            post_attention_norm: w.norm("post_attention_layernorm", c.hidden)?,
            pre_mlp_norm: w.norm("pre_feedforward_layernorm", c.hidden)?,
            mlp: Mlp::load(&w.at("mlp"), c, c.intermediate, Map::GeluTanh)?,
            post_mlp_norm: w.norm("post_feedforward_layernorm", c.hidden)?,
            local: c.mixers[i] == Mixer::Sliding,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, rope: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.attention.forward(self.input_norm.apply(x), rope, caches);
        let h = x + self.post_attention_norm.apply(y);
        let y = self.mlp.forward(self.pre_mlp_norm.apply(h));
        h + self.post_mlp_norm.apply(y)
    }
}

pub(super) struct Gemma3 {
    embedding: Weight,
    embedding_scale: f32,
    global_rope: Rope,
    local_rope: Rope,
    layers: Vec<Layer>,
    head: Head,
    caches: CacheSpec,
}

impl Gemma3 {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let layers = (0..c.layers).map(|i| Layer::load(&w.at("layers").at(i), c, i, &mut caches));
        let local = c.sliding_rope.as_ref().unwrap_or(&c.rope);
        Ok(Self {
            embedding,
            embedding_scale: (c.hidden as f32).sqrt(),
            global_rope: Rope::new(w, &c.rope, "rope")?,
            local_rope: Rope::new(w, local, "local rope")?,
            layers: layers.collect::<Result<_>>()?,
            head: Head { norm: w.norm("norm", c.hidden)?, linear, softcap: c.final_softcap },
            caches,
        })
    }
}

impl Model for Gemma3 {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let (global, local) = (self.global_rope.table(step), self.local_rope.table(step));
        let mut x = step.ids().embed(&self.embedding, self.embedding_scale); // [T, H]
        for layer in &self.layers {
            x = layer.forward(x, if layer.local { local } else { global }, caches);
        }
        self.head.emit(step, x);
    }
}
