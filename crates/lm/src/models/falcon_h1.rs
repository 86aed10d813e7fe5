//! Falcon-H1: each block mixes tokens by attention and by a selective scan side by side, with factors everywhere.
//!
//! `h = x + scan(norm x) + attention(norm x)`, `h + mlp(norm h)`.

use longrun_array::{Map, Step, Tensor, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Multipliers};
use crate::error::{Error, Result};
use crate::nn::{Attention, AttentionKind, Head, Mamba, Mlp, RmsNorm, Rope, scaled};
use crate::weights::Weights;

struct Layer {
    input_norm: RmsNorm,
    scan: Mamba,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let s = c.ssm.as_ref().ok_or_else(|| Error::file("a scan without sizes"))?;
        let kind = AttentionKind::default();
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            scan: Mamba::load(&w.at("mamba"), c, s, caches)?,
            attention: Attention::load(&w.at("self_attn"), c, i, caches, kind)?,
            mlp_norm: w.norm("pre_ff_layernorm", c.hidden)?,
            mlp: Mlp::load(&w.at("feed_forward"), c, c.intermediate, Map::Silu)?,
        })
    }

    fn forward<'s>(
        &self,
        x: Tensor<'s>,
        rope: Tensor<'s>,
        m: &Multipliers,
        caches: &Caches,
    ) -> Tensor<'s> {
        let y = self.input_norm.apply(x);
        let seen = self.attention.forward(scaled(y, m.attention_in), rope, caches);
        let h = x + (self.scan.forward(y, caches) + scaled(seen, m.attention_out));
        h + self.mlp.forward_scaled(self.mlp_norm.apply(h), [m.mlp_gate, m.mlp_down])
    }
}

pub(super) struct FalconH1 {
    embedding: Weight,
    rope: Rope,
    layers: Vec<Layer>,
    head: Head,
    multipliers: Multipliers,
    caches: CacheSpec,
}

impl FalconH1 {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let layers = (0..c.layers).map(|i| Layer::load(&w.at("layers").at(i), c, i, &mut caches));
        Ok(Self {
            embedding,
            rope: Rope::new(w, &c.rope, "rope")?,
            layers: layers.collect::<Result<_>>()?,
            head: Head { norm: w.norm("final_layernorm", c.hidden)?, linear, softcap: None },
            multipliers: c.multipliers,
            caches,
        })
    }
}

impl Model for FalconH1 {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let (rope, m) = (self.rope.table(step), &self.multipliers);
        let mut x = step.ids().embed(&self.embedding, m.embedding); // [T, H]
        for layer in &self.layers {
            x = layer.forward(x, rope, m, caches);
        }
        self.head.emit_scaled(step, x, m.logits);
    }
}
