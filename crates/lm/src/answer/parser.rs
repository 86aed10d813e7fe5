//! The machine that reads one answer.
//!
//! Owns its text and where in it the reader is. Refuses to read more than one answer.

use std::sync::Arc;

use super::calls::Section;
use super::format::Format;
use super::harmony::Messages;
use super::prose::{Next, Text, Thought};
use super::sink::{Flow, Sink, Tally};
use super::window::Window;
use super::{Delta, Ended, Outcome, ToolSchema};

enum State {
    Text(Text),
    Reasoning(Thought),
    /// Calls of a syntax; true where they interrupt reasoning.
    Calls(usize, Section, bool),
    Messages(Messages),
}

/// Reads one answer as it comes. What it gives in all does not depend on how the text is cut.
///
/// ```
/// # use longrun_lm::answer::{Delta, Ended, Format, Outcome, Parser};
/// let format = Format::detect(Some("<think> </think>"), &|_| false, "qwen3");
/// let mut parser = Parser::new(format.into(), [].into(), true);
/// let mut deltas = Vec::new();
/// parser.push("Hm.\n</think>\n\nYes.", &mut deltas);
/// assert_eq!(parser.finish(Ended::Stop, &mut deltas), Outcome::Text);
/// assert_eq!(deltas, [Delta::Reasoning("Hm.".into()), Delta::Content("Yes.".into())]);
/// ```
pub struct Parser {
    format: Arc<Format>,
    tools: Arc<[ToolSchema]>,
    window: Window,
    tally: Tally,
    state: State,
}

impl Parser {
    /// A reader of an answer to a prompt that gave `tools`: with none, nothing is a call. `in_reasoning` says that the
    /// prompt ends inside of reasoning, see [`starts_in_reasoning`](super::starts_in_reasoning).
    pub fn new(format: Arc<Format>, tools: Arc<[ToolSchema]>, in_reasoning: bool) -> Self {
        let state = if format.channels.is_some() {
            State::Messages(Messages::new(in_reasoning))
        } else if in_reasoning && format.reasoning.is_some() {
            State::Reasoning(Thought::new())
        } else {
            State::Text(Text::start())
        };
        Self { format, tools, window: Window::default(), tally: Tally::default(), state }
    }

    /// Whether the next text belongs to the reasoning, as far as is known.
    pub fn in_reasoning(&self) -> bool {
        match &self.state {
            State::Reasoning(_) => true,
            State::Messages(messages) => messages.in_reasoning(),
            State::Text(_) | State::Calls(..) => false,
        }
    }

    /// Takes text of which nobody knows what tokens it came from; appends what it means.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.window.push(text, None);
        self.run(out);
    }

    /// Takes text with the bytes at which tokens of [`Format::markers`] begin; appends what it means. Markers that are
    /// tokens of the vocabulary count at those places only.
    pub fn push_marked(&mut self, text: &str, marks: &[usize], out: &mut Vec<Delta>) {
        self.window.push(text, Some(marks));
        self.run(out);
    }

    /// Ends the text: appends what was held back.
    pub fn finish(&mut self, ended: Ended, out: &mut Vec<Delta>) -> Outcome {
        self.window.ended = true;
        self.run(out);
        let mut sink = Sink { out, tally: &mut self.tally, tools: &self.tools };
        self.window.skip(self.window.rest().len());
        let rest = self.window.raw();
        if sink.tally.open() {
            sink.arguments(rest);
            sink.end(false);
        } else if matches!(self.state, State::Calls(_, _, true)) {
            sink.reasoning(rest);
        } else if ended == Ended::Stop || !matches!(self.state, State::Messages(_)) {
            // The header of a message that was cut is no text.
            sink.content(rest);
        }
        self.window.commit();
        match (self.tally.started, self.tally.complete, ended) {
            (0, ..) => Outcome::Text,
            (_, 1.., Ended::Stop) => Outcome::Calls,
            (_, _, Ended::Stop | Ended::Length) => Outcome::Broken,
        }
    }

    fn run(&mut self, out: &mut Vec<Delta>) {
        let Self { format, tools, window, tally, state } = self;
        let mut sink = Sink { out, tally, tools };
        loop {
            let next = match state {
                State::Text(text) => text.step(format, window, &mut sink),
                State::Reasoning(thought) => thought.step(format, window, &mut sink),
                State::Messages(messages) => return messages.run(format, window, &mut sink),
                State::Calls(index, section, within) => {
                    let Some(syntax) = format.calls.get(*index) else { return };
                    let flow = section.step(syntax, window, &mut sink);
                    let next = match flow {
                        Flow::More => return,
                        Flow::Done => State::Text(Text::behind()),
                        Flow::Bad | Flow::Broken if *within => {
                            sink.reasoning(window.raw());
                            State::Reasoning(Thought::within())
                        }
                        Flow::Bad | Flow::Broken => {
                            sink.content(window.raw());
                            State::Text(Text::within())
                        }
                    };
                    window.commit();
                    *state = next;
                    continue;
                }
            };
            *state = match (next, &*state) {
                (Next::More, _) => return,
                (Next::Text, State::Text(_)) | (Next::Reasoning, State::Reasoning(_)) => continue,
                (Next::Text, _) => State::Text(Text::behind_reasoning(sink.tally.started == 0)),
                (Next::Reasoning, _) => State::Reasoning(Thought::new()),
                (Next::Calls(index), state) => {
                    let within = matches!(state, State::Reasoning(_));
                    State::Calls(index, Section::new(sink.tally.started), within)
                }
            };
        }
    }
}
