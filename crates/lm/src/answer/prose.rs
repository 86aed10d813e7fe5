//! Text of an answer or its reasoning, up to the next marker.
//!
//! Owns white space: it is held until what follows it has come, and goes where it stands beside a marker. Refuses to read
//! calls.

use super::format::{Format, Reasoning};
use super::sink::Sink;
use super::window::{Found, Marker, Seen, Window};

/// White space that is held; a longer run is text.
const HELD: usize = 256;
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Text that has not come.
    More,
    Text,
    Reasoning,
    /// Calls of this syntax; the marker is read and not committed.
    Calls(usize),
}

/// The white space at the end of what has come.
#[derive(Clone, Copy, Debug, Default)]
struct Blank {
    /// White space is dropped until something else comes.
    trim: bool,
    /// The run has grown too long to be held.
    spilt: bool,
}

impl Blank {
    /// How many of the first `bytes` are text now; `marker`: one follows them, so their white space goes.
    fn split(&mut self, window: &mut Window, bytes: usize, marker: bool, hold: bool) -> usize {
        let text = &window.rest()[..bytes];
        let kept = text.trim_end_matches(BLANKS).len();
        if kept > 0 {
            self.spilt = false;
        }
        if self.trim && kept == 0 {
            window.take(bytes);
            return 0;
        }
        if bytes - kept > HELD {
            self.spilt = true;
        }
        if self.spilt || !(hold || marker) { bytes } else { kept }
    }

    /// The text without the white space before it.
    fn trimmed<'t>(&mut self, text: &'t str) -> &'t str {
        let text = if self.trim { text.trim_start_matches(BLANKS) } else { text };
        self.trim &= text.is_empty();
        text
    }
}

/// Where in an answer's content the reader is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    /// Nothing of the answer was said but reasoning.
    first: bool,
    /// Nothing but white space since the last marker.
    fresh: bool,
    blank: Blank,
}

enum Kind {
    Calls(usize),
    Open,
    Close,
    Frame,
}

impl Text {
    /// The beginning of an answer.
    pub(super) fn start() -> Self {
        Self { first: true, fresh: true, blank: Blank::default() }
    }

    /// Behind a marker.
    pub(super) fn behind() -> Self {
        Self { first: false, fresh: true, blank: Blank { trim: true, spilt: false } }
    }

    /// Behind reasoning; `first`: no call was begun.
    pub(super) fn behind_reasoning(first: bool) -> Self {
        Self { first, ..Self::behind() }
    }

    /// Behind text.
    pub(super) fn within() -> Self {
        Self { first: false, fresh: false, blank: Blank::default() }
    }

    pub(super) fn step(
        &mut self,
        format: &Format,
        window: &mut Window,
        sink: &mut Sink<'_>,
    ) -> Next {
        if self.fresh
            && let Some(next) = self.beginning(format, window, sink)
        {
            return next;
        }
        let (markers, kinds) = Self::markers(format, sink);
        let hold = !window.ended && !markers.is_empty();
        let (bytes, found) = match window.find(0, &markers) {
            Found::Free(bytes) => (bytes, None),
            Found::At(bytes, index) => (bytes, kinds.get(index).zip(markers.get(index))),
        };
        let left = window.rest().len();
        let said = self.blank.split(window, bytes, found.is_some(), hold);
        // Dropped white space has moved the head.
        let bytes = bytes - (left - window.rest().len());
        sink.content(self.blank.trimmed(&window.rest()[..said]));
        self.first &= said == 0;
        window.take(said);
        let Some((kind, marker)) = found else { return Next::More };
        let behind = bytes - said + marker.text.len();
        match kind {
            Kind::Calls(index) => {
                window.skip(behind);
                return Next::Calls(*index);
            }
            Kind::Open => {
                window.take(behind);
                return Next::Reasoning;
            }
            Kind::Close | Kind::Frame => window.take(behind),
        }
        let first = self.first && matches!(kind, Kind::Frame);
        *self = Self { first, ..Self::behind() };
        Next::Text
    }

