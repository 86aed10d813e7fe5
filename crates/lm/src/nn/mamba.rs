//! The Mamba 2 layer: a short causal convolution, then a selective scan.

use longrun_array::{Map, Scan, SsmHeads, Tensor, Weight};

use super::{Linear, RmsNorm, scaled};
use crate::cache::{CacheSpec, Caches, RecordId};
use crate::config::{Config, SsmConfig, SsmGate};
use crate::error::Result;
use crate::weights::Weights;

/// A Mamba 2 layer with its window and memory.
pub struct Mamba {
    /// To `[gate | x | b | c | time steps]`.
    input: Linear,
    taps: Weight,
    conv_bias: Option<Weight>,
    neg_a: Weight, // -exp(A_log)
    dt_bias: Weight,
    skip: Weight,
    norm: Option<RmsNorm>,
    gate: SsmGate,
    out: Linear,
    heads: SsmHeads,
    limits: (f32, f32),
    /// Factors on what goes in, on the gate, on time steps, on what comes out.
    scales: [f32; 4],
    window: RecordId,
    memory: RecordId,
}

impl Mamba {
    /// Adds what it keeps to `caches`.
    ///
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(
        w: &Weights<'_>,
        c: &Config,
        s: &SsmConfig,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let SsmHeads { heads, groups, dim, state } = s.heads;
        let (inner, keys) = (heads * dim, groups * state);
        let (channels, m) = (inner + 2 * keys, &c.multipliers);
        // The convolution is linear: factors on its inputs are factors on its taps.
        let factor = |channel: usize| match channel {
            i if i < inner => m.ssm[1],
            i if i < inner + keys => m.ssm[2],
            _ => m.ssm[3],
        };
        let taps = w.conv_taps("conv1d.weight", channels, s.taps)?;
        let taps: Vec<f32> =
            taps.into_iter().enumerate().map(|(i, tap)| tap * factor(i % channels)).collect();
        Ok(Self {
            input: w.linear("in_proj", [inner + channels + heads, c.hidden], s.in_bias)?,
            taps: Weight::vector(w.runtime, "conv1d.weight", &taps)?,
            conv_bias: match s.conv_bias {
                true => Some(w.vector("conv1d.bias", channels, 0.0, |b| b)?),
                false => None,
            },
            neg_a: Weight::vector(w.runtime, "A_log", &w.decay_rates(heads)?)?,
            dt_bias: w.vector("dt_bias", heads, 0.0, |b| b)?,
            skip: w.vector("D", heads, 1.0, |d| d)?,
            norm: match s.gate {
                SsmGate::Alone => None,
                _ => Some(RmsNorm { group: inner / groups, ..w.plain_norm("norm", inner)? }),
            },
            gate: s.gate,
            out: w.linear("out_proj", [c.hidden, inner], s.out_bias)?,
            heads: s.heads,
            limits: s.limits,
            scales: [m.ssm_in, m.ssm[0], m.ssm[4], m.ssm_out],
            window: caches.record((s.taps - 1) * channels, channels),
            memory: caches.record(heads * state * dim, inner + keys + heads),
        })
    }

    /// `[T, H] -> [T, H]`. Moves the window and the memory of each row forward, in place.
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>, caches: &Caches) -> Tensor<'s> {
        let SsmHeads { heads, groups, dim, state } = self.heads;
        let (inner, keys) = (heads * dim, groups * state);
        let [window, memory] = [self.window, self.memory].map(|id| caches.record(x.step(), id));
        let [scale_in, scale_gate, scale_dt, scale_out] = self.scales;

        let all = self.input.apply(scaled(x, scale_in));
        let [z, mixed, dt] = all.split([inner, inner + 2 * keys, heads]);
        let (mixed, _) = mixed.conv(&self.taps, self.conv_bias.as_ref(), window, Map::Silu);
        let [x, b, c] = mixed.split([inner, keys, keys]);
        let scan = Scan {
            x,
            b,
            c,
            dt: scaled(dt, scale_dt),
            neg_a: &self.neg_a,
            bias: &self.dt_bias,
            skip: &self.skip,
            limits: self.limits,
        };
        let (y, _) = scan.run(self.heads, memory); // [T, heads * dim]

        let z = scaled(z, scale_gate);
        let y = match (&self.norm, self.gate) {
            (Some(norm), SsmGate::AfterNorm) => norm.gated(y, z, Map::Silu),
            (Some(norm), _) => norm.apply(y.gated(z, Map::Silu)),
            (None, _) => y.gated(z, Map::Silu),
        };
        scaled(self.out.apply(y), scale_out)
    }
}
