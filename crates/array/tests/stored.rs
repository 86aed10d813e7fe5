//! Types of paged states: how far attention over them may be from attention over f32, what is refused, what shows.
//!
//! With `M` the largest magnitude of a state and `e` the error of its type, every number is within `e M`: f16 `2^-11`,
//! bf16 `2^-8`, q8 `1/252`, q4 `1/14.8`. With queries of length 1 over keys of `n` numbers a score is off by `d = scale
//! sqrt(n) e M_k`, a weight by a factor of `exp(2 d)`, and a result by `e M_v + (exp(2 d) - 1) M_v`.

mod common;

use std::sync::Arc;

use common::{IDS, MOST_ROWS, Rng, WIDTHS, cpu, cut, net, random_matrix, script_key, script_keys};
use longrun_array::{
    AttentionSpec, Format, Limits, NullDevice, Runtime, State, StateKind, Step, Stored, Weight,
};

const HEADS: usize = 4;
const KV: usize = 2;
const SCALE: f32 = 0.7;

fn error(stored: Stored) -> f32 {
    match stored {
        Stored::F32 => 0.0,
        Stored::F16 => 1.0 / 2048.0,
        Stored::BF16 => 1.0 / 256.0,
        Stored::Q8 => 1.0 / 252.0,
        Stored::Q4 => 1.0 / 14.8,
    }
}

/// Results of all tokens, keys, values.
fn run(seed: u64, stored: Stored) -> ([Vec<f32>; 3], usize) {
    let mut rng = Rng::new(seed);
    let (dim, dv) = (rng.int(3, 70), rng.int(3, 70));
    let mut rt = cpu(common::threads(2));
    let cols = HEADS * dim + KV * (dim + dv);
    let table = random_matrix(&rt, &mut rng, common::spec(Format::F32, 1, IDS, cols)).0;
    let blocks = MOST_ROWS * WIDTHS[0];
    let state = |kind| Arc::new(State::entries(&rt, kind, blocks, 0, 1, stored).unwrap());
    let keys = state(StateKind::Keys { heads: KV, dim });
    let values = state(StateKind::Values { heads: KV, dim: dv });
    let spec = AttentionSpec { heads: HEADS, scale: SCALE, window: None, softcap: None };
    let (k_state, v_state) = (keys.clone(), values.clone());
    let model = net(move |step: Step<'_>| {
        let x = step.ids().embed(&table, 3.0);
        let [q, k, v] = x.split([HEADS * dim, KV * dim, KV * dv]);
        let (keys, values) = (step.open(&k_state).write(k), step.open(&v_state).write(v));
        step.emit(q.unit_norm(dim, 0.0, 1.0).attend(&keys, &values, spec).take_outputs());
    });
    rt.prepare(&model, &script_keys(), WIDTHS).unwrap();
    let sequences = common::sequences(&mut rng, 3, 120);
    let mut results = Vec::new();
    for step in cut(&mut rng, &sequences) {
        let rows: Vec<_> = step.into_iter().map(|(_, row)| row).collect();
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        let numbers = tokens * HEADS * dv;
        results.extend(common::run_step(&mut rt, script_key(&rows), &rows, numbers).unwrap());
    }
    ([results, keys.read(&rt).unwrap(), values.read(&rt).unwrap()], dim)
}

#[test]
fn attention_over_each_type_is_within_its_bound() {
    let peak = |x: &[f32]| x.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    let off = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).fold(0.0_f32, |off, (a, b)| off.max((a - b).abs()))
    };
    for seed in 1..=6 {
        let (want, dim) = run(seed, Stored::F32);
        let [_, k, v] = [0, 1, 2].map(|i| peak(&want[i]));
        let mut last = 0.0;
        for stored in Stored::ALL {
            let (got, _) = run(seed, stored);
            let [y, dk, dv] = [0, 1, 2].map(|i| off(&got[i], &want[i]));
            let e = error(stored);
            assert!(dk <= e * k && dv <= e * v, "{stored:?}: {} {} of {e}", dk / k, dv / v);
            let d = SCALE * (dim as f32).sqrt() * e * k;
            let bound = e * v + ((2.0 * d).exp() - 1.0) * v;
            assert!(y <= bound, "{stored:?}: {y} of {bound}");
            // A type that loses nothing would be another type.
            assert!(stored == Stored::F32 || y > 1e-5, "{stored:?}: {y}");
            last = y;
        }
        assert!(last > 1e-3, "4 bits as good as 32: {last}");
    }
}

