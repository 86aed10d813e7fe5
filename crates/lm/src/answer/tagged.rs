//! Calls as tags: a name, then keys and values between tags.
//!
//! Owns the streaming of values that are strings, and what other types the tool's schema makes of a text. Refuses to
//! guess at a tag that is not closed.

use serde_json::Value;

use super::json::{escape, quoted};
use super::literal::{Style, is_number, to_json};
use super::named::is_name;
use super::sink::{Flow, Sink};
use super::window::{Found, Marker, Seen, Window};

/// Bytes of a name or key.
const LONGEST: usize = 256;

/// The tags of a format.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    /// Empty where the name follows the marker of the call.
    pub(super) name_open: Marker,
    /// Empty where the name ends with the word.
    pub(super) name_close: Marker,
    /// What may stand behind a name and says nothing.
    pub(super) name_tail: Option<Marker>,
    pub(super) key_open: Marker,
    pub(super) key_close: Marker,
    /// Behind the key, after white space; or none.
    pub(super) value_open: Option<Marker>,
    pub(super) value_close: Marker,
    pub(super) call_close: Marker,
    /// Each value says whether it is a string.
    pub(super) says_string: bool,
    /// A line break at either end of a value belongs to the tags.
    pub(super) lines: bool,
}

#[derive(Clone, Debug)]
enum At {
    Name,
    /// Behind the name; nothing is said yet.
    Named,
    /// Behind the name or a value.
    Next,
    Key,
    Opening,
    /// Within a string: whether its first character has come.
    Text {
        begun: bool,
    },
    /// Within a value that leaves whole: the bytes looked at.
    Whole {
        seen: usize,
    },
}

/// Reads one call.
#[derive(Clone, Debug)]
pub(super) struct Tagged {
    tags: Tags,
    at: At,
    name: String,
    key: String,
    any: bool,
    /// The value says that it is JSON.
    is_json: bool,
}

impl Tagged {
    pub(super) fn new(tags: &Tags) -> Self {
        Self {
            tags: tags.clone(),
            at: At::Name,
            name: String::new(),
            key: String::new(),
            any: false,
            is_json: false,
        }
    }

