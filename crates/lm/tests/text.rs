//! Tokenizers and incremental decoding on the demo vocabulary, and on files that lie.

use std::sync::{Arc, LazyLock};

use longrun_lm::text::{Detokenizer, GgufVocab, Tokenizer};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

const DEMO: &[u8] = include_bytes!("../../../models/demo/tokenizer.json");
const DEMO_CONFIG: &[u8] = include_bytes!("../../../models/demo/tokenizer_config.json");

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let config: Value = serde_json::from_slice(DEMO_CONFIG).unwrap();
    Arc::new(Tokenizer::from_json(DEMO, Some(&config)).unwrap())
});

/// The demo vocabulary as a GGUF file would hold it.
static GGUF: LazyLock<GgufVocab> = LazyLock::new(|| {
    let json: Value = serde_json::from_slice(DEMO).unwrap();
    let model = &json["model"];
    let mut tokens = vec![String::new(); model["vocab"].as_object().unwrap().len()];
    for (text, id) in model["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = text.clone();
    }
    let mut types = vec![1; tokens.len()];
    types[..3].fill(3);
    let pair = |m: &Value| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap());
    GgufVocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        merges: model["merges"].as_array().unwrap().iter().map(pair).collect(),
        tokens,
        types,
        bos: Some(0),
        eos: Some(1),
        add_bos: Some(true),
        ..GgufVocab::default()
    }
});

#[test]
fn demo_ids_are_those_of_the_reference() {
    let cases: &[(&str, &[u32])] = &[
        ("", &[]),
        ("Hello, world!", &[974, 14, 1552, 3]),
        (
            "  two  spaces\n\nand été 🙂 12345",
            &[
                223, 725, 223, 521, 703, 85, 201, 201, 67, 266, 223, 130, 105, 86, 130, 105, 223,
                175, 256, 250, 227, 223, 19, 20, 21, 22, 23,
            ],
        ),
    ];
    for (text, ids) in cases {
        assert_eq!(TOKENIZER.encode(text, false).unwrap(), *ids, "{text:?}");
        assert_eq!(TOKENIZER.encode(text, true).unwrap(), [&[0], *ids].concat(), "{text:?}");
        assert_eq!(TOKENIZER.decode(ids, true), *text);
    }
}

#[test]
fn special_tokens_need_leave() {
    assert_eq!(TOKENIZER.encode("<|bos|>a<|eos|>", true).unwrap(), [0, 67, 1], "one bos only");
    let data = TOKENIZER.encode("<|bos|>a<|eos|>", false).unwrap();
    assert!(data.iter().all(|&id| !TOKENIZER.is_special(id)), "{data:?}");
    assert_eq!(TOKENIZER.decode(&data, true), "<|bos|>a<|eos|>");
    assert_eq!(TOKENIZER.decode(&[0, 67, 1], true), "a");
    assert_eq!(TOKENIZER.decode(&[0, 67, 1], false), "<|bos|>a<|eos|>");
    assert_eq!((TOKENIZER.bos(), TOKENIZER.eos()), (Some(0), Some(1)));
    assert_eq!(TOKENIZER.vocab_size(), 3573);
    assert_eq!(TOKENIZER.token_bytes(223).as_deref(), Some(&b" "[..]));
    assert_eq!(TOKENIZER.token_bytes(130).as_deref(), Some(&[0xC3][..]));
    for id in [3573, u32::MAX] {
        assert_eq!(TOKENIZER.token_bytes(id), None);
        assert!(!TOKENIZER.is_special(id));
        assert_eq!(TOKENIZER.decode(&[67, id, 67], true), "aa");
    }
}

