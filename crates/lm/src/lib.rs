//! Language models on `longrun-array`.
#![forbid(unsafe_code)]

pub mod error;
pub mod text;

pub use error::{Error, Kind, Result};
