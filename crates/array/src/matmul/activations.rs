//! Activations as `int8`: what quantised weights are multiplied with in the fast mode.
//!
//! Owns the layout of a quantised row and its one rounding rule. 32 numbers are one cache line:
//! 32 codes, their scale, and the sums that weight formats with a zero or a min ask for.

use super::isa::Isa;
use super::simd::{Kernel, Simd};

/// Bytes of a line: 32 numbers.
pub(super) const LINE: usize = 64;
/// Offsets in a line: the `f32` scale; the negated `i32` sums of the codes of the first half, of
/// the second and of both; and those three sums as `f32`, positive and times the scale.
pub(super) const SCALE: usize = 32;
pub(super) const NEGATED_SUMS: usize = 36;
pub(super) const SCALED_SUMS: usize = 48;

/// Which of three sums is that of both halves.
pub(super) const BOTH: usize = 2;

/// Bytes of a quantised row of `k` numbers, a multiple of 32. An odd count of cache lines, so that
/// the rows of a tile do not fall on each other in the cache.
pub const fn quantized_row_bytes(k: usize) -> usize {
    ((k / 32) | 1) * LINE
}

/// Rounds one row to `int8` in blocks of 32: scale `max |x| / 127`, codes to nearest even.
///
/// A block that holds a NaN or an infinity gets the scale NaN, so that what is made of it is NaN; a
/// block with no number above `2^-100` in magnitude becomes zero.
///
/// # Panics
/// If `x.len()` is not a multiple of 32 or `dst` not [`quantized_row_bytes`] of it.
pub fn quantize_activations(isa: Isa, x: &[f32], dst: &mut [u8]) {
    assert_eq!(x.len() % 32, 0, "activations come in blocks of 32");
    assert_eq!(dst.len(), quantized_row_bytes(x.len()), "bytes of a quantised row");
    // SAFETY: the kernel has no pointers.
    unsafe { isa.run(Quantize { x, dst }) };
}

struct Quantize<'a> {
    x: &'a [f32],
    dst: &'a mut [u8],
}

impl Kernel for Quantize<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let lines = self.dst.as_chunks_mut::<LINE>().0;
        for (x, line) in self.x.as_chunks::<32>().0.iter().zip(lines) {
            quantize_block(x, line);
        }
    }
}

/// Plain loops that the compiler turns into vectors of any instruction set.
#[inline(always)]
fn quantize_block(x: &[f32; 32], line: &mut [u8; LINE]) {
    const SMALLEST: f32 = f32::from_bits(0x0d80_0000);
    // 1.5 * 2^23: adding it rounds to an integer, ties to even, and leaves that in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Magnitudes compare as integers, and NaN and infinity above all others.
    let peak = x.iter().fold(0, |peak, x| peak.max(x.to_bits() & 0x7fff_ffff));
    let peak = f32::from_bits(peak);
    let (scale, inverse) = match peak {
        peak if !peak.is_finite() => (f32::NAN, 0.0),
        peak if peak < SMALLEST => (0.0, 0.0),
        peak => (peak / 127.0, 127.0 / peak),
    };
    let mut sums = [0_i32; 2];
    for (half, sum) in sums.iter_mut().enumerate() {
        for k in half * 16..half * 16 + 16 {
            let rounded = (x[k] * inverse + ROUND).to_bits().cast_signed();
            let code = if inverse == 0.0 { 0 } else { rounded - ROUND.to_bits().cast_signed() };
            line[k] = code as u8;
            *sum += code;
        }
    }
    let sums = [sums[0], sums[1], sums[0] + sums[1]];
    line[SCALE..][..4].copy_from_slice(&scale.to_le_bytes());
    for (i, sum) in sums.iter().enumerate() {
        line[NEGATED_SUMS + 4 * i..][..4].copy_from_slice(&(-sum).to_le_bytes());
        line[SCALED_SUMS + 4 * i..][..4].copy_from_slice(&(scale * *sum as f32).to_le_bytes());
    }
}

/// The numbers that a quantised row stands for: the inverse of [`quantize_activations`], for
/// checks.
///
/// # Panics
/// If `src` is not [`quantized_row_bytes`] of `out.len()`.
pub fn dequantize_activations(src: &[u8], out: &mut [f32]) {
    assert_eq!(src.len(), quantized_row_bytes(out.len()), "bytes of a quantised row");
    for (out, line) in out.as_chunks_mut::<32>().0.iter_mut().zip(src.as_chunks::<LINE>().0) {
        let &[a, b, c, d] = &line[SCALE..][..4] else { unreachable!("a line holds its scale") };
        let scale = f32::from_le_bytes([a, b, c, d]);
        out.iter_mut().zip(line).for_each(|(x, &code)| *x = scale * f32::from(code as i8));
    }
}
