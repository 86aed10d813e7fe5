//! What was read of a source: the names of tensors, and one hash over what they hold.
//!
//! Owns what counts as the same weights. Two sources with one hash gave the same tensors in the same order; what a config
//! makes of them is for others to compare. It is no protection from people: who wants two models with one hash makes
//! them.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::thread;

use twox_hash::XxHash3_128;

use super::Source;
use crate::adapter::Delta;

/// Bytes that are hashed as one.
const PIECE: usize = 16 << 20;
/// Threads that hash the pieces of a large tensor: with more of them memory is no faster.
const MOST_THREADS: usize = 8;

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
            Source::Made(made) => hasher.write(made.storage().name().as_bytes()),
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
        self.header(&format!("adapter {name:?}"));
        delta.hash_into(&mut self.hasher);
    }

    fn header(&mut self, text: &str) {
        self.hasher.write(&(text.len() as u64).to_le_bytes());
        self.hasher.write(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let pieces: Vec<&[u8]> = bytes.chunks(PIECE).collect();
        pieces_hashed(&pieces).iter().for_each(|hash| self.hasher.write(&hash.to_le_bytes()));
    }
}

/// The hash of each piece, whatever the number of threads.
fn pieces_hashed(pieces: &[&[u8]]) -> Vec<u128> {
    let hashes = |some: &[&[u8]]| some.iter().map(|piece| XxHash3_128::oneshot(piece)).collect();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(MOST_THREADS).min(pieces.len());
    if threads < 2 {
        return hashes(pieces);
    }
    thread::scope(|scope| {
        let parts = pieces.chunks(pieces.len().div_ceil(threads)).map(|part| {
            let spawned = thread::Builder::new().spawn_scoped(scope, move || hashes(part));
            spawned.map_err(|_| part)
        });
        let parts: Vec<_> = parts.collect();
        // A system without threads to give still has this one.
        let hashed = parts.into_iter().flat_map(|part| match part {
            Ok(part) => part.join().unwrap_or_default(),
            Err(part) => hashes(part),
        });
        hashed.collect()
    })
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
    fn a_byte_anywhere_shows() {
        for size in [5000, PIECE, 3 * PIECE + 777] {
            let mut bytes = vec![1; size];
            let before = hash("a", "f32", &[], &bytes);
            for at in [0, size / 2, size - 1] {
                bytes[at] = 2;
                assert_ne!(hash("a", "f32", &[], &bytes), before, "at {at}");
                bytes[at] = 1;
            }
            assert_eq!(hash("a", "f32", &[], &bytes), before);
        }
    }

    #[test]
    fn pieces_have_their_own_order() {
        let bytes: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
        let pieces: Vec<&[u8]> = bytes.chunks(30).collect();
        let alone: Vec<u128> = pieces.iter().map(|piece| XxHash3_128::oneshot(piece)).collect();
        for count in 0..pieces.len() {
            assert_eq!(pieces_hashed(&pieces[..count]), alone[..count]);
        }
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
