//! Fast kernels that work row by row: lookups, element by element, norms, rotary positions, routing.

use super::context::Context;
use super::lanes::{exp, per_isa, sigmoid, sum, tanh};
use super::view::{Mat, MatMut};
use crate::op::{Map, Scoring};

per_isa! {
    /// `out = a + b`
    fn add_row(out: &mut [f32], a: &[f32], b: &[f32]) {
        for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
            *o = a + b;
        }
    }
}

pub(super) fn add(c: &Context<'_>, a: Mat<'_>, b: Mat<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols / 8, |i, row| add_row(c.isa, row, a.row(i), b.row(i)));
}

/// `f(x)`
#[inline(always)]
pub(super) fn map(f: Map, x: f32) -> f32 {
    match f {
        Map::Silu => x * sigmoid(x),
        Map::GeluTanh => {
            let inner = 0.797_884_6 * (0.044_715 * x * x).mul_add(x, x);
            0.5 * x * (1.0 + tanh(inner))
        }
        Map::Sigmoid => sigmoid(x),
        Map::Scale(s) => x * s,
        Map::Softcap(c) => c * tanh(x / c),
    }
}

per_isa! {
    fn map_row(f: Map, out: &mut [f32], x: &[f32]) {
        // One loop a function, so that each vectorises.
        macro_rules! each { ($($f:pat => $g:expr),*) => { match f {
            $($f => out.iter_mut().zip(x).for_each(|(o, x)| *o = map($g, *x)),)*
        } } }
        each!(
            Map::Silu => Map::Silu,
            Map::GeluTanh => Map::GeluTanh,
            Map::Sigmoid => Map::Sigmoid,
            Map::Scale(s) => Map::Scale(s),
            Map::Softcap(c) => Map::Softcap(c)
        );
    }
}

pub(super) fn apply(c: &Context<'_>, f: Map, x: Mat<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols / 2, |i, row| map_row(c.isa, f, row, x.row(i)));
}

per_isa! {
    fn mul_row(out: &mut [f32], x: &[f32]) {
        out.iter_mut().zip(x).for_each(|(o, x)| *o *= x);
    }
}

/// `f(gate) * x`
pub(super) fn gate(c: &Context<'_>, f: Map, gate: Mat<'_>, x: Mat<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols / 2, |i, row| {
        if gate.cols == 1 && row.len() > 1 {
            let g = map(f, gate.row(i)[0]);
            row.iter_mut().zip(x.row(i)).for_each(|(o, x)| *o = g * x);
        } else {
            map_row(c.isa, f, row, gate.row(i));
            mul_row(c.isa, row, x.row(i));
        }
    });
}

per_isa! {
    fn rms_row(out: &mut [f32], x: &[f32], weight: &[f32], eps: f32) {
        for (out, x) in out.chunks_exact_mut(weight.len()).zip(x.chunks_exact(weight.len())) {
            let mean = sum(x.len(), |i| x[i] * x[i]) / x.len() as f32;
            let r = 1.0 / (mean + eps).sqrt();
            for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
                *o = x * r * w;
            }
        }
    }
}

pub(super) fn rms_norm(c: &Context<'_>, x: Mat<'_>, weight: &[f32], eps: f32, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols / 4, |i, row| rms_row(c.isa, row, x.row(i), weight, eps));
}

/// `rms(x) * weight * silu(gate)`
pub(super) fn gated_rms_norm(
    c: &Context<'_>,
    x: Mat<'_>,
    gate: Mat<'_>,
    weight: &[f32],
    eps: f32,
    out: &MatMut<'_>,
) {
    out.for_rows(c.pool, out.cols, |i, row| {
        rms_row(c.isa, row, x.row(i), weight, eps);
        gate_in_place(c.isa, row, gate.row(i));
    });
}

per_isa! {
    fn gate_in_place(out: &mut [f32], gate: &[f32]) {
        out.iter_mut().zip(gate).for_each(|(o, g)| *o *= g * sigmoid(*g));
    }
}

