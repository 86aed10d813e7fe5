//! GLM 5 Next (text): Kimi delta attention, latent attention without positions every few layers, four residual streams.
//!
//! Attention looks only at pools of positions that an indexer chooses, and at the positions after the last whole pool.
//! A layer may take the choice of the one before it.

use longrun_array::{Choice, Step, Tensor, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches, PagedId, RecordId};
use crate::config::{Config, IndexerConfig, KPoolConfig, Mixer};
use crate::error::{Error, Result};
use crate::nn::{FeedForward, Head, Hyper, Kda, Linear, Mla, Mlp, Moe, RmsNorm, scaled, spread};
use crate::weights::Weights;

/// Chooses pools of positions: `sum over heads of weight * relu(q . k)`, with one key a pool.
struct Indexer {
    q: Linear,
    k: Linear,
    /// Of keys: weight and bias.
    norm: [Weight; 2],
    gate: Linear,
    bias: Weight,
    weights: Linear,
    sizes: IndexerConfig,
    every: usize,
    top: usize,
    open: RecordId,
    keys: PagedId,
}

impl Indexer {
    fn load(
        w: &Weights<'_>,
        c: &Config,
        (sizes, pools): (IndexerConfig, &KPoolConfig),
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let (IndexerConfig { heads, dim, .. }, every) = (sizes, pools.every);
        let rank = c.mla.and_then(|m| m.q_rank).ok_or_else(|| {
            Error::unsupported("an indexer without a rank of queries").at("q_lora_rank")
        })?;
        let gate = w.matrix("index_kpool_compress_gate", [dim, c.hidden])?;
        let keys = caches.entries(dim, every);
        caches.mark_indexer(keys);
        Ok(Self {
            q: w.linear("wq_b", [heads * dim, rank], false)?,
            k: w.linear("wk", [dim, c.hidden], false)?,
            norm: [
                w.vector("k_norm.weight", dim, 1.0, |x| x)?,
                w.vector("k_norm.bias", dim, 0.0, |x| x)?,
            ],
            gate: Linear { weight: gate, bias: None, adapter: None },
            bias: w.vector("index_kpool_compress_ape", every * dim, 0.0, |b| b)?,
            weights: w.linear("weights_proj", [heads, c.hidden], false)?,
            sizes,
            every,
            top: pools.top,
            open: caches.record(2 * every * dim, 2 * dim),
            keys,
        })
    }

    /// Of `x [T, H]` and the latent of its queries `[T, q_rank]`.
    fn choose<'s>(&self, x: Tensor<'s>, latent: Tensor<'s>, caches: &Caches) -> Choice<'s> {
        let IndexerConfig { heads, dim, .. } = self.sizes;
        let k = self.k.apply(x).layer_norm(&self.norm[0], &self.norm[1], 1e-6);
        let open = caches.record(x.step(), self.open);
        let (key, _) = k.pool(self.gate.apply(x), &self.bias, open, (self.every, false));
        let keys = caches.paged(x.step(), self.keys).write(key);
        let scale = ((dim * heads) as f32).powf(-0.5);
        let weights = self.weights.apply(x);
        self.q.apply(latent).select(weights, &keys, (heads, self.top, scale))
    }
}

enum TokenMixer {
    Delta(Box<Kda>),
    /// Without an indexer, it takes the choice of a layer before.
    Attention(Box<Mla>, Option<Box<Indexer>>),
}

struct Layer {
    attention_mixing: Hyper,
    input_norm: RmsNorm,
    mixer: TokenMixer,
    mlp_mixing: Hyper,
    post_norm: RmsNorm,
    mlp: FeedForward,
}

impl Layer {
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self> {
        let missing = |name: &str| Error::file("this field is missing").at(name);
        let moe = c.moe.as_ref().ok_or_else(|| missing("n_routed_experts"))?;
        let attention = w.at("self_attn");
        let mixer = if c.mixers[i] == Mixer::Linear {
            let kda = c.kda.as_ref().ok_or_else(|| missing("linear_num_heads"))?;
            TokenMixer::Delta(Box::new(Kda::load(&attention, c, kda, caches)?))
        } else {
            let pools = c.kpool.as_ref().ok_or_else(|| missing("index_kpool"))?;
            let sizes = c.indexer.ok_or_else(|| missing("index_topk"))?;
            let indexer = match pools.shares[i] {
                true => None,
                false => {
                    let w = attention.at("indexer");
                    Some(Box::new(Indexer::load(&w, c, (sizes, pools), caches)?))
                }
            };
            TokenMixer::Attention(Box::new(Mla::load(&attention, c, caches)?), indexer)
        };
        let mlp = w.at("mlp");
        Ok(Self {
            attention_mixing: Hyper::load(w, c, "attn")?,
            input_norm: w.norm("input_layernorm", c.hidden)?,
            mixer,
            mlp_mixing: Hyper::load(w, c, "ffn")?,
            post_norm: w.norm("post_attention_layernorm", c.hidden)?,
            mlp: match moe.sparse[i] {
                true => FeedForward::Moe(Box::new(Moe::load(&mlp, c, moe)?)),
                false => FeedForward::Dense(Box::new(Mlp::load(&mlp, c, c.intermediate, moe.f)?)),
            },
        })
    }

    /// `chosen` is the last choice, and becomes this layer's if it makes one.
    fn forward<'s>(
        &self,
        streams: Tensor<'s>,
        chosen: &mut Option<Choice<'s>>,
        caches: &Caches,
    ) -> Tensor<'s> {
        let streams = self.attention_mixing.around(streams, |x| {
            let x = self.input_norm.apply(x);
            match &self.mixer {
                TokenMixer::Delta(kda) => kda.forward(x, caches),
                TokenMixer::Attention(mla, indexer) => {
                    let latent = mla.latent_of_queries(x);
                    if let Some(indexer) = indexer {
                        *chosen = Some(indexer.choose(x, latent, caches));
                    }
                    mla.attend(x, latent, None, *chosen, caches)
                }
            }
        });
        self.mlp_mixing.around(streams, |x| self.mlp.forward(self.post_norm.apply(x)))
    }
}

pub(super) struct Glm5Next {
    embedding: Weight,
    streams: usize,
    layers: Vec<Layer>,
    head: Head,
    caches: CacheSpec,
}

impl Glm5Next {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let layers = (0..c.layers).map(|i| Layer::load(&w.at("layers").at(i), c, i, &mut caches));
        Ok(Self {
            embedding,
            streams: c.hyper.map_or(1, |h| h.streams),
            layers: layers.collect::<Result<_>>()?,
            head: Head { norm: w.norm("norm", c.hidden)?, linear, softcap: None },
            caches,
        })
    }
}

impl Model for Glm5Next {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let x = step.ids().embed(&self.embedding, 1.0);
        let mut streams = spread(x, self.streams); // [T, n * H]
        let mut chosen = None;
        for layer in &self.layers {
            streams = layer.forward(streams, &mut chosen, caches);
        }
        let hidden = x.cols();
        let first = streams.columns(0, hidden);
        let sum = (1..self.streams).fold(first, |sum, i| sum + streams.columns(i * hidden, hidden));
        self.head.emit(step, scaled(sum, 1.0 / self.streams as f32));
    }
}
