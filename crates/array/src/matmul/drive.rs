//! The walk over rows, panels and columns that keeps what is used again in the caches.
//!
//! Rows go in chunks that stay in the second cache; a panel goes by in runs of columns that are
//! unpacked once, into the first, for all rows of the chunk. Sums wait in a small array between
//! runs, which changes no bit of them.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::activations::{LINE, quantized_row_bytes};
use super::codes::{Code, Fp8Any, Packed, Sums, Unpack, UnpackedBlock, with_code};
use super::isa::{Isa, Kind};
use super::kernels::{CHAIN, CodeTile, CodesToFloats, FloatTile, HalvesToFloats};
#[cfg(any(target_arch = "aarch64", test))]
use super::neon::Neon;
use super::simd::{Kernel, Simd};
use super::{Output, portable};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use crate::format::Format;
use crate::panel::{PANEL_ROWS, PanelLayout};

/// Rows of activations whose sums are kept while weights go by.
const MAX_ROWS: usize = 48;
/// Rows up to which each tile unpacks its weights itself, in registers.
const FEW_ROWS: usize = 4;
/// Bytes of activations that should stay in the second cache.
const CACHED_BYTES: usize = 1 << 20;
/// Columns that are unpacked at a time.
const UNPACKED: usize = 256;
const _: () = assert!(UNPACKED.is_multiple_of(CHAIN) && UNPACKED.is_multiple_of(32));

impl Isa {
    /// Runs a kernel on this instruction set.
    ///
    /// # Safety
    /// The kernel's pointers are as it states.
    pub(crate) unsafe fn run(self, kernel: impl Kernel) {
        // SAFETY: an `Isa` names an instruction set that the machine has; the rest is the caller's.
        unsafe {
            match self.0 {
                Kind::Scalar => portable::Portable::run(kernel),
                #[cfg(any(target_arch = "aarch64", test))]
                Kind::Neon => Neon::run(kernel),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => Avx2::run(kernel),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => Avx512::run(kernel),
            }
        }
    }

    /// The most rows in a tile.
    fn tile_rows(self) -> usize {
        match self.0 {
            Kind::Scalar => portable::Portable::TILE_ROWS,
            #[cfg(any(target_arch = "aarch64", test))]
            Kind::Neon => Neon::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => Avx2::TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => Avx512::TILE_ROWS,
        }
    }
}

/// Splits `rows` rows into tiles of at most `most` and runs the body with the first row of each
/// and, as a constant, the count. Sizes above a stated bound are not compiled.
macro_rules! for_each_tile {
    ($most:expr, $rows:expr, |$row:ident, $r:ident| $body:expr) => {
        for_each_tile!(@ $most, $rows, $row, $r, $body, 12 8 4 2 1)
    };
    ($most:expr, $rows:expr, up to 4, |$row:ident, $r:ident| $body:expr) => {
        for_each_tile!(@ $most, $rows, $row, $r, $body, 4 2 1)
    };
    (@ $most:expr, $rows:expr, $row:ident, $r:ident, $body:expr, $($size:literal)*) => {{
        let (most, rows) = ($most, $rows);
        let mut $row = 0;
        while $row < rows {
            let size = most.min(rows - $row);
            $(if size >= $size {
                const $r: usize = $size;
                $body;
                $row += $r;
                continue;
            })*
        }
    }};
}

/// Scratch in whole cache lines.
#[repr(align(64))]
struct Scratch<T, const N: usize>([MaybeUninit<T>; N]);

impl<T, const N: usize> Scratch<T, N> {
    fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; N])
    }
}

/// What the two products share: the walk over rows and panels, and the output.
pub(super) struct Job<'a> {
    pub(super) isa: Isa,
    pub(super) layout: &'a PanelLayout,
    pub(super) w: &'a [u8],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) y: Output<'a>,
    pub(super) rows: usize,
    /// Bytes of a row of activations.
    pub(super) row_bytes: usize,
}

