//! Cases of attention, plain and compressed: pooling, choosing, and looking at what was chosen.

use std::sync::Arc;

use longrun_array::{AttentionSpec, Seen, SeenValues, State, StateKind, Step, Tensor};

use crate::cases::{Model, Rig, model, sum};
use crate::common::MOST_WINDOW;
use crate::recurrent::record;

/// Keys with values, and keys that are their own, with windows, sinks, entries and choices, each seed another mixture.
pub(crate) fn attention(rig: &mut Rig) -> Model {
    let cases = [dense, latent, chosen_entries, chosen_positions];
    let rest = rig.rng.int(0, 3);
    let cases: Vec<Model> = (0..4).map(|i| cases[(i + rest) % 4](rig)).collect();
    model(move |step| {
        let parts: Vec<_> = cases.iter().map(|case| case.tensor(step)).collect();
        let least = parts.iter().map(|part| part.cols()).min().unwrap();
        sum(parts.into_iter().flat_map(|part| {
            let (n, last) = (part.cols() / least, part.cols() - least);
            (0..n).map(move |i| i * least).chain([last]).map(move |at| part.columns(at, least))
        }))
    })
}

fn spec(heads: usize, window: Option<usize>, softcap: Option<f32>) -> AttentionSpec {
    AttentionSpec { heads, scale: 0.3, window, softcap }
}

/// Everything before, and a window over a ring of blocks with sinks.
fn dense(rig: &mut Rig) -> Model {
    let (kv, shared) = (rig.rng.int(1, 2), rig.rng.int(1, 3));
    let (dim, dv, heads) = (rig.rng.int(3, 40), rig.rng.int(3, 40), kv * shared);
    let window = rig.rng.int(1, MOST_WINDOW);
    let table = rig.table(heads * dim + kv * (dim + dv));
    let [full, ring] = [0, 1].map(|table| rig.cache(kv, dim, dv, table));
    let sinks = rig.vector(heads, -2.0, 2.0);
    model(move |step| {
        let x = step.ids().embed(&table, 2.0);
        let [q, k, v] = x.split([heads * dim, kv * dim, kv * dv]);
        let attend = |[keys, values]: &[Arc<State>; 2], sinks, spec| {
            let (keys, values) = (step.open(keys).write(k), step.open(values).write(v));
            q.attend_to(Seen { sinks, ..Seen::new(&keys, &values) }, spec)
        };
        let ring = attend(&ring, Some(&sinks), spec(heads, Some(window), Some(5.0)));
        attend(&full, None, spec(heads, None, None)) + ring
    })
}

/// Keys that are their own values, under more heads than are taken together; then beside entries of whole groups.
fn latent(rig: &mut Rig) -> Model {
    let (heads, most) = [(1, 40), (3, 40), (24, 6)][rig.rng.int(0, 2)];
    let dim = rig.rng.int(3, most);
    let (dv, every) = (rig.rng.int(1, dim), rig.rng.int(2, 7));
    let window = rig.rng.int(1, MOST_WINDOW);
    let table = rig.table((heads + 2) * dim);
    let kind = StateKind::Keys { heads: 1, dim };
    let [full, ring] = [0, 1].map(|table| rig.keys(kind, table));
    let (entries, sinks) = (rig.entries(kind, every), rig.vector(heads, -2.0, 2.0));
    model(move |step| {
        let [q, k, e] = step.ids().embed(&table, 1.5).split([heads * dim, dim, dim]);
        let (full, ring) = (step.open(&full).write(k), step.open(&ring).write(k));
        let entries = step.open(&entries).write(e);
        let all = q.attend_to(Seen::latent(&full, dv), spec(heads, None, Some(5.0)));
        let mut seen = Seen::latent(&ring, dv);
        (seen.entries, seen.sinks) = (Some(&entries), Some(&sinks));
        all + q.attend_to(seen, spec(heads, Some(window), None))
    })
}

/// A window, then the entries that an indexer has chosen.
fn chosen_entries(rig: &mut Rig) -> Model {
    let (heads, dim) = (rig.rng.int(1, 4), rig.rng.int(3, 40));
    let (every, k) = (rig.rng.int(2, 4), rig.rng.int(1, 50));
    let window = rig.rng.int(1, MOST_WINDOW);
    let table = rig.table((heads + 2) * dim + INDEX);
    let kind = StateKind::Keys { heads: 1, dim };
    let (ring, entries) = (rig.keys(kind, 1), rig.entries(kind, every));
    let indexer = rig.entries(StateKind::Keys { heads: 1, dim: INDEX_DIM }, every);
    model(move |step| {
        let x = step.ids().embed(&table, 1.5);
        let [q, key, e, index] = x.split([heads * dim, dim, dim, INDEX]);
        let (ring, entries) = (step.open(&ring).write(key), step.open(&entries).write(e));
        let seen = Seen {
            entries: Some(&entries),
            chosen: Some(choose(step, index, &indexer, k)),
            ..Seen::latent(&ring, dim)
        };
        q.attend_to(seen, spec(heads, Some(window), None))
    })
}

