//! What a config says of gated delta layers.

use super::fields::Fields;
use crate::error::{Error, Result};

/// Sizes of a gated delta layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DeltaConfig {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub taps: usize,
}

pub(super) fn delta(f: &Fields<'_>) -> Result<DeltaConfig> {
    let d = DeltaConfig {
        key_heads: f.size("linear_num_key_heads")?,
        value_heads: f.size("linear_num_value_heads")?,
        key_dim: f.size("linear_key_head_dim")?,
        value_dim: f.size("linear_value_head_dim")?,
        taps: f.size_or("linear_conv_kernel_dim", 4)?,
    };
    if !d.value_heads.is_multiple_of(d.key_heads) {
        let what = format!("{} value heads for {} key heads", d.value_heads, d.key_heads);
        return Err(Error::file(what).at("linear_num_value_heads"));
    }
    Ok(d)
}
