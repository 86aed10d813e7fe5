//! Speculation: whatever is guessed, a text is what it is without, to the bit.

use std::collections::BTreeMap;

use longrun_lm::cache::Room;
use longrun_lm::draft::{Ask, Draft, DraftModel, Lookup};
use longrun_lm::engine::{Engine, Mask, Request, Stats, TokenMask};
use longrun_lm::sample::SamplingParams;
use longrun_lm::{Error, Result};

use crate::answers::{Answer, CONTEXT, Random, answer, engine, executor};
use crate::families::each_family;

/// Guesses anything.
struct Dice {
    random: Random,
    /// Texts to take some of the guesses from, so that some are right.
    texts: Vec<Vec<u32>>,
}

impl Draft for Dice {
    fn most(&self) -> usize {
        DRAFTS
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
        for ask in asks {
            let count = self.random.below(ask.most as u64 + 1);
            let text = self.texts.iter().find(|text| text.starts_with(ask.ids));
            for i in 0..count as usize {
                let right = text.and_then(|text| text.get(ask.ids.len() + i)).copied();
                let any = self.random.below(160) as u32;
                ask.drafts.push(right.filter(|_| self.random.below(4) > 0).unwrap_or(any));
            }
        }
        Ok(())
    }

    fn release(&mut self, _: u64) {}
}

pub(crate) const DRAFTS: usize = 5;

pub(crate) const ROOM: Room = Room {
    rows: 3,
    context: CONTEXT,
    tokens: 2 * CONTEXT,
    chunk: 48,
    snapshots: 6,
    drafts: DRAFTS,
};

/// Some requests, greedy and drawn, with a beginning in common.
pub(crate) fn requests(random: &mut Random) -> Vec<Request> {
    let header = random.ids(60);
    let request = |random: &mut Random, i: usize| {
        let mut prompt = if i.is_multiple_of(2) { header.clone() } else { Vec::new() };
        let more = 1 + random.below(60);
        prompt.extend(random.ids(more));
        let params = SamplingParams {
            temperature: [0.0, 0.7][i % 2],
            presence_penalty: [0.0, 0.0, 0.4][i % 3],
            seed: Some(i as u64),
            logprobs: Some(2),
            ..SamplingParams::default()
        };
        // Tokens after which the text is kept: drafts may not be read beyond.
        let boundary_ids = (0..20).collect();
        Request { params, boundary_ids, ..Request::new(prompt, 1 + random.below(40) as usize) }
    };
    (0..6).map(|i| request(random, i)).collect()
}

/// All requests at once, one more joining every few steps.
pub(crate) fn together(engine: &mut Engine, requests: &[Request]) -> Vec<Answer> {
    let live = engine.executor().usage().live;
    let (mut rows, mut events) = (BTreeMap::new(), Vec::new());
    let mut answers = vec![Answer::default(); requests.len()];
    let mut left = requests.iter().enumerate();
    for step in 0.. {
        if step % 3 == 0
            && let Some((i, request)) = left.next()
        {
            rows.insert(engine.submit(request.clone()).unwrap(), i);
        }
        engine.step(&mut events).unwrap();
        assert_eq!(engine.executor().usage().live, live);
        events.drain(..).for_each(|e| answers[rows[&e.row()]].take(&e));
        if engine.rows() == 0 && left.len() == 0 {
            break;
        }
    }
    answers
}

