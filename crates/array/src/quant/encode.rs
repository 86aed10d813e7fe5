//! Rounds rows to the quantised tensors that MLX keeps: the same bytes as its `quantize` on a CPU.
//!
//! Owns the choice of scales and codes and the packing of codes: one little-endian stream of bits a
//! row, the bytes of the `u32` tensor that MLX has. Refuses to make blocks of a
//! [`Format`](crate::format::Format): these bytes are for files. Numbers that are not finite get
//! codes without a meaning.

use half::{bf16, f16};

use super::e8m0;
use crate::format::Affine;

#[cfg(test)]
mod tests;

/// The float type of the row that is encoded. It changes results: scales of MLX have the type of
/// the row, and for the float codes all steps are rounded to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Float {
    F32,
    F16,
    BF16,
}

impl Float {
    /// Appends the numbers in this type, little-endian.
    pub fn put(self, numbers: &[f32], to: &mut Vec<u8>) {
        match self {
            Self::F32 => to.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
            Self::F16 => to.extend(numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes())),
            Self::BF16 => to.extend(numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())),
        }
    }

    /// The nearest number of this type.
    pub fn round(self, x: f32) -> f32 {
        match self {
            Self::F32 => x,
            Self::F16 => f16::from_f32(x).to_f32(),
            Self::BF16 => bf16::from_f32(x).to_f32(),
        }
    }
}

/// A row in codes with scales and biases: a number is `scale * code + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct AffineRow {
    /// `bits` a number.
    pub codes: Vec<u8>,
    /// One a group, each a number of the row's [`Float`] type.
    pub scales: Vec<f32>,
    /// As the scales.
    pub biases: Vec<f32>,
}

/// A row in float codes with scales.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatRow {
    /// E2M1 nibbles, the low one first, or E4M3 bytes.
    pub codes: Vec<u8>,
    /// One a group.
    pub scales: Vec<u8>,
}

/// Mode `affine` with the bits and the group of `to`; whether it is wide does not matter.
///
/// # Panics
/// If the row is not whole groups.
pub fn affine(to: Affine, float: Float, row: &[f32]) -> AffineRow {
    assert!(row.len().is_multiple_of(to.group()), "{} numbers in groups", row.len());
    let groups = row.len() / to.group();
    let top = ((1_u32 << to.bits()) - 1) as f32;
    let mut codes = Vec::with_capacity(row.len() / 8 * to.bits());
    let (mut scales, mut biases) = (Vec::with_capacity(groups), Vec::with_capacity(groups));
    for group in row.chunks_exact(to.group()) {
        let (scale, bias) = scale_and_bias(to.bits(), top, group);
        for eight in group.as_chunks::<8>().0 {
            let word = eight.iter().rev().fold(0_u64, |word, x| {
                let code = ((x - bias) / scale).round_ties_even().clamp(0.0, top);
                word << to.bits() | code as u64
            });
            codes.extend_from_slice(&word.to_le_bytes()[..to.bits()]);
        }
        scales.push(float.round(scale));
        biases.push(float.round(bias));
    }
    AffineRow { codes, scales, biases }
}

/// The scale whose multiples meet zero and the end of larger magnitude, and that end.
fn scale_and_bias(bits: usize, top: f32, group: &[f32]) -> (f32, f32) {
    let low = group.iter().copied().fold(f32::INFINITY, f32::min);
    let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = ((high - low) / top).max(1e-7);
    if bits == 1 {
        return (scale, low);
    }
    let (scale, edge) = if low.abs() > high.abs() { (scale, low) } else { (-scale, high) };
    match (edge / scale).round_ties_even() {
        0.0 => (scale, 0.0),
        zero => (edge / zero, edge),
    }
}

/// Mode `mxfp4`: groups of 32, E2M1 codes, a scale `s` is `2^(s - 127)`.
///
/// # Panics
/// If the row is not whole groups.
pub fn mxfp4(float: Float, row: &[f32]) -> FloatRow {
    encode::<32>(float, row, 6.0, exponent, nibbles)
}

/// Mode `mxfp8`: groups of 32, E4M3 codes, a scale `s` is `2^(s - 127)`.
///
/// # Panics
/// If the row is not whole groups.
pub fn mxfp8(float: Float, row: &[f32]) -> FloatRow {
    encode::<32>(float, row, 448.0, exponent, |_, group, codes| {
        codes.extend(group.iter().map(|&x| to_e4m3(x)));
    })
}

/// Mode `nvfp4`, without a scale of the tensor: groups of 16, E2M1 codes, E4M3 scales.
///
/// # Panics
/// If the row is not whole groups.
pub fn nvfp4(float: Float, row: &[f32]) -> FloatRow {
    let scale = |scale: f32| {
        let code = to_e4m3(scale);
        (code, super::e4m3(code))
    };
    encode::<16>(float, row, 6.0, scale, nibbles)
}

/// Groups of `N` divided by the scale that `scale` makes of their peak over `most`: its code and
/// its value.
fn encode<const N: usize>(
    float: Float,
    row: &[f32],
    most: f32,
    scale: impl Fn(f32) -> (u8, f32),
    codes: impl Fn(Float, &[f32; N], &mut Vec<u8>),
) -> FloatRow {
    let (groups, []) = row.as_chunks::<N>() else { panic!("{} numbers in groups", row.len()) };
    let mut out = FloatRow { codes: Vec::new(), scales: Vec::with_capacity(groups.len()) };
    for group in groups {
        let peak = group.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
        let (code, scale) = scale(float.round(peak / most));
        let scale = float.round(scale);
        codes(float, &group.map(|x| float.round(x / scale)), &mut out.codes);
        out.scales.push(code);
    }
    out
}

/// The next power of two as its exponent byte; that of 1 for 0.
fn exponent(scale: f32) -> (u8, f32) {
    let bits = scale.to_bits();
    let code = match bits {
        0 => 127,
        1..=0x0040_0000 => 0,
        _ => (bits.div_ceil(1 << 23)).min(254) as u8,
    };
    (code, e8m0(code))
}

fn nibbles<const N: usize>(float: Float, group: &[f32; N], codes: &mut Vec<u8>) {
    let pairs = group.as_chunks::<2>().0.iter();
    codes.extend(pairs.map(|&[low, high]| to_e2m1(float, low) | to_e2m1(float, high) << 4));
}

/// The nearest E2M1 number, of two the one nearer to zero; zero has no sign.
fn to_e2m1(float: Float, x: f32) -> u8 {
    let mut best = (f32::INFINITY, 0);
    for (code, level) in (0..).zip([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]) {
        let distance = float.round((x.abs() - level).abs());
        if distance < best.0 {
            best = (distance, code);
        }
    }
    let sign = if x < 0.0 && best.1 > 0 { 8 } else { 0 };
    best.1 | sign
}

/// The nearest E4M3 number, of two the even one, and 448 for what is larger.
fn to_e4m3(x: f32) -> u8 {
    let (sign, size) = ((x.to_bits() >> 24) as u8 & 0x80, x.abs());
    let code = if size < 1.0 / 64.0 {
        (size * 512.0).round_ties_even() as u8
    } else if size < 448.0 {
        // The exponent's bias goes from 127 to 7.
        let bits = size.to_bits() - (120 << 23);
        ((bits + 0x7_ffff + (bits >> 20 & 1)) >> 20) as u8
    } else {
        0x7e
    };
    sign | code
}
