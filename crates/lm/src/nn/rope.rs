//! Rotary positions of a step.

use longrun_array::{Step, Stretch, Tensor, Weight};

use crate::config::Config;
use crate::error::Result;
use crate::rope::RopeSpec;
use crate::weights::Weights;

/// Rotary positions; its table is made once a step and shared by layers.
pub struct Rope {
    frequencies: Weight,
    factor: f32,
    stretch: Stretch,
}

impl Rope {
    /// # Errors
    /// Memory runs out.
    pub fn new(w: &Weights<'_>, spec: &RopeSpec, name: &str) -> Result<Self> {
        let mut frequencies = spec.frequencies();
        // GGUF files carry llama3 scaling as divisors.
        if w.has_file_tensor("rope_freqs.weight") {
            let divisors = w.file_numbers("rope_freqs.weight", frequencies.len())?;
            frequencies.iter_mut().zip(divisors).for_each(|(f, d)| *f /= d);
        }
        let frequencies = Weight::vector(w.runtime, name, &frequencies)?;
        Ok(Self { frequencies, factor: spec.attention_factor(), stretch: spec.kind_of_stretch() })
    }

    /// `[T, rotary]`: cosines, then sines.
    #[track_caller]
    pub fn table<'s>(&self, step: Step<'s>) -> Tensor<'s> {
        self.table_of(step, 1)
    }

    /// The same at positions rounded down to multiples of `every`.
    #[track_caller]
    pub fn table_of<'s>(&self, step: Step<'s>, every: usize) -> Tensor<'s> {
        step.positions().rope_table_of(&self.frequencies, self.factor, every, self.stretch)
    }
}

/// The positions of a model's layers.
pub struct Positions {
    /// `None` where no layer rotates.
    global: Option<Rope>,
    /// Of layers with a window, where theirs differ.
    local: Option<Rope>,
}

impl Positions {
    /// # Errors
    /// Memory runs out.
    pub fn new(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let global = c.rotates.contains(&true).then(|| Rope::new(w, &c.rope, "rope"));
        let local = c.sliding_rope.as_ref().map(|rope| Rope::new(w, rope, "local rope"));
        Ok(Self { global: global.transpose()?, local: local.transpose()? })
    }

    /// The tables of a step.
    #[track_caller]
    pub fn tables<'s>(&self, step: Step<'s>) -> Ropes<'s> {
        let [global, local] =
            [&self.global, &self.local].map(|r| r.as_ref().map(|r| r.table(step)));
        Ropes { global, local: local.or(global) }
    }
}

/// The tables of a step's positions, each `[T, rotary]`.
#[derive(Clone, Copy)]
pub struct Ropes<'s> {
    /// `None` where no layer rotates.
    pub global: Option<Tensor<'s>>,
    /// Of layers with a window.
    pub local: Option<Tensor<'s>>,
}
