//! The queue and the service around the engine.

use longrun_lm::cache::Room;
use longrun_lm::engine::{Event, FinishReason, Priority, Request, Service};

use crate::answers::{Answer, ROOMY, Random, asked, engine};

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
