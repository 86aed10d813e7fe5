//! Randomness without state: Philox 4x32-10 of (seed, position, stream).
//!
//! Owns the map from a place in a text to a uniform number, and seeds for those who gave none.
//! Refuses to keep a generator: a draw that can be repeated needs nothing to be restored.

use std::hash::{BuildHasher, RandomState};

/// Which decision at a position the number is for; decisions never share one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    /// The token itself.
    Token = 0,
    /// Whether XTC acts.
    Xtc = 1,
}

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// A number in `[0, 1)` with 53 random bits.
pub(super) fn uniform(seed: u64, position: u64, stream: Stream) -> f64 {
    let counter = [low(position), high(position), stream as u32, 0];
    let words = philox(counter, [low(seed), high(seed)]);
    let bits = u64::from(words[0]) << 32 | u64::from(words[1]);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A seed that differs from call to call and from run to run.
pub(super) fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0u64)
}

/// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [high(b) ^ counter[1] ^ key[0], low(b), high(a) ^ counter[3] ^ key[1], low(a)];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

fn low(x: u64) -> u32 {
    (x & u64::from(u32::MAX)) as u32
}

fn high(x: u64) -> u32 {
    (x >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn uniforms_differ_by_every_argument_and_stay_below_one() {
        let base = uniform(1, 2, Stream::Token);
        assert!((0.0..1.0).contains(&base));
        assert_ne!(base, uniform(0, 2, Stream::Token));
        assert_ne!(base, uniform(1 | 1 << 40, 2, Stream::Token));
        assert_ne!(base, uniform(1, 2 | 1 << 40, Stream::Token));
        assert_ne!(base, uniform(1, 2, Stream::Xtc));
        assert_ne!(fresh_seed(), fresh_seed());
    }
}
