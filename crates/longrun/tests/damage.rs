//! Damaged and lying models, opened and loaded in this process: an error or a model, never a panic, and no memory
//! beyond what the files hold.

mod common;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use common::{Draw, copy_of, golden, read_json, root, scratch};
use longrun_lm::array::NullDevice;
use longrun_lm::cache::Room;
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::source::{ModelName, ModelSource};
use longrun_lm::{Error, Kind, Result};
use serde_json::{Value, json};

/// Opens and loads; a panic fails the test and says what was opened.
fn load(path: &Path, what: &str) -> Result<()> {
    let work = || {
        let source = ModelSource::open(ModelName::Path(path))?;
        let context = source.config.context.min(64);
        let room =
            Room { rows: 2, context, tokens: 2 * context, chunk: 8, snapshots: 0, drafts: 0 };
        let setup = Setup::new(room);
        let weights = source.weights(0);
        let device = Box::new(NullDevice::new());
        Executor::new(device, &source.config, weights, setup, &|_, _| {}).map(|_| ())
    };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| panic!("{what}: a panic"))
}

fn refused(path: &Path, what: &str) -> Error {
    let error = load(path, what).expect_err(what);
    assert!(matches!(error.kind(), Kind::File | Kind::Unsupported), "{what}: {error}");
    error
}

/// Either is good; an error must be of a kind that a file can cause, and say where.
fn survives(path: &Path, what: &str) -> bool {
    let Err(error) = load(path, what) else { return true };
    assert!(matches!(error.kind(), Kind::File | Kind::Unsupported), "{what}: {error}");
    let (text, folder) = (error.to_string(), path.display().to_string());
    let named = text.contains(&folder) || text.contains("config.json") || text.contains("tensor");
    assert!(named, "{what}: {text}");
    false
}

/// The most memory that this process ever had: (resident, address space), in KiB.
fn peaks() -> Option<(usize, usize)> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    Some((field("VmHWM:")?, field("VmPeak:")?))
}

/// Asserts that the work did not make this process much larger.
fn bounded(work: impl FnOnce()) {
    let before = peaks();
    work();
    if let (Some((rss0, space0)), Some((rss1, space1))) = (before, peaks()) {
        assert!(rss1 - rss0 < 256 << 10, "{} KiB more were resident", rss1 - rss0);
        assert!(space1 - space0 < 1 << 20, "{} KiB more of address space", space1 - space0);
    }
}

fn set(config: &mut Value, path: &str, value: &Value) {
    let place = path.split('.').fold(config, |at, name| &mut at[name]);
    *place = value.clone();
}

