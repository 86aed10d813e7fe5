//! Many requests at once, with kept beginnings, too little memory and cancellations: each answered as if alone.
//!
//! `LONGRUN_OPERATIONS` is the number of random operations a family (300 unless set; `cargo xtask prove` sets 10,000).

use std::collections::BTreeMap;

use longrun_array::{BLOCK, CpuDevice, CpuOptions};
use longrun_lm::cache::Room;
use longrun_lm::config::Config;
use longrun_lm::engine::{Engine, Event, FinishReason, Priority, Request, RowId, Service, Stats};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::prefix::Miss;
use longrun_lm::sample::{Choice, SamplingParams};
use longrun_lm::tiny::{self, TinyShape};
use longrun_lm::weights::Source;

/// Families of every kind of state: pages, windows, latent keys, records, compressed entries.
const FAMILIES: [&str; 8] = [
    "llama",
    "gemma3",
    "deepseek_v3",
    "qwen3_next",
    "kimi_linear",
    "nemotron_h",
    "deepseek_v4",
    "glm5_next",
];

const VOCAB: u64 = 160;

fn engine(family: &str, room: Room) -> Engine {
    let shape =
        TinyShape { layers: Some(4), interval: Some(2), hidden: Some(32), ..TinyShape::default() };
    let config = Config::loose(&tiny::config(family, shape).unwrap()).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let setup = Setup::new(room);
    let exec = Executor::new(Box::new(device), &config, Source::Seed(3), setup, &|_, _| {});
    Engine::new(exec.unwrap_or_else(|e| panic!("{family}: {e}")))
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn ids(&mut self, n: u64) -> Vec<u32> {
        (0..n).map(|_| self.below(VOCAB) as u32).collect()
    }
}

/// What came of a request: its tokens with the bits of what was said about them, and its end.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    ids: Vec<u32>,
    bits: Vec<(Option<u32>, Vec<(u32, u32)>)>,
    end: Option<FinishReason>,
    cached: usize,
    miss: Option<Miss>,
}

impl Answer {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Started { cached, miss, .. } => (self.cached, self.miss) = (*cached, *miss),
            Event::Token { choice: Choice { id, logprob, top }, .. } => {
                self.ids.push(*id);
                let top = top.iter().map(|(id, p)| (*id, p.to_bits())).collect();
                self.bits.push((logprob.map(f32::to_bits), top));
            }
            Event::Finished { reason, .. } => self.end = Some(*reason),
            Event::Failed { error, .. } => panic!("{error}"),
            Event::Progress { .. } => {}
        }
    }

    /// What neighbours and memory must not change.
    fn said(&self) -> (&[u32], &[(Option<u32>, Vec<(u32, u32)>)], Option<FinishReason>) {
        (&self.ids, &self.bits, self.end)
    }
}

fn answer(engine: &mut Engine, request: Request) -> Answer {
    let row = engine.submit(request).unwrap();
    let (mut answer, mut events) = (Answer::default(), Vec::new());
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
        events.drain(..).filter(|e| e.row() == row).for_each(|e| answer.take(&e));
    }
    answer
}

const CONTEXT: usize = 700;

/// Little more memory than one text needs, so that rows wait, lose their places and push snapshots out.
const TIGHT: Room =
    Room { rows: 5, context: CONTEXT, tokens: CONTEXT, chunk: 48, snapshots: 9, drafts: 0 };

fn request(random: &mut Random, headers: &[Vec<u32>], texts: &[Vec<u32>]) -> Request {
    let mut prompt = Vec::new();
    match random.below(4) {
        0 => {}
        1 if !texts.is_empty() => {
            // The next turn of an earlier text, or that text cut anywhere.
            let text = &texts[random.below(texts.len() as u64) as usize];
            let cut = if random.below(2) == 0 {
                text.len()
            } else {
                random.below(text.len() as u64) as usize
            };
            prompt.extend(&text[..cut]);
        }
        _ => prompt.extend(&headers[random.below(headers.len() as u64) as usize]),
    }
    let most = match random.below(3) {
        0 => 8,
        1 => 80,
        _ => 600,
    };
    let tail = 1 + random.below(most);
    prompt.extend(random.ids(tail));
    prompt.truncate(600);
    let params = SamplingParams {
        temperature: if random.below(2) == 0 { 0.0 } else { 1.0 },
        top_k: if random.below(3) == 0 { 7 } else { 0 },
        presence_penalty: if random.below(4) == 0 { 0.3 } else { 0.0 },
        seed: Some(random.below(3)),
        logprobs: Some(3),
        ..SamplingParams::default()
    };
    let priority = [Priority::Low, Priority::Normal, Priority::High][random.below(3) as usize];
    let boundaries = vec![prompt.len() / 2, prompt.len() * 3 / 4];
    let most = [5, 40, 100][random.below(3) as usize];
    let max_tokens = 1 + random.below(most) as usize;
    Request { params, priority, boundaries, ..Request::new(prompt, max_tokens) }
}

