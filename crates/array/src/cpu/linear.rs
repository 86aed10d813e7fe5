//! Everything that reads a matrix: packing, lookups, linear layers and experts.
//!
//! Owns how a product is cut for threads (panels of 16 outputs) and where quantised activations live
//! (the node's scratch). Float weights, and those of 8-bit floats, meet f32 activations, always;
//! other quantised ones meet 8-bit activations unless the device is exact. The arithmetic itself,
//! with its plain twin, is in [`crate::matmul`].

use std::ops::Range;

use super::context::Context;
use super::lanes::Isa;
use super::low_rank;
use super::ops::{glu, map};
use super::pool::Pool;
use super::view::{Mat, MatMut, share};
use crate::device::MatrixSpec;
use crate::matmul::{
    Output, QuantizedRows, Rows, matmul_f32, matmul_q8, quantize_activations, quantized_row_bytes,
};
use crate::op::{Glu, Op};
use crate::panel::{PANEL_ROWS, PanelLayout, pack_panels, unpack_row};
use crate::plan::Plan;
use crate::weight::{WeightKind, WeightRef};

/// Panels that are packed or multiplied as one piece of work.
const PIECE: usize = 4;

/// Outputs of a piece.
const PIECE_ROWS: usize = PIECE * PANEL_ROWS;

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
struct Pieces(*mut u8);

// SAFETY: see `piece`.
unsafe impl Sync for Pieces {}

