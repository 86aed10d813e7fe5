//! A vocabulary as grammars see it: a tree of the bytes of all tokens, made once a model.
//!
//! Owns which ids are text, which are special and which end a text. Refuses to know any grammar.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};

use super::compile::{guarded, limits};
use crate::error::{Error, Kind, Result};
use crate::text::Tokenizer;

/// A token of more bytes is impossible under a grammar: the tree has places for 1024 levels.
const LONGEST: usize = 1000;
/// Bytes of all tokens at most; the tree has 22 bits for its nodes.
const MOST_BYTES: usize = (1 << 22) - 1;

/// Ids by the bytes they stand for. About 20 bytes for each byte of a token, and as much again for the tokens of JSON
/// strings, which have trees of their own.
pub(super) struct Vocabulary {
    factory: ParserFactory,
    /// Special tokens and marks by their text, the longest first: what markers of tool calls may be made of.
    specials: Vec<(Vec<u8>, u32)>,
    ends: Arc<[u32]>,
    size: usize,
}

impl Vocabulary {
    /// The vocabulary of logits of `size` ids; `ends` are those that end a text, `marks` are as special ones.
    ///
    /// # Errors
    /// An end is outside of the vocabulary, or it is larger than the tree can hold.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        size: usize,
        ends: &[u32],
        marks: &[u32],
    ) -> Result<Self> {
        if let Some(end) = ends.iter().find(|&&end| end as usize >= size) {
            let what = format!("token {end} is outside of the vocabulary of {size}");
            return Err(Error::usage(what).at("ids that end a text"));
        }
        let is_special = |id: u32| tokenizer.is_special(id) || marks.contains(&id);
        let word = |id| word(tokenizer, id, is_special(id) || ends.contains(&id));
        let words: Vec<Vec<u8>> = (0..size as u32).map(word).collect();
        let bytes: usize = words.iter().map(Vec::len).sum();
        if size >= 1 << 22 || bytes > MOST_BYTES {
            let what = format!("a vocabulary of {size} tokens and {bytes} bytes");
            let hint = format!("grammars work with up to {MOST_BYTES} bytes");
            return Err(Error::new(Kind::Unsupported, what).hint(hint));
        }
        let mut specials: Vec<(Vec<u8>, u32)> = (0..size as u32)
            .filter(|&id| is_special(id))
            .filter_map(|id| Some((tokenizer.token_bytes(id)?.into_owned(), id)))
            .filter(|(text, _)| !text.is_empty())
            .collect();
        specials.sort_by_key(|(text, id)| (std::cmp::Reverse(text.len()), *id));
        let factory = guarded(Kind::Unsupported, || {
            let mut trie = TokTrie::from(&TokRxInfo::new(size as u32, INVALID_TOKEN), &words);
            if !ends.is_empty() {
                trie = trie.with_eos_tokens(ends);
            }
            // It never cuts text into tokens: the model does, and no cut is forced upon it.
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = llguidance::earley::SlicedBiasComputer::general_slices();
            let can = InferenceCapabilities::default();
            let mut factory = ParserFactory::new(&env, can, &slices).map_err(|e| e.to_string())?;
            *factory.limits_mut() = limits();
            factory.quiet();
            Ok(factory)
        })
        .map_err(|error| error.at("the tokenizer's vocabulary"))?;
        Ok(Self { factory, specials, ends: ends.into(), size })
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.factory
    }

    /// How many logits a mask is for.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The ids that end a text.
    pub(super) fn ends(&self) -> &Arc<[u32]> {
        &self.ends
    }

    /// The special token that `text` starts with, and how long its text is; the longest one.
    pub(super) fn special_at(&self, text: &[u8]) -> Option<(u32, usize)> {
        let found = self.specials.iter().find(|(special, _)| text.starts_with(special));
        found.map(|(special, id)| (*id, special.len()))
    }
}

/// The bytes under which a token stands in the tree; none for one that is impossible. Those of a special one begin with
/// a byte that no UTF-8 has, so that text never matches it.
fn word(tokenizer: &Tokenizer, id: u32, special: bool) -> Vec<u8> {
    const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
    let Some(bytes) = tokenizer.token_bytes(id) else { return Vec::new() };
    if bytes.len() > LONGEST || bytes.is_empty() || (!special && bytes[0] == MARK) {
        return Vec::new();
    }
    let mark: &[u8] = if special { &[MARK] } else { &[] };
    [mark, &bytes].concat()
}
