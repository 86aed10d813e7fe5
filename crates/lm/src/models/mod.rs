//! The model families: one file each, its maths with shapes. This file is the registry.
//!
//! A model owns weights and nothing else: it sees a step and the caches, never a request, a length or a device.

mod decoder;
mod deepseek_v3;
mod deepseek_v4;
mod falcon_h1;
mod gemma3;
mod gemma4;
mod glm5_next;
mod granite;
mod kimi_linear;
mod lfm2;
mod mtp;
mod nemotron_h;
mod olmo2;
mod qwen3_next;
mod transformer;

use std::cell::RefCell;
use std::collections::BTreeSet;

use longrun_array::{Runtime, Step};

use decoder::{Block, Decoder};

use crate::adapter::{Adapters, Slots};
use crate::cache::{CacheSpec, Caches};
use crate::config::{Config, Family};
use crate::error::Result;
use crate::weights::{Progress, Seen, Source, Weights, nothing_is_left};

/// A model: it can write its step.
pub trait Model: Send {
    /// What it keeps between steps.
    fn caches(&self) -> CacheSpec;

    /// Writes one step: embeds the tokens, moves the caches forward, emits the wanted results.
    fn forward<'s>(&self, step: Step<'s>, caches: &Caches);
}

/// Reads the weights of `config`'s family, and if `mtp` those of its head that guesses further tokens. With the model
/// comes a hash of all that was read, see [`Seen`].
///
/// # Errors
/// There is no such head, a weight is missing or misshapen, or a tensor of the files is part of no layer; memory or
/// objects run out.
pub fn load(
    runtime: &Runtime,
    config: &Config,
    source: Source<'_>,
    progress: Progress<'_>,
    mtp: bool,
) -> Result<(Box<dyn Model>, u128)> {
    let none = RefCell::new(Slots::new(Adapters::default())?);
    load_with(runtime, config, source, &none, progress, [mtp, false])
}

/// The same, with the room that `slots` has for adapters beside each linear layer. With `hidden` only hidden states are
/// wanted, for which files need have no head of their own.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_with(
    runtime: &Runtime,
    config: &Config,
    source: Source<'_>,
    slots: &RefCell<Slots>,
    progress: Progress<'_>,
    [mtp, hidden]: [bool; 2],
) -> Result<(Box<dyn Model>, u128)> {
    let (read, adapted) = (RefCell::new(Seen::new(source)), RefCell::new(BTreeSet::new()));
    // MLX adds the 1 to the norms of these families when it saves them.
    let mlx = matches!(source, Source::Checkpoint(c) if c.is_mlx());
    let in_weights = mlx
        .then(|| Config { multipliers: config.multipliers.in_weights(config), ..config.clone() });
    let config = in_weights.as_ref().unwrap_or(config);
    let less_one = config.norms_less_one && !(mlx && config.family.is_delta_hybrid());
    let w = Weights::new(runtime, source, less_one, config.eps);
    let w = &w.with_progress(&read, progress).with_adapter(&adapted).with_slots(slots);
    let w = &w.clone().for_hidden(hidden);
    let model = build(w, config, mtp)?;
    if let Source::Checkpoint(checkpoint) = source {
        nothing_is_left(checkpoint, config, read.borrow().names())?;
        if let Some(adapter) = checkpoint.adapter() {
            adapter.check_used(adapted.borrow().iter().map(String::as_str))?;
        }
    }
    let hash = read.borrow().hash();
    Ok((model, hash))
}

fn build(w: &Weights<'_>, c: &Config, mtp: bool) -> Result<Box<dyn Model>> {
    Ok(match c.family {
        Family::Llama
        | Family::Mistral
        | Family::Qwen2
        | Family::Qwen3
        | Family::Qwen3Moe
        | Family::SmolLm3
        | Family::Qwen2Moe
        | Family::Mixtral
        | Family::Phi3
        | Family::SeedOss
        | Family::Ministral3
        | Family::Glm4Moe
        | Family::MiniMaxM2
        | Family::GptOss
        | Family::DeadValues => decoder::<transformer::Layer>(w, c, mtp)?,
        Family::Gemma2 | Family::Gemma3 => decoder::<gemma3::Layer>(w, c, mtp)?,
        Family::Gemma4 | Family::DeepSeekV4 | Family::Glm5Next if mtp => {
            return Err(mtp::no_head(c));
        }
        Family::Gemma4 => Box::new(gemma4::Gemma4::load(w, c)?),
        Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => {
            decoder::<qwen3_next::Layer>(w, c, mtp)?
        }
        Family::Olmo2 | Family::Olmo3 | Family::Glm4 => decoder::<olmo2::Layer>(w, c, mtp)?,
        Family::Lfm2 => decoder::<lfm2::Layer>(w, c, mtp)?,
        Family::DeepSeekV3 | Family::DeepSeekV32 => decoder::<deepseek_v3::Layer>(w, c, mtp)?,
        Family::Mamba2 | Family::NemotronH => decoder::<nemotron_h::Layer>(w, c, mtp)?,
        Family::KimiLinear => decoder::<kimi_linear::Layer>(w, c, mtp)?,
        Family::FalconH1 => decoder::<falcon_h1::Layer>(w, c, mtp)?,
        Family::Granite | Family::GraniteMoeHybrid => decoder::<granite::Layer>(w, c, mtp)?,
        Family::DeepSeekV4 => Box::new(deepseek_v4::DeepSeekV4::load(w, c)?),
        Family::Glm5Next => Box::new(glm5_next::Glm5Next::load(w, c)?),
    })
}

fn decoder<B: Block + 'static>(w: &Weights<'_>, c: &Config, mtp: bool) -> Result<Box<dyn Model>> {
    Ok(Box::new(Decoder::<B>::load(w, c, mtp)?))
}
