//! The text that has come and is not dealt with, and what stands at its front.
//!
//! Owns that text, where let-through tokens begin in it, and the one way to match markers: an answer never depends on
//! how the text was cut. Refuses to know what a marker means.

use std::collections::VecDeque;

/// How much must say that letters are a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The letters do: the vocabulary has no token for it.
    Letters,
    /// A token does, or text of which nobody said where its tokens begin.
    Token,
    /// A token does, and nothing else.
    Strict,
}

/// A text with a meaning of its own between the words of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    pub(super) text: String,
    pub(super) proof: Proof,
}

impl Marker {
    /// What is a marker wherever its letters stand.
    pub(super) fn spelled(text: &str) -> Self {
        Self { text: text.to_owned(), proof: Proof::Letters }
    }

    pub(super) fn strict(&self) -> Self {
        Self { text: self.text.clone(), proof: Proof::Strict }
    }
}

/// Whether something stands at a place, as far as the text says yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Yes,
    No,
    /// What follows decides.
    Maybe,
}

impl Seen {
    /// The better of two; what may still become `Yes` is waited for.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Yes, _) | (_, Self::Yes) => Self::Yes,
            (Self::Maybe, _) | (_, Self::Maybe) => Self::Maybe,
            (Self::No, Self::No) => Self::No,
        }
    }
}

/// The first marker of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Byte and index of the marker.
    At(usize, usize),
    /// So many bytes are of no marker; what follows them may be the start of one.
    Free(usize),
}

/// `[pos, head)` is read and may be taken back, `[head, ..)` is not read.
#[derive(Debug, Default)]
pub(super) struct Window {
    buf: String,
    pos: usize,
    head: usize,
    /// Bytes dropped from the front, ever.
    gone: usize,
    /// Where tokens of markers begin, counted from the first byte ever.
    marks: VecDeque<usize>,
    /// `[start, end)` of the last text of which nobody said where they begin.
    unsaid: (usize, usize),
    /// No more text comes.
    pub(super) ended: bool,
}

impl Window {
    /// `marks`: bytes of `text` at which a token begins that is a marker's, where that is known.
    pub(super) fn push(&mut self, text: &str, marks: Option<&[usize]>) {
        let start = self.gone + self.buf.len();
        match marks {
            Some(marks) => self.marks.extend(marks.iter().map(|mark| start + mark)),
            None if self.unsaid.1 == start => self.unsaid.1 += text.len(),
            None => self.unsaid = (start, start + text.len()),
        }
        self.buf.push_str(text);
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &str {
        &self.buf[self.head..]
    }

    /// What is read and not committed.
    pub(super) fn raw(&self) -> &str {
        &self.buf[self.pos..self.head]
    }

    pub(super) fn skip(&mut self, bytes: usize) {
        self.head += bytes;
    }

    /// Only the first `bytes` of [`raw`](Self::raw) are read.
    pub(super) fn rewind(&mut self, bytes: usize) {
        self.head = self.pos + bytes;
    }

    /// What is read is dealt with.
    pub(super) fn commit(&mut self) {
        self.pos = self.head;
        if self.pos == self.buf.len() || self.pos > 4096 {
            self.buf.drain(..self.pos);
            self.gone += self.pos;
            (self.pos, self.head) = (0, 0);
            while self.marks.front().is_some_and(|&mark| mark < self.gone) {
                self.marks.pop_front();
            }
        }
    }

    /// Reads and commits `bytes`.
    pub(super) fn take(&mut self, bytes: usize) {
        self.skip(bytes);
        self.commit();
    }

    /// Bytes of white space `from` bytes behind the head.
    pub(super) fn blank(&self, from: usize) -> usize {
        let rest = &self.rest()[from..];
        rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len()
    }

    /// Whether `marker` stands `from` bytes behind the head.
    pub(super) fn sees(&self, from: usize, marker: &Marker) -> Seen {
        let here = match marker.proof {
            Proof::Letters => true,
            Proof::Token => self.is_mark(from) || self.is_unsaid(from),
            Proof::Strict => self.is_mark(from),
        };
        self.spells(from, &marker.text, here)
    }

    /// Whether these letters stand `from` bytes behind the head.
    pub(super) fn reads(&self, from: usize, text: &str) -> Seen {
        self.spells(from, text, true)
    }

    fn spells(&self, from: usize, text: &str, here: bool) -> Seen {
        let rest = &self.rest()[from..];
        if here && rest.starts_with(text) {
            Seen::Yes
        } else if !self.ended && rest.len() < text.len() && text.starts_with(rest) {
            if here || rest.is_empty() { Seen::Maybe } else { Seen::No }
        } else {
            Seen::No
        }
    }

    fn is_mark(&self, from: usize) -> bool {
        self.marks.binary_search(&(self.gone + self.head + from)).is_ok()
    }

    fn is_unsaid(&self, from: usize) -> bool {
        let at = self.gone + self.head + from;
        (self.unsaid.0..self.unsaid.1).contains(&at)
    }

    /// The first of `markers` at or behind `from` bytes; of two at one place the longer.
    pub(super) fn find(&self, from: usize, markers: &[&Marker]) -> Found {
        let rest = self.rest();
        let firsts = |byte: u8| markers.iter().any(|m| m.text.as_bytes().first() == Some(&byte));
        for at in (from..rest.len()).filter(|&at| firsts(rest.as_bytes()[at])) {
            if !rest.is_char_boundary(at) {
                continue;
            }
            let mut best: Option<usize> = None;
            for (index, marker) in markers.iter().enumerate() {
                let longest = best.is_none_or(|b: usize| marker.text.len() > markers[b].text.len());
                match self.sees(at, marker) {
                    Seen::Yes if longest => best = Some(index),
                    Seen::Maybe if longest => return Found::Free(at),
                    _ => {}
                }
            }
            if let Some(index) = best {
                return Found::At(at, index);
            }
        }
        Found::Free(rest.len())
    }

    /// The longest of `markers` that stands `from` bytes behind the head; none while a longer one may.
    pub(super) fn first<'m>(
        &self,
        from: usize,
        markers: impl IntoIterator<Item = &'m Marker>,
    ) -> (Seen, Option<&'m Marker>) {
        let mut best: Option<&Marker> = None;
        for marker in markers {
            match self.sees(from, marker) {
                Seen::Maybe => return (Seen::Maybe, None),
                Seen::Yes if best.is_none_or(|b| b.text.len() < marker.text.len()) => {
                    best = Some(marker);
                }
                Seen::Yes | Seen::No => {}
            }
        }
        (if best.is_some() { Seen::Yes } else { Seen::No }, best)
    }
}
