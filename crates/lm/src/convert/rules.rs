//! What becomes of a tensor: the table of names, family by family.
//!
//! Owns the knowledge of how MLX's model classes name and lay out what the original checkpoints call otherwise. A
//! pattern is the end of a name below the root; `#` stands for a number. The first row that fits counts, and a name
//! that no row fits is kept. Names that MLX itself writes fit no row, so its own checkpoints pass unchanged.

use crate::config::Family;

/// What a tensor becomes; names replace what the pattern has matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Make {
    /// The same under another name.
    As(&'static str),
    /// One expert of a stack, at the number that `#` stood for.
    Expert(&'static str),
    /// `[.., 2 rows, cols]`: the first half of the rows of each matrix, and the second.
    Halves([&'static str; 2]),
    /// Rows (of a weight that the files have turned: columns) taken in turn.
    Pairs([&'static str; 2]),
    /// A matrix whose rows are the columns of the files', unless its parts are packed by rows.
    Turned(&'static str),
    /// Taps `[channels, 1, taps]`, of which the layout has `[channels, taps, 1]`: the same bytes.
    Taps(&'static str),
    /// Keys and values of each head out of the latent: the key part turned, and the value part.
    LatentHeads([&'static str; 2]),
    /// Norm weights, which the layout keeps plus 1.
    PlusOne,
    /// Flat.
    Flat,
    /// Rows of a matrix, in the order of these numbers.
    Joined(&'static str, usize),
    /// The logarithm of less this, in the shape that the class has.
    Decays(&'static str),
}

use Family as F;
use Make::{As, Decays, Expert, Flat, Halves, Joined, LatentHeads, Pairs, PlusOne, Taps, Turned};

type Row = (&'static str, Make);

const GATE: &str = "switch_mlp.gate_proj.weight";
const UP: &str = "switch_mlp.up_proj.weight";
const DOWN: &str = "switch_mlp.down_proj.weight";

const ALL: &[Row] = &[
    ("experts.#.gate_proj.weight", Expert(GATE)),
    ("experts.#.up_proj.weight", Expert(UP)),
    ("experts.#.down_proj.weight", Expert(DOWN)),
    ("experts.#.w1.weight", Expert(GATE)),
    ("experts.#.w3.weight", Expert(UP)),
    ("experts.#.w2.weight", Expert(DOWN)),
    ("experts.gate_up_proj", Halves([GATE, UP])),
    ("experts.gate_proj", As(GATE)),
    ("experts.up_proj", As(UP)),
    ("experts.down_proj", As(DOWN)),
    ("conv1d.weight", Taps("conv1d.weight")),
    ("A", Decays("A_log")),
    ("kv_b_proj.weight", LatentHeads(["embed_q.weight", "unembed_out.weight"])),
];

const DELTA: &[Row] = &[
    ("input_layernorm.weight", PlusOne),
    ("post_attention_layernorm.weight", PlusOne),
    ("q_norm.weight", PlusOne),
    ("k_norm.weight", PlusOne),
];

const MAMBA2: &[Row] = &[("embed_tokens.weight", As("embeddings.weight"))];

const NEMOTRON_H: &[Row] = &[
    ("embed_tokens.weight", As("embeddings.weight")),
    ("experts.up_proj", As("switch_mlp.fc1.weight")),
    ("experts.down_proj", As("switch_mlp.fc2.weight")),
    ("experts.#.up_proj.weight", Expert("switch_mlp.fc1.weight")),
    ("experts.#.down_proj.weight", Expert("switch_mlp.fc2.weight")),
];

const GPT_OSS: &[Row] = &[
    ("experts.gate_proj", As("experts.gate_proj.weight")),
    ("experts.up_proj", As("experts.up_proj.weight")),
    ("experts.gate_up_proj", Pairs(["experts.gate_proj.weight", "experts.up_proj.weight"])),
    ("experts.gate_up_proj_bias", Pairs(["experts.gate_proj.bias", "experts.up_proj.bias"])),
    ("experts.down_proj", Turned("experts.down_proj.weight")),
    ("experts.down_proj_bias", As("experts.down_proj.bias")),
];

const GEMMA4: &[Row] = &[
    ("experts.gate_proj", As("experts.switch_glu.gate_proj.weight")),
    ("experts.up_proj", As("experts.switch_glu.up_proj.weight")),
    (
        "experts.gate_up_proj",
        Halves(["experts.switch_glu.gate_proj.weight", "experts.switch_glu.up_proj.weight"]),
    ),
    ("experts.down_proj", As("experts.switch_glu.down_proj.weight")),
];

const GRANITE: &[Row] = &[
    ("block_sparse_moe.input_linear.weight", Halves([GRANITE_GATE, GRANITE_UP])),
    ("block_sparse_moe.output_linear.weight", As("block_sparse_moe.switch_mlp.down_proj.weight")),
    ("shared_mlp.gate_proj.weight", Joined("shared_mlp.input_linear.weight", 0)),
    ("shared_mlp.up_proj.weight", Joined("shared_mlp.input_linear.weight", 1)),
    ("shared_mlp.down_proj.weight", As("shared_mlp.output_linear.weight")),
];
const GRANITE_GATE: &str = "block_sparse_moe.switch_mlp.gate_proj.weight";
const GRANITE_UP: &str = "block_sparse_moe.switch_mlp.up_proj.weight";

/// Granite without experts.
const GRANITE_DENSE: &[Row] = &[
    ("shared_mlp.input_linear.weight", Halves(["mlp.gate_proj.weight", "mlp.up_proj.weight"])),
    ("shared_mlp.output_linear.weight", As("mlp.down_proj.weight")),
];

const KIMI_LINEAR: &[Row] = &[
    ("block_sparse_moe.experts.#.w1.weight", Expert("mlp.switch_mlp.gate_proj.weight")),
    ("block_sparse_moe.experts.#.w3.weight", Expert("mlp.switch_mlp.up_proj.weight")),
    ("block_sparse_moe.experts.#.w2.weight", Expert("mlp.switch_mlp.down_proj.weight")),
    ("block_sparse_moe.experts.gate_up_proj", Halves(["mlp.switch_mlp.gate_proj.weight", KIMI_UP])),
    ("block_sparse_moe.experts.down_proj", As("mlp.switch_mlp.down_proj.weight")),
    ("block_sparse_moe.gate.e_score_correction_bias", As("mlp.e_score_correction_bias")),
    ("mlp.gate.e_score_correction_bias", As("mlp.e_score_correction_bias")),
    ("block_sparse_moe.gate.weight", As("mlp.gate.weight")),
    ("block_sparse_moe.gate_proj.weight", As("mlp.gate_proj.weight")),
    ("block_sparse_moe.up_proj.weight", As("mlp.up_proj.weight")),
    ("block_sparse_moe.down_proj.weight", As("mlp.down_proj.weight")),
    ("block_sparse_moe.shared_experts.gate_proj.weight", As("mlp.shared_experts.gate_proj.weight")),
    ("block_sparse_moe.shared_experts.up_proj.weight", As("mlp.shared_experts.up_proj.weight")),
    ("block_sparse_moe.shared_experts.down_proj.weight", As("mlp.shared_experts.down_proj.weight")),
    ("q_conv1d.weight", Taps("q_conv.conv.weight")),
    ("k_conv1d.weight", Taps("k_conv.conv.weight")),
    ("v_conv1d.weight", Taps("v_conv.conv.weight")),
    ("dt_bias", Flat),
];
const KIMI_UP: &str = "mlp.switch_mlp.up_proj.weight";

const LFM2: &[Row] = &[("conv.conv.weight", Taps("conv.conv.weight"))];

const GLM5_NEXT: &[Row] = &[
    ("q_conv1d.weight", Taps("q_conv1d.weight")),
    ("k_conv1d.weight", Taps("k_conv1d.weight")),
    ("v_conv1d.weight", Taps("v_conv1d.weight")),
];

/// The rows of a family, to be asked before [`ALL`].
fn rows(family: Family, experts: bool) -> &'static [Row] {
    match family {
        F::Qwen3Next | F::Qwen35 | F::Qwen35Moe => DELTA,
        F::Mamba2 => MAMBA2,
        F::NemotronH => NEMOTRON_H,
        F::GptOss => GPT_OSS,
        F::Gemma4 => GEMMA4,
        F::GraniteMoeHybrid if experts => GRANITE,
        F::GraniteMoeHybrid => GRANITE_DENSE,
        F::KimiLinear => KIMI_LINEAR,
        F::Lfm2 => LFM2,
        F::Glm5Next => GLM5_NEXT,
        _ => &[],
    }
}

/// A row that fits: what stands before the match, the number that `#` stood for, and what to make.
pub(super) struct Fit<'a> {
    pub(super) before: &'a str,
    pub(super) number: usize,
    pub(super) make: Make,
}

/// The row for the tensor `path` (its name below the root) of a family with or without experts.
pub(super) fn fit(family: Family, experts: bool, path: &str) -> Option<Fit<'_>> {
    if rows(family, experts) == DELTA && path == "norm.weight" {
        return Some(Fit { before: path, number: 0, make: PlusOne });
    }
    let mut all = rows(family, experts).iter().chain(ALL);
    all.find_map(|(pattern, make)| {
        let (before, number) = ends_with(path, pattern)?;
        Some(Fit { before, number, make: *make })
    })
}

/// What stands before the end of `path` that fits `pattern`, with the number for `#`.
fn ends_with<'a>(path: &'a str, pattern: &str) -> Option<(&'a str, usize)> {
    let (mut rest, mut number) = (path, 0);
    for piece in pattern.rsplit('.') {
        let (before, last) = rest.rsplit_once('.').unwrap_or(("", rest));
        match piece {
            // Only the canonical spelling, so that two names can't become one.
            "#" => number = last.parse().ok().filter(|n: &usize| n.to_string() == last)?,
            _ if piece != last => return None,
            _ => {}
        }
        rest = before;
    }
    Some((rest, number))
}

/// Weights that are routers. They keep 8 bits where others get fewer.
pub(crate) fn is_router(name: &str) -> bool {
    const ROUTERS: [&str; 6] = [
        "mlp.gate",
        "mlp.shared_expert_gate",
        "block_sparse_moe.gate",
        "mlp.router",
        "router.layer",
        "router.proj",
    ];
    ROUTERS.iter().any(|router| ends_with(name, router).is_some())
}

/// Whether MLX's class keeps the weight `base` plain, though it is a matrix.
pub(super) fn is_never_quantised(family: Family, base: &str) -> bool {
    let plain_gate = matches!(
        family,
        F::DeepSeekV3 | F::DeepSeekV32 | F::Glm4Moe | F::NemotronH | F::DeepSeekV4 | F::Glm5Next
    );
    plain_gate && ends_with(base, "gate").is_some()
}

/// Small tensors whose type MLX never narrows.
pub(super) fn keeps_type(path: &str) -> bool {
    const KEPT: [&str; 3] = ["A_log", "e_score_correction_bias", "dt_bias"];
    KEPT.iter().any(|kept| ends_with(path, kept).is_some())
}

#[cfg(test)]
mod tests {
    use super::{Make, ends_with, fit, is_router};
    use crate::config::Family;

    #[test]
    fn patterns_match_whole_pieces_at_the_end() {
        assert_eq!(ends_with("a.experts.12.w1.weight", "experts.#.w1.weight"), Some(("a", 12)));
        assert_eq!(ends_with("a.experts.012.w1.weight", "experts.#.w1.weight"), None);
        assert_eq!(ends_with("a.my_experts.1.w1.weight", "experts.#.w1.weight"), None);
        assert_eq!(ends_with("w1.weight", "experts.#.w1.weight"), None);
        assert!(is_router("model.layers.0.mlp.gate") && !is_router("model.layers.0.mlp.gate_proj"));
    }

    #[test]
    fn the_family_is_asked_first() {
        let path = "layers.3.mixer.experts.7.up_proj.weight";
        let (nemotron, glm) = (Family::NemotronH, Family::Glm4Moe);
        let made = |family| fit(family, true, path).map(|f| (f.before, f.number, f.make));
        let expert = |name| Some(("layers.3.mixer", 7, Make::Expert(name)));
        assert_eq!(made(nemotron), expert("switch_mlp.fc1.weight"));
        assert_eq!(made(glm), expert("switch_mlp.up_proj.weight"));
        assert!(fit(glm, true, "layers.3.mlp.switch_mlp.up_proj.weight").is_none());
        let norm = fit(Family::Qwen3Next, true, "norm.weight").map(|f| f.make);
        assert_eq!(norm, Some(Make::PlusOne));
        assert!(fit(Family::Qwen3Next, true, "layers.0.linear_attn.norm.weight").is_none());
    }
}
