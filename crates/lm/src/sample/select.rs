//! Finding the best few of a vocabulary without sorting it.
//!
//! Owns block maxima, gathering above a floor, and cuts by count and by mass, all in time linear in
//! what they look at. There is one order of candidates: larger value first, lower id first among
//! equals. Refuses values that are NaN: the scan reports them before anything compares.

use std::cmp::Ordering;

use super::mass::Mass;

/// Entries under one maximum.
pub(super) const BLOCK: usize = 64;
/// Entries compared side by side within a block.
const LANES: usize = 16;

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    /// Its processed logit.
    pub(super) value: f32,
    /// Its id.
    pub(super) id: u32,
}

impl Candidate {
    /// `Less` if `self` comes before `other`.
    pub(super) fn rank(&self, other: &Self) -> Ordering {
        let by_value = other.value.partial_cmp(&self.value).unwrap_or(Ordering::Equal);
        by_value.then(self.id.cmp(&other.id))
    }
}

/// Writes the maximum of each block of `logits` to `blocks` and returns the best candidate, or
/// `None` if some entry is NaN or positive infinity, or if all are negative infinity.
pub(super) fn scan(logits: &[f32], blocks: &mut Vec<f32>) -> Option<Candidate> {
    blocks.clear();
    let mut best = f32::NEG_INFINITY;
    let mut best_block = 0;
    let mut broken = false;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let (max, nan) = block_max(block);
        broken |= nan;
        if max > best {
            best = max;
            best_block = index;
        }
        blocks.push(max);
    }
    if broken || !best.is_finite() {
        return None;
    }
    let start = best_block * BLOCK;
    let offset = logits[start..].iter().position(|&x| x == best)?;
    Some(Candidate { value: best, id: u32::try_from(start + offset).ok()? })
}

/// The largest entry, and whether one of them is NaN.
fn block_max(block: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut nans = [0u32; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let x = chunk[lane];
            max[lane] = if x > max[lane] { x } else { max[lane] };
            nans[lane] |= u32::from(x.is_nan());
        }
    }
    let larger = |a: f32, &b: &f32| if b > a { b } else { a };
    let largest = max.iter().chain(rest).fold(f32::NEG_INFINITY, larger);
    (largest, nans.iter().any(|&n| n != 0) || rest.iter().any(|x| x.is_nan()))
}

/// A value that at least `count` entries reach: the `count`-th largest block maximum, or the lowest
/// number there is when there are fewer blocks. `scratch` is overwritten.
pub(super) fn floor_of_best(blocks: &[f32], count: usize, scratch: &mut Vec<f32>) -> f32 {
    if count == 0 || count > blocks.len() {
        return f32::MIN;
    }
    scratch.clear();
    scratch.extend_from_slice(blocks);
    let (_, nth, _) = scratch.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
    nth.max(f32::MIN)
}

/// Fills `out` with every entry of at least `floor`, in id order; skips blocks below it.
pub(super) fn gather(logits: &[f32], blocks: &[f32], floor: f32, out: &mut Vec<Candidate>) {
    out.clear();
    for ((block, &max), start) in logits.chunks(BLOCK).zip(blocks).zip((0u32..).step_by(BLOCK)) {
        if max < floor {
            continue;
        }
        let entries = block.iter().zip(start..);
        out.extend(
            entries.filter(|&(&x, _)| x >= floor).map(|(&value, id)| Candidate { value, id }),
        );
    }
}

/// Keeps the `count` best of `candidates`, in the order they are in. `scratch` is overwritten.
pub(super) fn keep_best(
    candidates: &mut Vec<Candidate>,
    count: usize,
    scratch: &mut Vec<Candidate>,
) {
    if count >= candidates.len() {
        return;
    }
    let Some(nth) = count.checked_sub(1) else {
        candidates.clear();
        return;
    };
    scratch.clone_from(candidates);
    let (_, &mut last, _) = scratch.select_nth_unstable_by(nth, Candidate::rank);
    candidates.retain(|c| c.rank(&last) != Ordering::Greater);
}

/// The value of the first candidate, best first, at which the mass so far reaches `target`; the
/// last one's if it is never reached. Masses are relative to `max`. `scratch` is overwritten.
pub(super) fn value_at_mass(
    candidates: &[Candidate],
    max: f32,
    target: f64,
    mass: Mass,
    scratch: &mut Vec<Candidate>,
) -> f32 {
    scratch.clear();
    scratch.extend_from_slice(candidates);
    let mut rest = scratch.as_mut_slice();
    let mut above = 0.0;
    while rest.len() > 1 {
        let middle = rest.len() / 2;
        rest.select_nth_unstable_by(middle, Candidate::rank);
        let (better, worse) = rest.split_at_mut(middle);
        let better_mass = mass_of(better, max, mass);
        if above + better_mass >= target {
            rest = better;
        } else {
            above += better_mass;
            rest = worse;
        }
    }
    rest.first().map_or(f32::MIN, |c| c.value)
}

/// The mass of `candidates` relative to `max`.
pub(super) fn mass_of(candidates: &[Candidate], max: f32, mass: Mass) -> f64 {
    candidates.iter().map(|c| mass.of(c.value - max)).sum()
}