/// Requests that join, leave and are cancelled at random, in memory that is too small for them: every answer is that of
/// the request alone, to the bit, and every block and buffer comes back.
fn answers_are_those_of_each_alone(family: &str, operations: usize) -> Stats {
    let mut alone = engine(family, Room { rows: 1, tokens: CONTEXT, snapshots: 0, ..TIGHT });
    let mut busy = engine(family, TIGHT);
    let live = busy.executor().usage().live;
    let mut random = Random(family.len() as u64 + 11);
    let headers = [random.ids(50), random.ids(200), random.ids(333)];
    let mut texts: Vec<Vec<u32>> = Vec::new();
    let mut open: BTreeMap<RowId, (Request, Answer)> = BTreeMap::new();
    let (mut events, mut answered) = (Vec::new(), 0);
    for _ in 0..operations {
        match random.below(10) {
            0..3 if open.len() < 12 => {
                let request = request(&mut random, &headers, &texts);
                let row = busy.submit(request.clone()).unwrap();
                open.insert(row, (request, Answer::default()));
            }
            3 if random.below(3) == 0 => {
                let rows: Vec<RowId> = open.keys().copied().collect();
                if let Some(row) = rows.get(random.below(12) as usize) {
                    busy.cancel(*row);
                    open.remove(row);
                }
            }
            _ => {}
        }
        for _ in 0..random.below(12) {
            busy.step(&mut events).unwrap();
            assert_eq!(busy.executor().usage().live, live);
        }
        for event in events.drain(..) {
            let row = event.row();
            open.get_mut(&row).expect("no event after the last").1.take(&event);
            if event.is_last() {
                let (request, busy) = open.remove(&row).unwrap();
                let mut text = request.prompt.clone();
                let alone = answer(&mut alone, request);
                assert_eq!(busy.said(), alone.said(), "{family}: {row:?} after {answered}");
                text.extend(alone.ids);
                texts.push(text);
                texts.drain(..texts.len().saturating_sub(6));
                answered += 1;
            }
        }
    }
    let rows: Vec<RowId> = open.into_keys().collect();
    rows.into_iter().for_each(|row| busy.cancel(row));
    let pools = busy.executor().pools();
    assert_eq!((busy.rows(), pools.rows(), pools.snapshots()), (0, 0, busy.prefixes().len()));
    let stats = busy.stats();
    busy.clear_prefixes();
    assert!(busy.executor().all_free());
    assert_eq!(busy.executor().usage().live, live);
    assert!(answered * 12 > operations, "{answered} answers in {operations} operations");
    stats
}

/// The same for some families, in which all of this must have happened to somebody.
fn all_answers_are_those_of_each_alone(families: &[&str], preempted: bool) {
    let operations =
        std::env::var("LONGRUN_OPERATIONS").map_or(300, |n| n.parse().expect("a number"));
    let all = families.iter().map(|f| answers_are_those_of_each_alone(f, operations));
    let all: Vec<Stats> = all.collect();
    let sum = |f: &dyn Fn(&Stats) -> u64| all.iter().map(f).sum::<u64>();
    assert!(sum(&|s| s.hits.min(s.cached_tokens)) > 0, "{all:?}");
    assert!(sum(&|s| s.evicted) > 0 && sum(&|s| s.cancelled) > 0, "{all:?}");
    assert!(!preempted || sum(&|s| s.preempted) > 0, "{all:?}");
}

#[test]
fn pages_serve_each_as_if_alone() {
    all_answers_are_those_of_each_alone(&["llama", "deepseek_v3"], true);
}

#[test]
fn windows_serve_each_as_if_alone() {
    all_answers_are_those_of_each_alone(&["gemma3"], true);
}

#[test]
fn records_serve_each_as_if_alone() {
    all_answers_are_those_of_each_alone(&["qwen3_next", "kimi_linear", "nemotron_h"], true);
}

/// Blocks of entries cover so many tokens that rows hardly ever run short of them.
#[test]
fn entries_serve_each_as_if_alone() {
    all_answers_are_those_of_each_alone(&["deepseek_v4", "glm5_next"], false);
}

