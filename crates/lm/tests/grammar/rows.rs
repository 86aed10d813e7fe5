//! Rows with grammars in the engine: beside others, with drafts, without a place for a while, and to their ends.

use longrun_lm::Kind;
use longrun_lm::cache::Room;
use longrun_lm::draft::{Ask, Draft, DraftModel, Lookup};
use longrun_lm::engine::{Engine, Event, FinishReason, Mask, Request};
use longrun_lm::grammar::{Grammar, Reasoning};
use longrun_lm::sample::SamplingParams;
use serde_json::{Value, json};

use crate::answers::{Answer, CONTEXT, ROOMY, Random, answer, asked, engine, executor};
use crate::families::each_family;
use crate::valid::wrong;
use crate::world::small;

const DRAFTS: usize = 4;
const ROOM: Room = Room {
    rows: 4,
    context: CONTEXT,
    tokens: 3 * CONTEXT,
    chunk: 48,
    snapshots: 4,
    drafts: DRAFTS,
};
const END: u32 = 0;

/// What makes for texts of some length with much that repeats.
fn schema() -> Value {
    let item = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
        "on": {"type": "boolean"}}, "required": ["name", "on"], "additionalProperties": false});
    json!({"type": "array", "items": item, "minItems": 3, "maxItems": 6})
}

fn request(prompt: &[u32], seed: u64, mask: Option<Mask>) -> Request {
    let params = SamplingParams {
        temperature: 1.0,
        seed: Some(seed),
        logprobs: Some(2),
        ..SamplingParams::default()
    };
    let stop_ids = [END].into();
    Request { params, mask, stop_ids, ..Request::new(prompt.to_vec(), 240) }
}

/// All requests at once.
fn together(engine: &mut Engine, requests: &[Request]) -> Vec<Answer> {
    let rows: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    let (mut answers, mut events) = (vec![Answer::default(); rows.len()], Vec::new());
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
        for event in events.drain(..) {
            answers[rows.iter().position(|row| *row == event.row()).unwrap()].take(&event);
        }
    }
    answers
}

/// Three of the four have a grammar.
fn requests() -> Vec<Request> {
    let world = small(&[END]);
    let mask = world.mask(&Grammar::json_schema(&schema()));
    let reasoning =
        Reasoning { open: None, close: [3, 4].into(), most: Some(20), forbidden: [END].into() };
    let mut random = Random(4);
    vec![
        request(&random.ids(30), 1, Some(mask.clone())),
        request(&random.ids(70), 2, None),
        request(&random.ids(9), 3, Some(mask.clone())),
        request(&random.ids(40), 4, Some(reasoning.mask(Some(mask)))),
    ]
}

fn assert_valid(answer: &Answer, from: usize) {
    let world = small(&[END]);
    let text = world.text(&answer.ids[from..]);
    match answer.end {
        Some(FinishReason::Stop) => {
            assert_eq!(answer.ids.last(), Some(&END));
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
            let wrong = wrong(&value, &schema(), &schema());
            assert!(wrong.is_none(), "{text:?}: {wrong:?}");
        }
        // Cut short is the one way to be no JSON.
        Some(FinishReason::Length) => assert_eq!(answer.ids.len(), 240),
        None => panic!("no end: {text:?}"),
    }
}

/// Guesses the text that will be, with tokens in it that no grammar allows.
struct Wrong(Vec<Vec<u32>>);

