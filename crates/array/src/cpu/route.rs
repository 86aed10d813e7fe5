//! Which experts serve a token, and with what weight.

use super::context::Context;
use super::lanes::{exp, per_isa, sigmoid, sum};
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
    #[inline(always)]
    fn new(logits: &'a [f32], score: Score) -> Self {
        let (mut max, mut total) = (0.0, 1.0);
        if score == Score::Softmax {
            max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            total = sum(logits.len(), |e| exp(logits[e] - max));
        }
        Self { logits, score, max, total }
    }

    #[inline(always)]
    fn of(&self, e: usize) -> f32 {
        match self.score {
            Score::Softmax => exp(self.logits[e] - self.max) / self.total,
            Score::Sigmoid => sigmoid(self.logits[e]),
            Score::SqrtSoftplus => softplus(self.logits[e]).sqrt(),
        }
    }
}

/// Places of the largest keys among `candidates`, best first, into `best`; the first of equals. `keys` is as long and
/// holds those keys afterwards.
#[inline(always)]
fn best_into(
    key: impl Fn(usize) -> f32,
    candidates: impl Iterator<Item = usize>,
    best: &mut [f32],
    keys: &mut [f32],
) {
    best.fill(0.0);
    let mut found = 0;
    for e in candidates {
        let new = key(e);
        let mut at = found;
        while at > 0 && new > keys[at - 1] {
            at -= 1;
        }
        if at == best.len() {
            continue;
        }
        found = best.len().min(found + 1);
        for list in [&mut *best, &mut *keys] {
            list.copy_within(at..found - 1, at + 1);
        }
        (best[at], keys[at]) = (e as f32, new);
    }
}

/// Whether `group` is one of the `keep` groups whose two best keys have the largest sum.
#[inline(always)]
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
    out.for_rows(c.pool, x.cols * 4, |t, row| {
        let listed = router.table.map(|table| &table[c.b.ids[t] as usize * router.k..][..router.k]);
        route_row(c.isa, x.row(t), router, listed, row);
    });
}

per_isa! {
    /// The experts of one token: those that are `listed` for it, or the best.
    fn route_row(logits: &[f32], router: Router<'_>, listed: Option<&[f32]>, row: &mut [f32]) {
        let Router { k, scoring, bias, gain, .. } = router;
        let experts = logits.len();
        let (weights, numbers) = row.split_at_mut(k);
        let scores = Scores::new(logits, scoring.score);
        // Softmax keeps the order of its logits: no need to take exponents of them all again.
        let plain = scoring.score == Score::Softmax && bias.is_none();
        let key = |e: usize| match plain {
            true => logits[e],
            false => scores.of(e) + bias.map_or(0.0, |b| b[e]),
        };
        if let Some(listed) = listed {
            numbers.copy_from_slice(listed);
        } else if let Some(groups) = scoring.groups {
            let size = experts / groups.count;
            let kept = (0..groups.count).filter(|&g| is_kept(&key, experts, groups, g));
            best_into(key, kept.flat_map(|g| g * size..(g + 1) * size), numbers, weights);
        } else {
            best_into(key, 0..experts, numbers, weights);
        }
        weigh(weights, numbers, &scores, scoring);
        if let Some(gain) = gain {
            weights.iter_mut().zip(numbers).for_each(|(w, e)| *w *= gain[*e as usize]);
        }
    }
}

#[inline(always)]
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

#[cfg(test)]
mod tests {
    use super::best_into;

    #[test]
    fn the_best_come_first_and_the_first_of_equals() {
        let mut seed = 1_u32;
        for case in 0..2000 {
            let mut draw = |below: u32| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 16) % below
            };
            let (n, k) = (draw(40) as usize + 1, draw(9) as usize + 1);
            let keys: Vec<f32> = (0..n).map(|_| draw(12) as f32 - 6.0).collect();
            let mut want: Vec<usize> = (0..n).collect();
            want.sort_by(|a, b| keys[*b].total_cmp(&keys[*a]));
            want.resize(k, 0);
            let (mut best, mut best_keys) = (vec![f32::NAN; k], vec![f32::NAN; k]);
            best_into(|e| keys[e], 0..n, &mut best, &mut best_keys);
            let best: Vec<usize> = best.iter().map(|e| *e as usize).collect();
            assert_eq!(best, want, "case {case}: {keys:?}");
        }
    }
}
