//! One small step an operation: random shapes, random weights, states where it wants them.

use std::sync::Arc;

use longrun_array::{
    ExpertsUp, Format, Glu, LowRank, LowRankSpec, Map, Record, RopeHeads, Runtime, Score, Scoring,
    State, StateKind, Step, Stored, Tensor, Weight,
};

use crate::common::{IDS, MOST_CARRIED, MOST_ROWS, Rng, WIDTHS, random_matrix, spec};

/// Where a case makes its weights and states.
pub(crate) struct Rig {
    pub(crate) rt: Runtime,
    pub(crate) rng: Rng,
    /// The type of paged states.
    pub(crate) stored: Stored,
    /// All states, to be compared after the last step.
    pub(crate) states: Vec<Arc<State>>,
    /// Slots of low-rank matrices, which rows take in turn.
    pub(crate) adapters: usize,
}

/// Makes the step of a case.
pub(crate) type Case = fn(&mut Rig) -> Model;

/// The step of a case; its tensor is the result.
pub(crate) struct Model(Box<dyn for<'s> Fn(Step<'s>) -> Tensor<'s>>);

impl Model {
    /// Writes the step as a part of another.
    pub(crate) fn tensor<'s>(&self, step: Step<'s>) -> Tensor<'s> {
        (self.0)(step)
    }
}

impl Record for Model {
    fn record<'s>(&self, step: Step<'s>) {
        step.emit((self.0)(step));
    }
}

pub(crate) fn model(f: impl for<'s> Fn(Step<'s>) -> Tensor<'s> + 'static) -> Model {
    Model(Box::new(f))
}

/// Every function of one number.
const MAPS: [Map; 6] =
    [Map::Silu, Map::GeluTanh, Map::Sigmoid, Map::Relu2, Map::Scale(-1.5), Map::Softcap(0.7)];

impl Rig {
    pub(crate) fn new(rt: Runtime, rng: Rng, stored: Stored) -> Self {
        Self { rt, rng, stored, states: Vec::new(), adapters: 0 }
    }

    pub(crate) fn matrix(
        &mut self,
        format: Format,
        experts: usize,
        rows: usize,
        cols: usize,
    ) -> Weight {
        random_matrix(&self.rt, &mut self.rng, spec(format, experts, rows, cols)).0
    }

    /// What tokens look their `cols` numbers up in.
    pub(crate) fn table(&mut self, cols: usize) -> Weight {
        self.matrix(Format::F32, 1, IDS, cols)
    }

    pub(crate) fn vector(&mut self, len: usize, low: f32, high: f32) -> Weight {
        Weight::vector(&self.rt, "vector", &self.rng.floats(len, low, high)).unwrap()
    }

    /// Random pairs of random ranks; the second slot is empty.
    pub(crate) fn low_rank(&mut self, rows: usize, cols: usize) -> LowRank {
        let (slots, rank) = (3, self.rng.int(1, 20));
        let beside = LowRank::new(&self.rt, LowRankSpec { slots, rank, rows, cols }).unwrap();
        for slot in [1, 3] {
            let rank = self.rng.int(1, rank);
            let [a, b] = [rank * cols, rank * rows].map(|n| self.rng.floats(n, -0.5, 0.5));
            beside.write(&mut self.rt, slot, &a, &b).unwrap();
        }
        self.adapters = slots;
        beside
    }

    pub(crate) fn state(&mut self, kind: StateKind, units: usize, table: usize) -> Arc<State> {
        let stored = if kind.is_paged() { self.stored } else { Stored::F32 };
        let state = State::entries(&self.rt, kind, units, table, 1, stored);
        let state = Arc::new(state.unwrap());
        self.states.push(state.clone());
        state
    }

    /// Keys without values.
    pub(crate) fn keys(&mut self, kind: StateKind, table: usize) -> Arc<State> {
        self.state(kind, MOST_ROWS * WIDTHS[table], table)
    }