impl Job<'_> {
    /// Writes the sums that `product` adds up for each panel and each chunk of rows.
    pub(super) fn run(
        &self,
        panels: Range<usize>,
        product: impl Fn(&[u8], Range<usize>, &mut [Sums]),
    ) {
        let layout = self.layout;
        assert_eq!(self.w.len(), layout.bytes(), "bytes of the panels");
        assert!(panels.end <= layout.panels(), "panels {panels:?} of {}", layout.panels());
        assert!(self.bias.is_none_or(|bias| bias.len() == layout.rows()), "one bias a row");
        assert_eq!(self.rows, self.y.rows, "rows in and out");
        let cached = CACHED_BYTES / self.row_bytes.max(1);
        let step = (cached / 12 * 12).clamp(12, MAX_ROWS);
        let mut sums = [[0.0; PANEL_ROWS]; MAX_ROWS];
        for start in (0..self.rows).step_by(step) {
            let rows = start..self.rows.min(start + step);
            let sums = &mut sums[..rows.len()];
            for panel in panels.clone() {
                let bytes = &self.w[panel * layout.panel_bytes()..][..layout.panel_bytes()];
                sums.fill([0.0; PANEL_ROWS]);
                product(bytes, rows.clone(), sums);
                self.write(panel, rows.start, sums);
            }
        }
    }

    fn write(&self, panel: usize, first: usize, sums: &[Sums]) {
        let columns = self.layout.rows_of(&(panel..panel + 1));
        let bias = self.bias.map(|bias| &bias[columns.clone()]);
        for (row, sums) in (first..).zip(sums) {
            for (lane, column) in columns.clone().enumerate() {
                let sum = sums[lane] + bias.map_or(0.0, |bias| bias[lane]);
                // SAFETY: a row of the output and a column of the panels asked for.
                unsafe { self.y.data.add(row * self.y.stride + column).write(sum) };
            }
        }
    }

    /// Adds the products of one panel with rows of `f32`, `stride` apart: as many as there are
    /// sums.
    pub(super) fn float_panel(&self, panel: &[u8], x: &[f32], stride: usize, sums: &mut [Sums]) {
        let cols = self.layout.cols();
        let mut scratch = Scratch::<Sums, UNPACKED>::new();
        for k in (0..cols).step_by(UNPACKED) {
            let count = UNPACKED.min(cols - k);
            let weights = self.float_columns(panel, k, count, &mut scratch).cast::<f32>();
            for_each_tile!(self.isa.tile_rows(), sums.len(), |row, R| {
                const J: usize = if R < 8 { 4 / R + R / 4 } else { 1 };
                let x = x[row * stride + k..].as_ptr();
                let sums = sums[row..].as_mut_ptr();
                let tile = FloatTile::<R, J> { weights, count, x, stride, sums };
                // SAFETY: R rows of activations and of sums from `row` on, and `count` columns.
                unsafe { self.isa.run(tile) }
            });
        }
    }

    /// `count` columns of a panel from `k` on as floats: where they lie, or unpacked to `scratch`.
    fn float_columns(
        &self,
        panel: &[u8],
        k: usize,
        count: usize,
        scratch: &mut Scratch<Sums, UNPACKED>,
    ) -> *const Sums {
        let to = scratch.0.as_mut_ptr().cast::<Sums>();
        let format = self.layout.format();
        let from = match format.is_float() {
            true => &panel[k * PANEL_ROWS * format.block_bytes()..],
            false => panel,
        };
        let from = from.as_ptr();
        let (first, blocks) = (k / 32, count / 32);
        // SAFETY: the panel has these columns, and the scratch room for them.
        unsafe {
            with_code!(format,
            C => {
                let panel = Packed::<C>::new(from, format);
                self.isa.run(CodesToFloats { panel, first, count: blocks, to });
            },
            float => match format {
                Format::Fp8(_) => {
                    let panel = Packed::<Fp8Any>::new(from, format);
                    self.isa.run(CodesToFloats { panel, first, count: blocks, to });
                }
                Format::F16 => self.isa.run(HalvesToFloats::<false> { from, count, to }),
                Format::BF16 => self.isa.run(HalvesToFloats::<true> { from, count, to }),
                _ => return from.cast::<Sums>(),
            })
        }
        to
    }

    /// Adds the products of one panel with quantised rows: as many as there are sums.
    pub(super) fn code_panel<C: Code>(&self, panel: Packed<C>, x: &[u8], sums: &mut [Sums]) {
        let blocks = self.layout.cols() / 32;
        let stride = quantized_row_bytes(self.layout.cols());
        if sums.len() <= FEW_ROWS {
            for_each_tile!(self.isa.tile_rows(), sums.len(), up to 4, |row, R| {
                let x = x[row * stride..].as_ptr();
                let sums = sums[row..].as_mut_ptr();
                let tile = CodeTile::<_, R> { weights: panel, blocks, x, stride, sums };
                // SAFETY: R rows of activations and of sums from `row` on, and the panel's blocks.
                unsafe { self.isa.run(tile) }
            });
            return;
        }
        let mut scratch = Scratch::<UnpackedBlock, { UNPACKED / 32 }>::new();
        let to = scratch.0.as_mut_ptr().cast::<UnpackedBlock>();
        for first in (0..blocks).step_by(UNPACKED / 32) {
            let count = (blocks - first).min(UNPACKED / 32);
            // SAFETY: the panel has these blocks, and the scratch room for them.
            unsafe { self.isa.run(Unpack { panel, first, count, to }) };
            let weights = C::Unpacked::from(to.cast_const());
            for_each_tile!(self.isa.tile_rows(), sums.len(), |row, R| {
                let x = x[row * stride + first * LINE..].as_ptr();
                let sums = sums[row..].as_mut_ptr();
                let tile = CodeTile::<_, R> { weights, blocks: count, x, stride, sums };
                // SAFETY: R rows of activations and of sums from `row` on, and `count` blocks.
                unsafe { self.isa.run(tile) }
            });
        }
    }
}
