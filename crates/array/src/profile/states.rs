//! What operations with a state cost: what tokens see of paged ones, records in and out, and logs.

use super::node::{F32, Meter, flops};
use super::{Cost, LiveRow};
use crate::op::{Chosen, DeltaHeads, Id, Op, SsmHeads, Values};
use crate::state::{StateKind, StateRef};
use crate::weight::WeightRef;

/// Heads of a paged state and numbers of each.
fn dims(state: StateRef) -> (u64, u64) {
    match state.kind {
        StateKind::Keys { heads, dim } | StateKind::Values { heads, dim } => {
            (heads as u64, dim as u64)
        }
        StateKind::Slots { .. } | StateKind::Carry { .. } => (0, 0),
    }
}

/// Bytes of a paged state for each position or entry.
fn entry_bytes(state: StateRef) -> u64 {
    let (heads, dim) = dims(state);
    heads * state.stored.bytes(dim as usize) as u64
}

/// Where an attention's tokens look.
#[derive(Clone, Copy, Default)]
struct Looks {
    /// Positions or entries, those of all tokens together.
    all: u64,
    /// Different ones.
    different: u64,
}

impl Looks {
    /// Of a row whose token at position `p` looks at `of(p)` of so many places.
    fn of(row: &LiveRow, places: u64, of: impl Fn(usize) -> usize) -> Self {
        let all = (row.past..row.past + row.tokens).map(|p| of(p) as u64).sum();
        Self { all, different: places.min(all) }
    }
}

