//! Qwen3-Next and Qwen3.5 (dense and with experts): gated delta layers, and gated attention every few layers.
//!
//! The two differ in how the projections of a delta layer are packed in the checkpoint, and in nothing else. In GGUF
//! files the value heads of Qwen3.5 are in another order: head `i` belongs to key head `i mod hk`.

use longrun_array::{DecayCurve, Delta, DeltaHeads, Map, Tensor, Weight};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches, RecordId};
use crate::config::{Config, DeltaConfig, Family, Mixer};
use crate::error::{Error, Result};
use crate::nn::{Attention, AttentionKind, FeedForward, Linear, RmsNorm, Ropes};
use crate::weights::Weights;

/// Linear attention: a short causal convolution, then the gated delta rule.
struct GatedDeltaNet {
    qkv: Linear,
    z: Linear,
    beta: Linear,
    a: Linear,
    taps: Weight,
    neg_a: Weight, // -exp(A_log)
    dt_bias: Weight,
    norm: RmsNorm,
    out: Linear,
    heads: DeltaHeads,
    tiled: bool,
    window: RecordId,
    sums: RecordId,
    memory: RecordId,
}

impl GatedDeltaNet {
    fn load(w: &Weights<'_>, c: &Config, d: &DeltaConfig, caches: &mut CacheSpec) -> Result<Self> {
        let DeltaConfig { key_heads: hk, value_heads: hv, key_dim: dk, value_dim: dv, .. } = *d;
        let (heads, taps) = (DeltaHeads { hk, hv, dk, dv }, d.taps);
        let (channels, h) = (2 * heads.keys() + heads.values(), c.hidden);
        let grouped = c.family == Family::Qwen3Next;
        let [qkv, z, beta, a] = if grouped && !w.in_files("in_proj_qkv.weight") {
            grouped_projections(w, heads, h)?
        } else {
            let [beta, a] = match grouped {
                true => grouped_rates(w, heads, h)?,
                false => {
                    [w.linear("in_proj_b", [hv, h], false)?, w.linear("in_proj_a", [hv, h], false)?]
                }
            };
            [
                w.linear("in_proj_qkv", [channels, h], false)?,
                w.linear("in_proj_z", [heads.values(), h], false)?,
                beta,
                a,
            ]
        };
        let by_tap = w.conv_taps("conv1d.weight", channels, taps)?;
        let keys = if d.tiled { hv * dk } else { heads.keys() }; // what the rule gets
        Ok(Self {
            qkv,
            z,
            beta,
            a,
            taps: Weight::vector(w.runtime, "conv1d.weight", &by_tap)?,
            neg_a: Weight::vector(w.runtime, "A_log", &w.decay_rates(hv)?)?,
            dt_bias: w.vector("dt_bias", hv, 0.0, |b| b)?,
            norm: w.plain_norm("norm", dv)?,
            out: w.linear("out_proj", [h, heads.values()], false)?,
            heads,
            tiled: d.tiled,
            window: caches.record((taps - 1) * channels, channels),
            sums: caches.record(2 * hv, hv),
            memory: caches.record(hv * dk * dv, keys + heads.values() + 2 * hv),
        })
    }

    /// `[T, H] -> [T, H]`. Moves the window and the memory of each row forward, in place.
    fn forward<'s>(&self, x: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let heads = self.heads;
        let [window, sums, memory] =
            [self.window, self.sums, self.memory].map(|id| caches.record(x.step(), id));
        let (mixed, _) = self.qkv.apply(x).conv(&self.taps, None, window, Map::Silu);
        let [q, k, v] = mixed.split([heads.keys(), heads.keys(), heads.values()]);

        let q = q.unit_norm(heads.dk, 1e-6, (heads.dk as f32).powf(-0.5));
        let k = k.unit_norm(heads.dk, 1e-6, 1.0);
        let curve = DecayCurve::Softplus;
        let (decay, _) = self.a.apply(x).decay(&self.neg_a, &self.dt_bias, sums, curve); // [T, hv]
        let beta = self.beta.apply(x).apply(Map::Sigmoid); // [T, hv]