impl Draft for Wrong {
    fn most(&self) -> usize {
        DRAFTS
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> longrun_lm::Result<()> {
        for ask in asks {
            let Some(text) = self.0.iter().find(|text| text.starts_with(ask.ids)) else { continue };
            let right = text[ask.ids.len()..].iter().copied();
            // A marker of calls.
            ask.drafts.extend(right.take(ask.ids.len() % DRAFTS).chain([1]).take(ask.most));
        }
        Ok(())
    }

    fn release(&mut self, _: u64) {}
}

fn grammars_change_with_nothing(family: &str) {
    let requests = requests();
    let alone = |request: &Request| {
        let room = Room { rows: 1, snapshots: 0, drafts: 0, ..ROOM };
        answer(&mut Engine::new(executor(family, room, 3)), request.clone())
    };
    let alone: Vec<Answer> = requests.iter().map(alone).collect();
    assert_valid(&alone[0], 0);
    assert_valid(&alone[2], 0);
    let close = alone[3].ids.windows(2).position(|ids| ids == [3, 4]).unwrap();
    assert!(close <= 20, "{close}");
    assert_valid(&alone[3], close + 2);
    let bare = Request { mask: None, ..requests[0].clone() };
    let without = answer(&mut Engine::new(executor(family, ROOM, 3)), bare);
    assert!(without.ids != alone[0].ids, "the mask does something");

    let main = executor(family, ROOM, 3);
    let itself = executor(family, Room { snapshots: 0, ..ROOM }, 3);
    let itself = DraftModel::new(itself, DRAFTS, &main).unwrap();
    let texts = requests.iter().zip(&alone).map(|(r, a)| [&r.prompt[..], &a.ids].concat());
    // Blocks for one long text: rows lose their places.
    let tight = Room { context: 320, tokens: 320, snapshots: 0, ..ROOM };
    let engines = [
        ("together", Engine::new(executor(family, ROOM, 3))),
        (
            "lookup",
            Engine::new(executor(family, ROOM, 3)).with_drafts(Box::new(Lookup::new(DRAFTS, 3, 1))),
        ),
        ("itself", Engine::new(main).with_drafts(Box::new(itself))),
        (
            "wrong",
            Engine::new(executor(family, ROOM, 3)).with_drafts(Box::new(Wrong(texts.collect()))),
        ),
        ("tight", Engine::new(executor(family, tight, 3))),
    ];
    for (name, mut engine) in engines {
        for (i, (got, alone)) in together(&mut engine, &requests).iter().zip(&alone).enumerate() {
            assert!(got.said() == alone.said(), "{family}: {name}: request {i}");
        }
        let stats = engine.stats();
        assert_eq!(engine.draft_error(), None);
        match name {
            "tight" => assert!(stats.preempted > 0, "{family}: nobody lost its place"),
            "together" => {}
            _ => assert!(0 < stats.accepted && stats.accepted < stats.drafted, "{name}: {stats:?}"),
        }
        engine.clear_prefixes();
        assert!(engine.executor().all_free());
    }
}

each_family!(grammars_change_with_nothing: llama qwen3_next gemma3);

fn masked(mask: Mask) -> Request {
    Request { mask: Some(mask), ..asked(&[5, 6, 7], 50) }
}

#[test]
fn a_row_ends_with_its_form() {
    // No id ends a text, neither for the grammar nor for the request.
    let world = small(&[]);
    let mut engine = engine("llama", ROOMY);
    let said = answer(&mut engine, masked(world.mask(&Grammar::regex("(abc|z1){3}"))));
    assert_eq!(said.end, Some(FinishReason::Stop));
    let text = world.text(&said.ids);
    assert_eq!(text.replace("abc", "").replace("z1", ""), "", "{text}");
    // The grammar's end of text ends the row, though the request knows none.
    let said = answer(
        &mut engine,
        masked(small(&[END]).mask(&Grammar::choice(&["ab".into(), "abc".into()]))),
    );
    assert_eq!((said.end, said.ids.last()), (Some(FinishReason::Stop), Some(&END)));
    assert!(["ab", "abc"].contains(&&*small(&[END]).text(&said.ids)));
}

/// Of a grammar that leads to a letter that the vocabulary can't write, and of one for another vocabulary.
#[test]
fn a_mask_that_fails_ends_its_row_alone() {
    let world = small(&[END]);
    let bare = Request::new(vec![9, 10], 12);
    let mut engine = engine("llama", ROOMY);
    let alone = answer(&mut engine, bare.clone());
    for (mask, kind) in [
        (world.mask(&Grammar::lark("start: \"abcabc\" \"日\"")), Kind::Limit),
        (crate::world::DEMO.mask(&Grammar::json_object()), Kind::Bug),
    ] {
        let (failing, other) =
            (engine.submit(masked(mask)).unwrap(), engine.submit(bare.clone()).unwrap());
        let (mut events, mut beside, mut error) = (Vec::new(), Answer::default(), None);
        while engine.rows() > 0 {
            engine.step(&mut events).unwrap();
            for event in events.drain(..) {
                match event {
                    Event::Failed { row, error: e } if row == failing => error = Some(e),
                    event if event.row() == other => beside.take(&event),
                    _ => {}
                }
            }
        }
        let error = error.unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(beside.ids, alone.ids);
        engine.clear_prefixes();
        assert!(engine.executor().all_free());
    }
}
