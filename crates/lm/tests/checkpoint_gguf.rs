//! GGUF files: metadata, names, the config made from them, and what each broken one says.

mod checkpoint_build;

use checkpoint_build::{
    ARRAY, F32, Gguf, GgufTensor, I32, Scratch, T_F16, T_F32, T_Q8_K, U8, U64, array, model, text,
};
use longrun_array::format::Format;
use longrun_lm::checkpoint::{Checkpoint, Gguf as Parsed, GgufValue, RawDtype};
use longrun_lm::{Error, Kind};
use serde_json::{Value, json};

fn try_open(gguf: &Gguf) -> Result<Checkpoint, Error> {
    let bytes: &'static [u8] = gguf.finish().leak();
    Checkpoint::from_embedded(Box::leak(Box::new([("m.gguf", bytes)])))
}

fn open(gguf: &Gguf) -> Checkpoint {
    try_open(gguf).unwrap()
}

fn refusal(gguf: &Gguf) -> String {
    try_open(gguf).unwrap_err().to_string()
}

#[test]
fn metadata_keeps_its_types() {
    let inner = array(U8, 2, &[7, 8]);
    let nested = array(ARRAY, 2, &[inner.clone(), array(I32, 0, &[])].concat());
    let gguf = Gguf::new("x")
        .raw("i8", 1, &[0xff])
        .raw("u16", 2, &[1, 2])
        .raw("i16", 3, &[0xfe, 0xff])
        .raw("flag", 7, &[1])
        .raw("i64", 11, &(-5_i64).to_le_bytes())
        .raw("f64", 12, &0.1_f64.to_le_bytes())
        .raw("nan", F32, &f32::NAN.to_le_bytes())
        .raw("nested", ARRAY, &nested)
        .raw("scores", ARRAY, &array(F32, 1, &1.5_f32.to_le_bytes()))
        .raw("wide", ARRAY, &array(U64, 1, &[0xff; 8]))
        .strings("words", &["", "ä", "bc"]);
    for version in [2, 3] {
        let parsed = Parsed::parse(&Gguf { version, ..gguf.clone() }.finish()).unwrap();
        assert_eq!(parsed.version(), version);
        assert_eq!(parsed.get("i8"), Some(&GgufValue::Int(-1)));
        assert_eq!(parsed.uint("u16").unwrap(), Some(0x0201));
        assert_eq!(parsed.get("i16"), Some(&GgufValue::Int(-2)));
        assert_eq!(parsed.bool("flag").unwrap(), Some(true));
        assert_eq!(parsed.get("i64").unwrap().as_int(), Some(-5));
        assert_eq!(parsed.float("f64").unwrap(), Some(0.1));
        assert_eq!(parsed.str("general.architecture").unwrap(), Some("x"));
        let words = parsed.strings("words").unwrap().unwrap();
        assert_eq!(words.iter().collect::<Vec<_>>(), ["", "ä", "bc"]);
        assert_eq!((words.len(), words.get(2), words.get(3)), (3, Some("bc"), None));
        assert_eq!(parsed.floats("scores").unwrap().unwrap().collect::<Vec<_>>(), [1.5]);
        assert_eq!(parsed.ints("wide").unwrap().unwrap().collect::<Vec<_>>(), [i64::MAX]);
        let GgufValue::Arrays(nested) = parsed.get("nested").unwrap() else { panic!() };
        let GgufValue::Numbers(numbers) = &nested[0] else { panic!() };
        assert!(numbers.iter().eq([GgufValue::Uint(7), GgufValue::Uint(8)]));
        assert_eq!((nested.len(), parsed.metadata().len()), (2, 12));
        for error in [
            parsed.uint("i8").unwrap_err(),
            parsed.float("nan").unwrap_err(),
            parsed.str("flag").unwrap_err(),
            parsed.missing("i8"),
        ] {
            let text = error.to_string();
            assert!(["i8", "nan", "flag"].iter().any(|key| text.contains(&format!("{key:?}"))));
        }
        assert_eq!(parsed.uint("absent").unwrap(), None);
    }
}

