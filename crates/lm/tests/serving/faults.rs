//! Faults at every stage: a device that fails at its n-th launch, wait, copy or download. Rows of the step end with the
//! error, all memory is back, and whoever comes next is answered as if nothing had been.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use longrun_lm::cache::Room;
use longrun_lm::draft::Mtp;
use longrun_lm::engine::{Engine, Event, Request, Service};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::prefix::Miss;
use longrun_lm::weights::Source;

use crate::answers::{CONTEXT, Random, answer, asked, engine};
use crate::families;
use crate::faulty::{Call, Faulty};

const ROOM: Room =
    Room { rows: 2, context: CONTEXT, tokens: 2 * CONTEXT, chunk: 32, snapshots: 6, drafts: 0 };

fn faulty(family: &str, call: Call, panics: bool) -> (Engine, Arc<AtomicI64>) {
    let (exec, left) = faulty_executor(family, call, panics, Setup::new(ROOM));
    (Engine::new(exec), left)
}

fn faulty_executor(
    family: &str,
    call: Call,
    panics: bool,
    setup: Setup,
) -> (Executor, Arc<AtomicI64>) {
    let (device, left) = Faulty::new(call, panics);
    let config = families::config(family);
    let exec =
        Executor::new(Box::new(device), &config, Source::Seed(3), setup, &|_, _| {}).unwrap();
    (exec, left)
}

fn requests() -> [Request; 3] {
    let header = Random(7).ids(90);
    [0, 1, 2].map(|i| {
        let mut prompt = header.clone();
        prompt.extend(Random(i).ids(20));
        Request { boundaries: vec![90], ..asked(&prompt, 8) }
    })
}

#[test]
fn a_fault_at_any_call_ends_its_rows_only() {
    for (family, calls) in [
        ("llama", [Call::Launch, Call::Wait, Call::Download, Call::Copy]),
        ("qwen3_next", [Call::Launch, Call::Wait, Call::Download, Call::Copy]),
    ] {
        let mut plain = engine(family, Room { snapshots: 0, ..ROOM });
        let alone = requests().map(|request| answer(&mut plain, request));
        for call in calls {
            let (mut engine, left) = faulty(family, call, false);
            let live = engine.executor().usage().live;
            let mut faults = 0;
            for after in 0..40 {
                left.store(after, Ordering::Relaxed);
                let rows = requests().map(|request| engine.submit(request).unwrap());
                let (mut events, mut failed) = (Vec::new(), Vec::new());
                while engine.rows() > 0 {
                    // The error of the step is told to each of its rows.
                    let _ = engine.step(&mut events);
                    assert_eq!(engine.executor().usage().live, live);
                }
                events.iter().filter(|e| matches!(e, Event::Failed { .. })).for_each(|event| {
                    failed.push(event.row());
                });
                faults += failed.len();
                left.store(-1, Ordering::Relaxed);
                for (row, alone) in rows.iter().zip(&alone) {
                    let ids: Vec<u32> = events
                        .iter()
                        .filter_map(|event| match event {
                            Event::Token { row: of, choice } if of == row => Some(choice.id),
                            _ => None,
                        })
                        .collect();
                    assert!(alone.ids.starts_with(&ids), "{family}: {call:?} after {after}");
                    assert!(failed.contains(row) || ids == alone.ids);
                }
                for (request, alone) in requests().into_iter().zip(&alone) {
                    assert_eq!(answer(&mut engine, request).said(), alone.said());
                }
                if after % 2 == 0 {
                    engine.clear_prefixes();
                    assert!(engine.executor().all_free());
                }
            }
            assert!(faults > 0, "{family}: {call:?} never failed");
        }
    }
}

/// A step of the head that fails takes no row with it; there are no drafts any more.
#[test]
fn a_fault_of_the_head_ends_the_drafts_only() {
    for family in ["qwen3_5", "deepseek_v3"] {
        let mut plain = engine(family, Room { snapshots: 0, ..ROOM });
        let alone = requests().map(|request| answer(&mut plain, request));
        let mut of_head = 0;
        for (call, after) in [Call::Launch, Call::Wait, Call::Download, Call::Copy]
            .into_iter()
            .flat_map(|call| (0..12).map(move |after| (call, after)))
        {
            let setup = Setup { mtp: true, ..Setup::new(Room { drafts: 3, ..ROOM }) };
            let (exec, left) = faulty_executor(family, call, false, setup);
            let drafter = Mtp::new(3, &exec).unwrap();
            let mut engine = Engine::new(exec).with_drafts(Box::new(drafter));
            let live = engine.executor().usage().live;
            left.store(after, Ordering::Relaxed);
            let rows = requests().map(|request| engine.submit(request).unwrap());
            let mut events = Vec::new();
            while engine.rows() > 0 {
                let _ = engine.step(&mut events);
                assert_eq!(engine.executor().usage().live, live);
            }
            let failed = events.iter().any(|e| matches!(e, Event::Failed { .. }));
            if engine.draft_error().is_some() {
                of_head += 1;
                assert!(!failed, "{family}: {call:?} after {after}: {events:?}");
            }
            for (row, alone) in rows.iter().zip(&alone).filter(|_| !failed) {
                let ids = events.iter().filter_map(|event| match event {
                    Event::Token { row: of, choice } if of == row => Some(choice.id),
                    _ => None,
                });
                assert!(ids.eq(alone.ids.iter().copied()), "{family}: {call:?} after {after}");
            }
            for (request, alone) in requests().into_iter().zip(&alone) {
                assert_eq!(answer(&mut engine, request).said(), alone.said());
            }
            engine.clear_prefixes();
            assert!(engine.executor().all_free());
        }
        assert!(of_head > 0, "{family}");
    }
}

/// A row that failed leaves nothing behind that later texts might begin with.
#[test]
fn what_a_failed_row_had_kept_goes_with_it() {
    let (mut engine, left) = faulty("qwen3_next", Call::Launch, false);
    let request = requests()[0].clone();
    engine.submit(request.clone()).unwrap();
    left.store(4, Ordering::Relaxed);
    let mut events = Vec::new();
    while engine.rows() > 0 {
        let _ = engine.step(&mut events);
    }
    assert!(matches!(events.last(), Some(Event::Failed { .. })), "{events:?}");
    assert!(engine.prefixes().is_empty());
    assert_eq!(answer(&mut engine, request).miss, Some(Miss::Unknown));
}

/// A panic in a step ends what is in the engine, and the service goes on.
#[test]
fn a_panic_in_the_loop_is_an_error_of_its_rows() {
    let (engine, left) = faulty("qwen3_next", Call::Copy, true);
    let service = Service::start(engine).unwrap();
    left.store(2, Ordering::Relaxed);
    let events: Vec<Event> = service.submit(requests()[0].clone()).unwrap().collect();
    let Some(Event::Failed { error, .. }) = events.last() else { panic!("{events:?}") };
    assert!(error.to_string().contains("panicked"), "{error}");
    let events = service.submit(requests()[1].clone()).unwrap();
    assert_eq!(events.filter(|e| matches!(e, Event::Token { .. })).count(), 8);
    let view = service.look().unwrap();
    assert_eq!((view.running, view.waiting), (0, 0));
}