    /// A state with an entry for each `every` tokens, with room for the longest sequence.
    pub(crate) fn entries(&mut self, kind: StateKind, every: usize) -> Arc<State> {
        let blocks = MOST_ROWS * WIDTHS[0];
        let state = State::entries(&self.rt, kind, blocks, 0, every, self.stored);
        let state = Arc::new(state.unwrap());
        self.states.push(state.clone());
        state
    }

    pub(crate) fn cache(
        &mut self,
        heads: usize,
        dim: usize,
        dv: usize,
        table: usize,
    ) -> [Arc<State>; 2] {
        let blocks = MOST_ROWS * WIDTHS[table];
        let kinds = [StateKind::Keys { heads, dim }, StateKind::Values { heads, dim: dv }];
        kinds.map(|kind| self.state(kind, blocks, table))
    }
}

/// The sum of some tensors of one shape.
pub(crate) fn sum<'s>(parts: impl IntoIterator<Item = Tensor<'s>>) -> Tensor<'s> {
    parts.into_iter().reduce(|a, b| a + b).unwrap()
}

pub(crate) fn embed(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 70);
    let table = rig.table(cols);
    model(move |step| step.ids().embed(&table, 1.7))
}

pub(crate) fn rope_table(rig: &mut Rig) -> Model {
    let len = rig.rng.int(1, 20);
    let freq = rig.vector(len, 1e-3, 1.0);
    model(move |step| step.positions().rope_table(&freq, 0.9))
}

pub(crate) fn columns(rig: &mut Rig) -> Model {
    let (start, cols) = (rig.rng.int(2, 20), rig.rng.int(1, 40));
    let table = rig.table(start + cols + 3);
    model(move |step| {
        let x = step.ids().embed(&table, 1.0);
        x.columns(1, start + cols).columns(start - 1, cols)
    })
}

pub(crate) fn take_outputs(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 70);
    let table = rig.table(cols);
    model(move |step| step.ids().embed(&table, 1.0).take_outputs())
}

pub(crate) fn add(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 70);
    let table = rig.table(2 * cols + 1);
    model(move |step| {
        let [a, _, b] = step.ids().embed(&table, 1.0).split([cols, 1, cols]);
        a + b
    })
}

pub(crate) fn apply(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 70);
    let table = rig.table(6 * cols);
    model(move |step| {
        let parts = step.ids().embed(&table, 4.0).split([cols; 6]);
        sum(parts.into_iter().zip(MAPS).map(|(x, f)| x.apply(f)))
    })
}

pub(crate) fn gate(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 70);
    let table = rig.table(9 * cols);
    model(move |step| {
        let x = step.ids().embed(&table, 4.0);
        let [x, gates @ ..]: [Tensor<'_>; 9] = x.split([cols; 9]);
        let rest = [Glu::Clipped { limit: 1.5 }, Glu::Shifted { limit: 1.5, alpha: 1.7 }];
        let glus = MAPS.into_iter().map(Glu::Of).chain(rest);
        let whole = gates.into_iter().zip(glus.clone()).map(|(gate, f)| x.gated(gate, f));
        let scalar = gates.into_iter().zip(glus).map(|(g, f)| x.gated(g.columns(0, 1), f));
        sum(whole.chain(scalar))
    })
}

/// A group's width and how many there are.
fn groups(rig: &mut Rig) -> (usize, usize) {
    (rig.rng.int(1, 40), rig.rng.int(1, 4))
}

pub(crate) fn rms_norm(rig: &mut Rig) -> Model {
    let (group, count) = groups(rig);
    let table = rig.table(group * count);
    let [one, all] = [1, count].map(|n| rig.vector(n * group, -2.0, 2.0));
    model(move |step| {
        let x = step.ids().embed(&table, 3.0);
        x.rms_norm(&one, group, 1e-5) + x.rms_norm(&all, group, 1e-5)
    })
}

pub(crate) fn layer_norm(rig: &mut Rig) -> Model {
    let (group, count) = groups(rig);
    let [weight, bias] = [0; 2].map(|_| rig.vector(group, -2.0, 2.0));
    let table = rig.table(group * count);
    model(move |step| step.ids().embed(&table, 3.0).layer_norm(&weight, &bias, 1e-5))
}

