//! Random requests that join, leave and are cancelled, with too little memory: each answered as if alone.

use std::collections::BTreeMap;

use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Priority, Request, RowId, Score, Stats};
use longrun_lm::sample::SamplingParams;

use crate::answers::{Answer, CONTEXT, Random, answer, engine};
use crate::heads::engine_with_head;

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
    let mut max_tokens = 1 + random.below(most) as usize;
    let mut score = None;
    if random.below(4) == 0 {
        let from = 1 + random.below(prompt.len() as u64) as usize;
        score = Some(Score { from, top: random.below(3) as usize });
        max_tokens *= random.below(2) as usize;
    }
    Request { params, priority, boundaries, score, ..Request::new(prompt, max_tokens) }
}

/// Requests that join, leave and are cancelled at random, in memory that is too small for them: every answer is that of
/// the request alone, to the bit, and every block and buffer comes back.
fn answers_are_those_of_each_alone(family: &str, mut busy: Engine, operations: usize) -> Stats {
    let mut alone = engine(family, Room { rows: 1, tokens: CONTEXT, snapshots: 0, ..TIGHT });
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
                let wanted = request.score.map_or(&[][..], |score| &request.prompt[score.from..]);
                assert!(busy.scores.iter().map(|(id, _)| id).eq(wanted), "{family}: {request:?}");
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
    served(families, preempted, |family| engine(family, TIGHT));
}

fn served(families: &[&str], preempted: bool, engine: impl Fn(&str) -> Engine) -> Vec<Stats> {
    let operations =
        std::env::var("LONGRUN_OPERATIONS").map_or(300, |n| n.parse().expect("a number"));
    let all = families.iter().map(|f| answers_are_those_of_each_alone(f, engine(f), operations));
    let all: Vec<Stats> = all.collect();
    let sum = |f: &dyn Fn(&Stats) -> u64| all.iter().map(f).sum::<u64>();
    assert!(sum(&|s| s.hits.min(s.cached_tokens)) > 0, "{all:?}");
    assert!(sum(&|s| s.evicted) > 0 && sum(&|s| s.cancelled) > 0, "{all:?}");
    assert!(!preempted || sum(&|s| s.preempted) > 0, "{all:?}");
    all
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

/// With drafts by the head of the checkpoint, whose keys and values come and go with the blocks of rows.
#[test]
fn heads_serve_each_as_if_alone() {
    let families = ["qwen3_next", "qwen3_5", "qwen3_5_moe", "deepseek_v3", "deepseek_v32"];
    let all = served(&families, true, |f| engine_with_head(f, Room { drafts: 3, ..TIGHT }));
    assert!(all.iter().all(|s| s.drafted > 0 && s.accepted < s.drafted), "{all:?}");
    assert!(all.iter().map(|s| s.accepted).sum::<u64>() > 0, "{all:?}");
}
