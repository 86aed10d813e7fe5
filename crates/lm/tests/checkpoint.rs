//! Folders of safetensors: what opens, what it shows, and what each broken one says.

mod checkpoint_build;

use checkpoint_build::{Part, Scratch, model, safetensors, with_header};
use longrun_array::format::Format;
use longrun_lm::Kind;
use longrun_lm::checkpoint::{Checkpoint, RawDtype};

const CONFIG: &str = r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],
    "max_position_embeddings":256}"#;

fn norm() -> Part<'static> {
    ("model.norm.weight", "BF16", &[4], (0..8).collect())
}

fn embedding() -> Part<'static> {
    ("model.embed_tokens.weight", "F32", &[2, 4], (0..32).collect())
}

fn packed() -> Part<'static> {
    ("lm_head.weight", "U32", &[2], vec![7; 8])
}

fn refusal(folder: &Scratch) -> String {
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::File, "{error}");
    error.to_string()
}

#[test]
fn one_file_shows_its_tensors_and_texts() {
    let folder = Scratch::new("one")
        .with("config.json", CONFIG)
        .with("generation_config.json", r#"{"temperature":0.5}"#)
        .with("tokenizer.json", "{}")
        .with("tokenizer_config.json", r#"{"chat_template":"x"}"#)
        .with("consolidated.safetensors", "not read, since model.safetensors is there")
        .with("model.safetensors", safetensors(&[norm(), embedding(), packed()]));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.config()["model_type"], "llama");
    assert_eq!(checkpoint.generation_config().unwrap()["temperature"], 0.5);
    assert_eq!(checkpoint.file("tokenizer.json"), Some(&b"{}"[..]));
    assert_eq!(checkpoint.file("chat_template.jinja"), None);
    assert_eq!(checkpoint.file("config.json"), None);
    assert!(checkpoint.gguf().is_none());

    let names: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["model.embed_tokens.weight", "model.norm.weight"]);
    let view = checkpoint.weight("model.embed_tokens.weight").unwrap();
    assert_eq!((view.shape, view.format), (&[2, 4][..], Format::F32));
    assert!(view.data.iter().copied().eq(0..32));
    checkpoint.release(view.name);
    assert!(view.data.iter().copied().eq(0..32));

    let summary = checkpoint.summary();
    assert_eq!((summary.parameters, summary.bytes), (14, 48));
    assert_eq!(summary.context_length, Some(256));
    assert!(summary.chat_template);
    assert!(!summary.formats["u32"].usable);
    assert_eq!(summary.architectures, ["LlamaForCausalLM"]);
    assert!(format!("{summary:#}").contains("lm_head.weight  [2]  u32"));
    assert!(!format!("{summary}").contains("lm_head.weight"));
}

#[test]
fn an_infinity_may_be_written_bare() {
    let config = r#"{"time_step_limit": [-Infinity, Infinity], "name": "an \"Infinity\" \\"}"#;
    let folder = Scratch::new("infinity")
        .with("config.json", config)
        .with("model.safetensors", safetensors(&[norm()]));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let config = checkpoint.config();
    assert_eq!(config["time_step_limit"][0]["__float__"], "-Infinity");
    assert_eq!(config["time_step_limit"][1]["__float__"], "Infinity");
    assert_eq!(config["name"], "an \"Infinity\" \\");

    let folder = Scratch::new("infinite").with("config.json", "{\"x\": Infinity, Infinity}");
    let folder = folder.with("model.safetensors", safetensors(&[norm()]));
    assert!(refusal(&folder).contains("not valid JSON"));
}

