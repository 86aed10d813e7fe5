//! What is refused, and in which words: a wrong step with the model's own line, wrong inputs with their numbers.

mod common;

use common::{net, null, one, run_step, spec, token};
use longrun_array::{
    AttentionSpec, DecayCurve, Delta, DeltaHeads, Error, ExpertsUp, Format, Head, Key, LowRank,
    LowRankSpec, Map, MatrixSpec, Outputs, Runtime, Scoring, State, StateKind, Step, TABLES,
    Wanted, Weight,
};

/// A runtime with one weight and state of each kind.
struct Rig {
    rt: Runtime,
    table: Weight,
    matrix: Weight,
    stack: Weight,
    vector: Weight,
    beside: LowRank,
    keys: State,
    values: State,
    slots: State,
    /// In a block table that no step has.
    lost: State,
    carried: State,
    /// Without a unit.
    nobody: State,
}

fn matrix(rt: &Runtime, spec: MatrixSpec) -> Weight {
    let bytes = vec![0; spec.experts * spec.rows * spec.format.row_bytes(spec.cols).unwrap()];
    Weight::matrix(rt, "matrix", spec, &bytes).unwrap()
}

/// Columns of the rig's tensors.
const COLS: usize = 12;

impl Rig {
    fn new() -> Self {
        let rt = null();
        let state = |kind| State::new(&rt, kind, 3, 0).unwrap();
        Self {
            table: matrix(&rt, spec(Format::F32, 1, 10, COLS)),
            matrix: matrix(&rt, spec(Format::F32, 1, 5, 8)),
            stack: matrix(&rt, spec(Format::F32, 4, 5, COLS)),
            vector: Weight::vector(&rt, "vector", &[0.0; 5]).unwrap(),
            beside: LowRank::new(&rt, LowRankSpec { slots: 2, rank: 3, rows: 5, cols: 7 }).unwrap(),
            keys: state(StateKind::Keys { heads: 3, dim: 4 }),
            values: state(StateKind::Values { heads: 3, dim: 4 }),
            slots: state(StateKind::slots(7)),
            lost: State::new(&rt, StateKind::Keys { heads: 1, dim: 4 }, 3, TABLES).unwrap(),
            carried: state(StateKind::Carry { cols: COLS }),
            nobody: State::new(&rt, StateKind::Carry { cols: COLS }, 0, 0).unwrap(),
            rt,
        }
    }
}

/// Records a step and asserts that it is refused at `line` of this file with these words.
fn refused(op: &str, line: u32, words: &str, write: impl for<'s> Fn(&Rig, Step<'s>)) {
    let mut rig = Rig::new();
    let mut rt = std::mem::replace(&mut rig.rt, null());
    let error = rt.prepare(&net(|step| write(&rig, step)), &[one()], [0; TABLES]).unwrap_err();
    let Error::Record { op: at_op, at, what } = &error else { panic!("{error}") };
    assert_eq!((*at_op, at.file(), at.line()), (op, file!(), line), "{error}");
    assert!(what.contains(words), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(file!()) && text.contains(op), "{text}");
    assert!(!rt.has_plan(one()));
}

fn x<'s>(rig: &Rig, step: Step<'s>) -> longrun_array::Tensor<'s> {
    step.ids().embed(&rig.table, 1.0)
}

const SPEC: AttentionSpec = AttentionSpec { heads: 3, scale: 1.0, window: None, softcap: None };
const WIDER: AttentionSpec = AttentionSpec { heads: 4, ..SPEC };
const BLIND: AttentionSpec = AttentionSpec { window: Some(0), ..SPEC };
const SOFTMAX: Scoring = Scoring::softmax(true);

