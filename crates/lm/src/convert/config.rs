//! The `config.json` of the layout: one flat object, in the words that MLX's classes read.
//!
//! Owns spelling. Checkpoints of newer writers keep positions in a nested object and name some sizes otherwise; both
//! spellings are written, because other readers want either. Refuses GGUF's own rotary divisors unless they are those
//! that a config can say.

use serde_json::{Map, Value, json};

use super::Options;
use super::plan::{Plan, Stored};
use crate::checkpoint::Checkpoint;
use crate::config::{Config, Family};
use crate::error::{Error, Result};
use crate::rope::RopeSpec;
use longrun_array::quant::encode::Float;

/// Whether mlx-lm has a class for the family.
pub(super) fn is_known_to_mlx(family: Family) -> bool {
    !matches!(family, Family::DeepSeekV4 | Family::Glm5Next | Family::DeadValues)
}

/// Fields that speak of what is not written.
const GONE: [&str; 12] = [
    "_name_or_path",
    "audio_config",
    "auto_map",
    "compression_config",
    "norm_weight_shifted",
    "quantization",
    "quantization_config",
    "rope_interleaved",
    "text_config",
    "vision_config",
    "torch_dtype",
    "dtype",
];

/// # Errors
/// The source has rotary divisors that no config can say.
pub(super) fn config(
    source: &Checkpoint,
    shape: &Config,
    plan: &Plan,
    options: &Options<'_>,
) -> Result<Value> {
    let outer = source.config();
    let mut all = outer.as_object().cloned().unwrap_or_default();
    if let Some(text) = outer["text_config"].as_object() {
        all.extend(text.clone());
    }
    GONE.iter().for_each(|name| drop(all.shift_remove(*name)));
    let dtype = match plan.dtype {
        Float::F32 => "float32",
        Float::F16 => "float16",
        Float::BF16 => "bfloat16",
    };
    all.insert("torch_dtype".to_owned(), dtype.into());
    match shape.family {
        Family::Qwen35 => drop(all.insert("model_type".to_owned(), "qwen3_5".into())),
        Family::Qwen35Moe => drop(all.insert("model_type".to_owned(), "qwen3_5_moe".into())),
        _ => {}
    }
    all.insert("tie_word_embeddings".to_owned(), shape.tied.into());
    positions(source, shape, &mut all)?;
    spellings(shape, &mut all);
    if shape.family == Family::FalconH1 && !source.is_mlx() {
        unit_factors(&mut all);
    }
    if options.quantize.is_some() {
        let how = quantization(plan);
        all.insert("quantization".to_owned(), how.clone());
        all.insert("quantization_config".to_owned(), how);
    }
    all.sort_keys();
    Ok(Value::Object(all))
}

/// The mode of all, and of each weight that has another.
fn quantization(plan: &Plan) -> Value {
    let mut how = plan.mode.map_or_else(|| json!({}), super::Mode::json);
    for output in &plan.outputs {
        if let Stored::Codes(mode, _) = output.stored
            && Some(mode) != plan.mode
        {
            how[output.base()] = mode.json();
        }
    }
    how
}

/// Sets `name` unless it has a value.
fn default(all: &mut Map<String, Value>, name: &str, value: impl Into<Value>) {
    if all.get(name).is_none_or(Value::is_null) {
        all.insert(name.to_owned(), value.into());
    }
}

/// `rope_theta`, `rope_scaling` and `partial_rotary_factor` beside `rope_parameters`.
fn positions(source: &Checkpoint, shape: &Config, all: &mut Map<String, Value>) -> Result<()> {
    let mut rope = all.get("rope_parameters").cloned().unwrap_or_default();
    if let Some(local) = rope.get("sliding_attention") {
        default(all, "rope_local_base_freq", local["rope_theta"].clone());
        rope = rope["full_attention"].clone();
    }
    let Some(fields) = rope.as_object_mut() else { return Ok(()) };
    if fields.get("rope_type").is_some_and(|kind| kind == "freq_factors") {
        let spec = llama3_of(source, shape)?;
        let partial = fields.get("partial_rotary_factor").cloned();
        *fields = spec;
        if let Some(partial) = partial {
            fields.insert("partial_rotary_factor".to_owned(), partial);
        }
        all.insert("rope_parameters".to_owned(), Value::Object(fields.clone()));
    }
    for name in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = fields.get(name) {
            default(all, name, value.clone());
        }
    }
    let kind = fields.get("rope_type").or_else(|| fields.get("type")).cloned();
    match kind.as_ref().and_then(Value::as_str) {
        None | Some("default" | "mrope") => {
            if shape.family == Family::Glm4Moe {
                all.entry("rope_scaling").or_insert(Value::Null);
            }
        }
        Some(kind) => {
            let mut scaling = fields.clone();
            scaling.insert("type".to_owned(), kind.into());
            default(all, "rope_scaling", Value::Object(scaling));
        }
    }
    Ok(())
}

