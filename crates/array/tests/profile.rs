//! What steps cost, beside numbers worked out by hand; and profiles, whose parts add up.

mod common;

use std::time::{Duration, Instant};

use common::deferred::Deferred;
use common::small::{COLS, at, prepared, replay};
use common::{IDS, Net, cpu, net, null, one, random_matrix, spec, threads};
use longrun_array::{
    AttentionSpec, Cost, CpuOptions, ExpertsUp, Format, Head, Key, Limits, LiveRow, Log, LowRank,
    LowRankSpec, Map, Outputs, Runtime, Scoring, State, StateKind, Step, StepCost, Stored, TABLES,
    Tensor, Weight,
};

fn matrix(rt: &Runtime, format: Format, experts: usize, rows: usize, cols: usize) -> Weight {
    random_matrix(rt, &mut common::Rng::new(1), spec(format, experts, rows, cols)).0
}

/// What a step costs that does `write` to embedded ids and has results.
fn cost<F>(rt: &mut Runtime, cols: usize, rows: &[LiveRow], write: F) -> StepCost
where
    F: for<'s> Fn(Step<'s>, Tensor<'s>) -> Tensor<'s>,
{
    let table = matrix(rt, Format::F32, 1, IDS, cols);
    let tokens = rows.iter().map(|row| row.tokens).sum();
    let key = Key::fit(tokens, rows.len(), Outputs::PerRow, Head::Logits).unwrap();
    let model: Net<_> = net(move |step| {
        let x = step.ids().embed(&table, 1.0);
        step.emit(write(step, x).take_outputs());
    });
    let widths = std::array::from_fn::<_, TABLES, _>(|i| if i == 0 { 2 } else { 0 });
    rt.prepare(&model, &[key], widths).unwrap();
    assert_eq!(rt.cost(one(), rows).is_some(), key == one());
    rt.cost(key, rows).unwrap()
}

#[test]
fn products_cost_what_they_read_and_multiply() {
    let rows = [LiveRow::reading(3, 0, 1), LiveRow::reading(1, 40, 1)];
    let run = |mut rt: Runtime| {
        let layer = matrix(&rt, Format::Q8_0, 1, 64, 256);
        let bias = Weight::vector(&rt, "bias", &[0.0; 64]).unwrap();
        let head = matrix(&rt, Format::F32, 1, 10, 64);
        let table = matrix(&rt, Format::F32, 1, IDS, 256);
        let key = Key::fit(4, 2, Outputs::PerRow, Head::Logits).unwrap();
        let model = net(move |step| {
            let x = step.ids().embed(&table, 1.0).linear(&layer, Some(&bias));
            step.emit(x.take_outputs().linear(&head, None));
        });
        rt.prepare(&model, &[key], [0; TABLES]).unwrap();
        rt.cost(key, &rows).unwrap()
    };
    // 4 rows of the table, 64 rows of 8 blocks of 34 bytes, the bias, 10 rows of 64 numbers.
    let weight_bytes = 4 * 1024 + 64 * 8 * 34 + 256 + 2560;
    // Of 4 tokens: embedded; in and out; of 2 results: taken, in and out, given.
    let arena_bytes = 4 * 4 * (256 + 256 + 64) + 2 * 4 * (64 + 64 + 64 + 10 + 10 + 10);
    let (ops, flops) = (4 * 64 * 256, 4 * 64 + 2 * 2 * 10 * 64);
    let want = Cost { weight_bytes, state_bytes: 0, arena_bytes, ops, flops };
    // Room for 16 tokens of 256 and 64 numbers; results lie where the first were.
    let arena_len = 16 * (256 + 64) * 4;
    assert_eq!(run(null()), StepCost { launches: 5, arena_len, cost: want });
    // Panels have 16 rows.
    let packed = Cost { weight_bytes: weight_bytes + 6 * 64 * 4, ..want };
    assert_eq!(run(cpu(threads(1))).cost, packed);
    let exact = Cost { ops: 0, flops: flops + 2 * ops, ..packed };
    assert_eq!(run(cpu(CpuOptions { exact: true, ..threads(1) })).cost, exact);
}

