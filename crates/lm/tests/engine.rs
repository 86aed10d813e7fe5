//! The generation loop on tiny models: rows that do not feel their neighbours, and memory that always comes back.

use std::cell::RefCell;
use std::sync::Arc;

use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::cache::Room;
use longrun_lm::config::Config;
use longrun_lm::engine::{Engine, Event, FinishReason, Request, RowId};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::sample::{History, SamplingParams};
use longrun_lm::tiny::{self, TinyShape};
use longrun_lm::weights::Source;
use longrun_lm::{Error, Kind};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

fn engine(family: &str, room: Room) -> Engine {
    let shape =
        TinyShape { layers: Some(3), interval: Some(3), hidden: Some(32), ..TinyShape::default() };
    let config = Config::loose(&tiny::config(family, shape).unwrap()).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let setup = Setup::new(room);
    let source = Source::Seed(3);
    Engine::new(Executor::new(Box::new(device), &config, source, setup, &|_, _| {}).unwrap())
}

const ROOM: Room = Room { rows: 4, context: 160, tokens: 640, chunk: 24, snapshots: 0, drafts: 0 };

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    Request::new(prompt.to_vec(), max_tokens)
}

fn prompt(len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + 11) % 160).collect()
}

/// The ids that one row got, and its end.
fn of_row(events: &[Event], who: RowId) -> (Vec<u32>, Option<FinishReason>) {
    let mut ids = Vec::new();
    let mut end = None;
    for event in events {
        match event {
            Event::Token { row, choice } if *row == who => ids.push(choice.id),
            Event::Finished { row, reason } if *row == who => end = Some(*reason),
            _ => {}
        }
    }
    (ids, end)
}

fn run(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
    }
    events
}

/// What happens beside a row before a step.
#[derive(Clone, Debug)]
enum Beside {
    Nothing,
    Join { prompt: Vec<u32>, max_tokens: usize },
    Leave(usize),
}

fn beside() -> impl Strategy<Value = Beside> {
    let join = (vec(0u32..160, 1..60), 1usize..30);
    prop_oneof![
        2 => Just(Beside::Nothing),
        3 => join.prop_map(|(prompt, max_tokens)| Beside::Join { prompt, max_tokens }),
        1 => (0usize..4).prop_map(Beside::Leave),
    ]
}

/// Steps until the row ends, with neighbours that come and go before each step.
fn run_beside(engine: &mut Engine, who: RowId, script: &[Beside]) -> Vec<Event> {
    let (mut events, mut others) = (Vec::new(), Vec::new());
    let mut script = script.iter();
    while of_row(&events, who).1.is_none() {
        match script.next().unwrap_or(&Beside::Nothing) {
            Beside::Nothing => {}
            Beside::Join { prompt, max_tokens } if engine.rows() < ROOM.rows => {
                others.push(engine.submit(request(prompt, *max_tokens)).unwrap());
            }
            Beside::Join { .. } => {}
            Beside::Leave(n) => others.get(*n).into_iter().for_each(|row| engine.cancel(*row)),
        }
        engine.step(&mut events).unwrap();
    }
    others.into_iter().for_each(|row| engine.cancel(row));
    events
}

/// A row's tokens, greedy or drawn, are the same alone and beside any neighbours, and all memory comes back.
fn rows_do_not_feel_neighbours(family: &str) {
    let engine = RefCell::new(engine(family, ROOM));
    let base = engine.borrow().executor().usage().live;
    let config = ProptestConfig { cases: 12, rng_seed: RngSeed::Fixed(5), ..Default::default() };
    let strategy = (vec(0u32..160, 1..110), 1usize..40, prop::bool::ANY, vec(beside(), 0..40));
    TestRunner::new(config)
        .run(&strategy, |(prompt, max_tokens, draw, script)| {
            let temperature = if draw { 1.0 } else { 0.0 };
            let params = SamplingParams { temperature, seed: Some(9), ..Default::default() };
            let request = Request { params, ..request(&prompt, max_tokens) };
            let engine = &mut *engine.borrow_mut();
            let alone = engine.submit(request.clone()).unwrap();
            let alone = of_row(&run(engine), alone);
            let row = engine.submit(request).unwrap();
            let crowded = of_row(&run_beside(engine, row, &script), row);
            prop_assert_eq!(alone.0.len(), max_tokens);
            prop_assert_eq!(alone, crowded);
            prop_assert!(engine.rows() == 0 && engine.executor().all_free());
            prop_assert_eq!(engine.executor().usage().live, base);
            Ok(())
        })
        .unwrap();
}