/// The result of one token whose query is all ones and whose key and value are `x`.
fn one(x: &[f32], stored: Stored) -> Vec<f32> {
    let mut rt = cpu(common::threads(1));
    let dim = x.len();
    let row: Vec<u8> = vec![1.0; dim].iter().chain(x).flat_map(|x: &f32| x.to_le_bytes()).collect();
    let spec = common::spec(Format::F32, 1, 1, 2 * dim);
    let table = Weight::matrix(&rt, "x", spec, &row).unwrap();
    let kinds = [StateKind::Keys { heads: 1, dim }, StateKind::Values { heads: 1, dim }];
    let [keys, values] = kinds.map(|kind| State::entries(&rt, kind, 2, 0, 1, stored).unwrap());
    let spec = AttentionSpec { heads: 1, scale: 1.0, window: None, softcap: None };
    let model = net(|step: Step<'_>| {
        let [q, x] = step.ids().embed(&table, 1.0).split([dim, dim]);
        let (keys, values) = (step.open(&keys).write(x), step.open(&values).write(x));
        step.emit(q.attend(&keys, &values, spec).take_outputs());
    });
    rt.prepare(&model, &[common::one()], [1, 0, 0, 0]).unwrap();
    let mut row = common::token(0, 0);
    row.tables[0] = vec![1];
    common::run_step(&mut rt, common::one(), &[row], dim).unwrap()
}

#[test]
fn what_is_not_finite_shows_in_the_result() {
    for stored in Stored::ALL {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![0.25; 40];
            x[33] = bad;
            let y = one(&x, stored);
            assert!(!y[33].is_finite(), "{stored:?} {bad}: {y:?}");
        }
        assert_eq!(one(&[0.0; 40], stored), [0.0; 40], "{stored:?}");
        let small = one(&[f32::MIN_POSITIVE; 7], stored);
        assert!(small.iter().all(|x| x.abs() < 1e-37), "{stored:?}: {small:?}");
    }
}

#[test]
fn records_and_very_wide_keys_are_refused() {
    let mut rt = Runtime::new(Box::new(NullDevice::new()), Limits::default());
    let record = State::entries(&rt, StateKind::slots(4), 2, 0, 1, Stored::Q8);
    let error = record.err().unwrap().to_string();
    assert!(error.contains("q8") && error.contains("f32"), "{error}");
    let dim = 600;
    let table = Weight::matrix(&rt, "x", common::spec(Format::F32, 1, 1, dim), &[0; 2400]).unwrap();
    for (stored, fits) in [(Stored::F32, true), (Stored::Q8, false)] {
        let kinds = [StateKind::Keys { heads: 1, dim }, StateKind::Values { heads: 1, dim }];
        let [keys, values] = kinds.map(|kind| State::entries(&rt, kind, 2, 0, 1, stored).unwrap());
        let spec = AttentionSpec { heads: 1, scale: 1.0, window: None, softcap: None };
        let model = net(|step: Step<'_>| {
            let x = step.ids().embed(&table, 1.0);
            let (keys, values) = (step.open(&keys).write(x), step.open(&values).write(x));
            step.emit(x.attend(&keys, &values, spec).take_outputs());
        });
        let prepared = rt.prepare(&model, &[common::one()], [1, 0, 0, 0]);
        assert_eq!(prepared.is_ok(), fits, "{stored:?} {prepared:?}");
        if let Err(error) = prepared {
            assert!(error.to_string().contains("1200 as q8"), "{error}");
        }
    }
}
