//! What goes wrong around a server, and that it is no zombie afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::server::{Server, ask, with};

const CHAT: &str = "/v1/chat/completions";

fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn a_full_disk_loses_what_was_kept_and_nothing_else() {
    let folder = scratch("serve-full-disk");
    let flags = ["--cache-dir", folder.to_str().unwrap()];
    // No file can be longer than 4 KiB.
    let mut server = Server::limited("trap '' XFSZ; ulimit -f 8;", "qwen3_next", &flags);
    server.post(CHAT, &ask(&"word ".repeat(200))).ok();
    server.terminate();
    let code = server.wait();
    assert_eq!(code, 3, "{}", server.notes());
    assert!(server.notes().contains("written"), "{}", server.notes());
    // A start after it is as any.
    let server = Server::tiny("qwen3_next", &flags);
    server.post(CHAT, &ask("Hello")).ok();
}

#[test]
fn a_model_that_is_deleted_serves_on_and_is_an_error_when_it_is_to_come_back() {
    let folder = scratch("serve-deleted-model");
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    for file in fs::read_dir(demo).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let server = Server::start(&[
        "--model",
        folder.to_str().unwrap(),
        "--alias",
        "copy",
        "--memory",
        "64MiB",
    ]);
    let before = server.post(CHAT, &ask("Once upon a time")).ok();
    fs::remove_dir_all(&folder).unwrap();
    let after = server.post(CHAT, &with(ask("Once upon a time"), json!({"max_tokens": 16}))).ok();
    assert_eq!(before["choices"], after["choices"]);
    server.post("/v1/models/unload", &json!({"model": "copy"})).ok();
    let reply = server.post(CHAT, &ask("Once upon a time"));
    assert!(reply.status >= 500, "{}", reply.body);
    reply.error(reply.status);
    assert_eq!(server.get("/health").status, 200);
}

/// The engine's thread panics in the middle of steps: those in it are told, and it goes on.
#[cfg(feature = "leak-lab")]
#[test]
fn c06_a_panic_in_the_engine_ends_what_is_in_it_and_no_more() {
    let server = Server::tiny("qwen3_next", &[]);
    let before = server.post(CHAT, &ask("Hello")).ok();
    let buffers = server.metric("longrun_live_buffers");
    for after in [0, 1, 5] {
        let mut beside =
            server.stream(CHAT, &with(ask("Go"), json!({"max_tokens": 3000, "ignore_eos": true})));
        beside.by_ref().take(3).count();
        let broken = with(
            ask("x"),
            json!({"max_tokens": 100, "ignore_eos": true, "lab_panic_after": after}),
        );
        server.post(CHAT, &broken).error(500);
        // Who was in the same step is told too; the stream ends with an error and not in silence.
        let last = beside.last().unwrap();
        assert!(
            last.data == "[DONE]" || last.json()["error"]["type"] == "server_error",
            "{last:?}"
        );
        assert_eq!(server.get("/health").status, 200);
        server.idle();
        assert_eq!(server.post(CHAT, &ask("Hello")).ok()["choices"], before["choices"]);
        assert_eq!(server.metric("longrun_live_buffers"), buffers);
    }
}