fn drafts_change_nothing(family: &str) {
    let mut random = Random(9);
    let requests = requests(&mut random);
    let mut plain = engine(family, Room { rows: 1, snapshots: 0, drafts: 0, ..ROOM });
    let alone: Vec<Answer> = requests.iter().map(|r| answer(&mut plain, r.clone())).collect();
    let texts = requests.iter().zip(&alone).map(|(request, answer)| {
        let mut text = request.prompt.clone();
        text.extend(&answer.ids);
        text
    });
    let dice = Dice { random, texts: texts.collect() };
    let room = Room { rows: ROOM.rows, snapshots: 0, ..ROOM };
    let of_model = |seed| {
        let main = executor(family, ROOM, 3);
        let drafter = DraftModel::new(executor(family, room, seed), DRAFTS, &main).unwrap();
        (main, Box::new(drafter) as Box<dyn Draft>)
    };
    let cases: [(&str, _); 4] = [
        ("dice", (executor(family, ROOM, 3), Box::new(dice) as Box<dyn Draft>)),
        ("lookup", (executor(family, ROOM, 3), Box::new(Lookup::new(DRAFTS, 3, 1)))),
        ("itself", of_model(3)),
        ("another model", of_model(4)),
    ];
    for (name, (exec, drafter)) in cases {
        let mut engine = Engine::new(exec).with_drafts(drafter);
        for round in 0..2 {
            let answers = together(&mut engine, &requests);
            for (i, (answer, alone)) in answers.iter().zip(&alone).enumerate() {
                let same = answer.said() == alone.said();
                let at = answer.bits.iter().zip(&alone.bits).position(|(a, b)| a != b);
                let cached = answer.cached;
                assert!(
                    same,
                    "{family}: {name}, request {i}, {round}: from {at:?}, {cached} cached"
                );
            }
        }
        let Stats { drafted, accepted, steps, generated_tokens, .. } = engine.stats();
        assert!(engine.draft_error().is_none());
        match name {
            "dice" => assert!(0 < accepted && accepted < drafted, "{accepted} of {drafted}"),
            // Drafts end where the text is kept, and penalties look at what is not there yet.
            "itself" => assert!(accepted * 2 > drafted, "{accepted} of {drafted}"),
            _ => {}
        }
        assert!(name != "itself" || steps < generated_tokens, "{steps} for {generated_tokens}");
        engine.clear_prefixes();
        assert!(engine.executor().all_free());
    }
}

each_family!(drafts_change_nothing);

/// Only even ids.
struct Even(usize);

impl TokenMask for Even {
    fn apply(&mut self, logits: &mut [f32]) -> Result<()> {
        logits.iter_mut().skip(1).step_by(2).for_each(|l| *l = f32::NEG_INFINITY);
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        self.0 += 1;
        if id.is_multiple_of(2) { Ok(()) } else { Err(Error::usage("an odd id")) }
    }

    fn fork(&self) -> Box<dyn TokenMask> {
        Box::new(Even(self.0))
    }
}

#[test]
fn masks_hold_under_drafts() {
    let main = executor("qwen3_next", ROOM, 3);
    let drafter = executor("qwen3_next", Room { snapshots: 0, ..ROOM }, 3);
    let drafter = DraftModel::new(drafter, DRAFTS, &main).unwrap();
    let mut engine = Engine::new(main).with_drafts(Box::new(drafter));
    let mut plain = crate::answers::engine("qwen3_next", Room { drafts: 0, ..ROOM });
    let mask = Some(Mask(Box::new(Even(0))));
    let request = Request { mask, ..crate::answers::asked(&[5, 6, 7], 30) };
    let even = answer(&mut engine, request.clone());
    assert!(even.ids.iter().all(|id| id % 2 == 0));
    assert_eq!(even.said(), answer(&mut plain, request).said());
}

/// A drafter that fails takes nobody with it.
#[test]
fn a_drafter_that_fails_is_one_no_more() {
    struct Fails;
    impl Draft for Fails {
        fn most(&self) -> usize {
            DRAFTS
        }
        fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
            asks.iter_mut().for_each(|ask| ask.drafts.push(1));
            Err(Error::usage("no"))
        }
        fn release(&mut self, _: u64) {}
    }
    let mut engine = Engine::new(executor("llama", ROOM, 3)).with_drafts(Box::new(Fails));
    let answer = answer(&mut engine, crate::answers::asked(&[1, 2], 20));
    assert_eq!(answer.ids.len(), 20);
    assert!(engine.draft_error().is_some());
    assert_eq!(engine.stats().drafted, 0);
}

#[test]
fn a_draft_model_of_another_shape_is_refused() {
    let main = executor("llama", ROOM, 3);
    for room in [
        Room { drafts: DRAFTS - 1, ..ROOM },
        Room { rows: ROOM.rows - 1, ..ROOM },
        Room { context: CONTEXT - 1, ..ROOM },
    ] {
        let error = DraftModel::new(executor("llama", room, 3), DRAFTS, &main).err().unwrap();
        assert!(error.to_string().contains("draft model"), "{error}");
    }
}
