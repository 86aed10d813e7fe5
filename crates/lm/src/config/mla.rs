//! What a config says of latent attention.

use super::fields::Fields;
use crate::error::Result;

/// Sizes of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
}

pub(super) fn mla(f: &Fields<'_>) -> Result<MlaConfig> {
    Ok(MlaConfig {
        q_rank: f.size_opt("q_lora_rank")?,
        kv_rank: f.size("kv_lora_rank")?,
        nope: f.size("qk_nope_head_dim")?,
        rope: f.count("qk_rope_head_dim")?.unwrap_or(0),
        value: f.size("v_head_dim")?,
    })
}
