//! Probability mass that adds up exactly: `exp` rounded to a quantum, `ln`, and their sums.
//!
//! Owns the arithmetic below the sampler. Masses are multiples of a quantum so coarse that any sum
//! over the vocabulary is exact in f64: sums depend neither on order nor on vector width, so a cut
//! or a draw falls on the same token whatever the selection algorithm did before. With 262,144
//! entries the quantum is 2^-34 of the likeliest token. Refuses the platform's `exp` and `ln`,
//! whose last bits differ from one system to the next.

/// Entries a lane-parallel loop takes at a time.
const LANES: usize = 8;

/// Turns logits into masses for one vocabulary size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mass {
    /// Adding and subtracting it rounds a number below 1 to the quantum.
    magic: f64,
}

impl Mass {
    /// Masses whose sum over `vocab` entries, each at most 1, is exact.
    pub(super) fn new(vocab: usize) -> Self {
        // 2^bits > vocab; the quantum is 2^(bits - 53), the last place of numbers in
        // [2^(bits-1), 2^bits).
        let bits = usize::BITS - vocab.max(256).leading_zeros();
        Self { magic: 1.5 * (1u64 << (bits - 1)) as f64 }
    }

    /// The mass of an entry `distance` (at most 0) from the largest: `exp(distance)`, rounded.
    pub(super) fn of(self, distance: f32) -> f64 {
        (f64::from(exp(distance)) + self.magic) - self.magic
    }

    /// The sum of `of((x - max) * scale)` over `logits`.
    pub(super) fn sum(self, logits: &[f32], max: f32, scale: f32) -> f64 {
        let mut lanes = [0.0f64; LANES];
        let (chunks, rest) = logits.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                lanes[lane] += self.of((chunk[lane] - max) * scale);
            }
        }
        let rest: f64 = rest.iter().map(|&x| self.of((x - max) * scale)).sum();
        lanes.iter().sum::<f64>() + rest
    }
}

/// `e^x` for `x` at most 0, to about one unit in the last place; below -87 it is `e^-87`, which
/// every quantum rounds to 0.
fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: the last place of the sum is 1, so its low bits are the rounded power of two.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x > -87.0 { x } else { -87.0 };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let r = (x - power * LN2_HIGH) - power * LN2_LOW;
    let tail = 1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r * (1.0 / 5040.0)));
    let series = 1.0 + (r + r * r * (0.5 + r * (1.0 / 6.0 + r * tail)));
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    series * scale
}

/// The natural logarithm of a normal positive number, to a few units in the last place.
pub(super) fn ln(x: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut power = (bits >> 52) as i32 - 1023;
    let mut m = f64::from_bits(bits & FRACTION | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        power += 1;
    }
    // ln m = 2 artanh(s); s^2 < 0.0295, so eleven terms reach the last place.
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = (0..=10).rev().fold(0.0, |sum, i| sum * z + 1.0 / f64::from(2 * i + 1));
    f64::from(power) * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_and_exact_at_its_ends() {
        assert_eq!(exp(0.0), 1.0);
        let mut x = 0.0f32;
        while x > -86.9 {
            let want = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - want).abs() / want;
            assert!(relative < 2e-7, "exp({x}): relative error {relative}");
            x -= 0.003_7;
        }
        let mass = Mass::new(4);
        assert_eq!(mass.of(f32::NEG_INFINITY), 0.0);
        assert_eq!(mass.of(-1e30), 0.0);
        assert_eq!(mass.of(0.0), 1.0);
    }

    #[test]
    fn ln_is_close_and_exact_at_one() {
        assert_eq!(ln(1.0), 0.0);
        for x in [1e-45, 1e-9, 0.05, 0.5, 0.999, 1.5, 2.0, 31_337.0, 4.2e12] {
            assert!((ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0), "ln({x})");
        }
    }

    #[test]
    fn sums_do_not_depend_on_order() {
        let mut logits: Vec<f32> =
            (0..5_003u32).map(|i| -((i * 7_919 % 5_003) as f32) / 400.0).collect();
        let mass = Mass::new(logits.len());
        let sum = mass.sum(&logits, 0.0, 1.0);
        logits.reverse();
        assert_eq!(sum, mass.sum(&logits, 0.0, 1.0));
        logits.sort_by(f32::total_cmp);
        assert_eq!(sum, logits.iter().map(|&x| mass.of(x)).sum::<f64>());
    }
}
