//! Nothing that changes the maths is ignored: fields of a config, and tensors of a checkpoint.

mod checkpoint_build;

use std::fs;
use std::path::PathBuf;

use checkpoint_build::Scratch;
use longrun_array::{CpuDevice, CpuOptions, Glu, Limits, Runtime, Stretch};
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::config::{Config, Family, Mixer};
use longrun_lm::models;
use longrun_lm::weights::Source;
use serde_json::{Value, json};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn golden(family: &str) -> PathBuf {
    root().join("testdata/golden").join(family)
}

fn read(folder: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

#[test]
fn every_config_at_hand_is_understood_whole() {
    let folders = fs::read_dir(root().join("testdata/golden")).unwrap();
    let mut folders: Vec<_> = folders.map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    assert!(folders.len() > 20);
    folders.push(root().join("models/demo"));
    for folder in folders {
        let config = Config::new(&read(&folder));
        assert!(config.is_ok(), "{}: {}", folder.display(), config.unwrap_err());
    }
}

#[test]
fn a_field_that_acts_and_is_not_read_is_an_error_with_its_name() {
    let base = read(&golden("llama"));
    for (name, value) in [
        ("clip_qkv", json!(8.0)),
        ("embedding_multiplier", json!(12.0)),
        ("logits_scaling", json!(8.0)),
        ("residual_multiplier", json!(0.22)),
        ("attention_multiplier", json!(0.01)),
        ("query_pre_attn_scalar", json!(256)),
        ("use_qk_norm", json!(true)),
        ("alibi", json!(true)),
        ("use_parallel_residual", json!(true)),
        ("n_group", json!(8)),
        ("swiglu_limit", json!(7.0)),
        ("num_kv_shared_layers", json!(2)),
        ("attn_output_gate", json!(true)),
        ("no_rope_layers", json!([1, 1, 0])),
        ("num_local_experts", json!(8)),
        ("q_lora_rank", json!(512)),
        ("position_embedding_type", json!("nope")),
        ("layer_types", json!(["full_attention", "spiral", "full_attention"])),
        ("rope_parameters", json!({"rope_type": "default", "llama_4_scaling_beta": 0.1})),
        ("rope_parameters", json!({"rope_type": "default", "swirl": 2.0})),
    ] {
        let mut config = base.clone();
        config[name] = value.clone();
        let e = Config::new(&config).unwrap_err().to_string();
        let inner = value.as_object().map(|map| map.keys().next_back().unwrap().clone());
        let shown = inner.as_deref().filter(|n| *n != "rope_type").unwrap_or(name);
        assert!(e.contains(shown) && e.contains("config.json"), "{name}: {e}");
    }
}

#[test]
fn a_field_that_changes_nothing_may_stand_there() {
    let mut config = read(&golden("llama"));
    for (name, value) in [
        ("clip_qkv", json!(null)),
        ("embedding_multiplier", json!(1.0)),
        ("logits_scaling", json!(1)),
        ("use_qk_norm", json!(false)),
        ("n_group", json!(1)),
        ("num_kv_shared_layers", json!(0)),
        ("position_embedding_type", json!("rope")),
        ("mlp_only_layers", json!([])),
        ("attention_dropout", json!(0.1)),
        ("some_training_field", json!({"any": "thing"})),
    ] {
        config[name] = value;
    }
    assert_eq!(Config::new(&config).unwrap(), Config::new(&read(&golden("llama"))).unwrap());
}

/// Fields that every config has, with `more`.
fn with(more: &Value) -> Config {
    let mut config = json!({"hidden_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 24,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 1000,
        "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5});
    for (name, value) in more.as_object().unwrap() {
        config[name] = value.clone();
    }
    Config::new(&config).unwrap()
}

#[test]
fn configs_in_the_words_of_their_makers_are_understood() {
    let list = vec![1.5; 48];
    let phi = with(&json!({"model_type": "phi3", "full_attn_mod": 1, "lm_head_bias": false,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
        "rope_scaling": {"long_factor": list, "short_factor": list, "type": "longrope"},
        "sliding_window": 262_144, "attention_bias": false, "mlp_bias": false}));
    assert_eq!((phi.rope.rotary, phi.rope.kind_of_stretch()), (96, Stretch::Choice));
    assert!(phi.rope.stretch(4096) <= 1.0 && phi.rope.stretch(4097) > 1.0);

    let minimax = with(&json!({"model_type": "minimax_m2", "attn_type_list": [1, 1, 1, 1, 1, 1],
        "head_dim": 128, "num_local_experts": 8, "num_experts_per_tok": 2, "num_mtp_modules": 3,
        "qk_norm_type": "per_layer", "rotary_dim": 64, "rope_theta": 5_000_000,
        "scoring_func": "sigmoid", "shared_intermediate_size": 0, "use_qk_norm": true,
        "use_routing_bias": true}));
    assert_eq!((minimax.rope.rotary, minimax.rope.theta), (64, 5e6));
    assert!(minimax.qk_norms && minimax.moe.unwrap().scoring.renormalize);

    let oss = with(&json!({"model_type": "gpt_oss", "attention_bias": true, "head_dim": 64,
        "experts_per_token": 4, "num_local_experts": 32, "initial_context_length": 4096,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
            "original_max_position_embeddings": 4096, "truncate": false},
        "rope_theta": 150_000, "sliding_window": 128, "swiglu_limit": 7.0}));
    let f = oss.moe.as_ref().map(|m| m.f);
    assert_eq!(f, Some(Glu::Shifted { limit: 7.0, alpha: 1.702 }));
    assert_eq!(oss.mixers[..2], [Mixer::Sliding, Mixer::Full]);
    assert!(oss.attention_bias && oss.output_bias);

    let glm = with(&json!({"model_type": "glm4_moe", "attention_bias": true, "head_dim": 128,
        "partial_rotary_factor": 0.5, "n_group": 1, "topk_group": 1, "n_routed_experts": 16,
        "n_shared_experts": 1, "norm_topk_prob": true, "num_experts_per_tok": 8,
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "use_qk_norm": false,
        "moe_intermediate_size": 1408, "routed_scaling_factor": 1.0, "rope_scaling": null}));
    assert_eq!((glm.rope.rotary, glm.qk_norms, glm.output_bias), (64, false, false));
    assert_eq!(glm.moe.unwrap().sparse, [false, true, true, true, true, true]);

    let lfm = with(&json!({"model_type": "lfm2", "block_auto_adjust_ff_dim": true,
        "block_ff_dim": 12_288, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
        "conv_L_cache": 3, "conv_bias": false, "full_attn_idxs": [2, 5], "norm_eps": 1e-5,
        "rope_theta": 1e6, "use_pos_enc": true}));
    assert_eq!((lfm.intermediate, lfm.tied), (8192, true));
    assert_eq!(lfm.mixers.iter().filter(|m| **m == Mixer::Linear).count(), 4);

    let olmo = with(&json!({"model_type": "olmo3", "rope_theta": 500_000, "sliding_window": 4096,
        "rope_scaling": {"attention_factor": 1.2, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
            "original_max_position_embeddings": 8192, "rope_type": "yarn"}}));
    assert_eq!(olmo.mixers[2..4], [Mixer::Sliding, Mixer::Full]);
    assert_ne!(Some(&olmo.rope), olmo.sliding_rope.as_ref());

    let vision = json!({"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {},
        "text_config": {"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 100, "sliding_window": null}});
    assert_eq!(Config::new(&vision).unwrap().family, Family::Mistral);
}

/// A golden checkpoint with more tensors, all of one number.
fn widened(family: &str, tag: &str, names: &[&str]) -> Scratch {
    let bytes = fs::read(golden(family).join("model.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..head]).unwrap();
    let mut data = bytes[head..].to_vec();
    for name in names {
        let at = data.len();
        // Not zeros: a bias of zeros adds nothing, and may be left.
        data.extend([0, 0x3f]);
        header[*name] = json!({"dtype": "BF16", "shape": [1], "data_offsets": [at, at + 2]});
    }
    let file = checkpoint_build::with_header(&header.to_string(), &data);
    let config = fs::read(golden(family).join("config.json")).unwrap();
    Scratch::new(tag).with("config.json", config).with("model.safetensors", file)
}

fn load(folder: &Scratch) -> longrun_lm::error::Result<()> {
    let checkpoint = Checkpoint::open(folder.path())?;
    let config = Config::new(checkpoint.config())?;
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let runtime = Runtime::new(Box::new(device), Limits::default());
    models::load(&runtime, &config, Source::Checkpoint(&checkpoint), &|_, _| {}, false).map(|_| ())
}

#[test]
fn a_tensor_that_nobody_reads_is_an_error_with_its_name() {
    for name in [
        "model.layers.1.self_attn.q_norm.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.mlp.shared_expert.up_proj.weight",
        "model.layers.0.self_attn.sinks",
        "score.weight",
    ] {
        let e = load(&widened("llama", "left", &[name])).unwrap_err().to_string();
        assert!(e.contains(name) && e.contains("llama"), "{e}");
    }
}

#[test]
fn other_models_and_buffers_may_lie_in_the_same_files() {
    let names = [
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.3.embed_tokens.weight",
        "mtp.layers.0.norm.weight",
        "model.visual.blocks.0.norm.weight",
        "vision_tower.patch.weight",
        "multi_modal_projector.linear.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ];
    load(&widened("llama", "harmless", &names)).unwrap();
    // A head that is not the embedding is read, whatever the config says of it; twice is once too often.
    let e = load(&widened("llama", "own", &["lm_head.weight"])).unwrap_err().to_string();
    assert!(e.contains("lm_head.weight") && e.contains("[160, 64]"), "{e}");
    let e =
        load(&widened("qwen3_yarn", "head", &["model.lm_head.weight"])).unwrap_err().to_string();
    assert!(e.contains("model.lm_head.weight"), "{e}");
}