#[test]
#[rustfmt::skip] // one line each: the line is part of what is checked
fn a_wrong_step_is_refused_with_the_line_that_wrote_it() {
    refused("linear", line!(), "x has 12 columns, the matrix wants 8", |r, s| { let _ = x(r, s).linear(&r.matrix, None); });
    refused("linear", line!(), "wants a matrix, has a vector of 5", |r, s| { let _ = x(r, s).linear(&r.vector, None); });
    refused("linear", line!(), "wants a vector, has a matrix", |r, s| { let _ = x(r, s).columns(0, 8).linear(&r.matrix, Some(&r.matrix)); });
    refused("linear", line!(), "a stack of experts", |r, s| { let _ = x(r, s).linear(&r.stack, None); });
    refused("linear", line!(), "low-rank matrices for [5, 7] beside [5, 8]", |r, s| { let _ = x(r, s).columns(0, 8).linear_beside(&r.matrix, None, &r.beside); });
    refused("embed", line!(), "a stack of experts", |r, s| { let _ = s.ids().embed(&r.stack, 1.0); });
    refused("embed", line!(), "wants a matrix", |r, s| { let _ = s.ids().embed(&r.vector, 1.0); });
    refused("embed", line!(), "another step input", |r, s| { let _ = s.positions().embed(&r.table, 1.0); });
    refused("rope_table", line!(), "wants a vector", |r, s| { let _ = s.positions().rope_table(&r.table, 1.0); });
    refused("columns", line!(), "columns 5..13 of 12", |r, s| { let _ = x(r, s).columns(5, 8); });
    refused("columns", line!(), "of 12", |r, s| { let _ = x(r, s).columns(usize::MAX, 2); });
    refused("add", line!(), "differ", |r, s| { let _ = x(r, s) + x(r, s).columns(0, 3); });
    refused("add", line!(), "differ", |r, s| { let _ = x(r, s) + x(r, s).take_outputs(); });
    refused("gate", line!(), "differ", |r, s| { let _ = x(r, s).gated(x(r, s).columns(0, 3), Map::Silu); });
    refused("take_outputs", line!(), "wants all tokens", |r, s| { let _ = x(r, s).take_outputs().take_outputs(); });
    refused("rms_norm", line!(), "12 columns in groups of 5", |r, s| { let _ = x(r, s).rms_norm(&r.vector, 5, 1e-5); });
    refused("rms_norm", line!(), "groups of 4 with a weight of 5", |r, s| { let _ = x(r, s).rms_norm(&r.vector, 4, 1e-5); });
    refused("unit_norm", line!(), "12 columns in groups of 5", |r, s| { let _ = x(r, s).unit_norm(5, 1e-5, 1.0); });
    refused("unit_norm", line!(), "groups of 0", |r, s| { let _ = x(r, s).unit_norm(0, 1e-5, 1.0); });
    refused("route", line!(), "13 of 12 experts", |r, s| { let _ = x(r, s).route(13, SOFTMAX); });
    refused("experts_up", line!(), "differ", |r, s| { let _ = x(r, s).experts_up(x(r, s).route(2, SOFTMAX), ExpertsUp::gated(&r.stack, &r.matrix, Map::Silu)); });
    refused("experts_up", line!(), "rows of", |r, s| { let _ = x(r, s).take_outputs().experts_up(x(r, s).route(2, SOFTMAX), ExpertsUp::gated(&r.stack, &r.stack, Map::Silu)); });
    refused("experts_down", line!(), "routing of 3 columns", |r, s| { let _ = x(r, s).experts_down(x(r, s).columns(0, 3), &r.stack, None); });
    refused("open", line!(), "the state is open already", |r, s| { let _ = (s.open(&r.keys), s.open(&r.keys)); });
    refused("write_kv", line!(), "wants a paged state", |r, s| { let _ = s.open(&r.slots).write(x(r, s)); });
    refused("write_kv", line!(), "x has 5 columns, the state wants 12", |r, s| { let _ = s.open(&r.keys).write(x(r, s).columns(0, 5)); });
    refused("write_kv", line!(), "wants all tokens", |r, s| { let _ = s.open(&r.keys).write(x(r, s).take_outputs()); });
    refused("write_kv", line!(), "wants a paged state", |r, s| { let _ = s.open(&r.carried).write(x(r, s)); });
    refused("carried", line!(), "wants what tokens carry", |r, s| { let _ = s.carried(&s.open(&r.slots)); });
    refused("carry", line!(), "wants what tokens carry", |r, s| { let _ = s.open(&r.keys).carry(x(r, s)); });
    refused("carry", line!(), "x has 5 columns, the state wants 12", |r, s| { let _ = s.open(&r.carried).carry(x(r, s).columns(0, 5)); });
    refused("carry", line!(), "wants all tokens", |r, s| { let _ = s.open(&r.carried).carry(x(r, s).take_outputs()); });
    refused("carry", line!(), "1 tokens, the state has 0 units", |r, s| { let _ = s.open(&r.nobody).carry(x(r, s)); });
    refused("attention", line!(), "wants keys and values, has", |r, s| { let _ = x(r, s).attend(&s.open(&r.keys), &s.open(&r.slots), SPEC); });
    refused("attention", line!(), "4 heads over 3", |r, s| { let _ = x(r, s).attend(&s.open(&r.keys), &s.open(&r.values), WIDER); });
    refused("attention", line!(), "a softcap of Some(0.0)", |r, s| { let _ = x(r, s).attend(&s.open(&r.keys), &s.open(&r.values), AttentionSpec { softcap: Some(0.0), ..SPEC }); });
    refused("attention", line!(), "a window of 0", |r, s| { let _ = x(r, s).attend(&s.open(&r.keys), &s.open(&r.values), BLIND); });
    refused("attention", line!(), "wants all tokens", |r, s| { let _ = x(r, s).take_outputs().attend(&s.open(&r.keys), &s.open(&r.values), SPEC); });
    refused("conv", line!(), "5 taps for 12 columns", |r, s| { let _ = x(r, s).conv(&r.vector, None, s.open(&r.slots), Map::Silu); });
    refused("conv", line!(), "wants slots of 0", |r, s| { let _ = x(r, s).columns(0, 5).conv(&r.vector, None, s.open(&r.slots), Map::Silu); });
    refused("open", line!(), "block table 4 of 4", |r, s| { let _ = s.open(&r.lost); });
    refused("decay", line!(), "wants slots of 24", |r, s| { let _ = x(r, s).decay(&r.vector, &r.vector, s.open(&r.slots), DecayCurve::Softplus); });
    refused("decay", line!(), "wants slots of 10", |r, s| { let _ = x(r, s).columns(0, 5).decay(&r.vector, &r.vector, s.open(&r.slots), DecayCurve::Softplus); });
    refused("decay", line!(), "wants all tokens", |r, s| { let _ = x(r, s).take_outputs().decay(&r.vector, &r.vector, s.open(&r.slots), DecayCurve::Softplus); });
    refused("delta_rule", line!(), "columns [12, 12, 12, 12, 12], wants [2, 2, 2, 2, 1]", |r, s| { let _ = delta(x(r, s)).rule(DeltaHeads { hk: 1, hv: 1, dk: 2, dv: 2 }, s.open(&r.slots)); });
    refused("delta_rule", line!(), "value heads per key head", |r, s| { let _ = fives(x(r, s)).rule(DeltaHeads { hk: 5, hv: 12, dk: 1, dv: 1 }, s.open(&r.slots)); });
    refused("emit", line!(), "a result already", |r, s| { s.emit(x(r, s)); s.emit(x(r, s)); });
}

