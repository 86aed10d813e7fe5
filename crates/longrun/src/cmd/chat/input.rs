//! Where messages come from: lines of a terminal, which can be edited, or lines of a script.
//!
//! Owns what makes several lines one message: a backslash at the end of a line, or three quotes before and after.

use std::io::{BufRead, IsTerminal};

use longrun_lm::{Error, Kind, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::runtime::Runtime;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc::{self, UnboundedReceiver};

const QUOTES: &str = "\"\"\"";

/// What somebody has typed.
pub(super) enum Typed {
    Text(String),
    /// Ctrl-C, when nothing was being said.
    Interrupted,
    End,
}

enum Line {
    Text(String),
    /// What was typed of it is dropped.
    Dropped,
    Interrupted,
    End,
}

pub(super) enum Input {
    Terminal(Box<DefaultEditor>),
    Script(UnboundedReceiver<std::io::Result<String>>),
}

impl Input {
    pub(super) fn new() -> Result<Self> {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            let editor = DefaultEditor::new().map_err(|e| broken(&e))?;
            return Ok(Self::Terminal(Box::new(editor)));
        }
        // Reading can't be left off, so it has a thread to wait in.
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let last = line.is_err();
                if sender.send(line).is_err() || last {
                    return;
                }
            }
        });
        Ok(Self::Script(lines))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// The next message, of however many lines.
    pub(super) fn next(&mut self, runtime: &Runtime, interrupts: &mut Signal) -> Result<Typed> {
        let mut joined = Joined::default();
        loop {
            let prompt = if joined.is_begun() { "... " } else { "> " };
            match self.line(prompt, runtime, interrupts)? {
                Line::Text(line) => {
                    if let Some(text) = joined.push(&line) {
                        self.remember(&text);
                        return Ok(Typed::Text(text));
                    }
                }
                Line::Dropped => joined = Joined::default(),
                Line::Interrupted => return Ok(Typed::Interrupted),
                Line::End => {
                    return Ok(joined.finish().map_or(Typed::End, Typed::Text));
                }
            }
        }
    }

    fn line(&mut self, prompt: &str, runtime: &Runtime, interrupts: &mut Signal) -> Result<Line> {
        match self {
            Self::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                // A signal is a Ctrl-C that has ended an answer already.
                Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Line::Dropped),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(broken(&error)),
            },
            Self::Script(lines) => runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = interrupts.recv() => Ok(Line::Interrupted),
                    line = lines.recv() => match line {
                        Some(Ok(line)) => Ok(Line::Text(line)),
                        Some(Err(error)) => Err(broken(&error)),
                        None => Ok(Line::End),
                    },
                }
            }),
        }
    }

    /// What the arrow keys bring back.
    fn remember(&mut self, text: &str) {
        if let Self::Terminal(editor) = self
            && !text.trim().is_empty()
        {
            // A history that is full or off loses a line, and that is all.
            let _ = editor.add_history_entry(text);
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> Error {
    Error::new(Kind::Device, format!("standard input: {error}"))
}

/// Lines on their way to being a message.
#[derive(Default)]
struct Joined {
    lines: Vec<String>,
    is_quoted: bool,
}

impl Joined {
    fn is_begun(&self) -> bool {
        self.is_quoted || !self.lines.is_empty()
    }

    /// Takes a line. Gives the message if that was its last.
    fn push(&mut self, line: &str) -> Option<String> {
        let mut line = line.strip_suffix('\r').unwrap_or(line);
        if !self.is_begun()
            && let Some(rest) = line.trim_start().strip_prefix(QUOTES)
        {
            self.is_quoted = true;
            line = rest;
            if line.is_empty() {
                return None;
            }
        }
        if self.is_quoted {
            let Some(last) = line.trim_end().strip_suffix(QUOTES) else {
                self.lines.push(line.to_owned());
                return None;
            };
            if !last.is_empty() {
                self.lines.push(last.to_owned());
            }
            return Some(self.take());
        }
        if let Some(begun) = line.strip_suffix('\\') {
            self.lines.push(begun.to_owned());
            return None;
        }
        self.lines.push(line.to_owned());
        Some(self.take())
    }

    /// What is there when no more lines come.
    fn finish(mut self) -> Option<String> {
        (!self.lines.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> String {
        self.is_quoted = false;
        std::mem::take(&mut self.lines).join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(script: &str) -> Vec<String> {
        let mut joined = Joined::default();
        let mut found: Vec<String> = script.lines().filter_map(|line| joined.push(line)).collect();
        found.extend(joined.finish());
        found
    }

    #[test]
    fn lines_are_joined() {
        for (script, wanted) in [
            ("a\nb", &["a", "b"][..]),
            ("a\\\nb\\\nc\nd", &["a\nb\nc", "d"]),
            ("\"\"\"\na\n\nb\\\n\"\"\"\nc", &["a\n\nb\\", "c"]),
            ("\"\"\"a\nb\"\"\"", &["a\nb"]),
            ("\"\"\"a\"\"\"\nb", &["a", "b"]),
            ("\"\"\"\nleft open", &["left open"]),
            ("left open\\", &["left open"]),
            ("a\r\nb", &["a", "b"]),
            ("", &[]),
        ] {
            assert_eq!(messages(script), wanted, "{script:?}");
        }
    }
}
