//! Token ids to text, one at a time.
//!
//! Owns the bytes of a code point that is not whole yet (at most three), and nothing else that
//! lasts: memory does not grow with the number of tokens. Refuses to look back.

use std::fmt;
use std::sync::Arc;

use super::tokenizer::Tokenizer;

/// Turns the ids of one completion into text as they come.
///
/// Special tokens are skipped, but for those that are to be shown. All that [`push`](Self::push) and
/// [`flush`](Self::flush) return, put together, is [`Tokenizer::decode`] of the ids with `skip_special` where none are
/// shown.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    stream: Utf8Stream,
    at_start: bool,
    text: String,
    /// In order.
    shown: Vec<u32>,
    mark: Option<usize>,
}

impl fmt::Debug for Detokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detokenizer").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Detokenizer {
    /// Starts a text of its own: a space that encoding puts before the first word is dropped.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let at_start = tokenizer.drops_first_space;
        let (stream, text) = (Utf8Stream::default(), String::new());
        Self { tokenizer, stream, at_start, text, shown: Vec::new(), mark: None }
    }

    /// Goes on with a text that exists: the first space is kept.
    pub fn continuing(tokenizer: Arc<Tokenizer>) -> Self {
        Self { at_start: false, ..Self::new(tokenizer) }
    }

    /// Lets these tokens through as text, special or not, and tells of them: see [`mark`](Self::mark).
    #[must_use]
    pub fn showing(mut self, ids: &[u32]) -> Self {
        self.shown = ids.to_vec();
        self.shown.sort_unstable();
        self
    }

    /// The byte of the last push's text at which a token of [`showing`](Self::showing) begins, if it was one.
    pub fn mark(&self) -> Option<usize> {
        self.mark
    }

    /// Takes one id; returns the code points that became whole, often none.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        let shown = self.shown.binary_search(&id).is_ok();
        self.mark = None;
        if let Some(bytes) = self.tokenizer.text_bytes(id, !shown, &mut self.at_start) {
            self.stream.push(bytes, &mut self.text);
            self.mark = self.text.len().checked_sub(bytes.len()).filter(|_| shown);
        }
        &self.text
    }

    /// Ends the text: an unfinished code point comes out as U+FFFD.
    pub fn flush(&mut self) -> String {
        let mut text = String::new();
        self.stream.finish(&mut text);
        text
    }
}

/// Bytes in any cuts to the text that `String::from_utf8_lossy` makes of the whole.
#[derive(Debug, Default)]
pub(super) struct Utf8Stream {
    /// The start of a code point that may still become whole.
    held: Vec<u8>,
}

impl Utf8Stream {
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.held.is_empty() {
            let rest = decode(bytes, out);
            self.held.extend_from_slice(rest);
            return;
        }
        self.held.extend_from_slice(bytes);
        let rest = decode(&self.held, out).len();
        self.held.drain(..self.held.len() - rest);
    }

    pub(super) fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends what can be decided; returns the rest, the start of a code point.
fn decode<'a>(bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        out.push_str(chunk.valid());
        let bad = chunk.invalid();
        let unfinished = || std::str::from_utf8(bad).is_err_and(|e| e.error_len().is_none());
        if chunks.peek().is_none() && unfinished() {
            return bad;
        }
        if !bad.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    fn stream(bytes: &[u8], cuts: &[usize]) -> String {
        let mut stream = Utf8Stream::default();
        let mut out = String::new();
        let mut rest = bytes;
        for &cut in cuts {
            let (head, tail) = rest.split_at(cut.min(rest.len()));
            stream.push(head, &mut out);
            assert!(stream.held.len() < 4);
            rest = tail;
        }
        stream.push(rest, &mut out);
        stream.finish(&mut out);
        out
    }

    /// Bytes that are often nearly UTF-8.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            (any::<char>(), 1usize..4).prop_map(|(c, n)| {
                let mut bytes = c.to_string().into_bytes();
                bytes.truncate(n);
                bytes
            }),
            prop::collection::vec(any::<u8>(), 0..3),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    /// Draws the same cases at every run.
    fn cases(cases: u32) -> ProptestConfig {
        let rng_seed = RngSeed::Fixed(1);
        ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(cases(500))]
        #[test]
        fn any_cut_equals_lossy(bytes in bytes(), cuts in prop::collection::vec(0usize..4, 0..40)) {
            prop_assert_eq!(stream(&bytes, &cuts), String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn whole_points_leave_at_once() {
        let mut stream = Utf8Stream::default();
        let mut out = String::new();
        for (byte, seen) in "é".bytes().zip(["", "é"]) {
            stream.push(&[byte], &mut out);
            assert_eq!(out, seen);
        }
        stream.push(&[0xF0, 0x9F], &mut out);
        assert_eq!(out, "é");
        stream.push(b"x", &mut out);
        assert_eq!(out, "é\u{FFFD}x");
    }
}
