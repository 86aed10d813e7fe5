//! What a config says of short convolutions.

use serde_json::Value;

use super::fields::Fields;
use crate::error::{Error, Result};

/// A gated short convolution in place of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvConfig {
    /// Tokens that it sees, its own included.
    pub taps: usize,
    /// Whether its projections and the convolution have biases.
    pub bias: bool,
}

pub(super) fn conv(f: &Fields<'_>) -> Result<ConvConfig> {
    let taps = f.size_or("conv_L_cache", 3)?;
    if taps < 2 {
        return Err(Error::unsupported("a convolution of one token").at("conv_L_cache"));
    }
    Ok(ConvConfig { taps, bias: f.bool_or("conv_bias", false)? })
}

/// The inner width of an MLP, which some files give before a common rule is applied to it.
pub(super) fn inner_width(f: &Fields<'_>, hidden: usize) -> Result<usize> {
    let given = f.size_opt("block_ff_dim")?;
    let given = given.map_or_else(|| f.size_or("intermediate_size", hidden), Ok)?;
    if !f.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(given);
    }
    let two_thirds = (2.0 * given as f64 / 3.0).floor();
    let name = "block_ffn_dim_multiplier";
    // Absent is 1, and none is none.
    let (factor, multiple) = match f.text.get(name) {
        Some(Value::Null) => (1.0, 1),
        _ => (f.number(name)?.unwrap_or(1.0), f.size_or("block_multiple_of", 256)?),
    };
    let width = (factor * two_thirds).floor();
    if !(1.0..=f64::from(1 << 20)).contains(&width) {
        return Err(Error::file(format!("it makes an inner width of {width}")).at(name));
    }
    Ok((width as usize).div_ceil(multiple) * multiple)
}