#[test]
fn llama_is_named_and_configured() {
    let zeros = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_up"];
    let gguf = zeros
        .iter()
        .fold(model("llama"), |gguf, name| gguf.zeros(&format!("blk.0.{name}.weight"), &[32, 4]))
        .f32("llama.rope.freq_base", 5e5)
        .zeros("rope_freqs.weight", &[4])
        .zeros("output.weight", &[32, 8]);
    let checkpoint = open(&gguf);
    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(
        names,
        [
            "lm_head.weight",
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.mlp.up_proj.weight",
            "model.layers.0.post_attention_layernorm.weight",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.v_proj.weight",
            "model.norm.weight",
            "rope_freqs.weight",
        ]
    );
    let embedding = checkpoint.weight("model.embed_tokens.weight").unwrap();
    assert_eq!((embedding.shape, embedding.format), (&[8, 32][..], Format::Q8_0));
    assert!(embedding.data.iter().copied().eq((0..34 * 8).map(|i| i as u8)));
    assert_eq!(
        checkpoint.config(),
        &json!({
            "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64, "vocab_size": 8,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "hidden_act": "silu",
            "attention_bias": false, "tie_word_embeddings": false,
            "rope_parameters": { "rope_theta": 500_000.0, "rope_type": "freq_factors" },
            "eos_token_id": [2, 3], "model_type": "llama", "mlp_bias": false,
            "rope_interleaved": true,
        })
    );
    let summary = checkpoint.summary();
    assert_eq!(summary.container, "GGUF v3");
    assert_eq!(summary.tokenizer.as_deref(), Some("GGUF (gpt2)"));
    assert!(!summary.chat_template);
}

#[test]
fn gemma3_has_four_norms_and_two_ropes() {
    let norms = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm"];
    let gguf = norms
        .iter()
        .fold(model("gemma3"), |gguf, name| gguf.zeros(&format!("blk.0.{name}.weight"), &[32]))
        .u32("gemma3.attention.key_length", 16)
        .u32("gemma3.attention.sliding_window", 512)
        .str("gemma3.rope.scaling.type", "linear")
        .f32("gemma3.rope.scaling.factor", 8.0)
        .f32("gemma3.rope.freq_base", 1e6);
    let mut gguf = gguf;
    let count = gguf.pairs.iter().position(|pair| pair.0 == "gemma3.block_count").unwrap();
    gguf.pairs[count].1 = [4_u32.to_le_bytes(), 7_u32.to_le_bytes()].concat();
    let checkpoint = open(&gguf);
    for name in [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "self_attn.q_norm",
    ] {
        checkpoint.weight(&format!("model.layers.0.{name}.weight")).unwrap();
    }
    let config = checkpoint.config();
    assert_eq!(config["model_type"], "gemma3_text");
    assert_eq!(config["norm_weight_shifted"], true);
    assert_eq!(config["rope_interleaved"], Value::Null);
    assert_eq!((&config["head_dim"], &config["query_pre_attn_scalar"]), (&json!(16), &json!(16)));
    let kinds = config["layer_types"].as_array().unwrap();
    assert!(kinds.iter().zip(0..).all(|(kind, i)| (kind == "full_attention") == (i == 5)));
    assert_eq!(
        config["rope_parameters"],
        json!({
            "full_attention": { "rope_theta": 1e6, "rope_type": "linear", "factor": 8.0 },
            "sliding_attention": { "rope_theta": 1e4, "rope_type": "default" },
        })
    );
}

