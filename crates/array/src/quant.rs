//! What the bytes of a block mean: the definition of every weight format, and the simple encoders.
//!
//! Owns the bit layouts of GGUF blocks and the plain floats. Everything else that needs a weight's
//! value goes through [`Format::dequantize_row`] or, for codes and scales, `decode_block`. Refuses
//! to be fast: these loops are the definition that kernels are tested against.

use half::{bf16, f16};

use crate::format::Format;

#[cfg(test)]
pub(crate) mod tests;

/// The arithmetic of a quantised format: a number is `scale * (code - zero) + min`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeSpec {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub(crate) bits: usize,
    /// Consecutive numbers that share a scale: 16 or 32.
    pub(crate) group: usize,
    /// The code of zero; a power of two, or 0 in the formats with a `min`.
    pub(crate) zero: u8,
    /// Whether a group has a `min`.
    pub(crate) min: bool,
    /// Whether a block is 256 numbers whose groups have small integer scales of one float.
    pub(crate) super_block: bool,
}

impl CodeSpec {
    /// The arithmetic of `format`, or `None` for the plain floats.
    pub(crate) const fn of(format: Format) -> Option<Self> {
        let (bits, group, zero, min, super_block) = match format {
            Format::F32 | Format::F16 | Format::BF16 => return None,
            Format::Q4_0 => (4, 32, 8, false, false),
            Format::Q4_1 => (4, 32, 0, true, false),
            Format::Q5_0 => (5, 32, 16, false, false),
            Format::Q5_1 => (5, 32, 0, true, false),
            Format::Q8_0 => (8, 32, 128, false, false),
            Format::Q2_K => (2, 16, 0, true, true),
            Format::Q3_K => (3, 16, 4, false, true),
            Format::Q4_K => (4, 32, 0, true, true),
            Format::Q5_K => (5, 32, 0, true, true),
            Format::Q6_K => (6, 16, 32, false, true),
        };
        Some(Self { bits, group, zero, min, super_block })
    }

    /// Numbers in a block.
    pub(crate) const fn block_len(self) -> usize {
        if self.super_block { 256 } else { 32 }
    }
}

/// One decoded block: integer codes and the parts that their scales are made of.
pub(crate) struct Block {
    /// Unsigned codes, in number order; the first `block_len` count.
    pub(crate) codes: [u8; 256],
    /// The block's scale.
    pub(crate) d: f16,
    /// The block's offset, or of a super-block the negated scale of the offsets.
    pub(crate) m: f16,
    /// Of a super-block: the integer scale of each group.
    pub(crate) sub_scales: [i8; 16],
    /// Of a super-block: the integer offset of each group.
    pub(crate) sub_mins: [i8; 16],
}

impl Block {
    /// A block of zeros.
    pub(crate) const EMPTY: Self = Self {
        codes: [0; 256],
        d: f16::ZERO,
        m: f16::ZERO,
        sub_scales: [0; 16],
        sub_mins: [0; 16],
    };

    fn scale_and_min(&self, spec: CodeSpec, group: usize) -> (f32, f32) {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        if spec.super_block {
            (d * f32::from(self.sub_scales[group]), m * f32::from(self.sub_mins[group]))
        } else {
            (d, m)
        }
    }
}