#[test]
fn hybrid_rows_do_not_feel_neighbours() {
    rows_do_not_feel_neighbours("qwen3_next");
}

#[test]
fn sliding_rows_do_not_feel_neighbours() {
    rows_do_not_feel_neighbours("gemma3");
}

#[test]
fn expert_rows_do_not_feel_neighbours() {
    rows_do_not_feel_neighbours("qwen3_moe");
}

#[test]
fn what_cannot_be_served_is_not_admitted() {
    let mut engine = engine("llama", Room { rows: 1, ..ROOM });
    let refused = |engine: &mut Engine, request, kind, words: &str| {
        let error: Error = engine.submit(request).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(engine.rows() == 0 && engine.executor().all_free());
    };
    refused(&mut engine, request(&[], 5), Kind::Usage, "prompt");
    refused(&mut engine, request(&[1], 0), Kind::Usage, "max_tokens");
    refused(&mut engine, request(&prompt(100), 61), Kind::Usage, "context of 160");
    refused(&mut engine, request(&[1], usize::MAX), Kind::Usage, "context of 160");
    refused(&mut engine, request(&[1, 160], 5), Kind::Usage, "token 160");
    let params = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
    refused(&mut engine, Request { params, ..request(&[1], 5) }, Kind::Usage, "top_p");
    engine.submit(request(&prompt(100), 60)).unwrap();
    engine.submit(request(&[1], 1)).unwrap();
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    assert_eq!(
        (engine.rows(), engine.waiting()),
        (2, 1),
        "the second one waits for the only place"
    );
    events.extend(run(&mut engine));
    let first = 1 + 5 + 60 + 1;
    assert_eq!(
        events.len(),
        first + 3,
        "a start, five chunks of 24, tokens, an end; then the other one"
    );
}

#[test]
fn rows_end_by_a_stop_id_or_by_length() {
    let mut engine = engine("qwen3_5", ROOM);
    let row = engine.submit(request(&prompt(5), 12)).unwrap();
    let (ids, end) = of_row(&run(&mut engine), row);
    assert_eq!((ids.len(), end), (12, Some(FinishReason::Length)));
    let first = ids.iter().position(|id| *id == ids[7]).unwrap();
    let stop_ids: Arc<[u32]> = Arc::from([999, ids[7]]);
    let row = engine.submit(Request { stop_ids, ..request(&prompt(5), 12) }).unwrap();
    let stopped = of_row(&run(&mut engine), row);
    assert_eq!(stopped, (ids[..=first].to_vec(), Some(FinishReason::Stop)), "the end is reported");
    assert!(engine.executor().all_free());
}

/// A row whose logits break fails alone; its neighbour does not notice.
#[test]
fn a_broken_row_fails_alone() {
    let mut engine = engine("qwen3_next", ROOM);
    let (base, good) = (engine.executor().usage().live, request(&prompt(9), 6));
    let alone = engine.submit(good.clone()).unwrap();
    let want = of_row(&run(&mut engine), alone);
    // Every token is excluded.
    let logit_bias = (0..320).map(|i| (i % 160, -f32::MAX)).collect();
    let params = SamplingParams { logit_bias, ..SamplingParams::default() };
    let broken = engine.submit(Request { params, ..good.clone() }).unwrap();
    let row = engine.submit(good).unwrap();
    let events = run(&mut engine);
    assert_eq!(of_row(&events, row), want);
    assert_eq!(of_row(&events, broken), (Vec::new(), None));
    let failed = events.iter().filter(|e| matches!(e, Event::Failed { row, .. } if *row == broken));
    assert_eq!(failed.count(), 1);
    assert!(engine.executor().all_free());
    assert_eq!(engine.executor().usage().live, base);
}