#[test]
fn config_says_what_is_added() {
    let encode = |config: Value| {
        Tokenizer::from_json(DEMO, Some(&config)).map(|tokenizer| {
            assert_eq!(tokenizer.decode(&[0, 67], true), "a");
            tokenizer.encode("a", true).unwrap()
        })
    };
    let token = |content: &str| json!({"content": content, "lstrip": false});
    let (bos, eos) = (token("<|bos|>"), "<|eos|>");
    assert_eq!(encode(json!({})).unwrap(), [0, 67], "the post-processor adds it");
    assert_eq!(encode(json!({"bos_token": bos, "add_bos_token": false})).unwrap(), [67]);
    assert_eq!(encode(json!({"bos_token": bos, "add_bos_token": true})).unwrap(), [0, 67]);
    assert_eq!(encode(json!({"eos_token": eos, "add_eos_token": true})).unwrap(), [0, 67, 1]);
    for (bad, field) in [
        (json!([]), "tokenizer_config.json"),
        (json!({"bos_token": 5}), "bos_token"),
        (json!({"eos_token": {"content": 1}}), "eos_token"),
        (json!({"add_bos_token": "yes"}), "add_bos_token"),
        (json!({"bos_token": "<nonesuch>", "add_bos_token": true}), "add_bos_token"),
    ] {
        let error = encode(bad).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

/// Draws the same cases at every run.
fn cases(cases: u32) -> ProptestConfig {
    let rng_seed = RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn gguf_and_json_agree(text in prop_oneof!["\\PC{0,60}", "[ a-zA-Z0-9'\n\té.,!<|>]{0,60}"]) {
        static OTHER: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_gguf(&GGUF).unwrap());
        for special in [false, true] {
            let ids = TOKENIZER.encode(&text, special).unwrap();
            prop_assert_eq!(&ids, &OTHER.encode(&text, special).unwrap());
            prop_assert_eq!(TOKENIZER.decode(&ids, true), OTHER.decode(&ids, true));
        }
        prop_assert_eq!(TOKENIZER.decode(&TOKENIZER.encode(&text, false).unwrap(), true), text);
    }

    #[test]
    fn detokenizer_equals_decode(ids in prop::collection::vec(
        prop_oneof![0u32..260, 0u32..3600, Just(u32::MAX)], 0..40,
    )) {
        let mut detokenizer = Detokenizer::new(TOKENIZER.clone());
        let mut text = String::new();
        let mut bytes = Vec::new();
        for &id in &ids {
            text.push_str(detokenizer.push(id));
            if !TOKENIZER.is_special(id) {
                bytes.extend_from_slice(&TOKENIZER.token_bytes(id).unwrap_or_default());
            }
        }
        text.push_str(&detokenizer.flush());
        prop_assert_eq!(&text, &TOKENIZER.decode(&ids, true));
        prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
    }
}

/// A small `tokenizer.json` in the SentencePiece style.
fn small() -> Value {
    let mut vocab = serde_json::Map::new();
    for (id, text) in
        ["<unk>", "<s>", "▁", "a", "b", "▁a", "ab", "<0xC3>", "<0xA9>"].iter().enumerate()
    {
        vocab.insert((*text).to_owned(), json!(id));
    }
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [added(0, "<unk>"), added(1, "<s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocab,
            "merges": [["▁", "a"], ["a", "b"]]},
    })
}

fn read(json: &Value) -> longrun_lm::Result<Tokenizer> {
    Tokenizer::from_json(&serde_json::to_vec(json).unwrap(), None)
}

#[test]
fn sentencepiece_json() {
    let tokenizer = Arc::new(read(&small()).unwrap());
    let ids = tokenizer.encode("a bé ab", true).unwrap();
    assert_eq!(ids, [1, 5, 2, 4, 7, 8, 5, 4], "not cut at the file's max_length");
    assert_eq!(tokenizer.decode(&ids, true), "a bé ab");
    assert_eq!(tokenizer.decode(&ids, false), "<s> a bé ab");
    let text = |mut detokenizer: Detokenizer| {
        let mut text = String::new();
        ids.iter().for_each(|&id| text.push_str(detokenizer.push(id)));
        text + &detokenizer.flush()
    };
    assert_eq!(text(Detokenizer::new(tokenizer.clone())), "a bé ab");
    assert_eq!(text(Detokenizer::continuing(tokenizer)), " a bé ab");
}