fn delta(x: longrun_array::Tensor<'_>) -> Delta<'_> {
    Delta { q: x, k: x, v: x, decay: x, beta: x }
}

fn fives(x: longrun_array::Tensor<'_>) -> Delta<'_> {
    Delta { q: x.columns(0, 5), k: x.columns(0, 5), ..delta(x) }
}

/// A runtime with a plan for four tokens and rows: an embedding of ten ids and a slot state of three.
fn prepared(outputs: Outputs) -> (Runtime, Key, impl Drop) {
    let mut rt = null();
    let table = matrix(&rt, spec(Format::F32, 1, 10, 4));
    let taps = Weight::vector(&rt, "taps", &[1.0; 8]).unwrap();
    let state = State::new(&rt, StateKind::slots(4), 3, 0).unwrap();
    let key = Key::fit(2, 4, outputs, Head::Logits).unwrap();
    let write = |step: Step<'_>| {
        let (y, _) = step.ids().embed(&table, 1.0).conv(&taps, None, step.open(&state), Map::Silu);
        step.emit(y.take_outputs());
    };
    rt.prepare(&net(write), &[key], [2, 0, 0, 0]).unwrap();
    (rt, key, Keep((table, taps, state)))
}

/// Keeps what a plan names alive until the end of a test.
struct Keep<T>(#[allow(dead_code)] T);

impl<T> Drop for Keep<T> {
    fn drop(&mut self) {}
}

/// Asserts that a step of these rows is refused with these words, and that a good one works after.
fn inputs_refused(words: &str, rows: &[common::Row]) {
    let (mut rt, key, _keep) = prepared(Outputs::PerRow);
    let error = run_step(&mut rt, key, rows, 0).unwrap_err();
    assert!(matches!(error, Error::Inputs(_)), "{error}");
    assert!(error.to_string().contains(words), "{error}");
    run_step(&mut rt, key, &[token(1, 0)], 4).unwrap();
}

#[test]
fn wrong_inputs_are_refused_with_their_numbers() {
    use common::Row;
    let row = |slot| Row { slot, ..token(1, 0) };
    inputs_refused("id 10 is outside of a table of 10 rows", &[token(10, 0)]);
    inputs_refused("id 4294967295 is outside", &[token(u32::MAX, 0)]);
    inputs_refused("slot 3 is outside of 3 slots", &[row(3)]);
    inputs_refused("slot 2 belongs to two rows", &[row(2), row(0), row(2)]);
    inputs_refused("a step without tokens", &[]);
    inputs_refused("a row of 0 tokens", &[Row { ids: vec![], ..row(0) }]);
    inputs_refused("4 of 4 rows", &[row(0), row(1), row(2), row(0), row(1)]);
    inputs_refused("17 tokens", &[Row { ids: vec![0; 17], ..row(0) }]);
    let all = Row { ids: vec![0; 5], wanted: Wanted::All, ..row(0) };
    inputs_refused("5 results does not fit", &[all]);
    inputs_refused("is too large", &[token(0, u32::MAX as usize)]);
    inputs_refused("is too large", &[token(0, usize::MAX)]);
    let long = [vec![0; 3], vec![], vec![], vec![]];
    inputs_refused("table 0 has 3 entries, room is 2", &[Row { tables: long, ..row(0) }]);
}

#[test]
fn units_that_nobody_carries_are_refused() {
    let mut rt = null();
    let state = State::new(&rt, StateKind::Carry { cols: 4 }, 20, 0).unwrap();
    let write = |step: Step<'_>| step.emit(step.carried(&step.open(&state)).take_outputs());
    rt.prepare(&net(write), &[one()], [0; TABLES]).unwrap();
    // The first unit of a row is its past, as tests have it.
    run_step(&mut rt, one(), &[token(1, 19)], 4).unwrap();
    let error = run_step(&mut rt, one(), &[token(1, 20)], 4).unwrap_err().to_string();
    assert!(error.contains("21 carried tokens, there are 20"), "{error}");
}

#[test]
fn wanted_results_of_a_plan_without_any_are_refused() {
    let (mut rt, key, _keep) = prepared(Outputs::None);
    assert_eq!(rt.result_cols(key), 0);
    assert!(matches!(run_step(&mut rt, key, &[token(1, 0)], 0), Err(Error::Inputs(_))));
    let silent = common::Row { wanted: Wanted::None, ..token(1, 0) };
    run_step(&mut rt, key, &[silent], 0).unwrap();
}

#[test]
fn inputs_of_other_plans_are_refused() {
    let (mut rt, key, _keep) = prepared(Outputs::PerRow);
    let mut inputs = rt.inputs();
    // A larger key than any that was prepared has no room, and no plan.
    let large = Key::fit(512, 64, Outputs::PerToken, Head::Logits).unwrap();
    inputs.begin(large);
    assert!(matches!(inputs.push(token(1, 0).input()), Err(Error::Inputs(_))));
    assert!(matches!(rt.launch(&inputs), Err(Error::NotPrepared(k)) if k == large));
    // Tables of another width than the plan's.
    let mut narrow = longrun_array::Inputs::with_room(key, [1, 0, 0, 0], 256);
    narrow.begin(key);
    narrow.push(token(1, 0).input()).unwrap();
    assert!(matches!(rt.launch(&narrow), Err(Error::Inputs(_))));
}

#[test]
fn weights_that_do_not_fit_their_shape_are_refused() {
    let rt = null();
    for (spec, bytes) in [
        (spec(Format::F32, 1, 2, 3), 23),
        (spec(Format::F32, 1, 2, 3), 0),
        (spec(Format::Q4_0, 1, 2, 33), 36),
        (spec(Format::F32, 0, 2, 3), 0),
        (spec(Format::F32, 1, 0, 3), 0),
        (spec(Format::F32, 1, 2, 0), 0),
        (spec(Format::F32, usize::MAX, usize::MAX, 16), 64),
    ] {
        for rt in [&rt, &common::cpu(common::threads(1))] {
            let error = Weight::matrix(rt, "blk.3.up", spec, &vec![0; bytes]).err().unwrap();
            assert!(error.to_string().starts_with("weight blk.3.up: "), "{error}");
            assert_eq!(rt.usage().live.buffers, 0);
        }
    }
}

#[test]
fn states_that_no_machine_can_hold_are_refused() {
    for rt in [null(), common::cpu(common::threads(1))] {
        for units in [usize::MAX, usize::MAX / 8, 1 << 50] {
            let error = State::new(&rt, StateKind::slots(64), units, 0).err().unwrap();
            assert!(matches!(error, Error::Memory { tag: "state", .. }), "{error}");
        }
        assert_eq!(rt.usage().live.buffers, 0);
    }
}
