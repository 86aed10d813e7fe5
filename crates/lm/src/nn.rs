//! The blocks that models are made of: a weight or a few, and what they do to a tensor.
//!
//! Owns the layers that more than one family uses. Shapes are `[T, cols]`: `T` tokens of all rows of a step.

use longrun_array::{AttentionSpec, Map, Scoring, Step, Tensor, Weight};

use crate::cache::{Caches, KvSpec};
use crate::config::{Config, Family, Mixer, MoeConfig};
use crate::error::Result;
use crate::rope::RopeSpec;
use crate::weights::Weights;

/// `x W^T + b`
pub struct Linear {
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Weight>,
}

impl Linear {
    /// `[T, cols] -> [T, rows]`
    #[track_caller]
    pub fn apply<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        x.linear(&self.weight, self.bias.as_ref())
    }
}

/// `x / sqrt(mean x^2 + eps) * w`, over groups of columns.
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

    /// The norm times `silu(gate)`.
    #[track_caller]
    pub fn gated<'s>(&self, x: Tensor<'s>, gate: Tensor<'s>) -> Tensor<'s> {
        x.gated_rms_norm(gate, &self.weight, self.group, self.eps)
    }
}

/// Rotary positions; its table is made once a step and shared by layers.
pub struct Rope {
    frequencies: Weight,
    factor: f32,
}

impl Rope {
    /// # Errors
    /// Memory runs out.
    pub fn new(w: &Weights<'_>, spec: &RopeSpec, name: &str) -> Result<Self> {
        let mut frequencies = spec.frequencies();
        // GGUF files carry llama3 scaling as divisors.
        if w.has_file_tensor("rope_freqs.weight") {
            let divisors = w.file_numbers("rope_freqs.weight", frequencies.len())?;
            frequencies.iter_mut().zip(divisors).for_each(|(f, d)| *f /= d);
        }
        let frequencies = Weight::vector(w.runtime, name, &frequencies)?;
        Ok(Self { frequencies, factor: spec.attention_factor() })
    }

    /// `[T, rotary]`: cosines, then sines.
    #[track_caller]
    pub fn table<'s>(&self, step: Step<'s>) -> Tensor<'s> {
        step.positions().rope_table(&self.frequencies, self.factor)
    }
}

/// Attention with grouped key heads, rotary positions, and what families add to it.
pub struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    /// Norms over each head of queries and keys.
    norms: Option<(RmsNorm, RmsNorm)>,
    /// The query projection has a second half, which gates the result.
    gated: bool,
    spec: AttentionSpec,
    head_dim: usize,
    rotates: bool,
    interleaved: bool,
    slot: usize,
}

/// What families add to attention.
#[derive(Clone, Copy, Default)]
pub struct AttentionKind {
    /// Norms over each head.
    pub norms: bool,
    /// A gate beside each query head.
    pub gated: bool,
}

impl Attention {
    /// `slot` is its place among the attention layers.
    ///
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(
        w: &Weights<'_>,
        c: &Config,
        layer: usize,
        slot: usize,
        kind: AttentionKind,
    ) -> Result<Self> {
        let (h, d) = (c.hidden, c.head_dim);
        let q = if kind.gated {
            // The checkpoint has [q | gate] head by head; here all queries come first.
            let half = |part: usize| (0..c.heads * d).map(move |i| (i / d * 2 + part) * d + i % d);
            w.linear_rows("q_proj", [2 * c.heads * d, h], half(0).chain(half(1)))?
        } else {
            w.linear("q_proj", [c.heads * d, h], c.attention_bias)?
        };
        let norms = match kind.norms {
            true => Some((w.norm("q_norm", d)?, w.norm("k_norm", d)?)),
            false => None,
        };
        let window = if c.mixers[layer] == Mixer::Sliding { c.window } else { None };
        Ok(Self {
            q,
            k: w.linear("k_proj", [c.kv_heads * d, h], c.attention_bias)?,
            v: w.linear("v_proj", [c.kv_heads * d, h], c.attention_bias)?,
            o: w.linear("o_proj", [h, c.heads * d], c.output_bias)?,
            norms,
            gated: kind.gated,
            spec: AttentionSpec { heads: c.heads, scale: c.scale, window, softcap: c.softcap },
            head_dim: d,
            rotates: c.rotates[layer],
            interleaved: c.rope_interleaved,
            slot,
        })
    }

    /// What it keeps of each token.
    pub fn cache(c: &Config, layer: usize) -> KvSpec {
        let window = if c.mixers[layer] == Mixer::Sliding { c.window } else { None };
        KvSpec { heads: c.kv_heads, dim: c.head_dim, window, dead_values: false }
    }

    /// `[T, H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>, rope: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let cols = self.spec.heads * self.head_dim;
        let (q, k, v) = (self.q.apply(x), self.k.apply(x), self.v.apply(x));
        let [q, gate] = if self.gated { q.split([cols, cols]) } else { [q, q] };
        let (q, k) = match &self.norms {
            Some((q_norm, k_norm)) => (q_norm.apply(q), k_norm.apply(k)),
            None => (q, k),
        };
        let (q, k) = if self.rotates {
            let rotate = |x: Tensor<'s>| x.rope(rope, self.head_dim, self.interleaved);
            (rotate(q), rotate(k))
        } else {
            (q, k)
        };
        let (keys, values) = caches.write(self.slot, k, v);
        let y = q.attend(&keys, &values, self.spec);
        self.o.apply(if self.gated { y.gated(gate, Map::Sigmoid) } else { y })
    }
}

/// `down(f(gate x) * up x)`
pub struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
    f: Map,
}

impl Mlp {
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(w: &Weights<'_>, c: &Config, inner: usize, f: Map) -> Result<Self> {
        Ok(Self {
            gate: w.linear("gate_proj", [inner, c.hidden], c.mlp_bias)?,
            up: w.linear("up_proj", [inner, c.hidden], c.mlp_bias)?,
            down: w.linear("down_proj", [c.hidden, inner], c.mlp_bias)?,
            f,
        })
    }

    /// `[T, H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        self.down.apply(self.up.apply(x).gated(self.gate.apply(x), self.f))
    }
}

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
        let mixtral = c.family == Family::Mixtral;
        let names =
            if mixtral { ["w1", "w3", "w2"] } else { ["gate_proj", "up_proj", "down_proj"] };
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
            scoring: Scoring::Softmax { renormalize: m.renormalize },
        })
    }

    /// `[T, H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let routing = self.router.apply(x).route(self.k, self.scoring); // [T, 2k]
        let inner = x.experts_up(routing, &self.gate, &self.up, Map::Silu); // [T, k * I]
        let y = inner.experts_down(routing, &self.down);
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
        let sparse = |m: &&MoeConfig| {
            !m.dense_layers.contains(&layer) && (layer + 1).is_multiple_of(m.every)
        };
        match c.moe.as_ref().filter(sparse) {
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
        let x = self.norm.apply(x.take_outputs());
        if step.key().head == longrun_array::Head::Hidden {
            return step.emit(x);
        }
        let logits = self.linear.apply(x);
        step.emit(match self.softcap {
            Some(c) => logits.apply(Map::Softcap(c)),
            None => logits,
        });
    }
}
