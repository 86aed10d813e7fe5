//! SentencePiece from the vocabulary of a GGUF file (`tokenizer.ggml.model` = `llama`).
//!
//! Owns merging by score with byte fallback, and finding special tokens in text. Refuses to merge
//! text into a control token: only `special` text can name one.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::tokenizer::{Encoder, Frame, Tokenizer};
use super::vocab::{
    GgufVocab, TYPE_BYTE, TYPE_CONTROL, TYPE_UNKNOWN, TYPE_USER, TokenTable, byte_token,
};
use crate::{Error, Result};

/// SentencePiece writes spaces so.
const SPACE: &str = "▁";
/// Longest special token in bytes, so that looking for one costs little at each place.
const MAX_SPECIAL_BYTES: usize = 512;

/// The encoder.
#[derive(Debug)]
pub(super) struct Spm {
    /// What text may merge into.
    ids: HashMap<Box<str>, u32>,
    scores: Vec<f32>,
    /// Longest key of `ids` in bytes.
    longest: usize,
    /// The token of each byte, for characters that have none.
    bytes: Box<[u32; 256]>,
    special: Trie,
    add_space_prefix: bool,
}

/// Builds the tokenizer; the lengths of the arrays are checked already.
pub(super) fn build(vocab: &GgufVocab) -> Result<Tokenizer> {
    let vocab = &with_default_ids(vocab);
    let mut table = TokenTable::default();
    let mut ids: HashMap<Box<str>, u32> = HashMap::new();
    let mut special = Trie::default();
    for (id, text) in (0u32..).zip(&vocab.tokens) {
        let kind = vocab.kind(id as usize);
        let is_special = vocab.is_special(id as usize);
        match (byte_token(text).filter(|_| kind == TYPE_BYTE), is_special) {
            (Some(byte), _) => table.push(&[byte], is_special)?,
            (None, true) => table.push(text.as_bytes(), true)?,
            (None, false) => table.push(text.replace(SPACE, " ").as_bytes(), false)?,
        }
        if is_special || kind == TYPE_USER {
            special.insert(text, id, is_special)?;
        } else if kind != TYPE_BYTE {
            ids.insert(text.as_str().into(), id);
        }
    }
    let bytes = byte_ids(vocab)?;
    let add_space_prefix = vocab.add_space_prefix.unwrap_or(true);
    let mut frame = Frame { bos: vocab.bos, eos: vocab.eos, ..Frame::default() };
    frame.set(vocab.add_bos.or(vocab.bos.map(|_| true)), vocab.add_eos)?;
    let longest = ids.keys().map(|text| text.len()).max().unwrap_or(0);
    let scores = vocab.scores.clone();
    let spm = Spm { ids, scores, longest, bytes, special, add_space_prefix };
    let encoder = Encoder::Spm(Box::new(spm));
    Ok(Tokenizer { encoder, table, frame, drops_first_space: add_space_prefix })
}

/// SentencePiece counts `<unk>`, `<s>`, `</s>` first: files may leave those ids unsaid.
fn with_default_ids(vocab: &GgufVocab) -> GgufVocab {
    let reserved =
        |id: u32| matches!(vocab.kind(id as usize), TYPE_UNKNOWN | TYPE_CONTROL).then_some(id);
    GgufVocab {
        unk: vocab.unk.or_else(|| reserved(0)),
        bos: vocab.bos.or_else(|| reserved(1)),
        eos: vocab.eos.or_else(|| reserved(2)),
        ..vocab.clone()
    }
}

fn byte_ids(vocab: &GgufVocab) -> Result<Box<[u32; 256]>> {
    let mut ids = [vocab.unk; 256];
    for (id, text) in (0u32..).zip(&vocab.tokens) {
        if vocab.kind(id as usize) == TYPE_BYTE
            && let Some(byte) = byte_token(text)
        {
            ids[usize::from(byte)] = Some(id);
        }
    }
    let missing = ids.iter().position(Option::is_none);
    if let Some(byte) = missing {
        let what = format!("no token `<0x{byte:02X}>` and no unknown token in its place");
        return Err(Error::file(what).at("tokenizer.ggml.tokens"));
    }
    Ok(Box::new(ids.map(|id| id.unwrap_or_default())))
}

