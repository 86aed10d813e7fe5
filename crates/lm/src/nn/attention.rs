//! Attention with keys and values of each token.

use longrun_array::{AttentionSpec, Map, Seen, Tensor, Weight};

use super::{Linear, RmsNorm, Ropes};
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
    /// Norms of queries and keys.
    norms: Option<(RmsNorm, RmsNorm)>,
    /// A score without a value for each head.
    sinks: Option<Weight>,
    /// The query projection has a second half, which gates the result.
    gated: bool,
    spec: AttentionSpec,
    head_dim: usize,
    rotates: bool,
    /// It has a window, and the positions of layers that have.
    local: bool,
    interleaved: bool,
    /// Factor on queries that grows with their position: beta, and after how many positions.
    growth: Option<(f32, usize)>,
    keys: PagedId,
    values: PagedId,
}

/// What families add to attention.
#[derive(Clone, Copy, Default)]
pub struct AttentionKind {
    /// Norms over each head of queries and keys.
    pub norms: bool,
    /// These norms are over all heads at once.
    pub wide_norms: bool,
    /// A score without a value for each head.
    pub sinks: bool,
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
        let [q, k, v] = projections(w, c, kind.gated)?;
        let names = [["q_norm", "q_layernorm"], ["k_norm", "k_layernorm"]].map(|n| w.first_of(&n));
        let norm =
            |i: usize, heads: usize| w.norm(names[i], if kind.wide_norms { heads * d } else { d });
        let norms = match kind.norms {
            true => Some((norm(0, c.heads)?, norm(1, c.kv_heads)?)),
            false => None,
        };
        let sinks = match kind.sinks {
            true => Some(w.vector("sinks", c.heads, 0.0, |s| s)?),
            false => None,
        };
        let local = c.mixers[layer] == Mixer::Sliding;
        let window = c.window.filter(|_| local);
        Ok(Self {
            q,
            k,
            v,
            o: w.linear(w.first_of(&["o_proj", "out_proj"]), [h, c.heads * d], c.output_bias)?,
            norms,
            sinks,
            gated: kind.gated,
            spec: AttentionSpec { heads: c.heads, scale: c.scale, window, softcap: c.softcap },
            head_dim: d,
            rotates: c.rotates[layer],
            local,
            interleaved: c.rope_interleaved,
            growth: c.query_growth,
            keys: caches.keys(c.kv_heads, d, window),
            values: caches.values(c.kv_heads, d, window),
        })
    }

    /// `[T, H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let cols = self.spec.heads * self.head_dim;
        let (q, k, v) = (self.q.apply(x), self.k.apply(x), self.v.apply(x));
        let [q, gate] = if self.gated { q.split([cols, cols]) } else { [q, q] };
        let (q, k) = match &self.norms {
            Some((q_norm, k_norm)) => (q_norm.apply(q), k_norm.apply(k)),
            None => (q, k),
        };
        let table = if self.local { ropes.local } else { ropes.global };
        let (q, k) = match table.filter(|_| self.rotates) {
            Some(table) => {
                let rotate = |x: Tensor<'s>| x.rope(table, self.head_dim, self.interleaved);
                (rotate(q), rotate(k))
            }
            None => (q, k),
        };
        let q = match self.growth {
            Some((beta, every)) => {
                q.gated(x.step().positions().scale(beta, every), Map::Scale(1.0))
            }
            None => q,
        };
        let keys = caches.paged(x.step(), self.keys).write(k);
        let values = caches.paged(x.step(), self.values).write(v);
        let seen = Seen { sinks: self.sinks.as_ref(), ..Seen::new(&keys, &values) };
        let y = q.attend_to(seen, self.spec);
        self.o.apply(if self.gated { y.gated(gate, Map::Sigmoid) } else { y })
    }
}

/// Queries (with gates behind them), keys and values: three matrices, or `qkv_proj` with the rows of all.
fn projections(w: &Weights<'_>, c: &Config, gated: bool) -> Result<[Linear; 3]> {
    let (h, d, bias) = (c.hidden, c.head_dim, c.attention_bias);
    let (q, kv) = (c.heads * d, c.kv_heads * d);
    if w.in_files("qkv_proj.weight") {
        let all = q + 2 * kv;
        let biases = match bias {
            true => w.numbers("qkv_proj.bias", all, 0.0)?,
            false => Vec::new(),
        };
        let part = |rows: std::ops::Range<usize>| -> Result<Linear> {
            let bias = biases.get(rows.clone());
            let bias = bias.map(|b| Weight::vector(w.runtime, "qkv_proj.bias", b)).transpose()?;
            Ok(Linear { bias, ..w.linear_rows("qkv_proj", [all, h], rows)? })
        };
        return Ok([part(0..q)?, part(q..q + kv)?, part(q + kv..all)?]);
    }
    let queries = if gated {
        // The checkpoint has [q | gate] head by head; here all queries come first.
        let half = |part: usize| (0..q).map(move |i| (i / d * 2 + part) * d + i % d);
        w.linear_rows("q_proj", [2 * q, h], half(0).chain(half(1)))?
    } else {
        w.linear("q_proj", [q, h], bias)?
    };
    Ok([queries, w.linear("k_proj", [kv, h], bias)?, w.linear("v_proj", [kv, h], bias)?])
}
