//! How a model writes reasoning and calls.
//!
//! Owns what a chat template's text, a vocabulary and a family say about it. Refuses to render templates.

use std::cell::RefCell;

use super::calls::Syntax;
use super::known::{self, KNOWN};
use super::window::{Marker, Proof};

/// Texts around reasoning, and the token that the first begins with.
const REASONING: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|start_think|>", "<|end_think|>"),
    ("<|thought_start|>", "<|thought_end|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<thinking>", "</thinking>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
];

/// Texts around an answer that say nothing.
const FRAME: &[&str] = &[
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "[END FINAL RESPONSE]",
    "<|python_start|>",
    "<|python_end|>",
];

/// Tokens within markers and values.
const INNER: &[&str] = &["<|channel>", "｜DSML｜", "<|\"|>", "<escape>"];

/// Tags around reasoning.
#[derive(Clone, Debug)]
pub(super) struct Reasoning {
    pub(super) open: Marker,
    pub(super) close: Marker,
    /// What they are in the middle of a text, where letters alone are prose.
    pub(super) strict: [Marker; 2],
}

/// Messages within an answer, each with a header that says what it is.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    pub(super) start: Marker,
    pub(super) channel: Marker,
    pub(super) constrain: Marker,
    pub(super) message: Marker,
    /// What ends a message and is no part of the next.
    pub(super) ends: Vec<Marker>,
}

/// How a model writes reasoning and calls.
#[derive(Clone, Debug)]
pub struct Format {
    pub(super) reasoning: Option<Reasoning>,
    pub(super) calls: Vec<Syntax>,
    pub(super) frame: Vec<Marker>,
    pub(super) channels: Option<Channels>,
    tokens: Vec<String>,
}

impl Format {
    /// The format that a template shows; without one, that which the vocabulary has tokens for. `has_token` says whether
    /// the vocabulary has a token for a text, `family` is the model's.
    pub fn detect(template: Option<&str>, has_token: &dyn Fn(&str) -> bool, family: &str) -> Self {
        let tokens = RefCell::new(Vec::new());
        let note = |text: &str| {
            let shaped = text.starts_with(['<', '[', '｜']) && text.ends_with(['>', ']', '｜']);
            let has = shaped && has_token(text);
            if has && !tokens.borrow().iter().any(|token| token == text) {
                tokens.borrow_mut().push(text.to_owned());
            }
            has
        };
        let mark = |text: &str| {
            let start = INNER.iter().any(|inner| text.starts_with(inner) && note(inner));
            let proof = if start || note(text) { Proof::Token } else { Proof::Letters };
            Marker { text: text.to_owned(), proof }
        };
        let shows = |text: &str| template.is_some_and(|template| template.contains(text));
        let channels = channels(&shows, template.is_none(), has_token, &mark);
        let reasoning = REASONING.iter().find(|(open, close)| {
            shows(close) || (template.is_none() && has_token(open) && has_token(close))
        });
        let reasoning = reasoning.filter(|_| channels.is_none()).map(|(open, close)| {
            let (open, close) = (mark(open), mark(close));
            let strict = [open.strict(), close.strict()];
            Reasoning { open, close, strict }
        });
        let calls = match &channels {
            Some(_) => Vec::new(),
            None => calls(template, has_token, family, &mark),
        };
        let frame = FRAME.iter().filter(|text| shows(text)).map(|text| mark(text)).collect();
        INNER.iter().filter(|inner| shows(inner)).for_each(|inner| {
            note(inner);
        });
        Self { reasoning, calls, frame, channels, tokens: tokens.into_inner() }
    }

    /// The tokens that answers of this format are made of: let them through as text.
    pub fn markers(&self) -> Vec<&str> {
        self.tokens.iter().map(String::as_str).collect()
    }

    /// The text that begins reasoning.
    pub fn reasoning_start(&self) -> Option<&str> {
        self.reasoning.as_ref().map(|tags| tags.open.text.as_str())
    }

    /// The text that ends reasoning.
    pub fn reasoning_end(&self) -> Option<&str> {
        self.reasoning.as_ref().map(|tags| tags.close.text.as_str())
    }

    /// Whether calls can be told from text.
    pub fn has_calls(&self) -> bool {
        self.channels.is_some() || !self.calls.is_empty()
    }
}

fn calls(
    template: Option<&str>,
    has_token: &dyn Fn(&str) -> bool,
    family: &str,
    mark: known::Mark<'_>,
) -> Vec<Syntax> {
    let found = match template {
        Some(text) => KNOWN.iter().find(|known| known.shown_by.iter().all(|s| text.contains(s))),
        None => KNOWN.iter().find(|known| known.token.is_some_and(has_token)),
    };
    let shows_tools = template.is_some_and(|text| text.contains("tool_calls"));
    match found {
        Some(known) => (known.build)(mark),
        None if shows_tools || family.starts_with("llama") => known::bare(mark),
        None => Vec::new(),
    }
}

fn channels(
    shows: &dyn Fn(&str) -> bool,
    by_tokens: bool,
    has_token: &dyn Fn(&str) -> bool,
    mark: known::Mark<'_>,
) -> Option<Channels> {
    let needed = ["<|start|>", "<|channel|>", "<|message|>"];
    let has = |text: &&str| shows(text) || (by_tokens && has_token(text));
    needed.iter().all(has).then(|| Channels {
        start: mark("<|start|>"),
        channel: mark("<|channel|>"),
        constrain: mark("<|constrain|>"),
        message: mark("<|message|>"),
        ends: ["<|end|>", "<|call|>", "<|return|>"].map(mark).into(),
    })
}

/// Whether a prompt ends with what opens reasoning, so that the answer begins inside of it.
pub fn starts_in_reasoning(format: &Format, prompt: &str) -> bool {
    let end = prompt.trim_end();
    match (&format.reasoning, &format.channels) {
        (Some(tags), _) => end.ends_with(&tags.open.text),
        (None, Some(_)) => end.ends_with("<|channel|>analysis<|message|>"),
        (None, None) => false,
    }
}