impl Meter<'_> {
    /// The tokens that run through a row's record: those of its log, and those of the step.
    fn all_tokens(&self) -> u64 {
        self.rows.iter().map(|row| (row.logged + row.tokens) as u64).sum()
    }

    pub(super) fn write_kv(&self, state: StateRef) -> Cost {
        let last = |row: &LiveRow| {
            (row.past + row.tokens) / state.every.max(1) - row.past / state.every.max(1)
        };
        let entries: u64 = self.rows.iter().map(|row| last(row) as u64).sum();
        Cost { state_bytes: entries * entry_bytes(state), ..Cost::default() }
    }

    pub(super) fn attention(&self, op: Op) -> Cost {
        let Op::Attention { keys, values, heads, window, softcap, entries, chosen, .. } = op else {
            unreachable!("matched by the caller")
        };
        let (_, dim) = dims(keys);
        let (dv, value_bytes) = match values {
            Values::Of(values) => (dims(values).1, entry_bytes(values)),
            Values::Keys { dim } => (dim as u64, 0),
        };
        // Two products, the scale, the difference, the exponential, the sum; and what a cap does to a score.
        let look = heads as u64 * (2 * dim + 2 * dv + 4 + if softcap.is_some() { 3 } else { 0 });
        let most = window.unwrap_or(usize::MAX);
        let units = chosen.filter(|_| entries.is_none());
        let units = units.map(|c| (self.shape(c.list).1 as usize, c.every.max(1)));
        let mut cost = Cost::default();
        for row in self.rows {
            let seen = positions(row, most, units);
            cost.state_bytes += seen.different * (entry_bytes(keys) + value_bytes);
            let mut looks = seen.all;
            if let Some(state) = entries {
                let seen = self.entries(row, state, chosen);
                cost.state_bytes += seen.different * entry_bytes(state);
                looks += seen.all;
            }
            cost.flops += looks * look + row.tokens as u64 * heads as u64 * dv;
        }
        cost
    }

    /// The entries of whole groups, those of a choice at most.
    fn entries(&self, row: &LiveRow, state: StateRef, chosen: Option<Chosen>) -> Looks {
        let every = state.every.max(1);
        let most = chosen.map_or(usize::MAX, |c| self.shape(c.list).1 as usize);
        let there = ((row.past + row.tokens) / every) as u64;
        Looks::of(row, there, |p| ((p + 1) / every).min(most))
    }

    pub(super) fn select(&self, keys: StateRef, heads: usize, k: usize) -> Cost {
        let every = keys.every.max(1);
        let look = heads as u64 * (2 * dims(keys).1 + 4);
        let mut cost = Cost::default();
        for row in self.rows {
            let there = ((row.past + row.tokens) / every) as u64;
            // Where all are chosen, no key is looked at.
            let seen =
                Looks::of(row, there, |p| if (p + 1) / every > k { (p + 1) / every } else { 0 });
            cost.state_bytes += seen.different * entry_bytes(keys);
            cost.flops += seen.all * look;
        }
        cost
    }

    /// Bytes of records in and out and of logs: a fresh record is not read, one that nothing is put into not written.
    fn records(&self, state: StateRef) -> u64 {
        let StateKind::Slots { len, .. } = state.kind else { return 0 };
        let read = |row: &LiveRow| if row.past > row.logged { len } else { 0 };
        let written = |row: &LiveRow| if row.confirmed > 0 { len } else { 0 };
        let records: usize = self.rows.iter().map(|row| read(row) + written(row)).sum();
        records as u64 * F32 + self.logs(state)
    }

    /// Bytes of logs: what is logged is read, what stays unconfirmed is written.
    fn logs(&self, state: StateRef) -> u64 {
        let StateKind::Slots { log, .. } = state.kind else { return 0 };
        let tokens = |row: &LiveRow| {
            let all = row.logged + row.tokens;
            row.logged + all.saturating_sub(row.confirmed.max(row.logged))
        };
        let tokens: usize = self.rows.iter().map(tokens).sum();
        (tokens * log.inputs) as u64 * F32
    }

    /// `every` tokens of a group make an entry of `cols`; with overlap those of the group before, too. Of the record what
    /// entries are made of is read, and what confirmed tokens bring is written.
    pub(super) fn pool(&self, state: StateRef, (every, cols): (usize, u64), overlap: bool) -> Cost {
        let every = every.max(1);
        let width = if overlap { 2 * cols } else { cols };
        let mut cost = Cost { state_bytes: self.logs(state), ..Cost::default() };
        for row in self.rows {
            let start = row.past.saturating_sub(row.logged);
            let last =
                (row.past / every..(row.past + row.tokens) / every).map(|group| group * every);
            for group in last {
                let before = if overlap { group.checked_sub(every) } else { None };
                for first in [Some(group), before].into_iter().flatten() {
                    let kept = start.saturating_sub(first).min(every) as u64;
                    cost.state_bytes += kept * 2 * cols * F32;
                    // The bias, the largest; the difference, the exponential, the sum, the product.
                    cost.flops += every as u64 * cols * 7;
                }
                cost.flops += cols;
            }
            let end = start + row.confirmed;
            cost.state_bytes += row.confirmed.min(every) as u64 * 2 * width * F32;
            if overlap && end / every > start / every {
                cost.state_bytes += every as u64 * 2 * cols * F32;
            }
        }
        cost
    }

    pub(super) fn conv(&self, x: Id, taps: WeightRef, bias: bool, state: StateRef) -> Cost {
        let cols = self.shape(x).1;
        let taps = taps.vector().unwrap_or(0) as u64;
        let token = 2 * taps + cols * (1 + u64::from(bias));
        Cost { state_bytes: self.records(state), ..flops(self.all_tokens() * token) }
    }

    /// The bias, the curve and its factor, the sum, the difference, the exponential.
    pub(super) fn decay(&self, x: Id, state: StateRef) -> Cost {
        let token = 6 * self.shape(x).1;
        Cost { state_bytes: self.records(state), ..flops(self.all_tokens() * token) }
    }

    /// Of each number of a head's matrix the decay and three multiply-adds; of each value two operations.
    pub(super) fn delta_rule(&self, state: StateRef, heads: DeltaHeads) -> Cost {
        let [hv, dk, dv] = [heads.hv, heads.dk, heads.dv].map(|n| n as u64);
        let token = hv * (7 * dk * dv + 2 * dv);
        Cost { state_bytes: self.records(state), ..flops(self.all_tokens() * token) }
    }

    /// Of each number of a head's matrix the decay and two multiply-adds; of each number of `x` the step and what skips;
    /// of a head the bias, the step's curve, the decay's product and exponential.
    pub(super) fn ssm(&self, state: StateRef, heads: SsmHeads) -> Cost {
        let [n, dim, state_dim] = [heads.heads, heads.dim, heads.state].map(|n| n as u64);
        let token = n * (5 * dim * state_dim + 3 * dim + 4);
        Cost { state_bytes: self.records(state), ..flops(self.all_tokens() * token) }
    }
}

/// The positions that tokens of a row see, at most `window` each. Of a choice of units of `every` positions: at most so
/// many units, and what comes after the last whole one.
fn positions(row: &LiveRow, window: usize, chosen: Option<(usize, usize)>) -> Looks {
    let first = (row.past + 1).saturating_sub(window);
    let there = row.past + row.tokens - first;
    Looks::of(row, there as u64, |p| {
        let seen = match chosen {
            None => p + 1,
            Some((units, every)) => ((p + 1) / every).min(units) * every + (p + 1) % every,
        };
        seen.min(window)
    })
}
