//! What the bytes of a block mean: the definition of every weight format.
//!
//! Owns the arithmetic of codes and scales, and the simple encoders; `quant/decode.rs` and
//! `quant/lattice.rs` take blocks apart, [`encode`] makes what MLX makes. Everything else that needs
//! a weight's value goes through [`Format::dequantize_row`] or, for codes and scales,
//! `decode_block`. Refuses to be fast: these loops are the definition that kernels are tested
//! against.

use half::{bf16, f16};

pub(crate) use lattice::points;

use crate::format::Format;

mod decode;
pub mod encode;
mod lattice;
#[cfg(test)]
pub(crate) mod tests;

/// What a code stands for before it is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codebook {
    /// `code - zero`.
    Linear,
    /// Twice the E2M1 number, an integer; scales are halved for it.
    E2m1,
    /// `code` in eighths: scales and mins are divided for it.
    Eighths,
    /// Digits -1, 0 and 1 less or, from code 4 on, plus an eighth, in eighths.
    Iq1,
    /// Three magnitudes in eighths, from code 4 on negative.
    Iq2,
    /// Eight magnitudes in quarters, from code 8 on negative.
    Iq3Xxs,
    /// Eight odd numbers, from code 8 on negative.
    Iq3S,
    /// The 16 levels of the `IQ4` formats.
    Iq4,
    /// The E4M3 number.
    E4m3,
}

impl Codebook {
    /// The levels of a code of three or four bits that names one.
    const fn levels(self) -> Option<&'static [i8; 16]> {
        match self {
            Self::Linear | Self::Eighths | Self::E4m3 => None,
            Self::E2m1 => Some(&[0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]),
            Self::Iq1 => Some(&[-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Self::Iq2 => Some(&[8, 25, 43, 0, -8, -25, -43, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Self::Iq3Xxs => {
                Some(&[4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62])
            }
            Self::Iq3S => Some(&[1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15]),
            Self::Iq4 => {
                Some(&[-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
            }
        }
    }

    /// What scales and mins are multiplied with: a power of two.
    pub(crate) const fn unit(self) -> f32 {
        match self {
            Self::Eighths | Self::Iq1 | Self::Iq2 => 0.125,
            Self::Iq3Xxs => 0.25,
            Self::E2m1 => 0.5,
            Self::Linear | Self::Iq3S | Self::Iq4 | Self::E4m3 => 1.0,
        }
    }
}

/// How a scale or a min is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    F16,
    F32,
    /// A byte `e` for `2^(e - 127)`; infinite, not NaN, at 255.
    E8m0,
}

impl Scale {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
            Self::E8m0 => 1,
        }
    }

    /// The number at the start of `from`.
    pub(crate) fn read(self, from: &[u8]) -> f32 {
        match (self, from) {
            (Self::F16, &[a, b, ..]) => f16::from_le_bytes([a, b]).to_f32(),
            (Self::F32, &[a, b, c, d, ..]) => f32::from_le_bytes([a, b, c, d]),
            (Self::E8m0, &[e, ..]) => e8m0(e),
            _ => unreachable!("{self:?} in {} bytes", from.len()),
        }
    }

    /// Writes a number that [`read`](Self::read) returned.
    pub(crate) fn write(self, number: f32, to: &mut [u8]) {
        match self {
            Self::F16 => to[..2].copy_from_slice(&f16::from_f32(number).to_le_bytes()),
            Self::F32 => to[..4].copy_from_slice(&number.to_le_bytes()),
            Self::E8m0 => to[0] = (number.to_bits() >> 23) as u8,
        }
    }
}

/// `2^(e - 127)`, of which 0 is the one that is no normal number.
pub(crate) fn e8m0(e: u8) -> f32 {
    f32::from_bits((u32::from(e) << 23).max(1 << 22))
}

/// What to multiply the `f32` with that has the sign, exponent and mantissa bits of an E4M3 number
/// at the same ends, for that number: the biases are 127 and 7.
pub(crate) const E4M3_UNIT: f32 = f32::from_bits((127 + 120) << 23);

fn e4m3(code: u8) -> f32 {
    let code = u32::from(code);
    f32::from_bits((code & 0x80) << 24 | (code & 0x7f) << 20) * E4M3_UNIT
}

/// The arithmetic of a quantised format: a number is `scale * level + min`, and the level of a code
/// is as its codebook says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeSpec {
    /// Bits of a code: 1, 2, 3, 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// Consecutive numbers that share a scale: 16, 32, 64, 128 or 256.
    pub(crate) group: usize,
    /// What kernels add to integer levels so that they are unsigned: a power of two, or 0 in the
    /// formats with a `min`. Of a linear codebook, the code of zero.
    pub(crate) zero: u8,
    /// Whether a group has a `min`.
    pub(crate) min: bool,
    /// Whether a block is 256 numbers whose groups have small integer scales of one float.
    pub(crate) super_block: bool,
    /// What codes name.
    pub(crate) codebook: Codebook,
    /// How scales and mins are stored.
    pub(crate) scale: Scale,
}

impl CodeSpec {
    /// The arithmetic of `format`, or `None` for the plain floats.
    pub(crate) const fn of(format: Format) -> Option<Self> {
        use Codebook::{E2m1, E4m3, Eighths, Iq1, Iq2, Iq3S, Iq3Xxs, Iq4, Linear};
        let (bits, group, zero, min, super_block, codebook) = match format {
            Format::F32 | Format::F16 | Format::BF16 => return None,
            Format::Q4_0 => (4, 32, 8, false, false, Linear),
            Format::Q4_1 => (4, 32, 0, true, false, Linear),
            Format::Q5_0 => (5, 32, 16, false, false, Linear),
            Format::Q5_1 => (5, 32, 0, true, false, Linear),
            Format::Q8_0 => (8, 32, 128, false, false, Linear),
            Format::Q2_K => (2, 16, 0, true, true, Linear),
            Format::Q3_K => (3, 16, 4, false, true, Linear),
            Format::Q4_K => (4, 32, 0, true, true, Linear),
            Format::Q5_K => (5, 32, 0, true, true, Linear),
            Format::Q6_K => (6, 16, 32, false, true, Linear),
            Format::IQ1_S => (2, 32, 0, true, true, Eighths),
            Format::IQ1_M => (3, 16, 32, false, true, Iq1),
            Format::IQ2_XXS => (3, 32, 64, false, true, Iq2),
            Format::IQ2_XS | Format::IQ2_S => (3, 16, 64, false, true, Iq2),
            Format::IQ3_XXS => (4, 32, 64, false, true, Iq3Xxs),
            Format::IQ3_S => (4, 32, 16, false, true, Iq3S),
            Format::IQ4_NL => (4, 32, 128, false, false, Iq4),
            Format::IQ4_XS => (4, 32, 128, false, true, Iq4),
            Format::TQ1_0 | Format::TQ2_0 => (2, 256, 1, false, false, Linear),
            Format::MXFP4 => (4, 32, 16, false, false, E2m1),
            Format::Affine(f) => (f.bits(), f.group(), 0, true, false, Linear),
            // The zeros are those of other formats with the same group, whose kernels thus serve.
            Format::Fp4(f) if f.group() == 16 => (4, 16, 32, false, false, E2m1),
            Format::Fp4(f) => (4, f.group(), 16, false, false, E2m1),
            Format::Fp8(f) => (8, f.group(), 0, false, false, E4m3),
        };
        let scale = match format {
            Format::Affine(f) if f.is_wide() => Scale::F32,
            Format::Fp4(f) if f.is_wide() => Scale::F32,
            Format::Fp8(_) => Scale::F32,
            Format::MXFP4 => Scale::E8m0,
            _ => Scale::F16,
        };
        Some(Self { bits, group, zero, min, super_block, codebook, scale })
    }

