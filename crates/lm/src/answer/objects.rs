//! Calls as JSON objects with a name and arguments, alone or in a list.
//!
//! Owns the keys that publishers use, in any order. Refuses an object without a name.

use super::json::{Fed, Scanner};
use super::sink::{Flow, Sink, stream_object};
use super::window::Window;

/// How an object names its tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// `{"name": .., "arguments": ..}` and its relatives.
    Named,
    /// `{"the_tool": {..}}`
    Keyed,
}

#[derive(Clone, Debug)]
enum At {
    /// Before an object, or between those of a list.
    Element,
    /// Within an object, before a key or its end.
    Key,
    /// A key or value that is read whole: its text so far.
    Text { scan: Scanner, text: String, key: bool },
    /// Before the value of `key`.
    Value,
    /// Within arguments that leave as they come.
    Stream(Scanner),
}

/// Reads `{..}` or `[{..}, {..}]`.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    keys: Keys,
    /// No marker says that this is a call: only a known tool is one.
    bare: bool,
    at: At,
    in_list: bool,
    /// Within the object of `"function"`.
    nested: bool,
    key: String,
    name: Option<String>,
    /// Arguments that came before the name.
    held: Option<String>,
    called: bool,
}

impl Objects {
    pub(super) fn new(keys: Keys, bare: bool) -> Self {
        Self {
            keys,
            bare,
            at: At::Element,
            in_list: false,
            nested: false,
            key: String::new(),
            name: None,
            held: None,
            called: false,
        }
    }

