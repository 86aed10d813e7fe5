//! Values as Python or Gemma write them, to JSON.
//!
//! Owns their grammar: strings in quotes or between markers, `True`, `None`, tuples, keys without quotes. Refuses
//! expressions.

use super::json::{Scanner, quoted};
use super::window::{Seen, Window};

/// Values within each other.
const DEEPEST: usize = 64;

/// How strings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// In single or double quotes, also in threes.
    Python,
    /// Between two of this marker, which nothing escapes; words without quotes are strings, too.
    Marked(&'static str),
}

/// Finds where a value ends as its text comes: before `,` or a bracket that closes what is around it.
#[derive(Clone, Debug, Default)]
pub(super) struct ValueEnd {
    /// Bytes that were looked at.
    at: usize,
    depth: usize,
    /// The quotes that the string ends with.
    quote: Option<&'static str>,
    /// At which its next character is not escaped.
    escaped: bool,
}

impl ValueEnd {
    /// Bytes of the value at the head of `window`; None where its end has not come.
    pub(super) fn find(&mut self, window: &Window, style: Style) -> Option<usize> {
        loop {
            let c = window.rest()[self.at..].chars().next()?;
            let next = self.at + c.len_utf8();
            match (self.quote, style) {
                (Some(_), _) if self.escaped => self.escaped = false,
                (Some(_), Style::Python) if c == '\\' => self.escaped = true,
                (Some(quote), _) => match window.reads(self.at, quote) {
                    Seen::Maybe => return None,
                    Seen::No => {}
                    Seen::Yes => {
                        self.quote = None;
                        self.at += quote.len();
                        continue;
                    }
                },
                (None, style) => {
                    let quotes: &[&'static str] = match &style {
                        Style::Python => &["\"\"\"", "'''", "\"", "'"],
                        Style::Marked(quote) => &[*quote],
                    };
                    match self.opening(window, quotes)? {
                        Some(quote) => {
                            self.quote = Some(quote);
                            self.at += quote.len();
                            continue;
                        }
                        None if self.ends(c) => return Some(self.at),
                        None => {}
                    }
                }
            }
            self.at = next;
        }
    }

    /// The quotes that stand here; None outside where more text decides.
    fn opening(&self, window: &Window, quotes: &[&'static str]) -> Option<Option<&'static str>> {
        for &quote in quotes {
            match window.reads(self.at, quote) {
                // An empty string is no start of three quotes.
                Seen::Maybe => return None,
                Seen::Yes => return Some(Some(quote)),
                Seen::No => {}
            }
        }
        Some(None)
    }

    fn ends(&mut self, c: char) -> bool {
        match c {
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' | ',' if self.depth == 0 => return true,
            ')' | ']' | '}' => self.depth -= 1,
            _ => {}
        }
        false
    }
}

/// The JSON of one value; None where it is none.
pub(super) fn to_json(text: &str, style: Style) -> Option<String> {
    let mut reader = Reader { rest: text, style, out: String::new() };
    reader.value(0)?;
    reader.blank();
    reader.rest.is_empty().then_some(reader.out)
}

struct Reader<'a> {
    rest: &'a str,
    style: Style,
    out: String,
}

impl Reader<'_> {
    fn blank(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        self.blank();
        if depth > DEEPEST {
            return None;
        }
        if let Some(text) = self.string()? {
            self.out.push_str(&quoted(&text));
            return Some(());
        }
        match self.rest.chars().next()? {
            '{' => self.object(depth),
            '[' => self.list(depth, "]"),
            '(' => self.list(depth, ")"),
            _ => self.word(),
        }
    }