    /// Numbers in a unit of a panel: a super-block, or a group and at least 32.
    pub(crate) const fn unit_len(self) -> usize {
        match self.group {
            _ if self.super_block => 256,
            16 => 32,
            group => group,
        }
    }

    /// The unsigned level of each code that names one, for a byte shuffle.
    pub(crate) const fn table(self) -> Option<[u8; 16]> {
        let Some(levels) = self.codebook.levels() else { return None };
        let (mut table, mut code) = ([0; 16], 0);
        while code < 16 {
            table[code] = self.zero.wrapping_add_signed(levels[code]);
            code += 1;
        }
        Some(table)
    }

    /// Whether unsigned levels may be 128 and more.
    pub(crate) const fn is_wide(self) -> bool {
        self.bits == 8 || matches!(self.codebook, Codebook::Iq4)
    }

    fn level(self, code: u8) -> f32 {
        match self.codebook.levels() {
            Some(levels) => f32::from(levels[usize::from(code & 15)]),
            None if self.codebook == Codebook::E4m3 => e4m3(code),
            None => f32::from(i16::from(code) - i16::from(self.zero)),
        }
    }
}

/// One decoded block: integer codes and the parts that their scales are made of.
pub(crate) struct Block {
    /// Unsigned codes, in number order; the first `block_len` count.
    pub(crate) codes: [u8; 256],
    /// The block's scale.
    pub(crate) d: f32,
    /// The block's offset, or of a super-block the negated scale of the offsets.
    pub(crate) m: f32,
    /// Of a super-block: the integer scale of each group.
    pub(crate) sub_scales: [i8; 16],
    /// Of a super-block: the integer offset of each group.
    pub(crate) sub_mins: [i8; 16],
}

impl Block {
    /// A block of zeros.
    pub(crate) const EMPTY: Self =
        Self { codes: [0; 256], d: 0.0, m: 0.0, sub_scales: [0; 16], sub_mins: [0; 16] };

