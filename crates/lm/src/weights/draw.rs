//! Random weights: the same seed and name give the same numbers.

/// The bytes of the bf16 nearest to `x`, ties to even.
pub(super) fn bf16(x: f32) -> [u8; 2] {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    ((rounded >> 16) as u16).to_le_bytes()
}

/// Random numbers of one tensor: SplitMix64 from a seed and a name.
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64, name: &str) -> Self {
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
        Self(
            name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv)
                ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        )
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Random bytes.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }

    /// About normal: the sum of four uniforms, variance 1.
    pub(super) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: i32 = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as i32).sum();
        (sum - 131_070) as f32 / 37_837.0
    }
}