#[test]
fn attention_costs_what_tokens_see() {
    // Tokens at 2, 3 and 4.
    let rows = [LiveRow::reading(3, 2, 1)];
    let run = |window, stored: Stored| {
        let mut rt = null();
        let state = |kind| State::entries(&rt, kind, 4, 0, 1, stored).unwrap();
        let keys = state(StateKind::Keys { heads: 2, dim: 16 });
        let values = state(StateKind::Values { heads: 2, dim: 16 });
        let q = matrix(&rt, Format::F32, 1, 64, 32);
        let spec = AttentionSpec { heads: 4, scale: 0.1, window, softcap: None };
        cost(&mut rt, 32, &rows, move |step, x| {
            let (keys, values) = (step.open(&keys).write(x), step.open(&values).write(x));
            x.linear(&q, None).attend(&keys, &values, spec)
        })
    };
    let product = 2 * 3 * 64 * 32;
    let each = 4 * (2 * 16 + 2 * 16 + 4);
    let position = 2 * (2 * 16 * 4);
    let want = Cost {
        weight_bytes: 3 * 128 + 64 * 32 * 4,
        // Three are written, five are seen.
        state_bytes: (3 + 5) * position,
        arena_bytes: 3 * 4 * (32 + 32 + 32 + 32 + 64 + 64 + 64) + 4 * (4 * 64),
        ops: 0,
        flops: product + (3 + 4 + 5) * each + 3 * 4 * 16,
    };
    let all = run(None, Stored::F32);
    assert_eq!((all.launches, all.cost), (7, want));
    let flops = product + 3 * 2 * each + 3 * 4 * 16;
    let windowed = Cost { state_bytes: (3 + 4) * position, flops, ..want };
    assert_eq!(run(Some(2), Stored::F32).cost, windowed);
    // 16 codes and a scale of two bytes.
    let small = Cost { state_bytes: (3 + 5) * 2 * 2 * 18, ..want };
    assert_eq!(run(None, Stored::Q8).cost, small);
}

#[test]
fn records_go_in_and_out_once() {
    let run = |row: LiveRow| {
        let mut rt = null();
        let kind = StateKind::Slots { len: 3 * 32, log: Log { inputs: 32, depth: 4 } };
        let window = State::new(&rt, kind, 4, 0).unwrap();
        let taps = Weight::vector(&rt, "taps", &[0.0; 4 * 32]).unwrap();
        let conv = cost(&mut rt, 32, &[row], move |step, x| {
            x.conv(&taps, None, step.open(&window), Map::Silu).0
        });
        assert_eq!(conv.cost.weight_bytes, row.tokens as u64 * 128 + 4 * 32 * 4);
        (conv.cost.state_bytes, conv.cost.flops)
    };
    let token = 2 * 4 * 32 + 32;
    let record = 3 * 32 * 4;
    assert_eq!(run(LiveRow::reading(2, 0, 1)), (record, 2 * token));
    assert_eq!(run(LiveRow::reading(2, 9, 1)), (2 * record, 2 * token));
    // Two logged tokens are read, and two that are unconfirmed are logged.
    let drafts = LiveRow { logged: 2, confirmed: 3, ..LiveRow::reading(3, 9, 1) };
    assert_eq!(run(drafts), (2 * record + (2 + 2) * 128, 5 * token));
    // Nothing was and nothing is put into the record.
    let guesses = LiveRow { logged: 2, confirmed: 0, ..LiveRow::reading(2, 2, 1) };
    assert_eq!(run(guesses), ((2 + 2) * 128, 4 * token));
}

#[test]
fn of_experts_the_most_count_that_can_be_chosen() {
    let run = |tokens| {
        let mut rt = null();
        let router = matrix(&rt, Format::F32, 1, 4, 32);
        let [gate, up] = [16, 16].map(|rows| matrix(&rt, Format::F32, 4, rows, 32));
        let down = matrix(&rt, Format::F32, 4, 32, 16);
        let rows = [LiveRow::reading(tokens, 0, 1)];
        let run = cost(&mut rt, 32, &rows, move |_, x| {
            let routing = x.linear(&router, None).route(2, Scoring::softmax(true));
            let inner = x.experts_up(routing, ExpertsUp::gated(&gate, &up, Map::Silu));
            inner.experts_down(routing, &down, None)
        });
        run.cost
    };
    let expert = 3 * 16 * 32 * 4;
    let router = 4 * 32 * 4;
    let of_token = |n: u64| {
        let routing = 2 * 4 * 32 + 4 + 4;
        let up = 2 * 2 * (2 * 16 * 32 + 16);
        n * (routing + up + 2 * (2 * 32 * 16 + 2 * 32))
    };
    let [one, three] = [run(1), run(3)];
    assert_eq!((one.weight_bytes, one.flops), (128 + router + 2 * expert, of_token(1)));
    assert_eq!((three.weight_bytes, three.flops), (3 * 128 + router + 4 * expert, of_token(3)));
    let before = 32 + (32 + 4) + (4 + 4);
    assert_eq!(one.arena_bytes, 4 * (before + 2 * (32 + 4 + 32) + 4 * 32));
}

