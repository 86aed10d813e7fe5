//! Attention with keys and values of each token.

use longrun_array::{AttentionSpec, Map, Tensor};

use super::{Linear, RmsNorm};
use crate::cache::{CacheSpec, Caches, PagedId};
use crate::config::{Config, Mixer};
use crate::error::Result;
use crate::weights::Weights;

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
    keys: PagedId,
    values: PagedId,
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
    /// Adds what it keeps to `caches`.
    ///
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(
        w: &Weights<'_>,
        c: &Config,
        layer: usize,
        caches: &mut CacheSpec,
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
            keys: caches.keys(c.kv_heads, d, window),
            values: caches.values(c.kv_heads, d, window),
        })
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
        let keys = caches.paged(x.step(), self.keys).write(k);
        let values = caches.paged(x.step(), self.values).write(v);
        let y = q.attend(&keys, &values, self.spec);
        self.o.apply(if self.gated { y.gated(gate, Map::Sigmoid) } else { y })
    }
}
