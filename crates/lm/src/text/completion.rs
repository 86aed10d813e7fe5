//! The text of one completion as its tokens come: detokenized, and cut at the first stop string.
//!
//! Owns a detokenizer and a stop matcher, in that order, and where shown tokens begin in what comes out of them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Detokenizer, StopMatcher, Tokenizer};
use crate::error::Result;

/// Token ids in, text that may be shown out.
pub struct CompletionText {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    text: String,
    /// Bytes that came from the detokenizer, and that were let out.
    read: usize,
    said: usize,
    /// Where shown tokens begin, counted from the first byte; those that are not out yet.
    waiting: VecDeque<usize>,
    marks: Vec<usize>,
}

impl CompletionText {
    /// A completion that goes on with a prompt and ends before any of `stops`.
    ///
    /// # Errors
    /// The stop strings are too many, too long or empty.
    pub fn new(tokenizer: Arc<Tokenizer>, stops: &[String]) -> Result<Self> {
        Ok(Self {
            detokenizer: Detokenizer::continuing(tokenizer),
            stops: StopMatcher::new(stops)?,
            text: String::new(),
            read: 0,
            said: 0,
            waiting: VecDeque::new(),
            marks: Vec::new(),
        })
    }

    /// Lets these tokens through as text though they are special, and tells where they begin: [`marks`](Self::marks).
    #[must_use]
    pub fn showing(mut self, ids: &[u32]) -> Self {
        self.detokenizer = self.detokenizer.showing(ids);
        self
    }

    /// Takes one token. Gives the text that can be shown now, and the index of the stop string that was met: nothing
    /// comes after it.
    pub fn push(&mut self, id: u32) -> (&str, Option<usize>) {
        self.text.clear();
        let new = self.detokenizer.push(id);
        let hit = self.stops.push(new, &mut self.text);
        let length = new.len();
        if let Some(mark) = self.detokenizer.mark() {
            self.waiting.push_back(self.read + mark);
        }
        self.read += length;
        self.marks_of(self.text.len());
        (&self.text, hit)
    }

    /// Ends the text: what was held back because it might have become a stop string, or a code point.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        if self.stops.push(&self.detokenizer.flush(), &mut text).is_none() {
            text.push_str(&self.stops.flush());
        }
        self.marks_of(text.len());
        text
    }

    /// Bytes of the last text that was given at which tokens of [`showing`](Self::showing) begin, in order.
    pub fn marks(&self) -> &[usize] {
        &self.marks
    }

    /// Finds the marks of the next `bytes` that go out.
    fn marks_of(&mut self, bytes: usize) {
        self.marks.clear();
        let end = self.said + bytes;
        while let Some(mark) = self.waiting.front().copied().filter(|&mark| mark < end) {
            self.waiting.pop_front();
            self.marks.push(mark - self.said);
        }
        self.said = end;
    }
}

#[cfg(test)]
mod tests {
    use super::super::GgufVocab;
    use super::*;

    /// `[a, b, <, x>, <x>, <end>]`, of which the last two are special.
    fn tokenizer() -> Arc<Tokenizer> {
        let vocab = GgufVocab {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: ["a", "b", "<", "x>", "<x>", "<end>"].map(String::from).to_vec(),
            types: vec![1, 1, 1, 1, 3, 3],
            ..GgufVocab::default()
        };
        Arc::new(Tokenizer::from_gguf(&vocab).unwrap())
    }

    #[test]
    fn the_stop_that_was_met_is_named() {
        let stops = ["bb".to_owned(), "ba".to_owned()];
        let mut text = CompletionText::new(tokenizer(), &stops).unwrap();
        assert_eq!(text.push(0), ("a", None));
        assert_eq!(text.push(1), ("", None));
        assert_eq!(text.push(0), ("", Some(1)));
        assert_eq!(text.finish(), "");
    }

    #[test]
    fn shown_tokens_are_text_with_marks() {
        let hidden = CompletionText::new(tokenizer(), &[]).unwrap().push(4).0.to_owned();
        assert_eq!(hidden, "");
        let stops = ["<x>b".to_owned()];
        let mut text = CompletionText::new(tokenizer(), &stops).unwrap().showing(&[4]);
        let mut said = |id: u32| (text.push(id).0.to_owned(), text.marks().to_vec());
        assert_eq!(said(5), (String::new(), vec![]), "others stay hidden");
        assert_eq!(said(2), (String::new(), vec![]));
        assert_eq!(said(3), (String::new(), vec![]), "letters that spell it are no token of it");
        assert_eq!(said(4), ("<x>".into(), vec![]));
        assert_eq!(said(4), ("<x>".into(), vec![0]), "a mark comes with its text");
        assert_eq!(said(0), ("<x>a".into(), vec![0]));
        assert_eq!(said(4), (String::new(), vec![]));
        assert_eq!((text.finish(), text.marks()), ("<x>".to_owned(), &[0][..]));
    }
}
