//! Granite: dense (3), with experts, and hybrids of selective scans and attention (4), with factors on embeddings,
//! scores, logits, and on what each half of a block adds.
//!
//! `h = x + r mixer(norm x)`, `h + r ff(norm h)`; hybrids may have no positions.

use longrun_array::{ExpertsUp, Map, Scoring, Tensor, Weight};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Mixer, MoeConfig};
use crate::error::{Error, Result};
use crate::nn::{Attention, AttentionKind, Linear, Mamba, Mlp, RmsNorm, Ropes, scaled};
use crate::weights::Weights;

enum TokenMixer {
    Scan(Box<Mamba>),
    Attention(Box<Attention>),
}

/// An MLP whose gate and other half are one matrix: `down(silu(g) u)` with `[g | u] = up x`.
struct JoinedMlp {
    up: Linear,
    down: Linear,
    inner: usize,
}

/// The MLP of all tokens, or beside experts.
enum SharedMlp {
    Joined(Box<JoinedMlp>),
    /// GGUF files have its halves apart.
    Apart(Box<Mlp>),
}

impl SharedMlp {
    fn load(w: &Weights<'_>, c: &Config, inner: usize) -> Result<Self> {
        if w.in_files("gate_proj.weight") {
            return Ok(Self::Apart(Box::new(Mlp::load(w, c, inner, Map::Silu)?)));
        }
        Ok(Self::Joined(Box::new(JoinedMlp {
            up: w.linear("input_linear", [2 * inner, c.hidden], false)?,
            down: w.linear("output_linear", [c.hidden, inner], false)?,
            inner,
        })))
    }

    fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        match self {
            Self::Joined(mlp) => {
                let [gate, up] = mlp.up.apply(x).split([mlp.inner; 2]);
                mlp.down.apply(up.gated(gate, Map::Silu))
            }
            Self::Apart(mlp) => mlp.forward(x),
        }
    }
}

struct Moe {
    router: Linear,
    gate: Weight,
    up: Weight,
    down: Weight,
    shared: Option<SharedMlp>,
    k: usize,
    scoring: Scoring,
}

impl Moe {
    /// `w` is that of a layer.
    fn load(w: &Weights<'_>, c: &Config, m: &MoeConfig) -> Result<Self> {
        let (experts, n, shape) =
            (&w.at("block_sparse_moe"), m.experts, [m.intermediate, c.hidden]);
        let joined = "input_linear.weight";
        let [gate, up] = match experts.has(joined) {
            true => experts.halves(joined, n, shape)?,
            false => experts.gate_up(["gate_proj", "up_proj"], n, shape)?,
        };
        let shape = [c.hidden, m.intermediate];
        let joined = "output_linear.weight";
        let shared = match m.shared_intermediate {
            0 => None,
            inner => Some(SharedMlp::load(&w.at("shared_mlp"), c, inner)?),
        };
        Ok(Self {
            router: experts.linear("router.layer", [n, c.hidden], false)?,
            gate,
            up,
            down: match experts.has(joined) {
                true => experts.put(joined, &experts.host_stack(joined, n, shape)?, n)?,
                false => experts.experts("down_proj", n, shape)?,
            },
            shared,
            k: m.per_token,
            scoring: m.scoring,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let routing = self.router.apply(x).route(self.k, self.scoring); // [T, 2k]
        let up = ExpertsUp::gated(&self.gate, &self.up, Map::Silu);
        let y = x.experts_up(routing, up).experts_down(routing, &self.down, None);
        match &self.shared {
            Some(mlp) => y + mlp.forward(x),
            None => y,
        }
    }
}

enum FeedForward {
    Mlp(Box<Mlp>),
    Shared(SharedMlp),
    Moe(Box<Moe>),
}

impl FeedForward {
    fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        Ok(match &c.moe {
            Some(m) => Self::Moe(Box::new(Moe::load(w, c, m)?)),
            None if w.has("mlp.gate_proj.weight") => {
                Self::Mlp(Box::new(Mlp::load(&w.at("mlp"), c, c.intermediate, Map::Silu)?))
            }
            None => Self::Shared(SharedMlp::load(&w.at("shared_mlp"), c, c.intermediate)?),
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        match self {
            Self::Mlp(mlp) => mlp.forward(x),
            Self::Shared(mlp) => mlp.forward(x),
            Self::Moe(moe) => moe.forward(x),
        }
    }
}

pub(super) struct Layer {
    input_norm: RmsNorm,
    mixer: TokenMixer,
    post_norm: RmsNorm,
    mlp: FeedForward,
    /// Factor on what it adds to the stream.
    residual: f32,
}

impl Block for Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let mixer = match c.mixers[i] {
            Mixer::Linear => {
                let s = c.ssm.as_ref().ok_or_else(|| Error::file("a scan without sizes"))?;
                TokenMixer::Scan(Box::new(Mamba::load(&w.at("mamba"), c, s, caches)?))
            }
            _ => {
                let (w, kind) = (&w.at("self_attn"), AttentionKind::default());
                TokenMixer::Attention(Box::new(Attention::load(w, c, i, caches, kind)?))
            }
        };
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            mixer,
            post_norm: w.norm("post_attention_layernorm", c.hidden)?,
            mlp: FeedForward::load(w, c)?,
            residual: c.multipliers.residual,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.input_norm.apply(x);
        let y = match &self.mixer {
            TokenMixer::Scan(mamba) => mamba.forward(y, caches),
            TokenMixer::Attention(attention) => attention.forward(y, ropes, caches),
        };
        let h = x + scaled(y, self.residual);
        h + scaled(self.mlp.forward(self.post_norm.apply(h)), self.residual)
    }
}
