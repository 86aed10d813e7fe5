//! A server in a process of its own, and a client that sees every byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

/// A running `longrun serve`. It is killed when it goes.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    notes: Arc<Mutex<String>>,
    /// Takes the notes down until their end.
    reader: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts one with the demo model.
    pub(crate) fn demo(flags: &[&str]) -> Self {
        Self::start(&or_else(&["--memory", "64MiB"], flags))
    }

    /// Starts one with a tiny model of a family, which speaks bytes.
    pub(crate) fn tiny(family: &str, flags: &[&str]) -> Self {
        let model = format!("tiny:{family}");
        let given =
            ["--model", &model, "--alias", "tiny", "--context", "4096", "--memory", "64MiB"];
        Self::start(&or_else(&given, flags))
    }

    /// As [`tiny`](Self::tiny), in a shell that has run `before`.
    pub(crate) fn limited(before: &str, family: &str, flags: &[&str]) -> Self {
        let model = format!("tiny:{family}");
        let given =
            ["--model", &model, "--alias", "tiny", "--context", "4096", "--memory", "64MiB"];
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("{before} exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_longrun")]);
        Self::run(shell, &or_else(&given, flags))
    }

    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::run(Command::new(env!("CARGO_BIN_EXE_longrun")), flags)
    }

    fn run(mut command: Command, flags: &[&str]) -> Self {
        let mut child = command
            .args(["serve", "--port", "0"])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let notes = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let kept = Arc::clone(&notes);
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut kept = kept.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit_once("http://").map(|(_, address)| address.to_owned());
        let address = address.unwrap_or_default();
        let server = Self { child, address, notes, reader: Some(reader) };
        assert!(!server.address.is_empty(), "it did not start: {}", server.notes());
        server
    }

    /// What it wrote to standard error so far.
    pub(crate) fn notes(&self) -> String {
        self.notes.lock().unwrap().clone()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Bytes that are resident.
    pub(crate) fn rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Tells it to end, as `kill` does.
    pub(crate) fn terminate(&self) {
        let killed = Command::new("kill").arg(self.pid().to_string()).status().unwrap();
        assert!(killed.success());
    }

    /// Waits for its end, and for the last of its notes.
    pub(crate) fn wait(&mut self) -> i32 {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        code
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"").reply()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.send("POST", path, &[], body.to_string().as_bytes()).reply()
    }

    /// The events of a request that streams.
    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<Event> {
        let stream = self.stream(path, body);
        if stream.status != 200 {
            panic!("{}", stream.reply().body);
        }
        stream.collect()
    }

    pub(crate) fn stream(&self, path: &str, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = true.into();
        self.send("POST", path, &[], body.to_string().as_bytes())
    }

    /// Sends a request and reads the head of the response.
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Stream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length")) {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        head += "Content-Type: application/json\r\nConnection: close\r\n";
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        head += "\r\n";
        socket.write_all(head.as_bytes()).unwrap();
        // A server that has refused the head may have closed already.
        let _ = socket.write_all(body);
        Stream::new(socket)
    }

    /// A number of `/metrics`: the sum over the lines that begin with `name`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Waits until nothing is in service.
    pub(crate) fn idle(&self) {
        for _ in 0..600 {
            if self.metric("longrun_rows_running") + self.metric("longrun_rows_waiting") == 0.0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("rows are left: {}", self.get("/metrics").body);
    }
}

/// `flags`, and those pairs of `given` whose flags are not among them.
fn or_else<'a>(given: &[&'a str], flags: &[&'a str]) -> Vec<&'a str> {
    let missing = given.chunks(2).filter(|pair| !flags.contains(&pair[0]));
    missing.flatten().chain(flags).copied().collect()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A whole response.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The body of an answer that went well.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    /// The error object, after a look at its shape.
    pub(crate) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        error
    }
}

/// A server-sent event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) name: Option<String>,
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|e| panic!("{e}: {}", self.data))
    }
}

/// A response that is being read. Dropping it hangs up.
pub(crate) struct Stream {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    chunked: bool,
    buffer: Vec<u8>,
    /// Comments that were seen.
    pub(crate) comments: usize,
}

