//! DeepSeek V3 and its kin (Kimi K2): latent attention, and experts in groups beside one that serves every token.
//!
//! V3.2 is the same with an indexer in each layer: a small attention of its own that scores every position, and only the
//! best of them are attended to. Its library turns queries and keys by a Hadamard matrix before it rounds them to 8 bits;
//! scores are the same without either.

use longrun_array::{Choice, Tensor, Weight};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches, PagedId};
use crate::config::{Config, IndexerConfig};
use crate::error::{Error, Result};
use crate::nn::{FeedForward, Linear, Mla, RmsNorm, Ropes};
use crate::weights::Weights;

/// Chooses positions: `sum over heads of weight * relu(q . k)`, the best of them.
struct Indexer {
    q: Linear,
    k: Linear,
    /// Of keys: weight and bias.
    norm: [Weight; 2],
    weights: Linear,
    sizes: IndexerConfig,
    keys: PagedId,
}

impl Indexer {
    fn load(
        w: &Weights<'_>,
        c: &Config,
        sizes: IndexerConfig,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let IndexerConfig { heads, dim, .. } = sizes;
        let (rank, rope) = c.mla.map_or((None, 0), |m| (m.q_rank, m.rope));
        let rank = rank.ok_or_else(|| {
            Error::unsupported("an indexer without a rank of queries").at("q_lora_rank")
        })?;
        if rope > dim {
            let what = format!("{rope} rotated columns of {dim}");
            return Err(Error::file(what).at("index_head_dim"));
        }
        let keys = caches.keys(1, dim, None);
        caches.mark_indexer(keys);
        Ok(Self {
            q: w.linear("wq_b", [heads * dim, rank], false)?,
            k: w.linear("wk", [dim, c.hidden], false)?,
            norm: [
                w.vector("k_norm.weight", dim, 1.0, |x| x)?,
                w.vector("k_norm.bias", dim, 0.0, |x| x)?,
            ],
            weights: w.linear("weights_proj", [heads, c.hidden], false)?,
            sizes,
            keys,
        })
    }

    /// Of `x [T, H]` and the latent of its queries `[T, q_rank]`. Halves are rotated here, not neighbours.
    fn choose<'s>(
        &self,
        x: Tensor<'s>,
        latent: Tensor<'s>,
        rope: Option<Tensor<'s>>,
        caches: &Caches,
    ) -> Choice<'s> {
        let IndexerConfig { heads, dim, top } = self.sizes;
        let turned = |x: Tensor<'s>| rope.map_or(x, |rope| x.rope(rope, dim, false));
        let q = turned(self.q.apply(latent));
        let k = self.k.apply(x).layer_norm(&self.norm[0], &self.norm[1], 1e-6);
        let keys = caches.paged(x.step(), self.keys).write(turned(k));
        let scale = ((dim * heads) as f32).powf(-0.5);
        q.select(self.weights.apply(x), &keys, (heads, top, scale))
    }
}

pub(super) struct Layer {
    input_norm: RmsNorm,
    attention: Mla,
    indexer: Option<Indexer>,
    post_norm: RmsNorm,
    mlp: FeedForward,
}

impl Block for Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let attention = w.at("self_attn");
        let indexer = |sizes| Indexer::load(&attention.at("indexer"), c, sizes, &mut *caches);
        let indexer = c.indexer.map(indexer).transpose()?;
        Ok(Self {
            input_norm: w.norm("input_layernorm", c.hidden)?,
            attention: Mla::load(&attention, c, caches)?,
            indexer,
            post_norm: w.norm("post_attention_layernorm", c.hidden)?,
            mlp: FeedForward::load(&w.at("mlp"), c, i)?,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let y = self.input_norm.apply(x);
        let latent = self.attention.latent_of_queries(y);
        let rope = ropes.global;
        let chosen = self.indexer.as_ref().map(|i| i.choose(y, latent, rope, caches));
        let h = x + self.attention.attend(y, latent, rope, chosen, caches);
        h + self.mlp.forward(self.post_norm.apply(h))
    }
}