    pub(super) fn step(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Flow {
        loop {
            let flow = match self.at {
                At::Name => self.read_name(window),
                At::Named => self.behind_name(window, sink),
                At::Next => self.next(window, sink),
                At::Key => self.read_key(window, sink),
                At::Opening => self.opening(window, sink),
                At::Text { begun } => self.text(begun, window, sink),
                At::Whole { seen } => self.whole(seen, window, sink),
            };
            if let Some(flow) = flow {
                return flow;
            }
        }
    }

    fn read_name(&mut self, window: &mut Window) -> Option<Flow> {
        let open = window.blank(0);
        match window.sees(open, &self.tags.name_open) {
            Seen::Maybe => return Some(Flow::More),
            Seen::No => return Some(Flow::Bad),
            Seen::Yes => {}
        }
        let from = open + self.tags.name_open.text.len();
        let rest = &window.rest()[from..];
        let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
        if end > LONGEST || (end == 0 && !rest.is_empty()) {
            window.skip(from);
            return Some(Flow::Bad);
        }
        if end == rest.len() && !window.ended {
            return Some(Flow::More);
        }
        match window.sees(from + end, &self.tags.name_close) {
            Seen::Maybe => return Some(Flow::More),
            Seen::No => {
                window.skip(from + end);
                return Some(Flow::Bad);
            }
            Seen::Yes => {}
        }
        self.name = rest[..end].to_owned();
        window.skip(from + end + self.tags.name_close.text.len());
        self.at = At::Named;
        None
    }

    /// A call is one when a key or its end follows the name.
    fn behind_name(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let blank = window.blank(0);
        let seen = |marker: &Marker| window.sees(blank, marker);
        if let Some(tail) = &self.tags.name_tail {
            match seen(tail) {
                Seen::Maybe => return Some(Flow::More),
                Seen::Yes => {
                    window.skip(blank + tail.text.len());
                    return None;
                }
                Seen::No => {}
            }
        }
        match seen(&self.tags.key_open).or(seen(&self.tags.call_close)) {
            Seen::Maybe => return Some(Flow::More),
            Seen::No => return Some(Flow::Bad),
            Seen::Yes => {}
        }
        window.commit();
        sink.start(&self.name);
        sink.arguments("{");
        self.at = At::Next;
        None
    }

    fn next(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let blank = window.blank(0);
        let (key, close) = (&self.tags.key_open, &self.tags.call_close);
        match (window.sees(blank, key), window.sees(blank, close)) {
            (Seen::Yes, _) => {
                window.take(blank + key.text.len());
                self.at = At::Key;
                None
            }
            (_, Seen::Yes) => {
                window.take(blank + close.text.len());
                sink.arguments("}");
                sink.end(true);
                Some(Flow::Done)
            }
            (Seen::Maybe, _) | (_, Seen::Maybe) => Some(Flow::More),
            (Seen::No, Seen::No) => Some(Flow::Broken),
        }
    }

    fn read_key(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let close = &self.tags.key_close;
        match window.find(0, &[close]) {
            Found::Free(end) if end > LONGEST => return Some(Flow::Broken),
            Found::Free(_) => return Some(Flow::More),
            Found::At(end, _) if end > LONGEST => return Some(Flow::Broken),
            Found::At(end, _) => {
                self.key = window.rest()[..end].trim().to_owned();
                window.take(end + close.text.len());
            }
        }
        sink.arguments(if self.any { ", " } else { "" });
        sink.arguments(&quoted(&self.key));
        sink.arguments(": ");
        self.any = true;
        let (name, key) = (&self.name, &self.key);
        self.at = if self.tags.says_string || self.tags.value_open.is_some() {
            At::Opening
        } else {
            Self::value(is_text(sink.property(name, key)), sink)
        };
        None
    }

    /// Begins a value.
    fn value(text: bool, sink: &mut Sink<'_>) -> At {
        if !text {
            return At::Whole { seen: 0 };
        }
        sink.arguments("\"");
        At::Text { begun: false }
    }

    /// What stands between a key and its value.
    fn opening(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let text = is_text(sink.property(&self.name, &self.key));
        let (bytes, text) = match &self.tags.value_open {
            Some(open) => {
                let blank = window.blank(0);
                match window.sees(blank, open) {
                    Seen::Maybe => return Some(Flow::More),
                    Seen::No => return Some(Flow::Broken),
                    Seen::Yes => (blank + open.text.len(), text),
                }
            }
            None => {
                let says = [(SAYS_STRING, true), (SAYS_OTHER, false), (">", text)];
                let seen = |(text, _): &(&str, bool)| window.reads(0, text);
                match says.iter().find(|says| seen(says) == Seen::Yes) {
                    Some((says, text)) => {
                        self.is_json = *says == SAYS_OTHER;
                        (says.len(), *text)
                    }
                    None if says.iter().any(|says| seen(says) == Seen::Maybe) => {
                        return Some(Flow::More);
                    }
                    None => return Some(Flow::Broken),
                }
            }
        };
        window.take(bytes);
        self.at = Self::value(text, sink);
        None
    }

    fn text(&mut self, begun: bool, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        if !begun && self.tags.lines {
            match window.rest().chars().next() {
                None => return Some(Flow::More),
                Some('\n') => window.take(1),
                Some(_) => {}
            }
        }
        self.at = At::Text { begun: true };
        let found = window.find(0, &[&self.tags.value_close]);
        let (Found::At(end, _) | Found::Free(end)) = found;
        let mut text = &window.rest()[..end];
        if self.tags.lines {
            text = text.strip_suffix('\n').unwrap_or(text);
        }
        let mut json = String::new();
        escape(text, &mut json);
        sink.arguments(&json);
        let bytes = text.len();
        match found {
            Found::Free(_) => {
                window.take(if window.ended { end } else { bytes });
                Some(Flow::More)
            }
            Found::At(..) => {
                window.take(end + self.tags.value_close.text.len());
                sink.arguments("\"");
                self.at = At::Next;
                None
            }
        }
    }

    fn whole(&mut self, seen: usize, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        match window.find(seen, &[&self.tags.value_close]) {
            Found::Free(seen) => {
                self.at = At::Whole { seen };
                Some(Flow::More)
            }
            Found::At(end, _) => {
                let mut text = &window.rest()[..end];
                if self.tags.lines {
                    text = text.strip_prefix('\n').unwrap_or(text);
                    text = text.strip_suffix('\n').unwrap_or(text);
                }
                let schema = sink.property(&self.name, &self.key);
                let json = if self.is_json { untyped(text) } else { typed(text, schema) };
                sink.arguments(&json);
                window.take(end + self.tags.value_close.text.len());
                self.at = At::Next;
                None
            }
        }
    }
}

const SAYS_STRING: &str = " string=\"true\">";
const SAYS_OTHER: &str = " string=\"false\">";

/// The types that a schema allows; none where it does not say.
fn types(schema: Option<&Value>) -> Vec<&str> {
    let Some(schema) = schema else { return Vec::new() };
    let mut found: Vec<&str> = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for key in ["anyOf", "oneOf"] {
        let schemas = schema.get(key).and_then(Value::as_array).into_iter().flatten();
        let kinds = schemas.filter_map(|schema| schema.get("type")?.as_str());
        found.extend(kinds);
    }
    let values = schema.get("enum").and_then(Value::as_array);
    if found.is_empty() && values.is_some_and(|v| !v.is_empty() && v.iter().all(Value::is_string)) {
        found.push("string");
    }
    found
}

/// Whether a value can be nothing but a string.
fn is_text(schema: Option<&Value>) -> bool {
    let types = types(schema);
    !types.is_empty() && types.iter().all(|kind| *kind == "string")
}

/// A text that says to be JSON; a string where it is not.
fn untyped(text: &str) -> String {
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    if is_json { text.trim().to_owned() } else { typed(text, None) }
}

/// A text as JSON of a type that the schema allows; a string where it is of none.
fn typed(text: &str, schema: Option<&Value>) -> String {
    let types = types(schema);
    let any = types.is_empty();
    let allows = |kind: &str| any || types.contains(&kind);
    let word = text.trim();
    let valid = || serde_json::from_str::<serde::de::IgnoredAny>(word).is_ok();
    match word {
        "null" | "None" if !types.contains(&"string") || allows("null") => return "null".into(),
        "true" | "True" if allows("boolean") => return "true".into(),
        "false" | "False" if allows("boolean") => return "false".into(),
        _ if is_number(word) && (allows("integer") || allows("number")) => return word.into(),
        _ => {}
    }
    let kind = match word.as_bytes().first() {
        Some(b'{') => "object",
        Some(b'[') => "array",
        // A string that says that it is one, where nothing says what it is.
        Some(b'"') if any && valid() => return word.into(),
        _ => return quoted(text),
    };
    if !allows(kind) {
        return quoted(text);
    }
    if valid() {
        return word.into();
    }
    to_json(word, Style::Python).unwrap_or_else(|| quoted(text))
}