    fn scale_and_min(&self, spec: CodeSpec, group: usize) -> (f32, f32) {
        let (d, m) = (self.d * spec.codebook.unit(), self.m * spec.codebook.unit());
        if spec.super_block {
            (d * f32::from(self.sub_scales[group]), m * f32::from(self.sub_mins[group]))
        } else {
            (d, m)
        }
    }
}

/// The value of a code. Product and sum are rounded each; nothing may fuse them.
pub(crate) fn code_value(spec: CodeSpec, code: u8, scale: f32, min: f32) -> f32 {
    let product = scale * spec.level(code);
    if spec.min { product + min } else { product }
}

impl Format {
    /// Turns the bytes of a row, or of any whole blocks, into numbers.
    ///
    /// # Panics
    /// If `bytes` is not exactly the blocks of `out.len()` numbers.
    pub fn dequantize_row(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(Some(bytes.len()), self.row_bytes(out.len()), "bytes of a {} row", self.name());
        let Some(spec) = CodeSpec::of(self) else {
            let numbers = bytes.chunks_exact(self.block_bytes());
            out.iter_mut().zip(numbers).for_each(|(y, bytes)| *y = self.float(bytes));
            return;
        };
        let mut block = Block::EMPTY;
        let blocks = bytes.chunks_exact(self.block_bytes());
        for (bytes, out) in blocks.zip(out.chunks_exact_mut(self.block_len())) {
            self.decode_block(bytes, &mut block);
            for (group, out) in out.chunks_exact_mut(spec.group).enumerate() {
                let (scale, min) = block.scale_and_min(spec, group);
                for (y, &code) in out.iter_mut().zip(&block.codes[group * spec.group..]) {
                    *y = code_value(spec, code, scale, min);
                }
            }
        }
    }

    /// The number in the little-endian bytes of a plain float.
    pub(crate) fn float(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Self::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            _ => unreachable!("{} is not a float of {} bytes", self.name(), bytes.len()),
        }
    }
}

impl Format {
    /// Rounds numbers to this format by the simple rule of its block: the plain floats, `Q4_0`,
    /// `Q4_1`, `Q5_0`, `Q5_1` and `Q8_0`. Returns false, writing nothing, for the others.
    ///
    /// # Panics
    /// If `bytes` is not exactly the blocks of `row.len()` numbers.
    #[must_use]
    pub fn quantize_row(self, row: &[f32], bytes: &mut [u8]) -> bool {
        assert_eq!(Some(bytes.len()), self.row_bytes(row.len()), "bytes of a {} row", self.name());
        let simple = matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0);
        if !self.is_float() && !simple {
            return false;
        }
        let blocks = bytes.chunks_exact_mut(self.block_bytes());
        for (x, bytes) in row.chunks_exact(self.block_len()).zip(blocks) {
            match self {
                Self::F32 => bytes.copy_from_slice(&x[0].to_le_bytes()),
                Self::F16 => bytes.copy_from_slice(&f16::from_f32(x[0]).to_le_bytes()),
                Self::BF16 => bytes.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()),
                _ => self.encode_block(x, bytes),
            }
        }
        true
    }

    /// Encodes 32 numbers. Without a min the number of largest magnitude becomes the lowest code.
    fn encode_block(self, x: &[f32], bytes: &mut [u8]) {
        let low = x.iter().copied().fold(f32::INFINITY, f32::min);
        let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let peak = if -low > high { low } else { high };
        let (d, offset) = match self {
            Self::Q4_0 => (peak / -8.0, 8.5),
            Self::Q5_0 => (peak / -16.0, 16.5),
            Self::Q8_0 => (peak.abs() / 127.0, 0.0),
            Self::Q4_1 => ((high - low) / 15.0, 0.5),
            _ => ((high - low) / 31.0, 0.5),
        };
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        bytes[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        if self == Self::Q8_0 {
            for (byte, x) in bytes[2..].iter_mut().zip(x) {
                *byte = (x * inverse).round() as i8 as u8;
            }
            return;
        }
        let (min, top) = match self {
            Self::Q4_0 => (None, 15),
            Self::Q5_0 => (None, 31),
            Self::Q4_1 => (Some(low), 15),
            _ => (Some(low), 31),
        };
        if let Some(min) = min {
            bytes[2..4].copy_from_slice(&f16::from_f32(min).to_le_bytes());
        }
        let code = |x: f32| (((x - min.unwrap_or(0.0)) * inverse + offset) as u32).min(top);
        let nibbles = bytes.len() - 16;
        let mut fifths = 0;
        for j in 0..16 {
            let (a, b) = (code(x[j]), code(x[j + 16]));
            bytes[nibbles + j] = (a & 15 | (b & 15) << 4) as u8;
            fifths |= a >> 4 << j | b >> 4 << (j + 16);
        }
        if matches!(self, Self::Q5_0 | Self::Q5_1) {
            bytes[nibbles - 4..nibbles].copy_from_slice(&fifths.to_le_bytes());
        }
    }
}
