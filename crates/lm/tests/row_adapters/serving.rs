//! Adapters in the engine: kept beginnings stay with their adapter, in memory and on disk; drafts change nothing; a slot
//! in use is left alone.

use longrun_lm::Kind;
use longrun_lm::cache::Room;
use longrun_lm::draft::{DraftModel, Lookup};
use longrun_lm::engine::{Engine, Event, Request, RowId, Service};
use longrun_lm::prefix::disk::{Ignored, Why};

use crate::make::{Layout, ROOM, Scratch, adapter, executor, golden, prompt};

/// With adapters in the first two of three slots.
fn engine(family: &str, room: Room) -> Engine {
    let mut engine = Engine::new(executor(&golden(family), 3, room, false));
    for slot in [1, 2] {
        engine.set_adapter(slot, Some(&adapter(family, Layout::Peft, 4, slot as u64))).unwrap();
    }
    engine
}

pub(crate) fn request(len: usize, adapter: usize) -> Request {
    Request { adapter, ..Request::new(prompt(len, 3), 12) }
}

fn run(engine: &mut Engine) -> Vec<Event> {
    let mut events = Vec::new();
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
    }
    events
}

/// How many tokens of the prompt were kept, and the text.
fn of_row(events: &[Event], who: RowId) -> (usize, Vec<u32>) {
    let mut of = (usize::MAX, Vec::new());
    for event in events.iter().filter(|event| event.row() == who) {
        match event {
            Event::Started { cached, .. } => of.0 = *cached,
            Event::Token { choice, .. } => of.1.push(choice.id),
            Event::Failed { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
    of
}

pub(crate) fn say(engine: &mut Engine, request: Request) -> (usize, Vec<u32>) {
    let row = engine.submit(request).unwrap();
    let events = run(engine);
    of_row(&events, row)
}

#[test]
fn kept_beginnings_stay_with_their_adapter() {
    for family in ["llama", "qwen3_next", "deepseek_v3"] {
        let cold = [0, 1, 2].map(|a| say(&mut engine(family, ROOM), request(70, a)).1);
        assert!(cold[0] != cold[1] && cold[1] != cold[2], "{family}: adapters change nothing");
        let mut warm = engine(family, ROOM);
        for round in 0..3 {
            for (a, cold) in cold.iter().enumerate() {
                let (cached, text) = say(&mut warm, request(70, a));
                assert_eq!(cached > 0, round > 0, "{family}: adapter {a}, round {round}");
                assert_eq!(&text, cold, "{family}: adapter {a}");
            }
        }
        // Another adapter in the slot, and the first one in another slot.
        let [one, two] = [1, 2].map(|seed| adapter(family, Layout::Peft, 4, seed));
        let three = adapter(family, Layout::Mlx, 3, 9);
        warm.set_adapter(1, Some(&three)).unwrap();
        warm.set_adapter(3, Some(&one)).unwrap();
        assert_eq!(say(&mut warm, request(70, 1)).0, 0, "{family}");
        let (cached, text) = say(&mut warm, request(70, 3));
        assert!(cached > 0 && text == cold[1], "{family}");
        warm.set_adapter(1, Some(&two)).unwrap();
        let (cached, text) = say(&mut warm, request(70, 1));
        assert!(cached > 0 && text == cold[2], "{family}");
        warm.clear_prefixes();
        assert!(warm.executor().all_free());
    }
}

#[test]
fn rows_of_all_adapters_are_served_together() {
    for family in ["llama", "qwen3_next", "deepseek_v3"] {
        let mut alone = engine(family, ROOM);
        let requests: Vec<Request> =
            (0..8).map(|i| request(20 + 11 * i, [0, 1, 2, 1][i % 4])).collect();
        let want: Vec<_> =
            requests.iter().map(|request| say(&mut alone, request.clone()).1).collect();
        let mut busy = engine(family, Room { tokens: 300, ..ROOM });
        let live = busy.executor().usage().live;
        let rows: Vec<_> = requests.into_iter().map(|r| busy.submit(r).unwrap()).collect();
        let events = run(&mut busy);
        for (row, want) in rows.into_iter().zip(want) {
            assert_eq!(of_row(&events, row).1, want, "{family}");
        }
        assert_eq!(busy.executor().usage().live, live);
    }
}

#[test]
fn drafts_change_nothing_for_rows_with_adapters() {
    let room = Room { drafts: 4, ..ROOM };
    for family in ["llama", "qwen3_next", "deepseek_v3"] {
        let plain = [0, 1, 2].map(|a| say(&mut engine(family, ROOM), request(40, a)).1);
        let lookup = engine(family, room).with_drafts(Box::new(Lookup::new(4, 3, 1)));
        let main = engine(family, room);
        let guess = executor(&golden(family), 0, room, false);
        let model = DraftModel::new(guess, 4, main.executor()).unwrap();
        for mut engine in [lookup, main.with_drafts(Box::new(model))] {
            let rows = [0, 1, 2].map(|a| engine.submit(request(40, a)).unwrap());
            let events = run(&mut engine);
            assert_eq!(rows.map(|row| of_row(&events, row).1), plain, "{family}");
            assert!(engine.stats().drafted > 0 && engine.draft_error().is_none(), "{family}");
        }
    }
}

#[test]
fn snapshots_on_disk_stay_with_their_adapter() {
    let scratch = Scratch::new("disk");
    let mut before = engine("qwen3_next", ROOM);
    let said = [0, 1, 2].map(|a| say(&mut before, request(70, a)).1);
    let saved = before.save_prefixes(&scratch.0).unwrap();
    assert!(saved.snapshots >= 3);
    let mut after = engine("qwen3_next", ROOM);
    let loaded = after.load_prefixes(&scratch.0).unwrap();
    assert_eq!((loaded.snapshots, loaded.ignored), (saved.snapshots, vec![]));
    for (a, said) in said.iter().enumerate() {
        let (cached, text) = say(&mut after, request(70, a));
        assert!(cached > 0 && text == *said, "adapter {a}");
    }
    // Nothing can go on from what was read with an adapter that is not there.
    let mut fewer = Engine::new(executor(&golden("qwen3_next"), 3, ROOM, false));
    fewer.set_adapter(2, Some(&adapter("qwen3_next", Layout::Peft, 4, 1))).unwrap();
    let loaded = fewer.load_prefixes(&scratch.0).unwrap();
    let [Ignored { snapshots: Some(ignored), why: Why::Adapter }] = loaded.ignored[..] else {
        panic!("{:?}", loaded.ignored)
    };
    assert!(loaded.snapshots > 0 && loaded.snapshots + ignored == saved.snapshots);
    let (cached, text) = say(&mut fewer, request(70, 2));
    assert!(cached > 0 && text == said[1], "the same adapter in another slot");
    assert!(fewer.load_prefixes(&scratch.0).unwrap().snapshots == 0);
}

#[test]
fn a_slot_in_use_is_left_alone() {
    let mut engine = engine("llama", Room { rows: 1, ..ROOM });
    let (one, other) = (request(40, 1), adapter("llama", Layout::Mlx, 4, 7));
    let want = say(&mut engine, one.clone()).1;
    let rows = [engine.submit(one.clone()).unwrap(), engine.submit(one.clone()).unwrap()];
    let refused = |engine: &mut Engine, slot, adapter, says: &str| {
        let error = engine.set_adapter(slot, adapter).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(says), "{error}");
    };
    // Both wait; then one is read and one waits.
    refused(&mut engine, 1, Some(&other), "slot 1 is in use by 2 requests");
    let mut events = Vec::new();
    engine.step(&mut events).unwrap();
    refused(&mut engine, 1, None, "slot 1 is in use by 2 requests");
    refused(&mut engine, 0, None, "no adapter slot 0");
    engine.set_adapter(2, None).unwrap();
    events.extend(run(&mut engine));
    rows.into_iter().for_each(|row| assert_eq!(of_row(&events, row).1, want));
    for slot in [2, 3, 4, usize::MAX] {
        let error = engine.submit(request(40, slot)).unwrap_err();
        assert!(error.to_string().contains("no adapter is in slot"), "{error}");
    }
    engine.set_adapter(1, Some(&other)).unwrap();
    assert_ne!(say(&mut engine, one).1, want);
}

#[test]
fn a_running_engine_takes_adapters() {
    let want = say(&mut engine("llama", ROOM), request(40, 1)).1;
    let service = Service::start(Engine::new(executor(&golden("llama"), 1, ROOM, false))).unwrap();
    let text = |request| -> Vec<Event> { service.submit(request).unwrap().collect() };
    assert!(matches!(&text(request(40, 1))[..], [Event::Failed { .. }]));
    let [adapter, other] = [1, 2].map(|seed| adapter("llama", Layout::Peft, 4, seed));
    service.set_adapter(1, Some(adapter)).unwrap();
    let events = text(request(40, 1));
    assert_eq!(of_row(&events, events[0].row()).1, want);
    assert!(service.set_adapter(2, Some(other)).is_err());
    service.set_adapter(1, None).unwrap();
    assert!(matches!(&text(request(40, 1))[..], [Event::Failed { .. }]));
}
