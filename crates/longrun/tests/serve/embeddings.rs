//! Vectors over HTTP: a model whose files say how to pool, and one whose files do not.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Server, ask, with};

const PATH: &str = "/v1/embeddings";

/// The demo model as one that makes embeddings, in a folder of its own.
fn folder(name: &str, mode: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    for file in fs::read_dir(demo).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let module = |(i, (kind, path)): (usize, (&str, &str))| json!({"idx": i, "name": i.to_string(), "path": path, "type": kind});
    let kinds = [
        ("sentence_transformers.models.Transformer", ""),
        ("sentence_transformers.models.Pooling", "1_Pooling"),
        ("sentence_transformers.models.Normalize", "2_Normalize"),
    ];
    let modules: Value = kinds.into_iter().enumerate().map(module).collect();
    fs::write(folder.join("modules.json"), modules.to_string()).unwrap();
    let mut pooling = json!({"include_prompt": true});
    pooling[mode] = true.into();
    fs::write(folder.join("1_Pooling/config.json"), pooling.to_string()).unwrap();
    folder
}

pub(crate) fn server(name: &str, mode: &str, flags: &[&str]) -> Server {
    let folder = folder(name, mode);
    let given = ["--model", folder.to_str().unwrap(), "--alias", "vectors", "--memory", "64MiB"];
    Server::start(&[&given[..], flags].concat())
}

/// The vectors of an answer, in order, after a look at its shape.
fn vectors(answer: &Value) -> Vec<Vec<f32>> {
    assert_eq!(answer["object"], "list");
    assert_eq!(answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]);
    let data = answer["data"].as_array().unwrap().iter().enumerate();
    let vector = |(i, item): (usize, &Value)| {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(i)));
        match &item["embedding"] {
            Value::String(text) => decoded(text),
            numbers => {
                let numbers = numbers.as_array().unwrap().iter();
                numbers.map(|x| x.to_string().parse().unwrap()).collect()
            }
        }
    };
    data.map(vector).collect()
}

fn decoded(text: &str) -> Vec<f32> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other}"),
    };
    let mut bytes = Vec::new();
    for four in text.as_bytes().chunks(4) {
        let known: Vec<u8> = four.iter().filter(|c| **c != b'=').map(|c| value(*c)).collect();
        let bits =
            known.iter().enumerate().fold(0_u32, |n, (i, x)| n | u32::from(*x) << (18 - 6 * i));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..known.len()]);
    }
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn texts_and_ids_have_vectors_in_every_form() {
    let server = server("embeddings-forms", "pooling_mode_mean_tokens", &[]);
    let get = |body: Value| {
        let answer = server.post(PATH, &body).ok();
        assert_eq!(answer["model"], "vectors");
        vectors(&answer)
    };
    let model = server.get("/v1/models/vectors").ok();
    let width = model["longrun"]["embedding_size"].as_u64().unwrap() as usize;
    let texts =
        ["Once upon a time", "there was a fox", "who", "read all of the books in the wood."];
    let alone: Vec<Vec<f32>> = texts
        .iter()
        .map(|text| get(json!({"input": text, "model": "vectors"})).remove(0))
        .collect();
    for vector in &alone {
        assert_eq!(vector.len(), width);
        assert!((length(vector) - 1.0).abs() < 1e-6);
    }
    assert_ne!(alone[0], alone[1]);
    // Beside others it is the same, to the bit.
    let together = get(json!({"input": texts, "encoding_format": "float", "user": "u"}));
    assert_eq!(together, alone);
    assert_eq!(get(json!({"input": texts, "encoding_format": "base64"})), alone);
    let ids = texts.map(|text| {
        let body = json!({"content": text, "add_special": true});
        server.post("/tokenize", &body).ok()["tokens"].clone()
    });
    assert_eq!(get(json!({"input": ids})), alone);
    assert_eq!(get(json!({"input": ids[2]})), alone[2..3]);
    let counted: usize = ids.iter().map(|ids| ids.as_array().unwrap().len()).sum();
    let answer = server.post("/embeddings", &json!({"input": texts})).ok();
    assert_eq!(answer["usage"]["prompt_tokens"], counted);

    for short in [1, 3, width - 1] {
        let made = get(json!({"input": texts, "dimensions": short}));
        for (short_one, whole) in made.iter().zip(&alone) {
            assert_eq!(short_one.len(), short);
            assert!((length(short_one) - 1.0).abs() < 1e-6);
            let scale = length(&whole[..short]);
            for (x, y) in short_one.iter().zip(whole) {
                assert!((f64::from(*x) - f64::from(*y) / scale).abs() < 1e-6);
            }
        }
    }
    assert_eq!(get(json!({"input": texts, "dimensions": width})), alone);

    let many: Vec<String> = (0..200).map(|i| format!("tale {i}")).collect();
    let all = get(json!({"input": many}));
    for i in [0, 7, 199] {
        assert_eq!(get(json!({"input": many[i]})), all[i..=i]);
    }
    server.idle();
    assert!(server.metric("longrun_tokens_total{kind=\"prompt\",model=\"vectors\"}") > 400.0);
    let finished = "longrun_requests_total{model=\"vectors\",outcome=\"finished\"}";
    assert!(server.metric(finished) > 10.0);
}

