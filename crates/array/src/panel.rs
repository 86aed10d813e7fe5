//! How the CPU keeps a weight matrix: panels of 16 rows, in the order in which kernels read them.
//!
//! Owns the layout, packing into it from file rows, and reading one row back. Knows nothing of
//! threads or of who holds the bytes. A matrix of several experts is that many layouts in a row.
//!
//! A **float panel** is `[cols][16]` numbers, column by column. A **code panel** is a sequence of
//! units: of as many columns as share a scale but at least 32, or of 256 for the super-block
//! formats. Each holds, in this order:
//!
//! - the codes of each 32 columns, in bit planes. Four consecutive columns of 16 rows are a *group*
//!   of 64 code bytes, row by row: what a 4-way byte dot product eats. A plane of `b` bits keeps
//!   the 8 groups in `b` vectors of 64 bytes, group `g` in vector `g % b` at bit `g / b * b`. Codes
//!   of 5 bits are a plane of 4 and one of 1; of 6, 4 and 2; of 3, 2 and 1.
//! - of super-blocks: the `i8` scales `[groups][16]`, then, if the format has mins, those alike;
//! - the scales `[16]` as the format has them (`f16`, `f32` or an exponent byte; twice `[16]` where
//!   16 columns share one), then, if the format has mins, those alike.
//!
//! So a panel streams linearly and takes no more memory than the file's blocks, within 3 %. What
//! files pack tighter than a byte shuffle can read takes more: `Q2_K`, whose scales widen, 19 %, and
//! the formats of grids, whose codes do, the bits a number that a test here lists.

use std::ops::Range;

use crate::format::Format;
use crate::quant::{Block, CodeSpec, Scale, code_value};

#[cfg(test)]
mod tests;

/// Rows of a panel.
pub const PANEL_ROWS: usize = 16;

/// The place of everything in a unit of a code panel. Offsets are bytes from the unit's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitLayout {
    /// Runs of 32 columns: a power of two.
    pub(crate) runs: usize,
    /// Bytes of a run with its share of the scales.
    pub(crate) run_bytes: usize,
    /// Where the `i8` scales and mins start, if there are.
    pub(crate) sub_scales: usize,
    pub(crate) sub_mins: usize,
    /// Where the scales and mins start, and how they are stored.
    pub(crate) d: usize,
    pub(crate) m: usize,
    pub(crate) scale: Scale,
    /// Bytes of the unit.
    pub(crate) bytes: usize,
}

impl UnitLayout {
    pub(crate) const fn of(spec: CodeSpec) -> Self {
        let runs = spec.unit_len() / 32;
        let subs = if spec.super_block { 256 / spec.group * PANEL_ROWS } else { 0 };
        let slots = if spec.super_block { 1 } else { spec.unit_len() / spec.group };
        let scales = slots * PANEL_ROWS * spec.scale.bytes();
        let sub_scales = runs * code_bytes(spec.bits);
        let sub_mins = sub_scales + subs;
        let d = if spec.min { sub_mins + subs } else { sub_mins };
        let m = d + scales;
        let bytes = if spec.min { m + scales } else { m };
        let run_bytes = bytes / runs;
        Self { runs, run_bytes, sub_scales, sub_mins, d, m, scale: spec.scale, bytes }
    }

    /// Where the scale of a row is among those that start at `scales`, in the given slot of them.
    fn scale_at(&self, scales: usize, slot: usize, lane: usize) -> usize {
        scales + (slot * PANEL_ROWS + lane) * self.scale.bytes()
    }
}

/// Bytes of the codes of 32 columns.
pub(crate) const fn code_bytes(bits: usize) -> usize {
    64 * bits
}

/// Bits of the planes: the low bits of a code, then the rest (0 if none).
pub(crate) const fn planes(bits: usize) -> [usize; 2] {
    let low = match bits {
        1 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        _ => 8,
    };
    [low, bits - low]
}

/// The panels of one matrix `[rows, cols]`: sizes and places, no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelLayout {
    format: Format,
    rows: usize,
    cols: usize,
    panel_bytes: usize,
    bytes: usize,
}

