//! Weights that are made up at once, for measuring: one pattern of numbers in a format, over and over.
//!
//! Owns which format a matrix gets, as writers of real checkpoints choose it, and numbers that stay tame in a model of
//! any width. A matrix begins at a place of the pattern that its name says, and the pattern is as long as no vocabulary:
//! no two of its rows are the same. Most matrices are views of one buffer, so that gigabytes cost no time. Refuses to
//! be a model: the numbers mean nothing.

use std::borrow::Cow;
use std::sync::OnceLock;

use longrun_array::{Affine, Format};

use super::HostMatrix;
use super::draw::{Draw, bf16};
use crate::config::Config;
use crate::convert::is_router;

/// Blocks of the pattern: a prime number, so that rows of any length begin at different places.
const PERIOD: usize = 262_147;

/// About the standard deviation of numbers: sums over some thousand columns stay near 1.
const DEVIATION: f32 = 0.02;

/// How the matrices of a model are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Plain numbers in bf16.
    Bf16,
    /// MLX's groups of 64 with a scale and a bias, 8 bits.
    Q8,
    /// The same in 4 bits; routers keep 8.
    Q4,
    /// Blocks of GGUF; routers are plain.
    Q4K,
}

impl Storage {
    /// The name that people use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
            Self::Q4K => "q4_k",
        }
    }

    /// The format of the matrix `name`, of `cols` columns.
    fn of(self, name: &str, cols: usize) -> Format {
        let router = is_router(name.strip_suffix(".weight").unwrap_or(name));
        let affine = |bits| Affine::new(bits, 64, false).map_or(Format::BF16, Format::Affine);
        let format = match self {
            Self::Q8 => affine(8),
            Self::Q4 => affine(if router { 8 } else { 4 }),
            Self::Q4K if !router => Format::Q4_K,
            Self::Bf16 | Self::Q4K => Format::BF16,
        };
        if cols.is_multiple_of(format.block_len()) { format } else { Format::BF16 }
    }
}

/// A source of matrices that are made up.
pub struct Made {
    storage: Storage,
    /// Numbers of the largest matrix, about.
    largest: usize,
    main: OnceLock<Vec<u8>>,
    /// The pattern of what is not stored as most are, in bf16 and in 8 bits.
    others: [OnceLock<Vec<u8>>; 2],
}

impl Made {
    /// Weights for a model of this shape.
    pub fn new(storage: Storage, config: &Config) -> Self {
        let experts = config.moe.as_ref().map_or(0, |moe| moe.experts * moe.intermediate);
        let widest = config.vocab.max(config.intermediate).max(experts);
        let largest = widest.saturating_mul(config.hidden);
        Self { storage, largest, main: OnceLock::new(), others: Default::default() }
    }

    /// How most matrices are stored.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// The matrix `[rows, cols]` of this name: the same each time.
    pub(super) fn matrix(&self, name: &str, [rows, cols]: [usize; 2]) -> HostMatrix<'_> {
        let format = self.storage.of(name, cols);
        let (block, blocks) = (format.block_bytes(), rows * (cols / format.block_len()));
        let first = Draw::new(0, name).below(PERIOD);
        let pattern = self.pattern(format);
        let bytes = match pattern.get(first * block..(first + blocks) * block) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(repeated(&pattern[..PERIOD * block], first * block, blocks * block)),
        };
        HostMatrix { format, rows, cols, bytes }
    }

    /// The pattern in a format; that of most matrices is so long that they are parts of it.
    fn pattern(&self, format: Format) -> &[u8] {
        let block = format.block_bytes();
        if format == self.storage.of("", 0) {
            let blocks = PERIOD + self.largest.div_ceil(format.block_len());
            return self.main.get_or_init(|| repeated(&period(format), 0, blocks * block));
        }
        let place = usize::from(format != Format::BF16);
        self.others[place].get_or_init(|| period(format))
    }
}

/// `len` bytes of the endless repetition of `period`, from byte `first` of it on.
fn repeated(period: &[u8], first: usize, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&period[first..(first + len).min(period.len())]);
    while bytes.len() < len {
        bytes.extend_from_slice(&period[..period.len().min(len - bytes.len())]);
    }
    bytes
}

