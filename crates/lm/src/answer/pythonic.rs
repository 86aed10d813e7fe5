//! Calls as expressions: `[f(a=1, b="x"), g()]`, and Gemma's `call:f{a:1,b:<|"|>x<|"|>}`.
//!
//! Owns the punctuation of both. Refuses arguments without names.

use super::json::quoted;
use super::literal::{Style, ValueEnd, to_json};
use super::named::is_name;
use super::sink::{Flow, Sink};
use super::window::{Seen, Window};

/// Bytes of a name or key.
const LONGEST: usize = 256;
const FENCE: &str = "```";
const FENCE_START: &str = "```python";
const CALL: &str = "call:";

#[derive(Clone, Debug)]
enum At {
    /// Before the list, or a call.
    Start,
    Name,
    /// Before a key, or the end of the call.
    Key {
        first: bool,
    },
    Value(ValueEnd),
    /// Behind a call.
    Next,
}

/// Reads calls up to what is none.
#[derive(Clone, Debug)]
pub(super) struct Expressions {
    style: Style,
    bare: bool,
    at: At,
    in_list: bool,
    called: bool,
}

impl Expressions {
    pub(super) fn new(style: Style, bare: bool) -> Self {
        Self { style, bare, at: At::Start, in_list: false, called: false }
    }

    pub(super) fn step(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Flow {
        loop {
            let flow = match &mut self.at {
                At::Start => self.start(window),
                At::Name => self.name(window, sink),
                At::Key { .. } => self.key(window, sink),
                At::Value(_) => self.value(window, sink),
                At::Next => self.next(window),
            };
            if let Some(flow) = flow {
                return flow;
            }
        }
    }

    /// (between name and arguments, between key and value, behind the arguments)
    fn signs(&self) -> (char, char, char) {
        match self.style {
            Style::Python => ('(', '=', ')'),
            Style::Marked(_) => ('{', ':', '}'),
        }
    }

    fn start(&mut self, window: &mut Window) -> Option<Flow> {
        window.skip(window.blank(0));
        if self.style != Style::Python {
            return match window.reads(0, CALL) {
                Seen::Maybe => Some(Flow::More),
                Seen::No => Some(Flow::Bad),
                Seen::Yes => {
                    window.skip(CALL.len());
                    self.at = At::Name;
                    None
                }
            };
        }
        match window.rest().chars().next() {
            None => return Some(Flow::More),
            Some('`') => match window.reads(0, FENCE_START) {
                Seen::Maybe => return Some(Flow::More),
                Seen::No => return Some(Flow::Bad),
                Seen::Yes => window.skip(FENCE_START.len()),
            },
            Some('[') if !self.in_list => {
                self.in_list = true;
                window.skip(1);
            }
            Some(_) => self.at = At::Name,
        }
        None
    }

    /// A word at the head up to `sign`: its bytes, and those up to behind the sign.
    fn word(window: &Window, sign: char) -> Result<(usize, usize), Flow> {
        let rest = window.rest();
        let end = rest.find(|c: char| !is_name(c) || c == sign).unwrap_or(rest.len());
        let blank = window.blank(end);
        match rest[end + blank..].chars().next() {
            _ if end > LONGEST || blank > LONGEST => Err(Flow::Bad),
            None => Err(Flow::More),
            Some(c) if c == sign && end > 0 => Ok((end, end + blank + c.len_utf8())),
            Some(_) => Err(Flow::Bad),
        }
    }

    fn name(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let (open, ..) = self.signs();
        let (name, all) = match Self::word(window, open) {
            Ok(found) => found,
            Err(Flow::Bad) if self.called => return Some(Flow::Done),
            Err(flow) => return Some(flow),
        };
        let name = window.rest()[..name].to_owned();
        if self.bare && !sink.knows(&name) {
            return Some(Flow::Bad);
        }
        window.take(all);
        sink.start(&name);
        sink.arguments("{");
        self.called = true;
        self.at = At::Key { first: true };
        None
    }

    fn key(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let At::Key { first } = self.at else { return None };
        let (_, assign, close) = self.signs();
        window.skip(window.blank(0));
        match window.rest().chars().next() {
            None => return Some(Flow::More),
            Some(c) if c == close => {
                window.take(c.len_utf8());
                sink.arguments("}");
                sink.end(true);
                self.at = At::Next;
                return None;
            }
            Some(',') if !first => {
                window.skip(1);
                return None;
            }
            Some(_) => {}
        }
        let (key, all) = match Self::word(window, assign) {
            Ok(found) => found,
            Err(Flow::Bad) => return Some(Flow::Broken),
            Err(flow) => return Some(flow),
        };
        let key = quoted(&window.rest()[..key]);
        window.take(all);
        sink.arguments(if first { "" } else { ", " });
        sink.arguments(&key);
        sink.arguments(": ");
        self.at = At::Value(ValueEnd::default());
        None
    }

    fn value(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let At::Value(end) = &mut self.at else { return None };
        let Some(bytes) = end.find(window, self.style) else { return Some(Flow::More) };
        let Some(json) = to_json(&window.rest()[..bytes], self.style) else {
            return Some(Flow::Broken);
        };
        sink.arguments(&json);
        window.take(bytes);
        self.at = At::Key { first: false };
        None
    }

    fn next(&mut self, window: &mut Window) -> Option<Flow> {
        if self.style != Style::Python {
            return Some(Flow::Done);
        }
        let blank = window.blank(0);
        match window.rest()[blank..].chars().next() {
            None => return Some(Flow::More),
            Some(',' | ';') => window.take(blank + 1),
            Some(']') if self.in_list => {
                window.take(blank + 1);
                return Some(Flow::Done);
            }
            Some('`') => match window.reads(blank, FENCE) {
                Seen::Maybe => return Some(Flow::More),
                Seen::No => return Some(Flow::Done),
                Seen::Yes => {
                    window.take(blank + FENCE.len());
                    return Some(Flow::Done);
                }
            },
            // On lines of their own, calls need no comma.
            Some(c) if is_name(c) && (self.in_list || !self.bare) => {
                self.at = At::Name;
                // Not committed: what is no call is text of the answer, its space with it.
                if !matches!(Self::word(window, '('), Err(Flow::Bad)) && blank == 0 {
                    return None;
                }
                return self.on_its_line(window, blank);
            }
            Some(_) => return Some(Flow::Done),
        }
        None
    }

    /// Whether a name and its bracket follow `blank` bytes of space.
    fn on_its_line(&mut self, window: &mut Window, blank: usize) -> Option<Flow> {
        let rest = &window.rest()[blank..];
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        match rest[end..].chars().next() {
            None if end <= LONGEST => {
                self.at = At::Next;
                Some(Flow::More)
            }
            Some('(') if end <= LONGEST => {
                window.take(blank);
                None
            }
            _ => Some(Flow::Done),
        }
    }
}