impl PanelLayout {
    /// The layout of `rows` rows of `cols` numbers that files store as `format`. `None` if `cols`
    /// is not a whole number of blocks, or of 32 where the format has codes, or the size overflows.
    pub fn new(format: Format, rows: usize, cols: usize) -> Option<Self> {
        let row_bytes = format.row_bytes(cols)?;
        let panel_bytes = match CodeSpec::of(format) {
            None => row_bytes.checked_mul(PANEL_ROWS)?,
            Some(spec) if !cols.is_multiple_of(spec.unit_len()) => return None,
            Some(spec) => (cols / spec.unit_len()).checked_mul(UnitLayout::of(spec).bytes)?,
        };
        let bytes = rows.div_ceil(PANEL_ROWS).checked_mul(panel_bytes)?;
        Some(Self { format, rows, cols, panel_bytes, bytes })
    }

    /// The format that the rows have in files.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows of the matrix: outputs of a product.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix: inputs of a product.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Panels; the last one may be part padding.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Bytes of all panels.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The real rows of some panels.
    pub fn rows_of(&self, panels: &Range<usize>) -> Range<usize> {
        let end = |panel: usize| panel.saturating_mul(PANEL_ROWS).min(self.rows);
        end(panels.start)..end(panels.end)
    }

    fn row_bytes(&self) -> usize {
        self.cols / self.format.block_len() * self.format.block_bytes()
    }
}

/// Packs `panels` from `src`, the file bytes of [their rows](PanelLayout::rows_of) one after
/// another, into `dst`, the bytes of those panels.
///
/// # Panics
/// If a slice has not the size that `layout` states, or `panels` lie outside it.
pub fn pack_panels(layout: &PanelLayout, src: &[u8], panels: Range<usize>, dst: &mut [u8]) {
    assert!(panels.start <= panels.end && panels.end <= layout.panels(), "panels of the layout");
    let rows = layout.rows_of(&panels);
    assert_eq!(src.len(), rows.len() * layout.row_bytes(), "bytes of the rows");
    assert_eq!(dst.len(), panels.len() * layout.panel_bytes, "bytes of the panels");
    if dst.is_empty() {
        return;
    }
    let spec = CodeSpec::of(layout.format);
    let sources = src.chunks(layout.row_bytes() * PANEL_ROWS);
    for (panel, src) in dst.chunks_exact_mut(layout.panel_bytes).zip(sources) {
        // The lanes that have no row.
        if src.len() < layout.row_bytes() * PANEL_ROWS {
            panel.fill(0);
        }
        for (lane, row) in src.chunks_exact(layout.row_bytes()).enumerate() {
            match (spec, layout.format) {
                (Some(spec), format) => pack_codes(format, spec, row, lane, panel),
                (None, Format::F32) => pack_floats::<4>(row, lane, panel),
                (None, _) => pack_floats::<2>(row, lane, panel),
            }
        }
    }
}

fn pack_floats<const BYTES: usize>(row: &[u8], lane: usize, panel: &mut [u8]) {
    let columns = panel.as_chunks_mut::<BYTES>().0.chunks_exact_mut(PANEL_ROWS);
    for (column, number) in columns.zip(row.as_chunks::<BYTES>().0) {
        column[lane] = *number;
    }
}

fn pack_codes(format: Format, spec: CodeSpec, row: &[u8], lane: usize, panel: &mut [u8]) {
    let place = UnitLayout::of(spec);
    let mut block = Block::EMPTY;
    let mut codes = [0; 256];
    let block_len = format.block_len();
    let per_unit = spec.unit_len() / block_len;
    let units = panel.chunks_exact_mut(place.bytes);
    for (bytes, unit) in row.chunks_exact(format.block_bytes() * per_unit).zip(units) {
        for (slot, bytes) in bytes.chunks_exact(format.block_bytes()).enumerate() {
            format.decode_block(bytes, &mut block);
            codes[slot * block_len..][..block_len].copy_from_slice(&block.codes[..block_len]);
            spec.scale.write(block.d, &mut unit[place.scale_at(place.d, slot, lane)..]);
            if spec.min {
                spec.scale.write(block.m, &mut unit[place.scale_at(place.m, slot, lane)..]);
            }
        }
        for (codes, run) in codes.as_chunks::<32>().0.iter().zip(0..place.runs) {
            pack_planes(spec.bits, codes, lane, &mut unit[run * code_bytes(spec.bits)..]);
        }
        if spec.super_block {
            for group in 0..256 / spec.group {
                let at = group * PANEL_ROWS + lane;
                unit[place.sub_scales + at] = block.sub_scales[group] as u8;
                if spec.min {
                    unit[place.sub_mins + at] = block.sub_mins[group] as u8;
                }
            }
        }
    }
}

