//! A matrix on the host, on its way from a file to the device.
//!
//! Owns choosing, joining and turning rows. Rows are moved in the file's format as they are; only what has to cut
//! through rows ([`HostMatrix::transposed`]) takes them apart, without loss.

use std::borrow::Cow;

use longrun_array::Format;

use super::draw::bf16;
use crate::checkpoint::widened;
use crate::error::{Error, Result};

/// `[rows, cols]` in host memory, row-major.
#[derive(Clone)]
pub(crate) struct HostMatrix<'a> {
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bytes: Cow<'a, [u8]>,
}

impl<'a> HostMatrix<'a> {
    fn row_bytes(&self) -> usize {
        self.bytes.len() / self.rows
    }

    /// These rows, in this order.
    pub(crate) fn take_rows(&self, order: impl Iterator<Item = usize>) -> HostMatrix<'static> {
        let row = self.row_bytes();
        let mut bytes = Vec::new();
        order.for_each(|r| bytes.extend_from_slice(&self.bytes[r * row..][..row]));
        let rows = bytes.len() / row;
        HostMatrix { format: self.format, rows, cols: self.cols, bytes: bytes.into() }
    }

    /// The same numbers with scales in f32, if the format has such a form and is not it.
    fn widened(self) -> Self {
        match widened(self.format, &self.bytes) {
            Some((format, bytes)) => Self { format, bytes, ..self },
            None => self,
        }
    }

    /// All numbers, row by row.
    pub(crate) fn numbers(&self) -> Vec<f32> {
        let mut numbers = vec![0.0; self.rows * self.cols];
        self.format.dequantize_row(&self.bytes, &mut numbers);
        numbers
    }

    /// Plain numbers as a matrix: in bf16 if `format` is that and so holds them, else in f32.
    pub(crate) fn of_numbers(
        numbers: &[f32],
        [rows, cols]: [usize; 2],
        format: Format,
    ) -> HostMatrix<'static> {
        let (format, bytes): (_, Vec<u8>) = match format {
            Format::BF16 => (Format::BF16, numbers.iter().flat_map(|x| bf16(*x)).collect()),
            _ => (Format::F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()),
        };
        HostMatrix { format, rows, cols, bytes: bytes.into() }
    }

    /// Rows become columns. What is quantised becomes f32.
    pub(crate) fn transposed(&self) -> HostMatrix<'static> {
        let (rows, cols, from) = (self.rows, self.cols, self.numbers());
        let turned: Vec<f32> = (0..rows * cols).map(|i| from[i % rows * cols + i / rows]).collect();
        Self::of_numbers(&turned, [cols, rows], self.format)
    }

    /// Matrices of one shape behind each other: the experts (or groups) of a stack.
    pub(crate) fn stacked(
        parts: impl Iterator<Item = Result<HostMatrix<'a>>>,
    ) -> Result<(HostMatrix<'static>, usize)> {
        // It grows with the files: a config's word for the number of experts is no reason to take memory.
        let mut all: Option<HostMatrix<'static>> = None;
        let mut count = 0;
        for part in parts {
            let mut part = part?;
            count += 1;
            let Some(all) = &mut all else {
                all = Some(HostMatrix { bytes: part.bytes.into_owned().into(), ..part });
                continue;
            };
            // Each came with scales as short as its own numbers allow.
            if all.format != part.format {
                part = part.widened();
                let narrow = std::mem::take(&mut all.bytes);
                *all = HostMatrix { bytes: narrow, ..*all }.widened();
            }
            if (all.format, all.rows, all.cols) != (part.format, part.rows, part.cols) {
                let what = format!(
                    "expert {} is {}, those before it {}",
                    count - 1,
                    part.format.name(),
                    all.format.name()
                );
                return Err(Error::unsupported(what));
            }
            all.bytes.to_mut().extend_from_slice(&part.bytes);
        }
        all.map(|all| (all, count)).ok_or_else(|| Error::file("a mixture of 0 experts"))
    }
}

#[cfg(test)]
mod tests {
    use longrun_array::format::Affine;

    use super::*;

    /// A row of 32 columns with this scale, in the narrow form or the wide one.
    fn expert(scale: f32, wide: bool) -> HostMatrix<'static> {
        let scales: Vec<u8> = match wide {
            true => [scale, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect(),
            false => vec![0, 0x3c, 0, 0],
        };
        let format = Format::Affine(Affine::new(4, 32, wide).unwrap());
        let bytes = [scales, vec![0x21; 16]].concat().into();
        HostMatrix { format, rows: 1, cols: 32, bytes }
    }

    #[test]
    fn experts_with_short_and_long_scales_are_joined() {
        let expected: Vec<f32> =
            [1.0, 0.1, 1.0].iter().flat_map(|scale| [*scale, 2.0 * scale].repeat(16)).collect();
        for first in 0..2 {
            let all = [expert(1.0, false), expert(0.1, true), expert(1.0, false)];
            let parts = all.into_iter().skip(first).map(Ok);
            let (mut stacked, count) = HostMatrix::stacked(parts).unwrap();
            stacked.rows = count;
            assert_eq!(stacked.format.name(), "affine4/32 wide");
            assert_eq!(stacked.numbers(), expected[32 * first..]);
        }
        let other =
            HostMatrix { format: Format::BF16, bytes: vec![0; 64].into(), ..expert(1.0, true) };
        assert!(HostMatrix::stacked([Ok(expert(1.0, false)), Ok(other)].into_iter()).is_err());
    }
}
