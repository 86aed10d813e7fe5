//! interim matrices: f32 row-major
use super::context::Context;
use super::view::{Mat, MatMut};
use crate::device::MatrixSpec;
use crate::format::Format;
use crate::op::Map;
use crate::weight::WeightRef;

pub(super) fn matrix_bytes(s: &MatrixSpec) -> Option<usize> {
    s.rows.checked_mul(s.cols)?.checked_mul(s.experts)?.checked_mul(4)
}
pub(super) fn load(s: &MatrixSpec, rows: &[u8], dst: &mut [u8]) -> Result<(), String> {
    match s.format {
        Format::F32 => dst.copy_from_slice(rows),
        Format::BF16 => for (d, r) in dst.chunks_exact_mut(4).zip(rows.chunks_exact(2)) {
            d[2] = r[0]; d[3] = r[1];
        },
        _ => return Err("interim".into()),
    }
    Ok(())
}
fn f32s(b: &[u8]) -> &[f32] {
    // SAFETY: interim
    unsafe { std::slice::from_raw_parts(b.as_ptr().cast(), b.len() / 4) }
}
fn dot(a: &[f32], b: &[f32]) -> f32 { super::lanes::sum(a.len(), |i| a[i] * b[i]) }
pub(super) fn embed(c: &Context<'_>, table: WeightRef, scale: f32, out: &MatMut<'_>) {
    let (s, bytes) = c.matrix(table);
    let w = f32s(bytes);
    out.for_rows(c.pool, s.cols, |i, row| {
        let id = c.b.ids[i] as usize;
        row.iter_mut().zip(&w[id * s.cols..]).for_each(|(o, w)| *o = w * scale);
    });
}
pub(super) fn linear(c: &Context<'_>, x: Mat<'_>, w: WeightRef, bias: Option<&[f32]>, _node: usize, out: &MatMut<'_>) {
    let (s, bytes) = c.matrix(w);
    let w = f32s(bytes);
    out.for_groups(c.pool, 1, s.cols, |i, n, o| {
        o[0] = dot(x.row(i), &w[n * s.cols..][..s.cols]) + bias.map_or(0.0, |b| b[n]);
    });
}
pub(super) fn experts_up(c: &Context<'_>, x: Mat<'_>, routing: Mat<'_>, gate: WeightRef, up: WeightRef, f: Map, _node: usize, out: &MatMut<'_>) {
    let (s, g) = c.matrix(gate);
    let (_, u) = c.matrix(up);
    let (g, u) = (f32s(g), f32s(u));
    out.for_groups(c.pool, 1, s.cols, |i, n, o| {
        let (rank, n) = (n / s.rows, n % s.rows);
        let e = routing.row(i)[routing.cols / 2 + rank] as usize;
        let at = (e * s.rows + n) * s.cols;
        let (g, u) = (dot(x.row(i), &g[at..][..s.cols]), dot(x.row(i), &u[at..][..s.cols]));
        o[0] = super::reference::map(f, g) * u;
    });
}
pub(super) fn experts_down(c: &Context<'_>, x: Mat<'_>, routing: Mat<'_>, down: WeightRef, _node: usize, out: &MatMut<'_>) {
    let (s, d) = c.matrix(down);
    let d = f32s(d);
    out.for_groups(c.pool, 1, s.cols, |i, n, o| {
        let k = routing.cols / 2;
        o[0] = 0.0;
        for rank in 0..k {
            let e = routing.row(i)[k + rank] as usize;
            let at = (e * s.rows + n) * s.cols;
            o[0] += routing.row(i)[rank] * dot(&x.row(i)[rank * s.cols..][..s.cols], &d[at..][..s.cols]);
        }
    });
}
pub(super) fn scratch_bytes() -> usize { 0 }
