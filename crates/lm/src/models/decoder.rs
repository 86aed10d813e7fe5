//! What most families share: an embedding, blocks one after the other, a last norm and a head, and perhaps another that
//! guesses one token further.
//!
//! Owns that frame. A family that fits gives its [`Block`]; one whose residual stream is more than one tensor, or whose
//! layers hand each other something, has a frame of its own.

use longrun_array::{Step, Tensor, Weight};

use super::Model;
use super::mtp::Mtp;
use crate::cache::{CacheSpec, Caches};
use crate::config::Config;
use crate::error::Result;
use crate::nn::{Head, Positions, Ropes};
use crate::weights::Weights;

/// One block of a family.
pub(super) trait Block: Send + Sized {
    /// The name of the norm after the last block.
    const LAST_NORM: &'static str = "norm";

    /// Factor on embeddings.
    fn embedding_scale(c: &Config) -> f32 {
        c.multipliers.embedding
    }

    /// Reads block `i`, below `w`; adds what it keeps to `caches`.
    fn load(w: &Weights<'_>, c: &Config, i: usize, caches: &mut CacheSpec) -> Result<Self>;

    /// `[T, H] -> [T, H]`
    fn forward<'s>(&self, x: Tensor<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s>;
}

pub(super) struct Decoder<B> {
    embedding: Weight,
    embedding_scale: f32,
    positions: Positions,
    blocks: Vec<B>,
    head: Head,
    logits_scale: f32,
    /// The head that guesses one token further.
    mtp: Option<Mtp<B>>,
    caches: CacheSpec,
}

impl<B: Block> Decoder<B> {
    pub(super) fn load(w: &Weights<'_>, c: &Config, mtp: bool) -> Result<Self> {
        let (embedding, linear) = w.embedding_and_head([c.vocab, c.hidden], c.tied)?;
        let mut caches = CacheSpec::default();
        let blocks = (0..c.layers).map(|i| B::load(&w.at("layers").at(i), c, i, &mut caches));
        let blocks = blocks.collect::<Result<_>>()?;
        let mtp = mtp.then(|| Mtp::load(w, c, &mut caches)).transpose()?;
        Ok(Self {
            embedding,
            embedding_scale: B::embedding_scale(c),
            positions: Positions::new(w, c)?,
            blocks,
            head: Head { norm: w.norm(B::LAST_NORM, c.hidden)?, linear, softcap: c.final_softcap },
            logits_scale: c.multipliers.logits,
            mtp,
            caches,
        })
    }
}

impl<B: Block> Model for Decoder<B> {
    fn caches(&self) -> CacheSpec {
        self.caches.clone()
    }

    fn forward<'s>(&self, step: Step<'s>, caches: &Caches) {
        let ropes = self.positions.tables(step);
        let Some((mtp, carried)) = self.mtp.as_ref().zip(caches.carried(step)) else {
            let x = self.read(step, ropes, caches);
            return self.head.emit_scaled(step, x, self.logits_scale);
        };
        let (h, linear) = if step.key().head == longrun_array::Head::Draft {
            let h = mtp.forward(self.embedded(step, mtp.embedding()), &carried, ropes, caches);
            (h, mtp.linear().unwrap_or(&self.head.linear))
        } else {
            (self.head.norm.apply(self.read(step, ropes, caches)), &self.head.linear)
        }; // [T, H]
        let _ = carried.carry(h);
        self.head.emit_normed(step, h.take_outputs(), linear, self.logits_scale);
    }
}

impl<B: Block> Decoder<B> {
    /// `[T, H]`, by the model's own embedding unless there is another one.
    fn embedded<'s>(&self, step: Step<'s>, other: Option<&Weight>) -> Tensor<'s> {
        step.ids().embed(other.unwrap_or(&self.embedding), self.embedding_scale)
    }

    /// All blocks: `[T, H]`
    fn read<'s>(&self, step: Step<'s>, ropes: Ropes<'s>, caches: &Caches) -> Tensor<'s> {
        let x = self.embedded(step, None);
        self.blocks.iter().fold(x, |x, block| block.forward(x, ropes, caches))
    }
}