pub(crate) fn position_scale(_: &mut Rig) -> Model {
    model(move |step| step.positions().scale(0.3, 7))
}

pub(crate) fn concat(rig: &mut Rig) -> Model {
    let (groups, a, b) = (rig.rng.int(1, 4), rig.rng.int(1, 20), rig.rng.int(1, 20));
    let table = rig.table(groups * (a + b));
    model(move |step| {
        let [a, b] = step.ids().embed(&table, 3.0).split([groups * a, groups * b]);
        a.concat(b, groups)
    })
}

pub(crate) fn grouped_linear(rig: &mut Rig) -> Model {
    let (groups, rows, cols) = (rig.rng.int(1, 4), rig.rng.int(1, 90), rig.rng.int(1, 70));
    let (table, stack) = (rig.table(groups * cols), rig.matrix(Format::F32, groups, rows, cols));
    model(move |step| step.ids().embed(&table, 1.0).grouped_linear(&stack))
}

pub(crate) fn gated_rms_norm(rig: &mut Rig) -> Model {
    let (group, count) = groups(rig);
    let (table, weight) = (rig.table(2 * group * count), rig.vector(group, -2.0, 2.0));
    model(move |step| {
        let [x, gate] = step.ids().embed(&table, 3.0).split([group * count; 2]);
        x.gated_rms_norm(gate, &weight, group, 1e-5, Map::Silu)
            + x.gated_rms_norm(gate, &weight, group, 1e-5, Map::Sigmoid)
    })
}

pub(crate) fn unit_norm(rig: &mut Rig) -> Model {
    let (group, count) = groups(rig);
    let table = rig.table(group * count);
    model(move |step| step.ids().embed(&table, 3.0).unit_norm(group, 1e-6, 0.3))
}

pub(crate) fn linear(rig: &mut Rig) -> Model {
    let (rows, cols) = (rig.rng.int(1, 90), rig.rng.int(1, 70));
    let table = rig.table(cols);
    let (with, without) =
        (rig.matrix(Format::F32, 1, rows, cols), rig.matrix(Format::BF16, 1, rows, cols));
    let bias = rig.vector(rows, -1.0, 1.0);
    let beside = [0; 2].map(|_| rig.low_rank(rows, cols));
    model(move |step| {
        let x = step.ids().embed(&table, 1.0);
        // Rows of tokens, and rows of results.
        let y = x.linear_beside(&with, Some(&bias), &beside[0]).take_outputs();
        y + x.take_outputs().linear_beside(&without, None, &beside[1])
    })
}

pub(crate) fn route(rig: &mut Rig) -> Model {
    let (experts, k) = (rig.rng.int(5, 40), rig.rng.int(1, 4));
    let (table, gain) = (rig.table(experts), rig.vector(experts, 0.5, 2.0));
    // Experts by id; the same one may stand twice in a row.
    let numbers: Vec<f32> = (0..IDS * k).map(|_| rig.rng.int(0, experts - 1) as f32).collect();
    let ids = Weight::vector(&rig.rt, "ids", &numbers).unwrap();
    model(move |step| {
        let x = step.ids().embed(&table, 5.0);
        let ways = [true, false].map(Scoring::softmax);
        let gained = x.route_with_gain(k, Scoring::softmax(true), &gain);
        let tabled = x.route_by_id(k, SOFTPLUS, &ids);
        sum(ways.map(|scoring| x.route(k, scoring)).into_iter().chain([gained, tabled]))
    })
}

const SOFTMAX: Scoring = Scoring::softmax(true);

const SOFTPLUS: Scoring =
    Scoring { score: Score::SqrtSoftplus, groups: None, renormalize: true, scale: 1.5 };

