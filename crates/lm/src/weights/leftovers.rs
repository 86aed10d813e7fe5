//! Tensors of a checkpoint that no layer asked for.
//!
//! Owns the list of what may be left: other models inside of the same files, buffers that are computed anew, scales for
//! rounding what is not rounded here, and biases of zeros. All else is part of the maths that this build would leave
//! out, and an error.

use std::collections::BTreeSet;

use crate::checkpoint::{Checkpoint, RawTensor};
use crate::config::Config;
use crate::error::{Error, Result};

/// Parts of names, between dots, that belong to no text model: towers, projectors, and heads that guess further tokens.
const OTHER_MODELS: [&str; 15] = [
    "mtp",
    "mtp_layers",
    "visual",
    "vision_tower",
    "vision_model",
    "vision_embed_tokens",
    "vision_encoder",
    "audio_tower",
    "audio_model",
    "embed_vision",
    "embed_audio",
    "image_newline",
    "patch_merger",
    "mm_projector",
    "multi_modal_projector",
];

/// Last parts of names that are buffers.
const BUFFERS: [&str; 7] = [
    "inv_freq",
    "masked_bias",
    "attn_mask",
    "causal_mask",
    "position_ids",
    "cos_cached",
    "sin_cached",
];

/// Last parts of names of the scales with which others round activations and caches. Nothing is rounded here.
const ROUNDING: [&str; 8] = [
    "input_scale",
    "input_scale_ub",
    "input_global_scale",
    "input_zero_point",
    "output_scale",
    "q_scale",
    "k_scale",
    "v_scale",
];

/// Checks that everything which changes the maths was read.
///
/// # Errors
/// A tensor of the checkpoint is not in `read`, and not known to be harmless.
pub(crate) fn nothing_is_left(
    c: &Checkpoint,
    config: &Config,
    read: &BTreeSet<String>,
) -> Result<()> {
    let harmless = |name: &str| is_harmless(name, config) || adds_nothing(c, name);
    let left = c.raw_tensors().map(|t| t.name).filter(|name| !read.contains(*name));
    let left: Vec<&str> = left.filter(|name| !harmless(name)).collect();
    if left.is_empty() {
        return Ok(());
    }
    let shown: Vec<_> = left.iter().take(4).map(|name| format!("{name:?}")).collect();
    let more = if left.len() > 4 { ", ..." } else { "" };
    let (n, shown) = (left.len(), shown.join(", "));
    let what =
        format!("{n} tensors are part of no layer of {}: {shown}{more}", config.family.name());
    Err(Error::unsupported(what)
        .at(c.source())
        .hint("the model computes something that this build does not know"))
}

/// Whether `name` is of no use for text: another model inside of the same files, or a buffer.
pub(crate) fn is_harmless(name: &str, config: &Config) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let last = parts[parts.len() - 1];
    let beyond = |pair: &[&str]| {
        // Layers behind the last one guess further tokens.
        pair[0] == "layers" && pair[1].parse::<usize>().is_ok_and(|n| n >= config.layers)
    };
    let gguf_beyond = parts[0] == "blk"
        && parts.get(1).and_then(|n| n.parse::<usize>().ok()).is_some_and(|n| n >= config.layers);
    parts.iter().any(|part| OTHER_MODELS.contains(part))
        || BUFFERS.contains(&last)
        || ROUNDING.contains(&last)
        || parts.windows(2).any(beyond)
        || gguf_beyond
        || (config.tied && parts.contains(&"lm_head"))
        || (last == "bias" && parts.ends_with(&["attn", "bias"]))
}

/// Whether `name` adds nothing: some writers give every matrix a bias of zeros.
fn adds_nothing(c: &Checkpoint, name: &str) -> bool {
    let zero = |t: RawTensor<'_>| t.dtype.is_weight() && t.data.iter().all(|byte| *byte == 0);
    name.ends_with(".bias") && c.raw(name).is_some_and(zero)
}
