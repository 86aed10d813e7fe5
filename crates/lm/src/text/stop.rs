//! Stop strings over a stream of text.
//!
//! Owns the text that might be the start of a stop string. Refuses to look at token ids.

use crate::{Error, Result};

/// Most stop strings of one request, and most bytes of one of them.
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 4096;

/// Finds the first stop string in a text that comes in pieces, however it is cut.
///
/// The match that *ends* first wins; of those that end together the longest, of equal strings the
/// first in the list. Text before the match is let out, the match itself and all after it is not.
/// Text that could still become a match is held back until it cannot.
///
/// ```
/// # use longrun_lm::text::StopMatcher;
/// let mut stops = StopMatcher::new(&["</s>".to_owned()])?;
/// let mut out = String::new();
/// assert_eq!(stops.push("one <", &mut out), None);
/// assert_eq!(out, "one ");
/// assert_eq!(stops.push("/s> two", &mut out), Some(0));
/// assert_eq!(out, "one ");
/// # Ok::<(), longrun_lm::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// The text let in and not yet out: as long as the longest partial match.
    held: String,
    hit: Option<usize>,
}

/// One stop string as a Knuth-Morris-Pratt automaton over bytes.
#[derive(Clone, Debug)]
struct Stop {
    text: Box<[u8]>,
    /// `border[n]`: the longest proper prefix of the first `n` bytes that is their suffix.
    border: Box<[usize]>,
    /// How many of the last bytes seen are the first bytes of `text`.
    matched: usize,
}

impl StopMatcher {
    /// A matcher for `stops`; with none it lets everything through.
    ///
    /// # Errors
    /// An empty stop string, more than 64 of them, or one of more than 4096 bytes.
    pub fn new(stops: &[String]) -> Result<Self> {
        if stops.len() > MAX_STOPS {
            let what = format!("{} stop strings, but at most {MAX_STOPS} are served", stops.len());
            return Err(Error::usage(what).at("stop"));
        }
        let stops: Vec<Stop> = stops.iter().map(|stop| Stop::new(stop)).collect::<Result<_>>()?;
        Ok(Self { stops, held: String::new(), hit: None })
    }

    /// Takes text; appends to `out` what cannot be part of a stop string.
    ///
    /// Returns the index of the stop string that was found, and from then on always that.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.hit.is_some() {
            return self.hit;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        let seen_before = self.held.len() - text.len();
        for (at, byte) in text.bytes().enumerate() {
            if let Some(index) = self.step(byte) {
                let end = seen_before + at + 1;
                out.push_str(&self.held[..end - self.stops[index].text.len()]);
                self.held = String::new();
                self.hit = Some(index);
                return self.hit;
            }
        }
        let keep = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let free = self.held.len() - keep;
        out.push_str(&self.held[..free]);
        self.held.drain(..free);
        None
    }

    /// Ends the text: what was held back was no stop string and is returned.
    pub fn flush(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Moves every automaton by one byte; the index of the longest stop string that ends here.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            let length = stop.text.len();
            if stop.step(byte) && best.is_none_or(|(_, longest)| length > longest) {
                best = Some((index, length));
            }
        }
        best.map(|(index, _)| index)
    }
}

impl Stop {
    fn new(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::usage("a stop string is empty").at("stop"));
        }
        if text.len() > MAX_STOP_BYTES {
            let what = format!("a stop string of {} bytes, limit {MAX_STOP_BYTES}", text.len());
            return Err(Error::usage(what).at("stop"));
        }
        let bytes = text.as_bytes();
        let mut border = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = border[length];
            }
            length += usize::from(bytes[at] == bytes[length]);
            border[at + 1] = length;
        }
        Ok(Self { text: bytes.into(), border: border.into(), matched: 0 })
    }

    /// True when the byte completes the string.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.border[self.matched];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        self.matched == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    use super::*;

    /// The definition: the smallest end of any match, then the longest, then the first.
    fn naive(text: &str, stops: &[String]) -> Option<(usize, usize)> {
        (1..=text.len()).find_map(|end| {
            let (index, stop) = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| text.as_bytes()[..end].ends_with(stop.as_bytes()))
                .max_by_key(|(index, stop)| (stop.len(), usize::MAX - index))?;
            Some((end - stop.len(), index))
        })
    }

    fn word(letters: std::ops::Range<usize>) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!['a', 'b', 'é', '🙂']), letters)
            .prop_map(|chars| chars.into_iter().collect())
    }

    /// Draws the same cases at every run.
    fn cases(cases: u32) -> ProptestConfig {
        let rng_seed = RngSeed::Fixed(1);
        ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(cases(600))]
        #[test]
        fn any_cut_equals_whole_text_search(
            pieces in prop::collection::vec(word(0..5), 0..10),
            stops in prop::collection::vec(word(1..6), 0..4),
        ) {
            let text = pieces.concat();
            let mut matcher = StopMatcher::new(&stops).unwrap();
            let mut out = String::new();
            let mut seen = String::new();
            let mut hit = None;
            for piece in &pieces {
                hit = matcher.push(piece, &mut out);
                if hit.is_some() {
                    break;
                }
                seen.push_str(piece);
                // Nothing that could become a stop string leaks, and nothing else is held.
                let may_become = |tail: &str| stops.iter().any(|stop| stop.starts_with(tail));
                let keep = seen.char_indices().map(|(at, _)| &seen[at..]).find(|t| may_become(t));
                prop_assert_eq!(&out, &seen[..seen.len() - keep.map_or(0, str::len)]);
            }
            out.push_str(&matcher.flush());
            match naive(&text, &stops) {
                Some((start, index)) => {
                    prop_assert_eq!(hit, Some(index));
                    prop_assert_eq!(out, &text[..start]);
                }
                None => {
                    prop_assert_eq!(hit, None);
                    prop_assert_eq!(out, text);
                }
            }
        }
    }

    #[test]
    fn ties_and_overlaps() {
        let find = |text: &str, stops: &[&str]| {
            let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
            let mut out = String::new();
            let hit = StopMatcher::new(&stops).unwrap().push(text, &mut out);
            (hit, out)
        };
        assert_eq!(find("xabcd", &["abcd", "bc"]), (Some(1), "xa".into()), "the earlier end");
        assert_eq!(find("xabc", &["c", "abc", "bc"]), (Some(1), "x".into()), "the longest");
        assert_eq!(find("xa", &["a", "a"]), (Some(0), "x".into()), "the first of equals");
        assert_eq!(find("aaab", &["aab"]), (Some(0), "a".into()), "a failed start overlaps");
    }

    #[test]
    fn a_hit_is_final() {
        let mut matcher = StopMatcher::new(&["x".into()]).unwrap();
        let mut out = String::new();
        assert_eq!(matcher.push("axb", &mut out), Some(0));
        assert_eq!(matcher.push("c", &mut out), Some(0));
        assert_eq!((out.as_str(), matcher.flush().as_str()), ("a", ""));
    }

    #[test]
    fn bad_lists_are_refused() {
        assert!(StopMatcher::new(&[String::new()]).is_err());
        assert!(StopMatcher::new(&vec!["a".to_owned(); 65]).is_err());
        assert!(StopMatcher::new(&["a".repeat(4097)]).is_err());
    }
}
