//! A hub on this machine: the addresses that a download asks for, and whatever a test wants to go wrong.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub from: Option<usize>,
    pub token: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Bytes of the body after which the connection is closed.
    pub cut: Option<usize>,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.into(), value.to_string()));
        self
    }
}

/// The files of a repository: path, content, what its content is called.
pub type Files = Vec<(String, Vec<u8>, String)>;

pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

pub fn file(path: &str, content: &[u8]) -> (String, Vec<u8>, String) {
    (path.into(), content.into(), sha256(content))
}

/// Answers as the hub does for `org/name`.
pub fn honest(files: &Files, asked: &Asked) -> Reply {
    let listing = ["/api/models/org/name/revision/", "/api/models/org/moved/revision/"];
    if listing.iter().any(|prefix| asked.path.starts_with(prefix)) {
        let siblings: Vec<_> = files.iter().map(|f| json!({"rfilename": f.0})).collect();
        let body = json!({"id": "org/name", "sha": COMMIT, "private": false, "siblings": siblings});
        return Reply { status: 200, body: body.to_string().into_bytes(), ..Reply::default() };
    }
    let prefix = format!("/org/name/resolve/{COMMIT}/");
    let found = asked.path.strip_prefix(&prefix).and_then(|p| files.iter().find(|f| f.0 == p));
    let Some((_, content, etag)) = found else {
        return Reply::status(404).header("x-error-code", "EntryNotFound");
    };
    let from = asked.from.unwrap_or(0);
    if from > content.len() {
        return Reply::status(416);
    }
    let reply = Reply {
        status: if asked.from.is_some() { 206 } else { 200 },
        body: content[from..].to_vec(),
        ..Reply::default()
    };
    let range = format!("bytes {from}-{}/{}", content.len().saturating_sub(1), content.len());
    let reply = reply.header("etag", format!("\"{etag}\"")).header("x-repo-commit", COMMIT);
    if asked.from.is_some() { reply.header("content-range", range) } else { reply }
}

pub struct Server {
    pub endpoint: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Serves until the test's process ends.
    pub fn new(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&asked), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &log, &*answer));
            }
        });
        Self { endpoint, asked }
    }

    pub fn of(files: Files) -> Self {
        Self::new(move |asked| honest(&files, asked))
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The methods and ends of paths that were asked for.
    pub fn log(&self) -> Vec<String> {
        let end = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        self.asked().iter().map(|a| format!("{} {}", a.method, end(&a.path))).collect()
    }
}

/// One request, one answer, and the connection is closed.
fn serve(
    stream: TcpStream,
    log: &Mutex<Vec<Asked>>,
    answer: &(dyn Fn(&Asked) -> Reply + Send + Sync),
) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut asked = Asked { method, path, from: None, token: None };
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                asked.from = value.trim().strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok();
            }
            "authorization" => asked.token = Some(value.trim().into()),
            _ => {}
        }
    }
    log.lock().unwrap().push(asked.clone());
    let reply = answer(&asked);
    let mut stream = stream;
    if reply.status == 0 {
        return None;
    }
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    if !reply.headers.iter().any(|(name, _)| name == "content-length") {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    if asked.method != "HEAD" {
        let end = reply.cut.unwrap_or(reply.body.len()).min(reply.body.len());
        stream.write_all(&reply.body[..end]).ok()?;
    }
    stream.flush().ok()
}