/// Of all positions those that an indexer has chosen, one by one and in groups, with values and as their own.
fn chosen_positions(rig: &mut Rig) -> Model {
    let (heads, dim, dv) = (rig.rng.int(1, 4), rig.rng.int(3, 40), rig.rng.int(1, 20));
    let (every, k) = (rig.rng.int(2, 9), rig.rng.int(1, 50));
    let table = rig.table((heads + 1) * dim + dv + INDEX);
    let [keys, values] = rig.cache(1, dim, dv, 0);
    let kind = StateKind::Keys { heads: 1, dim: INDEX_DIM };
    let (ones, groups) = (rig.keys(kind, 0), rig.entries(kind, every));
    model(move |step| {
        let x = step.ids().embed(&table, 1.5);
        let [q, key, v, index] = x.split([heads * dim, dim, dv, INDEX]);
        let (keys, values) = (step.open(&keys).write(key), step.open(&values).write(v));
        let attend = |chosen, values| {
            let seen = Seen { values, chosen: Some(chosen), ..Seen::new(&keys, &keys) };
            q.attend_to(seen, spec(heads, None, None))
        };
        let own = attend(choose(step, index, &groups, k), SeenValues::Of(&values));
        let shared = attend(choose(step, index, &ones, 2 * k), SeenValues::Keys(dim));
        let (small, large) = (dv.min(dim), dv.max(dim));
        let wide = if dv > dim { own } else { shared };
        own.columns(0, heads * small)
            + shared.columns(0, heads * small)
            + wide.columns(heads * (large - small), heads * small)
    })
}

const INDEX_HEADS: usize = 3;
const INDEX_DIM: usize = 10;
/// Columns of an indexer: queries, weights and key.
const INDEX: usize = (INDEX_HEADS + 1) * INDEX_DIM + INDEX_HEADS;

fn choose<'s>(
    step: Step<'s>,
    x: Tensor<'s>,
    state: &Arc<State>,
    k: usize,
) -> longrun_array::Choice<'s> {
    let [q, key, weights] = x.split([INDEX_HEADS * INDEX_DIM, INDEX_DIM, INDEX_HEADS]);
    q.select(weights, &step.open(state).write(key), (INDEX_HEADS, k, 0.4))
}

/// More and fewer entries than are wanted, and equal scores: where all weights are 0, and of tokens that come again.
pub(crate) fn select(rig: &mut Rig) -> Model {
    let table = rig.table(INDEX);
    let kind = StateKind::Keys { heads: 1, dim: INDEX_DIM };
    let cases = [(1, rig.rng.int(1, 8)), (1, 300), (rig.rng.int(2, 5), 33)];
    let states: Vec<_> = cases.iter().map(|(every, k)| (rig.entries(kind, *every), *k)).collect();
    let equal = rig.entries(kind, 2);
    model(move |step| {
        let x = step.ids().embed(&table, 1.5);
        let [q, key, weights] = x.split([INDEX_HEADS * INDEX_DIM, INDEX_DIM, INDEX_HEADS]);
        let none = weights.apply(longrun_array::Map::Scale(0.0));
        let equal = q.select(none, &step.open(&equal).write(key), (INDEX_HEADS, 5, 1.0)).list();
        let lists = states.iter().map(|(state, k)| choose(step, x, state, *k).list());
        lists.fold(equal, |all, list| all.concat(list, 1))
    })
}

/// Groups of a few tokens and of more than a chunk, with and without overlap.
pub(crate) fn pool(rig: &mut Rig) -> Model {
    let cols = 2 * rig.rng.int(1, 80);
    let table = rig.table(2 * cols);
    let cases = [(1, true), (rig.rng.int(2, 5), true), (rig.rng.int(2, 5), false), (64, false)];
    let cases: Vec<_> = cases
        .into_iter()
        .map(|(every, overlap)| {
            let (bias, halves) = (rig.vector(every * cols, -1.0, 1.0), usize::from(overlap));
            let len = every * (2 * cols + halves * cols);
            (bias, record(rig, len, 2 * cols), (every, overlap))
        })
        .collect();
    model(move |step| {
        let [x, gate] = step.ids().embed(&table, 2.0).split([cols, cols]);
        let pools = cases.iter().map(|(bias, state, how)| {
            let (pooled, _) = x.pool(gate, bias, step.open(state), *how);
            (0..pooled.cols() / (cols / 2)).map(move |i| pooled.columns(i * cols / 2, cols / 2))
        });
        sum(pools.flatten())
    })
}
