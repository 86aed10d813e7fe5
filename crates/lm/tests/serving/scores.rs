//! Log-probabilities of prompts: plain math over the logits of each position, whatever is kept, cut or batched.

use longrun_array::Wanted;
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, FinishReason, Request, RowId, Score};
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::sample::Choice;

use crate::answers::{Answer, ROOMY, Random, answer, asked, engine, set_up};
use crate::families::{VOCAB, each_family};
use crate::heads::engine_with_head;

const FAMILIES: [&str; 6] =
    ["llama", "gemma3", "qwen3_next", "deepseek_v3", "kimi_linear", "deepseek_v4"];

fn scored(prompt: &[u32], from: usize, top: usize, max_tokens: usize) -> Request {
    Request { score: Some(Score { from, top }), ..asked(prompt, max_tokens) }
}

/// Logits of every position of a text that is read once, alone, from nothing: `[ids][vocab]`.
fn logits(family: &str, ids: &[u32]) -> Vec<Vec<f32>> {
    let room = Room { rows: 1, chunk: 512, snapshots: 0, ..ROOMY };
    let mut exec: Executor = set_up(family, Setup { per_token: true, ..Setup::new(room) }, 3);
    let mut seq = exec.admit(ids.len()).unwrap();
    let vocab = exec.vocab();
    let span = Span { seq: &mut seq, ids, wanted: Wanted::All, drafts: 0 };
    exec.run(&mut [span]).unwrap().chunks(vocab).map(<[f32]>::to_vec).collect()
}

/// Log-probabilities in f64.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - f64::from(max)).exp()).sum();
    logits.iter().map(|x| f64::from(*x) - f64::from(max) - sum.ln()).collect()
}

/// What came of several requests that are in the engine together.
fn together(engine: &mut Engine, requests: Vec<Request>) -> Vec<Answer> {
    let rows: Vec<RowId> = requests.into_iter().map(|r| engine.submit(r).unwrap()).collect();
    let (mut answers, mut events) = (vec![Answer::default(); rows.len()], Vec::new());
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
        for event in events.drain(..) {
            answers[rows.iter().position(|row| *row == event.row()).unwrap()].take(&event);
        }
    }
    answers
}

each_family!(scores_are_plain_math_over_logits);

fn scores_are_plain_math_over_logits(family: &str) {
    let ids = Random(5).ids(83);
    let logits = logits(family, &ids);
    let mut engine = engine(family, ROOMY);
    let row = engine.submit(scored(&ids, 20, 3, 0)).unwrap();
    let (mut events, mut scores): (_, Vec<Choice>) = (Vec::new(), Vec::new());
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
        for event in events.drain(..).filter(|event| event.row() == row) {
            match event {
                Event::Scored { scores: new, .. } => scores.extend(new),
                Event::Failed { error, .. } => panic!("{family}: {error}"),
                Event::Token { .. } => panic!("{family}: nothing was to be chosen"),
                _ => {}
            }
        }
    }
    assert_eq!(scores.len(), ids.len() - 20, "{family}");
    for (i, score) in scores.iter().enumerate() {
        let (at, place) = (20 + i, format!("{family}, token {}", 20 + i));
        let want = log_softmax(&logits[at - 1]);
        assert_eq!(score.id, ids[at], "{place}");
        let close = |id: u32, p: f32| (f64::from(p) - want[id as usize]).abs() < 1e-5;
        assert!(close(score.id, score.logprob.unwrap()), "{place}: {score:?}");
        assert!(score.top.iter().all(|(id, p)| close(*id, *p)), "{place}: {score:?}");
        let mut best: Vec<u32> = (0..want.len() as u32).collect();
        let logit = |id: u32| logits[at - 1][id as usize];
        best.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b)));
        let top: Vec<u32> = score.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(top, best[..3], "{place}");
    }
    engine.clear_prefixes();
    assert!(engine.executor().all_free(), "{family}");
}

