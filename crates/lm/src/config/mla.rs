//! What a config says of latent attention, and of the indexer that chooses what it looks at.

use super::Family;
use super::fields::Fields;
use crate::error::{Error, Result};

/// Sizes of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaConfig {
    /// Rank of queries; `None` has one projection.
    pub q_rank: Option<usize>,
    /// Numbers of the latent that keys and values are made from.
    pub kv_rank: usize,
    /// Numbers of a key head that come from the latent.
    pub nope: usize,
    /// Numbers of a key head that all heads share; 0 without.
    pub rope: usize,
    /// Numbers of a value head.
    pub value: usize,
    /// Rotated pairs are `(2i, 2i + 1)`.
    pub interleaved: bool,
    /// Of the norms of both latents.
    pub eps: f32,
    /// Factor on attention scores.
    pub scale: f32,
}

pub(super) fn mla(f: &Fields<'_>, family: Family, eps: f32) -> Result<MlaConfig> {
    let nope = f.size("qk_nope_head_dim")?;
    let rope = f.count("qk_rope_head_dim")?.unwrap_or(0);
    if !rope.is_multiple_of(2) {
        let what = format!("{rope} columns can't be rotated in pairs");
        return Err(Error::file(what).at("qk_rope_head_dim"));
    }
    let stretch = score_stretch(f)?;
    Ok(MlaConfig {
        q_rank: f.size_opt("q_lora_rank")?,
        kv_rank: f.size("kv_lora_rank")?,
        nope,
        rope,
        value: f.size("v_head_dim")?,
        interleaved: f.bool_or("rope_interleave", true)?,
        // The others have the default of their norm, whatever the config says of the blocks' norms.
        eps: if family == Family::Glm5Next { eps } else { 1e-6 },
        scale: (((nope + rope) as f64).powf(-0.5) * stretch * stretch) as f32,
    })
}

/// What stretched positions do to scores, on each side: `0.1 * mscale_all_dim * ln(factor) + 1`.
fn score_stretch(f: &Fields<'_>) -> Result<f64> {
    let Some(rope) = f.get("rope_parameters").or(f.get("rope_scaling")) else { return Ok(1.0) };
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(|kind| kind.as_str());
    let number = |name: &str| match rope.get(name).filter(|v| !v.is_null()) {
        None => Ok(None),
        Some(value) => match value.as_f64().filter(|x| x.is_finite()) {
            Some(x) => Ok(Some(x)),
            None => Err(Fields::wrong(name, value, "a number")),
        },
    };
    let all = number("mscale_all_dim")?.unwrap_or(0.0);
    if kind.is_none_or(|kind| kind == "default") || all == 0.0 {
        return Ok(1.0);
    }
    let factor = number("factor")?.ok_or_else(|| f.missing("factor"))?;
    Ok(if factor <= 1.0 { 1.0 } else { 0.1 * all * factor.ln() + 1.0 })
}

/// Sizes of an indexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexerConfig {
    /// Query heads.
    pub heads: usize,
    /// Numbers of a head.
    pub dim: usize,
    /// What it chooses at most.
    pub top: usize,
}

pub(super) fn indexer(f: &Fields<'_>) -> Result<IndexerConfig> {
    Ok(IndexerConfig {
        heads: f.size("index_n_heads")?,
        dim: f.size("index_head_dim")?,
        top: f.size("index_topk")?,
    })
}
