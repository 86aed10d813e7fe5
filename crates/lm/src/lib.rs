//! Language models on `longrun-array`.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod answer;
pub mod budget;
pub mod cache;
pub mod check;
pub mod checkpoint;
pub mod config;
pub mod convert;
pub mod draft;
pub mod embed;
pub mod engine;
pub mod error;
pub mod executor;
pub mod grammar;
pub mod models;
pub mod nn;
pub mod prefix;
pub mod rope;
pub mod sample;
pub mod schedule;
pub mod shapes;
pub mod source;
pub mod text;
pub mod tiny;
pub mod weights;
mod worker;

pub use error::{Error, Kind, Result};
pub use longrun_array as array;
