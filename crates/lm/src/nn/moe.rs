//! Experts, and the choice between them and a plain MLP.

use longrun_array::{ExpertsUp, Map, Scoring, Tensor, Weight};

use super::{Linear, Mlp};
use crate::config::{Config, Family, MoeConfig};
use crate::error::Result;
use crate::weights::Weights;

/// A mixture of experts, with or without one that serves every token.
pub struct Moe {
    router: Linear,
    gate: Weight,
    up: Weight,
    down: Weight,
    shared: Option<(Mlp, Linear)>,
    k: usize,
    scoring: Scoring,
}

impl Moe {
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(w: &Weights<'_>, c: &Config, m: &MoeConfig) -> Result<Self> {
        let (h, i) = (c.hidden, m.intermediate);
        let short = c.family == Family::Mixtral || w.in_files("experts.0.w1.weight");
        let names = if short { ["w1", "w3", "w2"] } else { ["gate_proj", "up_proj", "down_proj"] };
        let [gate, up] = w.gate_up([names[0], names[1]], m.experts, [i, h])?;
        let shared = match m.shared_intermediate {
            0 => None,
            inner => Some((
                Mlp::load(&w.at("shared_expert"), c, inner, Map::Silu)?,
                w.linear("shared_expert_gate", [1, h], false)?,
            )),
        };
        Ok(Self {
            router: w.linear("gate", [m.experts, h], false)?,
            gate,
            up,
            down: w.experts(names[2], m.experts, [h, i])?,
            shared,
            k: m.per_token,
            scoring: m.scoring,
        })
    }

    /// `[T, H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let routing = self.router.apply(x).route(self.k, self.scoring); // [T, 2k]
        let (gate, f) = (Some(&self.gate), Map::Silu.into());
        let inner = x.experts_up(routing, ExpertsUp { gate, up: &self.up, bias: None, f }); // [T, k * I]
        let y = inner.experts_down(routing, &self.down, None);
        match &self.shared {
            Some((mlp, gate)) => y + mlp.forward(x).gated(gate.apply(x), Map::Sigmoid),
            None => y,
        }
    }
}

/// What comes after attention in a block.
pub enum FeedForward {
    /// One MLP for all tokens.
    Dense(Box<Mlp>),
    /// Experts.
    Moe(Box<Moe>),
}

impl FeedForward {
    /// Experts where the config has them, else an MLP.
    ///
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(w: &Weights<'_>, c: &Config, layer: usize) -> Result<Self> {
        match c.moe.as_ref().filter(|m| m.sparse[layer]) {
            Some(moe) => Ok(Self::Moe(Box::new(Moe::load(w, c, moe)?))),
            None => Ok(Self::Dense(Box::new(Mlp::load(w, c, c.intermediate, Map::Silu)?))),
        }
    }

    /// `[T, H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Moe(moe) => moe.forward(x),
        }
    }
}
