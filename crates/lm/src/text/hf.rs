//! `tokenizer.json` through the `tokenizers` crate.
//!
//! Owns the border to that crate: what it panics on becomes an error here, and its decoders become
//! a table of token bytes. Refuses decoders whose text depends on more than the single token.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, AddedVocabulary, Model, OffsetReferential, OffsetType, PreTokenizer};

use super::tokenizer::{Encoder, Frame, Tokenizer};
use super::vocab::{TokenTable, byte_level_bytes, byte_token};
use crate::{Error, Result};

/// Ids may leave holes in a vocabulary, but not more than this and one a token.
const MAX_HOLES: usize = 1 << 16;

/// An encoder of the `tokenizers` crate.
pub(super) struct Pipeline {
    inner: tokenizers::Tokenizer,
    /// The added tokens, with special ones left as text.
    plain: AddedVocabulary,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

impl Pipeline {
    pub(super) fn new(inner: tokenizers::Tokenizer) -> Self {
        let mut plain = inner.get_added_vocabulary().clone();
        plain.set_encode_special_tokens(true);
        Self { inner, plain }
    }

    /// The ids of `text` without beginning and end tokens.
    pub(super) fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        guarded("tokenizing the text", || {
            let added = if special { self.inner.get_added_vocabulary() } else { &self.plain };
            let mut pieces = added.extract_and_normalize(self.inner.get_normalizer(), text);
            if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            pieces.tokenize(|piece| self.inner.get_model().tokenize(piece.get()))?;
            let tokens = pieces.get_splits(OffsetReferential::Normalized, OffsetType::None);
            Ok(tokens.iter().flat_map(|split| split.2.iter().flatten()).map(|t| t.id).collect())
        })
        .map_err(|error| Error::usage(error.to_string()))
    }
}

/// Runs code of the `tokenizers` crate; its errors and panics become errors of a file.
pub(super) fn guarded<T>(doing: &str, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Error::file(format!("{doing} failed: {error}"))),
        Err(_) => Err(Error::file(format!("{doing} failed: the tokenizer contradicts itself"))),
    }
}

/// The fields of `tokenizer_config.json` that concern tokens.
#[derive(Debug, Default)]
struct Config {
    bos: Option<String>,
    eos: Option<String>,
    add_bos: Option<bool>,
    add_eos: Option<bool>,
}

impl Config {
    fn read(config: &Value) -> Result<Self> {
        if !config.is_object() {
            return Err(Error::file("not a JSON object").at("tokenizer_config.json"));
        }
        let token = |field: &str| match config.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => match other.get("content").and_then(Value::as_str) {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(Error::file("neither a string nor a token object")
                    .at(field)
                    .at("tokenizer_config.json")),
            },
        };
        let flag = |field: &str| match config.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(Error::file("not a boolean").at(field).at("tokenizer_config.json")),
        };
        Ok(Self {
            bos: token("bos_token")?,
            eos: token("eos_token")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
        })
    }
}

pub(super) fn from_json(json: &[u8], config: Option<&Value>) -> Result<Tokenizer> {
    let config = config.map(Config::read).transpose()?.unwrap_or_default();
    read(json, &config).map_err(|error| error.at("tokenizer.json"))
}

fn read(json: &[u8], config: &Config) -> Result<Tokenizer> {
    let stated: Stated =
        serde_json::from_slice(json).map_err(|error| Error::file(error.to_string()))?;
    let mut inner = guarded("reading the tokenizer", || tokenizers::Tokenizer::from_bytes(json))?;
    stated.check(&inner)?;
    guarded("lifting limits", || {
        inner.with_padding(None);
        inner.with_truncation(None).map(|_| ())
    })?;
    let bos = named_token(&mut inner, config.bos.as_deref())?;
    let eos = named_token(&mut inner, config.eos.as_deref())?;

    let decoder = serde_json::to_value(inner.get_decoder())
        .map_err(|error| Error::file(error.to_string()).at("decoder"))?;
    let mut pieces = Pieces::default();
    pieces.read(&decoder).map_err(|error| error.at("decoder"))?;
    let table = token_table(&inner, &pieces)?;

    let (prefix, suffix) = guarded("probing the post-processor", || affixes(&inner))?;
    let mut frame = Frame { bos, eos, prefix, suffix };
    frame.set(config.add_bos, config.add_eos)?;
    let encoder = Encoder::Pipeline(Box::new(Pipeline::new(inner)));
    Ok(Tokenizer { encoder, table, frame, drops_first_space: pieces.drops_first_space })
}

/// The id of a token that the config names; it is special from here on.
fn named_token(inner: &mut tokenizers::Tokenizer, text: Option<&str>) -> Result<Option<u32>> {
    let Some((text, id)) = text.and_then(|text| Some((text, inner.token_to_id(text)?))) else {
        return Ok(None);
    };
    if !inner.get_added_vocabulary().is_special_token(text) {
        guarded("adding a special token", || {
            inner.add_special_tokens(&[AddedToken::from(text, true)]);
            Ok(())
        })?;
    }
    Ok(Some(id))
}