#[test]
fn lies_in_a_config_are_refused_and_cost_nothing() {
    let huge = json!(1u64 << 40);
    let lies: &[(&str, &str, Value)] = &[
        ("llama", "hidden_size", huge.clone()),
        ("llama", "hidden_size", json!(1 << 20)),
        ("llama", "hidden_size", json!(0)),
        ("llama", "hidden_size", json!(-64)),
        ("llama", "hidden_size", json!(64.5)),
        ("llama", "hidden_size", json!("64")),
        ("llama", "hidden_size", json!([64])),
        ("llama", "hidden_size", Value::Null),
        ("llama", "num_hidden_layers", json!(1_000_000_000)),
        ("llama", "num_hidden_layers", json!(1_000_000)),
        ("llama", "num_hidden_layers", json!(4)),
        ("llama", "num_attention_heads", json!(0)),
        ("llama", "num_attention_heads", json!(1 << 20)),
        ("llama", "num_attention_heads", json!(8)),
        ("llama", "num_key_value_heads", json!(0)),
        ("llama", "num_key_value_heads", json!(3)),
        ("llama", "num_key_value_heads", json!(8)),
        ("llama", "head_dim", json!(0)),
        ("llama", "head_dim", json!(7)),
        ("llama", "head_dim", json!(1 << 20)),
        ("llama", "vocab_size", json!(161)),
        ("llama", "vocab_size", json!(1 << 20)),
        ("llama", "vocab_size", huge.clone()),
        ("llama", "intermediate_size", json!(129)),
        ("llama", "max_position_embeddings", json!(0)),
        ("llama", "max_position_embeddings", huge.clone()),
        ("llama", "rms_norm_eps", json!("small")),
        ("llama", "rms_norm_eps", json!(1e300)),
        ("llama", "rms_norm_eps", json!(-1.0)),
        ("llama", "tie_word_embeddings", json!("yes")),
        ("llama", "tie_word_embeddings", json!(false)),
        ("llama", "attention_bias", json!(true)),
        ("llama", "mlp_bias", json!(1)),
        ("llama", "hidden_act", json!("relu6")),
        ("llama", "hidden_act", json!(3)),
        ("llama", "model_type", json!("rwkv")),
        ("llama", "model_type", json!(7)),
        ("llama", "model_type", Value::Null),
        ("llama", "layer_types", json!("full_attention")),
        ("llama", "layer_types", json!(vec!["linear_attention"; 3])),
        ("llama", "layer_types", json!([1, 2, 3])),
        ("llama", "rope_parameters", json!("default")),
        ("llama", "rope_parameters.rope_theta", json!(0.0)),
        ("llama", "rope_parameters.rope_theta", json!(-1e4)),
        ("llama", "rope_parameters.rope_theta", json!(1e-300)),
        ("llama", "rope_parameters.rope_theta", json!("big")),
        ("llama", "rope_parameters.rope_type", json!("longrope")),
        ("llama", "rope_parameters.rope_type", json!(4)),
        ("llama", "rope_parameters.partial_rotary_factor", json!(-1)),
        ("llama", "rope_parameters.partial_rotary_factor", json!(1e30)),
        ("llama", "rope_parameters.partial_rotary_factor", json!(0.1)),
        ("llama", "attn_logit_softcapping", json!(0)),
        ("llama", "eos_token_id", json!("</s>")),
        ("llama", "eos_token_id", json!([1, -1])),
        ("llama3_rope", "rope_parameters.factor", json!(0)),
        ("llama3_rope", "rope_parameters.factor", json!("8")),
        ("llama3_rope", "rope_parameters.factor", Value::Null),
        ("llama3_rope", "rope_parameters.original_max_position_embeddings", json!(-32)),
        ("mistral", "sliding_window", json!(0)),
        ("mistral", "sliding_window", json!(-16)),
        ("gemma3", "sliding_window", json!(0)),
        ("gemma3", "sliding_window", Value::Null),
        ("gemma3", "query_pre_attn_scalar", json!(0)),
        ("gemma3", "query_pre_attn_scalar", json!(-32)),
        ("gemma3", "final_logit_softcapping", json!(0)),
        ("gemma3", "layer_types", json!(["full_attention"])),
        ("qwen3_moe", "num_experts_per_tok", json!(9)),
        ("qwen3_moe", "num_experts_per_tok", json!(0)),
        ("qwen3_moe", "num_local_experts", json!(1 << 20)),
        ("qwen3_moe", "num_local_experts", json!(9)),
        ("qwen3_moe", "num_local_experts", json!(0)),
        ("qwen3_moe", "moe_intermediate_size", json!(1 << 20)),
        ("qwen3_moe", "mlp_only_layers", json!([])),
        ("qwen3_moe", "mlp_only_layers", json!("none")),
        ("qwen3_moe", "mlp_only_layers", json!([-1])),
        ("qwen3_next", "num_experts", json!(1 << 20)),
        ("qwen3_next", "linear_num_value_heads", json!(3)),
        ("qwen3_next", "linear_num_value_heads", json!(1 << 20)),
        ("qwen3_next", "linear_num_key_heads", json!(0)),
        ("qwen3_next", "linear_key_head_dim", json!(1 << 20)),
        ("qwen3_next", "linear_value_head_dim", json!(1 << 20)),
        ("qwen3_next", "linear_value_head_dim", json!(1 << 24)),
        ("qwen3_next", "linear_conv_kernel_dim", json!(1)),
        ("qwen3_next", "linear_conv_kernel_dim", json!(1 << 20)),
        ("qwen3_next", "shared_expert_intermediate_size", json!(33)),
        ("qwen3_next", "layer_types", json!(vec!["linear_attention"; 7])),
        ("qwen3_5_moe", "num_experts", json!(1 << 20)),
    ];
    bounded(|| {
        let folder = scratch("config_lies");
        for (family, field, value) in lies {
            fs::copy(golden(family).join("model.safetensors"), folder.join("model.safetensors"))
                .unwrap();
            let mut config = read_json(&golden(family).join("config.json"));
            set(&mut config, field, value);
            fs::write(folder.join("config.json"), config.to_string()).unwrap();
            let what = format!("{family} {field} = {value}");
            let text = refused(&folder, &what).to_string();
            let (outer, inner) = field.split_once('.').unwrap_or((field, field));
            let near = text.contains("tensor") || text.contains("layer_types");
            let named = text.contains(inner) || text.contains(outer) || near;
            assert!(named, "{what}: {text}");
        }
    });
}

/// All big at once: products of sizes must not wrap.
#[test]
fn lies_that_multiply_are_refused() {
    let folder = copy_of(&golden("qwen3_next"), "big_lies");
    let config = read_json(&folder.join("config.json"));
    for size in [1u64 << 16, 1 << 20, 1 << 24, 1 << 32] {
        let mut config = config.clone();
        for (_, value) in config.as_object_mut().unwrap() {
            if value.as_u64().is_some_and(|n| n > 8) {
                *value = size.into();
            }
        }
        for heads in [1, size] {
            config["linear_num_key_heads"] = heads.into();
            config["linear_num_value_heads"] = size.into();
            fs::write(folder.join("config.json"), config.to_string()).unwrap();
            bounded(|| drop(refused(&folder, "everything is big")));
        }
    }
}

