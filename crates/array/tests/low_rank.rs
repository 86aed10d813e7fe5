//! Low-rank matrices beside linear layers: what rows with and without them get, alone and together, and what is refused.

mod common;

use common::{IDS, Rng, Row, cpu, machines, net, random_matrix, run_step, spec, token};
use longrun_array::{
    Format, Head, Key, LowRank, LowRankSpec, Outputs, Runtime, Step, TABLES, Weight,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const ROWS: usize = 43;
const COLS: usize = 96;
/// A rank that takes more scratch than the codes of a row do.
const ROOM: LowRankSpec = LowRankSpec { slots: 3, rank: 50, rows: ROWS, cols: COLS };

/// Two layers of a quantised matrix with a bias, one behind the other's first columns, and the same without low-rank
/// matrices.
struct Rig {
    rt: Runtime,
    table: (Weight, Vec<f32>),
    matrix: Weight,
    bias: Weight,
    beside: LowRank,
}

impl Rig {
    fn new(options: longrun_array::CpuOptions, format: Format) -> Self {
        let (rt, mut rng) = (cpu(options), Rng::new(11));
        let table = random_matrix(&rt, &mut rng, spec(Format::F32, 1, IDS, COLS));
        let matrix = random_matrix(&rt, &mut rng, spec(format, 1, ROWS, COLS)).0;
        let bias = Weight::vector(&rt, "bias", &rng.floats(ROWS, -1.0, 1.0)).unwrap();
        let beside = LowRank::new(&rt, ROOM).unwrap();
        Self { rt, table, matrix, bias, beside }
    }

    /// Rows of `[ids, adapter]` in one step; the plan has low-rank matrices or not.
    fn run(&mut self, with: bool, rows: &[(Vec<u32>, usize)]) -> Vec<Vec<f32>> {
        let tokens = rows.iter().map(|(ids, _)| ids.len()).sum();
        let key = Key::fit(tokens, rows.len(), Outputs::PerToken, Head::Logits).unwrap();
        let Self { rt, table, matrix, bias, beside } = self;
        let write = |step: Step<'_>| {
            let x = step.ids().embed(&table.0, 1.0);
            step.emit(match with {
                true => x.linear_beside(matrix, Some(bias), beside),
                false => x.linear(matrix, Some(bias)),
            });
        };
        rt.prepare(&net(write), &[key], [0; TABLES]).unwrap();
        let rows: Vec<Row> = (0..)
            .zip(rows)
            .map(|(slot, (ids, adapter))| Row {
                ids: ids.clone(),
                slot,
                adapter: *adapter,
                wanted: longrun_array::Wanted::All,
                ..token(0, 0)
            })
            .collect();
        let result = run_step(rt, key, &rows, tokens * ROWS).unwrap();
        result.chunks_exact(ROWS).map(<[f32]>::to_vec).collect()
    }

    fn fill(&mut self, slot: usize, rank: usize, seed: u64) -> [Vec<f32>; 2] {
        let mut rng = Rng::new(seed);
        let [a, b] = [rank * COLS, rank * ROWS].map(|n| rng.floats(n, -0.3, 0.3));
        self.beside.write(&mut self.rt, slot, &a, &b).unwrap();
        [a, b]
    }
}

fn of_row(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flat_map(|row| of_row(row)).collect()
}

/// What is added is the sum in f64, and rows without an adapter, or with that of an empty slot, have the bits of a model
/// that knows no adapters.
#[test]
fn each_row_gets_what_it_names() {
    for options in machines(true).chain(machines(false)) {
        for format in [Format::F32, Format::BF16, Format::Q8_0] {
            let mut rig = Rig::new(options, format);
            let pairs = [(1, rig.fill(1, 50, 5)), (3, rig.fill(3, 2, 6))];
            let rows: Vec<(Vec<u32>, usize)> =
                vec![(vec![5, 9], 1), (vec![77], 0), (vec![0, 96, 31], 3), (vec![8], 2)];
            let (got, plain) = (rig.run(true, &rows), rig.run(false, &without(&rows)));
            let tokens =
                rows.iter().flat_map(|(ids, adapter)| ids.iter().map(|id| (*id, *adapter)));
            for ((got, plain), (id, adapter)) in got.iter().zip(&plain).zip(tokens) {
                let Some((_, [a, b])) = pairs.iter().find(|(slot, _)| *slot == adapter) else {
                    assert_eq!(of_row(got), of_row(plain), "adapter {adapter}");
                    continue;
                };
                let x = &rig.table.1[id as usize * COLS..][..COLS];
                let rank = a.len() / COLS;
                for (n, (got, plain)) in got.iter().zip(plain).enumerate() {
                    let product = |(a, x): (&f32, &f32)| f64::from(*a) * f64::from(*x);
                    let hidden =
                        |r: usize| -> f64 { a[r * COLS..].iter().zip(x).map(product).sum() };
                    let added: f64 =
                        (0..rank).map(|r| f64::from(b[n * rank + r]) * hidden(r)).sum();
                    let error = (f64::from(*got) - f64::from(*plain) - added).abs();
                    assert!(error < 2e-6 * (1.0 + f64::from(got.abs())), "{got} {plain} {added}");
                    assert!(added.abs() > 1e-4 || n > 0, "it adds something");
                }
            }
        }
    }
}

