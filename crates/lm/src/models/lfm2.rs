//! LFM2: gated short convolutions in most layers, attention with norms over heads in the others.
//!
//! A convolution layer projects to three parts `b | c | x` and gives `out(c * conv(b * x))`, without activation. It keeps
//! the last few `b * x` of a sequence and nothing else.

use longrun_array::{Map, Step, Tensor, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches, RecordId};
use crate::config::{Config, ConvConfig, Mixer};
use crate::error::{Error, Result};
use crate::nn::{Attention, AttentionKind, Head, Linear, Mlp, RmsNorm, Rope};
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
        // The checkpoint has each channel's taps together, [H, 1, K] or [H, K, 1]; the kernel wants them tap by tap.
        let by_channel = w.numbers("conv.weight", h * taps, 0.3)?;
        let by_tap: Vec<f32> = (0..h * taps).map(|i| by_channel[i % h * taps + i / h]).collect();
        Ok(Self {
            input: w.linear("in_proj", [3 * h, h], conv.bias)?,
            taps: Weight::vector(w.runtime, "conv.weight", &by_tap)?,
            bias: match conv.bias {
                true => Some(w.vector("conv.bias", h, 0.0, |b| b)?),
                false => None,
            },
            output: w.linear("out_proj", [h, h], conv.bias)?,
            window: caches.record((taps - 1) * h),
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

struct Layer {
    mixer_norm: RmsNorm,
    mixer: TokenMixer,
    mlp_norm: RmsNorm,
    mlp: Mlp,
}

impl Layer {
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

    fn forward<'s>(&self, x: Tensor<'s>, rope: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.mixer_norm.apply(x);
        let h = x + match &self.mixer {
            TokenMixer::Conv(conv) => conv.forward(y, caches),
            TokenMixer::Attention(attention) => attention.forward(y, rope, caches),
        };
        h + self.mlp.forward(self.mlp_norm.apply(h))
    }
}

pub(super) struct Lfm2 {
    embedding: Weight,
    rope: Rope,
    layers: Vec<Layer>,
    head: Head,
    caches: CacheSpec,
}

impl Lfm2 {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let layers = (0..c.layers).map(|i| Layer::load(&w.at("layers").at(i), c, i, &mut caches));
        let layers = layers.collect::<Result<_>>()?;
        let norm = w.norm("embedding_norm", c.hidden)?;
        let head = Head { norm, linear, softcap: c.final_softcap };
        Ok(Self { embedding, rope: Rope::new(w, &c.rope, "rope")?, layers, head, caches })
    }
}

impl Model for Lfm2 {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let rope = self.rope.table(step);
        let mut x = step.ids().embed(&self.embedding, 1.0); // [T, H]
        for layer in &self.layers {
            x = layer.forward(x, rope, caches);
        }
        self.head.emit(step, x);
    }
}