        let (q, k, heads) = if self.tiled { tiled(q, k, heads) } else { (q, k, heads) };
        let (y, _) = Delta { q, k, v, decay, beta }.rule(heads, memory); // [T, hv * dv]
        self.out.apply(self.norm.gated(y, self.z.apply(x), Map::Silu))
    }
}

/// Queries and keys once more for each round of value heads, so that every value head has its own.
fn tiled<'s>(
    q: Tensor<'s>,
    k: Tensor<'s>,
    heads: DeltaHeads,
) -> (Tensor<'s>, Tensor<'s>, DeltaHeads) {
    let DeltaHeads { hk, hv, .. } = heads;
    let repeated = |x: Tensor<'s>| (1..hv / hk).fold(x, |all, _| all.concat(x, 1));
    (repeated(q), repeated(k), DeltaHeads { hk: hv, ..heads })
}

/// The rows of `in_proj_ba`, for each key head `[b | a]`, taken apart.
fn grouped_rates(w: &Weights<'_>, heads: DeltaHeads, hidden: usize) -> Result<[Linear; 2]> {
    let DeltaHeads { hk, hv, .. } = heads;
    let n = hv / hk;
    let part = |second: usize| {
        let rows = (0..hv).map(move |i| i / n * 2 * n + second * n + i % n);
        w.linear_rows("in_proj_ba", [2 * hv, hidden], rows)
    };
    Ok([part(0)?, part(1)?])
}

/// Qwen3-Next packs rows by key head: `[q | k | v | z]` and `[b | a]` for each. Here they are taken apart.
fn grouped_projections(w: &Weights<'_>, heads: DeltaHeads, hidden: usize) -> Result<[Linear; 4]> {
    let DeltaHeads { hk, hv, dk, dv } = heads;
    let per_key = hv / hk;
    let group = 2 * dk + 2 * per_key * dv;
    let take = |group: usize, start: usize, len: usize| {
        (0..hk * len).map(move |i| i / len * group + start + i % len)
    };
    let part = |start, len| take(group, start, len);
    let qkv = part(0, dk).chain(part(dk, dk)).chain(part(2 * dk, per_key * dv));
    let shape = [hk * group, hidden];
    let [beta, a] = grouped_rates(w, heads, hidden)?;
    Ok([
        w.linear_rows("in_proj_qkvz", shape, qkv)?,
        w.linear_rows("in_proj_qkvz", shape, part(2 * dk + per_key * dv, per_key * dv))?,
        beta,
        a,
    ])
}

enum TokenMixer {
    Delta(GatedDeltaNet),
    Attention(Attention),
}

pub(super) struct Layer {
    input_norm: RmsNorm,
    mixer: TokenMixer,
    post_norm: RmsNorm,
    mlp: FeedForward,
}

impl Block for Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let d = c.delta.ok_or_else(|| Error::file("a hybrid without linear attention heads"))?;
        let kind = AttentionKind { norms: c.qk_norms, gated: true, ..Default::default() };
        let mixer = match c.mixers[i] {
            Mixer::Linear => {
                TokenMixer::Delta(GatedDeltaNet::load(&w.at("linear_attn"), c, &d, caches)?)
            }
            _ => {
                let w = &w.at("self_attn");
                TokenMixer::Attention(Attention::load(w, c, i, caches, kind)?)
            }
        };
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            mixer,
            post_norm: w.norm("post_attention_layernorm", c.hidden)?,
            mlp: FeedForward::load(&w.at("mlp"), c, i)?,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.input_norm.apply(x);
        let h = x + match &self.mixer {
            TokenMixer::Delta(delta) => delta.forward(y, caches),
            TokenMixer::Attention(attention) => attention.forward(y, ropes, caches),
        };
        h + self.mlp.forward(self.post_norm.apply(h))
    }
}
