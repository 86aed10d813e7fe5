//! The array runtime of longrun.

pub mod format;
pub mod matmul;
pub mod panel;
pub mod quant;
