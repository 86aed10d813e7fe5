//! The life of a server: keys, limits, several models, adapters, and its end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Server, ask, told, with};

const CHAT: &str = "/v1/chat/completions";

fn names(server: &Server) -> Vec<(String, bool)> {
    let list = server.get("/v1/models").ok();
    let of = |m: &Value| (m["id"].as_str().unwrap().to_owned(), m["longrun"]["loaded"] == true);
    list["data"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn keys_are_asked_for() {
    let server = Server::demo(&["--api-key", "one", "--api-key", "two"]);
    let body = ask("Once").to_string();
    let with_header = |headers: &[(&str, &str)]| {
        server.send("POST", CHAT, headers, body.as_bytes()).reply().status
    };
    assert_eq!(with_header(&[]), 401);
    assert_eq!(with_header(&[("Authorization", "Bearer three")]), 401);
    assert_eq!(with_header(&[("Authorization", "one")]), 401);
    assert_eq!(with_header(&[("Authorization", "Bearer one")]), 200);
    assert_eq!(with_header(&[("x-api-key", "two")]), 200);
    assert_eq!(server.get("/metrics").status, 401);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn browsers_are_let_in_only_from_where_they_may_come() {
    let origin = [("Origin", "http://example.com")];
    let closed = Server::demo(&[]);
    let reply = closed.send("GET", "/v1/models", &origin, b"").reply();
    assert_eq!(reply.header("access-control-allow-origin"), None);
    let open = Server::demo(&["--cors", "http://example.com", "--api-key", "k"]);
    let reply = open
        .send("OPTIONS", CHAT, &[origin[0], ("Access-Control-Request-Method", "POST")], b"")
        .reply();
    assert_eq!(reply.header("access-control-allow-origin"), Some("http://example.com"));
}

#[test]
fn limits_hold() {
    let server = Server::tiny(
        "llama",
        &[
            "--max-requests",
            "2",
            "--max-body",
            "2000",
            "--context",
            "100000",
            "--memory",
            "256MiB",
            "--timeout",
            "3",
        ],
    );
    let large = ask(&"x".repeat(3000));
    server.post(CHAT, &large).error(413);
    let long = with(ask("Go"), json!({"max_tokens": 90_000, "ignore_eos": true}));
    let (mut one, two) = (server.stream(CHAT, &long), server.stream(CHAT, &long));
    one.next();
    let reply = server.post(CHAT, &ask("x"));
    assert_eq!(reply.header("retry-after"), Some("1"));
    reply.error(429);
    // Their time is over after three seconds, and the stream says so.
    let last = one.last().unwrap().json();
    assert_eq!(last["error"]["code"], "timeout", "{last}");
    assert_eq!(two.last().unwrap().json()["error"]["code"], "timeout");
    server.idle();
    server.post(CHAT, &ask("x")).ok();
}

#[test]
fn every_answer_has_an_id() {
    let server = Server::demo(&[]);
    let reply = server.send("GET", "/v1/models", &[("x-request-id", "mine")], b"").reply();
    assert_eq!(reply.header("x-request-id"), Some("mine"));
    assert!(
        server.get("/v1/nothing").header("x-request-id").is_some_and(|id| id.starts_with("req_"))
    );
}

#[test]
fn prompts_can_be_watched() {
    let server = Server::tiny("llama", &["--chunk", "64"]);
    let chat = with(ask(&"word ".repeat(100)), json!({"return_progress": true}));
    let text = json!({"prompt": "word ".repeat(110), "max_tokens": 3, "stream_options": {"include_progress": true}});
    for (path, body) in [(CHAT, chat), ("/v1/completions", text)] {
        let events = server.events(path, &body);
        let progress: Vec<Value> = events
            .iter()
            .filter(|event| event.data != "[DONE]")
            .map(|event| event.json()["prompt_progress"].clone())
            .filter(|progress| !progress.is_null())
            .collect();
        assert!(progress.len() >= 8, "{progress:?}");
        let done: Vec<u64> = progress.iter().map(|p| p["processed"].as_u64().unwrap()).collect();
        let all = progress[0]["total"].as_u64();
        assert!(done.is_sorted() && done.last() == all.as_ref(), "{progress:?}");
    }
}

#[test]
fn models_come_and_go_by_name() {
    let flags = ["--also", "other=tiny:gemma3", "--max-loaded", "1"];
    let server = Server::tiny("qwen3_next", &flags);
    assert_eq!(names(&server), [("tiny".into(), true), ("other".into(), false)]);
    let to = |model: &str| with(ask("Hello"), json!({ "model": model }));
    let first = server.post(CHAT, &to("tiny")).ok()["choices"].clone();
    // A stream is under way: it ends as if nothing were, and then the other model comes.
    let long = with(to("tiny"), json!({"max_tokens": 300, "ignore_eos": true}));
    let alone = told(&server.events(CHAT, &long)).content;
    let mut stream = server.stream(CHAT, &long);
    let mut events = vec![stream.next().unwrap()];
    std::thread::scope(|scope| {
        let other = scope.spawn(|| server.post(CHAT, &to("other")).ok());
        events.extend(stream);
        assert_eq!(told(&events).content, alone);
        assert_eq!(other.join().unwrap()["model"], "other");
    });
    assert_eq!(names(&server), [("tiny".into(), false), ("other".into(), true)]);
    assert_eq!(server.post(CHAT, &to("tiny")).ok()["choices"], first);
    // By hand.
    server.post("/v1/models/unload", &json!({"model": "tiny"})).ok();
    assert_eq!(names(&server), [("tiny".into(), false), ("other".into(), false)]);
    assert_eq!(server.metric("longrun_live_buffers"), 0.0);
    assert_eq!(server.get("/health").status, 200);
    server.post("/v1/models/load", &json!({"model": "other"})).ok();
    assert_eq!(names(&server), [("tiny".into(), false), ("other".into(), true)]);
    server.post("/v1/models/load", &json!({"model": "nobody"})).error(404);
    server.post("/v1/models/load", &json!({})).error(400);
}

#[test]
fn a_model_that_is_none_sends_nobody_away() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-broken-model");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), b"{\"model_type\": \"llama\"").unwrap();
    let broken = format!("broken={}", folder.display());
    let server = Server::tiny(
        "llama",
        &["--also", &broken, "--also", "gone=/no/such/model", "--max-loaded", "1"],
    );
    let before = server.post(CHAT, &ask("Hello")).ok();
    for name in ["broken", "gone"] {
        let reply = server.post(CHAT, &with(ask("Hello"), json!({ "model": name })));
        assert!(reply.status >= 400, "{name}");
        assert_eq!(names(&server)[0], ("tiny".into(), true));
    }
    assert_eq!(server.post(CHAT, &ask("Hello")).ok()["choices"], before["choices"]);
    // It was never away: what it had read is still there.
    assert_eq!(server.metric("longrun_prefix_hit_total"), 1.0);
}

#[test]
fn models_that_nobody_asks_for_go() {
    let server = Server::tiny("llama", &["--idle-unload", "1"]);
    let before = server.post(CHAT, &ask("Hello")).ok();
    let began = Instant::now();
    while names(&server)[0].1 {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.post(CHAT, &ask("Hello")).ok()["choices"], before["choices"]);
    assert!(names(&server)[0].1);
}

#[test]
fn streams_end_before_the_server_does() {
    let mut server = Server::tiny("llama", &["--context", "20000"]);
    let long = with(ask("Go"), json!({"max_tokens": 3000, "ignore_eos": true}));
    let mut stream = server.stream(CHAT, &long);
    let mut events = vec![stream.next().unwrap()];
    server.terminate();
    while !server.notes().contains("shutting down") {
        std::thread::sleep(Duration::from_millis(5));
    }
    events.extend(stream);
    let told = told(&events);
    assert!(told.done && told.finish.as_deref() == Some("length"));
    assert_eq!(server.wait(), 0, "{}", server.notes());
}

#[test]
fn a_drain_has_an_end() {
    let mut server =
        Server::tiny("llama", &["--context", "200000", "--memory", "512MiB", "--drain", "1"]);
    let long = with(ask("Go"), json!({"max_tokens": 190_000, "ignore_eos": true}));
    let mut stream = server.stream(CHAT, &long);
    stream.next();
    let began = Instant::now();
    server.terminate();
    assert_eq!(server.wait(), 0, "{}", server.notes());
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert!(server.notes().contains("cut off"), "{}", server.notes());
}

#[test]
fn flags_that_make_no_sense_are_told_at_the_start() {
    let run = |flags: &[&str]| {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_longrun"))
            .args(["serve", "--port", "0"])
            .args(flags)
            .output()
            .unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    for (flags, says) in [
        (&["--context", "9999"][..], "--context"),
        (&["--memory", "1KiB"], "memory"),
        (&["--model", "/no/such/model"], "/no/such/model"),
        (&["--lora", "x=/no/such/adapter"], "--lora"),
        (&["--also", "demo=demo"], "demo"),
        (&["--chat-template", "/no/such/file"], "--chat-template"),
        (&["--api-key", ""], "--api-key"),
    ] {
        let (code, notes) = run(flags);
        assert!(code != 0 && notes.contains(says), "{flags:?}: {code}: {notes}");
    }
}