fn without(rows: &[(Vec<u32>, usize)]) -> Vec<(Vec<u32>, usize)> {
    rows.iter().map(|(ids, _)| (ids.clone(), 0)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, rng_seed: RngSeed::Fixed(4), ..Default::default() })]

    /// A row's bits do not depend on its neighbours, on their adapters, or on the machine.
    #[test]
    fn rows_do_not_feel_neighbours(
        rows in proptest::collection::vec(
            (proptest::collection::vec(0u32..IDS as u32, 1..9), 0usize..4), 1..6),
        seed in 0u64..1000,
    ) {
        let mut first: Option<Vec<u32>> = None;
        for options in machines(false) {
            let mut rig = Rig::new(options, Format::Q8_0);
            (1..=3).for_each(|slot| _ = rig.fill(slot, 16 * slot, seed + slot as u64));
            let together = bits(&rig.run(true, &rows));
            let alone = rows.iter().flat_map(|row| bits(&rig.run(true, std::slice::from_ref(row))));
            prop_assert_eq!(&together, &alone.collect::<Vec<_>>());
            let first = first.get_or_insert_with(|| together.clone());
            prop_assert_eq!(&together, &*first);
        }
    }
}

/// Results are of tokens that do not stand where their results do.
#[test]
fn results_have_the_adapters_of_their_tokens() {
    let mut rig = Rig::new(common::threads(1), Format::BF16);
    (1..=3).for_each(|slot| _ = rig.fill(slot, slot, slot as u64));
    let rows = [(vec![1, 2, 3], 2), (vec![4], 0), (vec![5, 6], 3), (vec![7, 8, 9], 1)];
    let (all, last) = (rig.run(true, &rows), [2, 3, 5, 8]);
    let key = Key::fit(9, 4, Outputs::PerRow, Head::Logits).unwrap();
    let Rig { rt, table, matrix, bias, beside } = &mut rig;
    let write = |step: Step<'_>| {
        let x = step.ids().embed(&table.0, 1.0).take_outputs();
        step.emit(x.linear_beside(matrix, Some(bias), beside));
    };
    rt.prepare(&net(write), &[key], [0; TABLES]).unwrap();
    let rows = (0..).zip(rows);
    let rows: Vec<Row> =
        rows.map(|(slot, (ids, adapter))| Row { ids, slot, adapter, ..token(0, 0) }).collect();
    let got = run_step(rt, key, &rows, 4 * ROWS).unwrap();
    for (got, token) in got.chunks_exact(ROWS).zip(last) {
        assert_eq!(of_row(got), of_row(&all[token]), "token {token}");
    }
}

#[test]
fn a_slot_is_written_emptied_and_written_again() {
    let mut rig = Rig::new(common::threads(1), Format::F32);
    let rows = [(vec![3, 4], 2), (vec![5], 1)];
    let (live, empty) = (rig.rt.usage().live, rig.run(true, &rows));
    let live = live.buffers + 5; // the arena and the blocks of steps
    rig.fill(2, 50, 1);
    let first = rig.run(true, &rows);
    assert_ne!(bits(&first[..2]), bits(&empty[..2]));
    rig.fill(2, 4, 2);
    assert_ne!(bits(&rig.run(true, &rows)), bits(&first));
    rig.beside.write(&mut rig.rt, 2, &[], &[]).unwrap();
    assert_eq!(bits(&rig.run(true, &rows)), bits(&empty));
    rig.fill(2, 50, 1);
    assert_eq!(bits(&rig.run(true, &rows)), bits(&first));
    assert_eq!(rig.rt.usage().live.buffers, live);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut rig = Rig::new(common::threads(1), Format::F32);
    let rank = ROOM.rank;
    let mut refused = |slot, a: usize, b: usize, words: &str| {
        let error = rig.beside.write(&mut rig.rt, slot, &vec![1.0; a], &vec![1.0; b]).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(0, COLS, ROWS, "slot 0 of 3");
    refused(4, COLS, ROWS, "slot 4 of 3");
    refused(1, COLS + 1, ROWS, "97 and 43 numbers beside a [43, 96]");
    refused(1, COLS, 2 * ROWS, "96 and 86 numbers");
    refused(1, COLS, 0, "96 and 0 numbers");
    refused(1, (rank + 1) * COLS, (rank + 1) * ROWS, "a rank of 51, there is room for 50");
    let mut other = cpu(common::threads(1));
    let error = rig.beside.write(&mut other, 1, &[], &[]).unwrap_err();
    assert!(error.to_string().contains("another runtime"), "{error}");
    for spec in [
        LowRankSpec { slots: 0, ..ROOM },
        LowRankSpec { rank: 0, ..ROOM },
        LowRankSpec { rows: usize::MAX, ..ROOM },
        LowRankSpec { slots: 1 << 28, rank: 1 << 28, ..ROOM },
    ] {
        assert!(LowRank::new(&rig.rt, spec).is_err(), "{spec:?}");
    }
}

/// Without matrices beside a layer of a plan there is no adapter that a row could name.
#[test]
fn a_row_with_an_unknown_adapter_is_refused() {
    for (with, adapter, words) in
        [(true, 4, "adapter 4 is outside of 3"), (false, 1, "adapter 1 is outside of 0")]
    {
        let mut rig = Rig::new(common::threads(1), Format::F32);
        rig.run(with, &[(vec![1], 0)]);
        let key = Key::fit(1, 1, Outputs::PerToken, Head::Logits).unwrap();
        let error = run_step(&mut rig.rt, key, &[Row { adapter, ..token(1, 0) }], ROWS);
        assert!(error.as_ref().is_err_and(|e| e.to_string().contains(words)), "{error:?}");
        let huge = Row { adapter: usize::MAX, ..token(1, 0) };
        assert!(run_step(&mut rig.rt, key, &[huge], ROWS).is_err());
    }
}