    pub(super) fn step(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Flow {
        loop {
            let flow = match &mut self.at {
                At::Element => self.element(window),
                At::Key => self.before_key(window, sink),
                At::Text { .. } => self.text(window, sink),
                At::Value => self.before_value(window, sink),
                At::Stream(scan) => match stream_object(scan, window, sink) {
                    Flow::Done => {
                        self.called = true;
                        self.at = At::Key;
                        None
                    }
                    flow => Some(flow),
                },
            };
            if let Some(flow) = flow {
                return flow;
            }
        }
    }

    /// The next character that is no space; it stays unread.
    fn peek(window: &mut Window) -> Option<char> {
        window.skip(window.blank(0));
        window.rest().chars().next()
    }

    fn element(&mut self, window: &mut Window) -> Option<Flow> {
        let c = match Self::peek(window) {
            None => return Some(Flow::More),
            Some(c) => c,
        };
        match c {
            '[' if !self.in_list => self.in_list = true,
            // What stands between calls that are said is no text of the answer.
            ',' if self.in_list && self.called => {
                window.take(1);
                return None;
            }
            ',' if self.in_list => {}
            ']' if self.in_list => {
                window.skip(1);
                return Some(Flow::Done);
            }
            '{' => {
                self.at = At::Key;
                (self.name, self.held, self.called) = (None, None, false);
            }
            _ => return Some(Flow::Bad),
        }
        window.skip(1);
        None
    }

    fn before_key(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        match Self::peek(window) {
            None => return Some(Flow::More),
            Some(',') => window.skip(1),
            Some('"') => {
                self.at = At::Text { scan: Scanner::new(), text: String::new(), key: true };
            }
            Some('}') if self.nested => {
                window.skip(1);
                self.nested = false;
            }
            Some('}') => return self.object_end(window, sink),
            Some(_) if self.called => return Some(self.after_call(window)),
            Some(_) => return Some(Flow::Bad),
        }
        None
    }

    /// The object lacks its end, and its call is said.
    fn after_call(&mut self, window: &mut Window) -> Flow {
        window.commit();
        Flow::Done
    }

    fn object_end(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        if !self.called {
            let Some(name) = &self.name else { return Some(Flow::Bad) };
            sink.start(name);
            sink.arguments("{}");
            sink.end(true);
        }
        window.take(1);
        self.at = At::Element;
        if self.in_list { None } else { Some(Flow::Done) }
    }

    fn text(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let At::Text { scan, text, key } = &mut self.at else { return None };
        let (mut bytes, mut whole) = (0, false);
        for c in window.rest().chars() {
            match scan.feed(c) {
                None => {
                    window.skip(bytes);
                    return Some(if self.called { self.after_call(window) } else { Flow::Bad });
                }
                Some(Fed::Behind) => {
                    whole = true;
                    break;
                }
                Some(fed) => {
                    text.push(c);
                    bytes += c.len_utf8();
                    if fed == Fed::Last {
                        whole = true;
                        break;
                    }
                }
            }
        }
        let (text, key) = if whole { (std::mem::take(text), *key) } else { (String::new(), false) };
        window.skip(bytes);
        match (whole, key) {
            (false, _) => Some(Flow::More),
            (true, true) => self.key_read(&text, window),
            (true, false) => {
                self.at = At::Key;
                self.value_read(text, window, sink)
            }
        }
    }

    fn key_read(&mut self, text: &str, window: &mut Window) -> Option<Flow> {
        self.key = serde_json::from_str(text).unwrap_or_default();
        let known = ["name", "type", "id", "function", "arguments", "parameters"];
        if self.bare && self.keys == Keys::Named && !known.contains(&&*self.key) {
            return Some(if self.called { self.after_call(window) } else { Flow::Bad });
        }
        self.at = At::Value;
        None
    }

    fn before_value(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let colon = window.blank(0);
        match window.rest()[colon..].chars().next() {
            None => return Some(Flow::More),
            Some(':') => {}
            Some(_) => return Some(if self.called { self.after_call(window) } else { Flow::Bad }),
        }
        let blank = window.blank(colon + 1);
        let Some(c) = window.rest()[colon + 1 + blank..].chars().next() else {
            return Some(Flow::More);
        };
        window.skip(colon + 1 + blank);
        if self.keys == Keys::Keyed && self.name.is_none() && c == '{' {
            self.name = Some(self.key.clone());
            self.key = "arguments".into();
        }
        let opens = |name: &String| !self.bare || sink.knows(name);
        match (self.key.as_str(), c) {
            ("function", '{') if !self.nested && !self.called => {
                window.skip(1);
                self.nested = true;
                self.at = At::Key;
            }
            ("arguments" | "parameters", '{')
                if !self.called && self.name.as_ref().is_some_and(opens) =>
            {
                sink.start(self.name.as_deref().unwrap_or_default());
                window.commit();
                self.at = At::Stream(Scanner::new());
            }
            _ => self.at = At::Text { scan: Scanner::new(), text: String::new(), key: false },
        }
        None
    }

    fn value_read(
        &mut self,
        text: String,
        window: &mut Window,
        sink: &mut Sink<'_>,
    ) -> Option<Flow> {
        match self.key.as_str() {
            "name" | "tool_name" | "function" if self.name.is_none() => {
                let name: Option<String> = serde_json::from_str(&text).ok();
                let Some(name) = name.filter(|name| !name.is_empty()) else {
                    return Some(Flow::Bad);
                };
                if self.bare && !sink.knows(&name) {
                    return Some(Flow::Bad);
                }
                self.name = Some(name);
            }
            // Arguments within a string, or before the name; anything but an object is none.
            "arguments" | "parameters" if !self.called => {
                let text = serde_json::from_str::<String>(&text).unwrap_or(text);
                let text = if text == "null" || text.is_empty() { "{}".into() } else { text };
                if !is_object(&text) {
                    return Some(Flow::Bad);
                }
                self.held = Some(text);
            }
            _ => {}
        }
        if let (Some(name), Some(held), false) = (&self.name, &self.held, self.called) {
            sink.start(name);
            sink.arguments(held);
            sink.end(true);
            window.commit();
            self.called = true;
        }
        None
    }
}

fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{')
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}
