//! Language models on `longrun-array`.
#![forbid(unsafe_code)]

pub mod error;
pub mod sample;

pub use error::{Error, Kind, Result};
