//! The plain pre-norm transformer: llama, mistral (a window), qwen2 (biases), qwen3 (norms over heads), smollm3 (layers
//! without positions), qwen2_moe, qwen3_moe and mixtral (experts).
//!
//! `dead_values` is the lab animal: its values also go into a second cache that nobody reads.

use longrun_array::{Step, Tensor, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches, KvSpec};
use crate::config::{Config, Family};
use crate::error::Result;
use crate::nn::{Attention, AttentionKind, FeedForward, Head, RmsNorm, Rope};
use crate::weights::Weights;

/// One block: `h = x + attention(norm x)`, `h + mlp(norm h)`.
struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_norm: RmsNorm,
    mlp: FeedForward,
}

impl Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize) -> Result<Self> {
        let norms = matches!(c.family, Family::Qwen3 | Family::Qwen3Moe);
        let kind = AttentionKind { norms, gated: false };
        let mlp = if c.family == Family::Mixtral { "block_sparse_moe" } else { "mlp" };
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            attention: Attention::load(&w.at("self_attn"), c, i, i, kind)?,
            post_norm: w.norm("post_attention_layernorm", c.hidden)?,
            mlp: FeedForward::load(&w.at(mlp), c, i)?,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, rope: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let h = x + self.attention.forward(self.input_norm.apply(x), rope, caches);
        h + self.mlp.forward(self.post_norm.apply(h))
    }
}

pub(super) struct Transformer {
    embedding: Weight,
    rope: Rope,
    layers: Vec<Layer>,
    head: Head,
    kv: Vec<KvSpec>,
}

impl Transformer {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let layers = (0..c.layers).map(|i| Layer::load(&w.at("layers").at(i), c, i));
        let dead_values = c.family == Family::DeadValues;
        let kv = (0..c.layers).map(|i| KvSpec { dead_values, ..Attention::cache(c, i) });
        Ok(Self {
            embedding,
            rope: Rope::new(w, &c.rope, "rope")?,
            layers: layers.collect::<Result<_>>()?,
            head: Head { norm: w.norm("norm", c.hidden)?, linear, softcap: c.final_softcap },
            kv: kv.collect(),
        })
    }
}

impl Model for Transformer {
    fn caches(&self) -> CacheSpec {
        CacheSpec { kv: self.kv.clone(), delta: Vec::new() }
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let rope = self.rope.table(step);
        let mut x = step.ids().embed(&self.embedding, 1.0); // [T, H]
        for layer in &self.layers {
            x = layer.forward(x, rope, caches);
        }
        self.head.emit(step, x);
    }
}
