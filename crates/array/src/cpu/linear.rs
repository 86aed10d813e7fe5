//! What reads a matrix: packing, lookups and linear layers.
//!
//! Owns how a product is cut for threads (panels of 16 outputs) and where quantised activations live
//! (the node's scratch). Float weights, and those of 8-bit floats, meet f32 activations, always;
//! other quantised ones meet 8-bit activations unless the device is exact. The arithmetic itself,
//! with its plain twin, is in [`crate::matmul`].

use std::ops::Range;

use super::context::Context;
use super::lanes::Isa;
use super::low_rank;
use super::pool::Pool;
use super::view::{Mat, MatMut, share};
use crate::device::MatrixSpec;
use crate::matmul::{
    Output, QuantizedRows, Rows, matmul_f32, matmul_q8, quantize_activations, quantized_row_bytes,
};
use crate::op::Op;
use crate::panel::{PANEL_ROWS, PanelLayout, pack_panels, unpack_row};
use crate::plan::Plan;
use crate::weight::{WeightKind, WeightRef};

/// Panels that are packed or multiplied as one piece of work.
const PIECE: usize = 4;

/// Outputs of a piece.
pub(super) const PIECE_ROWS: usize = PIECE * PANEL_ROWS;

fn layout(spec: &MatrixSpec) -> PanelLayout {
    PanelLayout::new(spec.format, spec.rows, spec.cols).expect("checked when memory was asked for")
}

/// Bytes of a matrix (or stack) in panels.
pub(super) fn matrix_bytes(spec: &MatrixSpec) -> Option<usize> {
    PanelLayout::new(spec.format, spec.rows, spec.cols)?.bytes().checked_mul(spec.experts)
}

/// Packs file rows into panels.
pub(super) fn load(
    pool: &Pool,
    spec: &MatrixSpec,
    rows: &[u8],
    dst: &mut [u8],
) -> Result<(), String> {
    let layout = layout(spec);
    let (from, to) = (rows.len() / spec.experts, layout.bytes());
    let row_bytes = from / spec.rows;
    if from * spec.experts != rows.len() || dst.len() < to * spec.experts {
        return Err("the bytes do not fit the shape".into());
    }
    let pieces = layout.panels().div_ceil(PIECE);
    let dst = Pieces(dst.as_mut_ptr());
    share(pool, spec.experts * pieces, 100_000, |items| {
        for (expert, piece) in items.map(|i| (i / pieces, i % pieces)) {
            let panels = piece * PIECE..((piece + 1) * PIECE).min(layout.panels());
            let src = layout.rows_of(&panels);
            let src = &rows[expert * from..][src.start * row_bytes..src.end * row_bytes];
            let at = expert * to + panels.start * layout.panel_bytes();
            // SAFETY: pieces are disjoint and inside of `dst`, whose length was checked.
            let dst = unsafe { dst.piece(at, panels.len() * layout.panel_bytes()) };
            pack_panels(&layout, src, panels, dst);
        }
    });
    Ok(())
}

/// Memory that threads write in disjoint pieces.
pub(super) struct Pieces(pub(super) *mut u8);

// SAFETY: see `piece`.
unsafe impl Sync for Pieces {}

