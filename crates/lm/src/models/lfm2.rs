//! LFM2: gated short convolutions in most layers, attention with norms over heads in the others.
//!
//! A convolution layer projects to three parts `b | c | x` and gives `out(c * conv(b * x))`, without activation. It keeps
//! the last few `b * x` of a sequence and nothing else.

use longrun_array::{Map, Tensor, Weight};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches, RecordId};
use crate::config::{Config, ConvConfig, Mixer};
use crate::error::{Error, Result};
use crate::nn::{Attention, AttentionKind, Linear, Mlp, RmsNorm, Ropes};
use crate::weights::Weights;

struct ShortConv {
    /// `[3 H, H]`: b, c and x.
    input: Linear,
    taps: Weight,
    bias: Option<Weight>,
    output: Linear,
    window: RecordId,
}

impl ShortConv {
    fn load(w: &Weights<'_>, c: &Config, conv: ConvConfig, caches: &mut CacheSpec) -> Result<Self> {
        let (h, taps) = (c.hidden, conv.taps);
        let by_tap = w.conv_taps("conv.weight", h, taps)?;
        Ok(Self {
            input: w.linear("in_proj", [3 * h, h], conv.bias)?,
            taps: Weight::vector(w.runtime, "conv.weight", &by_tap)?,
            bias: match conv.bias {
                true => Some(w.vector("conv.bias", h, 0.0, |b| b)?),
                false => None,
            },
            output: w.linear("out_proj", [h, h], conv.bias)?,
            window: caches.record((taps - 1) * h, h),
        })
    }

    /// `[T, H] -> [T, H]`. Moves the window of each row forward, in place.
    fn forward<'s>(&self, x: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let h = x.cols();
        let [b, c, x] = self.input.apply(x).split([h, h, h]);
        let (times, linear) = (Map::Scale(1.0), Map::Scale(1.0));
        let window = caches.record(x.step(), self.window);
        let (y, _) = x.gated(b, times).conv(&self.taps, self.bias.as_ref(), window, linear);
        self.output.apply(y.gated(c, times))
    }
}

enum TokenMixer {
    Conv(Box<ShortConv>),
    Attention(Box<Attention>),
}

pub(super) struct Layer {
    mixer_norm: RmsNorm,
    mixer: TokenMixer,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Block for Layer {
    const LAST_NORM: &'static str = "embedding_norm";

    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let conv = c.conv.ok_or_else(|| Error::file("a hybrid without convolutions"))?;
        let kind = AttentionKind { norms: c.qk_norms, ..AttentionKind::default() };
        Ok(Self {
            mixer_norm: w.norm("operator_norm", c.hidden)?,
            mixer: match c.mixers[i] {
                Mixer::Linear => {
                    TokenMixer::Conv(Box::new(ShortConv::load(&w.at("conv"), c, conv, caches)?))
                }
                _ => {
                    let w = w.at("self_attn");
                    TokenMixer::Attention(Box::new(Attention::load(&w, c, i, caches, kind)?))
                }
            },
            mlp_norm: w.norm("ffn_norm", c.hidden)?,
            mlp: Mlp::load(&w.at("feed_forward"), c, c.intermediate, Map::Silu)?,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.mixer_norm.apply(x);
        let h = x + match &self.mixer {
            TokenMixer::Conv(conv) => conv.forward(y, caches),
            TokenMixer::Attention(attention) => attention.forward(y, ropes, caches),
        };
        h + self.mlp.forward(self.mlp_norm.apply(h))
    }
}
