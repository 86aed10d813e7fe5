//! Gemma 4 (text): norms around each half of a block, windows in most layers, larger heads in the others.
//!
//! Values are normed too. The last layers may read keys and values of layers before them; each layer may get numbers of
//! its own for each token, from a second embedding; experts may stand beside the MLP.

use longrun_array::{AttentionSpec, ExpertsUp, Map, Scoring, Step, Tensor, Version, Weight};

use super::Model;
use crate::cache::{CacheSpec, Caches, PagedId};
use crate::config::{Config, Gemma4Config, Gemma4Experts, Mixer};
use crate::error::{Error, Result};
use crate::nn::{Head, Linear, Mlp, RmsNorm, Rope};
use crate::weights::Weights;

/// Keys and values of a layer in this step.
type KeysValues<'s> = (Version<'s>, Version<'s>);

/// What a layer with keys and values of its own makes them from.
struct Own {
    k: Linear,
    k_norm: RmsNorm,
    /// Without it, values come from the projection of keys.
    v: Option<Linear>,
    keys: PagedId,
    values: PagedId,
}

struct Attention {
    q: Linear,
    q_norm: RmsNorm,
    own: Option<Own>,
    o: Linear,
    spec: AttentionSpec,
    dim: usize,
    eps: f32,
}

impl Attention {
    fn load(
        w: &Weights<'_>,
        c: &Config,
        g: &Gemma4Config,
        layer: usize,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let local = c.mixers[layer] == Mixer::Sliding;
        let (dim, kv) =
            if local { (c.head_dim, c.kv_heads) } else { (g.global_dim, g.global_kv_heads) };
        let (h, window) = (c.hidden, if local { c.window } else { None });
        let own = match g.sources[layer] == layer {
            true => Some(Own {
                k: w.linear("k_proj", [kv * dim, h], c.attention_bias)?,
                k_norm: w.norm("k_norm", dim)?,
                v: match g.values_of_keys && !local {
                    true => None,
                    false => Some(w.linear("v_proj", [kv * dim, h], c.attention_bias)?),
                },
                keys: caches.keys(kv, dim, window),
                values: caches.values(kv, dim, window),
            }),
            false => None,
        };
        Ok(Self {
            q: w.linear("q_proj", [c.heads * dim, h], c.attention_bias)?,
            q_norm: w.norm("q_norm", dim)?,
            own,
            o: w.linear("o_proj", [h, c.heads * dim], c.attention_bias)?,
            spec: AttentionSpec { heads: c.heads, scale: c.scale, window, softcap: c.softcap },
            dim,
            eps: c.eps,
        })
    }

    /// Keys and values of these tokens, written; `None` if the layer reads another's.
    fn write<'s>(
        &self,
        x: Tensor<'s>,
        rope: Tensor<'s>,
        caches: &Caches,
    ) -> Option<KeysValues<'s>> {
        let own = self.own.as_ref()?;
        let k = own.k.apply(x);
        let v = own.v.as_ref().map_or(k, |v| v.apply(x));
        let n = self.dim as f32;
        let v = v.unit_norm(self.dim, n * self.eps, n.sqrt()); // an RMS norm without a weight
        let k = own.k_norm.apply(k).rope(rope, self.dim, false);
        let keys = caches.paged(x.step(), own.keys).write(k);
        Some((keys, caches.paged(x.step(), own.values).write(v)))
    }

    /// `[T, H] -> [T, H]`
    fn forward<'s>(&self, x: Tensor<'s>, rope: Tensor<'s>, seen: &KeysValues<'s>) -> Tensor<'s> {
        let q = self.q_norm.apply(self.q.apply(x)).rope(rope, self.dim, false);
        self.o.apply(q.attend(&seen.0, &seen.1, self.spec))
    }
}