const ROOMY: Room =
    Room { rows: 2, context: CONTEXT, tokens: 4 * CONTEXT, chunk: 64, snapshots: 24, drafts: 0 };

fn asked(prompt: &[u32], max_tokens: usize) -> Request {
    let params = SamplingParams { logprobs: Some(2), ..SamplingParams::default() };
    Request { params, ..Request::new(prompt.to_vec(), max_tokens) }
}

/// The turns of a chat: what is read again is what the next text does not share, and at most a chunk.
#[test]
fn a_chat_reads_only_what_is_new() {
    for family in FAMILIES {
        let mut warm = engine(family, ROOMY);
        let mut cold = engine(family, Room { rows: 1, tokens: CONTEXT, snapshots: 0, ..ROOMY });
        let exact = warm.executor().pools().is_exact();
        let mut random = Random(5);
        let first = random.ids(150);
        let mut ask = |request: Request, cached: &dyn Fn(usize) -> bool, what: &str| {
            let cold = answer(&mut cold, request.clone());
            let warm = answer(&mut warm, request);
            assert_eq!(warm.said(), cold.said(), "{family}: {what}");
            assert!(cached(warm.cached), "{family}: {what}: {} cached", warm.cached);
            assert_eq!(warm.miss.is_none(), warm.cached > 0);
            warm
        };
        let turn1 = ask(asked(&first, 20), &|n| n == 0, "the first turn");
        assert_eq!(turn1.miss, Some(Miss::Unknown));
        // The same prompt again, three times: all but its last token is known.
        for _ in 0..3 {
            ask(asked(&first, 20), &|n| n == 149, "an identical prompt");
        }
        // The next turn goes on from the very end: of what was generated, the last token was not read.
        let mut second = first.clone();
        second.extend(&turn1.ids);
        second.extend(random.ids(30));
        let turn2 = ask(asked(&second, 20), &|n| n == 169, "the second turn");
        // Reasoning is dropped: the text leaves the old one where the answer began.
        let mut dropped = first.clone();
        dropped.extend(&turn1.ids[15..]);
        dropped.extend(random.ids(30));
        let known = |n: usize| if exact { n == 149 } else { n == 150 };
        ask(asked(&dropped, 5), &known, "dropped reasoning");
        // The last message is edited in its middle.
        let mut edited = second[..180].to_vec();
        edited.extend(random.ids(40));
        let known = |n: usize| if exact { n == 169 } else { n == 180 };
        ask(asked(&edited, 5), &known, "an edited message");
        // Regenerated: the same prompt with another seed.
        let params =
            SamplingParams { temperature: 1.0, seed: Some(1), ..SamplingParams::default() };
        ask(Request { params, ..asked(&second, 20) }, &|n| n == second.len() - 1, "regenerate");
        // Chat goes on from the second turn.
        let mut third = second.clone();
        third.extend(&turn2.ids);
        third.extend(random.ids(9));
        ask(asked(&third, 5), &|n| n == second.len() + 19, "the third turn");
    }
}

/// A long prompt that is edited anywhere reads at most as much again as lies behind the edit, and a chunk or two.
#[test]
fn an_edit_far_back_finds_an_older_snapshot() {
    for family in ["gemma3", "qwen3_next", "deepseek_v4"] {
        let mut engine = engine(family, ROOMY);
        let mut random = Random(8);
        let text = random.ids(640);
        answer(&mut engine, asked(&text, 1));
        for at in [600, 500, 300, 100] {
            let mut edited = text[..at].to_vec();
            edited.extend(random.ids(20));
            let found = answer(&mut engine, asked(&edited, 1));
            let again = at - found.cached;
            assert!(again <= (640 - at).max(64) + 64, "{family}: {} of {at} cached", found.cached);
        }
    }
}

#[test]
fn a_beginning_is_not_pushed_out_by_who_shares_it() {
    for family in ["llama", "qwen3_next"] {
        let mut engine = engine(family, ROOMY);
        let mut random = Random(2);
        let header = random.ids(100);
        let mut texts = Vec::new();
        for _ in 0..3 {
            let mut text = header.clone();
            text.extend(random.ids(20));
            let boundaries = vec![100];
            answer(&mut engine, Request { boundaries, ..asked(&text, 4) });
            texts.push(text);
        }
        for text in texts {
            assert_eq!(answer(&mut engine, asked(&text, 4)).cached, text.len() - 1);
        }
    }
}