/// One period of random blocks in a format that [`Storage::of`] gives.
fn period(format: Format) -> Vec<u8> {
    let mut rng = Draw::new(0, "");
    let mut bytes = vec![0; PERIOD * format.block_bytes()];
    if format == Format::BF16 {
        let numbers = bytes.as_chunks_mut::<2>().0;
        numbers.iter_mut().for_each(|number| *number = bf16(DEVIATION * rng.normal()));
        return bytes;
    }
    rng.fill(&mut bytes);
    let head = head(format);
    bytes.chunks_exact_mut(format.block_bytes()).for_each(|block| {
        block[..4].copy_from_slice(&head);
    });
    bytes
}

/// What stands before the codes of a block, so that numbers around 0 come of random ones.
fn head(format: Format) -> [u8; 4] {
    // f16 with few digits: both are exact. An affine number is `scale * code + min`, one of Q4_K
    // `scale * a * code - min * b`, where a and b are random codes of 6 bits.
    let (scale, min): (u16, u16) = match format {
        Format::Affine(affine) if affine.bits() == 4 => (0x1c00, 0xa780), // 2^-8, -7.5 * 2^-8
        Format::Affine(_) => (0x0c00, 0xa7f8),                            // 2^-12, -127.5 * 2^-12
        _ => (0x0400, 0x0f80),                                            // 2^-14, 7.5 * 2^-14
    };
    let ([a, b], [c, d]) = (scale.to_le_bytes(), min.to_le_bytes());
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes;

    fn made(storage: Storage) -> Made {
        Made::new(storage, &Config::new(&shapes::config("tiny").unwrap()).unwrap())
    }

    #[test]
    fn numbers_are_around_zero_in_every_format() {
        for (storage, format) in [
            (Storage::Bf16, "bf16"),
            (Storage::Q8, "affine8/64"),
            (Storage::Q4, "affine4/64"),
            (Storage::Q4K, "q4_k"),
        ] {
            let made = made(storage);
            let matrix = made.matrix("model.layers.0.mlp.up_proj.weight", [300, 256]);
            assert_eq!(matrix.format.name(), format);
            let numbers = matrix.numbers();
            let count = numbers.len() as f32;
            let mean = numbers.iter().sum::<f32>() / count;
            let deviation = (numbers.iter().map(|x| x * x).sum::<f32>() / count).sqrt();
            assert!(mean.abs() < 1e-3, "{format}: {mean}");
            assert!((0.014..0.024).contains(&deviation), "{format}: {deviation}");
            assert!(numbers.iter().all(|x| x.abs() < 0.3), "{format}");
        }
    }

    #[test]
    fn rows_differ_and_names_say_where_they_begin() {
        for storage in [Storage::Bf16, Storage::Q8, Storage::Q4, Storage::Q4K] {
            let made = made(storage);
            let long = made.matrix("long", [8192, 256]);
            let short = made.matrix("long", [3, 256]);
            assert!(matches!(short.bytes, Cow::Borrowed(_)), "{storage:?}");
            assert!(long.bytes.starts_with(&short.bytes));
            let row = long.bytes.len() / 8192;
            let mut rows: Vec<&[u8]> = long.bytes.chunks(row).collect();
            rows.sort_unstable();
            rows.dedup();
            assert_eq!(rows.len(), 8192, "{storage:?}");
            assert_ne!(made.matrix("other", [3, 256]).bytes, short.bytes);
        }
    }

    #[test]
    fn what_is_longer_than_the_buffer_is_put_together() {
        assert_eq!(repeated(&[1, 2, 3], 2, 8), [3, 1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(repeated(&[1, 2, 3], 1, 1), [2]);
        let long = made(Storage::Bf16);
        let long = long.matrix("long", [8192, 256]);
        assert!(matches!(long.bytes, Cow::Owned(_)));
        let (period, bytes) = (2 * PERIOD, long.bytes);
        assert!(bytes.len() > 2 * period && bytes[..period] == bytes[period..2 * period]);
    }

    #[test]
    fn routers_and_odd_widths_are_stored_otherwise() {
        let format = |storage: Storage, name: &str, cols| storage.of(name, cols).name();
        assert_eq!(format(Storage::Q4, "model.layers.1.mlp.gate.weight", 256), "affine8/64");
        assert_eq!(format(Storage::Q4K, "model.layers.1.mlp.gate.weight", 256), "bf16");
        assert_eq!(format(Storage::Q4K, "lm_head.weight", 128), "bf16");
        assert_eq!(format(Storage::Q4, "lm_head.weight", 128), "affine4/64");
        let made = made(Storage::Q4);
        assert_eq!(made.matrix("mlp.gate.weight", [8, 256]).format.name(), "affine8/64");
        assert_eq!(made.matrix("lm_head.weight", [8, 32]).format.name(), "bf16");
    }
}