#[test]
fn qwen_has_biases_and_stacked_experts() {
    let qwen2 = open(&model("qwen2").zeros("blk.0.attn_q.bias", &[32]));
    assert!(qwen2.tensor("model.layers.0.self_attn.q_proj.bias").is_some());
    assert_eq!(qwen2.config()["attention_bias"], true);
    assert_eq!(qwen2.config()["model_type"], "qwen2");
    let gguf = model("qwen3moe")
        .u32("qwen3moe.expert_count", 3)
        .u32("qwen3moe.expert_used_count", 2)
        .u32("qwen3moe.expert_feed_forward_length", 4)
        .zeros("blk.0.ffn_gate_inp.weight", &[32, 3])
        .zeros("blk.0.ffn_down_exps.weight", &[4, 32, 3]);
    let moe = open(&gguf);
    assert!(moe.tensor("model.layers.0.mlp.gate.weight").is_some());
    let down = moe.weight("model.layers.0.mlp.experts.down_proj").unwrap();
    assert_eq!(down.shape, [3, 32, 4]);
    let config = moe.config();
    assert_eq!(config["model_type"], "qwen3_moe");
    let counts = ["num_experts", "num_experts_per_tok", "moe_intermediate_size"];
    assert_eq!(counts.map(|key| config[key].as_u64()), [Some(3), Some(2), Some(4)]);
}

#[test]
fn unknown_names_and_architectures_stay_as_they_are() {
    let gguf =
        model("llama").zeros("blk.0.strange.weight", &[1]).zeros("blk.00.attn_q.weight", &[1]);
    let checkpoint = open(&gguf);
    assert!(checkpoint.tensor("blk.0.strange.weight").is_some());
    assert!(checkpoint.tensor("blk.00.attn_q.weight").is_some());
    let unknown = open(&Gguf::new("clip").zeros("v.blk.0.weight", &[1]));
    assert_eq!(unknown.config(), &json!({ "model_type": "clip" }));
    assert!(unknown.tensor("v.blk.0.weight").is_some());
    assert_eq!(unknown.summary().architectures, ["clip"]);
}

#[test]
fn an_unknown_type_is_listed_and_refused_by_number() {
    let gguf = model("llama").tensor("blk.0.attn_q.weight", &[256], T_Q8_K, vec![9; 292]);
    let checkpoint = open(&gguf);
    let name = "model.layers.0.self_attn.q_proj.weight";
    assert_eq!(checkpoint.raw(name).unwrap().dtype, RawDtype::Ggml(15));
    let error = checkpoint.weight(name).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("q8_k (GGUF type 15)"), "{error}");
    let future = open(&model("llama").tensor("t", &[1], 4242, vec![0; 4]));
    assert!(future.weight("t").unwrap_err().to_string().contains("GGUF type 4242"));
}

#[test]
fn layers_that_differ_are_refused_and_equal_ones_pass() {
    let key = "llama.attention.head_count_kv";
    let set = |values: &[i32]| {
        let mut gguf = model("llama");
        gguf.pairs.retain(|pair| pair.0 != key);
        gguf.i32s(key, values)
    };
    assert_eq!(open(&set(&[2, 2])).config()["num_key_value_heads"], 2);
    assert!(refusal(&set(&[2, 1])).contains("differs from layer to layer"));
    assert!(refusal(&set(&[])).contains("differs from layer to layer"));
}

#[test]
fn what_ends_a_turn_depends_on_the_architecture() {
    let words = ["<|end|>", "<|return|>", "<|im_end|>", "<|user|>"];
    let ends = |arch: &str| {
        let mut gguf = model(arch);
        gguf.pairs.retain(|pair| pair.0 != "tokenizer.ggml.tokens");
        let gguf = gguf.strings("tokenizer.ggml.tokens", &words);
        let config = open(&gguf.u32("tokenizer.ggml.eot_token_id", 9)).config().clone();
        config["eos_token_id"].clone()
    };
    assert_eq!(ends("qwen3"), json!([2, 9]));
    assert_eq!(ends("phi3"), json!([2, 9, 0]));
    assert_eq!(ends("glm4"), json!([2, 9, 3]));
}

/// Part `no` of `count`, with one tensor of its own.
fn part(no: u8, count: u8) -> Gguf {
    let gguf = if no == 0 { model("llama") } else { Gguf::new("llama") };
    let own = format!("blk.0.part{no}.weight");
    gguf.raw("split.no", 2, &[no, 0]).raw("split.count", 2, &[count, 0]).zeros(&own, &[4])
}