#[test]
fn misses_say_why() {
    let mut off = engine("qwen3_next", Room { snapshots: 0, ..ROOMY });
    let prompt = Random(4).ids(40);
    assert_eq!(answer(&mut off, asked(&prompt, 2)).miss, Some(Miss::Off));
    let mut on = engine("qwen3_next", ROOMY);
    assert_eq!(answer(&mut on, asked(&prompt, 2)).miss, Some(Miss::Unknown));
    assert_eq!(
        answer(&mut on, asked(&prompt[..20], 2)).miss,
        Some(Miss::NoSnapshot { common: 19 })
    );
    assert_eq!(on.stats().misses.iter().sum::<u64>(), 2);
}

/// Rows that are cancelled in the middle leave what they read.
#[test]
fn what_a_cancelled_row_has_read_is_kept() {
    for family in FAMILIES {
        let mut engine = engine(family, ROOMY);
        let prompt = Random(6).ids(300);
        let row = engine.submit(asked(&prompt, 50)).unwrap();
        let mut events = Vec::new();
        (0..3).for_each(|_| engine.step(&mut events).unwrap());
        engine.cancel(row);
        assert_eq!(answer(&mut engine, asked(&prompt, 2)).cached, 3 * 64, "{family}");
    }
}

/// The urgent go first, and those that wait long rise.
#[test]
fn priorities_order_the_queue_and_nobody_starves() {
    let mut engine = engine("llama", Room { rows: 1, snapshots: 0, ..ROOMY });
    let of = |priority| Request { priority, ..asked(&[1, 2, 3], 30) };
    let low = engine.submit(of(Priority::Low)).unwrap();
    let mut events = Vec::new();
    let mut starts = Vec::new();
    let mut urgent = 0;
    engine.submit(of(Priority::High)).unwrap();
    for _ in 0..3000 {
        if engine.rows() < 3 {
            engine.submit(of(Priority::High)).unwrap();
            urgent += 1;
        }
        engine.step(&mut events).unwrap();
        starts.extend(events.drain(..).filter_map(|e| match e {
            Event::Started { row, .. } => Some(row),
            _ => None,
        }));
    }
    let at = starts.iter().position(|row| *row == low).expect("it starved");
    assert!(at > 10 && at < urgent, "after {at} of {urgent}");
}

#[test]
fn a_service_answers_many_threads_and_stops() {
    let engine = engine("qwen3_next", ROOMY);
    let live = engine.executor().usage().live;
    let service = Service::start(engine).unwrap();
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| Random(i).ids(90)).collect();
    std::thread::scope(|scope| {
        for prompt in &prompts {
            let service = &service;
            scope.spawn(move || {
                let mut answers = Vec::new();
                for _ in 0..2 {
                    let mut answer = Answer::default();
                    service.submit(asked(prompt, 12)).unwrap().for_each(|e| answer.take(&e));
                    assert_eq!(answer.end, Some(FinishReason::Length));
                    answers.push(answer);
                }
                assert_eq!(answers[0].said(), answers[1].said());
                assert_eq!(answers[1].cached, 89);
            });
        }
    });
    // A reader that goes is a cancellation, and one that does not read holds nobody up.
    let slow = service.submit(asked(&prompts[0], 200)).unwrap();
    drop(service.submit(asked(&prompts[1], 500)).unwrap());
    let cancelled = service.submit(asked(&prompts[2], 500)).unwrap();
    service.cancel(cancelled.row());
    assert!(!cancelled.into_iter().any(|e| e.is_last()), "it was cancelled");
    assert_eq!(slow.filter(|e| matches!(e, Event::Token { .. })).count(), 200);
    let view = service.look().unwrap();
    assert_eq!((view.running, view.waiting, view.stats.cancelled), (0, 0, 2));
    assert!(service.submit(asked(&[], 1)).is_err());
    let open = service.submit(asked(&prompts[3], 600)).unwrap();
    let mut engine = service.stop().unwrap();
    assert!(!open.into_iter().any(|e| e.is_last()));
    engine.clear_prefixes();
    assert!(engine.executor().all_free());
    assert_eq!(engine.executor().usage().live, live);
}

#[test]
fn blocks_of_a_shared_beginning_are_held_once() {
    let mut engine = engine("llama", ROOMY);
    let header = Random(1).ids(10 * BLOCK as u64);
    let free = |engine: &Engine| engine.executor().pools().paged().0;
    answer(&mut engine, asked(&header, 1));
    let before = free(&engine);
    for i in 0..5 {
        let mut text = header.clone();
        text.push(i);
        answer(&mut engine, asked(&text, 1));
    }
    // Five texts of 320 shared tokens take a block each for what is their own.
    assert!(before - free(&engine) <= 5, "{} blocks", before - free(&engine));
}
