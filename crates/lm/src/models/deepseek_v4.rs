//! DeepSeek V4: attention to a window and to entries that tokens share, whose keys are their values; four residual
//! streams; experts, in the first layers by a token's id.
//!
//! An entry is made of a group of tokens when its last one is read. Where groups are small, each entry also takes in
//! the group before, and an indexer with entries of its own chooses the best for each query.

use longrun_array::{AttentionSpec, Choice, RopeHeads, Seen, Step, Tensor, Version, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches, PagedId, RecordId};
use crate::config::{Config, DeepSeekV4Config, IndexerConfig, Mixer};
use crate::error::{Error, Result};
use crate::nn::{Head, Hyper, HyperHead, Linear, Moe, RmsNorm, Rope, spread};
use crate::weights::{HostMatrix, Weights};

/// Rotary positions of tokens, or of the first tokens of groups; the last columns of each head rotate.
#[derive(Clone, Copy)]
struct Turns<'s> {
    table: Tensor<'s>,
}

impl<'s> Turns<'s> {
    fn apply(self, x: Tensor<'s>, dim: usize, inverse: bool) -> Tensor<'s> {
        let start = dim - self.table.cols();
        x.rope_at(self.table, RopeHeads { dim, start, interleaved: true, inverse })
    }
}

/// Makes one entry of each group of tokens.
struct Compressor {
    kv: Linear,
    gate: Linear,
    bias: Weight,
    norm: RmsNorm,
    dim: usize,
    every: usize,
    overlap: bool,
    open: RecordId,
    entries: PagedId,
}

impl Compressor {
    /// With `overlap`, a token's columns are twice as many: one half goes into the entry after its own.
    fn load(
        w: &Weights<'_>,
        hidden: usize,
        [dim, every]: [usize; 2],
        overlap: bool,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let cols = if overlap { 2 * dim } else { dim };
        let bias = w.first_named(&["ape", "position_bias"]);
        Ok(Self {
            kv: w.linear(w.first_of(&["wkv", "kv_proj"]), [cols, hidden], false)?,
            gate: w.linear(w.first_of(&["wgate", "gate_proj"]), [cols, hidden], false)?,
            bias: w.vector(bias, every * cols, 0.0, |b| b)?,
            norm: w.norm(w.first_of(&["norm", "kv_norm"]), dim)?,
            dim,
            every,
            overlap,
            open: caches.record(2 * every * if overlap { cols + dim } else { cols }, 2 * cols),
            entries: caches.entries(dim, every),
        })
    }

