//! Falcon-H1: each block mixes tokens by attention and by a selective scan side by side, with factors everywhere.
//!
//! `h = x + scan(norm x) + attention(norm x)`, `h + mlp(norm h)`.

use longrun_array::{Map, Tensor};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Multipliers};
use crate::error::{Error, Result};
use crate::nn::{Attention, AttentionKind, Mamba, Mlp, RmsNorm, Ropes, scaled};
use crate::weights::Weights;

pub(super) struct Layer {
    input_norm: RmsNorm,
    scan: Mamba,
    attention: Attention,
    mlp_norm: RmsNorm,
    mlp: Mlp,
    multipliers: Multipliers,
}

impl Block for Layer {
    const LAST_NORM: &'static str = "final_layernorm";

    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let s = c.ssm.as_ref().ok_or_else(|| Error::file("a scan without sizes"))?;
        let kind = AttentionKind::default();
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            scan: Mamba::load(&w.at("mamba"), c, s, caches)?,
            attention: Attention::load(&w.at("self_attn"), c, i, caches, kind)?,
            mlp_norm: w.norm("pre_ff_layernorm", c.hidden)?,
            mlp: Mlp::load(&w.at("feed_forward"), c, c.intermediate, Map::Silu)?,
            multipliers: c.multipliers,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let m = &self.multipliers;
        let y = self.input_norm.apply(x);
        let seen = self.attention.forward(scaled(y, m.attention_in), ropes, caches);
        let h = x + (self.scan.forward(y, caches) + scaled(seen, m.attention_out));
        h + self.mlp.forward_scaled(self.mlp_norm.apply(h), [m.mlp_gate, m.mlp_down])
    }
}
