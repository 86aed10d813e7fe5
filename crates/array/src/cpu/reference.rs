//! The plain kernel of every operation: its definition, and the twin that tests hold the fast ones against.
//!
//! Owns clarity. One thread, no lanes, the library's functions; speed is refused.

use super::context::Context;
use super::recurrent::DeltaArgs;
use super::view::{Mat, MatMut};
use super::{context::StateMem, ops};
use crate::op::{DeltaHeads, Map, SUM_BLOCK, Scoring};

/// `f(x)`
pub(super) fn map(f: Map, x: f32) -> f32 {
    match f {
        Map::Silu => x / (1.0 + (-x).exp()),
        Map::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Map::Sigmoid => 1.0 / (1.0 + (-x).exp()),
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

fn mean_square(x: &[f32]) -> f32 {
    x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32
}

pub(super) fn rms_norm(x: Mat<'_>, weight: &[f32], eps: f32, out: &MatMut<'_>) {
    let n = weight.len();
    fill(out, |i, j| {
        let group = &x.row(i)[j / n * n..][..n];
        group[j % n] / (mean_square(group) + eps).sqrt() * weight[j % n]
    });
}

pub(super) fn gated_rms_norm(
    x: Mat<'_>,
    gate: Mat<'_>,
    weight: &[f32],
    eps: f32,
    out: &MatMut<'_>,
) {
    let n = weight.len();
    fill(out, |i, j| {
        let group = &x.row(i)[j / n * n..][..n];
        let norm = group[j % n] / (mean_square(group) + eps).sqrt() * weight[j % n];
        norm * map(Map::Silu, gate.row(i)[j])
    });
}

pub(super) fn unit_norm(x: Mat<'_>, (n, eps, scale): (usize, f32, f32), out: &MatMut<'_>) {
    fill(out, |i, j| {
        let group = &x.row(i)[j / n * n..][..n];
        group[j % n] / (group.iter().map(|x| x * x).sum::<f32>() + eps).sqrt() * scale
    });
}

pub(super) fn rope_table(positions: &[u32], freq: &[f32], scale: f32, out: &MatMut<'_>) {
    let n = freq.len();
    fill(out, |i, j| {
        let angle = positions[i] as f32 * freq[j % n];
        scale * if j < n { angle.cos() } else { angle.sin() }
    });
}

pub(super) fn rope(
    x: Mat<'_>,
    table: Mat<'_>,
    (dim, interleaved): (usize, bool),
    out: &MatMut<'_>,
) {
    let n = table.cols / 2;
    fill(out, |i, j| {
        let (head, at) = (&x.row(i)[j / dim * dim..][..dim], j % dim);
        let (cos, sin) = table.row(i).split_at(n);
        if at >= 2 * n {
            return head[at];
        }
        let (pair, second) = if interleaved { (at / 2, at % 2 == 1) } else { (at % n, at >= n) };
        let (a, b) = if interleaved {
            (head[2 * pair], head[2 * pair + 1])
        } else {
            (head[pair], head[pair + n])
        };
        if second { b * cos[pair] + a * sin[pair] } else { a * cos[pair] - b * sin[pair] }
    });
}

pub(super) fn decay(
    c: &Context<'_>,
    x: Mat<'_>,
    (neg_a, bias): (&[f32], &[f32]),
    mem: StateMem,
    out: &MatMut<'_>,
) {
    for (r, h) in (0..c.b.rows).flat_map(|r| (0..x.cols).map(move |h| (r, h))) {
        // SAFETY: one thread; slots of different rows differ.
        let state = unsafe { mem.write(c.b.row_slot[r] as usize, 2 * h, 2) };
        let mut sum = f64::from(state[0]) + f64::from(state[1]);
        let first = c.b.row_first[r] as usize;
        for t in first..first + c.b.row_count[r] as usize {
            if (c.b.positions[t] as usize).is_multiple_of(SUM_BLOCK) {
                sum = 0.0;
            }
            let before = sum as f32;
            sum += f64::from(neg_a[h] * (x.row(t)[h] + bias[h]).exp().ln_1p());
            // SAFETY: one thread, one number at a time.
            unsafe { out.piece(t, h, 1)[0] = (sum as f32 - before).exp() };
        }
        state[0] = sum as f32;
        state[1] = (sum - f64::from(state[0])) as f32;
    }
}

pub(super) fn route(x: Mat<'_>, k: usize, scoring: Scoring, out: &MatMut<'_>) {
    let Scoring::Softmax { renormalize } = scoring;
    for i in 0..x.rows {
        let logits = x.row(i);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = logits.iter().map(|l| (l - max).exp()).sum();
        let mut chosen: Vec<f32> = Vec::new();
        while chosen.len() < k {
            chosen.push(ops::best_but(logits, &chosen) as f32);
        }
        let weight = |rank: usize| (logits[chosen[rank] as usize] - max).exp() / total;
        let sum: f32 = if renormalize { (0..k).map(weight).sum() } else { 1.0 };
        // SAFETY: one thread, one row at a time.
        let out = unsafe { out.piece(i, 0, 2 * k) };
        for rank in 0..k {
            out[rank] = weight(rank) / sum;
            out[k + rank] = chosen[rank];
        }
    }
}

pub(super) fn conv(
    c: &Context<'_>,
    x: Mat<'_>,
    taps: &[f32],
    mem: StateMem,
    f: Map,
    out: &MatMut<'_>,
) {
    let cols = x.cols;
    let k = taps.len() / cols;
    for r in 0..c.b.rows {
        let (slot, past) = (c.b.row_slot[r] as usize, c.b.row_past[r]);
        // SAFETY: one thread; slots of different rows differ.
        let state = unsafe { mem.write(slot, 0, (k - 1) * cols) };
        if past == 0 {
            state.fill(0.0);
        }
        let mut inputs = state.to_vec();
        let first = c.b.row_first[r] as usize;
        let count = c.b.row_count[r] as usize;
        (first..first + count).for_each(|t| inputs.extend_from_slice(x.row(t)));
        for (i, j) in (0..count).flat_map(|i| (0..cols).map(move |j| (i, j))) {
            let y = (0..k).map(|tap| inputs[(i + tap) * cols + j] * taps[tap * cols + j]).sum();
            // SAFETY: one thread, one number at a time.
            unsafe { out.piece(first + i, j, 1)[0] = map(f, y) };
        }
        state.copy_from_slice(&inputs[count * cols..]);
    }
}

pub(super) fn delta_rule(c: &Context<'_>, a: DeltaArgs<'_>, mem: StateMem, out: &MatMut<'_>) {
    let DeltaHeads { hk, hv, dk, dv } = a.heads;
    for (r, h) in (0..c.b.rows).flat_map(|r| (0..hv).map(move |h| (r, h))) {
        let (slot, past) = (c.b.row_slot[r] as usize, c.b.row_past[r]);
        // SAFETY: one thread; slots of different rows differ.
        let m = unsafe { mem.write(slot, h * dk * dv, dk * dv) };
        if past == 0 {
            m.fill(0.0);
        }
        let first = c.b.row_first[r] as usize;
        for t in first..first + c.b.row_count[r] as usize {
            let q = &a.q.row(t)[h / (hv / hk) * dk..][..dk];
            let k = &a.k.row(t)[h / (hv / hk) * dk..][..dk];
            m.iter_mut().for_each(|m| *m *= a.decay.row(t)[h]);
            for j in 0..dv {
                let r: f32 = (0..dk).map(|i| m[i * dv + j] * k[i]).sum();
                let d = a.beta.row(t)[h] * (a.v.row(t)[h * dv + j] - r);
                (0..dk).for_each(|i| m[i * dv + j] += k[i] * d);
                // SAFETY: one thread, one number at a time.
                let out = unsafe { out.piece(t, h * dv + j, 1) };
                out[0] = (0..dk).map(|i| m[i * dv + j] * q[i]).sum();
            }
        }
    }
}