#[test]
fn adapters_cost_where_rows_name_them() {
    let row = |tokens, adapter| LiveRow { adapter, ..LiveRow::reading(tokens, 0, 1) };
    let mut rt = null();
    let layer = matrix(&rt, Format::F32, 1, 16, 32);
    let spec = LowRankSpec { slots: 3, rank: 4, rows: 16, cols: 32 };
    let low = LowRank::new(&rt, spec).unwrap();
    let rows = [row(2, 1), row(1, 1), row(1, 0)];
    let cost = cost(&mut rt, 32, &rows, move |_, x| x.linear_beside(&layer, None, &low)).cost;
    let pair = 4 * (16 + 32);
    assert_eq!(cost.weight_bytes, 4 * 128 + 16 * 32 * 4 + pair * 4);
    assert_eq!(cost.flops, 2 * 4 * 16 * 32 + 3 * (2 * pair + 16));
}

#[test]
fn the_parts_of_a_profile_add_up() {
    for n in [1, 2] {
        let (mut rt, _m) = prepared(cpu(threads(n)), &[one()]);
        let (mut inputs, mut result, mut row) = (rt.inputs(), [0.0; COLS], at(0));
        replay(&mut rt, &mut inputs, &row, &mut result);
        let plain = result;
        assert!(rt.profiled().is_none());
        rt.profile(true);
        let (mut want, began) = (Cost::default(), Instant::now());
        for past in 0..20 {
            row = at(past);
            replay(&mut rt, &mut inputs, &row, &mut result);
            assert!(past > 0 || result == plain);
            want += rt.cost(one(), &[LiveRow::reading(1, past, 1)]).unwrap().cost;
        }
        let (wall, profile) = (began.elapsed(), rt.profiled().unwrap());
        assert_eq!(profile.steps, 20);
        let parts: Duration = profile.parts.iter().map(|part| part.time).sum();
        assert!(profile.parts.iter().all(|part| part.time > Duration::ZERO), "{profile:?}");
        assert_eq!(parts + profile.between(), profile.time);
        assert!(parts < profile.time && profile.time < wall, "{profile:?} in {wall:?}");
        let launches: u64 = profile.parts.iter().map(|part| part.launches).sum();
        let step = rt.cost(one(), &[LiveRow::reading(1, 0, 1)]).unwrap();
        assert_eq!(launches, 20 * step.launches as u64);
        assert_eq!(profile.cost(), want);
        let names: Vec<_> = profile.parts.iter().map(|part| part.kind.name()).collect();
        let order = "embed f32|linear q4_k|write_kv|attention|add|conv|take_outputs|emit";
        assert_eq!(names.join("|"), order);
        rt.profile(false);
        replay(&mut rt, &mut inputs, &row, &mut result);
        assert!(rt.profiled().is_none());
    }
}

#[test]
fn a_device_that_measures_nothing_has_launches_and_no_times() {
    let (mut rt, _m) = prepared(null(), &[one()]);
    let (mut inputs, mut result) = (rt.inputs(), [0.0; COLS]);
    rt.profile(true);
    (0..3).for_each(|past| replay(&mut rt, &mut inputs, &at(past), &mut result));
    let profile = rt.profiled().unwrap();
    assert_eq!(profile.steps, 3);
    assert!(profile.parts.iter().all(|part| part.time.is_zero() && part.launches > 0));
    assert_eq!(profile.between(), profile.time);
    assert!(rt.peaks().is_none());
}

/// Two steps in flight: each is counted when it was waited for, as what it was.
#[test]
fn steps_in_flight_are_told_apart() {
    let rt = Runtime::new(Box::new(Deferred::new(1 << 30).0), Limits::default());
    let (mut rt, _m) = prepared(rt, &[one()]);
    let mut inputs = rt.inputs();
    let mut launch = |rt: &mut Runtime, past| {
        inputs.begin(one());
        inputs.push(at(past).input()).unwrap();
        rt.launch(&inputs).unwrap()
    };
    let early = launch(&mut rt, 1);
    rt.profile(true);
    let late = launch(&mut rt, 2);
    rt.wait(early, &mut []).unwrap();
    assert_eq!(rt.profiled().unwrap().steps, 0);
    rt.wait(late, &mut []).unwrap();
    let profile = rt.profiled().unwrap();
    assert_eq!(profile.steps, 1);
    assert_eq!(profile.cost(), rt.cost(one(), &[LiveRow::reading(1, 2, 1)]).unwrap().cost);
}