    fn list(&mut self, depth: usize, close: &str) -> Option<()> {
        self.rest = &self.rest[1..];
        self.out.push('[');
        let mut first = true;
        loop {
            self.blank();
            if self.eat(close) {
                break;
            }
            if !first {
                self.out.push_str(", ");
            }
            first = false;
            self.value(depth + 1)?;
            self.blank();
            if !self.eat(",") && !self.rest.starts_with(close) {
                return None;
            }
        }
        self.out.push(']');
        Some(())
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.rest = &self.rest[1..];
        self.out.push('{');
        let mut first = true;
        loop {
            self.blank();
            if self.eat("}") {
                break;
            }
            if !first {
                self.out.push_str(", ");
            }
            first = false;
            let key = match self.string()? {
                Some(key) => key,
                None => {
                    let end = self.rest.find([':', ',', '}', '{', '[', '\n'])?;
                    let (key, rest) = self.rest.split_at(end);
                    self.rest = rest;
                    key.trim().to_owned()
                }
            };
            self.out.push_str(&quoted(&key));
            self.blank();
            if key.is_empty() || !self.eat(":") {
                return None;
            }
            self.out.push_str(": ");
            self.value(depth + 1)?;
            self.blank();
            if !self.eat(",") && !self.rest.starts_with('}') {
                return None;
            }
        }
        self.out.push('}');
        Some(())
    }

    /// A string if one stands here; None outside where it does not end.
    fn string(&mut self) -> Option<Option<String>> {
        match self.style {
            Style::Marked(quote) => {
                if !self.eat(quote) {
                    return Some(None);
                }
                let (text, rest) = self.rest.split_once(quote)?;
                self.rest = rest;
                Some(Some(text.to_owned()))
            }
            Style::Python => {
                let quotes = ["\"\"\"", "'''", "\"", "'"];
                match quotes.into_iter().find(|quote| self.rest.starts_with(quote)) {
                    None => Some(None),
                    Some(quote) => self.python_string(quote).map(Some),
                }
            }
        }
    }

    fn python_string(&mut self, quote: &str) -> Option<String> {
        self.rest = &self.rest[quote.len()..];
        let mut text = String::new();
        while !self.eat(quote) {
            let mut chars = self.rest.chars();
            match chars.next()? {
                '\\' => {
                    let c = chars.next()?;
                    self.rest = chars.as_str();
                    self.escape(c, &mut text)?;
                }
                c => {
                    text.push(c);
                    self.rest = chars.as_str();
                }
            }
        }
        Some(text)
    }

    fn escape(&mut self, c: char, text: &mut String) -> Option<()> {
        let digits = match c {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c => {
                match c {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    '0' => text.push('\0'),
                    '\n' => {}
                    '\\' | '\'' | '"' | '/' => text.push(c),
                    // Python keeps the backslash of what it does not know.
                    c => text.extend(['\\', c]),
                }
                return Some(());
            }
        };
        let mut code = self.hex(digits)?;
        // JSON writes what is above U+FFFF as a pair.
        if (0xD800..0xDC00).contains(&code) && self.eat("\\u") {
            let low = self.hex(4)?;
            let low = low.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
            code = 0x1_0000 + ((code - 0xD800) << 10) + low;
        }
        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        Some(())
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let code = self.rest.get(..digits)?;
        let plain = code.bytes().all(|b| b.is_ascii_hexdigit());
        let code = u32::from_str_radix(code, 16).ok().filter(|_| plain)?;
        self.rest = &self.rest[digits..];
        Some(code)
    }

    fn word(&mut self) -> Option<()> {
        let end = self.rest.find([',', ']', '}', ')', '{', '[', '(']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let word = word.trim_end();
        self.rest = rest;
        let known = match word {
            "True" | "true" => "true",
            "False" | "false" => "false",
            "None" | "null" | "none" => "null",
            word if is_number(word) => word,
            word if self.style == Style::Python || word.is_empty() => return None,
            word => {
                self.out.push_str(&quoted(word));
                return Some(());
            }
        };
        self.out.push_str(known);
        Some(())
    }
}

/// Whether a text is a number as JSON writes them.
pub(super) fn is_number(text: &str) -> bool {
    let mut scan = Scanner::new();
    text.starts_with(|c: char| c == '-' || c.is_ascii_digit())
        && text.chars().all(|c| scan.feed(c).is_some())
        && scan.ends_here()
}