/// The llama3 scaling whose divisors a GGUF file carries.
fn llama3_of(source: &Checkpoint, shape: &Config) -> Result<Map<String, Value>> {
    let plain = shape.rope.frequencies();
    let t = source.weight("rope_freqs.weight")?;
    let mut divisors = vec![0.0; plain.len()];
    let size = t.format.row_bytes(plain.len());
    if size != Some(t.data.len()) {
        return Err(Error::file(format!("is {:?}, wants [{}]", t.shape, plain.len())).at(t.name));
    }
    t.format.dequantize_row(&t.data, &mut divisors);
    let factor = f64::from(divisors.iter().copied().fold(1.0, f32::max));
    let json = json!({
        "rope_type": "llama3",
        "rope_theta": shape.rope.theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let spec = RopeSpec::new(Some(&json), shape.head_dim, shape.rope.theta, 1.0)?;
    let told = spec.frequencies();
    let same = |((told, plain), divisor): ((&f32, &f32), &f32)| {
        (told * divisor - plain).abs() <= 1e-4 * plain.abs()
    };
    match (json, told.iter().zip(&plain).zip(&divisors).all(same)) {
        (Value::Object(fields), true) => Ok(fields),
        _ => Err(Error::unsupported("its rotary divisors are not those of llama3")
            .at("rope_freqs.weight")
            .hint("convert the original checkpoint instead")),
    }
}

/// What MLX's classes call otherwise, or can't do without.
fn spellings(shape: &Config, all: &mut Map<String, Value>) {
    let text = |all: &Map<String, Value>, name: &str| all.get(name).cloned().unwrap_or_default();
    match shape.family {
        Family::Qwen3Moe | Family::Qwen2Moe | Family::Qwen3Next | Family::Qwen35Moe => {
            let experts = text(all, "num_local_experts");
            default(all, "num_experts", experts);
            default(all, "mlp_only_layers", json!([]));
            default(all, "decoder_sparse_step", 1);
        }
        Family::MiniMaxM2 => {
            default(all, "shared_intermediate_size", 0);
            default(all, "rotary_dim", shape.rope.rotary);
        }
        Family::GraniteMoeHybrid => {
            let kinds = text(all, "layer_types");
            let kinds = kinds.as_array().map(Vec::as_slice).unwrap_or_default().iter();
            let kinds: Vec<Value> = kinds.map(granite_layer).collect();
            all.insert("layer_types".to_owned(), kinds.into());
            default(all, "position_embedding_type", "nope");
        }
        Family::Lfm2 => default(all, "block_dim", shape.hidden),
        Family::Mamba2 => {
            let inner = ["num_heads", "head_dim"].map(|name| text(all, name).as_u64());
            let inner = inner.into_iter().product::<Option<u64>>();
            default(all, "intermediate_size", inner);
        }
        Family::KimiLinear => default(all, "rope_theta", 10_000.0),
        Family::Gemma3 => {
            let pattern = text(all, "_sliding_window_pattern");
            default(all, "sliding_window_pattern", pattern);
        }
        _ => {}
    }
    if shape.mla.is_none() && shape.head_dim > 0 {
        default(all, "head_dim", shape.head_dim);
    }
}

fn granite_layer(kind: &Value) -> Value {
    match kind.as_str() {
        Some("linear_attention") => "mamba".into(),
        Some("full_attention") => "attention".into(),
        _ => kind.clone(),
    }
}

/// The factors of `falcon_h1` that went into the weights are 1 from now on. A tied head takes its own back out.
fn unit_factors(all: &mut Map<String, Value>) {
    let number = |name: &str| all.get(name).and_then(Value::as_f64).unwrap_or(1.0);
    let tied = all.get("tie_word_embeddings") == Some(&Value::Bool(true));
    let head =
        if tied { number("lm_head_multiplier") / number("embedding_multiplier") } else { 1.0 };
    let ones = [
        "attention_in_multiplier",
        "attention_out_multiplier",
        "embedding_multiplier",
        "key_multiplier",
        "ssm_in_multiplier",
        "ssm_out_multiplier",
    ];
    ones.iter().for_each(|name| drop(all.insert((*name).to_owned(), 1.0.into())));
    all.insert("lm_head_multiplier".to_owned(), head.into());
    all.insert("mlp_multipliers".to_owned(), json!([1.0, 1.0]));
    all.insert("ssm_multipliers".to_owned(), json!([1.0, 1.0, 1.0, 1.0, 1.0]));
}