#[test]
fn the_parts_of_a_model_are_one() {
    let total = part(0, 2).raw("split.tensors.count", I32, &4_i32.to_le_bytes());
    let whole = Scratch::new("parts")
        .with("m-00001-of-00002.gguf", total.finish())
        .with("m-00002-of-00002.gguf", part(1, 2).finish());
    let second = whole.path().join("m-00002-of-00002.gguf");
    for path in [whole.path(), &second] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.config()["model_type"], "llama");
        for name in ["model.embed_tokens.weight", "blk.0.part0.weight", "blk.0.part1.weight"] {
            assert!(checkpoint.weight(name).is_ok(), "{name}");
        }
    }
}

#[test]
fn parts_that_make_no_model_are_refused() {
    let open = |name: &str, first: Gguf, second: Option<Gguf>| {
        let folder = Scratch::new(name).with("m-00001-of-00002.gguf", first.finish());
        let folder = match second {
            Some(second) => folder.with("m-00002-of-00002.gguf", second.finish()),
            None => folder,
        };
        Checkpoint::open(folder.path()).unwrap_err().to_string()
    };
    for (name, first, second, says) in [
        ("lost", part(0, 2), None, "m-00002-of-00002.gguf"),
        ("count", part(0, 2), Some(part(1, 3)), "not part 1 of 2"),
        ("order", part(0, 2), Some(part(0, 2)), "not part 1 of 2"),
        ("name", part(0, 3), Some(part(1, 3)), "one of 3 parts"),
        ("twice", part(0, 2), Some(part(1, 2).zeros("output_norm.weight", &[32])), "of this name"),
        (
            "total",
            part(0, 2).raw("split.tensors.count", I32, &9_i32.to_le_bytes()),
            Some(part(1, 2)),
            "have 4 tensors",
        ),
    ] {
        let error = open(name, first, second);
        assert!(error.contains(says), "{says}: {error}");
    }
    assert!(refusal(&part(0, 2)).contains("one of 2 parts"));
}