#[test]
fn files_that_lie_are_refused() {
    let with = |path: &str, value: Value| {
        let mut json = small();
        *json.pointer_mut(path).unwrap() = value;
        read(&json)
    };
    for (path, value, says) in [
        ("/decoder", json!({"type": "WordPiece", "prefix": "##", "cleanup": true}), "decoder"),
        ("/added_tokens/1/id", json!(7), "<s>"),
        ("/model/vocab/ab", json!(4_000_000_000u32), "4000000000"),
        ("/model/merges", json!([["a", "nonesuch"]]), "nonesuch"),
        ("/model/continuing_subword_prefix", json!("a much longer prefix"), "contradicts"),
        ("/model/vocab", json!(1), "reading"),
        ("/model", json!(null), "reading"),
        ("/version", json!("9"), "version"),
    ] {
        let error = with(path, value).map(|_| path).unwrap_err().to_string();
        assert!(error.starts_with("tokenizer.json: ") && error.contains(says), "{error}");
    }
    for cut in (0..DEMO.len()).step_by(DEMO.len() / 12) {
        assert!(Tokenizer::from_json(&DEMO[..cut], None).is_err());
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// Whatever stands in the file: an error, or a tokenizer whose answers are defined.
    #[test]
    fn mutated_files_do_not_panic(
        cuts in prop::collection::vec((0usize..4000, 0usize..6, any::<prop::sample::Index>()), 1..4),
    ) {
        let mut bytes = serde_json::to_vec(&small()).unwrap();
        let tokens: [&[u8]; 10] =
            [b"", b"null", b"0", b"\"\"", b"4294967295", b"[", b"}", b"\"ab\"", b"-1", b"\xC3\xA9"];
        for (at, length, with) in cuts {
            let at = at % bytes.len();
            let end = (at + length).min(bytes.len());
            bytes.splice(at..end, with.get(&tokens).iter().copied());
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&bytes, None) {
            for special in [false, true] {
                if let Ok(ids) = tokenizer.encode("a b<s>é ab<unk>", special) {
                    tokenizer.decode(&ids, true);
                }
            }
            for id in [0, 1, 8, 9, u32::MAX] {
                tokenizer.decode(&[id], false);
                let _ = tokenizer.token_bytes(id);
            }
        }
    }

    #[test]
    fn mutated_gguf_does_not_panic(
        model in prop::sample::select(vec!["gpt2", "llama", "bert"]),
        tokens in prop::collection::vec("(<0x[0-9A-F]{2}>|[ab▁Ġ<>]{0,3}|\\PC{0,3})", 0..8),
        merges in prop::collection::vec("[ab ]{0,4}", 0..3),
        types in prop::collection::vec(-1i32..8, 0..8),
        scores in prop::collection::vec(any::<f32>(), 0..8),
        ids in prop::array::uniform3(prop::option::of(0u32..9)),
        flags in prop::array::uniform3(prop::option::of(any::<bool>())),
        fit in any::<bool>(),
    ) {
        let count = tokens.len();
        let mut vocab = GgufVocab {
            model: model.into(), pre: None, tokens, scores, types, merges,
            bos: ids[0], eos: ids[1], unk: ids[2],
            add_bos: flags[0], add_eos: flags[1], add_space_prefix: flags[2],
        };
        if fit {
            vocab.types.resize(count, 1);
            vocab.scores.resize(count, 0.0);
        }
        if let Ok(tokenizer) = Tokenizer::from_gguf(&vocab) {
            prop_assert_eq!(tokenizer.vocab_size(), count);
            for special in [false, true] {
                if let Ok(ids) = tokenizer.encode("ab <a>▁ é", special) {
                    prop_assert!(ids.iter().all(|&id| (id as usize) < count));
                    tokenizer.decode(&ids, true);
                }
            }
        }
    }
}

#[test]
fn gguf_fields_are_named_in_errors() {
    let error = |change: fn(&mut GgufVocab)| {
        let mut vocab = GGUF.clone();
        change(&mut vocab);
        Tokenizer::from_gguf(&vocab).unwrap_err().to_string()
    };
    assert!(error(|v| v.model = "bert".into()).contains("tokenizer.ggml.model"));
    assert!(error(|v| v.pre = Some("odd".into())).contains("`odd`"));
    assert!(error(|v| v.merges.push("he nonesuch".into())).contains("tokenizer.ggml.merges"));
    assert!(error(|v| v.merges.push("noblank".into())).contains("`noblank`"));
    assert!(error(|v| v.merges.push(String::new())).contains("tokenizer.ggml.merges"));
    assert!(error(|v| v.types.push(1)).contains("tokenizer.ggml.token_type"));
    assert!(error(|v| v.bos = None).contains("add_bos_token"));
}
