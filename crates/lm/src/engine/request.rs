//! What goes into the engine and what comes out of it.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::prefix::Miss;
use crate::sample::{Choice, SamplingParams};

/// What a row is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// How many tokens to generate at most; at least one, unless the prompt is scored.
    pub max_tokens: usize,
    /// How to choose them.
    pub params: SamplingParams,
    /// Ids that end the text.
    pub stop_ids: Arc<[u32]>,
    /// Who goes first among those that wait, and how much a prompt reads beside others.
    pub priority: Priority,
    /// Lengths of beginnings of the prompt that later prompts are likely to share: where messages end. Models whose state
    /// can't be cut are kept there.
    pub boundaries: Vec<usize>,
    /// Ids after which the same is true of generated text: the end of reasoning.
    pub boundary_ids: Arc<[u32]>,
    /// Which tokens are possible, if not all are.
    pub mask: Option<Mask>,
    /// The slot of the adapter that it is read with; 0 for none.
    pub adapter: usize,
    /// Log-probabilities of the prompt's own tokens, if they are wanted. The tokens before them can be those of a kept
    /// beginning; these are read, whatever is kept.
    pub score: Option<Score>,
}

/// Which tokens of a prompt are scored, each by the logits behind all that stand before it. Bias, penalties and masks are
/// for what is chosen: they don't touch these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// The first of them, at least 1: nothing stands before token 0. The last is the prompt's.
    pub from: usize,
    /// How many of the likeliest tokens are told of each.
    pub top: usize,
}

impl Request {
    /// Greedy, to the last of `max_tokens`.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self {
            prompt,
            max_tokens,
            params: SamplingParams::default(),
            stop_ids: Arc::from([]),
            priority: Priority::default(),
            boundaries: Vec::new(),
            boundary_ids: Arc::from([]),
            mask: None,
            adapter: 0,
            score: None,
        }
    }

    /// What can be said of a request without looking at the model's state.
    ///
    /// # Errors
    /// The prompt is empty, names an unknown id, or does not fit `context` with the tokens asked for; a sampling
    /// parameter is impossible.
    pub fn validate(&self, context: usize, vocab: usize) -> Result<()> {
        let (prompt, max) = (self.prompt.len(), self.max_tokens);
        if prompt == 0 {
            return Err(Error::usage("the prompt has no tokens").hint("give it some text"));
        }
        if max == 0 && self.score.is_none() {
            return Err(Error::usage("0 tokens were asked for").at("max_tokens"));
        }
        if let Some(Score { from, .. }) = self.score
            && !(1..=prompt).contains(&from)
        {
            let what =
                format!("token {from} of a prompt of {prompt} can't be the first one scored");
            return Err(Error::usage(what)
                .at("score")
                .hint("1 is the first that has any before it"));
        }
        if prompt.saturating_add(max) > context {
            let what = format!(
                "a prompt of {prompt} tokens and {max} more do not fit the context of {context}"
            );
            return Err(Error::usage(what).hint("shorten the prompt or ask for fewer tokens"));
        }
        if let Some(id) = self.prompt.iter().find(|&&id| id as usize >= vocab) {
            let what = format!("token {id} is outside of the vocabulary of {vocab}");
            return Err(Error::usage(what).at("prompt"));
        }
        self.params.validate(vocab)
    }
}

/// How urgent a request is. Nobody starves: who waits rises, and every prompt reads something in every step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// After all others.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl Priority {
    /// Its weight beside other prompts.
    pub const fn weight(self) -> usize {
        [1, 4, 16][self as usize]
    }
}

/// Which tokens are possible next: a grammar. It follows one row and is asked before each token is chosen.
pub trait TokenMask: Send {
    /// Sets the logits of impossible tokens to negative infinity.
    ///
    /// # Errors
    /// No token is possible, or the grammar has failed; the row ends with the error.
    fn apply(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Takes in the token that was chosen.
    ///
    /// # Errors
    /// The token was not possible; the row ends with the error.
    fn accept(&mut self, id: u32) -> Result<()>;

    /// Whether the text ends with what was accepted so far, whatever the request says about its end.
    fn is_done(&self) -> bool {
        false
    }

    /// The same, to follow another row.
    fn fork(&self) -> Box<dyn TokenMask>;
}

/// A [`TokenMask`] of a request.
pub struct Mask(pub Box<dyn TokenMask>);

impl Clone for Mask {
    fn clone(&self) -> Self {
        Self(self.0.fork())
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask")
    }
}

/// A request in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(pub u64);

/// Why a row has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the text.
    Stop,
    /// All tokens that were asked for are there.
    Length,
}

/// What happened in a step.
#[derive(Clone, Debug)]
pub enum Event {
    /// A row has got its place.
    Started {
        /// Which row.
        row: RowId,
        /// Tokens of the prompt that need not be read again.
        cached: usize,
        /// Why there are none.
        miss: Option<Miss>,
    },
    /// More of a prompt was read.
    Progress {
        /// Which row.
        row: RowId,
        /// Tokens read, cached ones included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Tokens of the prompt were scored, as [`Score`] asks. They come in order and all before the first that is chosen.
    Scored {
        /// Which row.
        row: RowId,
        /// The next tokens of the prompt, with their log-probabilities.
        scores: Vec<Choice>,
    },
    /// A token was chosen.
    Token {
        /// Which row.
        row: RowId,
        /// The token, with its logprobs if they were asked for. A token that ends the text is reported too.
        choice: Choice,
    },
    /// The row is done, and its memory is back.
    Finished {
        /// Which row.
        row: RowId,
        /// Why.
        reason: FinishReason,
    },
    /// The row failed, and its memory is back.
    Failed {
        /// Which row.
        row: RowId,
        /// Why.
        error: Error,
    },
}

impl Event {
    /// The row it is about.
    pub fn row(&self) -> RowId {
        match self {
            Self::Started { row, .. }
            | Self::Progress { row, .. }
            | Self::Scored { row, .. }
            | Self::Token { row, .. }
            | Self::Finished { row, .. }
            | Self::Failed { row, .. } => *row,
        }
    }

    /// Whether it is the last of its row.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed { .. })
    }
}
