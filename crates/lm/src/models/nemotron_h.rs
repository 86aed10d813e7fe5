//! Mamba 2 and Nemotron-H: blocks of one mixer each, `x + mixer(norm x)`.
//!
//! All blocks of Mamba 2 are selective scans. Those of Nemotron-H are scans, attention without positions, MLPs, or
//! mixtures of experts; both of the latter square what is above 0 and have no gate.

use longrun_array::{ExpertsUp, Map, Scoring, Tensor, Weight};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Mixer};
use crate::error::{Error, Result};
use crate::nn::{Attention, AttentionKind, Linear, Mamba, RmsNorm, Ropes};
use crate::weights::Weights;

/// `down(relu(up x)^2)`
struct Mlp {
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn load(w: &Weights<'_>, c: &Config, inner: usize) -> Result<Self> {
        Ok(Self {
            up: w.linear("up_proj", [inner, c.hidden], c.mlp_bias)?,
            down: w.linear("down_proj", [c.hidden, inner], c.mlp_bias)?,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        self.down.apply(self.up.apply(x).apply(Map::Relu2))
    }
}

/// Experts beside one that serves every token; they may work on fewer columns.
struct Moe {
    router: Linear,
    correction: Weight,
    latent: Option<[Linear; 2]>,
    up: Weight,
    down: Weight,
    shared: Mlp,
    k: usize,
    scoring: Scoring,
}

impl Moe {
    fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let [up, down] = match w.in_files("switch_mlp.fc1.weight") {
            true => ["fc1", "fc2"],
            false => ["up_proj", "down_proj"],
        };
        let missing = || Error::file("this field is missing").at("n_routed_experts");
        let m = c.moe.as_ref().ok_or_else(missing)?;
        let width = m.latent.unwrap_or(c.hidden);
        let latent = match m.latent {
            Some(width) => Some([
                w.linear("fc1_latent_proj", [width, c.hidden], c.mlp_bias)?,
                w.linear("fc2_latent_proj", [c.hidden, width], c.mlp_bias)?,
            ]),
            None => None,
        };
        Ok(Self {
            router: w.linear("gate", [m.experts, c.hidden], false)?,
            correction: w.vector("gate.e_score_correction_bias", m.experts, 0.0, |b| b)?,
            latent,
            up: w.experts(up, m.experts, [m.intermediate, width])?,
            down: w.experts(down, m.experts, [width, m.intermediate])?,
            shared: Mlp::load(&w.at("shared_experts"), c, m.shared_intermediate)?,
            k: m.per_token,
            scoring: m.scoring,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let routing = self.router.apply(x).route_with(self.k, self.scoring, &self.correction);
        let up = ExpertsUp { gate: None, up: &self.up, bias: None, f: Map::Relu2.into() };
        let experts =
            |x: Tensor<'s>| x.experts_up(routing, up).experts_down(routing, &self.down, None);
        let y = match &self.latent {
            Some([into, out]) => out.apply(experts(into.apply(x))),
            None => experts(x),
        };
        y + self.shared.forward(x)
    }
}

enum Mixing {
    Scan(Box<Mamba>),
    Attention(Box<Attention>),
    Mlp(Box<Mlp>),
    Moe(Box<Moe>),
}

pub(super) struct Layer {
    norm: RmsNorm,
    mixing: Mixing,
}

impl Block for Layer {
    const LAST_NORM: &'static str = "norm_f";

    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let mixer = &w.at("mixer");
        let mixing = match c.mixers[i] {
            Mixer::Linear => {
                let s = c.ssm.as_ref().ok_or_else(|| Error::file("a scan without sizes"))?;
                Mixing::Scan(Box::new(Mamba::load(mixer, c, s, caches)?))
            }
            Mixer::Mlp => Mixing::Mlp(Box::new(Mlp::load(mixer, c, c.intermediate)?)),
            Mixer::Experts => Mixing::Moe(Box::new(Moe::load(mixer, c)?)),
            _ => {
                let kind = AttentionKind::default();
                Mixing::Attention(Box::new(Attention::load(mixer, c, i, caches, kind)?))
            }
        };
        Ok(Self { norm: w.norm("norm", c.hidden)?, mixing })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.norm.apply(x);
        x + match &self.mixing {
            Mixing::Scan(mamba) => mamba.forward(y, caches),
            Mixing::Attention(attention) => attention.forward(y, ropes, caches),
            Mixing::Mlp(mlp) => mlp.forward(y),
            Mixing::Moe(moe) => moe.forward(y),
        }
    }
}