/// Experts beside the MLP, with norms of their own.
struct Experts {
    router_norm: RmsNorm,
    router: Linear,
    gain: Weight,
    pre_norm: RmsNorm,
    gate: Weight,
    up: Weight,
    down: Weight,
    mlp_norm: RmsNorm,
    post_norm: RmsNorm,
    k: usize,
}

impl Experts {
    fn load(w: &Weights<'_>, c: &Config, e: Gemma4Experts) -> Result<Self> {
        let (h, i, root) = (c.hidden, e.intermediate, (c.hidden as f32).powf(-0.5));
        let [gate, up] = w.gate_up(["gate_proj", "up_proj"], e.count, [i, h])?;
        let router = w.at("router");
        let weight = router.vector("scale", h, 1.0, |s| s * root)?;
        Ok(Self {
            router_norm: RmsNorm { weight, group: h, eps: c.eps },
            router: router.linear("proj", [e.count, h], false)?,
            gain: router.vector("per_expert_scale", e.count, 1.0, |g| g)?,
            pre_norm: w.norm("pre_feedforward_layernorm_2", h)?,
            gate,
            up,
            down: w.experts("down_proj", e.count, [h, i])?,
            mlp_norm: w.norm("post_feedforward_layernorm_1", h)?,
            post_norm: w.norm("post_feedforward_layernorm_2", h)?,
            k: e.per_token,
        })
    }

    /// What comes of `h [T, H]` through experts, and of `y`, which comes of it through the MLP.
    fn beside<'s>(&self, h: Tensor<'s>, y: Tensor<'s>) -> Tensor<'s> {
        let logits = self.router.apply(self.router_norm.apply(h));
        let routing = logits.route_with_gain(self.k, Scoring::softmax(true), &self.gain);
        let up = ExpertsUp::gated(&self.gate, &self.up, Map::GeluTanh);
        let inner = self.pre_norm.apply(h).experts_up(routing, up); // [T, k * I]
        let z = inner.experts_down(routing, &self.down, None);
        self.mlp_norm.apply(y) + self.post_norm.apply(z)
    }
}

/// How a layer takes the numbers that it gets for each token.
struct LayerInput {
    gate: Linear,
    projection: Linear,
    norm: RmsNorm,
}

struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    pre_mlp_norm: RmsNorm,
    mlp: Mlp,
    experts: Option<Experts>,
    post_mlp_norm: RmsNorm,
    input: Option<LayerInput>,
    scalar: f32,
    local: bool,
    source: usize,
}

impl Layer {
    fn load(
        w: &Weights<'_>,
        c: &Config,
        g: &Gemma4Config,
        i: usize,
        caches: &mut CacheSpec,
    ) -> Result<Self> {
        let (h, p) = (c.hidden, g.layer_input);
        let wide = if g.double_wide && g.sources[i] != i { 2 } else { 1 };
        let input = match p {
            0 => None,
            p => Some(LayerInput {
                gate: w.linear("per_layer_input_gate", [p, h], false)?,
                projection: w.linear("per_layer_projection", [h, p], false)?,
                norm: w.norm("post_per_layer_input_norm", h)?,
            }),
        };
        Ok(Self {
            input_norm: w.norm("input_layernorm", h)?,
            attention: Attention::load(&w.at("self_attn"), c, g, i, caches)?,
            post_attention_norm: w.norm("post_attention_layernorm", h)?,
            pre_mlp_norm: w.norm("pre_feedforward_layernorm", h)?,
            mlp: Mlp::load(&w.at("mlp"), c, wide * c.intermediate, Map::GeluTanh)?,
            experts: g.experts.map(|e| Experts::load(w, c, e)).transpose()?,
            post_mlp_norm: w.norm("post_feedforward_layernorm", h)?,
            input,
            scalar: w.numbers("layer_scalar", 1, 1.0)?[0],
            local: c.mixers[i] == Mixer::Sliding,
            source: g.sources[i],
        })
    }