#[test]
fn config_errors_name_the_key() {
    for key in ["llama.embedding_length", "llama.attention.layer_norm_rms_epsilon"] {
        let mut gguf = model("llama");
        gguf.pairs.retain(|pair| pair.0 != key);
        let error = refusal(&gguf);
        assert!(error.contains(&format!("{key:?}")), "{error}");
    }
    let none = Gguf { pairs: Vec::new(), ..model("llama") };
    assert!(refusal(&none).contains("general.architecture"));
    assert!(refusal(&model("llama").u32("split.count", 2)).contains("one of 2 parts"));
    let mixtral = model("llama").u32("llama.expert_count", 8);
    assert!(refusal(&mixtral).contains("llama.expert_used_count"));
    let old_deepseek = model("deepseek2")
        .u32("deepseek2.attention.kv_lora_rank", 8)
        .u32("deepseek2.rope.dimension_count", 4);
    assert!(refusal(&old_deepseek).contains("softmax"));
    let longrope = model("qwen3").str("qwen3.rope.scaling.type", "longrope");
    assert!(refusal(&longrope).contains("longrope"));
    let mut layers = model("gemma3");
    layers.pairs[1].1 = [4_u32.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
    assert!(refusal(&layers).contains("4294967295 layers with 2 tensors"));
}

/// A tensor of two floats.
fn pair(name: &str, offset: Option<u64>) -> GgufTensor {
    GgufTensor { name: name.into(), dims: vec![2], kind: T_F32, data: vec![0; 8], offset }
}

fn with_tensors(tensors: Vec<GgufTensor>) -> Gguf {
    Gguf { tensors, ..Gguf::new("x") }
}

#[test]
fn tensors_that_lie_are_refused() {
    let dims = |dims: &[u64], kind| {
        with_tensors(vec![GgufTensor { dims: dims.to_vec(), kind, ..pair("a", None) }])
    };
    for (gguf, says) in [
        (with_tensors(vec![pair("a", None), pair("a", None)]), "two tensors have this name"),
        (with_tensors(vec![pair("a", None), pair("b", Some(0))]), "overlaps"),
        (with_tensors(vec![pair("a", Some(4))]), "a: its offset 4 is no multiple of 32"),
        (with_tensors(vec![pair("a", Some(32))]), "a: its data ends at byte"),
        (with_tensors(vec![pair("a", Some(u64::MAX - 31))]), "overflows"),
        (dims(&[1 << 62, 1 << 62], T_F32), "overflows"),
        (dims(&[1 << 62], T_F32), "overflows"),
        (dims(&[1 << 61], T_F16), "its data ends at byte"),
        (dims(&[31], 8), "no whole q8_0 blocks of 32"),
        (dims(&[1, 1, 1, 1, 1], T_F32), "5 dimensions"),
        (dims(&[5], T_F32).u32("general.alignment", 64), "its data ends"),
        (model("llama").zeros("model.norm.weight", &[1]), "has the same meaning"),
    ] {
        let error = refusal(&gguf);
        assert!(error.contains(says), "{says}: {error}");
    }
    let empty = dims(&[0], T_F32);
    assert!(open(&empty).weight("a").unwrap().data.is_empty());
    let scalar = dims(&[], T_F32);
    assert_eq!(open(&scalar).weight("a").unwrap().data.len(), 4);
}

#[test]
fn headers_that_lie_are_refused() {
    let raw = |kind, value: &[u8]| Gguf::new("x").raw("k", kind, value);
    let mut deep = array(U8, 0, &[]);
    for _ in 0..4 {
        deep = array(ARRAY, 1, &deep);
    }
    for (gguf, says) in [
        (Gguf { version: 1, ..Gguf::new("x") }, "GGUF version 1"),
        (Gguf { version: 3 << 24, ..Gguf::new("x") }, "big-endian"),
        (raw(13, &[]), "k: 13 is not a type"),
        (raw(ARRAY, &array(13, 0, &[])), "k: 13 is not a type"),
        (raw(ARRAY, &deep), "nested deeper than 4"),
        (raw(ARRAY, &array(U8, 1 << 60, &[])), "claims 1152921504606846976 numbers"),
        (raw(ARRAY, &array(8, 1 << 60, &[])), "claims 1152921504606846976 strings"),
        (raw(ARRAY, &array(ARRAY, 1 << 60, &[])), "claims 1152921504606846976 arrays"),
        (raw(8, &u64::MAX.to_le_bytes()), "text needs 18446744073709551615 bytes"),
        (raw(8, &[text("a")[..8].to_vec(), vec![0xff]].concat()), "not UTF-8"),
        (raw(4, &[0; 4]).u32("k", 1), "k: the metadata has this key twice"),
        (Gguf::new("x").u32("general.alignment", 48), "48 is not a power of two"),
        (Gguf::new("x").u32("general.alignment", 0), "0 is not a power of two"),
        (Gguf::new("x").str("general.alignment", "32"), "is text"),
    ] {
        let error = refusal(&gguf);
        assert!(error.contains(says), "{says}: {error}");
    }
    for (at, says) in [(8, "tensors"), (16, "metadata keys")] {
        let mut bytes = Gguf::new("x").finish();
        bytes[at..at + 8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        let error = Parsed::parse(&bytes).unwrap_err().to_string();
        assert!(error.contains(&format!("claims 1152921504606846976 {says}")), "{error}");
    }
}

#[test]
fn another_alignment_moves_the_data() {
    let mut gguf = Gguf::new("x").u32("general.alignment", 64);
    gguf.alignment = 64;
    let gguf = gguf.tensor("a", &[3], T_F16, (1..7).collect()).zeros("b", &[1]);
    assert_eq!(*open(&gguf).weight("a").unwrap().data, [1, 2, 3, 4, 5, 6]);
    let folder = Scratch::new("alignment").with("m.gguf", gguf.finish());
    let mapped = Checkpoint::open(&folder.path().join("m.gguf")).unwrap();
    assert_eq!(*mapped.weight("a").unwrap().data, [1, 2, 3, 4, 5, 6]);
}
