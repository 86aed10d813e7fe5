//! Answers of a given form: JSON of a schema, an expression, a choice, a grammar, calls of tools.
//!
//! Owns the way from what a request asks for to a mask of the engine ([`crate::engine::TokenMask`]), and the bounds on
//! what that may cost. Refuses to know a protocol, a model or a sampler. A grammar is about the bytes of tokens: any cut
//! of its text into tokens is possible, and the model chooses one.
//!
//! ```
//! # use std::sync::Arc;
//! # use longrun_lm::text::{GgufVocab, Tokenizer};
//! use longrun_lm::grammar::{Grammar, GrammarFactory};
//!
//! # let tokens = ["a", "b", "<|end|>"].map(String::from).to_vec();
//! # let vocab = GgufVocab { model: "gpt2".into(), pre: Some("gpt-2".into()), tokens, types: vec![1, 1, 3],
//! #     ..GgufVocab::default() };
//! # let tokenizer = Arc::new(Tokenizer::from_gguf(&vocab)?);
//! let grammars = GrammarFactory::new(tokenizer, 3, &[2]);
//! let mut mask = grammars.compile(&Grammar::regex("ab"))?.mask();
//! let mut logits = [0.0; 3];
//! mask.0.apply(&mut logits)?;
//! assert_eq!(logits, [0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
//! # Ok::<(), longrun_lm::Error>(())
//! ```

mod calls;
mod compile;
mod gate;
mod mask;
mod schema;
mod shown;
mod vocabulary;

use std::sync::{Arc, OnceLock};

use llguidance::Matcher;
use llguidance::api::GrammarWithLexer;
use serde_json::{Value, json};

use crate::engine::Mask;
use crate::error::{Error, Result};
use crate::text::Tokenizer;

pub use calls::{CallBody, CallShape, Choice, Tool};
pub use gate::Reasoning;
use mask::GrammarMask;
use schema::MOST_EXPRESSION;
use vocabulary::Vocabulary;

/// Bytes of all choices at most.
const MOST_CHOICES: usize = 1 << 18;
/// Bytes and lines of a grammar at most: terminals that name others are as deep.
const MOST_TEXT: (usize, usize) = (1 << 16, 1000);

/// The form of an answer. [`GrammarFactory::compile`] says whether it is a possible one.
#[derive(Clone, Debug)]
pub struct Grammar(Form);

#[derive(Clone, Debug)]
enum Form {
    Schema(Value),
    Regex(String),
    Choice(Vec<String>),
    Lark(String),
    Calls(Box<calls::Calls>),
}

impl Grammar {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self(Form::Schema(json!({"type": "object"})))
    }

    /// JSON of a schema, with keys in the schema's order and at most 64 white space characters in a place.
    pub fn json_schema(schema: &Value) -> Self {
        Self(Form::Schema(schema.clone()))
    }

    /// Text that an expression matches from its first to its last byte. The syntax is that of the crate `regex`, with
    /// neither anchors nor references.
    pub fn regex(expression: &str) -> Self {
        Self(Form::Regex(expression.to_owned()))
    }

    /// One of some texts.
    pub fn choice(texts: &[String]) -> Self {
        Self(Form::Choice(texts.to_vec()))
    }

    /// Text of a context-free grammar in the notation of Lark, as the crate `llguidance` reads it. It begins with the
    /// rule `start`.
    pub fn lark(grammar: &str) -> Self {
        Self(Form::Lark(grammar.to_owned()))
    }

    /// Calls of tools as a model writes them; see [`CallShape`].
    pub fn tool_calls(shape: &CallShape, tools: &[Tool], choice: Choice, parallel: bool) -> Self {
        let (shape, tools) = (shape.clone(), tools.to_vec());
        Self(Form::Calls(Box::new(calls::Calls { shape, tools, choice, parallel })))
    }

    /// In the words of the library.
    fn written(&self, vocabulary: &Vocabulary) -> Result<GrammarWithLexer> {
        match &self.0 {
            Form::Schema(schema) => {
                let schema = schema::checked(schema, true).map_err(|e| e.at("json_schema"))?;
                Ok(GrammarWithLexer::from_json_schema(schema))
            }
            Form::Regex(expression) => {
                short(expression.len(), MOST_EXPRESSION, "bytes").map_err(|e| e.at("regex"))?;
                Ok(GrammarWithLexer::from_regex(expression))
            }
            Form::Choice(texts) => {
                let bytes = texts.iter().map(String::len).sum();
                short(bytes, MOST_CHOICES, "bytes").map_err(|e| e.at("choice"))?;
                if texts.is_empty() {
                    return Err(Error::usage("there is nothing to choose from").at("choice"));
                }
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                let lark = format!("start: CHOICE\nCHOICE: {}", texts.join(" | "));
                Ok(GrammarWithLexer::from_lark(lark))
            }
            Form::Lark(grammar) => {
                let (bytes, lines) = MOST_TEXT;
                let is_short = short(grammar.len(), bytes, "bytes");
                let is_short = is_short.and(short(grammar.lines().count(), lines, "lines"));
                is_short.map_err(|e| e.at("grammar"))?;
                Ok(GrammarWithLexer::from_lark(grammar.clone()))
            }
            Form::Calls(calls) => {
                let lark = calls.lark(vocabulary).map_err(|e| e.at("tools"))?;
                Ok(GrammarWithLexer::from_lark(lark))
            }
        }
    }

    /// The name of its kind, for errors.
    fn name(&self) -> &'static str {
        match &self.0 {
            Form::Schema(_) => "json_schema",
            Form::Regex(_) => "regex",
            Form::Choice(_) => "choice",
            Form::Lark(_) => "grammar",
            Form::Calls(_) => "tools",
        }
    }
}

