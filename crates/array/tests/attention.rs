//! Attention over keys with values as models have it: many heads of one key, wide heads, windows, sinks, caps, every type
//! of states. A token's result has the bits of the same token read alone, by one thread of the plainest instruction
//! set, and is near its definition; blocks hold something that shows wherever nothing was written yet.

mod common;

use std::sync::Arc;

use common::{IDS, MOST_ROWS, MOST_WINDOW, Rng, Row, Sequence, WIDTHS, cpu, cut, net, sequences};
use longrun_array::matmul::Isa;
use longrun_array::{
    AttentionSpec, BLOCK, CpuOptions, Format, MatrixSpec, Seen, State, StateKind, Step, Stored,
    Weight,
};
use proptest::prelude::*;

/// One attention.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kv: usize,
    /// Query heads of each key head.
    shared: usize,
    dim: usize,
    dv: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    sinks: bool,
    /// The types of keys and of values.
    stored: [Stored; 2],
}

fn shapes() -> impl Strategy<Value = Shape> {
    let dims = || prop::sample::select(&[16, 20, 33, 64, 80, 128, 256][..]);
    let stored = prop::array::uniform2(prop::sample::select(&Stored::ALL[..]));
    let spec = (prop::option::of(1..MOST_WINDOW), prop::option::of(Just(5.0)), any::<bool>());
    (1..3_usize, 1..=16_usize, dims(), dims(), spec, stored).prop_map(
        |(kv, shared, dim, dv, (window, softcap, sinks), stored)| {
            let shared = shared.min(1024 / dim.max(dv) / kv).max(1);
            Shape { kv, shared, dim, dv, window, softcap, sinks, stored }
        },
    )
}

/// The id whose numbers are none.
const NONE: u32 = IDS as u32;

type Script = Vec<Vec<(usize, Row)>>;

/// Every result, by sequence and position.
fn run(shape: Shape, options: CpuOptions, sequences: &[Sequence], steps: &Script) -> Vec<Vec<f32>> {
    let mut rt = cpu(options);
    let Shape { kv, shared, dim, dv, window, softcap, sinks, stored } = shape;
    let heads = kv * shared;
    let mut rng = Rng::new(3);
    let cols = heads * dim + kv * (dim + dv);
    let mut numbers = rng.floats(IDS * cols, -2.0, 2.0);
    numbers.extend(vec![f32::NAN; cols]);
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let spec = MatrixSpec { format: Format::F32, experts: 1, rows: IDS + 1, cols };
    let embed = Weight::matrix(&rt, "embed", spec, &bytes).unwrap();
    let sink = Weight::vector(&rt, "sinks", &rng.floats(heads, -2.0, 2.0)).unwrap();
    let table = usize::from(window.is_some());
    let kinds = [StateKind::Keys { heads: kv, dim }, StateKind::Values { heads: kv, dim: dv }];
    let blocks = MOST_ROWS * WIDTHS[table];
    let state = |i: usize| State::entries(&rt, kinds[i], blocks, table, 1, stored[i]).unwrap();
    let [keys, values] = [0, 1].map(|i| Arc::new(state(i)));
    let model = net(move |step: Step<'_>| {
        let x = step.ids().embed(&embed, 1.0);
        let [q, k, v] = x.split([heads * dim, kv * dim, kv * dv]);
        let (keys, values) = (step.open(&keys).write(k), step.open(&values).write(v));
        let spec = AttentionSpec { heads, scale: 1.0 / (dim as f32).sqrt(), window, softcap };
        let seen = Seen { sinks: sinks.then_some(&sink), ..Seen::new(&keys, &values) };
        step.emit(q.attend_to(seen, spec).take_outputs());
    });
    rt.prepare(&model, &common::script_keys(), WIDTHS).unwrap();
    let width = heads * dv;
    for sequence in sequences {
        for past in (0..WIDTHS[0] * BLOCK).step_by(96) {
            let none = Sequence { ids: vec![NONE; past + 96], ..sequence.clone() };
            let row = none.row(past, past + 96);
            common::run_step(&mut rt, common::script_key([&row]), &[row], 96 * width).unwrap();
        }
    }
    let mut results = vec![Vec::new(); sequences.len()];
    for step in steps {
        let rows: Vec<_> = step.iter().map(|(_, row)| row.clone()).collect();
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        let key = common::script_key(&rows);
        let result = common::run_step(&mut rt, key, &rows, tokens * width).unwrap();
        let mut result = &result[..];
        for (sequence, row) in step {
            let (own, rest) = result.split_at(row.ids.len() * width);
            results[*sequence].extend_from_slice(own);
            result = rest;
        }
    }
    results
}

/// Each sequence alone, token by token.
fn one_by_one(sequences: &[Sequence]) -> Script {
    let tokens = sequences.iter().enumerate();
    tokens.flat_map(|(i, s)| (0..s.ids.len()).map(move |t| vec![(i, s.row(t, t + 1))])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(12) })]

    #[test]
    fn queries_that_go_together_have_the_bits_of_each_alone(
        shape in shapes(), seed: u64, rows in 1..=3_usize, threads in 1..4_usize,
    ) {
        let mut rng = Rng::new(seed);
        let sequences = sequences(&mut rng, rows, 80);
        let alone = one_by_one(&sequences);
        let plain = CpuOptions { threads: 1, isa: Some(Isa::SCALAR), exact: true, reference: false };
        let want = run(shape, plain, &sequences, &alone);
        prop_assert!(want.iter().flatten().all(|x| x.is_finite()), "unwritten places show");
        let steps = cut(&mut rng, &sequences);
        for isa in Isa::available() {
            let machine = CpuOptions { threads, isa: Some(isa), ..plain };
            let got = run(shape, machine, &sequences, &steps);
            let same = got.iter().flatten().map(|x| x.to_bits()).eq(want.iter().flatten().map(|x| x.to_bits()));
            prop_assert!(same, "other bits on {:?}", machine);
        }
        let defined = run(shape, common::definition(), &sequences, &alone);
        let peak = defined.iter().flatten().fold(1.0_f32, |peak, x| peak.max(x.abs()));
        for (got, defined) in want.iter().flatten().zip(defined.iter().flatten()) {
            prop_assert!((got - defined).abs() <= 2e-5 * peak, "{got}, defined as {defined}");
        }
    }
}
