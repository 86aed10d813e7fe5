//! Products of activations and weight panels on the CPU: `y[m][n] = sum_k x[m][k] w[n][k] + b[n]`.
//!
//! Owns the kernels, their instruction sets and the blocking that keeps data in the caches. Has no
//! threads: callers give disjoint ranges of panels to theirs.
//!
//! **Order.** The bits of `y[m][n]` depend on row `m` of `x`, row `n` of `w` and the layout alone:
//! not on the other rows, the panels asked for, or the instruction set. `kernels.rs` states the
//! sums.

use std::marker::PhantomData;
use std::ops::Range;

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod codes;
mod drive;
mod isa;
mod kernels;
#[cfg(any(target_arch = "aarch64", test))]
mod neon;
#[cfg(all(not(target_arch = "aarch64"), test))]
mod neon_shim;
mod portable;
mod simd;
#[cfg(test)]
mod tests;

pub use activations::{dequantize_activations, quantize_activations, quantized_row_bytes};
pub use isa::Isa;
pub(crate) use isa::Kind;
pub(crate) use simd::{Kernel, Simd};

use self::codes::{Packed, with_code};
use self::drive::Job;
use crate::format::Format;
use crate::panel::PanelLayout;

const _: () = assert!(cfg!(target_endian = "little"), "panels hold little-endian numbers");

/// Rows of `f32` activations, `stride` numbers apart.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Rows<'a> {
    /// `rows` rows of at least `cols` numbers each.
    ///
    /// # Panics
    /// If `data` does not hold them.
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(holds(data.len(), rows, cols, stride), "{rows} rows of {cols}, {stride} apart");
        Self { data, rows, cols, stride }
    }
}

fn holds(len: usize, rows: usize, cols: usize, stride: usize) -> bool {
    let end =
        rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(cols));
    end.is_some_and(|end| end <= len)
}

/// Rows of activations that [`quantize_activations`] made, one after another.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRows<'a> {
    data: &'a [u8],
    cols: usize,
    rows: usize,
}

impl<'a> QuantizedRows<'a> {
    /// `rows` rows of `cols` numbers, [`quantized_row_bytes`] apart.
    ///
    /// # Panics
    /// If `data` is not exactly those rows.
    pub fn new(data: &'a [u8], rows: usize, cols: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(quantized_row_bytes(cols)), "bytes of rows");
        Self { data, cols, rows }
    }
}

/// Where products go: rows of `f32`, `stride` numbers apart, which threads may fill together.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    data: *mut f32,
    rows: usize,
    stride: usize,
    life: PhantomData<&'a mut f32>,
}

// SAFETY: `Output::new` demands that simultaneous calls write different columns.
unsafe impl Send for Output<'_> {}
// SAFETY: as above.
unsafe impl Sync for Output<'_> {}

impl Output<'_> {
    /// `rows` rows that start `stride` numbers apart at `data`.
    ///
    /// # Safety
    /// For the life of the output, each row is good for writing the columns of the panels asked of
    /// the products that get it, nobody else reads or writes those, and products that run at the
    /// same time are asked for different panels.
    pub unsafe fn new(data: *mut f32, rows: usize, stride: usize) -> Self {
        Self { data, rows, stride, life: PhantomData }
    }
}

/// Writes the columns of `panels` of the product of `f32` activations and weights of any format, in
/// full precision: `f32` arithmetic on the exact values of the weights.
///
/// # Panics
/// If the slices, the rows of `x` and of `y`, and `panels` do not fit `layout`.
pub fn matmul_f32(
    isa: Isa,
    layout: &PanelLayout,
    w: &[u8],
    x: Rows<'_>,
    bias: Option<&[f32]>,
    y: Output<'_>,
    panels: Range<usize>,
) {
    assert!(x.cols == layout.cols(), "{} columns for {} weights", x.cols, layout.cols());
    let row_bytes = x.cols.saturating_mul(4);
    let job = Job { isa, layout, w, bias, y, rows: x.rows, row_bytes };
    job.run(panels, |panel, rows, sums| {
        let from = &x.data[rows.start * x.stride..];
        job.float_panel(panel, from, x.stride, sums);
    });
}

/// Writes the columns of `panels` of the product of `int8` activations and quantised weights.
///
/// # Panics
/// If the [format](Format::quantises_activations) takes `f32` activations, or the slices, the rows
/// of `x` and of `y`, and `panels` do not fit `layout`.
pub fn matmul_q8(
    isa: Isa,
    layout: &PanelLayout,
    w: &[u8],
    x: QuantizedRows<'_>,
    bias: Option<&[f32]>,
    y: Output<'_>,
    panels: Range<usize>,
) {
    let fit = layout.format().quantises_activations();
    assert!(fit, "{} weights take f32 activations", layout.format().name());
    assert!(x.cols == layout.cols(), "{} columns for {} weights", x.cols, layout.cols());
    let row_bytes = quantized_row_bytes(layout.cols());
    let job = Job { isa, layout, w, bias, y, rows: x.rows, row_bytes };
    job.run(panels, |panel, rows, sums| {
        let x = &x.data[rows.start * row_bytes..rows.end * row_bytes];
        with_code!(layout.format(),
            C => job.code_panel(Packed::<C>::new(panel.as_ptr(), layout.format()), x, sums),
            float => unreachable!("checked above"))
    });
}