    /// The entries of all groups that end at or before these tokens.
    fn forward<'s>(&self, x: Tensor<'s>, turns: Turns<'s>, caches: &Caches) -> Version<'s> {
        let open = caches.record(x.step(), self.open);
        let (kv, gate) = (self.kv.apply(x), self.gate.apply(x));
        let (pooled, _) = kv.pool(gate, &self.bias, open, (self.every, self.overlap));
        let entry = turns.apply(self.norm.apply(pooled), self.dim, false);
        caches.paged(x.step(), self.entries).write(entry)
    }
}

/// Chooses entries: `sum over heads of weight * relu(q . k)`, the best of them, by keys of its own.
struct Indexer {
    q: Linear,
    weights: Linear,
    compressor: Compressor,
    sizes: IndexerConfig,
}

impl Indexer {
    fn load(
        [w, compressor]: [&Weights<'_>; 2],
        c: &Config,
        v: &DeepSeekV4Config,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let sizes = c.indexer.ok_or_else(|| Error::file("a config without an indexer"))?;
        let (every, rotary) = (v.sparse_every, v.entry_rope.rotary);
        if rotary > sizes.dim {
            let what = format!("{rotary} rotated columns of {}", sizes.dim);
            return Err(Error::file(what).at("index_head_dim"));
        }
        let weights = w.first_of(&["weights_proj", "scorer.weights_proj"]);
        let compressor = Compressor::load(compressor, c.hidden, [sizes.dim, every], true, caches)?;
        caches.mark_indexer(compressor.entries);
        Ok(Self {
            q: w.linear(
                w.first_of(&["wq_b", "q_b_proj"]),
                [sizes.heads * sizes.dim, v.q_rank],
                false,
            )?,
            weights: w.linear(weights, [sizes.heads, c.hidden], false)?,
            compressor,
            sizes,
        })
    }

    /// Of `x [T, H]` and the latent of its queries `[T, q_rank]`.
    fn choose<'s>(
        &self,
        (x, latent): (Tensor<'s>, Tensor<'s>),
        [own, entry]: [Turns<'s>; 2],
        caches: &Caches,
    ) -> Choice<'s> {
        let IndexerConfig { heads, dim, top } = self.sizes;
        let keys = self.compressor.forward(x, entry, caches);
        let q = own.apply(self.q.apply(latent), dim, false);
        let scale = ((dim * heads) as f32).powf(-0.5);
        q.select(self.weights.apply(x), &keys, (heads, top, scale))
    }
}

struct Attention {
    q_down: Linear,
    q_norm: RmsNorm,
    q_up: Linear,
    kv: Linear,
    kv_norm: RmsNorm,
    sinks: Weight,
    /// Of each group of heads: `[groups, rank, heads / groups * dim]`.
    o_groups: Weight,
    o: Linear,
    compressor: Option<Compressor>,
    indexer: Option<Indexer>,
    spec: AttentionSpec,
    dim: usize,
    eps: f32,
    keys: PagedId,
}

impl Attention {
    fn load(
        w: &Weights<'_>,
        c: &Config,
        v: &DeepSeekV4Config,
        mixer: Mixer,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let (h, dim, all) = (c.hidden, c.head_dim, c.heads * c.head_dim);
        let compressor = w.at("compressor");
        // transformers has the indexer, with the compressor's own names, inside of the compressor.
        let nested = compressor.in_files("indexer.kv_proj.weight");
        let indexer = if nested { compressor.at("indexer") } else { w.at("indexer") };
        let of_indexer = if nested { indexer.clone() } else { indexer.at("compressor") };
        let every = if mixer == Mixer::Sparse { v.sparse_every } else { v.heavy_every };
        let compressor = match mixer {
            Mixer::Sliding => None,
            _ => {
                let overlap = mixer == Mixer::Sparse;
                Some(Compressor::load(&compressor, h, [dim, every], overlap, caches)?)
            }
        };
        let indexer = match mixer {
            Mixer::Sparse => Some(Indexer::load([&indexer, &of_indexer], c, v, caches)?),
            _ => None,
        };
        let o_groups = w.first_of(&["wo_a", "o_a_proj"]);
        let o_groups = format!("{o_groups}.weight");
        let host = w.host(&o_groups, [v.groups * v.group_rank, all / v.groups])?;
        let host = HostMatrix { rows: v.group_rank, ..host };
        Ok(Self {
            q_down: w.linear(w.first_of(&["wq_a", "q_a_proj"]), [v.q_rank, h], false)?,
            q_norm: w.norm(w.first_of(&["q_norm", "q_a_norm"]), v.q_rank)?,
            q_up: w.linear(w.first_of(&["wq_b", "q_b_proj"]), [all, v.q_rank], false)?,
            kv: w.linear(w.first_of(&["wkv", "kv_proj"]), [dim, h], false)?,
            kv_norm: w.norm(w.first_of(&["kv_norm", "norm"]), dim)?,
            sinks: w.vector(w.first_named(&["attn_sink", "sinks"]), c.heads, 0.0, |s| s)?,
            o_groups: w.put(&o_groups, &host, v.groups)?,
            o: w.linear(w.first_of(&["wo_b", "o_b_proj"]), [h, v.groups * v.group_rank], false)?,
            compressor,
            indexer,
            spec: AttentionSpec { heads: c.heads, scale: c.scale, window: c.window, softcap: None },
            dim,
            eps: c.eps,
            keys: caches.keys(1, dim, c.window),
        })
    }

