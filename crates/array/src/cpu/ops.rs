//! Fast kernels that work row by row: lookups, element by element, norms, rotary positions, routing.

use super::context::Context;
use super::lanes::{per_isa, sigmoid, sum, tanh};
use super::view::{Mat, MatMut};
use crate::op::{Glu, Map, RopeHeads, Stretch};

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
        Map::Relu2 => x.max(0.0) * x.max(0.0),
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
            Map::Relu2 => Map::Relu2,
            Map::Scale(s) => Map::Scale(s),
            Map::Softcap(c) => Map::Softcap(c)
        );
    }
}

per_isa! {
    /// `x = f(x)`
    pub(super) fn map_in_place(f: Map, x: &mut [f32]) {
        match f {
            Map::Silu => x.iter_mut().for_each(|x| *x = map(Map::Silu, *x)),
            Map::Relu2 => x.iter_mut().for_each(|x| *x = map(Map::Relu2, *x)),
            f => x.iter_mut().for_each(|x| *x = map(f, *x)),
        }
    }
}

pub(super) fn apply(c: &Context<'_>, f: Map, x: Mat<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols / 2, |i, row| map_row(c.isa, f, row, x.row(i)));
}

/// `f(gate, x)`
#[inline(always)]
pub(super) fn glu(f: Glu, gate: f32, x: f32) -> f32 {
    match f {
        Glu::Of(f) => map(f, gate) * x,
        Glu::Clipped { limit } => map(Map::Silu, gate.min(limit)) * x.clamp(-limit, limit),
        Glu::Shifted { limit, alpha } => {
            let gate = gate.min(limit);
            gate * sigmoid(alpha * gate) * (x.clamp(-limit, limit) + 1.0)
        }
    }
}

per_isa! {
    /// `x = f(gate, x)`
    pub(super) fn glu_row(f: Glu, x: &mut [f32], gate: &[f32]) {
        // One loop a function, so that each vectorises.
        macro_rules! each { ($($f:pat => $g:expr),*) => { match f {
            $($f => x.iter_mut().zip(gate).for_each(|(x, gate)| *x = glu($g, *gate, *x)),)*
        } } }
        each!(
            Glu::Of(Map::Silu) => Glu::Of(Map::Silu),
            Glu::Of(Map::GeluTanh) => Glu::Of(Map::GeluTanh),
            Glu::Of(Map::Sigmoid) => Glu::Of(Map::Sigmoid),
            Glu::Of(f) => Glu::Of(f),
            Glu::Clipped { limit } => Glu::Clipped { limit },
            Glu::Shifted { limit, alpha } => Glu::Shifted { limit, alpha }
        );
    }
}

per_isa! {
    /// The same with one gate for all of a row.
    fn glu_by_one(f: Glu, x: &mut [f32], gate: f32) {
        match f {
            Glu::Of(f) => {
                let gate = map(f, gate);
                x.iter_mut().for_each(|x| *x *= gate);
            }
            f => x.iter_mut().for_each(|x| *x = glu(f, gate, *x)),
        }
    }
}

pub(super) fn gate(c: &Context<'_>, f: Glu, gate: Mat<'_>, x: Mat<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols / 2, |i, row| {
        row.copy_from_slice(x.row(i));
        match *gate.row(i) {
            [gate] => glu_by_one(c.isa, f, row, gate),
            ref gates => glu_row(c.isa, f, row, gates),
        }
    });
}

per_isa! {
    fn rms_row(out: &mut [f32], x: &[f32], weight: &[f32], group: usize, eps: f32) {
        let groups = out.chunks_exact_mut(group).zip(x.chunks_exact(group));
        for ((out, x), weight) in groups.zip(weight.chunks_exact(group).cycle()) {
            let mean = sum(x.len(), |i| x[i] * x[i]) / x.len() as f32;
            let r = 1.0 / (mean + eps).sqrt();
            for ((o, x), w) in out.iter_mut().zip(x).zip(weight) {
                *o = x * r * w;
            }
        }
    }
}

/// The weight of a norm: the numbers of one group or of several, the group, and what keeps it finite.
#[derive(Clone, Copy)]
pub(super) struct Norm<'a> {
    pub(super) weight: &'a [f32],
    pub(super) group: usize,
    pub(super) eps: f32,
}

pub(super) fn rms_norm(c: &Context<'_>, x: Mat<'_>, n: Norm<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols / 4, |i, row| {
        rms_row(c.isa, row, x.row(i), n.weight, n.group, n.eps);
    });
}

/// `rms(x) * weight * f(gate)`
pub(super) fn gated_rms_norm(
    c: &Context<'_>,
    x: Mat<'_>,
    (gate, f): (Mat<'_>, Map),
    n: Norm<'_>,
    out: &MatMut<'_>,
) {
    out.for_rows(c.pool, out.cols, |i, row| {
        rms_row(c.isa, row, x.row(i), n.weight, n.group, n.eps);
        glu_row(c.isa, Glu::Of(f), row, gate.row(i));
    });
}

per_isa! {
    fn layer_row(out: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32], eps: f32) {
        let n = weight.len();
        for (out, x) in out.chunks_exact_mut(n).zip(x.chunks_exact(n)) {
            let mean = sum(n, |i| x[i]) / n as f32;
            let variance = sum(n, |i| (x[i] - mean) * (x[i] - mean)) / n as f32;
            let r = 1.0 / (variance + eps).sqrt();
            for (((o, x), w), b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *o = ((x - mean) * r).mul_add(*w, *b);
            }
        }
    }
}