#[test]
fn an_unusable_type_is_listed_and_named_when_asked_for() {
    let folder = Scratch::new("dtype")
        .with("config.json", CONFIG)
        .with("model.safetensors", safetensors(&[norm(), packed()]));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.tensor("lm_head.weight").is_none());
    let raw = checkpoint.raw("lm_head.weight").unwrap();
    assert!(matches!(raw.dtype, RawDtype::Safetensors(_)));
    assert_eq!(raw.data, [7; 8]);
    let error = checkpoint.weight("lm_head.weight").unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains(r#""lm_head.weight" is stored as u32"#), "{error}");
    let error = checkpoint.weight("nowhere").unwrap_err().to_string();
    assert!(error.contains(r#"the tensor "nowhere" is missing"#), "{error}");
}

fn indexed(name: &str, index: &str) -> Scratch {
    Scratch::new(name)
        .with("config.json", CONFIG)
        .with("model-00001-of-00002.safetensors", safetensors(&[norm()]))
        .with("model-00002-of-00002.safetensors", safetensors(&[embedding()]))
        .with("model.safetensors.index.json", index)
}

fn index(norm_at: &str, embedding_at: &str) -> String {
    format!(
        r#"{{"metadata":{{"total_size":40}},"weight_map":{{"model.norm.weight":"{norm_at}",
            "model.embed_tokens.weight":"{embedding_at}"}}}}"#
    )
}

const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

#[test]
fn shards_join_by_index_or_by_name() {
    let folder = indexed("shards", &index(FIRST, SECOND));
    let by_index = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(by_index.tensors().count(), 2);
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    let by_name = Checkpoint::open(folder.path()).unwrap();
    for (a, b) in by_index.tensors().zip(by_name.tensors()) {
        assert_eq!((a.name, a.shape, a.data), (b.name, b.shape, b.data));
    }
}

