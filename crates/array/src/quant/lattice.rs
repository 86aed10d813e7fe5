//! Takes apart the blocks whose codes are points of grids: the `IQ1`, `IQ2` and `IQ3` formats.
//!
//! Owns the grids and the bit layouts around them. Refuses to scale: what the digits of a point
//! stand for is the codebook's.
//!
//! A block of 256 numbers names a point for every 8 of them (`IQ1`, `IQ2`) or 4 (`IQ3`): magnitudes
//! from a fixed set. Signs are kept beside, or in `IQ1` a step of an eighth that all numbers of a
//! point are moved by. The scale of a group is an odd number, `2 s + 1`, times the block's.

use super::{Block, Scale};
use crate::format::Format;

/// Points of all grids, two little-endian bytes each, as `grids.py` beside this file writes them.
const GRIDS: &[u8; 2 * GRIDS_END] = include_bytes!("grids.bin");

/// The first point of each grid.
const IQ2_XXS: usize = 0;
const IQ2_XS: usize = IQ2_XXS + 256;
const IQ2_S: usize = IQ2_XS + 512;
const IQ1: usize = IQ2_S + 1024;
const IQ3_XXS: usize = IQ1 + 2048;
const IQ3_S: usize = IQ3_XXS + 256;
const GRIDS_END: usize = IQ3_S + 512;

/// Eight digits of two bits, or four of four bits, the first lowest.
fn point(grid: usize, index: usize) -> u16 {
    let at = 2 * (grid + index);
    u16::from_le_bytes([GRIDS[at], GRIDS[at + 1]])
}

/// The points of all grids, for devices that look them up on their own.
pub(crate) fn points() -> impl Iterator<Item = u16> {
    (0..GRIDS_END).map(|at| point(0, at))
}

/// Seven signs and the eighth, which makes the count of minus signs even.
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Codes of three bits: a digit, and above it the bit of `signs`.
fn eight_codes(point: u16, signs: u8) -> [u8; 8] {
    std::array::from_fn(|j| (point >> (2 * j) & 3) as u8 | (signs >> j & 1) << 2)
}

/// Codes of four bits: of two points the digits, and above each the bit of `signs`.
fn four_and_four(points: [u16; 2], signs: u8) -> [u8; 8] {
    std::array::from_fn(|j| (points[j / 4] >> (j % 4 * 4) & 7) as u8 | (signs >> j & 1) << 3)
}

/// The nibbles of `bytes`, the low one of each first.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte & 15, byte >> 4])
}

/// The little-endian words of two bytes.
fn words<const N: usize>(bytes: &[u8]) -> [u16; N] {
    std::array::from_fn(|j| u16::from_le_bytes([bytes[2 * j], bytes[2 * j + 1]]))
}

/// `2 s + 1`, for `s` below 16.
fn odd(s: u8) -> i8 {
    (2 * s + 1) as i8
}

impl Format {
    /// Decodes a block of one of the formats that this file owns.
    pub(super) fn decode_lattice(self, bytes: &[u8], block: &mut Block) {
        // Of IQ1_M, which keeps its scale elsewhere, this is not the last word.
        block.d = Scale::F16.read(bytes);
        match self {
            Self::IQ1_S => iq1_s(&bytes[2..], block),
            Self::IQ1_M => iq1_m(bytes, block),
            Self::IQ2_XXS => iq2_xxs(&bytes[2..], block),
            Self::IQ2_XS => iq2_xs(&bytes[2..], block),
            Self::IQ2_S => iq2_s(&bytes[2..], block),
            Self::IQ3_XXS => iq3_xxs(&bytes[2..], block),
            Self::IQ3_S => iq3_s(&bytes[2..], block),
            _ => unreachable!("{} has no grid", self.name()),
        }
    }
}

/// Numbers are `dl (digit - 1 + step)` with a step of plus or minus an eighth for each 32 of them.
///
/// With `digit` for a code that is a scale and a min in eighths, `8 dl` and `-7 dl`; with a minus
/// and `2 - digit` for a code it is their negatives. So all integers fit in `i8`.
fn iq1_s(bytes: &[u8], block: &mut Block) {
    block.m = block.d;
    let heads: [u16; 8] = words(&bytes[32..]);
    for (j, head) in heads.into_iter().enumerate() {
        let (dl, minus) = (odd((head >> 12 & 7) as u8), head >> 15 == 1);
        let sign = if minus { -1 } else { 1 };
        (block.sub_scales[j], block.sub_mins[j]) = (sign * 8 * dl, sign * -7 * dl);
        for (l, codes) in block.codes[32 * j..][..32].as_chunks_mut::<8>().0.iter_mut().enumerate()
        {
            let high = usize::from(head >> (3 * l) & 7) << 8;
            let digits = eight_codes(point(IQ1, high | usize::from(bytes[4 * j + l])), 0);
            *codes = if minus { digits.map(|digit| 2 - digit) } else { digits };
        }
    }
}

