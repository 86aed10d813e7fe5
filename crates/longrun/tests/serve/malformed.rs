//! Requests that are wrong in every way that a few generators think of: none of them ends the server, has an answer
//! that is not the client's fault, or leaves anything behind. `LONGRUN_MALFORMED` is how many.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::openapi;
use crate::server::{Server, ask};

/// A route that takes a body, with a body that is right and the names of its fields.
struct Target {
    path: String,
    valid: Value,
    fields: Vec<String>,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// Whether the answer has to be an answer in the server's own words.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Expect {
    /// The request could be read: JSON, and no fault of the server.
    Reply,
    /// The connection may end, or an answer without a body may come.
    Anything,
}

fn targets(server: &Server) -> Vec<Target> {
    let document = server.get("/openapi.json").ok();
    let all = json!({
        "messages": [{"role": "user", "content": "Once"}, {"role": "assistant", "content": "upon", "tool_calls": []},
            {"role": "user", "content": [{"type": "text", "text": "a time"}]}],
        "prompt": "Once upon", "content": "x", "tokens": [1, 2, 3], "input": "x",
        "max_tokens": 3, "n_predict": 3, "temperature": 0.5, "seed": 1, "stop": ["x"],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "logit_bias": {"5": -1.5}, "stream_options": {"include_usage": true}, "samplers": ["temperature"],
        "chat_template_kwargs": {"enable_thinking": false},
    });
    let mut targets = Vec::new();
    for (path, method) in openapi::operations(&document) {
        if method != "post" {
            continue;
        }
        let forms = openapi::bodies(&document, &path, &method);
        if forms.is_empty() {
            targets.push(Target { path: path.clone(), valid: json!({}), fields: Vec::new() });
        }
        for form in forms {
            let fields: Vec<String> =
                form["properties"].as_object().unwrap().keys().cloned().collect();
            let mut valid = json!({});
            for field in fields.iter().filter(|field| all.get(*field).is_some()) {
                valid[field.as_str()] = all[field.as_str()].clone();
            }
            targets.push(Target { path: path.clone(), valid, fields });
        }
    }
    targets
}

/// A value that is of no use to most fields.
fn strange(random: &mut Random) -> Value {
    let nested = |depth: usize, open: fn(Value) -> Value| (0..depth).fold(json!(1), |v, _| open(v));
    match random.below(16) {
        0 => Value::Null,
        1 => json!(random.next().is_multiple_of(2)),
        2 => json!(-1),
        3 => json!(1e308),
        4 => json!(-1e-320),
        5 => json!(u64::MAX),
        6 => json!(i64::MIN),
        7 => json!(random.next() as f64 / 1e10),
        8 => json!(""),
        9 => json!("\u{0}\u{FFFF}🤗\u{202E}"),
        10 => json!("x".repeat(random.below(3000))),
        11 => json!([]),
        12 => json!({}),
        13 => nested(random.below(100), |v| json!([v])),
        14 => nested(random.below(100), |v| json!({"function": v, "content": [], "role": "user"})),
        _ => json!([{"role": "user", "content": null}, [], "x", 1, {"type": "function"}]),
    }
}

/// Puts a strange value somewhere inside of `value`.
fn disturb(value: &mut Value, random: &mut Random) {
    let deeper = random.below(3) > 0;
    match value {
        Value::Array(all) if deeper && !all.is_empty() => {
            let i = random.below(all.len());
            disturb(&mut all[i], random);
        }
        Value::Object(map) if deeper && !map.is_empty() => {
            let key = map.keys().nth(random.below(map.len())).cloned().unwrap();
            disturb(&mut map[&key], random);
        }
        other => *other = strange(random),
    }
}

/// Changes some bytes.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        match random.below(5) {
            0 if at < bytes.len() => bytes[at] = random.next() as u8,
            1 if at < bytes.len() => _ = bytes.remove(at),
            2 => bytes.insert(at, random.of(b"\"{}[]:,\\\x00\x80\xFF\xED\xA0 9e-.")),
            3 => bytes.truncate(at.max(1)),
            _ => {
                let piece = bytes[..at].to_vec();
                bytes.extend_from_slice(&piece[at.saturating_sub(40)..]);
            }
        }
        if bytes.is_empty() {
            bytes.push(b'{');
        }
    }
}

fn head(path: &str, length: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    )
    .into_bytes()
}

fn whole(path: &str, body: &[u8]) -> Vec<u8> {
    [head(path, &body.len().to_string()), body.to_vec()].concat()
}

