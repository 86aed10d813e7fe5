//! The one table from GGUF tensor names to Hugging Face names.
//!
//! Owns names only. Refuses to guess: a name that the table lacks stays as it is.

/// Pairs of names. The left side is all of a GGUF name behind `blk.N.`, or that without `.weight` or `.bias`, which
/// then stays; the right side lies in `model.layers.N.`.
type Table = &'static [(&'static str, &'static str)];

/// Names outside the layers, whole.
const OUTER: Table = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// The same where a family has other names.
const MAMBA_OUTER: Table = &[("output_norm.weight", "model.norm_f.weight")];
const FALCON_OUTER: Table = &[("output_norm.weight", "model.final_layernorm.weight")];
/// Its early files call the last norm as newer ones do.
const LFM2_OUTER: Table = &[
    ("token_embd_norm.weight", "model.embedding_norm.weight"),
    ("output_norm.weight", "model.embedding_norm.weight"),
];
const GEMMA4_OUTER: Table = &[
    ("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
    ("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
    ("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
];

const HYPER_OUTER: Table = &[
    ("output_hc_fn.weight", "model.hc_head_fn"),
    ("output_hc_base.weight", "model.hc_head_base"),
    ("output_hc_scale.weight", "model.hc_head_scale"),
];

/// Names of attention in the module `$at`.
macro_rules! attention {
    ($at:literal) => {
        &[
            ("attn_qkv", concat!($at, ".qkv_proj")),
            ("attn_q", concat!($at, ".q_proj")),
            ("attn_k", concat!($at, ".k_proj")),
            ("attn_v", concat!($at, ".v_proj")),
            ("attn_output", concat!($at, ".o_proj")),
            ("attn_q_norm", concat!($at, ".q_norm")),
            ("attn_k_norm", concat!($at, ".k_norm")),
            ("attn_sinks.weight", concat!($at, ".sinks")),
        ]
    };
}
const ATTENTION: Table = attention!("self_attn");
const MIXER_ATTENTION: Table = attention!("mixer");

/// Latent attention; keys and values of each head as MLX has them, of old files in one matrix.
const LATENT: Table = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.embed_q"),
    ("attn_v_b", "self_attn.unembed_out"),
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
];

/// Pools of positions.
const POOLS: Table = &[
    ("indexer_compressor_ape.weight", "self_attn.indexer.index_kpool_compress_ape"),
    ("indexer_compressor_gate.weight", "self_attn.indexer.index_kpool_compress_gate"),
];

/// DeepSeek V4, as its own checkpoints have it.
const ENTRIES: Table = &[
    ("attn_norm", "attn_norm"),
    ("ffn_norm.weight", "ffn_norm.weight"),
    ("attn_sinks.weight", "attn.attn_sink"),
    ("attn_q_a", "attn.wq_a"),
    ("attn_q_a_norm", "attn.q_norm"),
    ("attn_q_b", "attn.wq_b"),
    ("attn_kv", "attn.wkv"),
    ("attn_kv_a_norm", "attn.kv_norm"),
    ("attn_output_a", "attn.wo_a"),
    ("attn_output_b", "attn.wo_b"),
    ("attn_compressor_ape.weight", "attn.compressor.ape"),
    ("attn_compressor_kv", "attn.compressor.wkv"),
    ("attn_compressor_gate", "attn.compressor.wgate"),
    ("attn_compressor_norm", "attn.compressor.norm"),
    ("indexer.attn_q_b", "attn.indexer.wq_b"),
    ("indexer.proj", "attn.indexer.weights_proj"),
    ("indexer_compressor_ape.weight", "attn.indexer.compressor.ape"),
    ("indexer_compressor_kv", "attn.indexer.compressor.wkv"),
    ("indexer_compressor_gate", "attn.indexer.compressor.wgate"),
    ("indexer_compressor_norm", "attn.indexer.compressor.norm"),
    ("ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"),
];

/// How residual streams are mixed.
const HYPER: Table = &[
    ("hc_attn_fn.weight", "hc_attn_fn"),
    ("hc_attn_base.weight", "hc_attn_base"),
    ("hc_attn_scale.weight", "hc_attn_scale"),
    ("hc_ffn_fn.weight", "hc_ffn_fn"),
    ("hc_ffn_base.weight", "hc_ffn_base"),
    ("hc_ffn_scale.weight", "hc_ffn_scale"),
];

/// Names of a plain MLP in the module `$at`.
macro_rules! mlp {
    ($at:literal) => {
        &[
            ("ffn_gate", concat!($at, ".gate_proj")),
            ("ffn_up", concat!($at, ".up_proj")),
            ("ffn_down", concat!($at, ".down_proj")),
        ]
    };
}
const MLP: Table = mlp!("mlp");
const FEED_FORWARD: Table = mlp!("feed_forward");
const MIXER_MLP: Table = mlp!("mixer");
/// Of families that join gate and up.
const JOINED_MLP: Table = &[("ffn_up", "mlp.gate_up_proj"), ("ffn_down", "mlp.down_proj")];

/// Names of experts in the module `$at`, stacked `[experts, out, in]`. A stack is one tensor for which Hugging Face has
/// no module, hence no `.weight` behind it.
macro_rules! experts {
    ($at:literal, $router:literal) => {
        &[
            ("ffn_gate_inp", concat!($at, ".", $router)),
            ("ffn_gate_exps.weight", concat!($at, ".experts.gate_proj")),
            ("ffn_up_exps.weight", concat!($at, ".experts.up_proj")),
            ("ffn_gate_up_exps.weight", concat!($at, ".experts.gate_up_proj")),
            ("ffn_down_exps.weight", concat!($at, ".experts.down_proj")),
            ("ffn_gate_exps.bias", concat!($at, ".experts.gate_proj.bias")),
            ("ffn_up_exps.bias", concat!($at, ".experts.up_proj.bias")),
            ("ffn_down_exps.bias", concat!($at, ".experts.down_proj.bias")),
            ("exp_probs_b.bias", concat!($at, ".gate.e_score_correction_bias")),
            // Early files have no suffix here.
            ("exp_probs_b", concat!($at, ".gate.e_score_correction_bias")),
        ]
    };
}
const EXPERTS: Table = experts!("mlp", "gate");
const ROUTED_EXPERTS: Table = experts!("mlp", "router");
const SPARSE_EXPERTS: Table = experts!("block_sparse_moe", "gate");
const GRANITE_EXPERTS: Table = experts!("block_sparse_moe", "router.layer");
const FFN_EXPERTS: Table = experts!("ffn", "gate");
const MIXER_EXPERTS: Table = experts!("mixer", "gate");
const GEMMA4_EXPERTS: Table = &[
    ("ffn_gate_inp.weight", "router.proj.weight"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
    ("ffn_gate_exps.weight", "experts.gate_proj"),
    ("ffn_up_exps.weight", "experts.up_proj"),
    ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
    ("ffn_down_exps.weight", "experts.down_proj"),
];

/// Names of the expert that serves every token.
macro_rules! shared {
    ($at:literal) => {
        &[
            ("ffn_gate_shexp", concat!($at, ".gate_proj")),
            ("ffn_up_shexp", concat!($at, ".up_proj")),
            ("ffn_down_shexp", concat!($at, ".down_proj")),
            ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ]
    };
}
const SHARED: Table = shared!("mlp.shared_experts");
const SHARED_FFN: Table = shared!("ffn.shared_experts");
const SHARED_ONE: Table = shared!("mlp.shared_expert");
const SHARED_MLP: Table = shared!("shared_mlp");
const SHARED_MIXER: Table = shared!("mixer.shared_experts");
const LATENT_EXPERTS: Table =
    &[("ffn_latent_down", "mixer.fc1_latent_proj"), ("ffn_latent_up", "mixer.fc2_latent_proj")];

/// Names of a selective scan in the module `$at`. `A` is what Hugging Face has as `A_log`, and is not the logarithm.
macro_rules! scan {
    ($at:literal) => {
        &[
            ("ssm_in", concat!($at, ".in_proj")),
            ("ssm_out", concat!($at, ".out_proj")),
            ("ssm_norm", concat!($at, ".norm")),
            ("ssm_conv1d", concat!($at, ".conv1d")),
            ("ssm_a", concat!($at, ".A")),
            ("ssm_d", concat!($at, ".D")),
            ("ssm_dt.bias", concat!($at, ".dt_bias")),
        ]
    };
}
const MAMBA: Table = scan!("mamba");
const MIXER: Table = scan!("mixer");

/// Layers of the gated delta rule.
const DELTA: Table = &[
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_out", "linear_attn.out_proj"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_a", "linear_attn.A"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
];

/// Layers of the delta rule with a decay for each channel of a key.
const KDA: Table = &[
    ("ssm_conv1d_q", "self_attn.q_conv1d"),
    ("ssm_conv1d_k", "self_attn.k_conv1d"),
    ("ssm_conv1d_v", "self_attn.v_conv1d"),
    ("ssm_f_a", "self_attn.f_a_proj"),
    ("ssm_f_b", "self_attn.f_b_proj"),
    ("ssm_g_a", "self_attn.g_a_proj"),
    ("ssm_g_b", "self_attn.g_b_proj"),
    ("ssm_beta", "self_attn.b_proj"),
    ("ssm_norm", "self_attn.o_norm"),
    ("ssm_a", "self_attn.A"),
    ("ssm_dt.bias", "self_attn.dt_bias"),
];

const SHORT_CONV: Table = &[
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
];

/// The norms of a layer: one before each half.
const NORMS: Table = &[("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")];
/// The same under another name.
const POST_NORMS: Table =
    &[("attn_norm", "input_layernorm"), ("post_attention_norm", "post_attention_layernorm")];
/// One before and one after each half.
const FOUR_NORMS: Table = &[
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
const GLM4_NORMS: Table = &[
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
];
const MIXER_NORM: Table = &[("attn_norm", "norm")];
const LFM2_NORMS: Table = &[("attn_norm", "operator_norm"), ("ffn_norm", "ffn_norm")];
const FALCON_NORMS: Table = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm.weight", "pre_ff_layernorm.weight"),
    // What some converters write.
    ("ffn_norm", "pre_ff_layernorm.weight"),
];
const GEMMA4_LAYER: Table = &[
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("layer_output_scale.weight", "layer_scalar"),
];

/// The tables of an architecture: outside the layers before [`OUTER`], and inside, the first that has a name counts.
struct Tables {
    outer: Table,
    layer: &'static [Table],
}

/// The tables of architecture `arch`, or `None` if it is not known.
fn tables(arch: &str) -> Option<Tables> {
    let (outer, layer): (Table, &'static [Table]) = match arch {
        "llama" | "mistral3" => (&[], &[NORMS, ATTENTION, MLP, SPARSE_EXPERTS]),
        "qwen2" | "qwen3" | "smollm3" => (&[], &[NORMS, ATTENTION, MLP]),
        "qwen2moe" | "qwen3moe" => (&[], &[NORMS, ATTENTION, MLP, EXPERTS, SHARED_ONE]),
        "minimax-m2" => (&[], &[NORMS, ATTENTION, MLP, SPARSE_EXPERTS]),
        "glm4moe" => (&[], &[POST_NORMS, ATTENTION, MLP, EXPERTS, SHARED]),
        "gpt-oss" => (&[], &[POST_NORMS, ATTENTION, ROUTED_EXPERTS]),
        "seed_oss" => (&[], &[POST_NORMS, ATTENTION, MLP]),
        "phi3" => (&[], &[NORMS, ATTENTION, JOINED_MLP]),
        "glm4" => (&[], &[GLM4_NORMS, ATTENTION, JOINED_MLP]),
        "olmo2" | "gemma2" | "gemma3" => (&[], &[FOUR_NORMS, ATTENTION, MLP]),
        "gemma4" => (GEMMA4_OUTER, &[FOUR_NORMS, GEMMA4_LAYER, ATTENTION, MLP, GEMMA4_EXPERTS]),
        "deepseek2" | "deepseek32" => (&[], &[NORMS, LATENT, ATTENTION, MLP, EXPERTS, SHARED]),
        "deepseek4" => (HYPER_OUTER, &[ENTRIES, HYPER, FFN_EXPERTS, SHARED_FFN]),
        "glm5-next" => (&[], &[NORMS, KDA, LATENT, POOLS, ATTENTION, MLP, EXPERTS, SHARED, HYPER]),
        "kimi-linear" => (&[], &[NORMS, KDA, LATENT, ATTENTION, MLP, EXPERTS, SHARED]),
        "qwen3next" | "qwen35" | "qwen35moe" => {
            (&[], &[POST_NORMS, DELTA, ATTENTION, MLP, EXPERTS, SHARED_ONE])
        }
        "granite" | "granitemoe" | "granitehybrid" => {
            (&[], &[NORMS, MAMBA, ATTENTION, MLP, GRANITE_EXPERTS, SHARED_MLP])
        }
        "falcon-h1" => (FALCON_OUTER, &[FALCON_NORMS, MAMBA, ATTENTION, FEED_FORWARD]),
        "mamba2" => (MAMBA_OUTER, &[MIXER_NORM, MIXER]),
        "nemotron_h" | "nemotron_h_moe" => (
            MAMBA_OUTER,
            &[
                MIXER_NORM,
                MIXER,
                MIXER_ATTENTION,
                MIXER_MLP,
                MIXER_EXPERTS,
                SHARED_MIXER,
                LATENT_EXPERTS,
            ],
        ),
        "lfm2" => (LFM2_OUTER, &[LFM2_NORMS, SHORT_CONV, ATTENTION, FEED_FORWARD]),
        _ => return None,
    };
    Some(Tables { outer, layer })
}

/// Whether the names of `arch` are known.
pub(super) fn knows(arch: &str) -> bool {
    tables(arch).is_some()
}

/// The Hugging Face name of the tensor that GGUF calls `name` in a model of architecture `arch`.
pub(super) fn hf_name(arch: &str, name: &str) -> Option<String> {
    let Tables { outer, layer: tables } = tables(arch)?;
    if let Some(outer) = look_up(outer, name).or_else(|| look_up(OUTER, name)) {
        return Some(outer.into());
    }
    let (layer, inner) = name.strip_prefix("blk.")?.split_once('.')?;
    // Only the canonical spelling, so that two names cannot become one.
    if !is_number(layer) {
        return None;
    }
    let whole = tables.iter().find_map(|table| look_up(table, inner));
    if let Some(whole) = whole {
        return Some(format!("model.layers.{layer}.{whole}"));
    }
    let (stem, suffix) = inner.rsplit_once('.')?;
    // What the table has whole is no stem.
    let whole = [".weight", ".bias", ".scale"].iter().any(|end| stem.ends_with(end));
    if whole || !matches!(suffix, "weight" | "bias") {
        return None;
    }
    if let Some(one) = single_expert(tables, stem) {
        return Some(format!("model.layers.{layer}.{one}.{suffix}"));
    }
    let module = tables.iter().find_map(|table| look_up(table, stem))?;
    Some(format!("model.layers.{layer}.{module}.{suffix}"))
}

/// Early files have each expert by itself, `ffn_gate.E`.
fn single_expert(tables: &[Table], stem: &str) -> Option<String> {
    let (projection, expert) = stem.split_once('.')?;
    if !is_number(expert) {
        return None;
    }
    let stack = format!("{projection}_exps.weight");
    let stacked = tables.iter().find_map(|table| look_up(table, &stack))?;
    let (experts, projection) = stacked.rsplit_once('.')?;
    Some(format!("{experts}.{expert}.{projection}"))
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|n| n.to_string() == text)
}

fn look_up(table: Table, name: &str) -> Option<&'static str> {
    table.iter().find(|row| row.0 == name).map(|row| row.1)
}

#[cfg(test)]
mod tests {
    use super::{OUTER, hf_name, tables};
    use std::collections::BTreeMap;

    const ALL: [&str; 30] = [
        "llama",
        "mistral3",
        "qwen2",
        "qwen3",
        "smollm3",
        "qwen2moe",
        "qwen3moe",
        "minimax-m2",
        "glm4moe",
        "gpt-oss",
        "seed_oss",
        "phi3",
        "glm4",
        "olmo2",
        "gemma2",
        "gemma3",
        "gemma4",
        "deepseek2",
        "deepseek32",
        "kimi-linear",
        "qwen3next",
        "qwen35",
        "qwen35moe",
        "granite",
        "granitemoe",
        "granitehybrid",
        "falcon-h1",
        "mamba2",
        "nemotron_h",
        "nemotron_h_moe",
    ];

    /// Two spellings of one thing.
    const SPELLINGS: [&str; 3] = ["exp_probs_b", "ffn_norm", "output_norm.weight"];

    #[test]
    fn no_two_names_of_an_architecture_become_one() {
        for arch in ALL.into_iter().chain(["lfm2", "deepseek4", "glm5-next"]) {
            let known = tables(arch).unwrap();
            let stems: Vec<&str> = known.layer.concat().iter().map(|row| row.0).collect();
            let inner = stems.iter().filter(|stem| !SPELLINGS.contains(stem)).flat_map(|stem| {
                ["", ".weight", ".bias", ".scale"].map(|suffix| format!("blk.12.{stem}{suffix}"))
            });
            let outer = [known.outer, OUTER].concat();
            let outer = outer.iter().map(|row| row.0).filter(|name| !SPELLINGS.contains(name));
            let mut seen = BTreeMap::new();
            for name in outer.map(str::to_owned).chain(inner) {
                if let Some(hf) = hf_name(arch, &name) {
                    let before = seen.insert(hf.clone(), name.clone());
                    assert!(
                        before.is_none_or(|other| other == name),
                        "{arch}: {name} is {hf}, too"
                    );
                }
            }
            assert!(seen.keys().any(|hf| hf.starts_with("model.layers.12.")), "{arch}");
        }
        assert_eq!(hf_name("mystery", "output.weight"), None);
    }

    #[test]
    fn experts_come_in_stacks_or_one_by_one() {
        for (arch, name, hf) in [
            ("llama", "ffn_up_exps.weight", "block_sparse_moe.experts.up_proj"),
            ("llama", "ffn_up.7.weight", "block_sparse_moe.experts.7.up_proj.weight"),
            ("gpt-oss", "ffn_gate_exps.bias", "mlp.experts.gate_proj.bias"),
            ("deepseek2", "exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
            ("phi3", "ffn_up.weight", "mlp.gate_up_proj.weight"),
            ("qwen35", "attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
            ("qwen3", "attn_qkv.bias", "self_attn.qkv_proj.bias"),
            ("falcon-h1", "ffn_norm", "pre_ff_layernorm.weight"),
        ] {
            let (name, hf) = (format!("blk.3.{name}"), format!("model.layers.3.{hf}"));
            assert_eq!(hf_name(arch, &name), Some(hf), "{arch}");
        }
        assert_eq!(hf_name("qwen3", "blk.0.ffn_up.7.weight"), None);
        assert_eq!(hf_name("llama", "blk.0.ffn_up.07.weight"), None);
        assert_eq!(hf_name("llama", "blk.0.ffn_up_exps.scale"), None);
    }
}