/// The value of a code. The product is exact wherever a `min` follows it, so fusing changes no bit.
pub(crate) fn code_value(spec: CodeSpec, code: u8, scale: f32, min: f32) -> f32 {
    let product = scale * (i32::from(code) - i32::from(spec.zero)) as f32;
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

    /// Decodes one quantised block of [`block_bytes`](Self::block_bytes) bytes.
    pub(crate) fn decode_block(self, bytes: &[u8], block: &mut Block) {
        if self.block_len() == 256 {
            self.decode_super_block(bytes, block);
            return;
        }
        let half_at = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        block.d = half_at(0);
        if self == Self::Q8_0 {
            for (code, &byte) in block.codes.iter_mut().zip(&bytes[2..34]) {
                *code = byte ^ 0x80;
            }
            return;
        }
        if matches!(self, Self::Q4_1 | Self::Q5_1) {
            block.m = half_at(2);
        }
        let (head, nibbles) = bytes.split_at(self.block_bytes() - 16);
        let high = match (self, head) {
            (Self::Q5_0 | Self::Q5_1, &[.., a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
            _ => 0,
        };
        for (j, &pair) in nibbles.iter().enumerate() {
            block.codes[j] = pair & 15 | (((high >> j) & 1) << 4) as u8;
            block.codes[j + 16] = pair >> 4 | (((high >> (j + 16)) & 1) << 4) as u8;
        }
    }

    fn decode_super_block(self, bytes: &[u8], block: &mut Block) {
        let half_at = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match self {
            Self::Q2_K => {
                (block.d, block.m) = (half_at(80), -half_at(82));
                decode_2_bits(&bytes[16..80], &mut block.codes);
                for (j, &byte) in bytes[..16].iter().enumerate() {
                    block.sub_scales[j] = (byte & 15) as i8;
                    block.sub_mins[j] = (byte >> 4) as i8;
                }
            }
            Self::Q3_K => {
                block.d = half_at(108);
                decode_2_bits(&bytes[32..96], &mut block.codes);
                for (k, code) in block.codes.iter_mut().enumerate() {
                    *code |= (bytes[k % 32] >> (k / 32) & 1) << 2;
                }
                let scales = &bytes[96..108];
                for j in 0..16 {
                    let low = scales[j % 8] >> (j / 8 * 4) & 15;
                    let high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
                    block.sub_scales[j] = (low | high << 4) as i8 - 32;
                }
            }
            Self::Q6_K => {
                block.d = half_at(208);
                block.sub_scales = std::array::from_fn(|j| bytes[192 + j] as i8);
                let (low, high) = bytes[..192].split_at(128);
                for (k, code) in block.codes.iter_mut().enumerate() {
                    let (half, quarter) = (k / 128, k / 32 % 4);
                    *code = low[half * 64 + k % 64] >> (quarter / 2 * 4) & 15
                        | (high[half * 32 + k % 32] >> (quarter * 2) & 3) << 4;
                }
            }
            _ => {
                (block.d, block.m) = (half_at(0), -half_at(2));
                decode_scales_and_mins(&bytes[4..16], block);
                let (high, low) = bytes[16..].split_at(if self == Self::Q5_K { 32 } else { 0 });
                for (k, code) in block.codes.iter_mut().enumerate() {
                    *code = low[k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
                    if self == Self::Q5_K {
                        *code |= (high[k % 32] >> (k / 32) & 1) << 4;
                    }
                }
            }
        }
    }
}

/// 256 codes of two bits, as `Q2_K` and `Q3_K` order them.
fn decode_2_bits(bytes: &[u8], codes: &mut [u8; 256]) {
    for (k, code) in codes.iter_mut().enumerate() {
        *code = bytes[k / 128 * 32 + k % 32] >> (k / 32 % 4 * 2) & 3;
    }
}

/// The eight pairs of six-bit scales and mins of `Q4_K` and `Q5_K`.
fn decode_scales_and_mins(bytes: &[u8], block: &mut Block) {
    for j in 0..8 {
        let (scale, min) = if j < 4 {
            (bytes[j] & 63, bytes[j + 4] & 63)
        } else {
            let low = bytes[j + 4];
            (low & 15 | bytes[j - 4] >> 6 << 4, low >> 4 | bytes[j] >> 6 << 4)
        };
        (block.sub_scales[j], block.sub_mins[j]) = (scale as i8, min as i8);
    }
}

impl Format {
    /// Rounds numbers to this format by the simple rule of its block: floats and the formats with
    /// blocks of 32. Returns false, writing nothing, for the super-block formats.
    ///
    /// # Panics
    /// If `bytes` is not exactly the blocks of `row.len()` numbers.
    #[must_use]
    pub fn quantize_row(self, row: &[f32], bytes: &mut [u8]) -> bool {
        assert_eq!(Some(bytes.len()), self.row_bytes(row.len()), "bytes of a {} row", self.name());
        if self.block_len() == 256 {
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