#[test]
fn what_has_no_vector_is_refused_by_name() {
    let server = server("embeddings-refused", "pooling_mode_lasttoken", &["--context", "64"]);
    let width = server.get("/v1/models").ok()["data"][0]["longrun"]["embedding_size"].clone();
    let width = width.as_u64().unwrap();
    let long = "word ".repeat(100);
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ["a", ""]}), "input"),
        (json!({"input": [[1], []]}), "input"),
        (json!({"input": [1 << 30]}), "input"),
        (json!({"input": [1, "a"]}), "input"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": width + 1}), "dimensions"),
        (json!({"input": ["a", long]}), "input"),
    ] {
        let error = server.post(PATH, &body).error(400);
        assert_eq!(error["param"], param, "{error}");
    }
    let error = server.post(PATH, &json!({"input": vec![1; 65]})).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("65") && message.contains("64"), "{message}");
    // The whole context is room for a text.
    assert_eq!(vectors(&server.post(PATH, &json!({"input": vec![1; 64]})).ok()).len(), 1);
    server.post(PATH, &json!({"input": "a", "model": "nobody"})).error(404);
    let ignored = server.post(PATH, &json!({"input": "a", "frobnicate": 1}));
    assert_eq!(ignored.header("x-longrun-ignored"), Some("frobnicate"));

    for (path, body) in [
        ("/v1/chat/completions", ask("Once")),
        ("/v1/chat/completions", with(ask("Once"), json!({"stream": true}))),
        ("/v1/completions", json!({"prompt": "Once"})),
        ("/completion", json!({"prompt": "Once"})),
        ("/v1/responses", json!({"input": "Once"})),
    ] {
        let error = server.post(path, &body).error(400);
        assert_eq!(error["code"], "no_text", "{path}: {error}");
        assert!(error["message"].as_str().unwrap().contains("pool"), "{path}: {error}");
    }
    let error =
        server.post("/v1/messages", &with(ask("Once"), json!({"max_tokens": 4}))).error(400);
    assert!(error["message"].as_str().unwrap().contains("embeddings"), "{error}");
    // What is of no use to it still answers.
    for path in ["/health", "/props", "/slots", "/metrics", "/openapi.json"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert!(server.notes().contains("it makes embeddings"), "{}", server.notes());
    server.idle();
}

#[test]
fn a_model_that_makes_text_beside_one_that_makes_vectors() {
    let folder = folder("embeddings-beside", "pooling_mode_cls_token");
    let also = format!("vectors={}", folder.display());
    let server = Server::demo(&["--also", &also, "--draft", "lookup", "--memory", "128MiB"]);
    let error = server.post(PATH, &json!({"input": "x", "model": "demo"})).error(400);
    assert_eq!(error["code"], "no_embeddings");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("demo") && message.contains("modules.json"), "{message}");
    let answer = server.post(PATH, &json!({"input": ["x", "y"], "model": "vectors"})).ok();
    assert_eq!(vectors(&answer).len(), 2);
    server.post("/v1/chat/completions", &ask("Once")).ok();
    // It goes and comes back, as any.
    server.post("/v1/models/unload", &json!({"model": "vectors"})).ok();
    let again = server.post(PATH, &json!({"input": ["x", "y"], "model": "vectors"})).ok();
    assert_eq!(answer["data"], again["data"]);
}

/// Who hangs up is forgotten: the embedder goes on with others, and nothing grows.
#[test]
fn who_hangs_up_takes_the_texts_along() {
    let server = server("embeddings-gone", "pooling_mode_mean_tokens", &[]);
    let one = server.post(PATH, &json!({"input": "Once"})).ok();
    let live = server.metric("longrun_live_buffers");
    // It would take minutes.
    let body = json!({"input": vec![vec![1; 1000]; 1000]}).to_string();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(&server.address).unwrap();
        let head =
            format!("POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        socket.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        while server.metric("longrun_rows_running") == 0.0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let began = Instant::now();
    server.idle();
    assert!(began.elapsed() < Duration::from_secs(5), "texts were left for {:?}", began.elapsed());
    let cancelled = "longrun_requests_total{model=\"vectors\",outcome=\"cancelled\"}";
    assert_eq!(server.metric(cancelled), 2.0);
    assert_eq!(server.post(PATH, &json!({"input": "Once"})).ok()["data"], one["data"]);
    assert_eq!(server.metric("longrun_live_buffers"), live);
}

#[test]
fn what_takes_too_long_ends() {
    let server = server("embeddings-late", "pooling_mode_mean_tokens", &["--timeout", "1"]);
    let body = json!({"input": vec![vec![1; 1000]; 1000]});
    assert_eq!(server.post(PATH, &body).error(504)["code"], "timeout");
    server.idle();
    server.post(PATH, &json!({"input": "Once"})).ok();
}

#[test]
fn files_that_want_what_is_not_there_are_refused_at_the_start() {
    let longrun = |folder: &Path, flags: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_longrun"));
        command.args(["serve", "--port", "0", "--memory", "64MiB", "--model"]).arg(folder);
        let ended = command.args(flags).output().unwrap();
        assert!(!ended.status.success());
        String::from_utf8(ended.stderr).unwrap()
    };
    let said = longrun(&folder("embeddings-max", "pooling_mode_max_tokens"), &[]);
    assert!(said.contains("pooling_mode_max_tokens"), "{said}");
    let folder = folder("embeddings-lora", "pooling_mode_lasttoken");
    let adapter =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/interop/peft-qwen3_yarn");
    let said = longrun(&folder, &["--lora", &format!("a={}", adapter.display())]);
    assert!(said.contains("--lora") && said.contains("embeddings"), "{said}");
}
