//! Embeddings of checkpoints: what files say of pooling, and vectors beside plain math over hidden states.

mod checkpoint_build;

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint_build::{Gguf, Scratch, model};
use longrun_array::{CpuDevice, CpuOptions, Wanted};
use longrun_lm::cache::Room;
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::config::Config;
use longrun_lm::embed::{Embedder, Pooling, PoolingMode, shortened};
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::weights::Source;
use longrun_lm::{Kind, Result};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const ROOM: Room = Room { rows: 3, context: 200, tokens: 600, chunk: 32, snapshots: 0, drafts: 0 };

fn golden(family: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(family)
}

/// The modules of most models.
fn modules(kinds: &[(&str, &str)]) -> Value {
    let module = |(i, (kind, path)): (usize, &(&str, &str))| {
        json!({"idx": i, "name": i.to_string(), "path": path,
            "type": format!("sentence_transformers.models.{kind}")})
    };
    kinds.iter().enumerate().map(module).collect()
}

const PLAIN: &[(&str, &str)] = &[("Transformer", ""), ("Pooling", "1_Pooling")];
const OF_LENGTH_1: &[(&str, &str)] =
    &[("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")];

fn width(family: &str) -> u64 {
    let config = fs::read(golden(family).join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    config["hidden_size"].as_u64().unwrap()
}

/// As sentence-transformers writes it.
fn config_of(mode: &str, width: u64) -> Value {
    let mut config = json!({
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": false,
        "pooling_mode_mean_tokens": false,
        "pooling_mode_max_tokens": false,
        "pooling_mode_mean_sqrt_len_tokens": false,
        "pooling_mode_weightedmean_tokens": false,
        "pooling_mode_lasttoken": false,
        "include_prompt": true,
    });
    config[mode] = true.into();
    config
}

/// The files of a golden folder, and those of an embedding.
fn folder(name: &str, family: &str, modules: &Value, pooling: &Value) -> Scratch {
    let mut scratch = Scratch::new(name);
    for file in ["config.json", "model.safetensors"] {
        scratch = scratch.with(file, fs::read(golden(family).join(file)).unwrap());
    }
    fs::create_dir_all(scratch.path().join("1_Pooling")).unwrap();
    scratch
        .with("modules.json", modules.to_string())
        .with("1_Pooling/config.json", pooling.to_string())
}

fn pooling(scratch: &Scratch) -> Result<Option<Pooling>> {
    Pooling::of(&Checkpoint::open(scratch.path()).unwrap())
}

#[test]
fn files_say_how_to_pool() {
    let width = width("llama");
    for (mode, name) in [
        (PoolingMode::Mean, "pooling_mode_mean_tokens"),
        (PoolingMode::Cls, "pooling_mode_cls_token"),
        (PoolingMode::Last, "pooling_mode_lasttoken"),
    ] {
        for (kinds, normalize) in [(PLAIN, false), (OF_LENGTH_1, true)] {
            let made = folder("says", "llama", &modules(kinds), &config_of(name, width));
            assert_eq!(pooling(&made).unwrap(), Some(Pooling { mode, normalize }));
        }
    }
    // As later versions write it.
    let later =
        json!({"embedding_dimension": width, "pooling_mode": "lasttoken", "include_prompt": true});
    let made = folder("later", "llama", &modules(OF_LENGTH_1), &later);
    let last = Pooling { mode: PoolingMode::Last, normalize: true };
    assert_eq!(pooling(&made).unwrap(), Some(last));
    // A model that goes on with texts, and one whose modules pool nothing.
    assert_eq!(Pooling::of(&Checkpoint::open(&golden("llama")).unwrap()).unwrap(), None);
    let made = folder("none", "llama", &modules(&PLAIN[..1]), &later);
    assert_eq!(pooling(&made).unwrap(), None);
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let width = width("llama");
    let right = || config_of("pooling_mode_lasttoken", width);
    let with = |name: &str, value: Value| {
        let mut config = right();
        config[name] = value;
        config
    };
    let kinds = |more: &[(&str, &str)]| modules(&[OF_LENGTH_1, more].concat());
    for (listed, config, said) in [
        (kinds(&[]), config_of("pooling_mode_max_tokens", width), "pooling_mode_max_tokens"),
        (kinds(&[]), config_of("pooling_mode_of_later", width), "pooling_mode_of_later"),
        (kinds(&[]), with("pooling_mode_mean_tokens", json!(true)), "several modes"),
        (kinds(&[]), with("pooling_mode_lasttoken", json!(false)), "no mode"),
        (kinds(&[]), with("pooling_mode_lasttoken", json!("yes")), "pooling_mode_lasttoken"),
        (kinds(&[]), with("include_prompt", json!(false)), "include_prompt"),
        (kinds(&[]), with("word_embedding_dimension", json!(7)), "word_embedding_dimension"),
        (kinds(&[]), with("pooling_mode", json!("max")), "pooling_mode"),
        (kinds(&[("Dense", "3_Dense")]), right(), "Dense"),
        (kinds(&[("Pooling", "1_Pooling")]), right(), "Pooling"),
        (modules(&[("Pooling", "1_Pooling")]), right(), "Pooling"),
        (modules(&[PLAIN[0], ("Normalize", "n")]), right(), "Normalize"),
        (modules(&[PLAIN[0], ("Pooling", "../1_Pooling")]), right(), "plain file name"),
        (modules(&[PLAIN[0], ("Pooling", "/etc")]), right(), "plain file name"),
        (modules(&[PLAIN[0], ("Pooling", "gone")]), right(), "no mode"),
        (modules(&[PLAIN[0]; 17]), right(), "17 modules"),
        (json!({}), right(), "not a JSON list"),
        (json!([{"path": ""}]), right(), "no type"),
        (json!([7]), right(), "no type"),
    ] {
        let made = folder("refused", "llama", &listed, &config);
        let error = pooling(&made).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    let made = folder("prompt", "llama", &kinds(&[]), &right()).with(
        "config_sentence_transformers.json",
        r#"{"prompts": {"query": "Find: ", "document": ""}, "default_prompt_name": "query"}"#,
    );
    assert!(pooling(&made).unwrap_err().to_string().contains("default_prompt_name"));
    let made = made.with(
        "config_sentence_transformers.json",
        r#"{"prompts": {"query": "Find: "}, "default_prompt_name": null}"#,
    );
    assert!(pooling(&made).unwrap().is_some());
    let made = made.with("sentence_bert_config.json", r#"{"do_lower_case": true}"#);
    assert!(pooling(&made).unwrap_err().to_string().contains("do_lower_case"));
    for (name, value) in [("is_causal", false), ("use_bidirectional_attention", true)] {
        let mut config: Value =
            serde_json::from_slice(&fs::read(golden("llama").join("config.json")).unwrap())
                .unwrap();
        config[name] = value.into();
        let made =
            folder("both", "llama", &kinds(&[]), &right()).with("config.json", config.to_string());
        assert!(pooling(&made).unwrap_err().to_string().contains(name));
    }
    // A model that makes text does not care for what is wrong there.
    let made = folder("text", "llama", &json!({}), &right());
    assert!(Checkpoint::open(made.path()).is_ok());
}

#[test]
fn gguf_says_how_to_pool() {
    let read = |gguf: &Gguf| {
        let scratch = Scratch::new("gguf-pooling").with("m.gguf", gguf.finish());
        pooling(&scratch)
    };
    assert_eq!(read(&model("llama")).unwrap(), None);
    for (kind, mode) in [
        (0, None),
        (1, Some(PoolingMode::Mean)),
        (2, Some(PoolingMode::Cls)),
        (3, Some(PoolingMode::Last)),
    ] {
        let found = read(&model("llama").u32("llama.pooling_type", kind)).unwrap();
        assert_eq!(found, mode.map(|mode| Pooling { mode, normalize: true }));
    }
    let error = read(&model("llama").u32("llama.pooling_type", 4)).unwrap_err();
    assert!(error.to_string().contains("ranking"), "{error}");
    assert_eq!(error.kind(), Kind::Unsupported);
    read(&model("llama").u32("llama.pooling_type", 5)).unwrap_err();
    let blind = model("llama").u32("llama.pooling_type", 3).raw("llama.attention.causal", 7, &[0]);
    assert!(read(&blind).unwrap_err().to_string().contains("attention.causal"));
}

fn executor(folder: &Path, setup: Setup) -> Result<Executor> {
    let checkpoint = Checkpoint::open(folder)?;
    let config = Config::new(checkpoint.config())?;
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    Executor::new(Box::new(device), &config, Source::Checkpoint(&checkpoint), setup, &|_, _| {})
}

/// Texts of several lengths, from the prompt of the reference.
fn texts(family: &str) -> Vec<Vec<u32>> {
    let file = fs::read(golden(family).join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let prompt = file.tensor("prompt").unwrap();
    let size = prompt.dtype().bitsize() / 8;
    let id = |b: &[u8]| b.iter().rev().fold(0_u64, |n, b| n << 8 | u64::from(*b)) as u32;
    let prompt: Vec<u32> = prompt.data().chunks_exact(size).map(id).collect();
    assert!(prompt.len() >= 40);
    [1, 2, 31, 33, prompt.len()].map(|n| prompt[..n].to_vec()).to_vec()
}

/// The hidden state of each token, read one by one.
fn states(exec: &mut Executor, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut seq = exec.admit(ids.len()).unwrap();
    let mut all = Vec::new();
    for id in ids {
        let ids = &[*id][..];
        let span = Span { seq: &mut seq, ids, wanted: Wanted::Last, drafts: 0 };
        all.push(exec.run(&mut [span]).unwrap().to_vec());
    }
    exec.release(seq);
    all
}

/// Sentence-transformers' math, plainly.
fn plain(states: &[Vec<f32>], pooling: Pooling) -> Vec<f64> {
    let wide = |state: &Vec<f32>| state.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let vector = match pooling.mode {
        PoolingMode::Cls => wide(&states[0]),
        PoolingMode::Last => wide(states.last().unwrap()),
        PoolingMode::Mean => {
            let column = |i: usize| states.iter().map(|state| f64::from(state[i])).sum::<f64>();
            (0..states[0].len()).map(|i| column(i) / states.len() as f64).collect()
        }
    };
    let length = vector.iter().map(|x| x.powi(2)).sum::<f64>().sqrt();
    vector.iter().map(|x| if pooling.normalize { x / length } else { *x }).collect()
}

#[test]
fn vectors_are_pooled_hidden_states() {
    for family in ["llama", "qwen3", "gemma3", "mamba2", "qwen3_next", "deepseek_v4"] {
        let hidden = Setup { hidden: true, ..Setup::new(ROOM) };
        let mut exec = executor(&golden(family), hidden).unwrap();
        let texts = texts(family);
        let states: Vec<_> = texts.iter().map(|ids| states(&mut exec, ids)).collect();
        for (mode, name) in [
            (PoolingMode::Mean, "pooling_mode_mean_tokens"),
            (PoolingMode::Cls, "pooling_mode_cls_token"),
            (PoolingMode::Last, "pooling_mode_lasttoken"),
        ] {
            for kinds in [PLAIN, OF_LENGTH_1] {
                let made =
                    folder("vectors", family, &modules(kinds), &config_of(name, width(family)));
                let how = pooling(&made).unwrap().unwrap();
                assert_eq!(how.mode, mode);
                let exec = executor(made.path(), Embedder::setup(how, ROOM)).unwrap();
                let mut embedder = Embedder::new(exec, how).unwrap();
                let vectors = embedder.embed(&texts).unwrap();
                assert_eq!(vectors.len(), texts.len());
                for (vector, states) in vectors.iter().zip(&states) {
                    let plain = plain(states, how);
                    assert_eq!((vector.len(), plain.len()), (embedder.width(), states[0].len()));
                    for (x, y) in vector.iter().zip(&plain) {
                        assert!(
                            (f64::from(*x) - y).abs() < 1e-6 * y.abs().max(1.0),
                            "{family}, {how:?}: {x} {y}"
                        );
                    }
                }
                assert!(embedder.executor().all_free());
            }
        }
    }
}

/// The files of an embedding often have no head, tied or not.
#[test]
fn hidden_states_need_no_head() {
    let file = fs::read(golden("mistral").join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    assert!(file.names().contains(&"lm_head.weight"));
    let headless = file.iter().filter(|(name, _)| *name != "lm_head.weight");
    // The prefix goes with the head.
    let headless =
        headless.map(|(name, view)| (name.strip_prefix("model.").unwrap().to_owned(), view));
    let headless = safetensors::serialize(headless, None).unwrap();
    let config = config_of("pooling_mode_lasttoken", width("mistral"));
    let whole = folder("whole", "mistral", &modules(PLAIN), &config);
    let without =
        folder("headless", "mistral", &modules(PLAIN), &config).with("model.safetensors", headless);
    let error = executor(without.path(), Setup::new(ROOM)).err().unwrap();
    assert!(error.to_string().contains("lm_head"), "{error}");
    let vectors = |made: &Scratch| {
        let how = pooling(made).unwrap().unwrap();
        let exec = executor(made.path(), Embedder::setup(how, ROOM)).unwrap();
        Embedder::new(exec, how).unwrap().embed(&texts("mistral")).unwrap()
    };
    assert_eq!(vectors(&whole), vectors(&without));
}

#[test]
fn an_executor_for_something_else_is_refused() {
    let mean = Pooling { mode: PoolingMode::Mean, normalize: true };
    let last = Pooling { mode: PoolingMode::Last, normalize: true };
    let made = |setup: Setup| executor(&golden("llama"), setup).unwrap();
    assert!(Embedder::new(made(Setup::new(ROOM)), last).is_err());
    assert!(Embedder::new(made(Embedder::setup(last, ROOM)), mean).is_err());
    let mut embedder = Embedder::new(made(Embedder::setup(last, ROOM)), last).unwrap();
    for (ids, said) in [
        (vec![], "no tokens"),
        (vec![1; 201], "201 tokens, the context is 200"),
        (vec![1 << 20], "vocabulary"),
    ] {
        let error = embedder.embed(&[vec![1], ids]).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert_eq!((error.kind(), embedder.texts()), (Kind::Usage, (0, 0)));
    }
    embedder.submit(vec![1]).unwrap();
    assert!(embedder.embed(&[vec![1]]).unwrap_err().to_string().contains("under way"));
}

#[test]
fn shorter_vectors_have_length_1() {
    let short = shortened(&[3.0, 4.0, 12.0], 2);
    assert_eq!(short, [0.6, 0.8]);
    assert_eq!(shortened(&[0.0, 0.0, 1.0], 2), [0.0, 0.0]);
}