impl Pieces {
    /// # Safety
    /// The range is inside of the memory and nobody else touches it.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn piece(&self, at: usize, len: usize) -> &mut [u8] {
        // SAFETY: promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

/// Whether a product with this matrix quantises its activations.
pub(super) fn quantises(spec: &MatrixSpec, exact: bool) -> bool {
    !exact && spec.format.quantises_activations()
}

/// Scratch of a node: its activations in 8 bits, if it quantises them; after the product, what is between the low-rank
/// matrices beside it.
pub(super) fn scratch_bytes(plan: &Plan, node: usize, rows: usize, exact: bool) -> usize {
    let beside = low_rank::scratch_bytes(plan.nodes[node].op.low_rank(), rows);
    let (weight, per_row) = match plan.nodes[node].op {
        Op::Linear { weight, .. } => (weight, 1),
        Op::GroupedLinear { weight, .. } => match weight.kind {
            WeightKind::Matrix(spec) => (weight, spec.experts),
            WeightKind::Vector { .. } => return 0,
        },
        _ => return 0,
    };
    match weight.kind {
        WeightKind::Matrix(spec) if quantises(&spec, exact) => {
            beside.max(rows * per_row * quantized_row_bytes(spec.cols))
        }
        _ => beside,
    }
}

/// Looks up a row of the table for each token.
pub(super) fn embed(c: &Context<'_>, table: WeightRef, scale: f32, out: &MatMut<'_>) {
    let (spec, w) = c.matrix(table);
    let layout = layout(&spec);
    out.for_rows(c.pool, spec.cols * 2, |i, row| {
        unpack_row(&layout, w, c.b.ids[i] as usize, row);
        if scale != 1.0 {
            row.iter_mut().for_each(|x| *x *= scale);
        }
    });
}

/// Activations in the form that a matrix wants them.
#[derive(Clone, Copy)]
pub(super) enum Activations<'a> {
    Float(Mat<'a>),
    /// Rows of `cols` numbers, quantised.
    Quantized(&'a [u8], usize),
}

impl<'a> Activations<'a> {
    /// `x` cut into rows of `spec.cols`, quantised into the node's scratch if the matrix wants that.
    pub(super) fn new(c: &Context<'a>, x: Mat<'a>, spec: &MatrixSpec, node: usize) -> Self {
        if !quantises(spec, c.exact) {
            return Self::Float(x);
        }
        let (cols, bytes) = (spec.cols, quantized_row_bytes(spec.cols));
        let per_row = x.cols / cols;
        let (ptr, len) = c.scratch(node);
        let rows = x.rows * per_row;
        assert!(rows * bytes <= len, "scratch is too small");
        let dst = Pieces(ptr);
        share(c.pool, rows, cols / 4, |items| {
            for i in items {
                let x = &x.row(i / per_row)[i % per_row * cols..][..cols];
                // SAFETY: each row is written by one thread, inside of the scratch.
                quantize_activations(c.isa, x, unsafe { dst.piece(i * bytes, bytes) });
            }
        });
        // SAFETY: the scratch was just written and is not written again while the node runs.
        Self::Quantized(unsafe { std::slice::from_raw_parts(ptr, rows * bytes) }, cols)
    }

    /// Row `i` of those cut from `x` with `per_row` a row, times the matrix.
    pub(super) fn multiply_one(
        &self,
        isa: Isa,
        i: usize,
        per_row: usize,
        m: Piece<'_>,
        y: &mut [f32],
    ) {
        let cols = m.layout.cols();
        let rows = match *self {
            Self::Float(x) => {
                Self::Float(Mat::of(&x.row(i / per_row)[i % per_row * cols..][..cols]))
            }
            quantized => quantized.rows(i..i + 1),
        };
        rows.multiply(isa, m, y);
    }

    /// Some of the rows.
    pub(super) fn rows(&self, rows: Range<usize>) -> Self {
        match *self {
            Self::Float(x) => Self::Float(x.rows(rows)),
            Self::Quantized(all, cols) => {
                let bytes = quantized_row_bytes(cols);
                Self::Quantized(&all[rows.start * bytes..rows.end * bytes], cols)
            }
        }
    }

    /// All rows times the matrix, into rows of as many numbers as `y` has for each.
    pub(super) fn multiply(&self, isa: Isa, m: Piece<'_>, y: &mut [f32]) {
        let panels = 0..m.layout.panels();
        let mut out = |rows: usize| {
            let stride = y.len() / rows.max(1);
            assert!(stride >= m.layout.rows(), "{stride} numbers for {}", m.layout.rows());
            // SAFETY: `y` is this call's own and holds a row of the piece for each row.
            unsafe { Output::new(y.as_mut_ptr(), rows, stride) }
        };
        match *self {
            Self::Float(x) => {
                let rows = Rows::new(x.numbers(), x.rows, x.cols, x.stride);
                matmul_f32(isa, &m.layout, m.w, rows, None, out(x.rows), panels);
            }
            Self::Quantized(rows, cols) => {
                let n = rows.len() / quantized_row_bytes(cols);
                let rows = QuantizedRows::new(rows, n, cols);
                matmul_q8(isa, &m.layout, m.w, rows, None, out(n), panels);
            }
        }
    }
}

/// `x W^T + bias`
pub(super) fn linear(
    c: &Context<'_>,
    x: Mat<'_>,
    weight: WeightRef,
    bias: Option<&[f32]>,
    node: usize,
    out: &MatMut<'_>,
) {
    let (spec, w) = c.matrix(weight);
    let layout = layout(&spec);
    let activations = Activations::new(c, x, &spec, node);
    // SAFETY: threads get disjoint panels, and nothing reads the output meanwhile.
    let y = unsafe { Output::new(out.ptr(), out.rows, out.stride) };
    let run = |panels: Range<usize>| match activations {
        Activations::Float(x) => {
            let rows = Rows::new(x.numbers(), x.rows, x.cols, x.stride);
            matmul_f32(c.isa, &layout, w, rows, bias, y, panels);
        }
        Activations::Quantized(rows, cols) => {
            let rows = QuantizedRows::new(rows, x.rows, cols);
            matmul_q8(c.isa, &layout, w, rows, bias, y, panels);
        }
    };
    if x.rows > 0 {
        // Few rows wait for the weights, which memory gives at some 12 bytes a nanosecond.
        let cost = x.rows * spec.cols * PANEL_ROWS / 64 + layout.panel_bytes() / 12;
        share(c.pool, layout.panels(), cost, run);
    }
}

/// A few panels of one expert, as a matrix of their own.
pub(super) struct Piece<'a> {
    layout: PanelLayout,
    w: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Outputs `at..at + PIECE_ROWS` of expert `e`; `at` is a multiple of 16.
    pub(super) fn new(spec: &MatrixSpec, w: &'a [u8], e: usize, at: usize) -> Self {
        Self::of(spec, w, e, at..(at + PIECE_ROWS).min(spec.rows))
    }

    /// These outputs of expert `e`; the first is a multiple of 16.
    pub(super) fn of(spec: &MatrixSpec, w: &'a [u8], e: usize, outputs: Range<usize>) -> Self {
        let (whole, at, rows) = (layout(spec), outputs.start, outputs.len());
        let layout = PanelLayout::new(spec.format, rows, spec.cols).expect("a part of a layout");
        let start = e * whole.bytes() + at / PANEL_ROWS * whole.panel_bytes();
        Self { layout, w: &w[start..][..layout.bytes()] }
    }
}

/// Group `g` of the columns by matrix `g` of a stack.
pub(super) fn grouped_linear(
    c: &Context<'_>,
    x: Mat<'_>,
    weight: WeightRef,
    node: usize,
    out: &MatMut<'_>,
) {
    let (spec, w) = c.matrix(weight);
    let (groups, rows) = (spec.experts, spec.rows);
    let activations = Activations::new(c, x, &spec, node);
    let pieces = rows.div_ceil(PIECE_ROWS);
    share(c.pool, x.rows * groups * pieces, spec.cols * PIECE_ROWS / 32, |items| {
        for (i, piece) in items.map(|i| (i / pieces, i % pieces)) {
            let (t, g, at) = (i / groups, i % groups, piece * PIECE_ROWS);
            let n = PIECE_ROWS.min(rows - at);
            // SAFETY: each piece of the output belongs to one item.
            let out = unsafe { out.piece(t, g * rows + at, n) };
            activations.multiply_one(c.isa, i, groups, Piece::new(&spec, w, g, at), out);
        }
    });
}
