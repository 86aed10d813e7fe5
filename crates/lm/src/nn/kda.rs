//! Kimi delta attention: short causal convolutions, then the gated delta rule with a decay for each channel of a key.

use longrun_array::{DecayCurve, Delta, DeltaHeads, Map, Tensor, Weight};

use super::{Linear, RmsNorm};
use crate::cache::{CacheSpec, Caches, RecordId};
use crate::config::{Config, KdaConfig};
use crate::error::Result;
use crate::weights::Weights;

/// Queries, keys or values: a projection and a convolution with its window.
struct Short {
    linear: Linear,
    taps: Weight,
    window: RecordId,
}

impl Short {
    #[track_caller]
    fn forward<'s>(&self, x: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let window = caches.record(x.step(), self.window);
        self.linear.apply(x).conv(&self.taps, None, window, Map::Silu).0
    }
}

/// A KDA layer.
pub struct Kda {
    qkv: [Short; 3],
    /// Decays by way of few columns.
    decay: [Linear; 2],
    /// The gate of the result by way of few columns.
    gate: [Linear; 2],
    beta: Linear,
    neg_a: Weight, // -exp(A_log), for each channel
    dt_bias: Weight,
    curve: DecayCurve,
    norm: RmsNorm,
    out: Linear,
    heads: DeltaHeads,
    sums: RecordId,
    memory: RecordId,
}

impl Kda {
    /// Adds what it keeps to `caches`. The checkpoint has one convolution each for queries, keys and values, or one
    /// over all of their channels.
    ///
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(
        w: &Weights<'_>,
        c: &Config,
        k: &KdaConfig,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let (n, d, h) = (k.heads, k.dim, c.hidden);
        let channels = n * d;
        let fused = match w.first_of(&["q_conv1d", "q_conv.conv", "conv1d"]) {
            "conv1d" => Some(w.conv_taps("conv1d.weight", 3 * channels, k.taps)?),
            _ => None,
        };
        let mut short = |i: usize, name: &str| -> Result<Short> {
            let taps = match &fused {
                Some(all) => {
                    let rows = all.chunks_exact(3 * channels);
                    rows.flat_map(|row| row[i * channels..][..channels].to_vec()).collect()
                }
                None => {
                    let names = ["conv1d", "conv.conv"].map(|n| format!("{name}_{n}"));
                    let name = format!("{}.weight", w.first_of(&[&names[0], &names[1]]));
                    w.conv_taps(&name, channels, k.taps)?
                }
            };
            Ok(Short {
                linear: w.linear(&format!("{name}_proj"), [channels, h], false)?,
                taps: Weight::vector(w.runtime, "conv1d.weight", &taps)?,
                window: caches.record((k.taps - 1) * channels, channels),
            })
        };
        let qkv = [short(0, "q")?, short(1, "k")?, short(2, "v")?];
        let forget = match w.has("f_a_proj.weight") {
            true => w.clone(),
            false => w.at("forget_gate"),
        };
        let two = |w: &Weights<'_>, a: &str, b: &str| -> Result<[Linear; 2]> {
            Ok([w.linear(a, [d, h], false)?, w.linear(b, [channels, d], false)?])
        };
        // One number a head; decays are made channel by channel.
        let rates = forget.decay_rates(n)?;
        let neg_a: Vec<f32> = (0..channels).map(|i| rates[i / d]).collect();
        Ok(Self {
            qkv,
            decay: two(&forget, "f_a_proj", "f_b_proj")?,
            gate: two(w, "g_a_proj", "g_b_proj")?,
            beta: w.linear("b_proj", [n, h], false)?,
            neg_a: Weight::vector(w.runtime, "A_log", &neg_a)?,
            dt_bias: forget.vector("dt_bias", channels, 0.0, |b| b)?,
            curve: match k.lowest {
                Some(low) => DecayCurve::Bounded { low },
                None => DecayCurve::Softplus,
            },
            norm: w.plain_norm("o_norm", d)?,
            out: w.linear("o_proj", [h, channels], false)?,
            heads: DeltaHeads { hk: n, hv: n, dk: d, dv: d },
            sums: caches.record(2 * channels, channels),
            memory: caches.record(n * d * d, 3 * channels + n),
        })
    }

    /// `[T, H] -> [T, H]`. Moves the windows and the memory of each row forward, in place.
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let (step, dim) = (x.step(), self.heads.dk);
        let [q, k, v] = &self.qkv;
        let [q, k, v] = [q, k, v].map(|part| part.forward(x, caches)); // [T, heads * dim]
        let q = q.unit_norm(dim, 1e-6, (dim as f32).powf(-0.5));
        let k = k.unit_norm(dim, 1e-6, 1.0);

        let two = |[a, b]: &[Linear; 2]| b.apply(a.apply(x));
        let sums = caches.record(step, self.sums);
        let (decay, _) = two(&self.decay).decay(&self.neg_a, &self.dt_bias, sums, self.curve);
        let beta = self.beta.apply(x).apply(Map::Sigmoid); // [T, heads]

        let memory = caches.record(step, self.memory);
        let (y, _) = Delta { q, k, v, decay, beta }.rule(self.heads, memory);
        self.out.apply(self.norm.gated(y, two(&self.gate), Map::Sigmoid))
    }
}
