//! Which experts serve a token, and with what weight.

use super::context::Context;
use super::lanes::{exp, sigmoid, sum};
use super::recurrent::softplus;
use super::view::{Mat, MatMut};
use crate::op::{Groups, Score, Scoring};

/// What a router is given besides its logits.
#[derive(Clone, Copy)]
pub(super) struct Router<'a> {
    pub(super) k: usize,
    pub(super) scoring: Scoring,
    pub(super) bias: Option<&'a [f32]>,
    /// `[ids, k]`
    pub(super) table: Option<&'a [f32]>,
    /// A factor of each expert.
    pub(super) gain: Option<&'a [f32]>,
}

/// Turns logits into scores.
struct Scores<'a> {
    logits: &'a [f32],
    score: Score,
    max: f32,
    total: f32,
}

impl<'a> Scores<'a> {
    fn new(logits: &'a [f32], score: Score) -> Self {
        let (mut max, mut total) = (0.0, 1.0);
        if score == Score::Softmax {
            max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            total = sum(logits.len(), |e| exp(logits[e] - max));
        }
        Self { logits, score, max, total }
    }

    fn of(&self, e: usize) -> f32 {
        match self.score {
            Score::Softmax => exp(self.logits[e] - self.max) / self.total,
            Score::Sigmoid => sigmoid(self.logits[e]),
            Score::SqrtSoftplus => softplus(self.logits[e]).sqrt(),
        }
    }
}

/// Places of the largest keys among `candidates`, best first, into `best`; the first of equals.
fn best_into(
    key: impl Fn(usize) -> f32,
    candidates: impl Iterator<Item = usize> + Clone,
    best: &mut [f32],
) {
    for rank in 0..best.len() {
        let (taken, rest) = best.split_at_mut(rank);
        let free = candidates.clone().filter(|&e| !taken.contains(&(e as f32)));
        let first = free.fold(None, |best: Option<usize>, e| match best {
            Some(b) if key(b) >= key(e) => Some(b),
            _ => Some(e),
        });
        rest[0] = first.unwrap_or(0) as f32;
    }
}

/// Whether `group` is one of the `keep` groups whose two best keys have the largest sum.
fn is_kept(key: &impl Fn(usize) -> f32, experts: usize, groups: Groups, group: usize) -> bool {
    let size = experts / groups.count;
    let worth = |g: usize| {
        let (first, second) = (g * size..(g + 1) * size).map(key).fold(
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            |(a, b), x| {
                if x > a { (x, a) } else { (a, b.max(x)) }
            },
        );
        first + second
    };
    let own = worth(group);
    let better = (0..groups.count).filter(|&g| worth(g) > own || (worth(g) == own && g < group));
    better.count() < groups.keep
}

pub(super) fn route(c: &Context<'_>, x: Mat<'_>, router: Router<'_>, out: &MatMut<'_>) {
    let Router { k, scoring, bias, table, gain } = router;
    let experts = x.cols;
    out.for_rows(c.pool, experts * (4 + k), |t, row| {
        let (weights, numbers) = row.split_at_mut(k);
        let scores = Scores::new(x.row(t), scoring.score);
        // Softmax keeps the order of its logits: no need to take exponents of them all again.
        let plain = scoring.score == Score::Softmax && bias.is_none();
        let key =
            |e: usize| if plain { x.row(t)[e] } else { scores.of(e) + bias.map_or(0.0, |b| b[e]) };
        if let Some(table) = table {
            numbers.copy_from_slice(&table[c.b.ids[t] as usize * k..][..k]);
        } else if let Some(groups) = scoring.groups {
            let size = experts / groups.count;
            let kept = (0..groups.count).filter(|&g| is_kept(&key, experts, groups, g));
            best_into(key, kept.flat_map(|g| g * size..(g + 1) * size), numbers);
        } else {
            best_into(key, 0..experts, numbers);
        }
        weigh(weights, numbers, &scores, scoring);
        if let Some(gain) = gain {
            weights.iter_mut().zip(numbers).for_each(|(w, e)| *w *= gain[*e as usize]);
        }
    });
}

fn weigh(weights: &mut [f32], numbers: &[f32], scores: &Scores<'_>, scoring: Scoring) {
    let experts = scores.logits.len();
    for (weight, number) in weights.iter_mut().zip(numbers) {
        assert!((*number as usize) < experts, "expert {number} of {experts}");
        *weight = scores.of(*number as usize);
    }
    if scoring.renormalize {
        let chosen = weights.iter().sum::<f32>() + 1e-20;
        weights.iter_mut().for_each(|w| *w /= chosen);
    }
    if scoring.scale != 1.0 {
        weights.iter_mut().for_each(|w| *w *= scoring.scale);
    }
}

/// The plain twin of [`route`]: everything is sorted.
pub(super) fn reference(c: &Context<'_>, x: Mat<'_>, router: Router<'_>, out: &MatMut<'_>) {
    let Router { k, scoring, bias, table, gain } = router;
    for t in 0..x.rows {
        let logits = x.row(t);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = logits.iter().map(|l| (l - max).exp()).sum();
        let score = |e: usize| match scoring.score {
            Score::Softmax => (logits[e] - max).exp() / total,
            Score::Sigmoid => 1.0 / (1.0 + (-logits[e]).exp()),
            Score::SqrtSoftplus => logits[e].exp().ln_1p().sqrt(),
        };
        let key = |e: usize| score(e) + bias.map_or(0.0, |b| b[e]);
        let mut experts: Vec<usize> = (0..logits.len()).collect();
        experts.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
        if let Some(Groups { count, keep }) = scoring.groups {
            let size = logits.len() / count;
            let worth = |g: usize| -> f32 {
                experts.iter().filter(|e| **e / size == g).take(2).map(|e| key(*e)).sum()
            };
            let mut groups: Vec<usize> = (0..count).collect();
            groups.sort_by(|a, b| worth(*b).total_cmp(&worth(*a)));
            let kept: Vec<usize> =
                experts.iter().copied().filter(|e| groups[..keep].contains(&(e / size))).collect();
            experts = kept;
        }
        if let Some(table) = table {
            let row = &table[c.b.ids[t] as usize * k..][..k];
            experts = row.iter().map(|e| *e as usize).collect();
        }
        let sum = if scoring.renormalize {
            experts[..k].iter().map(|e| score(*e)).sum::<f32>() + 1e-20
        } else {
            1.0
        };
        // SAFETY: one thread, one row at a time.
        let out = unsafe { out.piece(t, 0, 2 * k) };
        for (rank, e) in experts[..k].iter().enumerate() {
            out[rank] = score(*e) / sum * scoring.scale * gain.map_or(1.0, |g| g[*e]);
            out[k + rank] = *e as f32;
        }
    }
}