/// Puts the 32 codes of one row into its planes, four codes at a time.
fn pack_planes(bits: usize, codes: &[u8; 32], lane: usize, dst: &mut [u8]) {
    let mut fours = [0; 8];
    let four = fours.iter_mut().zip(codes.as_chunks::<4>().0);
    four.for_each(|(four, codes)| *four = u32::from_le_bytes(*codes));
    let [low, high] = planes(bits);
    let (dst, above) = dst.as_chunks_mut::<64>().0.split_at_mut(low);
    match low {
        1 => pack_plane::<1>(&fours, lane, dst),
        2 => pack_plane::<2>(&fours, lane, dst),
        4 => pack_plane::<4>(&fours, lane, dst),
        _ => pack_plane::<8>(&fours, lane, dst),
    }
    fours.iter_mut().for_each(|four| *four >>= low % 8);
    match high {
        1 => pack_plane::<1>(&fours, lane, above),
        2 => pack_plane::<2>(&fours, lane, above),
        _ => {}
    }
}

/// The low `BITS` of 8 groups of four codes, in `BITS` vectors.
#[inline(always)]
fn pack_plane<const BITS: usize>(fours: &[u32; 8], lane: usize, vectors: &mut [[u8; 64]]) {
    for (vector, first) in vectors[..BITS].iter_mut().zip(0..) {
        let group = |i: usize| (fours[first + i * BITS] & plane_mask(BITS)) << (i * BITS);
        let word = (0..8 / BITS).fold(0, |word, i| word | group(i));
        vector.as_chunks_mut::<4>().0[lane] = word.to_le_bytes();
    }
}

/// The low `bits` of each of four bytes.
const fn plane_mask(bits: usize) -> u32 {
    0x0101_0101 * ((1 << bits) - 1)
}

/// Reads back one row as numbers: the very bits of [`Format::dequantize_row`].
///
/// # Panics
/// If `row` lies outside `layout`, or a slice has not the size that `layout` states.
pub fn unpack_row(layout: &PanelLayout, bytes: &[u8], row: usize, out: &mut [f32]) {
    assert!(row < layout.rows, "row {row} of {}", layout.rows);
    assert_eq!(bytes.len(), layout.bytes, "bytes of the panels");
    assert_eq!(out.len(), layout.cols, "numbers of a row");
    let (panel, lane) = (row / PANEL_ROWS, row % PANEL_ROWS);
    let panel = &bytes[panel * layout.panel_bytes..][..layout.panel_bytes];
    let Some(spec) = CodeSpec::of(layout.format) else {
        let size = layout.format.block_bytes();
        for (y, column) in out.iter_mut().zip(panel.chunks_exact(size * PANEL_ROWS)) {
            *y = layout.format.float(&column[lane * size..][..size]);
        }
        return;
    };
    let place = UnitLayout::of(spec);
    for (unit, out) in panel.chunks_exact(place.bytes).zip(out.chunks_exact_mut(spec.unit_len())) {
        for (index, out) in out.chunks_exact_mut(spec.group).enumerate() {
            let (scale, min) = unit_scale(spec, place, unit, index, lane);
            for (k, y) in out.iter_mut().enumerate() {
                let code = unit_code(spec.bits, unit, index * spec.group + k, lane);
                *y = code_value(spec, code, scale, min);
            }
        }
    }
}

fn unit_scale(
    spec: CodeSpec,
    place: UnitLayout,
    unit: &[u8],
    index: usize,
    lane: usize,
) -> (f32, f32) {
    let part = |scales: usize, subs: usize| {
        let slot = if spec.super_block { 0 } else { index };
        let float = spec.scale.read(&unit[place.scale_at(scales, slot, lane)..]);
        let float = float * spec.codebook.unit();
        if spec.super_block {
            float * f32::from(unit[subs + index * PANEL_ROWS + lane] as i8)
        } else {
            float
        }
    };
    let min = if spec.min { part(place.m, place.sub_mins) } else { 0.0 };
    (part(place.d, place.sub_scales), min)
}

fn unit_code(bits: usize, unit: &[u8], k: usize, lane: usize) -> u8 {
    let [low, high] = planes(bits);
    let (group, codes) = (k % 32 / 4, &unit[k / 32 * code_bytes(bits) + lane * 4 + k % 4..]);
    let bits = |first: usize, plane: usize| {
        codes[(first + group % plane) * 64] >> (group / plane * plane) & plane_mask(plane) as u8
    };
    bits(0, low) | if high > 0 { bits(low, high) << low } else { 0 }
}
