//! The one tokenizer of the engine, whatever file it came from.
//!
//! Owns framing (beginning and end tokens), decoding and the facts about single ids. Refuses to
//! know how text is cut into tokens: that is the encoder's affair.

use std::borrow::Cow;

use super::detokenizer::Utf8Stream;
use super::gguf_bpe;
use super::hf::{self, Pipeline};
use super::spm::{self, Spm};
use super::vocab::{GgufVocab, TokenTable};

use crate::{Error, Result};

/// Text to token ids and back.
///
/// ```
/// # use longrun_lm::text::{GgufVocab, Tokenizer};
/// let vocab = GgufVocab {
///     model: "gpt2".into(),
///     pre: Some("gpt-2".into()),
///     tokens: ["a", "b", "Ġ", "Ġa", "<|end|>"].map(String::from).to_vec(),
///     types: vec![1, 1, 1, 1, 3],
///     merges: vec!["Ġ a".into()],
///     ..GgufVocab::default()
/// };
/// let tokenizer = Tokenizer::from_gguf(&vocab)?;
/// let ids = tokenizer.encode("b a<|end|>", true)?;
/// assert_eq!(ids, [1, 3, 4]);
/// assert_eq!(tokenizer.decode(&ids, true), "b a");
/// # Ok::<(), longrun_lm::Error>(())
/// ```
#[derive(Debug)]
pub struct Tokenizer {
    pub(super) encoder: Encoder,
    pub(super) table: TokenTable,
    pub(super) frame: Frame,
    /// Decoded text loses its first space, which encoding puts there.
    pub(super) drops_first_space: bool,
}

/// How text is cut into tokens.
#[derive(Debug)]
pub(super) enum Encoder {
    /// The `tokenizers` crate.
    Pipeline(Box<Pipeline>),
    /// SentencePiece merges by score.
    Spm(Box<Spm>),
}

/// The tokens put around a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) prefix: Vec<u32>,
    pub(super) suffix: Vec<u32>,
}

impl Frame {
    /// Applies `add_bos` and `add_eos` where the file states them.
    pub(super) fn set(&mut self, add_bos: Option<bool>, add_eos: Option<bool>) -> Result<()> {
        let missing = |flag: &str, id: &str| {
            Error::file(format!("`{flag}` is true but no {id} token is known"))
                .hint(format!("name a {id} token that is in the vocabulary, or set `{flag}` false"))
        };
        match (add_bos, self.bos) {
            (Some(true), None) => return Err(missing("add_bos_token", "bos")),
            (Some(true), Some(bos)) if self.prefix.first() != Some(&bos) => {
                self.prefix.insert(0, bos);
            }
            (Some(false), Some(bos)) if self.prefix.first() == Some(&bos) => {
                self.prefix.remove(0);
            }
            _ => {}
        }
        match (add_eos, self.eos) {
            (Some(true), None) => return Err(missing("add_eos_token", "eos")),
            (Some(true), Some(eos)) if self.suffix.last() != Some(&eos) => self.suffix.push(eos),
            (Some(false), Some(eos)) if self.suffix.last() == Some(&eos) => {
                self.suffix.pop();
            }
            _ => {}
        }
        Ok(())
    }

    fn around(&self, ids: Vec<u32>) -> Vec<u32> {
        let prefix = if ids.starts_with(&self.prefix) { &[][..] } else { &self.prefix };
        let suffix = if ids.ends_with(&self.suffix) { &[][..] } else { &self.suffix };
        if prefix.is_empty() && suffix.is_empty() {
            return ids;
        }
        [prefix, &ids, suffix].concat()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, where given, `tokenizer_config.json`.
    ///
    /// The config supplies `bos_token`, `eos_token`, `add_bos_token` and `add_eos_token`.
    ///
    /// # Errors
    /// Malformed JSON, a field of the wrong type, ids that contradict each other, or a decoder
    /// that is not made for language models.
    pub fn from_json(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&serde_json::Value>,
    ) -> Result<Self> {
        hf::from_json(tokenizer_json, tokenizer_config)
    }

    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// # Errors
    /// An unknown model or pre-tokenizer, arrays of unequal length, ids or merges that name no
    /// token: the error names the field.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self> {
        match vocab.model.as_str() {
            "gpt2" => {
                vocab.check()?;
                gguf_bpe::build(vocab)
            }
            "gemma4" => {
                vocab.check()?;
                gguf_bpe::build_spaced(vocab)
            }
            "llama" => {
                vocab.check()?;
                spm::build(vocab)
            }
            other => Err(Error::unsupported(format!("unknown tokenizer model `{other}`"))
                .at("tokenizer.ggml.model")
                .hint("known models: gpt2, gemma4, llama")),
        }
    }

