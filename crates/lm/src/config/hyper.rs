//! What a config says of hyper-connections.

use longrun_array::MOST_STREAMS;

use super::fields::Fields;
use crate::error::{Error, Result};

/// Residual streams that are mixed around each half of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperConfig {
    /// How many.
    pub streams: usize,
    /// How often rows and columns of the mixing matrix are brought to sums of 1.
    pub iters: usize,
    /// Added to weights and sums.
    pub eps: f32,
}

/// More turns than this change nothing in single precision.
const MOST_TURNS: usize = 1000;

pub(super) fn hyper(f: &Fields<'_>) -> Result<HyperConfig> {
    let streams = f.size_or("hc_mult", 4)?;
    if streams > MOST_STREAMS {
        let what = format!("{streams} streams, at most {MOST_STREAMS} are known here");
        return Err(Error::unsupported(what).at("hc_mult"));
    }
    Ok(HyperConfig {
        streams,
        iters: f.size_up_to("hc_sinkhorn_iters", MOST_TURNS)?.unwrap_or(20),
        eps: f.positive("hc_eps")?.unwrap_or(1e-6),
    })
}