pub(super) fn layer_norm(
    c: &Context<'_>,
    x: Mat<'_>,
    (weight, bias, eps): (&[f32], &[f32], f32),
    out: &MatMut<'_>,
) {
    out.for_rows(c.pool, out.cols / 2, |i, row| {
        layer_row(c.isa, row, x.row(i), weight, bias, eps);
    });
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

/// What makes the angles of a rope table.
#[derive(Clone, Copy)]
pub(super) struct Turns<'a> {
    pub(super) freq: &'a [f32],
    pub(super) scale: f32,
    pub(super) every: usize,
    pub(super) stretch: Stretch,
}

impl Turns<'_> {
    /// The frequency of pair `i` of `n` for a row with this stretch.
    pub(super) fn freq(&self, i: usize, n: usize, stretch: f32) -> f32 {
        match self.stretch {
            Stretch::Power if stretch > 1.0 && n > 1 => {
                let power = -2.0 * i as f64 / (2 * n - 2) as f64;
                (f64::from(self.freq[i]) * f64::from(stretch).powf(power)) as f32
            }
            Stretch::Choice if stretch > 1.0 => self.freq[n + i],
            _ => self.freq[i],
        }
    }
}

pub(super) fn rope_table(c: &Context<'_>, turns: Turns<'_>, out: &MatMut<'_>) {
    let n = out.cols / 2;
    out.for_rows(c.pool, n * 20, |t, row| {
        let (cos, sin) = row.split_at_mut(n);
        let stretch = f32::from_bits(c.b.row_stretch[c.b.token_row[t] as usize]);
        let position = c.b.positions[t] as usize / turns.every * turns.every;
        for (i, (cos, sin)) in cos.iter_mut().zip(sin).enumerate() {
            // The angle is rounded to f32, as in the references that checkpoints were trained with.
            let angle = position as f32 * turns.freq(i, n, stretch);
            let (s, k) = f64::from(angle).sin_cos();
            (*cos, *sin) = (k as f32 * turns.scale, s as f32 * turns.scale);
        }
    });
}

pub(super) fn position_scale(c: &Context<'_>, beta: f32, every: usize, out: &MatMut<'_>) {
    out.for_rows(c.pool, 20, |t, row| {
        let whole = c.b.positions[t] as usize / every;
        row[0] = 1.0 + beta * ((1 + whole) as f64).ln() as f32;
    });
}

pub(super) fn concat(c: &Context<'_>, (a, b): (Mat<'_>, Mat<'_>), groups: usize, out: &MatMut<'_>) {
    let (m, n) = (a.cols / groups, b.cols / groups);
    out.for_rows(c.pool, out.cols / 8, |i, row| {
        let parts = a.row(i).chunks_exact(m).zip(b.row(i).chunks_exact(n));
        for (out, (a, b)) in row.chunks_exact_mut(m + n).zip(parts) {
            out[..m].copy_from_slice(a);
            out[m..].copy_from_slice(b);
        }
    });
}

per_isa! {
    fn rope_halves(out: &mut [f32], cos: &[f32], sin: &[f32], dim: usize, start: usize, sign: f32) {
        let n = cos.len();
        for out in out.chunks_exact_mut(dim) {
            let (lo, hi) = out[start..][..2 * n].split_at_mut(n);
            for i in 0..n {
                let (a, b, sin) = (lo[i], hi[i], sign * sin[i]);
                lo[i] = a * cos[i] - b * sin;
                hi[i] = b * cos[i] + a * sin;
            }
        }
    }
}

per_isa! {
    fn rope_pairs(out: &mut [f32], cos: &[f32], sin: &[f32], dim: usize, start: usize, sign: f32) {
        for out in out.chunks_exact_mut(dim) {
            let (pairs, _) = out[start..].as_chunks_mut::<2>();
            for ((pair, cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
                let ([a, b], sin) = (*pair, sign * sin);
                *pair = [a * cos - b * sin, b * cos + a * sin];
            }
        }
    }
}

pub(super) fn rope(
    c: &Context<'_>,
    x: Mat<'_>,
    table: Mat<'_>,
    heads: RopeHeads,
    out: &MatMut<'_>,
) {
    let RopeHeads { dim, start, interleaved, inverse } = heads;
    let sign = if inverse { -1.0 } else { 1.0 };
    out.for_rows(c.pool, out.cols / 2, |i, row| {
        row.copy_from_slice(x.row(i));
        let (cos, sin) = table.row(i).split_at(table.cols / 2);
        if interleaved {
            rope_pairs(c.isa, row, cos, sin, dim, start, sign);
        } else {
            rope_halves(c.isa, row, cos, sin, dim, start, sign);
        }
    });
}
