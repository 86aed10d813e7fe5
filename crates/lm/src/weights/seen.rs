//! What was read of a source: the names of tensors, and one hash over what they hold.
//!
//! Owns what counts as the same weights. Two sources with one hash gave the same tensors in the same order; what a config
//! makes of them is for others to compare. It is no protection from people: who wants two models with one hash makes them.

use std::collections::BTreeSet;

use twox_hash::XxHash3_128;

use super::Source;
use crate::adapter::Delta;

/// Tensors up to this many bytes are hashed whole.
const WHOLE: usize = 1 << 20;
/// Of larger ones the first [`TAKEN`] of each [`EVERY`] bytes: every row of a matrix leaves its trace, and a model of 100
/// GB is through before its files are.
const EVERY: usize = 512;
const TAKEN: usize = 64;

/// What was read so far.
pub struct Seen {
    names: BTreeSet<String>,
    hasher: XxHash3_128,
}

impl Seen {
    /// Nothing of this source.
    pub fn new(source: Source<'_>) -> Self {
        let mut hasher = XxHash3_128::new();
        match source {
            Source::Seed(seed) => hasher.write(format!("seed {seed}").as_bytes()),
            Source::Checkpoint(c) => hasher.write(format!("files, MLX: {}", c.is_mlx()).as_bytes()),
        }
        Self { names: BTreeSet::new(), hasher }
    }

    /// The names of all tensors that were read.
    pub fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// A hash of them all.
    pub fn hash(&self) -> u128 {
        self.hasher.finish_128()
    }

    pub(super) fn tensor(&mut self, name: String, kind: &str, shape: &[usize], bytes: &[u8]) {
        if !self.names.contains(&name) {
            self.header(&format!("{name:?} {kind} {shape:?} {}", bytes.len()));
            self.bytes(bytes);
            self.names.insert(name);
        }
    }

    pub(super) fn adapter(&mut self, name: &str, delta: &Delta) {
        self.header(&format!("adapter {name:?} {} {:?}", delta.rank, [delta.rows, delta.cols]));
        for numbers in [&delta.a, &delta.b] {
            numbers.iter().for_each(|x| self.hasher.write(&x.to_le_bytes()));
        }
    }

    fn header(&mut self, text: &str) {
        self.hasher.write(&(text.len() as u64).to_le_bytes());
        self.hasher.write(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if bytes.len() <= WHOLE {
            return self.hasher.write(bytes);
        }
        let mut taken = Vec::with_capacity(64 * TAKEN);
        for part in bytes.chunks(64 * EVERY) {
            taken.clear();
            part.chunks(EVERY).for_each(|p| taken.extend_from_slice(&p[..p.len().min(TAKEN)]));
            self.hasher.write(&taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(name: &str, kind: &str, shape: &[usize], bytes: &[u8]) -> u128 {
        let mut seen = Seen::new(Source::Seed(0));
        seen.tensor(name.into(), kind, shape, bytes);
        seen.hash()
    }

    #[test]
    fn whatever_differs_shows() {
        let small = vec![1; 5000];
        let hashes = [
            Seen::new(Source::Seed(0)).hash(),
            Seen::new(Source::Seed(1)).hash(),
            hash("a", "f32", &[50, 25], &small),
            hash("b", "f32", &[50, 25], &small),
            hash("a", "bf16", &[50, 25], &small),
            hash("a", "f32", &[25, 50], &small),
            hash("a", "f32", &[50, 25], &small[1..]),
        ];
        let all: BTreeSet<u128> = hashes.into_iter().collect();
        assert_eq!(all.len(), hashes.len());
    }

    #[test]
    fn a_byte_of_a_small_tensor_and_a_row_of_a_large_one_show() {
        let mut small = vec![1; 5000];
        let before = hash("a", "f32", &[], &small);
        small[4321] = 2;
        assert_ne!(hash("a", "f32", &[], &small), before);
        let mut large = vec![1; WHOLE + 777];
        let before = hash("a", "f32", &[], &large);
        for start in [0, 300, 65_432, WHOLE + 777 - EVERY] {
            large[start..start + EVERY].fill(2);
            assert_ne!(hash("a", "f32", &[], &large), before, "at {start}");
            large[start..start + EVERY].fill(1);
        }
        assert_eq!(hash("a", "f32", &[], &large), before);
    }

    #[test]
    fn adapters_show() {
        let delta = |b| Delta { a: vec![1.0; 4], b: vec![b; 3], rank: 1, rows: 3, cols: 4 };
        let of = |name: &str, b| {
            let mut seen = Seen::new(Source::Seed(0));
            seen.adapter(name, &delta(b));
            seen.hash()
        };
        assert_eq!(of("a", 1.0), of("a", 1.0));
        assert!(of("a", 1.0) != of("a", 2.0) && of("a", 1.0) != of("b", 1.0));
        assert_ne!(of("a", 1.0), Seen::new(Source::Seed(0)).hash());
    }
}
