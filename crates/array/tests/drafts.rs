//! Tokens that may turn out wrong: whatever was drafted, verified, kept or forgotten, a token behind right ones has the
//! bits that it has when its sequence is read alone, token by token; and so have the records in the end.

#[allow(dead_code)]
#[path = "conformance/cases.rs"]
mod cases;
mod common;
#[path = "conformance/compressed.rs"]
mod compressed;
#[path = "conformance/recurrent.rs"]
mod recurrent;

use std::sync::Arc;

use cases::{Case, Model, Rig};
use common::drafts::{DEPTH, Draft, drafts, key};
use common::{CHUNK, MOST_ROWS, Rng, Row, Sequence, WIDTHS, cpu, script_keys, sequences};
use longrun_array::{
    CpuOptions, DecayCurve, Error, Limits, NullDevice, Runtime, State, StateKind, Stored,
};

/// Everything that keeps something between steps.
const CASES: &[(&str, Case)] = &[
    ("conv", recurrent::conv),
    ("decay", recurrent::decay),
    ("wide decay", wide_decay),
    ("delta_rule", recurrent::delta_rule),
    ("ssm", recurrent::ssm),
    ("pool", compressed::pool),
    ("attention", compressed::attention),
    ("select", compressed::select),
    ("write_kv", cases::write_kv),
];

/// Steps of so different sizes that running sums are rounded in a record.
fn wide_decay(rig: &mut Rig) -> Model {
    let cols = rig.rng.int(1, 40);
    let (table, neg_a) = (rig.table(cols), rig.vector(cols, -1.0, 0.0));
    let (bias, sums) = (rig.vector(cols, -1.0, 1.0), recurrent::record(rig, 2 * cols, cols));
    cases::model(move |step| {
        let x = step.ids().embed(&table, 30.0);
        x.decay(&neg_a, &bias, step.open(&sums), DecayCurve::Softplus).0
    })
}

