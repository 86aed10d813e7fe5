//! The array runtime of longrun.

pub mod format;
pub mod panel;
pub mod quant;
