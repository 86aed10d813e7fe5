//! Where deltas go, and the count of calls.
//!
//! Owns the order of a call's deltas: start, arguments, end. Refuses to read text.

use super::json::{Fed, Scanner, control};
use super::window::Window;
use super::{Delta, ToolSchema};

/// The calls of one answer so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) started: usize,
    pub(super) complete: usize,
    pub(super) broken: usize,
}

impl Tally {
    /// Whether a call is begun and not ended.
    pub(super) fn open(&self) -> bool {
        self.started > self.complete + self.broken
    }
}

/// One push's deltas; pieces of one kind are joined.
pub(super) struct Sink<'a> {
    pub(super) out: &'a mut Vec<Delta>,
    pub(super) tally: &'a mut Tally,
    pub(super) tools: &'a [ToolSchema],
}

impl Sink<'_> {
    pub(super) fn content(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.out.last_mut() {
            Some(Delta::Content(last)) => last.push_str(text),
            _ => self.out.push(Delta::Content(text.to_owned())),
        }
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.out.last_mut() {
            Some(Delta::Reasoning(last)) => last.push_str(text),
            _ => self.out.push(Delta::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn start(&mut self, name: &str) {
        self.out.push(Delta::CallStart { index: self.tally.started, name: name.to_owned() });
        self.tally.started += 1;
    }

    pub(super) fn arguments(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.out.last_mut() {
            Some(Delta::CallArguments { json, .. }) => json.push_str(text),
            _ => {
                let index = self.tally.started.saturating_sub(1);
                self.out.push(Delta::CallArguments { index, json: text.to_owned() });
            }
        }
    }

    pub(super) fn end(&mut self, whole: bool) {
        self.out.push(Delta::CallEnd { index: self.tally.started.saturating_sub(1) });
        *(if whole { &mut self.tally.complete } else { &mut self.tally.broken }) += 1;
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// The schema of a tool's parameter.
    pub(super) fn property(&self, name: &str, key: &str) -> Option<&serde_json::Value> {
        let tool = self.tools.iter().find(|tool| tool.name == name)?;
        tool.parameters.get("properties")?.get(key)
    }
}

/// What a machine needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Text that has not come.
    More,
    /// Nothing: it is through.
    Done,
    /// It is no call, and nothing of it was said: what was read is content.
    Bad,
    /// The call goes on in no way that is known: the rest is its arguments as written.
    Broken,
}

/// Streams a JSON object at the head as arguments, up to its end; calls the end of the call.
pub(super) fn stream_object(scan: &mut Scanner, window: &mut Window, sink: &mut Sink<'_>) -> Flow {
    let (mut said, mut bytes) = (String::new(), 0);
    let mut flow = Flow::More;
    for c in window.rest().chars() {
        let inside = scan.in_string();
        match scan.feed(c) {
            Some(Fed::Behind) | None => {
                flow = Flow::Broken;
                break;
            }
            Some(fed) => {
                bytes += c.len_utf8();
                if inside {
                    control(c, &mut said)
                } else {
                    said.push(c)
                }
                if fed == Fed::Last {
                    flow = Flow::Done;
                    break;
                }
            }
        }
    }
    sink.arguments(&said);
    window.take(bytes);
    if flow == Flow::Done {
        sink.end(true);
    }
    flow
}