#[test]
fn an_index_is_held_to_its_word() {
    let swapped = refusal(&indexed("swapped", &index(SECOND, FIRST)));
    assert!(swapped.contains(r#""model.embed_tokens.weight" is not in"#), "{swapped}");
    let shard = "model-00003-of-00002.safetensors";
    let missing = refusal(&indexed("missing", &index(FIRST, shard)));
    assert!(missing.contains(shard) && missing.contains("cannot read"), "{missing}");
    let broken = refusal(&indexed("broken", r#"{"weight_map":[]}"#));
    assert!(broken.contains("index is not valid"), "{broken}");
    for hostile in [
        "../x.safetensors",
        "/x.safetensors",
        "a/b.safetensors",
        ".",
        "..",
        "",
        "./x.safetensors",
        "x.safetensors/",
        r"..\\x.safetensors",
        "c:x.safetensors",
    ] {
        let error = refusal(&indexed("traversal", &index(FIRST, hostile)));
        assert!(error.contains("not a plain file name"), "{hostile}: {error}");
    }
    let error = refusal(&indexed("suffix", &index(FIRST, "config.json")));
    assert!(error.contains("no safetensors file"), "{error}");
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let folder = Scratch::new("twice")
        .with("config.json", CONFIG)
        .with("model-1.safetensors", safetensors(&[norm()]))
        .with("model-2.safetensors", safetensors(&[norm()]));
    assert!(refusal(&folder).contains("is in another file too"));
}

#[test]
fn what_is_missing_is_said() {
    let weights = safetensors(&[norm()]);
    let no_config = Scratch::new("no-config").with("model.safetensors", &weights);
    assert!(refusal(&no_config).contains("config.json is missing"));
    let no_weights = Scratch::new("no-weights").with("config.json", CONFIG);
    assert!(refusal(&no_weights).contains("neither safetensors nor GGUF"));
    let other = Scratch::new("other").with("config.json", CONFIG).with("x.safetensors", &weights);
    assert!(refusal(&other).contains("model*.safetensors"));
    let list = Scratch::new("list").with("config.json", "[]").with("model.safetensors", &weights);
    assert!(refusal(&list).contains("config.json: it is not a JSON object"));
    let error = Checkpoint::open(&no_config.path().join("model.safetensors")).unwrap_err();
    assert!(error.to_string().contains("name the folder"), "{error}");
    let error = Checkpoint::open(&no_config.path().join("nothing")).unwrap_err();
    assert!(error.to_string().contains("cannot open the model"), "{error}");
}

#[test]
fn files_larger_than_their_bound_are_refused() {
    let mut config = CONFIG.as_bytes().to_vec();
    config.resize((4 << 20) + 1, b' ');
    let folder = Scratch::new("large")
        .with("config.json", &config)
        .with("model.safetensors", safetensors(&[norm()]));
    assert!(refusal(&folder).contains("larger than the 4194304 bytes"));
    config.pop();
    let folder = folder.with("config.json", &config);
    Checkpoint::open(folder.path()).unwrap();
}

fn header_refusal(header: &str, data: usize) -> String {
    let folder = Scratch::new("header")
        .with("config.json", CONFIG)
        .with("model.safetensors", with_header(header, &vec![0; data]));
    refusal(&folder)
}

#[test]
fn headers_that_lie_are_refused() {
    let entry = |name: &str, shape: &str, offsets: &str| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let one = |shape: &str, offsets: &str| format!("{{{}}}", entry("a", shape, offsets));
    let max = u64::MAX;
    for (header, data, says) in [
        (one("[2]", "[0,8]"), 7, "truncated"),
        (one("[2]", "[0,8]"), 9, "belong to no tensor"),
        (one("[3]", "[0,8]"), 8, "contradicts itself"),
        (one("[1]", "[4,8]"), 8, "contradicts itself"),
        (one("[1]", "[8,4]"), 4, "contradicts itself"),
        (one("[4611686018427387904,16]", "[0,8]"), 8, "contradicts itself"),
        (one("[2]", &format!("[0,{max}]")), 8, "truncated"),
        (one("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "at most 8 dimensions"),
        (one("[-1]", "[0,4]"), 4, "not valid"),
        (r#"{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#.into(), 4, "F33"),
        (
            format!("{{{},{}}}", entry("a", "[1]", "[0,4]"), entry("a", "[1]", "[4,8]")),
            8,
            "names it twice",
        ),
        (
            format!("{{{},{}}}", entry("a", "[2]", "[0,8]"), entry("b", "[1]", "[4,8]")),
            8,
            "contradicts itself",
        ),
        ("[]".into(), 0, "not valid"),
    ] {
        let error = header_refusal(&header, data);
        assert!(error.contains(says), "{header} with {data} bytes: {error}");
    }
    let folder = Scratch::new("prefix").with("config.json", CONFIG);
    let folder = folder.with("model.safetensors", [0xff; 8]);
    assert!(refusal(&folder).contains("the header claims"));
    let folder = folder.with("model.safetensors", [0; 3]);
    assert!(refusal(&folder).contains("truncated"));
}

#[test]
fn an_embedded_model_is_the_folder() {
    let parts = [norm(), embedding()];
    let weights: &'static [u8] = safetensors(&parts).leak();
    let files: &'static [_] = Box::leak(Box::new([
        ("config.json", CONFIG.as_bytes()),
        ("model.safetensors", weights),
        ("chat_template.jinja", &b"{{ x }}"[..]),
    ]));
    let embedded = Checkpoint::from_embedded(files).unwrap();
    let folder = Scratch::new("embedded");
    let folder = files.iter().fold(folder, |folder, (name, bytes)| folder.with(name, bytes));
    let opened = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(embedded.config(), opened.config());
    assert_eq!(embedded.file("chat_template.jinja"), opened.file("chat_template.jinja"));
    for (a, b) in embedded.tensors().zip(opened.tensors()) {
        assert_eq!((a.name, a.shape, a.data), (b.name, b.shape, b.data));
    }
    assert_eq!(embedded.source(), "embedded model");
    assert!(Checkpoint::from_embedded(&[]).is_err());
    assert!(Checkpoint::from_embedded(&files[..1]).is_err());
}

#[test]
fn a_folder_may_hold_one_gguf_file() {
    let file = model("llama").finish();
    let folder = Scratch::new("gguf-folder")
        .with("m.gguf", &file)
        .with("mmproj-m.gguf", "an image projector is not the model")
        .with("tokenizer.json", "{}");
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert!(checkpoint.gguf().is_some());
    assert!(checkpoint.file("tokenizer.json").is_some());
    assert!(Checkpoint::open(&folder.path().join("m.gguf")).is_ok());
    let folder = folder.with("n.gguf", &file);
    let error = refusal(&folder);
    assert!(error.contains("2 GGUF files: m.gguf, n.gguf; name one"), "{error}");
}
