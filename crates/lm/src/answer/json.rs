//! JSON as it comes: where a value ends, and when it is none.
//!
//! Owns the grammar. Refuses to build values, and to hold more of one than its brackets and its last number.

use std::fmt::Write as _;

/// Brackets within each other that a value may have: what serde_json reads.
const DEEPEST: usize = 120;
/// Bytes of a number.
const LONGEST_ATOM: usize = 400;

/// What may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
}

/// The word that is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    None,
    Text,
    Escape,
    Hex(u8),
    Atom,
}

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    More,
    /// It is the last of the value.
    Last,
    /// The value ended before it.
    Behind,
}

/// Reads one JSON value, a character at a time.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    /// Open brackets; true for an object.
    open: Vec<bool>,
    expect: Expect,
    word: Word,
    atom: String,
}

impl Scanner {
    pub(super) fn new() -> Self {
        Self { open: Vec::new(), expect: Expect::Value, word: Word::None, atom: String::new() }
    }

    /// None where no JSON goes on like that. A control character within a string passes: [`control`] mends it.
    pub(super) fn feed(&mut self, c: char) -> Option<Fed> {
        match self.word {
            Word::Text => match c {
                '"' => {
                    self.word = Word::None;
                    return Some(self.string_end());
                }
                '\\' => self.word = Word::Escape,
                _ => {}
            },
            Word::Escape if c == 'u' => self.word = Word::Hex(4),
            Word::Escape if r#""\/bfnrt"#.contains(c) => self.word = Word::Text,
            Word::Escape => return None,
            Word::Hex(left) if c.is_ascii_hexdigit() => {
                self.word = if left == 1 { Word::Text } else { Word::Hex(left - 1) };
            }
            Word::Hex(_) => return None,
            Word::Atom if c.is_ascii_alphanumeric() || "+-.".contains(c) => {
                self.atom.push(c);
                return (self.atom.len() <= LONGEST_ATOM).then_some(Fed::More);
            }
            Word::Atom => {
                self.atom_end()?;
                return if self.open.is_empty() { Some(Fed::Behind) } else { self.sign(c) };
            }
            Word::None => return self.sign(c),
        }
        Some(Fed::More)
    }

    /// Whether nothing of the value has come.
    pub(super) fn is_new(&self) -> bool {
        self.open.is_empty() && self.word == Word::None
    }

    /// Whether the next character is one of a string.
    pub(super) fn in_string(&self) -> bool {
        self.word == Word::Text
    }

    /// Whether the value is a number or word that the end of the text ends.
    pub(super) fn ends_here(mut self) -> bool {
        self.word == Word::Atom && self.open.is_empty() && self.atom_end().is_some()
    }

    fn string_end(&mut self) -> Fed {
        if self.expect == Expect::Colon {
            return Fed::More;
        }
        self.value_end()
    }

    fn atom_end(&mut self) -> Option<()> {
        self.word = Word::None;
        let known = serde_json::from_str::<serde::de::IgnoredAny>(&self.atom).is_ok();
        self.atom.clear();
        self.value_end();
        known.then_some(())
    }

    fn value_end(&mut self) -> Fed {
        self.expect = Expect::CommaOrEnd;
        if self.open.is_empty() { Fed::Last } else { Fed::More }
    }

    fn sign(&mut self, c: char) -> Option<Fed> {
        use Expect as E;
        let in_object = self.open.last().copied();
        let value = matches!(self.expect, E::Value | E::ValueOrEnd);
        match c {
            ' ' | '\t' | '\r' | '\n' => {}
            '{' | '[' if value && self.open.len() < DEEPEST => {
                self.open.push(c == '{');
                self.expect = if c == '{' { E::KeyOrEnd } else { E::ValueOrEnd };
            }
            '}' if in_object == Some(true)
                && matches!(self.expect, E::KeyOrEnd | E::CommaOrEnd) =>
            {
                self.open.pop();
                return Some(self.value_end());
            }
            ']' if in_object == Some(false)
                && matches!(self.expect, E::ValueOrEnd | E::CommaOrEnd) =>
            {
                self.open.pop();
                return Some(self.value_end());
            }
            '"' if value => self.word = Word::Text,
            '"' if matches!(self.expect, E::Key | E::KeyOrEnd) => {
                self.word = Word::Text;
                self.expect = E::Colon;
            }
            ':' if self.expect == E::Colon => self.expect = E::Value,
            ',' if self.expect == E::CommaOrEnd => {
                self.expect = if in_object == Some(true) { E::Key } else { E::Value };
            }
            '-' | '0'..='9' | 't' | 'f' | 'n' if value => {
                self.word = Word::Atom;
                self.atom.push(c);
            }
            _ => return None,
        }
        Some(Fed::More)
    }
}

/// Appends a character of a JSON string, a control character as its escape.
pub(super) fn control(c: char, out: &mut String) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => {
            let _ = write!(out, "\\u{:04x}", c as u32);
        }
        c => out.push(c),
    }
}

/// Appends text as the inside of a JSON string.
pub(super) fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c => control(c, out),
        }
    }
}

/// Text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    escape(text, &mut out);
    out.push('"');
    out
}
