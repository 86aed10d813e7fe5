//! What is known about single tokens: their bytes, their kind, and the vocabulary of a GGUF file.
//!
//! Owns the id -> bytes table and the checks on GGUF vocabulary fields. Refuses to encode.

use crate::{Error, Result};

/// The tokenizer fields of a GGUF file, as they stand there (`tokenizer.ggml.*`).
///
/// Empty vectors stand for missing arrays. Lengths are checked where a tokenizer is built.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `gemma4` (BPE over characters) or `llama` (SentencePiece).
    pub model: String,
    /// `tokenizer.ggml.pre`: which pre-tokenizer cuts the text (`gpt2` only).
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the text of each id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`: merge scores, one a token (`llama` only).
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
    /// 6 byte.
    pub types: Vec<i32>,
    /// `tokenizer.ggml.merges`: `left right`, best first (not of `llama`).
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix` (`llama` only).
    pub add_space_prefix: Option<bool>,
}

/// Token types of GGUF.
pub(super) const TYPE_NORMAL: i32 = 1;
pub(super) const TYPE_UNKNOWN: i32 = 2;
pub(super) const TYPE_CONTROL: i32 = 3;
pub(super) const TYPE_USER: i32 = 4;
pub(super) const TYPE_BYTE: i32 = 6;

impl GgufVocab {
    /// Checks that the arrays have one entry a token and that the named ids exist.
    pub(super) fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(Error::file("the vocabulary is empty").at("tokenizer.ggml.tokens"));
        }
        if u32::try_from(count).is_err() {
            return Err(Error::file("more than 2^32 tokens").at("tokenizer.ggml.tokens"));
        }
        let lengths = [
            ("tokenizer.ggml.scores", self.scores.len(), self.model == "llama"),
            ("tokenizer.ggml.token_type", self.types.len(), self.model == "llama"),
        ];
        for (field, length, required) in lengths {
            if length != count && (required || length != 0) {
                let what = format!("{length} entries for a vocabulary of {count} tokens");
                return Err(Error::file(what).at(field));
            }
        }
        let ids = [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.unknown_token_id", self.unk),
        ];
        for (field, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= count) {
                let what = format!("id {id} is outside a vocabulary of {count} tokens");
                return Err(Error::file(what).at(field));
            }
        }
        Ok(())
    }

    /// The type of a token; normal where the file has no types.
    pub(super) fn kind(&self, id: usize) -> i32 {
        self.types.get(id).copied().unwrap_or(TYPE_NORMAL)
    }

    /// Whether a token is never part of decoded text.
    pub(super) fn is_special(&self, id: usize) -> bool {
        let named = [self.bos, self.eos].into_iter().flatten().any(|named| named as usize == id);
        named || matches!(self.kind(id), TYPE_UNKNOWN | TYPE_CONTROL)
    }
}

/// The bytes of every token, in one block: `bytes[ends[id - 1]..ends[id]]`.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

/// What a row of the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Hole,
    Text,
    Special,
}

impl TokenTable {
    /// Appends the token with the next id.
    pub(super) fn push(&mut self, bytes: &[u8], special: bool) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        let end = u32::try_from(self.bytes.len())
            .map_err(|_| Error::file("the tokens hold more than 4 GiB of text"))?;
        self.ends.push(end);
        self.kinds.push(if special { Kind::Special } else { Kind::Text });
        Ok(())
    }

    /// Appends ids without a token up to (not including) `id`.
    pub(super) fn skip_to(&mut self, id: u32) {
        let end = self.ends.last().copied().unwrap_or(0);
        while self.ends.len() < id as usize {
            self.ends.push(end);
            self.kinds.push(Kind::Hole);
        }
    }

    /// One past the largest id.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token, or none where the id has no token.
    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        if *self.kinds.get(id)? == Kind::Hole {
            return None;
        }
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start as usize..self.ends[id] as usize])
    }

    /// Whether the id is a special token.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Special)
    }
}

/// Undoes the byte-level alphabet of GPT-2: 256 printable characters, one a byte.
///
/// None where the text uses a character outside of that alphabet.
pub(super) fn byte_level_bytes(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of_char).collect()
}

fn byte_of_char(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        // The other 68 bytes, in order: 0x00..=0x20, 0x7F..=0xA0, 0xAD.
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_level_alphabet_is_a_bijection() {
        let bytes: Vec<u8> = (0..0x400u32)
            .filter_map(char::from_u32)
            .filter_map(|c| byte_level_bytes(&c.to_string()))
            .flatten()
            .collect();
        let mut sorted = bytes.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_level_bytes("Ġa").as_deref(), Some(&b" a"[..]));
        assert_eq!(byte_level_bytes("Ċ").as_deref(), Some(&b"\n"[..]));
        assert_eq!(byte_level_bytes("a b"), None);
    }

    #[test]
    fn byte_tokens_are_exact() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        for wrong in ["<0x0>", "<0x+A>", "<0x00A>", "0x0A", "<0xé>"] {
            assert_eq!(byte_token(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn table_has_holes() {
        let mut table = TokenTable::default();
        table.push(b"ab", false).unwrap();
        table.skip_to(3);
        table.push(b"", true).unwrap();
        assert_eq!(table.len(), 4);
        assert_eq!(table.get(0), Some(&b"ab"[..]));
        assert_eq!((table.get(1), table.get(2)), (None, None));
        assert_eq!(table.get(3), Some(&b""[..]));
        assert_eq!(table.get(4), None);
        assert!(table.is_special(3) && !table.is_special(0) && !table.is_special(9));
    }

    #[test]
    fn sizes_and_ids_are_checked() {
        let good = GgufVocab {
            model: "llama".into(),
            tokens: vec!["a".into(), "b".into()],
            scores: vec![0.0; 2],
            types: vec![1; 2],
            ..GgufVocab::default()
        };
        good.check().unwrap();
        let cases = [
            (GgufVocab { scores: vec![0.0], ..good.clone() }, "scores"),
            (GgufVocab { types: vec![], ..good.clone() }, "token_type"),
            (GgufVocab { tokens: vec![], ..good.clone() }, "tokens"),
            (GgufVocab { bos: Some(2), ..good.clone() }, "bos_token_id"),
            (GgufVocab { eos: Some(u32::MAX), ..good.clone() }, "eos_token_id"),
            (GgufVocab { unk: Some(7), ..good.clone() }, "unknown_token_id"),
        ];
        for (vocab, field) in cases {
            let error = vocab.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("tokenizer.ggml.{field}: ")), "{error}");
        }
    }
}
