//! The plain kernel of every operation: its definition, and the twin that tests hold the fast ones against.
//!
//! Owns clarity. One thread, no lanes, the library's functions; speed is refused.

use super::context::Context;
use super::context::StateMem;
use super::delta::DeltaArgs;
use super::low_rank::Pairs;
use super::ops::{Norm, Turns};
use super::record::{Row, log};
use super::recurrent::{ConvArgs, DecayArgs, joined, parts};
use super::view::{Mat, MatMut};
use crate::op::{DecayCurve, DeltaHeads, Glu, Map, RopeHeads, SUM_BLOCK};

/// `f(x)`
pub(super) fn map(f: Map, x: f32) -> f32 {
    match f {
        Map::Silu => x / (1.0 + (-x).exp()),
        Map::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Map::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Map::Relu2 => x.max(0.0).powi(2),
        Map::Scale(s) => x * s,
        Map::Softcap(c) => c * (x / c).tanh(),
    }
}

/// Fills `out[i][j]` with `f(i, j)`, one number after the other.
pub(super) fn fill(out: &MatMut<'_>, f: impl Fn(usize, usize) -> f32) {
    for (i, j) in (0..out.rows).flat_map(|i| (0..out.cols).map(move |j| (i, j))) {
        // SAFETY: one thread, one number at a time.
        unsafe { out.piece(i, j, 1)[0] = f(i, j) };
    }
}

pub(super) fn add(a: Mat<'_>, b: Mat<'_>, out: &MatMut<'_>) {
    fill(out, |i, j| a.row(i)[j] + b.row(i)[j]);
}

pub(super) fn apply(f: Map, x: Mat<'_>, out: &MatMut<'_>) {
    fill(out, |i, j| map(f, x.row(i)[j]));
}

/// `f(gate, x)`
pub(super) fn glu(f: Glu, gate: f32, x: f32) -> f32 {
    match f {
        Glu::Of(f) => map(f, gate) * x,
        Glu::Clipped { limit } => map(Map::Silu, gate.min(limit)) * x.min(limit).max(-limit),
        Glu::Shifted { limit, alpha } => {
            let gate = gate.min(limit);
            gate * map(Map::Sigmoid, alpha * gate) * (x.min(limit).max(-limit) + 1.0)
        }
    }
}

fn mean_square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32
}

fn normed(x: &[f32], n: Norm<'_>, j: usize) -> f32 {
    let group = &x[j / n.group * n.group..][..n.group];
    x[j] / (mean_square(group) + n.eps).sqrt() * n.weight[j % n.weight.len()]
}

pub(super) fn rms_norm(x: Mat<'_>, n: Norm<'_>, out: &MatMut<'_>) {
    fill(out, |i, j| normed(x.row(i), n, j));
}

pub(super) fn gated_rms_norm(x: Mat<'_>, (gate, f): (Mat<'_>, Map), n: Norm<'_>, out: &MatMut<'_>) {
    fill(out, |i, j| normed(x.row(i), n, j) * map(f, gate.row(i)[j]));
}

pub(super) fn layer_norm(x: Mat<'_>, (weight, bias, eps): (&[f32], &[f32], f32), out: &MatMut<'_>) {
    let n = weight.len();
    fill(out, |i, j| {
        let group = &x.row(i)[j / n * n..][..n];
        let mean = group.iter().sum::<f32>() / n as f32;
        let variance = group.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n as f32;
        (group[j % n] - mean) / (variance + eps).sqrt() * weight[j % n] + bias[j % n]
    });
}

pub(super) fn unit_norm(x: Mat<'_>, (n, eps, scale): (usize, f32, f32), out: &MatMut<'_>) {
    fill(out, |i, j| {
        let group = &x.row(i)[j / n * n..][..n];
        group[j % n] / (group.iter().map(|x| x * x).sum::<f32>() + eps).sqrt() * scale
    });
}

pub(super) fn low_rank(x: Mat<'_>, pairs: Pairs<'_>, out: &MatMut<'_>) {
    for i in 0..out.rows {
        let Some(pair) = pairs.of(i) else { continue };
        for j in 0..out.cols {
            let added = (0..pair.rank).map(|r| {
                let hidden: f32 = pair.a(r).iter().zip(x.row(i)).map(|(a, x)| a * x).sum();
                pair.b(r)[j] * hidden
            });
            // SAFETY: one thread, one number at a time.
            unsafe { out.piece(i, j, 1)[0] += added.sum::<f32>() };
        }
    }
}

pub(super) fn rope_table(c: &Context<'_>, turns: Turns<'_>, out: &MatMut<'_>) {
    let n = out.cols / 2;
    fill(out, |t, j| {
        let stretch = f32::from_bits(c.b.row_stretch[c.b.token_row[t] as usize]);
        let position = c.b.positions[t] as usize / turns.every * turns.every;
        let angle = position as f32 * turns.freq(j % n, n, stretch);
        turns.scale * if j < n { angle.cos() } else { angle.sin() }
    });
}

