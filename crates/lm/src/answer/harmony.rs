//! Answers of several messages, each behind a header that names its channel and who it is for.
//!
//! Owns the headers. Refuses to know other formats.

use super::format::{Channels, Format};
use super::json::Scanner;
use super::sink::{Flow, Sink, stream_object};
use super::window::{Found, Marker, Seen, Window};

/// Bytes of a header; what is longer is text.
const LONGEST: usize = 512;
const RECIPIENT: &str = "to=";

#[derive(Clone, Debug)]
enum At {
    /// Before a header.
    Start,
    Header,
    Reasoning,
    Content,
    Arguments(Scanner),
    /// Within arguments that are no object.
    Raw,
    /// Behind arguments.
    Called,
}

/// Reads the messages of an answer.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    at: At,
}

impl Messages {
    pub(super) fn new(in_reasoning: bool) -> Self {
        Self { at: if in_reasoning { At::Reasoning } else { At::Start } }
    }

    pub(super) fn in_reasoning(&self) -> bool {
        matches!(self.at, At::Reasoning)
    }

    pub(super) fn run(&mut self, format: &Format, window: &mut Window, sink: &mut Sink<'_>) {
        let Some(channels) = &format.channels else { return };
        while self.step(channels, window, sink).is_some() {}
    }

    /// None where more text is needed.
    fn step(
        &mut self,
        channels: &Channels,
        window: &mut Window,
        sink: &mut Sink<'_>,
    ) -> Option<()> {
        self.at = match &mut self.at {
            At::Start => Self::start(channels, window)?,
            At::Header => Self::header(channels, window, sink)?,
            At::Reasoning => Self::text(channels, window, |text| sink.reasoning(text))?,
            At::Content => Self::text(channels, window, |text| sink.content(text))?,
            At::Raw => {
                let next = Self::text(channels, window, |text| sink.arguments(text))?;
                sink.end(false);
                next
            }
            At::Arguments(scan) => {
                let blank = window.blank(0);
                match window.first(blank, &channels.ends) {
                    (Seen::Maybe, _) => return None,
                    (Seen::Yes, _) if scan.is_new() => {
                        window.take(blank);
                        sink.arguments("{}");
                        sink.end(true);
                        At::Called
                    }
                    _ => match stream_object(scan, window, sink) {
                        Flow::More => return None,
                        Flow::Done => At::Called,
                        Flow::Bad | Flow::Broken => At::Raw,
                    },
                }
            }
            At::Called => {
                window.take(window.blank(0));
                match window.first(0, &channels.ends) {
                    (Seen::Maybe, _) => return None,
                    (_, Some(end)) => window.take(end.text.len()),
                    (_, None) => {}
                }
                At::Start
            }
        };
        Some(())
    }

    fn start(channels: &Channels, window: &Window) -> Option<At> {
        let Channels { start, channel, constrain, message, .. } = channels;
        let recipient = Marker::spelled(" to=");
        match window.first(0, [start, channel, constrain, message, &recipient]) {
            (Seen::Maybe, _) => None,
            (Seen::Yes, _) => Some(At::Header),
            (Seen::No, _) if window.rest().is_empty() => None,
            (Seen::No, _) => Some(At::Content),
        }
    }

    fn header(channels: &Channels, window: &mut Window, sink: &mut Sink<'_>) -> Option<At> {
        let bytes = match window.find(0, &[&channels.message]) {
            Found::At(bytes, _) if bytes <= LONGEST => bytes,
            Found::Free(bytes) if bytes <= LONGEST => return None,
            Found::At(..) | Found::Free(_) => {
                let first = window.rest().chars().next().map_or(0, char::len_utf8);
                sink.content(&window.rest()[..first]);
                window.take(first);
                return Some(At::Content);
            }
        };
        let header = &window.rest()[..bytes];
        let behind = |text: &str| header.split_once(text).map(|(_, rest)| rest);
        let word = |rest: &str| -> String {
            rest.trim_start().chars().take_while(|c| !c.is_whitespace() && *c != '<').collect()
        };
        let channel = behind(&channels.channel.text).map(word).unwrap_or_default();
        let recipient = behind(RECIPIENT).map(word).unwrap_or_default();
        let name = recipient.strip_prefix("functions.");
        let name = name.or(Some(&*recipient).filter(|name| sink.knows(name)));
        let name = name.filter(|name| !name.is_empty() && !sink.tools.is_empty());
        let next = match (name, &*channel) {
            (Some(name), _) => {
                sink.start(name);
                At::Arguments(Scanner::new())
            }
            (None, "analysis") => At::Reasoning,
            (None, _) => At::Content,
        };
        window.take(bytes + channels.message.text.len());
        Some(next)
    }

    /// A message up to its end, or to the header of the next.
    fn text(channels: &Channels, window: &mut Window, mut say: impl FnMut(&str)) -> Option<At> {
        let next = [&channels.start, &channels.channel];
        let markers: Vec<&Marker> = next.into_iter().chain(&channels.ends).collect();
        match window.find(0, &markers) {
            Found::Free(bytes) => {
                say(&window.rest()[..bytes]);
                window.take(bytes);
                None
            }
            Found::At(bytes, index) => {
                say(&window.rest()[..bytes]);
                let end = if index < next.len() { 0 } else { markers[index].text.len() };
                window.take(bytes + end);
                Some(At::Start)
            }
        }
    }
}