pub(crate) fn experts_up(rig: &mut Rig) -> Model {
    let (experts, k) = (rig.rng.int(3, 9), rig.rng.int(1, 3));
    let (inner, cols) = (rig.rng.int(1, 90), rig.rng.int(1, 50));
    let table = rig.table(cols + experts);
    let [gate, up] = [0; 2].map(|_| rig.matrix(Format::F32, experts, inner, cols));
    let [gate_bias, up_bias] = [0; 2].map(|_| rig.vector(experts * inner, -1.0, 1.0));
    model(move |step| {
        let [x, logits] = step.ids().embed(&table, 1.0).split([cols, experts]);
        let routing = logits.route(k, SOFTMAX);
        let (bias, f) = (Some([&gate_bias, &up_bias]), Glu::Shifted { limit: 2.0, alpha: 1.7 });
        let ways = [
            ExpertsUp::gated(&gate, &up, Map::Silu),
            ExpertsUp { gate: Some(&gate), up: &up, bias, f },
            ExpertsUp { gate: None, up: &up, bias: None, f: Glu::Of(Map::Relu2) },
        ];
        sum(ways.into_iter().map(|way| x.experts_up(routing, way)))
    })
}

pub(crate) fn experts_down(rig: &mut Rig) -> Model {
    let (experts, k) = (rig.rng.int(3, 9), rig.rng.int(1, 3));
    let (inner, rows) = (rig.rng.int(1, 50), rig.rng.int(1, 90));
    let table = rig.table(k * inner + experts);
    let down = rig.matrix(Format::F32, experts, rows, inner);
    let bias = rig.vector(experts * rows, -1.0, 1.0);
    model(move |step| {
        let [x, logits] = step.ids().embed(&table, 1.0).split([k * inner, experts]);
        let routing = logits.route(k, SOFTMAX);
        x.experts_down(routing, &down, None) + x.experts_down(routing, &down, Some(&bias))
    })
}

pub(crate) fn rope(rig: &mut Rig) -> Model {
    let (heads, pairs, still) = (rig.rng.int(1, 4), rig.rng.int(1, 12), rig.rng.int(0, 5));
    let dim = 2 * pairs + still;
    let (table, freq) = (rig.table(heads * dim), rig.vector(pairs, 1e-3, 1.0));
    model(move |step| {
        let turns = step.positions().rope_table(&freq, 1.0);
        let x = step.ids().embed(&table, 1.0);
        let at = |start, interleaved, inverse| {
            x.rope_at(turns, RopeHeads { dim, start, interleaved, inverse })
        };
        let ends = [at(still, false, true), at(still, true, true), at(still / 2, true, false)];
        sum([x.rope(turns, dim, false), x.rope(turns, dim, true)].into_iter().chain(ends))
    })
}

/// Reads what the last step has left, and leaves something else.
pub(crate) fn carry(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 70);
    let table = rig.table(cols);
    let state = rig.state(StateKind::Carry { cols }, 256 + MOST_CARRIED, 0);
    model(move |step| {
        let state = step.open(&state);
        let (x, before) = (step.ids().embed(&table, 1.7), step.carried(&state));
        let _ = state.carry(x + before.apply(Map::Scale(0.5)));
        before
    })
}

pub(crate) fn write_kv(rig: &mut Rig) -> Model {
    let (heads, dim, dv) = (rig.rng.int(1, 3), rig.rng.int(1, 30), rig.rng.int(1, 30));
    let table = rig.table(heads * (dim + dv));
    let states: Vec<_> = [0, 1].map(|table| rig.cache(heads, dim, dv, table)).into();
    let kind = StateKind::Keys { heads, dim };
    let entries = [rig.rng.int(2, 5), 64].map(|every| rig.entries(kind, every));
    model(move |step| {
        let x = step.ids().embed(&table, 1.0);
        let [k, v] = x.split([heads * dim, heads * dv]);
        for [keys, values] in &states {
            let _ = (step.open(keys).write(k), step.open(values).write(v));
        }
        entries.iter().for_each(|state| drop(step.open(state).write(k)));
        x
    })
}

pub(crate) fn emit(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 70);
    let table = rig.table(cols + 2);
    model(move |step| step.ids().embed(&table, 1.0).columns(1, cols))
}
