//! The array runtime of longrun.

pub mod format;
pub mod quant;
