//! Adapters by name: each request has its own, they take turns in fewer slots, and nobody has another's text.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::server::{Server, ask, told, with};

const CHAT: &str = "/v1/chat/completions";

/// Writes an adapter for two layers of the demo model, in the layout of MLX.
fn adapter(name: &str, seed: u32) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("serve-adapter-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let rank = 4;
    let (mut header, mut data, mut state) = (Map::new(), Vec::new(), seed);
    for (layer, [rows, cols]) in [
        ("model.layers.3.self_attn.q_proj", [512, 256]),
        ("model.layers.0.mlp.down_proj", [256, 512]),
    ] {
        for (side, shape) in [("lora_a", [cols, rank]), ("lora_b", [rank, rows])] {
            let from = data.len();
            for _ in 0..shape[0] * shape[1] {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let number = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
                data.extend((0.4 * number).to_le_bytes());
            }
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]});
            header.insert(format!("{layer}.{side}"), entry);
        }
    }
    let header = Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(folder.join("adapters.safetensors"), file).unwrap();
    let config = json!({"lora_parameters": {"rank": rank, "scale": 12.0}});
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    folder
}

fn to(model: &str) -> Value {
    with(ask("Once upon a time"), json!({"model": model, "max_tokens": 24}))
}

#[test]
fn each_request_has_its_own_and_they_take_turns() {
    let folders =
        [("red", 1), ("blue", 2), ("green", 3)].map(|(name, seed)| (name, adapter(name, seed)));
    let flags: Vec<String> = folders
        .iter()
        .flat_map(|(name, at)| ["--lora".into(), format!("{name}={}", at.display())])
        .collect();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--max-loras", "2"]).collect();
    let server = Server::demo(&flags);
    let list = server.get("/v1/models").ok();
    let names: Vec<&str> =
        list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["demo", "red", "blue", "green"]);
    assert_eq!(server.get("/v1/models/red").ok()["parent"], "demo");
    // What an adapter says at load, alone, is what it says by name.
    let text = |server: &Server, model: &str| {
        let whole = server.post(CHAT, &to(model)).ok();
        assert_eq!(whole["model"], model);
        whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let alone: Vec<String> =
        ["demo", "red", "blue", "green"].map(|name| text(&server, name)).to_vec();
    for i in 0..4 {
        for j in 0..i {
            assert_ne!(alone[i], alone[j], "{} and {}", names[i], names[j]);
        }
    }
    let folder = folders[1].1.to_str().unwrap();
    let loaded = Server::demo(&["--adapter", folder]);
    assert_eq!(text(&loaded, "demo"), alone[2]);
    // Three that want two slots, and rows without: nobody has another's.
    let buffers = server.metric("longrun_live_buffers");
    std::thread::scope(|scope| {
        for i in 0..12 {
            let (server, name, alone) = (&server, names[i % 4], &alone[i % 4]);
            scope.spawn(move || {
                for _ in 0..6 {
                    // All slots may be in use: then the client is told to come again.
                    let stream = server.stream(CHAT, &to(name));
                    if stream.status == 503 {
                        assert!(stream.reply().body.contains("--max-loras"));
                        continue;
                    }
                    assert_eq!(&told(&stream.collect::<Vec<_>>()).content, alone, "{name}");
                }
            });
        }
    });
    server.idle();
    assert_eq!(server.metric("longrun_live_buffers"), buffers);
    let cached = |whole: &Value| whole["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(
        cached(&server.post(CHAT, &to("red")).ok()) > Some(0),
        "an adapter finds what it read before"
    );
}
