//! What is compared: the lines of the tables, and the sizes behind them.

use crate::shell::Result;

/// Tokens of a prompt that is read.
pub(super) const PROMPT: &str = "512";
/// Tokens that are generated after nothing.
pub(super) const GENERATE: &str = "128";
/// Tokens before [`AFTER`] further ones.
pub(super) const DEPTH: &str = "4096";
/// Tokens that are generated after a long text.
pub(super) const AFTER: &str = "64";
/// Tokens of each row's prompt, and tokens that it generates, in a batch.
pub(super) const ROW: usize = 128;

/// One measurement of both engines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// A prompt is read.
    Prefill,
    /// One row decodes.
    Decode,
    /// One row decodes behind a long text.
    Depth,
    /// So many rows decode together.
    Rows(usize),
    /// A process loads the model and answers one token.
    Load,
    /// Both of a model with linear layers: a prompt is read, and one row decodes behind it.
    Hybrid,
}

/// A line of a table.
pub(super) struct Line {
    pub(super) name: String,
    /// Less is better: the ratio is turned round.
    pub(super) less: bool,
    pub(super) digits: usize,
}

impl Part {
    /// What is measured of models that are a file.
    pub(super) const OF_FILES: [Self; 6] =
        [Self::Prefill, Self::Decode, Self::Depth, Self::Rows(8), Self::Rows(16), Self::Load];

    pub(super) fn name(self) -> String {
        match self {
            Self::Prefill => "prefill".into(),
            Self::Decode => "decode".into(),
            Self::Depth => "depth".into(),
            Self::Rows(rows) => format!("rows{rows}"),
            Self::Load => "load".into(),
            Self::Hybrid => "hybrid".into(),
        }
    }

    /// The part of a name.
    pub(super) fn of(name: &str) -> Result<Self> {
        let rows = name.strip_prefix("rows").and_then(|rows| rows.parse().ok());
        let rows = rows.filter(|rows| (1..=256).contains(rows)).map(Self::Rows);
        let mut all = Self::OF_FILES.into_iter().chain([Self::Hybrid]).chain(rows);
        let found = all.find(|part| part.name() == name);
        let known = "prefill, decode, depth, rowsN, load, hybrid";
        found.ok_or_else(|| format!("--parts does not know {name:?}; it knows {known}"))
    }

    /// The numbers that it gives.
    pub(super) fn lines(self) -> Vec<Line> {
        let speed = |name| Line { name, less: false, digits: 1 };
        match self {
            Self::Prefill => vec![speed(format!("prompt of {PROMPT}, tokens/s"))],
            Self::Decode => vec![speed(format!("decode {GENERATE}, tokens/s"))],
            Self::Depth => vec![speed(format!("decode {AFTER} after {DEPTH}, tokens/s"))],
            Self::Rows(rows) => vec![speed(format!("decode, {rows} rows together, tokens/s"))],
            Self::Load => vec![
                Line { name: "load and one token, s".into(), less: true, digits: 2 },
                Line { name: "peak resident of that, MiB".into(), less: true, digits: 0 },
            ],
            Self::Hybrid => vec![
                speed(format!("prompt of {PROMPT}, tokens/s")),
                speed(format!("decode {AFTER} after that, tokens/s")),
            ],
        }
    }
}