per_isa! {
    fn unit_row(out: &mut [f32], x: &[f32], group: usize, eps: f32, scale: f32) {
        for (out, x) in out.chunks_exact_mut(group).zip(x.chunks_exact(group)) {
            let r = scale / (sum(group, |i| x[i] * x[i]) + eps).sqrt();
            out.iter_mut().zip(x).for_each(|(o, x)| *o = x * r);
        }
    }
}

pub(super) fn unit_norm(
    c: &Context<'_>,
    x: Mat<'_>,
    (group, eps, scale): (usize, f32, f32),
    out: &MatMut<'_>,
) {
    out.for_rows(c.pool, out.cols / 4, |i, row| unit_row(c.isa, row, x.row(i), group, eps, scale));
}

pub(super) fn rope_table(c: &Context<'_>, freq: &[f32], scale: f32, out: &MatMut<'_>) {
    out.for_rows(c.pool, freq.len() * 20, |i, row| {
        let (cos, sin) = row.split_at_mut(freq.len());
        for ((c_, s_), f) in cos.iter_mut().zip(sin).zip(freq) {
            // The angle is rounded to f32, as in the references that checkpoints were trained with.
            let (s, k) = f64::from(c.b.positions[i] as f32 * f).sin_cos();
            (*c_, *s_) = (k as f32 * scale, s as f32 * scale);
        }
    });
}

per_isa! {
    fn rope_halves(out: &mut [f32], x: &[f32], cos: &[f32], sin: &[f32], dim: usize) {
        let n = cos.len();
        for (out, x) in out.chunks_exact_mut(dim).zip(x.chunks_exact(dim)) {
            let (lo, hi) = out[..2 * n].split_at_mut(n);
            let (a, b) = x[..2 * n].split_at(n);
            for i in 0..n {
                lo[i] = a[i] * cos[i] - b[i] * sin[i];
                hi[i] = b[i] * cos[i] + a[i] * sin[i];
            }
            out[2 * n..].copy_from_slice(&x[2 * n..]);
        }
    }
}

per_isa! {
    fn rope_pairs(out: &mut [f32], x: &[f32], cos: &[f32], sin: &[f32], dim: usize) {
        let n = cos.len();
        for (out, x) in out.chunks_exact_mut(dim).zip(x.chunks_exact(dim)) {
            for i in 0..n {
                let (a, b) = (x[2 * i], x[2 * i + 1]);
                out[2 * i] = a * cos[i] - b * sin[i];
                out[2 * i + 1] = b * cos[i] + a * sin[i];
            }
            out[2 * n..].copy_from_slice(&x[2 * n..]);
        }
    }
}

pub(super) fn rope(
    c: &Context<'_>,
    x: Mat<'_>,
    table: Mat<'_>,
    (dim, interleaved): (usize, bool),
    out: &MatMut<'_>,
) {
    out.for_rows(c.pool, out.cols / 2, |i, row| {
        let (cos, sin) = table.row(i).split_at(table.cols / 2);
        if interleaved {
            rope_pairs(c.isa, row, x.row(i), cos, sin, dim);
        } else {
            rope_halves(c.isa, row, x.row(i), cos, sin, dim);
        }
    });
}

/// The `k` best experts of each token: weights, then numbers.
pub(super) fn route(c: &Context<'_>, x: Mat<'_>, k: usize, scoring: Scoring, out: &MatMut<'_>) {
    let Scoring::Softmax { renormalize } = scoring;
    out.for_rows(c.pool, x.cols * (2 + k), |i, row| {
        let logits = x.row(i);
        let (weights, numbers) = row.split_at_mut(k);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total = sum(logits.len(), |e| exp(logits[e] - max));
        for rank in 0..k {
            let best = best_but(logits, &numbers[..rank]);
            weights[rank] = exp(logits[best] - max) / total;
            numbers[rank] = best as f32;
        }
        if renormalize {
            let chosen: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= chosen);
        }
    });
}

/// The place of the largest number that is not taken; the first of equals.
pub(super) fn best_but(x: &[f32], taken: &[f32]) -> usize {
    let free = (0..x.len()).filter(|&e| !taken.contains(&(e as f32)));
    free.fold(None, |best: Option<usize>, e| match best {
        Some(b) if x[b] >= x[e] => Some(b),
        _ => Some(e),
    })
    .unwrap_or(0)
}
