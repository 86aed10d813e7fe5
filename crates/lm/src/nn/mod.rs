//! The blocks that models are made of: a weight or a few, and what they do to a tensor.
//!
//! Owns the layers that more than one family uses. Shapes are `[T, cols]`: `T` tokens of all rows of a step.

mod attention;
mod hyper;
mod kda;
mod mamba;
mod mla;
mod moe;
mod rope;

use std::sync::Arc;

use longrun_array::{Glu, LowRank, Map, Step, Tensor, Weight};

pub use attention::{Attention, AttentionKind};
pub use hyper::{Hyper, HyperHead, spread};
pub use kda::Kda;
pub use mamba::Mamba;
pub use mla::Mla;
pub use moe::{FeedForward, Moe};
pub use rope::{Positions, Rope, Ropes};

use crate::config::Config;
use crate::error::Result;
use crate::weights::Weights;

/// `x * factor`, and nothing where that is 1.
#[track_caller]
pub(crate) fn scaled(x: Tensor<'_>, factor: f32) -> Tensor<'_> {
    if factor == 1.0 { x } else { x.apply(Map::Scale(factor)) }
}

/// `x W^T + b`, and what adapters add.
pub struct Linear {
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Weight>,
    pub(crate) adapter: Option<Box<Beside>>,
}

/// What stands beside a linear layer.
pub struct Beside {
    /// The adapter of all rows, `x A^T B^T`: `A [rank, cols]` and `B [rows, rank]`.
    pub(crate) fixed: Option<[Weight; 2]>,
    /// Those that rows choose.
    pub(crate) slots: Option<Arc<LowRank>>,
}

impl Linear {
    /// `[T, cols] -> [T, rows]`
    #[track_caller]
    pub fn apply<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let (weight, bias) = (&self.weight, self.bias.as_ref());
        let y = match self.adapter.as_ref().and_then(|beside| beside.slots.as_ref()) {
            Some(slots) => x.linear_beside(weight, bias, slots),
            None => x.linear(weight, bias),
        };
        match self.adapter.as_ref().and_then(|beside| beside.fixed.as_ref()) {
            Some([a, b]) => y + x.linear(a, None).linear(b, None),
            None => y,
        }
    }
}

/// `x / sqrt(mean x^2 + eps) * w`, over groups of columns; `w` is as wide as one group or as several.
pub struct RmsNorm {
    pub(crate) weight: Weight,
    pub(crate) group: usize,
    pub(crate) eps: f32,
}

impl RmsNorm {
    /// `[T, n * group] -> [T, n * group]`
    #[track_caller]
    pub fn apply<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        x.rms_norm(&self.weight, self.group, self.eps)
    }

    /// The norm times `f(gate)`.
    #[track_caller]
    pub fn gated<'s>(&self, x: Tensor<'s>, gate: Tensor<'s>, f: Map) -> Tensor<'s> {
        x.gated_rms_norm(gate, &self.weight, self.group, self.eps, f)
    }
}

/// `down(f(gate x, up x))`
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    f: Glu,
}

impl Mlp {
    /// Of three matrices, or of two where `gate_up_proj` has the rows of both.
    ///
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(w: &Weights<'_>, c: &Config, inner: usize, f: impl Into<Glu>) -> Result<Self> {
        let (h, bias, f) = (c.hidden, c.mlp_bias, f.into());
        let [gate, up] = if w.in_files("gate_up_proj.weight") {
            let part =
                |i| w.linear_rows("gate_up_proj", [2 * inner, h], i * inner..(i + 1) * inner);
            [part(0)?, part(1)?]
        } else {
            let names = [w.first_of(&["gate_proj", "w1"]), w.first_of(&["up_proj", "w3"])];
            [w.linear(names[0], [inner, h], bias)?, w.linear(names[1], [inner, h], bias)?]
        };
        let down = w.linear(w.first_of(&["down_proj", "w2"]), [h, inner], bias)?;
        Ok(Self { gate, up, down, f })
    }

    /// `[T, H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        self.forward_scaled(x, [1.0; 2])
    }

    /// The same with factors on the gate, before its function, and on the result.
    #[track_caller]
    pub fn forward_scaled<'s>(&self, x: Tensor<'s>, [gate, down]: [f32; 2]) -> Tensor<'s> {
        let gate = scaled(self.gate.apply(x), gate);
        scaled(self.down.apply(self.up.apply(x).gated(gate, self.f)), down)
    }
}

/// The last norm and the head.
pub struct Head {
    /// The last norm.
    pub norm: RmsNorm,
    /// Hidden state to scores over the vocabulary.
    pub linear: Linear,
    /// Scores become `c * tanh(score / c)`.
    pub softcap: Option<f32>,
}

impl Head {
    /// Emits what the step's key asks for, for the tokens whose results are wanted.
    #[track_caller]
    pub fn emit<'s>(&self, step: Step<'s>, x: Tensor<'s>) {
        self.emit_scaled(step, x, 1.0);
    }

    /// The same with a factor on the scores.
    #[track_caller]
    pub fn emit_scaled<'s>(&self, step: Step<'s>, x: Tensor<'s>, factor: f32) {
        let x = self.norm.apply(x.take_outputs());
        self.emit_normed(step, x, &self.linear, factor);
    }

    /// The same by `linear`, for hidden states behind a last norm, of the tokens whose results are wanted.
    #[track_caller]
    pub fn emit_normed<'s>(&self, step: Step<'s>, x: Tensor<'s>, linear: &Linear, factor: f32) {
        if step.key().head == longrun_array::Head::Hidden {
            return step.emit(x);
        }
        let logits = scaled(linear.apply(x), factor);
        step.emit(match self.softcap {
            Some(c) => logits.apply(Map::Softcap(c)),
            None => logits,
        });
    }
}