impl Spm {
    /// The ids of `text` without beginning and end tokens.
    pub(super) fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        if u32::try_from(text.len().saturating_mul(SPACE.len())).is_err() {
            return Err(Error::new(crate::Kind::Limit, "a text of more than a gigabyte"));
        }
        let mut out = Vec::new();
        let mut after_special = true;
        let mut start = 0;
        let mut at = 0;
        while at < text.len() {
            let Some((id, length)) = self.special.longest(&text.as_bytes()[at..], special) else {
                at += 1;
                continue;
            };
            self.encode_plain(&text[start..at], after_special, &mut out);
            out.push(id);
            after_special = true;
            at += length;
            start = at;
        }
        self.encode_plain(&text[start..], after_special, &mut out);
        Ok(out)
    }

    fn encode_plain(&self, text: &str, after_special: bool, out: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut escaped = String::with_capacity(text.len() + SPACE.len());
        if after_special && self.add_space_prefix {
            escaped.push_str(SPACE);
        }
        escaped.push_str(&text.replace(' ', SPACE));
        let mut merger = Merger::new(self, &escaped);
        merger.run();
        for symbol in merger.symbols.iter().filter(|symbol| symbol.length > 0) {
            let piece = merger.text(symbol.start, symbol.length);
            match self.ids.get(piece) {
                Some(&id) => out.push(id),
                None => out.extend(piece.bytes().map(|byte| self.bytes[usize::from(byte)])),
            }
        }
    }
}

const NONE: u32 = u32::MAX;

/// A stretch of text; length 0 once it went into its left neighbour.
#[derive(Debug)]
struct Symbol {
    start: u32,
    length: u32,
    prev: u32,
    next: u32,
}

/// Two neighbours that make a token. The heap gives the best score first, then the leftmost.
#[derive(Debug)]
struct Bigram {
    score: f32,
    left: u32,
    right: u32,
    length: u32,
}

impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bigram {}

/// The merging of one stretch of text: `O(n log n)` in its characters.
struct Merger<'a> {
    spm: &'a Spm,
    escaped: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Bigram>,
}

impl<'a> Merger<'a> {
    fn new(spm: &'a Spm, escaped: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = Vec::new();
        for (index, (start, c)) in (0u32..).zip(escaped.char_indices()) {
            symbols.push(Symbol {
                start: start as u32,
                length: c.len_utf8() as u32,
                prev: index.checked_sub(1).unwrap_or(NONE),
                next: index + 1,
            });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        Self { spm, escaped, symbols, queue: BinaryHeap::new() }
    }

    fn text(&self, start: u32, length: u32) -> &'a str {
        &self.escaped[start as usize..(start + length) as usize]
    }

    fn run(&mut self) {
        for left in 0..self.symbols.len() as u32 {
            self.offer(left, self.symbols[left as usize].next);
        }
        while let Some(Bigram { left, right, length, .. }) = self.queue.pop() {
            let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
            // Either side has since merged elsewhere.
            if l.length == 0 || r.length == 0 || l.length + r.length != length {
                continue;
            }
            let (prev, next) = (l.prev, r.next);
            self.symbols[right as usize].length = 0;
            let merged = &mut self.symbols[left as usize];
            merged.length = length;
            merged.next = next;
            if next != NONE {
                self.symbols[next as usize].prev = left;
            }
            self.offer(prev, left);
            self.offer(left, next);
        }
    }

    fn offer(&mut self, left: u32, right: u32) {
        if left == NONE || right == NONE {
            return;
        }
        let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        let length = l.length + r.length;
        if length as usize > self.spm.longest {
            return;
        }
        if let Some(&id) = self.spm.ids.get(self.text(l.start, length)) {
            let score = self.spm.scores[id as usize];
            self.queue.push(Bigram { score, left, right, length });
        }
    }
}

/// Special and user-defined tokens by their text.
#[derive(Debug, Default)]
struct Trie {
    nodes: Vec<Node>,
}

#[derive(Debug, Default)]
struct Node {
    /// (byte, node), in order of the bytes.
    next: Vec<(u8, u32)>,
    /// The token that ends here, and whether only `special` text may name it.
    token: Option<(u32, bool)>,
}

impl Trie {
    fn insert(&mut self, text: &str, id: u32, special: bool) -> Result<()> {
        if text.len() > MAX_SPECIAL_BYTES {
            let what = format!("special token {id} has {} bytes of text", text.len());
            return Err(Error::file(what).at("tokenizer.ggml.tokens"));
        }
        if text.is_empty() {
            return Ok(());
        }
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut node = 0;
        for &byte in text.as_bytes() {
            let place = self.nodes[node].next.binary_search_by_key(&byte, |edge| edge.0);
            node = match place {
                Ok(edge) => self.nodes[node].next[edge].1 as usize,
                Err(edge) => {
                    let new = self.nodes.len();
                    self.nodes[node].next.insert(edge, (byte, new as u32));
                    self.nodes.push(Node::default());
                    new
                }
            };
        }
        self.nodes[node].token = Some((id, special));
        Ok(())
    }

    /// The longest token at the start of `bytes`, and its length.
    fn longest(&self, bytes: &[u8], special: bool) -> Option<(u32, usize)> {
        let mut node = self.nodes.first()?;
        let mut best = None;
        for (at, byte) in bytes.iter().enumerate() {
            let Ok(edge) = node.next.binary_search_by_key(byte, |edge| edge.0) else {
                break;
            };
            node = &self.nodes[node.next[edge].1 as usize];
            if let Some((id, _)) = node.token.filter(|token| special || !token.1) {
                best = Some((id, at + 1));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests;
