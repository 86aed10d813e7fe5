//! Multi-head latent attention: keys and values of all heads are made from one latent a token, and only that is kept.
//!
//! Owns the absorbed form. A head's score is `q_nope . (W_k c) + q_pe . k_pe = (q_nope W_k) . c + q_pe . k_pe`, so
//! queries are brought to the latent once, all heads look at one key `[c | k_pe]`, whose first numbers are its value, and
//! `W_v` comes after. Refuses to unfold keys and values: they are never in memory.

use longrun_array::{AttentionSpec, Choice, Seen, Tensor, Weight};

use super::{Linear, RmsNorm};
use crate::cache::{CacheSpec, Caches, PagedId};
use crate::config::{Config, MlaConfig};
use crate::error::{Error, Result};
use crate::weights::{HostMatrix, Weights};

/// Latent attention.
pub struct Mla {
    /// To the latent of queries, with its norm.
    down: Option<(Linear, RmsNorm)>,
    /// `[heads * nope | heads * rope]`
    q: Linear,
    /// `[kv_rank | rope]`
    kv: Linear,
    kv_norm: RmsNorm,
    /// `W_k` of each head, turned: `[heads, kv_rank, nope]`.
    absorb: Weight,
    /// `W_v` of each head: `[heads, value, kv_rank]`.
    unfold: Weight,
    o: Linear,
    sizes: MlaConfig,
    spec: AttentionSpec,
    keys: PagedId,
}

impl Mla {
    /// Adds what it keeps to `caches`.
    ///
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(w: &Weights<'_>, c: &Config, caches: &mut CacheSpec) -> Result<Self> {
        let m = c.mla.ok_or_else(|| Error::file("this field is missing").at("kv_lora_rank"))?;
        let (n, h, head) = (c.heads, c.hidden, m.nope + m.rope);
        // The checkpoint has [nope | rope] head by head; here the first parts of all heads come first.
        let part = |start: usize, len: usize| {
            (0..n * len).map(move |i| i / len.max(1) * head + start + i % len.max(1))
        };
        let rows = part(0, m.nope).chain(part(m.nope, m.rope));
        let norm =
            |name: &str, rank| -> Result<_> { Ok(RmsNorm { eps: m.eps, ..w.norm(name, rank)? }) };
        let (down, q) = match m.q_rank {
            Some(rank) => {
                let down = w.linear("q_a_proj", [rank, h], c.attention_bias)?;
                let q = w.linear_rows("q_b_proj", [n * head, rank], rows)?;
                (Some((down, norm("q_a_layernorm", rank)?)), q)
            }
            None => (None, w.linear_rows("q_proj", [n * head, h], rows)?),
        };
        let [absorb, unfold] = by_head(w, n, &m)?;
        let kv = w.linear("kv_a_proj_with_mqa", [m.kv_rank + m.rope, h], c.attention_bias)?;
        Ok(Self {
            down,
            q,
            kv,
            kv_norm: norm("kv_a_layernorm", m.kv_rank)?,
            absorb,
            unfold,
            o: w.linear("o_proj", [h, n * m.value], c.output_bias)?,
            sizes: m,
            spec: AttentionSpec { heads: n, scale: m.scale, window: None, softcap: None },
            keys: caches.keys(1, m.kv_rank + m.rope, None),
        })
    }

    /// What queries are made from: `x [T, H]`, or its latent `[T, q_rank]`.
    #[track_caller]
    pub fn latent_of_queries<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        self.down.as_ref().map_or(x, |(down, norm)| norm.apply(down.apply(x)))
    }

    /// `[T, H] -> [T, H]`; without `rope` nothing is rotated.
    #[track_caller]
    pub fn forward<'s>(
        &self,
        x: Tensor<'s>,
        rope: Option<Tensor<'s>>,
        caches: &Caches,
    ) -> Tensor<'s> {
        self.attend(x, self.latent_of_queries(x), rope, None, caches)
    }

    /// The same, given what queries are made from, over all positions or the chosen ones.
    #[track_caller]
    pub fn attend<'s>(
        &self,
        x: Tensor<'s>,
        latent_of_queries: Tensor<'s>,
        rope: Option<Tensor<'s>>,
        chosen: Option<Choice<'s>>,
        caches: &Caches,
    ) -> Tensor<'s> {
        let (m, n) = (self.sizes, self.spec.heads);
        let rotate = |x: Tensor<'s>| rope.map_or(x, |t| x.rope(t, m.rope, m.interleaved));
        let (q, kv) = (self.q.apply(latent_of_queries), self.kv.apply(x));
        let absorbed = q.columns(0, n * m.nope).grouped_linear(&self.absorb); // [T, n * kv_rank]
        let latent = self.kv_norm.apply(kv.columns(0, m.kv_rank));
        let (q, key) = if m.rope > 0 {
            let (q_pe, k_pe) = (q.columns(n * m.nope, n * m.rope), kv.columns(m.kv_rank, m.rope));
            (absorbed.concat(rotate(q_pe), n), latent.concat(rotate(k_pe), 1))
        } else {
            (absorbed, latent)
        };
        let keys = caches.paged(x.step(), self.keys).write(key);
        let y = q.attend_to(Seen { chosen, ..Seen::latent(&keys, m.kv_rank) }, self.spec);
        self.o.apply(y.grouped_linear(&self.unfold))
    }
}

/// `W_k` turned and `W_v` of each head: from `kv_b_proj`, which has `[k | v]` head by head, or ready-made.
fn by_head(w: &Weights<'_>, heads: usize, m: &MlaConfig) -> Result<[Weight; 2]> {
    if w.in_files("embed_q.weight") {
        return Ok([
            w.stack("embed_q.weight", heads, [m.kv_rank, m.nope])?,
            w.stack("unembed_out.weight", heads, [m.value, m.kv_rank])?,
        ]);
    }
    let (name, head) = ("kv_b_proj.weight", m.nope + m.value);
    let both = w.host(name, [heads * head, m.kv_rank])?;
    let rows = |h: usize, start: usize, len: usize| {
        both.take_rows((0..len).map(move |i| h * head + start + i))
    };
    let k = (0..heads).map(|h| Ok(rows(h, 0, m.nope).transposed()));
    let v = (0..heads).map(|h| Ok(rows(h, m.nope, m.value)));
    Ok([
        w.put(name, &HostMatrix::stacked(k)?.0, heads)?,
        w.put(name, &HostMatrix::stacked(v)?.0, heads)?,
    ])
}