impl Stream {
    fn new(socket: TcpStream) -> Self {
        let mut reader = BufReader::new(socket);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {line:?}"));
        let mut headers = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let chunked = headers.iter().any(|(n, v)| {
            n.eq_ignore_ascii_case("transfer-encoding") && v.eq_ignore_ascii_case("chunked")
        });
        Self { status, headers, reader, chunked, buffer: Vec::new(), comments: 0 }
    }

    /// Some more bytes; false at the end.
    fn more(&mut self) -> bool {
        if !self.chunked {
            let before = self.buffer.len();
            let mut bytes = [0; 4096];
            let n = self.reader.read(&mut bytes).unwrap_or(0);
            self.buffer.extend_from_slice(&bytes[..n]);
            return self.buffer.len() > before;
        }
        let mut line = String::new();
        if self.reader.read_line(&mut line).unwrap_or(0) == 0 {
            return false;
        }
        let size = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut bytes = vec![0; size + 2];
        if self.reader.read_exact(&mut bytes).is_err() || size == 0 {
            return false;
        }
        self.buffer.extend_from_slice(&bytes[..size]);
        true
    }

    /// Waits until there is a comment. False if something else comes.
    pub(crate) fn comment(&mut self) -> bool {
        while !self.buffer.windows(2).any(|two| two == b"\n\n") {
            if !self.more() {
                return false;
            }
        }
        self.buffer.starts_with(b":")
    }

    /// The rest of it.
    pub(crate) fn reply(mut self) -> Reply {
        while self.more() {}
        let body = String::from_utf8(self.buffer).unwrap();
        Reply { status: self.status, headers: self.headers, body }
    }
}

impl Iterator for Stream {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event = String::from_utf8(self.buffer.drain(..end + 2).collect()).unwrap();
                let (mut name, mut data) = (None, Vec::new());
                for line in event.lines() {
                    match line.split_once(':').map(|(field, value)| (field, value.trim_start())) {
                        Some(("", _)) => self.comments += 1,
                        Some(("event", value)) => name = Some(value.to_owned()),
                        Some(("data", value)) => data.push(value.to_owned()),
                        _ => assert!(line.is_empty(), "{line:?}"),
                    }
                }
                if !data.is_empty() {
                    return Some(Event { name, data: data.join("\n") });
                }
            } else if !self.more() {
                return None;
            }
        }
    }
}

/// What a chat's stream says, put together as its whole would be.
pub(crate) struct Told {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    /// Names and arguments.
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) finish: Option<String>,
    pub(crate) usage: Value,
    pub(crate) done: bool,
}

/// Puts the first choice of a stream together.
pub(crate) fn told(events: &[Event]) -> Told {
    let mut told = Told {
        content: String::new(),
        reasoning: String::new(),
        calls: Vec::new(),
        finish: None,
        usage: Value::Null,
        done: false,
    };
    for event in events {
        assert!(!told.done, "something came after the end: {event:?}");
        if event.data == "[DONE]" {
            told.done = true;
            continue;
        }
        let chunk = event.json();
        assert!(chunk.get("error").is_none(), "{chunk}");
        if !chunk["usage"].is_null() {
            told.usage = chunk["usage"].clone();
        }
        let choice = &chunk["choices"][0];
        let text = |name: &str| choice["delta"][name].as_str().unwrap_or_default().to_owned();
        told.content += &text("content");
        told.reasoning += &text("reasoning_content");
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if let Some(name) = call["function"]["name"].as_str() {
                assert_eq!(index, told.calls.len());
                assert!(call["id"].is_string());
                told.calls.push((name.to_owned(), String::new()));
            }
            told.calls[index].1 += call["function"]["arguments"].as_str().unwrap_or_default();
        }
        if let Some(finish) = choice["finish_reason"].as_str() {
            assert!(told.finish.is_none(), "it ended twice");
            told.finish = Some(finish.to_owned());
        }
    }
    told
}

/// A conversation of one message.
pub(crate) fn ask(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0})
}

/// `body` with the fields of `more`.
pub(crate) fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}
