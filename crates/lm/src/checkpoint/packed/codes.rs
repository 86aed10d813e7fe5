//! The orders in which writers keep the codes of a matrix, all turned into one: row after row,
//! each a little-endian stream of codes, the lowest bits first.
//!
//! Owns moving bits. Refuses to know what a code means.

use std::borrow::Cow;

/// Where AWQ keeps column `j` of eight: nibble `AWQ[j]` of the word.
const AWQ: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The order of the codes of a weight in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Row after row already.
    Rows,
    /// Row after row of signed bytes; a code is such a byte plus 128.
    Signed,
    /// 32-bit words `[cols * bits / 32, rows]`, each of a row's consecutive codes.
    Gptq,
    /// 32-bit words `[cols, rows / 8]`, each of eight rows' nibbles in an order of its own.
    Awq,
}

impl Order {
    /// The codes of `rows` rows of `row_bytes` bytes in the common order; `data` is as long.
    pub(super) fn rows(self, data: &[u8], rows: usize, row_bytes: usize) -> Cow<'_, [u8]> {
        match self {
            Self::Rows => Cow::Borrowed(data),
            Self::Signed => data.iter().map(|byte| byte ^ 0x80).collect(),
            Self::Gptq => Cow::Owned(gptq(data, rows, row_bytes)),
            Self::Awq => Cow::Owned(awq(data, rows, row_bytes)),
        }
    }
}

/// Neighbouring words that are turned over together: those of a line of cache.
const TILE: usize = 16;

/// Turns words `[words of a row, rows]` over.
fn gptq(data: &[u8], rows: usize, row_bytes: usize) -> Vec<u8> {
    let (words, _) = data.as_chunks::<4>();
    let mut out = vec![0; data.len()];
    for first in (0..rows).step_by(TILE) {
        for (k, row_of_words) in words.chunks_exact(rows).enumerate() {
            for (r, word) in row_of_words.iter().enumerate().skip(first).take(TILE) {
                out[r * row_bytes + 4 * k..][..4].copy_from_slice(word);
            }
        }
    }
    out
}

/// Turns nibbles `[cols, rows]` over.
fn awq(data: &[u8], rows: usize, row_bytes: usize) -> Vec<u8> {
    let (words, _) = data.as_chunks::<4>();
    let mut out = vec![0; data.len()];
    for first in (0..rows / 8).step_by(TILE) {
        for (c, row_of_words) in words.chunks_exact(rows / 8).enumerate() {
            for (block, word) in row_of_words.iter().enumerate().skip(first).take(TILE) {
                let word = u32::from_le_bytes(*word);
                for (j, nibble) in AWQ.iter().enumerate() {
                    let code = (word >> (4 * nibble) & 15) as u8;
                    out[(8 * block + j) * row_bytes + c / 2] |= code << (4 * (c % 2));
                }
            }
        }
    }
    out
}

/// How the zero points of a weight are kept. `rows` and `groups` are those of their grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroOrder {
    /// Signed bytes `[rows, groups]`, less `2^(bits - 1)`.
    Signed,
    /// Words `[rows * bits / 32, groups]`, the last row of words perhaps partly used.
    Rows,
    /// Words `[groups, rows * bits / 32]`. `less_one`: of codes less 1.
    Gptq { less_one: bool },
    /// Words `[groups, rows / 8]` in AWQ's order.
    Awq,
}

impl ZeroOrder {
    /// Bytes of the zero points of a grid, or `None` if it can't be kept in this order.
    pub(super) fn bytes(self, bits: usize, rows: usize, groups: usize) -> Option<usize> {
        let words = match self {
            Self::Signed => return rows.checked_mul(groups),
            _ if !32usize.is_multiple_of(bits) => return None,
            Self::Rows => rows.div_ceil(32 / bits),
            Self::Gptq { .. } | Self::Awq if rows.is_multiple_of(32 / bits) => rows / (32 / bits),
            Self::Gptq { .. } | Self::Awq => return None,
        };
        words.checked_mul(groups)?.checked_mul(4)
    }