#[test]
fn neither_cuts_nor_neighbours_nor_room_change_a_bit() {
    for family in FAMILIES {
        let mut random = Random(9);
        let prompts: Vec<Vec<u32>> = [150, 61, 97].map(|n| random.ids(n)).to_vec();
        let requests = || -> Vec<Request> {
            let from = [1, 40, 97];
            let each = prompts.iter().zip(from).enumerate();
            each.map(|(i, (prompt, from))| scored(prompt, from, 2, 7 * i)).collect()
        };
        let room = Room { rows: 1, snapshots: 0, ..ROOMY };
        let mut alone = engine(family, room);
        let want: Vec<Answer> = requests().into_iter().map(|r| answer(&mut alone, r)).collect();
        assert_eq!(want[0].scores.len(), 149, "{family}");
        assert_eq!((want[0].ids.len(), want[1].ids.len()), (0, 7), "{family}");
        assert_eq!(want[0].end, Some(FinishReason::Length));
        let same = |room: Room, results: usize, per_token: bool| {
            let setup = Setup { results, per_token, ..Setup::new(room) };
            let got = together(&mut Engine::new(set_up(family, setup, 3)), requests());
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.said(), want.said(), "{family}, {room:?}, {results} results");
            }
        };
        for (rows, chunk, results) in
            [(1, 7, 5), (1, 64, 64), (2, 64, 16), (3, 29, 1), (3, 512, 64)]
        {
            same(Room { rows, chunk, snapshots: 0, ..ROOMY }, results, false);
        }
        same(Room { rows: 3, snapshots: 0, ..ROOMY }, 0, true);
    }
}

#[test]
fn what_is_scored_is_read_whatever_is_kept() {
    for family in FAMILIES {
        let prompt = Random(7).ids(120);
        let mut engine = engine(family, ROOMY);
        let first = answer(&mut engine, scored(&prompt, 1, 2, 4));
        let again = answer(&mut engine, scored(&prompt, 1, 2, 4));
        assert_eq!((again.cached, again.said()), (0, first.said()), "{family}");
        // What comes before may be a kept beginning.
        let tail = answer(&mut engine, scored(&prompt, 119, 2, 4));
        assert!(tail.cached > 0 && tail.cached <= 118, "{family}: {}", tail.cached);
        assert_eq!((&tail.scores[..], &tail.ids), (&first.scores[118..], &first.ids), "{family}");
        // What a scored text leaves is as good as what another leaves.
        let plain = answer(&mut engine, asked(&prompt, 4));
        assert_eq!((plain.cached, &plain.ids), (119, &first.ids), "{family}");
    }
}

/// Drafts, by the checkpoint's own head, beside rows that are scored.
#[test]
fn rows_with_drafts_leave_room_for_scores() {
    for family in ["qwen3_next", "deepseek_v3"] {
        let room = Room { rows: 3, snapshots: 0, drafts: 3, ..ROOMY };
        let mut random = Random(2);
        let prompts: Vec<Vec<u32>> = [40, 90, 70].map(|n| random.ids(n)).to_vec();
        let requests = || {
            vec![
                asked(&prompts[0], 60),
                scored(&prompts[1], 2, 1, 9),
                scored(&prompts[2], 30, 1, 0),
            ]
        };
        let mut alone = engine(family, Room { rows: 1, drafts: 0, ..room });
        let want: Vec<Answer> = requests().into_iter().map(|r| answer(&mut alone, r)).collect();
        let got = together(&mut engine_with_head(family, room), requests());
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.said(), want.said(), "{family}");
        }
    }
}

#[test]
fn bias_and_penalties_are_for_what_is_chosen() {
    let prompt = Random(4).ids(30);
    let mut engine = engine("llama", ROOMY);
    let plain = answer(&mut engine, scored(&prompt, 1, 2, 3));
    let mut request = scored(&prompt, 1, 2, 3);
    request.params.logit_bias = vec![(plain.ids[0], -50.0), (prompt[3], 20.0)];
    request.params.presence_penalty = 1.0;
    let biased = answer(&mut engine, request);
    assert_eq!(biased.scores, plain.scores);
    assert_ne!(biased.ids, plain.ids);
}

#[test]
fn what_cannot_be_scored_is_refused_with_what_can() {
    let mut engine = engine("llama", ROOMY);
    for from in [0, 4, usize::MAX] {
        let error = engine.submit(scored(&[1, 2, 3], from, 0, 1)).unwrap_err().to_string();
        assert!(error.contains("of a prompt of 3") && error.contains("score"), "{error}");
    }
    let error = engine.submit(asked(&[1, 2, 3], 0)).unwrap_err().to_string();
    assert!(error.contains("0 tokens"), "{error}");
    // One token alone has nothing before it; more alternatives than ids are all of them.
    let one = answer(&mut engine, scored(&[1], 1, 0, 0));
    assert_eq!((one.scores.len(), one.ids.len(), one.end), (0, 0, Some(FinishReason::Length)));
    let all = answer(&mut engine, scored(&[1, 2], 1, usize::MAX, 0));
    assert_eq!(all.scores[0].1.1.len(), VOCAB);
}
