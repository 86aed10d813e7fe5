//! Cases of what carries a record from token to token.

use std::sync::Arc;

use longrun_array::{
    DecayCurve, Delta, DeltaHeads, Log, Map, Scan, SsmHeads, State, StateKind, Weight,
};

use crate::cases::{Model, Rig, model, sum};
use crate::common::SLOTS;
use crate::common::drafts::DEPTH;

/// Records with logs, for an operation to which a token brings `inputs` numbers.
pub(crate) fn record(rig: &mut Rig, len: usize, inputs: usize) -> Arc<State> {
    let log = Log { inputs, depth: DEPTH };
    rig.state(StateKind::Slots { len, log }, SLOTS, 0)
}

pub(crate) fn conv(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 150);
    let table = rig.table(cols);
    let layers: Vec<_> = (2..=4)
        .map(|taps| {
            let state = record(rig, (taps - 1) * cols, cols);
            let bias = (taps != 3).then(|| rig.vector(cols, -1.0, 1.0));
            (rig.vector(taps * cols, -1.0, 1.0), bias, state)
        })
        .collect();
    model(move |step| {
        let x = step.ids().embed(&table, 2.0);
        let maps = [Map::Silu, Map::Scale(1.0), Map::GeluTanh];
        let convolve = |((taps, bias, state), f): (&(Weight, Option<Weight>, Arc<State>), Map)| {
            x.conv(taps, bias.as_ref(), step.open(state), f).0
        };
        sum(layers.iter().zip(maps).map(convolve))
    })
}

pub(crate) fn decay(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 40);
    let (table, neg_a) = (rig.table(cols), rig.vector(cols, -1.0, 0.0));
    let bias = rig.vector(cols, -1.0, 1.0);
    let sums = [0; 2].map(|_| record(rig, 2 * cols, cols));
    model(move |step| {
        let x = step.ids().embed(&table, 3.0);
        let curves = [DecayCurve::Softplus, DecayCurve::Bounded { low: -3.0 }];
        let decay = |(f, sums): (_, &Arc<State>)| x.decay(&neg_a, &bias, step.open(sums), f).0;
        sum(curves.into_iter().zip(&sums).map(decay))
    })
}

/// A size, often a multiple of 4: then numbers may be moved by fours.
fn size(rig: &mut Rig, low: usize, high: usize) -> usize {
    let n = rig.rng.int(low, high);
    if rig.rng.int(0, 1) == 0 { n.next_multiple_of(4) } else { n }
}

/// Rows of a head's record: some for each kernel that a device may have.
fn lengths(rig: &mut Rig) -> [usize; 5] {
    [(2, 24), (2, 32), (33, 64), (65, 128), (129, 256)].map(|(low, high)| size(rig, low, high))
}

pub(crate) fn delta_rule(rig: &mut Rig) -> Model {
    let (hk, shared, dv) = (rig.rng.int(1, 2), rig.rng.int(1, 3), size(rig, 1, 70));
    let hv = hk * shared;
    let lengths = lengths(rig);
    let most = lengths.into_iter().max().unwrap_or(0);
    // A decay for each head, or one for each channel of a key; the first two have one of each kind.
    let rules: Vec<_> = (0..lengths.len())
        .map(|i| {
            let heads = DeltaHeads { hk, hv, dk: lengths[i], dv };
            let by_head = if i < 2 { i == 0 } else { rig.rng.int(0, 1) == 0 };
            let n = if by_head { hv } else { hv * heads.dk };
            let weights = (rig.vector(n, -0.2, -0.01), rig.vector(n, -1.0, 1.0));
            let inputs = heads.keys() + heads.values() + n + hv;
            let state = record(rig, hv * heads.dk * dv, inputs);
            (heads, n, weights, record(rig, 2 * n, n), state)
        })
        .collect();
    let (keys, values) = (hk * most, hv * dv);
    let table = rig.table(2 * keys + values + hv + hv * most);
    model(move |step| {
        let x = step.ids().embed(&table, 1.0);
        let [q, k, v, b, a] = x.split([keys, keys, values, hv, hv * most]);
        let beta = b.apply(Map::Sigmoid);
        sum(rules.iter().map(|(heads, n, (neg_a, bias), sums, state)| {
            let [q, k] = [q, k].map(|x| x.columns(0, heads.keys()).unit_norm(heads.dk, 1e-6, 1.0));
            let a = a.columns(0, *n);
            let (decay, _) = a.decay(neg_a, bias, step.open(sums), DecayCurve::Softplus);
            Delta { q, k, v, decay, beta }.rule(*heads, step.open(state)).0
        }))
    })
}

pub(crate) fn ssm(rig: &mut Rig) -> Model {
    let (groups, shared) = (rig.rng.int(1, 2), rig.rng.int(1, 3));
    let (dim, lengths) = (size(rig, 1, 70), lengths(rig));
    let most = lengths.into_iter().max().unwrap_or(0);
    let (n, inner, keys) = (groups * shared, groups * shared * dim, groups * most);
    let table = rig.table(inner + 2 * keys + n);
    let (neg_a, bias, skip) =
        (rig.vector(n, -2.0, -0.01), rig.vector(n, -2.0, 1.0), rig.vector(n, -1.0, 1.0));
    let scans = lengths.map(|state| {
        let heads = SsmHeads { heads: n, groups, dim, state };
        let limits = [(0.0, f32::INFINITY), (0.3, 0.8)][rig.rng.int(0, 1)];
        (heads, limits, record(rig, n * state * dim, inner + groups * state + n))
    });
    model(move |step| {
        let x = step.ids().embed(&table, 1.0);
        let [x, b, c, dt] = x.split([inner, keys, keys, n]);
        sum(scans.iter().map(|(heads, limits, memory)| {
            let [b, c] = [b, c].map(|x| x.columns(0, groups * heads.state));
            let limits = *limits;
            let scan = Scan { x, b, c, dt, neg_a: &neg_a, bias: &bias, skip: &skip, limits };
            scan.run(*heads, step.open(memory)).0
        }))
    })
}