    /// What only stands where nothing else does; None where text begins.
    fn beginning(&mut self, format: &Format, window: &mut Window, sink: &Sink<'_>) -> Option<Next> {
        let blank = window.blank(0);
        let Some(c) = window.rest()[blank..].chars().next() else {
            self.fresh = blank <= HELD && !window.ended;
            return self.fresh.then_some(Next::More);
        };
        self.fresh = blank <= HELD;
        if let Some(Reasoning { open, close, .. }) =
            format.reasoning.as_ref().filter(|_| self.fresh)
        {
            match (window.sees(blank, open), window.sees(blank, close)) {
                (Seen::Yes, _) => {
                    window.take(blank + open.text.len());
                    return Some(Next::Reasoning);
                }
                (_, Seen::Yes) => {
                    window.take(blank + close.text.len());
                    *self = Self::behind();
                    return Some(Next::Text);
                }
                (Seen::Maybe, _) | (_, Seen::Maybe) => return Some(Next::More),
                (Seen::No, Seen::No) => {}
            }
        }
        let bare = format.calls.iter().position(|syntax| syntax.open.is_none());
        let begins = self.first && self.fresh && !sink.tools.is_empty() && "[{".contains(c);
        self.fresh = false;
        if let Some(index) = bare.filter(|_| begins) {
            window.skip(blank);
            return Some(Next::Calls(index));
        }
        None
    }

    fn markers<'f>(format: &'f Format, sink: &Sink<'_>) -> (Vec<&'f Marker>, Vec<Kind>) {
        let calls = if sink.tools.is_empty() { &[][..] } else { &format.calls };
        let opens = calls.iter().enumerate();
        let opens = opens.filter_map(|(i, calls)| Some((calls.open.as_ref()?, Kind::Calls(i))));
        let frame = format.frame.iter().map(|marker| (marker, Kind::Frame));
        let tags = format.reasoning.iter().flat_map(|tags| {
            let [open, close] = &tags.strict;
            [(open, Kind::Open), (close, Kind::Close)]
        });
        opens.chain(frame).chain(tags).unzip()
    }
}

/// Within reasoning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thought {
    begun: bool,
    blank: Blank,
}

impl Thought {
    pub(super) fn new() -> Self {
        Self { begun: false, blank: Blank { trim: true, spilt: false } }
    }

    /// Behind text of the reasoning.
    pub(super) fn within() -> Self {
        Self { begun: true, blank: Blank::default() }
    }

    pub(super) fn step(
        &mut self,
        format: &Format,
        window: &mut Window,
        sink: &mut Sink<'_>,
    ) -> Next {
        let Some(tags) = &format.reasoning else { return Next::Text };
        if !self.begun {
            window.take(window.blank(0));
            // A model may repeat the tag that its prompt ends with.
            match window.sees(0, &tags.open) {
                Seen::Maybe => return Next::More,
                Seen::Yes => window.take(tags.open.text.len()),
                Seen::No if window.rest().is_empty() => return Next::More,
                Seen::No => self.begun = true,
            }
            return Next::Reasoning;
        }
        let calls = if sink.tools.is_empty() { &[][..] } else { &format.calls };
        let calls = calls.iter().enumerate().filter(|(_, calls)| calls.ends_reasoning);
        let opens = calls.filter_map(|(i, calls)| Some((calls.open.as_ref()?, Next::Calls(i))));
        let (markers, nexts): (Vec<&Marker>, Vec<Next>) =
            opens.chain([(&tags.close, Next::Text)]).unzip();
        let (bytes, found) = match window.find(0, &markers) {
            Found::Free(bytes) => (bytes, None),
            Found::At(bytes, index) => (bytes, nexts.get(index).zip(markers.get(index))),
        };
        let left = window.rest().len();
        let said = self.blank.split(window, bytes, found.is_some(), !window.ended);
        let bytes = bytes - (left - window.rest().len());
        sink.reasoning(self.blank.trimmed(&window.rest()[..said]));
        window.take(said);
        let Some((next, marker)) = found else { return Next::More };
        match next {
            Next::Calls(_) => window.skip(bytes - said + marker.text.len()),
            Next::Text | Next::Reasoning | Next::More => {
                window.take(bytes - said + marker.text.len());
            }
        }
        *next
    }
}
