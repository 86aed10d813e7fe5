//! Kimi Linear: delta attention with a decay for each channel in most layers, latent attention without positions in
//! the others; experts after the first layers.
//!
//! `h = x + mixer(norm x)`, `h + ff(norm h)`.

use longrun_array::{Step, Tensor, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, KdaConfig, Mixer};
use crate::error::{Error, Result};
use crate::nn::{FeedForward, Head, Kda, Mla, RmsNorm};
use crate::weights::Weights;

enum TokenMixer {
    Delta(Box<Kda>),
    Attention(Box<Mla>),
}

struct Layer {
    input_norm: RmsNorm,
    mixer: TokenMixer,
    post_norm: RmsNorm,
    mlp: FeedForward,
}

impl Layer {
    fn load(
        w: &Weights<'_>,
        c: &Config,
        k: &KdaConfig,
        i: usize,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
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

    fn forward<'s>(&self, x: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.input_norm.apply(x);
        let h = x + match &self.mixer {
            TokenMixer::Delta(delta) => delta.forward(y, caches),
            TokenMixer::Attention(attention) => attention.forward(y, None, caches),
        };
        h + self.mlp.forward(self.post_norm.apply(h))
    }
}

pub(super) struct KimiLinear {
    embedding: Weight,
    layers: Vec<Layer>,
    head: Head,
    caches: CacheSpec,
}

impl KimiLinear {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let k = c.kda.ok_or_else(|| Error::file("a hybrid without delta attention"))?;
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let layer = |i| Layer::load(&w.at("layers").at(i), c, &k, i, &mut caches);
        Ok(Self {
            embedding,
            layers: (0..c.layers).map(layer).collect::<Result<_>>()?,
            head: Head { norm: w.norm("norm", c.hidden)?, linear, softcap: None },
            caches,
        })
    }
}

impl Model for KimiLinear {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let mut x = step.ids().embed(&self.embedding, 1.0); // [T, H]
        for layer in &self.layers {
            x = layer.forward(x, caches);
        }
        self.head.emit(step, x);
    }
}
