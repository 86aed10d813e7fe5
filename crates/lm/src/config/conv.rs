//! What a config says of short convolutions.

use super::fields::Fields;
use crate::error::Result;

/// A gated short convolution in place of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvConfig {
    /// Tokens that it sees, its own included.
    pub taps: usize,
    /// Whether its projections and the convolution have biases.
    pub bias: bool,
}

pub(super) fn conv(f: &Fields<'_>) -> Result<ConvConfig> {
    Ok(ConvConfig { taps: f.size_or("conv_L_cache", 3)?, bias: f.bool_or("conv_bias", false)? })
}

/// The inner width of an MLP, which some files give before a common rule is applied to it.
pub(super) fn inner_width(f: &Fields<'_>, hidden: usize) -> Result<usize> {
    let given = f.size_opt("block_ff_dim")?;
    let given = given.map_or_else(|| f.size_or("intermediate_size", 4 * hidden), Ok)?;
    if !f.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(given);
    }
    let two_thirds = (2.0 * given as f64 / 3.0) as usize;
    if f.get("block_ffn_dim_multiplier").is_some_and(|v| v.is_null()) {
        return Ok(two_thirds);
    }
    let factor = f.number("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = f.size_or("block_multiple_of", 256)?;
    Ok(((factor * two_thirds as f64) as usize).div_ceil(multiple) * multiple)
}
