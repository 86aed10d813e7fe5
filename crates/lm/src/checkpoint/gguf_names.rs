//! The one table from GGUF tensor names to Hugging Face names.
//!
//! Owns names only. Refuses to guess: a name that the table lacks stays as it is.

/// Names outside the layers, whole.
const OUTER: &[(&str, &str)] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Names inside `blk.N.`, without `.weight` or `.bias`; the right side lies in `model.layers.N.`.
const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The norm between attention and MLP where a layer has two norms.
const TWO_NORMS: &[(&str, &str)] = &[("ffn_norm", "post_attention_layernorm")];

/// Where a layer has four norms: each block has one before it and one after it.
const FOUR_NORMS: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Experts, stacked `[experts, out, in]`. The stack is one tensor for which Hugging Face has no
/// module, hence no `.weight` behind it.
const EXPERTS: &[(&str, &str)] = &[
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
];

const ROUTER: &[(&str, &str)] = &[("ffn_gate_inp", "mlp.gate")];

/// The tables of architecture `arch` for the inside of a layer, or `None` if it is not known.
fn layer_tables(arch: &str) -> Option<[&'static [(&'static str, &'static str)]; 3]> {
    match arch {
        "llama" | "qwen2" | "qwen3" => Some([LAYER, TWO_NORMS, &[]]),
        "qwen3moe" => Some([LAYER, TWO_NORMS, ROUTER]),
        "gemma3" => Some([LAYER, FOUR_NORMS, &[]]),
        _ => None,
    }
}

/// Whether the names of `arch` are known.
pub(super) fn knows(arch: &str) -> bool {
    layer_tables(arch).is_some()
}

/// The Hugging Face name of the tensor that GGUF calls `name` in a model of architecture `arch`.
pub(super) fn hf_name(arch: &str, name: &str) -> Option<String> {
    let tables = layer_tables(arch)?;
    if let Some(outer) = look_up(OUTER, name) {
        return Some(outer.into());
    }
    let (layer, inner) = name.strip_prefix("blk.")?.split_once('.')?;
    // Only the canonical spelling, so that two names cannot become one.
    if layer.parse::<u32>().ok()?.to_string() != layer {
        return None;
    }
    let (stem, suffix) = inner.rsplit_once('.')?;
    if let ("qwen3moe", "weight", Some(experts)) = (arch, suffix, look_up(EXPERTS, stem)) {
        return Some(format!("model.layers.{layer}.{experts}"));
    }
    let module = tables.iter().find_map(|table| look_up(table, stem))?;
    matches!(suffix, "weight" | "bias").then(|| format!("model.layers.{layer}.{module}.{suffix}"))
}

fn look_up(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|row| row.0 == name).map(|row| row.1)
}

#[cfg(test)]
mod tests {
    use super::{EXPERTS, FOUR_NORMS, LAYER, OUTER, ROUTER, TWO_NORMS, hf_name, knows};
    use std::collections::BTreeSet;

    #[test]
    fn no_two_names_of_an_architecture_become_one() {
        for arch in ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3"] {
            assert!(knows(arch));
            let stems = [LAYER, TWO_NORMS, FOUR_NORMS, ROUTER, EXPERTS].concat();
            let inner: BTreeSet<_> = stems.iter().map(|row| row.0).collect();
            let inner = inner.iter().flat_map(|stem| {
                ["weight", "bias", "scale"].map(|suffix| format!("blk.12.{stem}.{suffix}"))
            });
            let names = OUTER.iter().map(|row| row.0.to_owned()).chain(inner);
            let mapped: Vec<_> = names.filter_map(|name| hf_name(arch, &name)).collect();
            let distinct: BTreeSet<_> = mapped.iter().collect();
            assert_eq!(distinct.len(), mapped.len(), "{arch}");
            assert!(mapped.contains(&"model.layers.12.post_attention_layernorm.weight".into()));
            assert!(!mapped.iter().any(|name| name.ends_with("scale")));
        }
        assert_eq!(hf_name("mystery", "output.weight"), None);
    }
}
