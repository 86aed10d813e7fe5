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

pub(crate) fn delta_rule(rig: &mut Rig) -> Model {
    let (hk, shared) = (rig.rng.int(1, 2), rig.rng.int(1, 3));
    let heads = DeltaHeads { hk, hv: hk * shared, dk: rig.rng.int(2, 24), dv: rig.rng.int(1, 70) };
    let (hv, keys, values) = (heads.hv, heads.keys(), heads.values());
    let channels = hv * heads.dk;
    let table = rig.table(2 * keys + values + 2 * hv + channels);
    // A decay for each head, and one for each channel of a key.
    let rules = [hv, channels].map(|n| {
        let weights = (rig.vector(n, -0.2, -0.01), rig.vector(n, -1.0, 1.0));
        let inputs = keys + values + n + hv;
        (weights, record(rig, 2 * n, n), record(rig, channels * heads.dv, inputs))
    });
    model(move |step| {
        let x = step.ids().embed(&table, 1.0);
        let [q, k, v, b, head, channel] = x.split([keys, keys, values, hv, hv, channels]);
        let [q, k] = [q, k].map(|x| x.unit_norm(heads.dk, 1e-6, 1.0));
        let beta = b.apply(Map::Sigmoid);
        let parts = [head, channel].into_iter().zip(&rules);
        sum(parts.map(|(a, ((neg_a, bias), sums, state))| {
            let (decay, _) = a.decay(neg_a, bias, step.open(sums), DecayCurve::Softplus);
            Delta { q, k, v, decay, beta }.rule(heads, step.open(state)).0
        }))
    })
}

pub(crate) fn ssm(rig: &mut Rig) -> Model {
    let (groups, shared) = (rig.rng.int(1, 2), rig.rng.int(1, 3));
    let (dim, state) = (rig.rng.int(1, 70), rig.rng.int(1, 24));
    let heads = SsmHeads { heads: groups * shared, groups, dim, state };
    let (n, inner, keys) = (heads.heads, heads.heads * dim, groups * state);
    let table = rig.table(inner + 2 * keys + n);
    let (neg_a, bias, skip) =
        (rig.vector(n, -2.0, -0.01), rig.vector(n, -2.0, 1.0), rig.vector(n, -1.0, 1.0));
    let memories = [0; 2].map(|_| record(rig, n * state * dim, inner + keys + n));
    model(move |step| {
        let x = step.ids().embed(&table, 1.0);
        let [x, b, c, dt] = x.split([inner, keys, keys, n]);
        let limits = [(0.0, f32::INFINITY), (0.3, 0.8)];
        sum(limits.into_iter().zip(&memories).map(|(limits, memory)| {
            let scan = Scan { x, b, c, dt, neg_a: &neg_a, bias: &bias, skip: &skip, limits };
            scan.run(heads, step.open(memory)).0
        }))
    })
}