fn short(count: usize, most: usize, of: &str) -> Result<()> {
    if count > most {
        return Err(Error::usage(format!("{count} {of}, where {most} are the most")));
    }
    Ok(())
}

/// A text as Lark writes it.
fn literal(text: &str) -> String {
    // A string without escapes may not hold what JSON leaves as it is.
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Makes the grammars of one model. What it needs to know of the vocabulary is worked out when the first one is asked
/// for, and shared by all.
#[derive(Clone)]
pub struct GrammarFactory(Arc<Shared>);

struct Shared {
    tokenizer: Arc<Tokenizer>,
    size: usize,
    ends: Vec<u32>,
    marks: Vec<u32>,
    vocabulary: OnceLock<Result<Arc<Vocabulary>>>,
}

impl GrammarFactory {
    /// For a model with logits for `size` ids, of which `ends` end a text. Without any, a row ends by itself where its
    /// grammar is complete.
    pub fn new(tokenizer: Arc<Tokenizer>, size: usize, ends: &[u32]) -> Self {
        Self::marking(tokenizer, size, ends, &[])
    }

    /// The same; `marks` are ids that stand for themselves as special tokens do, and are no text: what is told by
    /// tokens in an answer, see [`Format::markers`](crate::answer::Format::markers).
    pub fn marking(tokenizer: Arc<Tokenizer>, size: usize, ends: &[u32], marks: &[u32]) -> Self {
        let (ends, marks) = (ends.to_vec(), marks.to_vec());
        Self(Arc::new(Shared { tokenizer, size, ends, marks, vocabulary: OnceLock::new() }))
    }

    /// Checks a grammar and makes it ready: milliseconds for a common one, seconds for one that is made to be slow. The
    /// first call makes the tree of the vocabulary too.
    ///
    /// # Errors
    /// Of kind `Usage`: the grammar is broken, unsupported or too large; it says where. Others: the vocabulary of the
    /// tokenizer can't be used, or no thread can be started.
    pub fn compile(&self, grammar: &Grammar) -> Result<Compiled> {
        let Shared { tokenizer, size, ends, marks, vocabulary } = &*self.0;
        let vocabulary = vocabulary
            .get_or_init(|| Vocabulary::new(tokenizer, *size, ends, marks).map(Arc::new))
            .clone()?;
        let written = grammar.written(&vocabulary)?;
        let ready = compile::compile(&vocabulary, written).map_err(|e| e.at(grammar.name()))?;
        Ok(Compiled { vocabulary, ready: Arc::new(ready) })
    }
}

/// A grammar of one model, for any number of rows.
#[derive(Clone)]
pub struct Compiled {
    vocabulary: Arc<Vocabulary>,
    ready: Arc<Matcher>,
}

impl Compiled {
    /// The mask of a row that begins with the grammar.
    pub fn mask(&self) -> Mask {
        Mask(Box::new(GrammarMask::new(self.vocabulary.clone(), self.ready.clone())))
    }
}