/// A wrong request, and what may come of it.
fn wrong(target: &Target, random: &mut Random) -> (Vec<u8>, Expect) {
    let path = target.path.as_str();
    let mut valid = target.valid.clone();
    match random.below(10) {
        0 => ((0..=random.below(300)).map(|_| random.next() as u8).collect(), Expect::Anything),
        1 => {
            let mut request = whole(path, valid.to_string().as_bytes());
            let end = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
            let mut begin: Vec<u8> = request.drain(..end).collect();
            damage(&mut begin, random);
            ([begin, request].concat(), Expect::Anything)
        }
        2 => {
            let lengths = [
                "0",
                "1",
                "7",
                "100000",
                "-1",
                "1e3",
                "99999999999999999999999",
                "",
                "0x10",
                "5, 5",
            ];
            let request = head(path, random.of(&lengths));
            ([request, valid.to_string().into_bytes()].concat(), Expect::Anything)
        }
        3 => {
            let sizes = [
                "zz\r\nx\r\n0\r\n\r\n",
                "5\r\n{}\r\n0\r\n\r\n",
                "ffffffffffffffffff\r\n",
                "2\r\n{}",
                "0\r\n\r\n",
            ];
            let head = String::from_utf8(head(path, "")).unwrap();
            let head = head.replace("Content-Length: ", "Transfer-Encoding: chunked");
            ([head.as_bytes(), random.of(&sizes).as_bytes()].concat(), Expect::Anything)
        }
        4 => {
            let mut body = valid.to_string().into_bytes();
            damage(&mut body, random);
            (whole(path, &body), Expect::Reply)
        }
        5 => {
            let depth = 1 + random.below(200_000);
            let open = random.of(&["[", "{\"a\":", "[{\"messages\":", "{\"prompt\":[", "\"", "-"]);
            (whole(path, open.repeat(depth).as_bytes()), Expect::Reply)
        }
        6 => {
            let digits = "1".repeat(400);
            let numbers =
                ["1e999", "-1e999", &digits, "0.1e-999", "18446744073709551616", "NaN", "1.5"];
            if let Some(field) = target.fields.get(random.below(target.fields.len())) {
                valid[field.as_str()] = json!("@");
            }
            let body = valid.to_string().replace("\"@\"", random.of(&numbers));
            (whole(path, body.as_bytes()), Expect::Reply)
        }
        7 => {
            for _ in 0..=random.below(3) {
                disturb(&mut valid, random);
            }
            (whole(path, valid.to_string().as_bytes()), Expect::Reply)
        }
        _ => {
            if !target.fields.is_empty() && valid.is_object() {
                let field = &target.fields[random.below(target.fields.len())];
                valid[field.as_str()] = strange(random);
            }
            (whole(path, valid.to_string().as_bytes()), Expect::Reply)
        }
    }
}

/// Sends it, slowly at times, and gives all that comes back.
fn send(address: &str, request: &[u8], slowly: bool, expect: Expect) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may have hung up in the middle.
    let parts = if slowly { 3 } else { 1 };
    for part in request.chunks(request.len().div_ceil(parts)) {
        if socket.write_all(part).is_err() {
            break;
        }
        if slowly {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    // What may be half a request ends here; a server need not answer one whose client has hung up.
    if expect == Expect::Anything {
        let _ = socket.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = socket.read(&mut bytes) {
        answer.extend_from_slice(&bytes[..n]);
    }
    answer
}

/// Complains about an answer that is not the client's fault.
fn check(request: &[u8], answer: &[u8], expect: Expect, what: &str) {
    let answer = String::from_utf8_lossy(answer);
    let request = String::from_utf8_lossy(&request[..request.len().min(1500)]);
    let status =
        answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse::<u16>().ok());
    let Some(status) = status else {
        assert!(expect == Expect::Anything, "{what}: no answer to {request}");
        return;
    };
    let fault = status >= 500 && status != 501;
    assert!(!fault, "{what}: {answer}\nto {request}");
    if expect == Expect::Reply {
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let streams = answer.contains("text/event-stream");
        let value: Value =
            if streams { json!({}) } else { serde_json::from_str(body).unwrap_or_default() };
        let told = status < 300 || value["error"]["message"].is_string();
        assert!(!value.is_null() && told, "{what}: {answer}\nto {request}");
    }
}

#[test]
fn wrong_requests_leave_nothing_behind() {
    let count =
        std::env::var("LONGRUN_MALFORMED").ok().and_then(|n| n.parse().ok()).unwrap_or(1000);
    let flags =
        ["--context", "96", "--max-rows", "4", "--log-level", "error", "--max-body", "1000000"];
    let server = Server::demo(&flags);
    let targets = targets(&server);
    assert!(targets.len() > 15);
    let said =
        || server.post("/v1/chat/completions", &ask("Once upon a time")).ok()["choices"].clone();
    let before = said();
    server.idle();
    let base = server.metric("longrun_live_buffers");
    assert!(base > 0.0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (server, targets) = (&server, &targets);
            scope.spawn(move || {
                for i in (thread..count).step_by(4) {
                    let mut random = Random(i as u64);
                    let target = &targets[random.below(targets.len())];
                    let (request, expect) = wrong(target, &mut random);
                    let slowly = random.below(20) == 0;
                    let answer = send(&server.address, &request, slowly, expect);
                    check(&request, &answer, expect, &format!("request {i}"));
                }
            });
        }
    });
    server.get("/health").ok();
    server.idle();
    assert_eq!(server.metric("longrun_live_buffers"), base);
    assert_eq!(said(), before);
    assert!(!server.notes().contains("panicked"), "{}", server.notes());
}
