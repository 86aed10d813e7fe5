//! Calls as a name, separators and a JSON object: `name[ARGS]{..}`, `functions.name:0<|..|>{..}`.
//!
//! Owns the header. Refuses anything in it that is neither a word of a name nor a separator of the format.

use super::json::Scanner;
use super::sink::{Flow, Sink, stream_object};
use super::window::{Marker, Seen, Window};

/// Bytes of a header.
const LONGEST: usize = 512;
const FENCE: &str = "```";

/// Which word of the header is the name; the others are ids or kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    First,
    Last,
    /// The first, if a separator comes before the object: what has none is prose.
    Separated,
}

#[derive(Clone, Debug)]
enum At {
    Header,
    Arguments(Scanner),
    /// Behind the object, where a fence may end.
    Tail,
}

/// Reads one call.
#[derive(Clone, Debug)]
pub(super) struct Named {
    separators: Vec<Marker>,
    /// What ends a call, here one without arguments.
    ends: Vec<Marker>,
    pick: Pick,
    at: At,
    words: Vec<String>,
    /// The last word goes on.
    joined: bool,
    separated: bool,
}

impl Named {
    pub(super) fn new(separators: &[Marker], ends: &[Marker], pick: Pick) -> Self {
        Self {
            separators: separators.to_vec(),
            ends: ends.to_vec(),
            pick,
            at: At::Header,
            words: Vec::new(),
            joined: false,
            separated: false,
        }
    }

    pub(super) fn step(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Flow {
        loop {
            match &mut self.at {
                At::Header => {
                    if let Some(flow) = self.header(window, sink) {
                        return flow;
                    }
                }
                At::Arguments(scan) => match stream_object(scan, window, sink) {
                    Flow::Done => self.at = At::Tail,
                    flow => return flow,
                },
                At::Tail => {
                    let blank = window.blank(0);
                    match window.reads(blank, FENCE) {
                        Seen::Maybe => return Flow::More,
                        Seen::No => {}
                        Seen::Yes => window.take(blank + FENCE.len()),
                    }
                    return Flow::Done;
                }
            }
        }
    }

    /// One character or separator of the header.
    fn header(&mut self, window: &mut Window, sink: &mut Sink<'_>) -> Option<Flow> {
        let Some(c) = window.rest().chars().next() else { return Some(Flow::More) };
        match window.first(0, &self.separators) {
            (Seen::Maybe, _) => return Some(Flow::More),
            (_, Some(marker)) => {
                window.skip(marker.text.len());
                self.joined = false;
                self.separated = true;
                return None;
            }
            _ => {}
        }
        match window.first(0, &self.ends) {
            (Seen::Maybe, _) => return Some(Flow::More),
            (Seen::Yes, _) => {
                let Some(name) = self.name() else { return Some(Flow::Bad) };
                sink.start(&name);
                sink.arguments("{}");
                sink.end(true);
                window.commit();
                return Some(Flow::Done);
            }
            (Seen::No, _) => {}
        }
        match c {
            '{' => {
                let Some(name) = self.name() else { return Some(Flow::Bad) };
                sink.start(&name);
                window.commit();
                self.at = At::Arguments(Scanner::new());
                return None;
            }
            c if c.is_whitespace() => self.joined = false,
            c if is_name(c) && window.raw().len() < LONGEST => {
                if !self.joined {
                    self.words.push(String::new());
                }
                self.joined = true;
                if let Some(word) = self.words.last_mut() {
                    word.push(c);
                }
            }
            _ => return Some(Flow::Bad),
        }
        // Only ids and kinds stand beside a name.
        if self.words.len() > 2 {
            return Some(Flow::Bad);
        }
        window.skip(c.len_utf8());
        None
    }

    fn name(&self) -> Option<String> {
        let word = match self.pick {
            Pick::First => self.words.first()?,
            Pick::Last => self.words.last()?,
            Pick::Separated => self.words.first().filter(|_| self.separated)?,
        };
        Some(cleaned(word).to_owned()).filter(|name| !name.is_empty())
    }
}

/// A name without its name space and number: `functions.f:0` is `f`.
fn cleaned(word: &str) -> &str {
    let Some(word) = word.strip_prefix("functions.") else { return word };
    match word.rsplit_once(':') {
        Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => word,
    }
}

pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.:/".contains(c)
}
