//! Takes blocks apart: the bit layouts of every quantised format.

use super::{Block, Scale};
use crate::format::Format;

impl Format {
    /// Decodes one quantised block of [`block_bytes`](Self::block_bytes) bytes.
    pub(crate) fn decode_block(self, bytes: &[u8], block: &mut Block) {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => unreachable!("plain floats have no codes"),
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::IQ4_NL | Self::MXFP4 => {
                self.decode_split_nibbles(bytes, block);
            }
            Self::Q8_0 => {
                block.d = Scale::F16.read(bytes);
                let codes = block.codes.iter_mut().zip(&bytes[2..]);
                codes.for_each(|(code, &byte)| *code = byte ^ 0x80);
            }
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => {
                self.decode_super_block(bytes, block);
            }
            Self::IQ1_S | Self::IQ1_M | Self::IQ2_XXS | Self::IQ2_XS | Self::IQ2_S => {
                self.decode_lattice(bytes, block);
            }
            Self::IQ3_XXS | Self::IQ3_S => self.decode_lattice(bytes, block),
            Self::TQ1_0 => {
                block.d = Scale::F16.read(&bytes[52..]);
                decode_ternary(&bytes[..52], &mut block.codes);
            }
            Self::TQ2_0 => {
                block.d = Scale::F16.read(&bytes[64..]);
                decode_2_bits(&bytes[..64], &mut block.codes);
            }
            Self::Affine(f) => {
                let scale = if f.is_wide() { Scale::F32 } else { Scale::F16 };
                block.d = scale.read(bytes);
                block.m = scale.read(&bytes[scale.bytes()..]);
                decode_stream(f.bits(), &bytes[2 * scale.bytes()..], &mut block.codes);
            }
            Self::Fp4(f) => {
                let scale = if f.is_wide() { Scale::F32 } else { Scale::F16 };
                block.d = scale.read(bytes);
                decode_stream(4, &bytes[scale.bytes()..], &mut block.codes);
            }
            Self::Fp8(f) => {
                block.d = Scale::F32.read(bytes);
                block.codes[..f.group()].copy_from_slice(&bytes[4..]);
            }
        }
    }

    /// 32 codes whose low four bits are in 16 bytes: the first half of the codes in low nibbles.
    fn decode_split_nibbles(self, bytes: &[u8], block: &mut Block) {
        let (head, nibbles) = bytes.split_at(self.block_bytes() - 16);
        let scale = if self == Self::MXFP4 { Scale::E8m0 } else { Scale::F16 };
        block.d = scale.read(head);
        if matches!(self, Self::Q4_1 | Self::Q5_1) {
            block.m = Scale::F16.read(&head[2..]);
        }
        let (low, high) = block.codes.split_at_mut(16);
        for ((low, high), &pair) in low.iter_mut().zip(high).zip(nibbles) {
            (*low, *high) = (pair & 15, pair >> 4);
        }
        if let (Self::Q5_0 | Self::Q5_1, &[.., a, b, c, d]) = (self, head) {
            let fifth = u32::from_le_bytes([a, b, c, d]);
            let codes = block.codes[..32].iter_mut().enumerate();
            codes.for_each(|(j, code)| *code |= ((fifth >> j & 1) << 4) as u8);
        }
    }

    fn decode_super_block(self, bytes: &[u8], block: &mut Block) {
        let half_at = |at: usize| Scale::F16.read(&bytes[at..]);
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
            Self::IQ4_XS => {
                block.d = half_at(0);
                let high = u16::from_le_bytes([bytes[2], bytes[3]]);
                for j in 0..8 {
                    let low = bytes[4 + j / 2] >> (j % 2 * 4) & 15;
                    block.sub_scales[j] = (low | ((high >> (2 * j) & 3) << 4) as u8) as i8 - 32;
                }
                for (k, code) in block.codes.iter_mut().enumerate() {
                    *code = bytes[8 + k / 32 * 16 + k % 16] >> (k % 32 / 16 * 4) & 15;
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

/// 256 ternary digits, five or at the end four in a byte: the first is `3 / 256` of it, rounded
/// down, and the next that of what a multiplication with 3 leaves in the byte. Bytes are in runs of
/// 32, 16 and 4, and first digits of a run come before second ones.
fn decode_ternary(bytes: &[u8], codes: &mut [u8; 256]) {
    let (first, rest) = bytes.split_at(32);
    let (second, third) = rest.split_at(16);
    let (codes, last) = codes.split_at_mut(240);
    let (codes, middle) = codes.split_at_mut(160);
    for (bytes, codes) in [(first, codes), (second, middle), (third, last)] {
        for (k, code) in codes.iter_mut().enumerate() {
            let left = (0..k / bytes.len()).fold(bytes[k % bytes.len()], |b, _| b.wrapping_mul(3));
            *code = ((u16::from(left) * 3) >> 8) as u8;
        }
    }
}

/// 256 codes of two bits, as `Q2_K`, `Q3_K` and `TQ2_0` order them.
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

/// Codes of `bits` one after another from the lowest bit of each byte on, eight at a time.
fn decode_stream(bits: usize, bytes: &[u8], codes: &mut [u8]) {
    let mask = 0xff >> (8 - bits);
    for (eight, codes) in bytes.chunks_exact(bits).zip(codes.as_chunks_mut::<8>().0) {
        let mut word = [0; 8];
        word[..bits].copy_from_slice(eight);
        let word = u64::from_le_bytes(word);
        for (j, code) in codes.iter_mut().enumerate() {
            *code = (word >> (j * bits)) as u8 & mask;
        }
    }
}