    /// The zero points, in the order of the scales: `[rows, groups]` for the first two, else
    /// `[groups, rows]`. `data` has the length that [`bytes`](Self::bytes) says.
    pub(super) fn read(self, data: &[u8], bits: usize, rows: usize, groups: usize) -> Vec<f32> {
        if self == Self::Signed {
            let least = -(1i32 << (bits - 1));
            return data
                .iter()
                .map(|byte| (i32::from(byte.cast_signed()) - least) as f32)
                .collect();
        }
        let per_word = 32 / bits;
        // One in every code; a writer that took it away may have borrowed between codes.
        let ones = (0..per_word).fold(0u32, |ones, i| ones | 1 << (i * bits));
        let add = if self == (Self::Gptq { less_one: true }) { ones } else { 0 };
        let (words, _) = data.as_chunks::<4>();
        let code = |word: usize, place: u32| {
            let word = u32::from_le_bytes(words[word]).wrapping_add(add);
            ((word >> (bits as u32 * place)) & ((1u64 << bits) - 1) as u32) as f32
        };
        let count = rows * groups;
        let place = |i: usize| (i % per_word) as u32;
        match self {
            Self::Rows => (0..count)
                .map(|i| (i / groups, i % groups))
                .map(|(r, g)| code(r / per_word * groups + g, place(r)))
                .collect(),
            Self::Awq => (0..count).map(|i| code(i / 8, AWQ[i % 8])).collect(),
            Self::Gptq { .. } | Self::Signed => {
                (0..count).map(|i| code(i / per_word, place(i))).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Code of a matrix with all codes different enough.
    fn code(r: usize, c: usize) -> u32 {
        ((r * 7 + c * 3 + r * c) % 16) as u32
    }

    fn expected(rows: usize, cols: usize) -> Vec<u8> {
        let pair = |i: usize| (i / (cols / 2), i % (cols / 2) * 2);
        let byte = |(r, c)| (code(r, c) | code(r, c + 1) << 4) as u8;
        (0..rows * cols / 2).map(|i| byte(pair(i))).collect()
    }

    #[test]
    fn codes_by_columns() {
        let (rows, cols) = (8 * (TILE + 1), 32);
        let gptq: Vec<u32> = (0..cols / 8 * rows)
            .map(|i| (i / rows * 8, i % rows))
            .map(|(c, r)| (0..8).fold(0, |word, j| word | code(r, c + j) << (4 * j)))
            .collect();
        assert_eq!(*Order::Gptq.rows(&bytes(&gptq), rows, cols / 2), expected(rows, cols));
        // AWQ's packer puts row ORDER[i] of eight into nibble i.
        const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
        let awq: Vec<u32> = (0..cols * rows / 8)
            .map(|i| (i / (rows / 8), i % (rows / 8) * 8))
            .map(|(c, r)| (0..8).fold(0, |word, i| word | code(r + ORDER[i], c) << (4 * i)))
            .collect();
        assert_eq!(*Order::Awq.rows(&bytes(&awq), rows, cols / 2), expected(rows, cols));
        assert_eq!(*Order::Signed.rows(&[0x80, 0xff, 0, 0x7f], 1, 4), [0, 127, 128, 255]);
    }

    #[test]
    fn zero_points() {
        // Two groups, eight rows: [groups, rows].
        let words = [0x7654_3210, 0xfedc_ba98];
        let plain = ZeroOrder::Gptq { less_one: false }.read(&bytes(&words), 4, 8, 2);
        assert_eq!(plain, (0..16).map(|i| i as f32).collect::<Vec<_>>());
        let less: Vec<u32> = words.iter().map(|word| word.wrapping_sub(0x1111_1111)).collect();
        assert_eq!(ZeroOrder::Gptq { less_one: true }.read(&bytes(&less), 4, 8, 2), plain);
        let awq = ZeroOrder::Awq.read(&bytes(&words), 4, 8, 2);
        assert_eq!(awq[..8], [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
        // Five rows of two groups in two words: [rows, groups].
        let rows = ZeroOrder::Rows.read(&bytes(&[0x43210, 0x98765]), 4, 5, 2);
        assert_eq!(rows, [0.0, 5.0, 1.0, 6.0, 2.0, 7.0, 3.0, 8.0, 4.0, 9.0]);
        assert_eq!(ZeroOrder::Signed.read(&[0xf8, 0, 7], 4, 3, 1), [0.0, 8.0, 15.0]);
        let eight = ZeroOrder::Gptq { less_one: true }.read(&[0x7f, 0x7f, 0, 254], 8, 4, 1);
        assert_eq!(eight, [128.0, 128.0, 1.0, 255.0]);
        assert_eq!(ZeroOrder::Rows.bytes(4, 5, 2), Some(8));
        assert_eq!(ZeroOrder::Awq.bytes(4, 5, 2), None);
        assert_eq!(ZeroOrder::Rows.bytes(3, 32, 2), None);
        assert_eq!(ZeroOrder::Rows.bytes(4, usize::MAX, 16), None);
    }
}
