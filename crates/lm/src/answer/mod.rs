//! What a model's text means: reasoning, content and calls of tools, as the text comes.
//!
//! Owns the formats in which models write them ([`Format`], found from a chat template) and the machine that reads one
//! answer ([`Parser`]). Refuses to know sockets, requests and token ids: text goes in, [`Delta`]s come out. An answer as
//! a whole is the concatenation of its deltas, and does not depend on how the text was cut.
//!
//! Markers such as `<tool_call>` or `<|channel|>` are often special tokens, which a detokenizer leaves out. So the
//! caller
//!
//! 1. finds the format: [`Format::detect`] with the template's text, the vocabulary and the family;
//! 2. lets its tokens through: `CompletionText::showing` with the ids of [`Format::markers`];
//! 3. gives each piece of text to [`Parser::push_marked`] with `CompletionText::marks`, the places at which such tokens
//!    begin. Letters that spell a marker by other tokens are prose then. With [`Parser::push`] any letters that spell a
//!    marker of calls are one. End-of-text tokens stay hidden and stop the row;
//! 4. calls [`Parser::finish`] with what remained, and takes the finish reason from its [`Outcome`].

mod calls;
mod format;
mod harmony;
mod json;
mod known;
mod literal;
mod loops;
mod named;
mod objects;
mod parser;
mod prose;
mod pythonic;
mod sink;
mod tagged;
mod window;

#[cfg(test)]
mod tests;

pub use format::{Format, starts_in_reasoning};
pub use loops::{Cycle, LoopDetector};
pub use parser::Parser;

/// A piece of an answer, in order. Pieces of one kind that follow each other are one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the answer.
    Content(String),
    /// A call begins; its arguments follow before anything else.
    CallStart {
        /// Calls of this answer before it.
        index: usize,
        /// The tool's name as the model wrote it.
        name: String,
    },
    /// A piece of the JSON text of the arguments.
    CallArguments {
        /// The call's.
        index: usize,
        /// Text that goes behind what came before.
        json: String,
    },
    /// The call is over: its arguments are whole, or what the model wrote in place of them.
    CallEnd {
        /// The call's.
        index: usize,
    },
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, or at a stop string.
    Stop,
    /// It was cut.
    Length,
}

/// What an answer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No call was begun.
    Text,
    /// The text ended by itself, with at least one call whose arguments are a whole object.
    Calls,
    /// Calls were begun, but the text was cut, or none of them is whole.
    Broken,
}

/// A tool that the model may call.
#[derive(Clone, Debug)]
pub struct ToolSchema {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments; null where there is none.
    pub parameters: serde_json::Value,
}
