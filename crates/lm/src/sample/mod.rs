//! From logits to one token: processors, filters, the draw, and what is said about them.
//!
//! Owns the order of things, which is a contract:
//!
//! 1. processors, on the logits: bias, repetition, presence, frequency;
//! 2. greedy (temperature 0): the largest logit, the lowest id among equals; or
//! 3. filters, on the untempered distribution and never renormalised in between: top-p, min-p,
//!    XTC (the one that looks at the softmax of what is left), top-k;
//! 4. the draw, on what is left, at the temperature.
//!
//! Reported log-probabilities belong to the processed logits (after 1, before 2).
//!
//! A draw is a pure function of the logits, the history, the seed and the position: no hidden
//! generator advances, so neighbours, batching, preemption and replay cannot change a row's text.
//! All of it is arithmetic that IEEE 754 fixes exactly, so it is the same on every machine.
//! Refuses to know about devices, models and text.

mod defaults;
mod history;
mod mass;
mod params;
mod processors;
mod rng;
mod sampler;
mod select;

pub use defaults::{Defaults, SamplingOverrides};
pub use history::History;
pub use params::SamplingParams;
pub use sampler::{Choice, Sampler};

#[cfg(test)]
mod tests;