fn truncations(len: usize, draw: &mut Draw) -> Vec<usize> {
    let fixed = [0, 1, 7, 8, 9, 100, len.saturating_sub(1)].into_iter().filter(|n| *n < len);
    let mut all: Vec<_> = fixed.collect();
    all.extend((0..5).map(|_| draw.below(len)));
    all
}

/// Damages one file of a folder in many ways. Headers are flipped more than weights.
fn damage(folder: &Path, file: &str, flips: usize, head: usize) -> usize {
    let (path, mut draw) = (folder.join(file), Draw(file.len() as u64));
    let whole = fs::read(&path).unwrap();
    let mut refusals = 0;
    for keep in truncations(whole.len(), &mut draw) {
        fs::write(&path, &whole[..keep]).unwrap();
        refusals += usize::from(!survives(folder, &format!("{file} cut to {keep}")));
    }
    for _ in 0..flips {
        let (at, bit) = (draw.below(head.min(whole.len())), draw.below(8));
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        refusals += usize::from(!survives(folder, &format!("{file} bit {bit} of byte {at}")));
    }
    fs::write(&path, whole).unwrap();
    assert!(load(folder, "the whole again").is_ok());
    refusals
}

#[test]
fn damaged_safetensors_and_configs_survive() {
    bounded(|| {
        for family in ["llama", "qwen3_next"] {
            let folder = copy_of(&golden(family), &format!("damaged_{family}"));
            assert!(damage(&folder, "model.safetensors", 30, 4000) > 20);
            assert!(damage(&folder, "config.json", 40, 4000) > 20);
        }
    });
}

#[test]
fn damaged_text_files_survive() {
    bounded(|| {
        let folder = copy_of(&root("models/demo"), "damaged_demo");
        assert!(damage(&folder, "tokenizer.json", 12, 300_000) >= 10);
        assert!(damage(&folder, "tokenizer_config.json", 10, 1000) > 5);
        assert!(damage(&folder, "generation_config.json", 10, 1000) > 5);
    });
}

/// Values of the right type that are out of range.
#[test]
fn lies_in_text_files_are_refused() {
    let folder = copy_of(&root("models/demo"), "lying_demo");
    for (file, field, value) in [
        ("generation_config.json", "temperature", json!(-1)),
        ("generation_config.json", "temperature", json!("hot")),
        ("generation_config.json", "top_p", json!(7)),
        ("generation_config.json", "do_sample", json!(1)),
        ("generation_config.json", "eos_token_id", json!([1, "x"])),
        ("tokenizer_config.json", "chat_template", json!("{% for %}")),
        ("tokenizer.json", "model", json!({"type": "Nothing"})),
        ("tokenizer.json", "model", json!(3)),
        ("tokenizer.json", "decoder", json!({"type": "Fuse", "x": [1]})),
    ] {
        let path = folder.join(file);
        let whole = fs::read(&path).unwrap();
        let mut json = read_json(&path);
        json[field] = value.clone();
        fs::write(&path, json.to_string()).unwrap();
        let what = format!("{file} {field} = {value}");
        if field == "decoder" {
            survives(&folder, &what);
        } else {
            let text = refused(&folder, &what).to_string();
            assert!(text.contains(file) || text.contains(field), "{what}: {text}");
        }
        fs::write(&path, whole).unwrap();
    }
}

#[path = "../../lm/tests/checkpoint_build/mod.rs"]
mod checkpoint_build;

/// A whole model of one layer as a GGUF file.
fn gguf(name: &str) -> PathBuf {
    let model = checkpoint_build::model("llama")
        .strings("tokenizer.ggml.merges", &[])
        .str("tokenizer.ggml.pre", "gpt-2")
        .zeros("blk.0.attn_norm.weight", &[32])
        .zeros("blk.0.attn_q.weight", &[32, 32])
        .zeros("blk.0.attn_k.weight", &[32, 16])
        .zeros("blk.0.attn_v.weight", &[32, 16])
        .zeros("blk.0.attn_output.weight", &[32, 32])
        .zeros("blk.0.ffn_norm.weight", &[32])
        .zeros("blk.0.ffn_gate.weight", &[32, 64])
        .zeros("blk.0.ffn_up.weight", &[32, 64])
        .zeros("blk.0.ffn_down.weight", &[64, 32]);
    let folder = scratch(name);
    fs::write(folder.join("model.gguf"), model.finish()).unwrap();
    folder
}

#[test]
fn damaged_gguf_files_survive() {
    bounded(|| {
        let folder = gguf("damaged_gguf");
        load(&folder, "the whole file").unwrap();
        assert!(damage(&folder, "model.gguf", 200, 2400) > 60);
    });
}
