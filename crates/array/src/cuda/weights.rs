//! How matrices lie on the device: the file's rows as they are, one after the other.
//!
//! Owns the layout and what kernels are told of it. Each format may get a layout of its own here, which `matrix_bytes`,
//! `load` and `matrix` then agree about.

use super::arguments::{Format as FormatCode, Matrix};
use super::driver::{Memory, Stream};
use crate::device::MatrixSpec;
use crate::format::Format;

/// Bytes of a matrix, or of a stack.
pub(super) fn matrix_bytes(spec: &MatrixSpec) -> Option<usize> {
    spec.format.row_bytes(spec.cols)?.checked_mul(spec.rows)?.checked_mul(spec.experts)
}

/// Brings a matrix from the file's layout into the device's.
pub(super) fn load(
    stream: &Stream,
    memory: &Memory,
    spec: &MatrixSpec,
    rows: &[u8],
) -> Result<(), String> {
    if matrix_bytes(spec) != Some(rows.len()) {
        return Err("the bytes do not fit the shape".into());
    }
    memory.write(stream, 0, rows)
}

/// A matrix as kernels take it.
pub(super) fn matrix(spec: &MatrixSpec, at: u64) -> Matrix {
    let [experts, rows, cols] = [spec.experts, spec.rows, spec.cols].map(|n| n as u32);
    let row_bytes = spec.format.row_bytes(spec.cols).unwrap_or(0) as u64;
    Matrix { at, row_bytes, format: format(spec.format), experts, rows, cols, zero: 0 }
}

/// A format as kernels take it: its number in `format.cuh`, and its parameters.
pub(super) fn format(format: Format) -> FormatCode {
    let (kind, bits, group, wide) = match format {
        Format::F32 => (0, 32, 1, false),
        Format::F16 => (1, 16, 1, false),
        Format::BF16 => (2, 16, 1, false),
        Format::Q4_0 => (3, 4, 32, false),
        Format::Q4_1 => (4, 4, 32, false),
        Format::Q5_0 => (5, 5, 32, false),
        Format::Q5_1 => (6, 5, 32, false),
        Format::Q8_0 => (7, 8, 32, false),
        Format::Q2_K => (8, 2, 16, false),
        Format::Q3_K => (9, 3, 16, false),
        Format::Q4_K => (10, 4, 32, false),
        Format::Q5_K => (11, 5, 32, false),
        Format::Q6_K => (12, 6, 16, false),
        Format::IQ1_S => (13, 2, 32, false),
        Format::IQ1_M => (14, 3, 16, false),
        Format::IQ2_XXS => (15, 3, 32, false),
        Format::IQ2_XS => (16, 3, 16, false),
        Format::IQ2_S => (17, 3, 16, false),
        Format::IQ3_XXS => (18, 4, 32, false),
        Format::IQ3_S => (19, 4, 32, false),
        Format::IQ4_NL => (20, 4, 32, false),
        Format::IQ4_XS => (21, 4, 32, false),
        Format::TQ1_0 => (22, 2, 256, false),
        Format::TQ2_0 => (23, 2, 256, false),
        Format::MXFP4 => (24, 4, 32, false),
        Format::Affine(f) => (25, f.bits() as u32, f.group() as u32, f.is_wide()),
        Format::Fp4(f) => (26, 4, f.group() as u32, f.is_wide()),
        Format::Fp8(f) => (27, 8, f.group() as u32, false),
    };
    let [block_len, block_bytes] = [format.block_len(), format.block_bytes()].map(|n| n as u32);
    FormatCode { kind, bits, group, wide: u32::from(wide), block_len, block_bytes }
}