/// The part of the file that is read before the crate reads it: it panics on bad syntax.
#[derive(Deserialize)]
struct Stated {
    #[serde(default)]
    added_tokens: Vec<StatedToken>,
}

#[derive(Deserialize)]
struct StatedToken {
    id: u32,
    content: String,
}

impl Stated {
    /// The file states the ids of added tokens, the crate counts them anew: they must agree.
    fn check(&self, inner: &tokenizers::Tokenizer) -> Result<()> {
        for StatedToken { id, content } in &self.added_tokens {
            let counted = inner.token_to_id(content);
            if counted != Some(*id) && !content.is_empty() {
                let what = format!("token `{content}` has id {id}, but counts as {counted:?}");
                return Err(Error::file(what).at("added_tokens"));
            }
        }
        Ok(())
    }
}

/// What the post-processor puts before and after a text.
fn affixes(inner: &tokenizers::Tokenizer) -> tokenizers::Result<(Vec<u32>, Vec<u32>)> {
    for probe in ["a", "0", " "] {
        let plain = inner.encode_fast(probe, false)?.get_ids().to_vec();
        let framed = inner.encode_fast(probe, true)?.get_ids().to_vec();
        let found = framed.windows(plain.len().max(1)).position(|window| window == plain);
        if let Some(start) = found {
            let end = start + plain.len();
            return Ok((framed[..start].to_vec(), framed[end..].to_vec()));
        }
    }
    Ok((inner.encode_fast("", true)?.get_ids().to_vec(), Vec::new()))
}

/// How the text of a token becomes bytes: a `decoder` that looks at one token at a time.
#[derive(Debug, Default)]
struct Pieces {
    byte_level: bool,
    byte_tokens: bool,
    replace: Vec<(String, String)>,
    drops_first_space: bool,
}

impl Pieces {
    fn read(&mut self, decoder: &Value) -> Result<()> {
        let unsupported = |what: &str| Error::unsupported(format!("decoder {what}: {decoder}"));
        let text = |field: &str| decoder.get(field).and_then(Value::as_str);
        match text("type") {
            None if decoder.is_null() => {}
            Some("Sequence") => {
                let parts = decoder.get("decoders").and_then(Value::as_array);
                for part in parts.into_iter().flatten() {
                    self.read(part)?;
                }
            }
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") => self.byte_tokens = true,
            Some("Fuse") => {}
            Some("Metaspace") => {
                let mark = text("replacement").ok_or_else(|| unsupported("without mark"))?;
                self.replace.push((mark.to_owned(), " ".to_owned()));
                self.drops_first_space |= text("prepend_scheme") != Some("never");
            }
            Some("Replace") => {
                let from = decoder.pointer("/pattern/String").and_then(Value::as_str);
                let (Some(from), Some(to)) = (from, text("content")) else {
                    return Err(unsupported("with a pattern"));
                };
                self.replace.push((from.to_owned(), to.to_owned()));
            }
            Some("Strip") => {
                let count = |field: &str| decoder.get(field).and_then(Value::as_u64);
                match (text("content"), count("start"), count("stop")) {
                    (Some(" "), Some(1), Some(0)) => self.drops_first_space = true,
                    (_, Some(0), Some(0)) => {}
                    _ => return Err(unsupported("strips too much")),
                }
            }
            _ => return Err(unsupported("is not made for language models")),
        }
        Ok(())
    }

    fn bytes(&self, text: &str, added: bool) -> Vec<u8> {
        if self.byte_tokens
            && let Some(byte) = byte_token(text)
        {
            return vec![byte];
        }
        if self.byte_level {
            let mapped = if added { None } else { byte_level_bytes(text) };
            return mapped.unwrap_or_else(|| text.as_bytes().to_vec());
        }
        let mut text = text.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        text.into_bytes()
    }
}

fn token_table(inner: &tokenizers::Tokenizer, pieces: &Pieces) -> Result<TokenTable> {
    let added = inner.get_added_tokens_decoder();
    let vocab: HashMap<String, u32> = inner.get_vocab(false);
    let mut tokens: Vec<(u32, String, bool)> = vocab
        .into_iter()
        .filter(|(_, id)| !added.contains_key(id))
        .map(|(text, id)| (id, text, false))
        .collect();
    tokens.extend(added.into_iter().map(|(id, token)| (id, token.content, true)));
    tokens.sort_unstable();
    tokens.dedup_by_key(|token| token.0);
    if let Some((id, text, _)) = tokens.last()
        && *id as usize > 2 * tokens.len() + MAX_HOLES
    {
        let what = format!("token `{text}` has id {id} in a vocabulary of {}", tokens.len());
        return Err(Error::file(what).at("vocab"));
    }
    let mut table = TokenTable::default();
    for (id, text, added) in tokens {
        table.skip_to(id);
        let special = added && inner.get_added_vocabulary().is_special_token(&text);
        table.push(&pieces.bytes(&text, added), special)?;
    }
    Ok(table)
}