/// A processor that ignores the history: in lazy engines the text so far then is a chain that nobody reads.
#[test]
fn a_bias_alone_keeps_nothing_of_the_text() {
    let mut engine = engine("llama", ROOM);
    let params = SamplingParams { logit_bias: vec![(7, 0.5)], ..SamplingParams::default() };
    let long = engine.submit(Request { params, ..request(&prompt(9), 150) }).unwrap();
    let live = engine.executor().usage().live;
    let mut events = Vec::new();
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
        assert_eq!(engine.executor().usage().live, live);
    }
    assert_eq!(of_row(&events, long).0.len(), 150);
    let history =
        History::new(&SamplingParams { logit_bias: vec![(7, 0.5)], ..SamplingParams::default() });
    let mut grown = history.clone();
    (0..100_000).for_each(|id| grown.push(id % 160));
    assert_eq!(grown.ids_held(), 0);
    let penalised = SamplingParams { presence_penalty: 0.1, ..SamplingParams::default() };
    let mut held = History::new(&penalised);
    (0..100_000).for_each(|id| held.push(id % 160));
    assert!((1..=160).contains(&held.ids_held()), "{}", held.ids_held());
}

/// Both rows have a place, and together they outgrow the blocks: the younger one waits for the older one to be through,
/// reads its text again, and says what it would have said.
#[test]
fn rows_that_outgrow_the_memory_take_turns() {
    for family in ["llama", "qwen3_next"] {
        let room = Room { rows: 2, context: 64, tokens: 64, chunk: 16, snapshots: 0, drafts: 0 };
        let mut engine = engine(family, room);
        let base = engine.executor().usage().live;
        let requests = [request(&prompt(20), 40), request(&prompt(21), 40)];
        let alone = requests.clone().map(|request| {
            let row = engine.submit(request).unwrap();
            of_row(&run(&mut engine), row)
        });
        let rows = requests.map(|request| engine.submit(request).unwrap());
        let events = run(&mut engine);
        assert!(engine.stats().preempted > 0, "memory was never short");
        assert_eq!(rows.map(|row| of_row(&events, row)), alone);
        let starts = events.iter().filter(|e| matches!(e, Event::Started { .. })).count();
        assert_eq!(starts, 2, "a start is told once");
        assert!(engine.executor().all_free());
        assert_eq!(engine.executor().usage().live, base);
    }
}

#[test]
fn a_cancelled_row_is_gone_at_once() {
    let mut engine = engine("gemma3", ROOM);
    let mut events = Vec::new();
    for steps in [0, 1, 3, 20] {
        let row = engine.submit(request(&prompt(60), 90)).unwrap();
        (0..steps).for_each(|_| engine.step(&mut events).unwrap());
        engine.cancel(row);
        engine.cancel(row);
        assert!(engine.rows() == 0 && engine.executor().all_free());
        events.clear();
        engine.step(&mut events).unwrap();
        assert!(events.is_empty(), "an idle engine does nothing");
    }
}

/// A long prompt is read in pieces, and a row that decodes gets its token in every step meanwhile.
#[test]
fn a_long_prompt_does_not_starve_the_others() {
    let mut engine = engine("qwen3_next", Room { chunk: 8, ..ROOM });
    let mut events = Vec::new();
    let short = engine.submit(request(&prompt(3), 100)).unwrap();
    engine.step(&mut events).unwrap();
    let long = engine.submit(request(&prompt(61), 5)).unwrap();
    let mut read = 0;
    while read < 61 {
        events.clear();
        engine.step(&mut events).unwrap();
        let told: Vec<_> = events.iter().filter(|e| !matches!(e, Event::Started { .. })).collect();
        let [Event::Token { row: first, .. }, Event::Progress { row: second, done, total }, ..] =
            told[..]
        else {
            panic!("the older row's token, then the younger one's progress: {events:?}");
        };
        assert_eq!((*first, *second, *total), (short, long, 61));
        assert!(*done > read && *done - read <= 8);
        read = *done;
        let last = of_row(&events, long).0.len() == 1;
        assert_eq!(last, read == 61, "its first token comes with its last piece");
    }
}
