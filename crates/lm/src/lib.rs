//! Language models on `longrun-array`.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod error;

pub use error::{Error, Kind, Result};
