//! Olmo 2 and 3 and GLM-4: a norm after each half of a block, `h = x + norm(attention(x))`, `h + norm(mlp(h))`.
//!
//! Olmo has no norms before the halves, and norms of queries and keys over all heads at once; in Olmo 3 three of four
//! layers see a window, with positions of their own. GLM-4 has norms before the halves too, no norms of queries, and
//! turns every second pair of columns.

use longrun_array::{Map, Step, Tensor, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Family, Mixer};
use crate::error::Result;
use crate::nn::{Attention, AttentionKind, Head, Mlp, RmsNorm, Rope};
use crate::weights::Weights;

struct Layer {
    /// Before attention, and before the MLP.
    before: Option<[RmsNorm; 2]>,
    attention: Attention,
    after_attention: RmsNorm,
    mlp: Mlp,
    after_mlp: RmsNorm,
    local: bool,
}

impl Layer {
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
            local: c.mixers[i] == Mixer::Sliding,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, rope: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let before = |x: Tensor<'s>, half: usize| match &self.before {
            Some(norms) => norms[half].apply(x),
            None => x,
        };
        let h = x + self.after_attention.apply(self.attention.forward(before(x, 0), rope, caches));
        h + self.after_mlp.apply(self.mlp.forward(before(h, 1)))
    }
}

pub(super) struct Olmo2 {
    embedding: Weight,
    rope: Rope,
    local_rope: Option<Rope>,
    layers: Vec<Layer>,
    head: Head,
    caches: CacheSpec,
}

impl Olmo2 {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let layers = (0..c.layers).map(|i| Layer::load(&w.at("layers").at(i), c, i, &mut caches));
        let layers = layers.collect::<Result<_>>()?;
        let local = c.sliding_rope.as_ref().map(|rope| Rope::new(w, rope, "local rope"));
        Ok(Self {
            embedding,
            rope: Rope::new(w, &c.rope, "rope")?,
            local_rope: local.transpose()?,
            layers,
            head: Head { norm: w.norm("norm", c.hidden)?, linear, softcap: c.final_softcap },
            caches,
        })
    }
}

impl Model for Olmo2 {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let rope = self.rope.table(step);
        let local = self.local_rope.as_ref().map_or(rope, |rope| rope.table(step));
        let mut x = step.ids().embed(&self.embedding, 1.0); // [T, H]
        for layer in &self.layers {
            x = layer.forward(x, if layer.local { local } else { rope }, caches);
        }
        self.head.emit(step, x);
    }
}