pub(super) fn gate(f: Glu, gate: Mat<'_>, x: Mat<'_>, out: &MatMut<'_>) {
    let at = |j: usize| if gate.cols == 1 { 0 } else { j };
    fill(out, |i, j| glu(f, gate.row(i)[at(j)], x.row(i)[j]));
}

pub(super) fn position_scale(c: &Context<'_>, beta: f32, every: usize, out: &MatMut<'_>) {
    let positions = c.b.positions;
    fill(out, |t, _| 1.0 + beta * (1.0 + (positions[t] as usize / every) as f32).ln());
}

pub(super) fn rope(x: Mat<'_>, table: Mat<'_>, heads: RopeHeads, out: &MatMut<'_>) {
    let RopeHeads { dim, start, interleaved, inverse } = heads;
    let n = table.cols / 2;
    fill(out, |i, j| {
        let (head, at) = (&x.row(i)[j / dim * dim..][..dim], j % dim);
        let (cos, sin) = table.row(i).split_at(n);
        if at < start || at >= start + 2 * n {
            return head[at];
        }
        let (head, at) = (&head[start..], at - start);
        let (pair, second) = if interleaved { (at / 2, at % 2 == 1) } else { (at % n, at >= n) };
        let (a, b) = if interleaved {
            (head[2 * pair], head[2 * pair + 1])
        } else {
            (head[pair], head[pair + n])
        };
        let sin = if inverse { -sin[pair] } else { sin[pair] };
        if second { b * cos[pair] + a * sin } else { a * cos[pair] - b * sin }
    });
}

/// The rows of a step.
fn rows(c: &Context<'_>) -> impl Iterator<Item = Row> {
    (0..c.b.rows).map(|row| Row::new(c, row))
}

/// One number of the result of token `i` of a row.
fn put(row: &Row, i: usize, out: &MatMut<'_>, at: usize, number: f32) {
    // SAFETY: one thread, one number at a time.
    unsafe { row.result(out, i, at, &mut [0.0])[0] = number };
}

pub(super) fn decay(c: &Context<'_>, a: DecayArgs<'_>, mem: StateMem, out: &MatMut<'_>) {
    let DecayArgs { x, neg_a, bias, f } = a;
    for row in rows(c) {
        row.walk(mem, |sums, i| {
            let x = row.input(&mem, i, x, 0);
            for (h, sum) in sums.as_chunks_mut().0.iter_mut().enumerate() {
                if (row.start + i).is_multiple_of(SUM_BLOCK) {
                    *sum = [0.0; 2];
                }
                let (x, before) = (x[h] + bias[h], joined(*sum) as f32);
                *sum = parts(
                    joined(*sum)
                        + f64::from(match f {
                            DecayCurve::Softplus => neg_a[h] * x.exp().ln_1p(),
                            DecayCurve::Bounded { low } => low * map(Map::Sigmoid, -neg_a[h] * x),
                        }),
                );
                put(&row, i, out, h, (joined(*sum) as f32 - before).exp());
            }
        });
    }
    log(c, mem, [x]);
}

pub(super) fn conv(c: &Context<'_>, a: ConvArgs<'_>, mem: StateMem, out: &MatMut<'_>) {
    let ConvArgs { x, taps, bias, f } = a;
    let cols = x.cols;
    for row in rows(c) {
        row.walk(mem, |last, i| {
            let inputs = [last, row.input(&mem, i, x, 0)].concat(); // [K, cols]
            for j in 0..cols {
                let column = inputs.iter().zip(taps).skip(j).step_by(cols);
                let y = column.map(|(x, tap)| x * tap).sum::<f32>() + bias.map_or(0.0, |b| b[j]);
                put(&row, i, out, j, map(f, y));
            }
            last.copy_from_slice(&inputs[cols..]);
        });
    }
    log(c, mem, [x]);
}

pub(super) fn delta_rule(c: &Context<'_>, a: DeltaArgs<'_>, mem: StateMem, out: &MatMut<'_>) {
    let DeltaHeads { hk, hv, dk, dv } = a.heads;
    for row in rows(c) {
        row.walk(mem, |m, i| {
            let token = a.token(&row, &mem, i);
            for (h, m) in m.chunks_exact_mut(dk * dv).enumerate() {
                let [q, k] = [token.q, token.k].map(|x| &x[h / (hv / hk) * dk..][..dk]);
                let per_head = token.decay.len() == hv;
                for (i, m) in m.iter_mut().enumerate() {
                    *m *= token.decay[if per_head { h } else { h * dk + i / dv }];
                }
                for j in 0..dv {
                    let r: f32 = (0..dk).map(|i| m[i * dv + j] * k[i]).sum();
                    let d = token.beta[h] * (token.v[h * dv + j] - r);
                    (0..dk).for_each(|i| m[i * dv + j] += k[i] * d);
                    let y = (0..dk).map(|i| m[i * dv + j] * q[i]).sum();
                    put(&row, i, out, h * dv + j, y);
                }
            }
        });
    }
    log(c, mem, [a.k, a.v, a.decay, a.beta]);
}
