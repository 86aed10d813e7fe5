//! `longrun chat` by scripts: with a model in its own process and with a server, the same conversation.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;

use serde_json::Value;

use crate::server::Server;

/// What a conversation came to.
struct Said {
    code: i32,
    out: String,
    /// Lines of figures.
    figures: Vec<String>,
    notes: String,
}

fn start(flags: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_longrun"))
        .arg("chat")
        .args(flags)
        .env_remove("LONGRUN_API_KEY")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn end(child: Child) -> Said {
    let output = child.wait_with_output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    let figures = notes.lines().filter(|line| line.starts_with('[')).map(str::to_owned);
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        figures: figures.collect(),
        notes,
    }
}

fn chat(flags: &[&str], script: &str) -> Said {
    let mut child = start(flags);
    // One that refuses its flags does not read.
    let _ = child.stdin.take().unwrap().write_all(script.as_bytes());
    end(child)
}

/// With the demo model, which is greedy so.
fn demo(script: &str) -> Said {
    let said = chat(&["--memory", "64MiB", "--temp", "0", "--max-tokens", "24"], script);
    assert_eq!(said.code, 0, "{}", said.notes);
    said
}

/// Prompt tokens and those from the cache.
fn prompt(figures: &str) -> (usize, usize) {
    let rest = figures.split_once("prompt ").unwrap().1;
    let (prompt, rest) = rest.split_once(" tokens, ").unwrap();
    (prompt.parse().unwrap(), rest.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn a_conversation_goes_on_from_what_was_read() {
    let said = demo("Once upon a time\nThe next day\n");
    let [first, second] = &said.figures[..] else { panic!("{}", said.notes) };
    assert!(first.starts_with("[24 tokens; ") && first.contains("tokens/s"), "{first}");
    assert_eq!(prompt(first).1, 0);
    let (all, cached) = prompt(second);
    assert!(cached >= 24 && cached < all, "{second}");
    assert!(!said.out.contains('\x1b') && !said.notes.contains('\x1b'), "colours in a pipe");
    // Families whose state can't be cut go on from snapshots.
    for family in ["llama", "qwen3_next"] {
        let model = format!("tiny:{family}");
        let flags =
            ["--model", &model, "--memory", "64MiB", "--context", "2048", "--max-tokens", "20"];
        let said = chat(&flags, "Tell me of the sea, and of the boats that are on it\nMore\n");
        assert_eq!(said.code, 0, "{}", said.notes);
        let (all, cached) = prompt(&said.figures[1]);
        assert!(cached > 10 && cached < all, "{family}: {}", said.figures[1]);
    }
}

#[test]
fn a_server_says_the_same() {
    let script = "Once upon a time\n/set max_tokens 10\nThe next day\n/retry\n/stats\n";
    let here = demo(script);
    let server = Server::demo(&["--api-key", "secret"]);
    let urls = [format!("http://{}", server.address), format!("http://{}/v1/", server.address)];
    for url in &urls {
        let flags = ["--server", url, "--api-key", "secret", "--temp", "0", "--max-tokens", "24"];
        let there = chat(&flags, script);
        // What is in the cache depends on who came before.
        let text = |out: &str| out.split_once(" to ").map(|(text, _)| text.to_owned());
        assert_eq!((there.code, text(&there.out)), (0, text(&here.out)), "{}", there.notes);
    }
    assert!(here.out.contains("4 messages; 3 answers of 44 tokens"), "{}", here.out);
    let wrong = chat(&["--server", &urls[0], "--api-key", "wrong"], "x\n");
    assert_eq!(wrong.code, 2);
    assert!(wrong.notes.contains("Incorrect API key"), "{}", wrong.notes);
    let other = ["--server", &urls[0], "--api-key", "secret", "--model", "gpt-4"];
    assert!(chat(&other, "x\n").notes.contains("gpt-4"));
    assert_eq!(chat(&["--server", "http://127.0.0.1:1"], "x\n").code, 6);
    assert_eq!(chat(&["--server", "nowhere"], "x\n").code, 2);
}

#[test]
fn commands_act() {
    let file = std::env::temp_dir().join(format!("longrun-talk-{}.json", std::process::id()));
    let save = format!("/save {}\n", file.display());
    let read = || serde_json::from_slice::<Value>(&std::fs::read(&file).unwrap()).unwrap();
    let begin = "/system You tell stories.\n\"\"\"\nOnce upon\na time\n\"\"\"\n";
    let plain = demo(&format!("{begin}{save}"));
    let saved = read();
    assert_eq!(saved["system"], "You tell stories.");
    assert_eq!(saved["messages"][0]["content"], "Once upon\na time");
    let answer = saved["messages"][1]["content"].as_str().unwrap();
    assert_eq!(plain.out, format!("{answer}\n"));
    // Undone, cleared and asked again, it is the same answer.
    let again = demo(&format!("x\n/undo\n{begin}y\n/undo\n/retry\n{save}"));
    assert_eq!(read(), saved);
    assert!(again.out.ends_with(&plain.out), "{}", again.out);
    demo(&format!("{begin}/clear\n{save}"));
    assert_eq!(read()["messages"].as_array().map(Vec::len), Some(0));
    assert_eq!(read()["system"], "You tell stories.");
    // A conversation that was saved goes on.
    demo(&format!("{begin}{save}"));
    let on = demo(&format!("{begin}And then\n"));
    let loaded = demo(&format!("/load {}\nAnd then\n", file.display()));
    assert!(on.out.ends_with(&loaded.out), "{} {}", on.out, loaded.out);
    let _ = std::fs::remove_file(&file);
    assert!(demo("/help\n").out.contains("/retry"));
    assert_eq!(demo("/exit\nOnce\n").out, "");
    assert!(demo("/set top_k 3\n/set\n").out.contains("top_k 3\n"));
}

#[test]
fn a_script_that_goes_wrong_ends() {
    let flags = ["--memory", "64MiB", "--max-tokens", "4"];
    for (script, words) in [
        ("/frobnicate\nOnce\n", "/help"),
        ("/retry\nOnce\n", "nothing was said"),
        ("/set temperature hot\nOnce\n", "temperature"),
        ("/load nowhere.json\nOnce\n", "nowhere.json"),
        ("/set max_tokens 5000\nOnce\n", "1024"),
    ] {
        let said = chat(&flags, script);
        assert!((2..=3).contains(&said.code), "{script:?}: {} {}", said.code, said.notes);
        assert!(said.notes.contains(words), "{script:?}: {}", said.notes);
        assert_eq!(said.out.trim(), "", "{script:?}");
    }
}

#[test]
fn an_interrupt_ends_an_answer_and_not_the_conversation() {
    let flags = ["--model", "tiny:llama", "--memory", "64MiB", "--context", "4096", "--temp", "0"];
    let server = Server::tiny("llama", &[]);
    let url = format!("http://{}", server.address);
    let there = ["--server", &url, "--temp", "0"];
    for flags in [&flags[..], &there[..]] {
        let mut child = start(flags);
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        writeln!(stdin, "Go on and on").unwrap();
        let mut begun = [0; 64];
        std::io::Read::read_exact(&mut stdout, &mut begun).unwrap();
        interrupt(&child);
        // The next message is read when the answer is over.
        stdin.write_all(b"/set max_tokens 5\nAnd you\n/stats\n").unwrap();
        drop(stdin);
        // It may begin within a letter.
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut stdout, &mut rest).unwrap();
        let rest = String::from_utf8_lossy(&rest);
        let said = end(child);
        assert_eq!(said.code, 0, "{}", said.notes);
        assert!(said.figures[0].contains("stopped"), "{}", said.notes);
        assert!(said.figures[1].starts_with("[5 tokens; "), "{}", said.notes);
        assert!(rest.contains("4 messages; 2 answers"), "{rest}");
    }
    server.idle();
    // When nothing is being said it ends the program.
    let mut child = start(&flags);
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdin.write_all(b"/help\n").unwrap();
    let mut begun = [0; 16];
    std::io::Read::read_exact(&mut stdout, &mut begun).unwrap();
    interrupt(&child);
    assert_eq!(end(child).code, 130);
}

/// The same at a terminal, which the program `script` makes.
#[test]
fn at_a_terminal_too() {
    let binary = env!("CARGO_BIN_EXE_longrun");
    let flags = "--model tiny:llama --memory 64MiB --context 4096 --temp 0";
    // A shell that stays in between would be ended by the Ctrl-C of an answer, once the program has ended well.
    let command = format!("exec {binary} chat {flags}");
    let started = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = started else {
        eprintln!("script is not there: the terminal is not tried");
        return;
    };
    let mut stdin = child.stdin.take().unwrap();
    let mut screen = Screen { terminal: child.stdout.take().unwrap(), seen: String::new() };
    let mut wait = |words: &str| screen.wait(words);
    // A terminal that says nothing more is a failure, not a long wait.
    let id = child.id().to_string();
    let (done, waits) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        if waits.recv_timeout(std::time::Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout)
        {
            let _ = Command::new("kill").arg(id).status();
        }
    });
    wait("> ");
    stdin.write_all(b"Go on and on\r").unwrap();
    wait("on and on");
    screen.more(200);
    stdin.write_all(b"\x03").unwrap();
    let mut wait = |words: &str| screen.wait(words);
    let answer = wait(" tokens; stopped; ");
    assert!(answer.contains("\x1b[2m["), "figures are dim: {answer}");
    wait("> ");
    // The arrow brings the message back, and Ctrl-C leaves the line, not the program.
    stdin.write_all(b"\x1b[A").unwrap();
    wait("on and on");
    stdin.write_all(b"\x03").unwrap();
    wait("> ");
    stdin.write_all(b"/stats\r").unwrap();
    wait("2 messages; 1 answers");
    // Between two lines the terminal reads for itself and would take Ctrl-D for its own.
    wait("> ");
    stdin.write_all(b"\x04").unwrap();
    let status = child.wait().unwrap();
    drop(done);
    assert!(status.success(), "{status}; it showed {:?}", screen.rest());
}

/// What a terminal shows.
struct Screen {
    terminal: std::process::ChildStdout,
    /// What was not waited for yet.
    seen: String,
}

impl Screen {
    fn read(&mut self, why: &str) {
        let mut bytes = [0; 4096];
        let n = std::io::Read::read(&mut self.terminal, &mut bytes).unwrap();
        assert!(n > 0, "no {why} in {}", self.seen);
        self.seen += &String::from_utf8_lossy(&bytes[..n]);
    }

    /// Takes what comes up to these words.
    fn wait(&mut self, words: &str) -> String {
        while !self.seen.contains(words) {
            self.read(words);
        }
        let end = self.seen.find(words).unwrap() + words.len();
        self.seen.drain(..end).collect()
    }

    /// What else it shows until its end.
    fn rest(mut self) -> String {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut self.terminal, &mut bytes).unwrap();
        self.seen + &String::from_utf8_lossy(&bytes)
    }

    /// Waits until there is some more, whatever it is.
    fn more(&mut self, bytes: usize) {
        while self.seen.len() < bytes {
            self.read("more");
        }
    }
}

fn interrupt(child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
}