fn prepared(case: Case, seed: u64, rt: Runtime) -> (Runtime, Vec<Arc<State>>, impl Sized) {
    let stored = Stored::ALL[seed as usize % Stored::ALL.len()];
    let mut rig = Rig::new(rt, Rng::new(seed), stored);
    let model = case(&mut rig);
    let Rig { mut rt, states, .. } = rig;
    rt.prepare(&model, &script_keys(), WIDTHS).unwrap();
    (rt, states, model)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

/// The bits of each known token, by sequence and position; then those of all records without their logs.
type Outcome = (Vec<Vec<Option<Vec<u32>>>>, Vec<Vec<u32>>);

fn run(
    case: Case,
    seed: u64,
    machine: CpuOptions,
    all: &[Sequence],
    script: &[Vec<Draft>],
) -> Outcome {
    let (mut rt, states, _model) = prepared(case, seed, cpu(machine));
    // Others had these slots and blocks before.
    let others: Vec<Row> = all.iter().map(|s| s.row(0, s.ids.len().min(CHUNK))).collect();
    common::run_step(&mut rt, common::script_key(&others), &others, 0).unwrap();
    let live = rt.usage().live;
    let mut known: Vec<_> = all.iter().map(|s| vec![None; s.ids.len()]).collect();
    for step in script {
        let rows: Vec<Row> = step.iter().map(|draft| draft.row.clone()).collect();
        let cols = rt.result_cols(key(step));
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        let result = common::run_step(&mut rt, key(step), &rows, tokens * cols).unwrap();
        let mut results = result.chunks_exact(cols).map(bits);
        for Draft { sequence, row, right } in step {
            let results: Vec<_> = results.by_ref().take(row.ids.len()).collect();
            for (i, got) in results.into_iter().take(*right).enumerate() {
                let known = &mut known[*sequence][row.past + i];
                let want = known.get_or_insert_with(|| got.clone());
                assert!(*want == got, "sequence {sequence}, token {}: other bits", row.past + i);
            }
        }
    }
    assert_eq!(rt.usage().live, live);
    let records = states.iter().filter_map(|state| {
        let StateKind::Slots { len, .. } = state.kind() else { return None };
        let numbers = state.read(&rt).unwrap();
        let unit = state.kind().unit();
        Some(numbers.chunks_exact(unit).flat_map(|slot| bits(&slot[..len])).collect())
    });
    (known, records.collect())
}

/// Each sequence alone, token by token.
fn plainly(all: &[Sequence]) -> Vec<Vec<Draft>> {
    let one = |sequence: usize, t| Draft { sequence, row: all[sequence].row(t, t + 1), right: 1 };
    let tokens = (0..all.len()).flat_map(|i| (0..all[i].ids.len()).map(move |t| (i, t)));
    tokens.map(|(i, t)| vec![one(i, t)]).collect()
}

#[test]
fn drafts_change_no_bit() {
    for (name, case) in CASES {
        for seed in 1..=4 {
            let mut rng = Rng::new(100 + seed);
            let rows = rng.int(1, MOST_ROWS);
            let all = sequences(&mut rng, rows, 160);
            let machines: Vec<_> = common::machines(true).collect();
            let machine = machines[rng.int(0, machines.len() - 1)];
            for machine in [machine, common::definition()] {
                let want = run(*case, seed, machine, &all, &plainly(&all));
                for _ in 0..2 {
                    let got = run(*case, seed, machine, &all, &drafts(&mut rng, &all));
                    assert!(want.0 == got.0, "{name}, seed {seed}, {machine:?}: other results");
                    assert!(want.1 == got.1, "{name}, seed {seed}, {machine:?}: other records");
                }
            }
        }
    }
}

/// All that a row can do to a log comes up, often enough.
#[test]
fn scripts_cover_what_they_should() {
    let mut counts = [0; 7];
    for seed in 1..=4 {
        let mut rng = Rng::new(100 + seed);
        let all = sequences(&mut rng, MOST_ROWS, 160);
        for step in drafts(&mut rng, &all) {
            let all_kinds =
                step.iter().any(|d| d.row.drafts == 0) && step.iter().any(|d| d.row.drafts > 0);
            counts[0] += usize::from(all_kinds);
            for Draft { row, right, .. } in step {
                let (n, peek) = (row.ids.len(), row.drafts == row.logged + row.ids.len());
                counts[1] += usize::from(peek && row.logged > 0);
                counts[2] += usize::from(!peek && row.drafts == n && row.logged > 0);
                counts[3] +=
                    usize::from(!peek && row.drafts > 0 && row.drafts < n && row.logged > 0);
                counts[4] += usize::from(row.drafts == 0 && row.logged > 0 && n > DEPTH);
                counts[5] += usize::from(row.drafts == DEPTH && right < n);
                counts[6] += usize::from(peek && right == 0 && row.past == row.logged);
            }
        }
    }
    assert!(counts.iter().all(|n| *n > 3), "{counts:?}");
}

/// Logs are as long as they are, and a row can't name tokens that are not there.
#[test]
fn what_no_log_can_hold_is_refused() {
    let null = Runtime::new(Box::new(NullDevice::new()), Limits::default());
    let (mut rt, _states, _model) = prepared(recurrent::conv, 1, null);
    let s = &sequences(&mut Rng::new(1), 1, 160)[0];
    let mut refused = |past, n, logged, drafts, words: &str| {
        let row = Row { logged, drafts, past, ids: vec![1; n], ..s.row(0, 1) };
        let rows = [row];
        let step = common::run_step(&mut rt, common::script_key(&rows), &rows, 0);
        match step {
            Err(Error::Inputs(what)) if !words.is_empty() => {
                assert!(what.contains(words), "{what}")
            }
            Ok(_) if words.is_empty() => {}
            other => panic!("{past} {n} {logged} {drafts}: {other:?}"),
        }
    };
    refused(9, DEPTH, 0, DEPTH, "");
    refused(9, 1, DEPTH, 0, "");
    refused(9, 1, DEPTH - 1, DEPTH, "");
    refused(9, 1, DEPTH, DEPTH + 1, "a log of 6 tokens, there is room for 5");
    refused(9, DEPTH + 2, 0, DEPTH + 1, "a log of 6 tokens, there is room for 5");
    refused(9, 1, DEPTH + 1, 0, "a log of 6 tokens, there is room for 5");
    refused(2, 1, 3, 0, "3 logged tokens of 2 before");
    refused(9, 2, 3, 3, "2 confirmed tokens of 3 logged and 2 more");
    refused(9, 1, 0, 2, "confirmed tokens of 0 logged");
    refused(9, 1, 2, 3, "");
}