/// As `IQ1_S`, but steps change with each point: a code says which, where others say a sign. The
/// block's scale is in the top nibbles of the words that hold scales of 16 numbers each.
fn iq1_m(bytes: &[u8], block: &mut Block) {
    let scales: [u16; 4] = words(&bytes[48..]);
    let d = scales.iter().rev().fold(0, |d, word| d << 4 | word >> 12);
    block.d = Scale::F16.read(&d.to_le_bytes());
    for (i, scale) in block.sub_scales.iter_mut().enumerate() {
        *scale = odd((scales[i / 4] >> (i % 4 * 3) & 7) as u8);
    }
    let heads = nibbles(&bytes[32..48]);
    for ((codes, head), low) in block.codes.as_chunks_mut::<8>().0.iter_mut().zip(heads).zip(bytes)
    {
        let index = usize::from(head & 7) << 8 | usize::from(*low);
        *codes = eight_codes(point(IQ1, index), if head & 8 == 0 { 0 } else { 0xff });
    }
}

/// 32 numbers: four points, and a word of four times seven signs below a scale.
fn iq2_xxs(bytes: &[u8], block: &mut Block) {
    let codes = block.codes.as_chunks_mut::<8>().0;
    for (j, &[a, b, c, d, word @ ..]) in bytes.as_chunks::<8>().0.iter().enumerate() {
        let word = u32::from_le_bytes(word);
        block.sub_scales[j] = odd((word >> 28) as u8);
        for (l, index) in [a, b, c, d].into_iter().enumerate() {
            let signs = even_signs(word >> (7 * l));
            codes[4 * j + l] = eight_codes(point(IQ2_XXS, index.into()), signs);
        }
    }
}

/// Words of a point and seven signs, then scales of 16 numbers each.
fn iq2_xs(bytes: &[u8], block: &mut Block) {
    let (head, scales) = bytes.split_at(64);
    let words: [u16; 32] = words(head);
    for (codes, word) in block.codes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        let signs = even_signs(u32::from(word >> 9));
        *codes = eight_codes(point(IQ2_XS, usize::from(word & 511)), signs);
    }
    block.sub_scales.iter_mut().zip(nibbles(scales)).for_each(|(to, s)| *to = odd(s));
}

/// Low bytes of points, signs, high bits of points, then scales of 16 numbers each.
fn iq2_s(bytes: &[u8], block: &mut Block) {
    let (low, signs, high) = (&bytes[..32], &bytes[32..64], &bytes[64..72]);
    for (i, codes) in block.codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = usize::from(high[i / 4] >> (i % 4 * 2) & 3) << 8;
        *codes = eight_codes(point(IQ2_S, high | usize::from(low[i])), signs[i]);
    }
    block.sub_scales.iter_mut().zip(nibbles(&bytes[72..])).for_each(|(to, s)| *to = odd(s));
}

/// Points, then for each 32 numbers a word of four times seven signs below a scale.
fn iq3_xxs(bytes: &[u8], block: &mut Block) {
    let (points, rest) = bytes.split_at(64);
    let codes = block.codes.as_chunks_mut::<8>().0;
    for (j, word) in rest.as_chunks::<4>().0.iter().enumerate() {
        let word = u32::from_le_bytes(*word);
        block.sub_scales[j] = odd((word >> 28) as u8);
        for l in 0..4 {
            let i = 4 * j + l;
            let pair = [2 * i, 2 * i + 1].map(|at| point(IQ3_XXS, points[at].into()));
            codes[i] = four_and_four(pair, even_signs(word >> (7 * l)));
        }
    }
}

/// Low bytes of points, their high bits, signs, then scales of 32 numbers each.
fn iq3_s(bytes: &[u8], block: &mut Block) {
    let (low, high, signs) = (&bytes[..64], &bytes[64..72], &bytes[72..104]);
    for (i, codes) in block.codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let pair = [2 * i, 2 * i + 1].map(|at| {
            let high = usize::from(high[at / 8] >> (at % 8) & 1) << 8;
            point(IQ3_S, high | usize::from(low[at]))
        });
        *codes = four_and_four(pair, signs[i]);
    }
    block.sub_scales.iter_mut().zip(nibbles(&bytes[104..])).for_each(|(to, s)| *to = odd(s));
}