impl Pieces {
    /// # Safety
    /// The range is inside of the memory and nobody else touches it.
    #[allow(clippy::mut_from_ref)]
    unsafe fn piece(&self, at: usize, len: usize) -> &mut [u8] {
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
        Op::ExpertsUp { up, .. } => (up, 1),
        Op::GroupedLinear { weight, .. } => match weight.kind {
            WeightKind::Matrix(spec) => (weight, spec.experts),
            WeightKind::Vector { .. } => return 0,
        },
        Op::ExpertsDown { routing, down, .. } => (down, plan.place(routing).shape.cols / 2),
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
enum Activations<'a> {
    Float(Mat<'a>),
    /// Rows of `cols` numbers, quantised.
    Quantized(&'a [u8], usize),
}

impl<'a> Activations<'a> {
    /// `x` cut into rows of `spec.cols`, quantised into the node's scratch if the matrix wants that.
    fn new(c: &Context<'a>, x: Mat<'a>, spec: &MatrixSpec, node: usize) -> Self {
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
    fn multiply_one(&self, isa: Isa, i: usize, per_row: usize, m: Piece<'_>, y: &mut [f32]) {
        let panels = 0..m.layout.panels();
        // SAFETY: `y` is this call's own and holds the rows of the piece.
        let out = unsafe { Output::new(y.as_mut_ptr(), 1, y.len()) };
        assert!(y.len() >= m.layout.rows());
        match *self {
            Self::Float(x) => {
                let cols = m.layout.cols();
                let x = &x.row(i / per_row)[i % per_row * cols..][..cols];
                matmul_f32(isa, &m.layout, m.w, Rows::new(x, 1, cols, cols), None, out, panels);
            }
            Self::Quantized(rows, cols) => {
                let bytes = quantized_row_bytes(cols);
                let x = QuantizedRows::new(&rows[i * bytes..][..bytes], 1, cols);
                matmul_q8(isa, &m.layout, m.w, x, None, out, panels);
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
struct Piece<'a> {
    layout: PanelLayout,
    w: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Outputs `at..at + PIECE_ROWS` of expert `e`; `at` is a multiple of 16.
    fn new(spec: &MatrixSpec, w: &'a [u8], e: usize, at: usize) -> Self {
        let whole = layout(spec);
        let rows = PIECE_ROWS.min(spec.rows - at);
        let layout = PanelLayout::new(spec.format, rows, spec.cols).expect("a part of a layout");
        let start = e * whole.bytes() + at / PANEL_ROWS * whole.panel_bytes();
        Self { layout, w: &w[start..][..layout.bytes()] }
    }
}

/// The expert of rank `rank` of token `t`.
fn expert(routing: Mat<'_>, t: usize, rank: usize, spec: &MatrixSpec) -> usize {
    let e = routing.row(t)[routing.cols / 2 + rank] as usize;
    assert!(e < spec.experts, "expert {e} of {}", spec.experts);
    e
}

/// The tensors of both expert kernels.
#[derive(Clone, Copy)]
pub(super) struct Routed<'a> {
    pub(super) x: Mat<'a>,
    pub(super) routing: Mat<'a>,
    pub(super) node: usize,
}

/// The weights of experts on the way in; biases are `[experts, rows]`.
#[derive(Clone, Copy)]
pub(super) struct UpWeights<'a> {
    pub(super) gate: Option<WeightRef>,
    pub(super) up: WeightRef,
    pub(super) bias: Option<[&'a [f32]; 2]>,
    pub(super) f: Glu,
}

/// `f(x G_e^T, x U_e^T)` for each routed expert.
pub(super) fn experts_up(c: &Context<'_>, r: Routed<'_>, weights: UpWeights<'_>, out: &MatMut<'_>) {
    let UpWeights { gate, up, bias, f } = weights;
    let ((spec, u), gate) = (c.matrix(up), gate.map(|g| c.matrix(g)));
    let inner = spec.rows;
    let x = Activations::new(c, r.x, &spec, r.node);
    // A gate in another format may want the activations in another form.
    let gate_x = gate.map(|(g, _)| {
        if quantises(&g, c.exact) == quantises(&spec, c.exact) {
            x
        } else {
            Activations::Float(r.x)
        }
    });
    let pieces = inner.div_ceil(PIECE_ROWS);
    let ranks = r.routing.cols / 2;
    share(c.pool, r.x.rows * ranks * pieces, spec.cols * PIECE_ROWS / 16, |items| {
        for (pair, piece) in items.map(|i| (i / pieces, i % pieces)) {
            let (t, rank, at) = (pair / ranks, pair % ranks, piece * PIECE_ROWS);
            let e = expert(r.routing, t, rank, &spec);
            let n = PIECE_ROWS.min(inner - at);
            // SAFETY: each piece of the output belongs to one item.
            let out = unsafe { out.piece(t, rank * inner + at, n) };
            x.multiply_one(c.isa, t, 1, Piece::new(&spec, u, e, at), out);
            add_bias(out, bias.map(|b| b[1]), e * inner + at);
            match (gate, gate_x, f) {
                (Some((spec, g)), Some(x), _) => {
                    let mut hidden = [0.0f32; PIECE_ROWS];
                    x.multiply_one(c.isa, t, 1, Piece::new(&spec, g, e, at), &mut hidden[..n]);
                    add_bias(&mut hidden[..n], bias.map(|b| b[0]), e * inner + at);
                    out.iter_mut().zip(hidden).for_each(|(x, gate)| *x = glu(f, gate, *x));
                }
                (_, _, Glu::Of(f)) => out.iter_mut().for_each(|x| *x = map(f, *x)),
                _ => unreachable!("recording checks that there is a gate"),
            }
        }
    });
}

fn add_bias(out: &mut [f32], bias: Option<&[f32]>, at: usize) {
    if let Some(bias) = bias {
        out.iter_mut().zip(&bias[at..]).for_each(|(o, b)| *o += b);
    }
}

/// The sum over ranks of `weight * (x_rank D_e^T + bias_e)`, in rank order.
pub(super) fn experts_down(
    c: &Context<'_>,
    r: Routed<'_>,
    (down, bias): (WeightRef, Option<&[f32]>),
    out: &MatMut<'_>,
) {
    let (spec, d) = c.matrix(down);
    let x = Activations::new(c, r.x, &spec, r.node);
    let ranks = r.routing.cols / 2;
    let cost = ranks * spec.cols * PIECE_ROWS / 32;
    let pieces = spec.rows.div_ceil(PIECE_ROWS);
    share(c.pool, r.x.rows * pieces, cost, |items| {
        for (t, piece) in items.map(|i| (i / pieces, i % pieces)) {
            let at = piece * PIECE_ROWS;
            let n = PIECE_ROWS.min(spec.rows - at);
            // SAFETY: each piece of the output belongs to one item.
            let out = unsafe { out.piece(t, at, n) };
            out.fill(0.0);
            for rank in 0..ranks {
                let e = expert(r.routing, t, rank, &spec);
                let mut y = [0.0f32; PIECE_ROWS];
                let piece = Piece::new(&spec, d, e, at);
                x.multiply_one(c.isa, t * ranks + rank, ranks, piece, &mut y[..n]);
                add_bias(&mut y[..n], bias, e * spec.rows + at);
                let weight = r.routing.row(t)[rank];
                out.iter_mut().zip(y).for_each(|(o, y)| *o += weight * y);
            }
        }
    });
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
