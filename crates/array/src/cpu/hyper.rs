//! Hyper-connections: a few residual streams, mixed before and after each half of a block.
//!
//! Owns the kernels and their plain twins. The mixing weights of a token are few, so one thread makes all of a row;
//! the streams are wide, so their mixing is written over lanes.

use super::context::Context;
use super::lanes::{exp, per_isa, sigmoid};
use super::reference::{fill, map};
use super::view::{Mat, MatMut};
use crate::op::{MOST_STREAMS, Map};

/// What makes the weights of hyper-connections.
#[derive(Clone, Copy)]
pub(super) struct Mixing<'a> {
    pub(super) scale: &'a [f32],
    pub(super) base: &'a [f32],
    pub(super) n: usize,
    pub(super) iters: usize,
    pub(super) eps: f32,
}

/// `[n, n]` in rows of the most streams; what lies beyond `n` is 0.
type Square = [[f32; MOST_STREAMS]; MOST_STREAMS];

/// Divides each row by its sum plus `eps`.
#[inline(always)]
fn divide_rows(m: &mut Square, n: usize, eps: f32) {
    for row in &mut m[..n] {
        let sum = row[..n].iter().fold(0.0, |sum, x| sum + x) + eps;
        row.iter_mut().for_each(|x| *x /= sum);
    }
}

/// Divides each column by its sum plus `eps`.
#[inline(always)]
fn divide_columns(m: &mut Square, n: usize, eps: f32) {
    let mut sums = [0.0_f32; MOST_STREAMS];
    for row in &m[..n] {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sums.iter_mut().for_each(|sum| *sum += eps);
    for row in &mut m[..n] {
        row.iter_mut().zip(&sums).for_each(|(x, sum)| *x /= sum);
    }
}

per_isa! {
    fn weights_row(out: &mut [f32], z: &[f32], mixing: Mixing<'_>) {
        let Mixing { scale, base, n, iters, eps } = mixing;
        for i in 0..n {
            out[i] = sigmoid(z[i].mul_add(scale[0], base[i])) + eps;
        }
        if z.len() == n {
            return;
        }
        for i in n..2 * n {
            out[i] = 2.0 * sigmoid(z[i].mul_add(scale[1], base[i]));
        }
        let mut m: Square = [[0.0; MOST_STREAMS]; MOST_STREAMS];
        for (j, row) in m[..n].iter_mut().enumerate() {
            let at = 2 * n + j * n;
            let mut most = f32::NEG_INFINITY;
            for k in 0..n {
                row[k] = z[at + k].mul_add(scale[2], base[at + k]);
                most = most.max(row[k]);
            }
            row[..n].iter_mut().for_each(|x| *x = exp(*x - most));
            let sum = row[..n].iter().fold(0.0, |sum, x| sum + x);
            row[..n].iter_mut().for_each(|x| *x = *x / sum + eps);
        }
        divide_columns(&mut m, n, eps);
        for _ in 1..iters {
            divide_rows(&mut m, n, eps);
            divide_columns(&mut m, n, eps);
        }
        for (out, row) in out[2 * n..].chunks_exact_mut(n).zip(&m) {
            out.copy_from_slice(&row[..n]);
        }
    }
}

pub(super) fn weights(c: &Context<'_>, z: Mat<'_>, mixing: Mixing<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, out.cols * (mixing.iters + 4), |i, row| {
        weights_row(c.isa, row, z.row(i), mixing);
    });
}

/// The plain twin of [`weights`].
pub(super) fn weights_reference(z: Mat<'_>, mixing: Mixing<'_>, out: &MatMut<'_>) {
    let Mixing { scale, base, n, iters, eps } = mixing;
    let rows: Vec<Vec<f32>> = (0..out.rows)
        .map(|t| {
            let z = z.row(t);
            let linear = |i: usize| z[i] * scale[(i / n).min(2)] + base[i];
            let mut row: Vec<f32> = (0..z.len()).map(linear).collect();
            row[..n].iter_mut().for_each(|x| *x = map(Map::Sigmoid, *x) + eps);
            if row.len() == n {
                return row;
            }
            row[n..2 * n].iter_mut().for_each(|x| *x = 2.0 * map(Map::Sigmoid, *x));
            let m = &mut row[2 * n..];
            for m in m.chunks_exact_mut(n) {
                let most = m.iter().fold(f32::NEG_INFINITY, |most, x| most.max(*x));
                m.iter_mut().for_each(|x| *x = (*x - most).exp());
                let sum: f32 = m.iter().sum();
                m.iter_mut().for_each(|x| *x = *x / sum + eps);
            }
            for turn in 1..2 * iters.max(1) {
                // Odd turns are columns.
                let at = |a: usize, b: usize| if turn % 2 == 1 { b * n + a } else { a * n + b };
                for a in 0..n {
                    let sum = (0..n).map(|b| m[at(a, b)]).sum::<f32>() + eps;
                    (0..n).for_each(|b| m[at(a, b)] /= sum);
                }
            }
            row
        })
        .collect();
    fill(out, |t, j| rows[t][j]);
}

per_isa! {
    fn weighted_sum(out: &mut [f32], streams: &[f32], weights: &[f32]) {
        out.fill(0.0);
        for (stream, w) in streams.chunks_exact(out.len()).zip(weights) {
            out.iter_mut().zip(stream).for_each(|(o, s)| *o = w.mul_add(*s, *o));
        }
    }
}

pub(super) fn mix_in(c: &Context<'_>, streams: Mat<'_>, weights: Mat<'_>, out: &MatMut<'_>) {
    out.for_rows(c.pool, streams.cols / 8, |i, row| {
        weighted_sum(c.isa, row, streams.row(i), weights.row(i));
    });
}

/// The plain twin of [`mix_in`].
pub(super) fn mix_in_reference(streams: Mat<'_>, weights: Mat<'_>, out: &MatMut<'_>) {
    fill(out, |i, j| {
        let streams = streams.row(i).chunks_exact(out.cols);
        streams.zip(weights.row(i)).map(|(stream, w)| w * stream[j]).sum()
    });
}

per_isa! {
    fn mixed_stream(out: &mut [f32], streams: &[f32], y: &[f32], weights: &[f32], k: usize) {
        let n = streams.len() / out.len();
        out.iter_mut().zip(y).for_each(|(o, y)| *o = weights[k] * y);
        for (j, stream) in streams.chunks_exact(out.len()).enumerate() {
            let w = weights[n + j * n + k];
            out.iter_mut().zip(stream).for_each(|(o, s)| *o = w.mul_add(*s, *o));
        }
    }
}

pub(super) fn mix_out(
    c: &Context<'_>,
    (streams, y, weights): (Mat<'_>, Mat<'_>, Mat<'_>),
    out: &MatMut<'_>,
) {
    out.for_groups(c.pool, y.cols, out.cols / 8, |i, k, stream| {
        mixed_stream(c.isa, stream, streams.row(i), y.row(i), weights.row(i), k);
    });
}

/// The plain twin of [`mix_out`].
pub(super) fn mix_out_reference(
    (streams, y, weights): (Mat<'_>, Mat<'_>, Mat<'_>),
    out: &MatMut<'_>,
) {
    let (h, n) = (y.cols, out.cols / y.cols);
    fill(out, |i, at| {
        let (k, w) = (at / h, weights.row(i));
        let mixed: f32 = (0..n).map(|j| w[n + j * n + k] * streams.row(i)[j * h + at % h]).sum();
        w[k] * y.row(i)[at % h] + mixed
    });
}
