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
use super::{
    amx::{GridTile, LEAST_ROWS, Shapes},
    avx2::Avx2,
    avx512::Avx512,
    codes::Center,
};
use crate::format::Format;
use crate::panel::{PANEL_ROWS, PanelLayout};
use crate::quant::CodeSpec;

/// Rows of activations whose sums are kept while weights go by.
const MAX_ROWS: usize = 48;
/// Panels that are multiplied together, so that activations are read once for all of them.
const MAX_PANELS: usize = 4;
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
                Kind::Avx512 | Kind::Amx => Avx512::run(kernel),
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
            Kind::Avx512 | Kind::Amx => Avx512::TILE_ROWS,
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
    ($most:expr, $rows:expr, of a grid, |$row:ident, $r:ident| $body:expr) => {
        for_each_tile!(@ $most, $rows, $row, $r, $body, 16 8)
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
    /// Writes the sums that `product` adds up for some panels and a chunk of rows: one for each row, panel by panel.
    pub(super) fn run(
        &self,
        panels: Range<usize>,
        product: impl Fn(Range<usize>, Range<usize>, &mut [Sums]),
    ) {
        let layout = self.layout;
        assert_eq!(self.w.len(), layout.bytes(), "bytes of the panels");
        assert!(panels.end <= layout.panels(), "panels {panels:?} of {}", layout.panels());
        assert!(self.bias.is_none_or(|bias| bias.len() == layout.rows()), "one bias a row");
        assert_eq!(self.rows, self.y.rows, "rows in and out");
        let cached = CACHED_BYTES / self.row_bytes.max(1);
        let step = (cached / 12 * 12).clamp(12, MAX_ROWS);
        let mut sums = [[0.0; PANEL_ROWS]; MAX_ROWS * MAX_PANELS];
        for start in (0..self.rows).step_by(step) {
            let rows = start..self.rows.min(start + step);
            for first in panels.clone().step_by(MAX_PANELS) {
                let some = first..panels.end.min(first + MAX_PANELS);
                let sums = &mut sums[..rows.len() * some.len()];
                sums.fill([0.0; PANEL_ROWS]);
                self.expect(&some, &rows);
                product(some.clone(), rows.clone(), sums);
                for (panel, sums) in some.zip(sums.chunks_exact(rows.len())) {
                    self.write(panel, start, sums);
                }
            }
        }
    }

    /// The bytes of a panel.
    pub(super) fn panel(&self, panel: usize) -> &[u8] {
        &self.w[panel * self.layout.panel_bytes()..][..self.layout.panel_bytes()]
    }

    fn write(&self, panel: usize, first: usize, sums: &[Sums]) {
        let columns = self.layout.rows_of(&(panel..panel + 1));
        let mut bias = [0.0; PANEL_ROWS];
        if let Some(all) = self.bias {
            bias[..columns.len()].copy_from_slice(&all[columns.clone()]);
        }
        for (row, sums) in (first..).zip(sums) {
            let y: Sums = std::array::from_fn(|lane| sums[lane] + bias[lane]);
            // SAFETY: columns of the panels asked for, in a row of the output.
            unsafe {
                let to = self.y.data.add(row * self.y.stride + columns.start);
                if columns.len() == PANEL_ROWS {
                    to.cast::<Sums>().write_unaligned(y);
                } else {
                    (0..columns.len()).for_each(|lane| to.add(lane).write(y[lane]));
                }
            }
        }
    }

    /// Asks for the memory of some columns of some rows of the output, so that it is there when they are written.
    fn expect(&self, panels: &Range<usize>, rows: &Range<usize>) {
        let columns = self.layout.rows_of(panels);
        for row in rows.clone() {
            for column in columns.clone().step_by(PANEL_ROWS) {
                portable::Portable::prefetch(
                    self.y.data.wrapping_add(row * self.y.stride + column).cast(),
                );
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

    /// Adds the products of panels with quantised rows of which there are `rows`: a sum for each, panel by panel.
    pub(super) fn code_panels<C: Code>(
        &self,
        panels: Range<usize>,
        x: &[u8],
        rows: usize,
        sums: &mut [Sums],
    ) {
        let format = self.layout.format();
        let packed = |panel| Packed::<C>::new(self.panel(panel).as_ptr(), format);
        if rows <= FEW_ROWS {
            for (panel, sums) in panels.zip(sums.chunks_exact_mut(rows)) {
                self.few_rows(packed(panel), x, sums);
            }
            return;
        }
        // A run of columns of the activations stays in the first cache for all the panels.
        for first in (0..self.layout.cols() / 32).step_by(UNPACKED / 32) {
            for (panel, sums) in panels.clone().zip(sums.chunks_exact_mut(rows)) {
                self.code_columns(packed(panel), first, x, sums);
            }
        }
    }

    /// Adds the products of one panel with a few quantised rows: as many as there are sums.
    fn few_rows<C: Code>(&self, panel: Packed<C>, x: &[u8], sums: &mut [Sums]) {
        let blocks = self.layout.cols() / 32;
        let stride = quantized_row_bytes(self.layout.cols());
        for_each_tile!(self.isa.tile_rows(), sums.len(), up to 4, |row, R| {
            let x = x[row * stride..].as_ptr();
            let sums = sums[row..].as_mut_ptr();
            let tile = CodeTile::<_, R> { weights: panel, blocks, x, stride, sums };
            // SAFETY: R rows of activations and of sums from `row` on, and the panel's blocks.
            unsafe { self.isa.run(tile) }
        });
    }

    /// Adds the products of a run of columns of one panel, from block `first` on, with quantised rows.
    fn code_columns<C: Code>(&self, panel: Packed<C>, first: usize, x: &[u8], sums: &mut [Sums]) {
        let stride = quantized_row_bytes(self.layout.cols());
        let count = (self.layout.cols() / 32 - first).min(UNPACKED / 32);
        let mut scratch = Scratch::<UnpackedBlock, { UNPACKED / 32 }>::new();
        let to = scratch.0.as_mut_ptr().cast::<UnpackedBlock>();
        // SAFETY: the panel has these blocks, and the scratch room for them.
        unsafe { self.isa.run(Unpack { panel, first, count, to }) };
        let weights = C::Unpacked::from(to.cast_const());
        // The rows that tiles of bytes leave, first: those count codes in their own way.
        let grid = self.grid_rows(sums.len());
        for_each_tile!(self.isa.tile_rows(), sums.len() - grid, |row, R| {
            let x = x[(grid + row) * stride + first * LINE..].as_ptr();
            let sums = sums[grid + row..].as_mut_ptr();
            let tile = CodeTile::<_, R> { weights, blocks: count, x, stride, sums };
            // SAFETY: R rows of activations and of sums from there on, and `count` blocks.
            unsafe { self.isa.run(tile) }
        });
        #[cfg(target_arch = "x86_64")]
        if grid > 0 {
            // SAFETY: `count` blocks were unpacked.
            let blocks = unsafe { std::slice::from_raw_parts_mut(to, count) };
            self.grid::<C>(blocks, &x[first * LINE..], &mut sums[..grid]);
        }
    }

    /// Of so many rows those that tiles of bytes take.
    fn grid_rows(&self, rows: usize) -> usize {
        match self.isa.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => rows / LEAST_ROWS * LEAST_ROWS,
            _ => 0,
        }
    }

    /// The shapes of tiles for this job, if it uses them.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn shapes(&self) -> Option<Shapes> {
        let group = CodeSpec::of(self.layout.format())?.group.min(32);
        // SAFETY: this `Isa` is only made where there are tiles.
        (self.grid_rows(self.rows) > 0).then(|| unsafe { Shapes::new(group) })
    }

    /// Adds the products of unpacked blocks with rows of which `x` starts with the first line.
    #[cfg(target_arch = "x86_64")]
    fn grid<C: Code>(&self, blocks: &mut [UnpackedBlock], x: &[u8], sums: &mut [Sums]) {
        let stride = quantized_row_bytes(self.layout.cols());
        if C::SPEC.zero > 0 {
            let center = Center { blocks: &mut *blocks, zero: C::SPEC.zero };
            // SAFETY: the kernel has no pointers.
            unsafe { self.isa.run(center) };
        }
        let (codes, blocks) = (blocks.as_ptr(), blocks.len());
        let weights = C::Unpacked::from(codes);
        for_each_tile!(16, sums.len(), of a grid, |row, R| {
            let x = x[row * stride..].as_ptr();
            let sums = sums[row..].as_mut_ptr();
            let tile = GridTile::<_, R> { weights, codes, blocks, x, stride, sums };
            // SAFETY: R rows of activations and of sums from `row` on, and the blocks; the shapes were made with the job.
            unsafe { self.isa.run(tile) }
        });
    }
}
