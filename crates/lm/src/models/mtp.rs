//! The head of a checkpoint that guesses one token further (multi-token prediction, MTP).
//!
//! Owns its maths and its names. From the last hidden state of a token and the embedding of the next one it makes a
//! hidden state of its own, by which the model's head scores the token after that: `norm(block(fc [e | h]))`. That hidden
//! state can take the place of the model's, for a guess one token further still. Where a checkpoint has several such
//! heads, the first is used for every guess. Refuses to hold what it shares with the model: embedding and scores.

use longrun_array::{Tensor, Version, Weight};

use super::decoder::Block;
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Family, Mixer, MoeConfig};
use crate::error::{Error, Result};
use crate::nn::{Linear, RmsNorm, Ropes};
use crate::weights::Weights;

pub(super) struct Mtp<B> {
    embedding_norm: RmsNorm,
    hidden_norm: RmsNorm,
    /// `[H, 2H]`, over embedding and hidden state.
    join: Linear,
    block: B,
    norm: RmsNorm,
    /// Where they are not the model's.
    embedding: Option<Weight>,
    linear: Option<Linear>,
}

/// Where the parts of a head are, by family.
struct Places<'a> {
    /// Below which the names are.
    w: Weights<'a>,
    /// Below which those of the block are.
    block: Weights<'a>,
    norms: [&'static str; 3],
    join: &'static str,
}

impl<'a> Places<'a> {
    fn new(w: &Weights<'a>, c: &Config) -> Result<Self> {
        let places = match c.family {
            Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => {
                let w = w.outside("mtp.norm.weight").at("mtp");
                let block = w.at("layers").at(0);
                let norms = ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"];
                Self { w, block, norms, join: "fc" }
            }
            Family::DeepSeekV3 | Family::DeepSeekV32 => {
                let (w, norms) =
                    (w.at("layers").at(c.layers), ["enorm", "hnorm", "shared_head.norm"]);
                Self { block: w.clone(), w, norms, join: "eh_proj" }
            }
            _ => return Err(no_head(c)),
        };
        let there = places.norms.iter().all(|norm| places.w.has(&format!("{norm}.weight")));
        if there { Ok(places) } else { Err(no_head(c)) }
    }
}

/// There are none of these weights, or none that this build knows.
pub(super) fn no_head(c: &Config) -> Error {
    let name = c.family.name();
    Error::usage(format!("this {name} checkpoint has no head that guesses further tokens (MTP)"))
        .hint("drafts by lookup or by a smaller model need none")
}

impl<B: Block> Mtp<B> {
    /// Adds what it keeps to `caches`, and that tokens leave their hidden state to it.
    ///
    /// # Errors
    /// The files have no such head, or a weight of it is missing or misshapen.
    pub(super) fn load(w: &Weights<'_>, c: &Config, caches: &mut CacheSpec) -> Result<Self> {
        let (h, shape) = (c.hidden, [c.vocab, c.hidden]);
        let Places { w, block, norms, join } = Places::new(w, c)?;
        let [embedding_norm, hidden_norm, norm] = norms.map(|name| w.norm(name, h));
        let (has_embedding, linear) = (w.has_own("embed_tokens", false), "shared_head.head");
        let embedding =
            has_embedding.then(|| w.matrix("embed_tokens.weight", shape)).transpose()?;
        let has_linear = w.has_own(linear, true);
        caches.carry(h);
        Ok(Self {
            embedding_norm: embedding_norm?,
            hidden_norm: hidden_norm?,
            join: w.linear(join, [h, 2 * h], false)?,
            block: B::load(&block, &one_further(c), c.layers, caches)?,
            norm: norm?,
            embedding,
            linear: has_linear.then(|| w.linear(linear, shape, false)).transpose()?,
        })
    }

    /// The embedding that is not the model's.
    pub(super) fn embedding(&self) -> Option<&Weight> {
        self.embedding.as_ref()
    }

    /// Hidden state to scores, where that is not the model's.
    pub(super) fn linear(&self) -> Option<&Linear> {
        self.linear.as_ref()
    }

    /// Of embeddings `[T, H]` and what the tokens before have left: `[T, H]`
    pub(super) fn forward<'s>(
        &self,
        embedded: Tensor<'s>,
        carried: &Version<'s>,
        ropes: Ropes<'s>,
        caches: &Caches,
    ) -> Tensor<'s> {
        let e = self.embedding_norm.apply(embedded);
        let h = self.hidden_norm.apply(e.step().carried(carried));
        self.norm.apply(self.block.forward(self.join.apply(e.concat(h, 1)), ropes, caches))
    }
}

/// The config with one more layer: attention to everything, and experts where the model has any.
fn one_further(c: &Config) -> Config {
    let mut c = c.clone();
    c.mixers.push(Mixer::Full);
    c.rotates.push(true);
    c.moe = c.moe.map(|mut m: MoeConfig| {
        m.sparse.push(true);
        m
    });
    c
}