    fn forward<'s>(
        &self,
        x: Tensor<'s>,
        own: Option<Tensor<'s>>,
        rope: Tensor<'s>,
        (written, caches): (&mut Vec<Option<KeysValues<'s>>>, &Caches),
    ) -> Tensor<'s> {
        let y = self.input_norm.apply(x);
        written.push(self.attention.write(y, rope, caches));
        let y = match &written[self.source] {
            Some(seen) => self.attention.forward(y, rope, seen),
            None => unreachable!("a source has keys and values of its own"),
        };
        let h = x + self.post_attention_norm.apply(y);

        let y = self.mlp.forward(self.pre_mlp_norm.apply(h));
        let y = self.experts.as_ref().map_or(y, |experts| experts.beside(h, y));
        let mut h = h + self.post_mlp_norm.apply(y);

        if let (Some(input), Some(own)) = (&self.input, own) {
            let y = own.gated(input.gate.apply(h), Map::GeluTanh); // [T, P]
            h = h + input.norm.apply(input.projection.apply(y));
        }
        if self.scalar == 1.0 { h } else { h.apply(Map::Scale(self.scalar)) }
    }
}

/// The numbers of all layers for each token, `[T, layers * P]`.
struct LayerInputs {
    embedding: Weight,
    projection: Linear,
    norm: RmsNorm,
    size: usize,
}

impl LayerInputs {
    fn load(w: &Weights<'_>, c: &Config, size: usize) -> Result<Self> {
        let all = c.layers * size;
        Ok(Self {
            embedding: w.matrix("embed_tokens_per_layer.weight", [c.vocab, all])?,
            projection: w.linear("per_layer_model_projection", [all, c.hidden], false)?,
            norm: w.norm("per_layer_projection_norm", size)?,
            size,
        })
    }

    fn forward<'s>(&self, x: Tensor<'s>) -> Tensor<'s> {
        let ids = x.step().ids().embed(&self.embedding, (self.size as f32).sqrt());
        let root = (x.cols() as f32).powf(-0.5);
        let context = self.norm.apply(self.projection.apply(x).apply(Map::Scale(root)));
        (context + ids).apply(Map::Scale(std::f32::consts::FRAC_1_SQRT_2))
    }
}

pub(super) struct Gemma4 {
    embedding: Weight,
    embedding_scale: f32,
    inputs: Option<LayerInputs>,
    global_rope: Rope,
    local_rope: Rope,
    layers: Vec<Layer>,
    head: Head,
    caches: CacheSpec,
}

impl Gemma4 {
    pub(super) fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let g = c.gemma4.as_ref().ok_or_else(|| Error::file("no Gemma 4 in this config"))?;
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let layers =
            (0..c.layers).map(|i| Layer::load(&w.at("layers").at(i), c, g, i, &mut caches));
        let layers = layers.collect::<Result<_>>()?;
        let local = c.sliding_rope.as_ref().unwrap_or(&c.rope);
        Ok(Self {
            embedding,
            embedding_scale: (c.hidden as f32).sqrt(),
            inputs: match g.layer_input {
                0 => None,
                size => Some(LayerInputs::load(w, c, size)?),
            },
            global_rope: Rope::new(w, &c.rope, "rope")?,
            local_rope: Rope::new(w, local, "local rope")?,
            layers,
            head: Head { norm: w.norm("norm", c.hidden)?, linear, softcap: c.final_softcap },
            caches,
        })
    }
}

impl Model for Gemma4 {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let (global, local) = (self.global_rope.table(step), self.local_rope.table(step));
        let mut x = step.ids().embed(&self.embedding, self.embedding_scale); // [T, H]
        let inputs = self.inputs.as_ref().map(|inputs| (inputs.forward(x), inputs.size));
        let mut written = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let own = inputs.map(|(all, size)| all.columns(i * size, size));
            let rope = if layer.local { local } else { global };
            x = layer.forward(x, own, rope, (&mut written, caches));
        }
        self.head.emit(step, x);
    }
}
