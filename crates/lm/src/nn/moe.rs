//! Experts, and the choice between them and a plain MLP.

use longrun_array::{ExpertsUp, Glu, Map, Score, Scoring, Tensor, Weight};

use super::{Linear, Mlp};
use crate::config::{Config, Family, MoeConfig};
use crate::error::Result;
use crate::weights::Weights;

/// A mixture of experts, with or without one that serves every token.
pub struct Moe {
    router: Linear,
    /// Added to the scores where experts are chosen, `[experts]`.
    correction: Option<Weight>,
    /// The experts of each id, `[ids, k]`.
    table: Option<Weight>,
    gate: Weight,
    up: Weight,
    down: Weight,
    /// Of gate, up and down, each `[experts, rows]`.
    biases: Option<[Weight; 3]>,
    /// The expert of every token, and a gate on it.
    shared: Option<(Mlp, Option<Linear>)>,
    k: usize,
    scoring: Scoring,
    f: Glu,
}

impl Moe {
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(w: &Weights<'_>, c: &Config, m: &MoeConfig) -> Result<Self> {
        Self::load_with(w, c, m, None)
    }

    /// Experts that a table has for each id of the vocabulary.
    ///
    /// # Errors
    /// As [`load`](Self::load); the table names an expert that is none.
    pub fn load_by_id(w: &Weights<'_>, c: &Config, m: &MoeConfig) -> Result<Self> {
        let table = w.table("gate.tid2eid", c.vocab * m.per_token, m.experts)?;
        Self::load_with(w, c, m, Some(table))
    }

    fn load_with(
        w: &Weights<'_>,
        c: &Config,
        m: &MoeConfig,
        table: Option<Weight>,
    ) -> Result<Self> {
        let (h, n, i) = (c.hidden, m.experts, m.intermediate);
        let biased = c.family == Family::GptOss;
        let [gate, up, down] = if biased {
            w.alternating_experts(n, [i, h])?
        } else {
            let short = w.in_files("experts.0.w1.weight");
            let names =
                if short { ["w1", "w3", "w2"] } else { ["gate_proj", "up_proj", "down_proj"] };
            let [gate, up] = w.gate_up([names[0], names[1]], n, [i, h])?;
            [gate, up, w.experts(names[2], n, [h, i])?]
        };
        let correction = match m.scoring.score {
            _ if table.is_some() => None,
            Score::Softmax => None,
            _ => {
                let names =
                    ["gate.e_score_correction_bias", "e_score_correction_bias", "gate.bias"];
                Some(w.vector(w.first_named(&names), n, 0.0, |b| b)?)
            }
        };
        Ok(Self {
            router: w.linear(w.first_of(&["gate", "router"]), [n, h], biased)?,
            correction,
            table,
            gate,
            up,
            down,
            biases: if biased { Some(alternating_biases(w, n, [i, h])?) } else { None },
            shared: shared(w, c, m)?,
            k: m.per_token,
            scoring: m.scoring,
            f: m.f,
        })
    }

    /// `[T, H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let logits = self.router.apply(x);
        let routing = match (&self.table, &self.correction) {
            (Some(table), _) => logits.route_by_id(self.k, self.scoring, table),
            (None, Some(bias)) => logits.route_with(self.k, self.scoring, bias),
            (None, None) => logits.route(self.k, self.scoring),
        }; // [T, 2k]
        let (gate, up, f) = (Some(&self.gate), &self.up, self.f);
        let bias = self.biases.as_ref().map(|[gate, up, _]| [gate, up]);
        let inner = x.experts_up(routing, ExpertsUp { gate, up, bias, f }); // [T, k * I]
        let y = inner.experts_down(routing, &self.down, self.biases.as_ref().map(|b| &b[2]));
        match &self.shared {
            Some((mlp, Some(gate))) => y + mlp.forward(x).gated(gate.apply(x), Map::Sigmoid),
            Some((mlp, None)) => y + mlp.forward(x),
            None => y,
        }
    }
}

/// The expert that serves every token; qwen's has a gate on it.
fn shared(w: &Weights<'_>, c: &Config, m: &MoeConfig) -> Result<Option<(Mlp, Option<Linear>)>> {
    if m.shared_intermediate == 0 {
        return Ok(None);
    }
    let gated = c.family.gates_shared_expert();
    let name = if gated { "shared_expert" } else { "shared_experts" };
    let mlp = Mlp::load(&w.at(name), c, m.shared_intermediate, m.f)?;
    let gate = match gated {
        true => Some(w.linear("shared_expert_gate", [1, c.hidden], false)?),
        false => None,
    };
    Ok(Some((mlp, gate)))
}

/// Biases of gate and up, which alternate in the files or stand apart, and of down.
fn alternating_biases(
    w: &Weights<'_>,
    experts: usize,
    [inner, cols]: [usize; 2],
) -> Result<[Weight; 3]> {
    let fused = "experts.gate_up_proj_bias";
    if !w.in_files(fused) {
        let one = |name: &str, rows| {
            w.vector(&format!("experts.{name}.bias"), experts * rows, 0.0, |b| b)
        };
        return Ok([one("gate_proj", inner)?, one("up_proj", inner)?, one("down_proj", cols)?]);
    }
    let both = w.numbers(fused, experts * 2 * inner, 0.0)?;
    let half = |second: usize| {
        let numbers: Vec<f32> = both.iter().skip(second).step_by(2).copied().collect();
        Weight::vector(w.runtime, fused, &numbers)
    };
    let down = w.vector("experts.down_proj_bias", experts * cols, 0.0, |b| b)?;
    Ok([half(0)?, half(1)?, down])
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
