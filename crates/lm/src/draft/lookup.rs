//! Drafts from the text itself: what followed the last time that the same few tokens stood there.

use super::{Ask, Draft};
use crate::error::Result;

/// How far back it looks.
const REACH: usize = 1 << 16;

/// Looks the end of a text up in the text.
#[derive(Clone, Copy, Debug)]
pub struct Lookup {
    most: usize,
    longest: usize,
    shortest: usize,
}

impl Lookup {
    /// At most `most` drafts, where the last `longest` to `shortest` tokens have stood before; the longest first.
    pub fn new(most: usize, longest: usize, shortest: usize) -> Self {
        let shortest = shortest.max(1);
        Self { most, longest: longest.max(shortest), shortest }
    }

    /// What followed the last earlier place that ends as `ids` does.
    fn follow<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        let ids = &ids[ids.len().saturating_sub(REACH)..];
        for n in (self.shortest..=self.longest.min(ids.len().saturating_sub(1))).rev() {
            let (before, end) = ids.split_at(ids.len() - n);
            // Places overlap with the end where a text repeats itself.
            let places = ids[..ids.len() - 1].windows(n);
            if let Some(at) = places.take(before.len()).rposition(|window| window == end) {
                return &ids[at + n..];
            }
        }
        &[]
    }
}

impl Draft for Lookup {
    fn most(&self) -> usize {
        self.most
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
        for ask in asks {
            let found = self.follow(ask.ids);
            ask.drafts.extend(&found[..found.len().min(ask.most).min(self.most)]);
        }
        Ok(())
    }

    fn release(&mut self, _: u64) {}
}

#[cfg(test)]
mod tests {
    use super::Lookup;

    #[test]
    fn the_last_place_with_the_longest_end_is_followed() {
        let lookup = Lookup::new(4, 3, 1);
        assert_eq!(lookup.follow(&[1, 2, 3, 9, 2, 3, 8, 7, 1, 2, 3]), [9, 2, 3, 8, 7, 1, 2, 3]);
        assert_eq!(lookup.follow(&[5, 1, 6, 1]), [6, 1]);
        assert_eq!(lookup.follow(&[4, 4, 4]), [4]);
        assert_eq!(lookup.follow(&[1, 2, 3]), [0u32; 0]);
        assert_eq!(lookup.follow(&[1]), [0u32; 0]);
        assert_eq!(lookup.follow(&[]), [0u32; 0]);
        assert_eq!(Lookup::new(4, 3, 2).follow(&[5, 1, 6, 1]), [0u32; 0]);
    }
}