    /// The ids of `text`.
    ///
    /// With `special`, the text of special tokens becomes their ids, and beginning and end tokens
    /// are added as the tokenizer says, unless the text itself has them there. Without it, the
    /// text is data: no special token can come out.
    ///
    /// # Errors
    /// Text that the tokenizer cannot cut (no token for a byte, a pre-tokenizer that gives up).
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let ids = self.encode_bare(text, special)?;
        Ok(if special { self.framed(ids) } else { ids })
    }

    /// The same without beginning and end tokens, whether or not the text of special tokens becomes their ids.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_bare(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        match &self.encoder {
            Encoder::Pipeline(pipeline) => pipeline.encode(text, special),
            Encoder::Spm(spm) => spm.encode(text, special),
        }
    }

    /// `ids` between beginning and end tokens as the tokenizer says, unless they are there.
    pub fn framed(&self, ids: Vec<u32>) -> Vec<u32> {
        self.frame.around(ids)
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD, ids without a token nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut stream = Utf8Stream::default();
        let mut at_start = self.drops_first_space;
        for &id in ids {
            if let Some(bytes) = self.text_bytes(id, skip_special, &mut at_start) {
                stream.push(bytes, &mut text);
            }
        }
        stream.finish(&mut text);
        text
    }

    /// How many characters of [`decode`](Self::decode), special tokens included, stand before each of `ids`. A token that
    /// goes on with a code point begins where that begins.
    pub fn offsets(&self, ids: &[u32]) -> Vec<usize> {
        let (mut stream, mut text) = (Utf8Stream::default(), String::new());
        let (mut at_start, mut characters) = (self.drops_first_space, 0);
        let mut offset = |&id: &u32| {
            let before = characters;
            if let Some(bytes) = self.text_bytes(id, false, &mut at_start) {
                text.clear();
                stream.push(bytes, &mut text);
                characters += text.chars().count();
            }
            before
        };
        ids.iter().map(&mut offset).collect()
    }

    /// The bytes that `id` adds to a text; `at_start` is true until the first byte went by.
    pub(super) fn text_bytes(
        &self,
        id: u32,
        skip_special: bool,
        at_start: &mut bool,
    ) -> Option<&[u8]> {
        if skip_special && self.is_special(id) {
            return None;
        }
        let bytes = self.table.get(id).filter(|bytes| !bytes.is_empty())?;
        let first = std::mem::replace(at_start, false);
        Some(bytes.strip_prefix(b" ").filter(|_| first).unwrap_or(bytes))
    }

    /// The raw bytes of one token, alone: not always whole code points. None for an unused id.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.table.get(id).map(Cow::Borrowed)
    }

    /// The token whose bytes are `text`, a special one first. It looks at every token: keep what it finds.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let ids = 0..self.table.len() as u32;
        let all = ids.filter(|&id| self.table.get(id) == Some(text.as_bytes()));
        all.min_by_key(|&id| !self.is_special(id))
    }

    /// Whether `id` is a special token: it means something to the model and is not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// One past the largest id; some ids below it may have no token.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The tokens that go before a text, in most cases one or none.
    pub fn prefix(&self) -> &[u32] {
        &self.frame.prefix
    }

    /// The beginning-of-text token.
    pub fn bos(&self) -> Option<u32> {
        self.frame.bos
    }

    /// The end-of-text token.
    pub fn eos(&self) -> Option<u32> {
        self.frame.eos
    }
}