    /// `[T, H] -> [T, H]`
    fn forward<'s>(&self, x: Tensor<'s>, turns: &AllTurns<'s>, caches: &Caches) -> Tensor<'s> {
        let (dim, n) = (self.dim, self.dim as f32);
        let (own, entry) = match (&self.compressor, &self.indexer) {
            (None, _) => (turns.main, turns.main),
            (_, None) => (turns.compressed, turns.heavy),
            (_, Some(_)) => (turns.compressed, turns.sparse),
        };
        let latent = self.q_norm.apply(self.q_down.apply(x));
        let q = self.q_up.apply(latent).unit_norm(dim, n * self.eps, n.sqrt());
        let q = own.apply(q, dim, false);
        let kv = own.apply(self.kv_norm.apply(self.kv.apply(x)), dim, false);
        let keys = caches.paged(x.step(), self.keys).write(kv);

        let entries = self.compressor.as_ref().map(|c| c.forward(x, entry, caches));
        let choose = |i: &Indexer| i.choose((x, latent), [own, entry], caches);
        let seen = Seen {
            entries: entries.as_ref(),
            chosen: self.indexer.as_ref().map(choose),
            sinks: Some(&self.sinks),
            ..Seen::latent(&keys, dim)
        };
        // Values were rotated as keys are: what comes of them is turned back by the query's own position.
        let y = own.apply(q.attend_to(seen, self.spec), dim, true);
        self.o.apply(y.grouped_linear(&self.o_groups))
    }
}

/// The tables of a step: of tokens in both kinds of layers, and of entries at both rates.
struct AllTurns<'s> {
    main: Turns<'s>,
    compressed: Turns<'s>,
    sparse: Turns<'s>,
    heavy: Turns<'s>,
}

struct Layer {
    attention_mixing: Hyper,
    attention_norm: RmsNorm,
    attention: Attention,
    mlp_mixing: Hyper,
    mlp_norm: RmsNorm,
    mlp: Moe,
}

impl Layer {
    fn load(
        w: &Weights<'_>,
        c: &Config,
        v: &DeepSeekV4Config,
        i: usize,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let moe = c.moe.as_ref().ok_or_else(|| Error::file("a config without experts"))?;
        let norms = [
            w.first_of(&["attn_norm", "input_layernorm"]),
            w.first_of(&["ffn_norm", "post_attention_layernorm"]),
        ];
        let original = norms[0] == "attn_norm";
        let (attention, mlp) = if original { ("attn", "ffn") } else { ("self_attn", "mlp") };
        Ok(Self {
            attention_mixing: Hyper::load(w, c, "attn")?,
            attention_norm: w.norm(norms[0], c.hidden)?,
            attention: Attention::load(&w.at(attention), c, v, c.mixers[i], caches)?,
            mlp_mixing: Hyper::load(w, c, "ffn")?,
            mlp_norm: w.norm(norms[1], c.hidden)?,
            mlp: match v.hashed[i] {
                true => Moe::load_by_id(&w.at(mlp), c, moe)?,
                false => Moe::load(&w.at(mlp), c, moe)?,
            },
        })
    }

    fn forward<'s>(
        &self,
        streams: Tensor<'s>,
        turns: &AllTurns<'s>,
        caches: &Caches,
    ) -> Tensor<'s> {
        let streams = self.attention_mixing.around(streams, |x| {
            self.attention.forward(self.attention_norm.apply(x), turns, caches)
        });
        self.mlp_mixing.around(streams, |x| self.mlp.forward(self.mlp_norm.apply(x)))
    }
}

pub(super) struct DeepSeekV4 {
    embedding: Weight,
    streams: usize,
    main_rope: Rope,
    entry_rope: Rope,
    every: [usize; 2],
    layers: Vec<Layer>,
    mixing: HyperHead,
    head: Head,
    caches: CacheSpec,
}

impl DeepSeekV4 {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let missing = || Error::file("no DeepSeek V4 in this config");
        let v = c.deepseek_v4.as_ref().ok_or_else(missing)?;
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let layers =
            (0..c.layers).map(|i| Layer::load(&w.at("layers").at(i), c, v, i, &mut caches));
        Ok(Self {
            embedding,
            streams: c.hyper.map_or(1, |h| h.streams),
            main_rope: Rope::new(w, &c.rope, "rope")?,
            entry_rope: Rope::new(w, &v.entry_rope, "rope of entries")?,
            every: [v.sparse_every, v.heavy_every],
            layers: layers.collect::<Result<_>>()?,
            mixing: HyperHead::load(w, c)?,
            head: Head { norm: w.norm("norm", c.hidden)?, linear, softcap: None },
            caches,
        })
    }
}

impl Model for DeepSeekV4 {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let of = |every: usize| Turns { table: self.entry_rope.table_of(step, every) };
        let turns = AllTurns {
            main: Turns { table: self.main_rope.table(step) },
            compressed: of(1),
            sparse: of(self.every[0]),
            heavy: of(self.every[1]),
        };
        let mut x = spread(step.ids().embed(&self.embedding, 1.0), self.streams); // [T, n * H]
        for layer in &self.layers {
            x = layer.forward(x, &turns, caches);
        }
        self.head.emit(step, self.mixing.forward(x));
    }
}
