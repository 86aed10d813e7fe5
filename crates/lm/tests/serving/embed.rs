//! Texts of an embedder beside others: the same bits, all memory back, and faults that end no more than they must.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, mpsc};

use longrun_array::{CpuDevice, CpuOptions, Device};
use longrun_lm::Result;
use longrun_lm::cache::Room;
use longrun_lm::embed::{Done, EmbedService, Embedder, JobId, Pooling, PoolingMode};
use longrun_lm::executor::Executor;
use longrun_lm::weights::Source;

use crate::answers::Random;
use crate::families::{self, each_family};
use crate::faulty::{Call, Faulty};

const CONTEXT: usize = 200;
const ROOM: Room =
    Room { rows: 3, context: CONTEXT, tokens: 300, chunk: 32, snapshots: 0, drafts: 0 };

const MODES: [PoolingMode; 3] = [PoolingMode::Mean, PoolingMode::Cls, PoolingMode::Last];

fn embedder_on(device: Box<dyn Device>, family: &str, mode: PoolingMode, room: Room) -> Embedder {
    let pooling = Pooling { mode, normalize: mode != PoolingMode::Cls };
    let (setup, config) = (Embedder::setup(pooling, room), families::config(family));
    let exec = Executor::new(device, &config, Source::Seed(3), setup, &|_, _| {}).unwrap();
    Embedder::new(exec, pooling).unwrap()
}

fn embedder(family: &str, mode: PoolingMode, room: Room) -> Embedder {
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    embedder_on(Box::new(device), family, mode, room)
}

fn texts(seed: u64, count: usize) -> Vec<Vec<u32>> {
    let mut random = Random(seed);
    let mut length = |i: usize| match i % 4 {
        0 => 1 + random.below(4),
        1 => CONTEXT as u64,
        _ => 1 + random.below(CONTEXT as u64),
    };
    let lengths: Vec<u64> = (0..count).map(&mut length).collect();
    lengths.into_iter().enumerate().map(|(i, n)| Random(seed + i as u64).ids(n)).collect()
}

fn bits(vectors: &[Vec<f32>]) -> Vec<Vec<u32>> {
    vectors.iter().map(|vector| vector.iter().map(|x| x.to_bits()).collect()).collect()
}

/// A text's vector is the same alone and beside others, in any room; nothing is left of it.
fn as_if_alone(family: &str) {
    let texts = texts(7, 9);
    for mode in MODES {
        let mut one = embedder(family, mode, Room { rows: 1, chunk: 512, ..ROOM });
        let alone: Vec<_> = texts
            .iter()
            .map(|ids| one.embed(std::slice::from_ref(ids)).unwrap().remove(0))
            .collect();
        for room in [ROOM, Room { rows: 5, tokens: 2000, chunk: 7, ..ROOM }] {
            let mut many = embedder(family, mode, room);
            let live = many.executor().usage().live;
            for _ in 0..2 {
                assert_eq!(bits(&many.embed(&texts).unwrap()), bits(&alone), "{family}, {mode:?}");
                assert!(many.executor().all_free());
                assert_eq!(many.executor().usage().live, live);
            }
            assert_eq!(many.stats().finished, 2 * texts.len() as u64);
        }
    }
}

each_family!(as_if_alone);

/// Rows share steps, and wait for blocks.
#[test]
fn texts_share_steps_and_wait_for_blocks() {
    let mut embedder = embedder("llama", PoolingMode::Last, Room { rows: 4, ..ROOM });
    let short: Vec<_> = (0..4).map(|i| Random(i).ids(4)).collect();
    embedder.embed(&short).unwrap();
    assert_eq!(embedder.stats().steps, 1);
    for i in 0..3 {
        embedder.submit(Random(i).ids(CONTEXT as u64)).unwrap();
    }
    let mut done = Vec::new();
    while embedder.texts() != (0, 0) {
        embedder.step(&mut done).unwrap();
        // Two of them do not fit into 300 tokens.
        assert!(embedder.texts().0 <= 1);
    }
    assert!(done.len() == 3 && done.iter().all(|(_, vector)| vector.is_ok()));
}

#[test]
fn a_text_that_is_cancelled_leaves_nothing() {
    for family in ["llama", "qwen3_next"] {
        let mut embedder = embedder(family, PoolingMode::Mean, ROOM);
        let texts = texts(3, 8);
        let alone: Vec<_> = embedder.embed(&texts).unwrap();
        let ids: Vec<_> = texts.iter().map(|ids| embedder.submit(ids.clone()).unwrap()).collect();
        let mut done: Vec<Done> = Vec::new();
        embedder.step(&mut done).unwrap();
        // One in service, one that waits, one that is not known.
        for gone in [ids[1], ids[6], ids[6]] {
            embedder.cancel(gone);
        }
        while embedder.texts() != (0, 0) {
            embedder.step(&mut done).unwrap();
        }
        assert!(embedder.executor().all_free());
        done.sort_by_key(|(id, _)| *id);
        let wanted: Vec<_> = (0..8).filter(|i| ![1, 6].contains(i)).collect();
        assert!(done.iter().map(|(id, _)| *id).eq(wanted.iter().map(|i| ids[*i])));
        for ((_, vector), i) in done.iter().zip(wanted) {
            assert_eq!(vector.as_ref().unwrap(), &alone[i], "{family}");
        }
    }
}

fn faulty(family: &str, call: Call, panics: bool) -> (Embedder, Arc<AtomicI64>) {
    let (device, left) = Faulty::new(call, panics);
    (embedder_on(Box::new(device), family, PoolingMode::Mean, ROOM), left)
}

#[test]
fn a_fault_at_any_call_ends_the_texts_of_its_step() {
    for family in ["llama", "qwen3_next"] {
        let texts = texts(5, 6);
        let alone = embedder(family, PoolingMode::Mean, ROOM).embed(&texts).unwrap();
        for call in [Call::Launch, Call::Wait, Call::Download] {
            let (mut embedder, left) = faulty(family, call, false);
            let live = embedder.executor().usage().live;
            for after in 0..12 {
                left.store(after, Ordering::Relaxed);
                texts.iter().for_each(|ids| _ = embedder.submit(ids.clone()).unwrap());
                let mut done = Vec::new();
                while embedder.texts() != (0, 0) {
                    let _ = embedder.step(&mut done);
                    assert_eq!(embedder.executor().usage().live, live);
                }
                left.store(-1, Ordering::Relaxed);
                done.sort_by_key(|(id, _)| *id);
                assert!(done.iter().any(|(_, vector)| vector.is_err()), "{call:?} after {after}");
                for ((_, vector), alone) in done.iter().zip(&alone) {
                    assert!(vector.as_ref().is_err() || vector.as_ref().unwrap() == alone);
                }
                assert!(embedder.executor().all_free());
            }
            assert_eq!(embedder.embed(&texts).unwrap(), alone);
        }
    }
}

type Told = mpsc::Receiver<Result<Vec<Vec<f32>>>>;

fn submit(service: &EmbedService, texts: &[Vec<u32>]) -> (JobId, Told) {
    let (sender, told) = mpsc::channel();
    let answer = Box::new(move |vectors| _ = sender.send(vectors));
    (service.submit(texts.to_vec(), answer).unwrap(), told)
}

#[test]
fn a_service_answers_jobs_and_forgets_those_that_are_cancelled() {
    let texts = texts(11, 12);
    let mut plain = embedder("qwen3_next", PoolingMode::Mean, ROOM);
    let alone = plain.embed(&texts).unwrap();
    let service = EmbedService::start(plain).unwrap();
    let (first, second) = (submit(&service, &texts[..5]), submit(&service, &texts[5..]));
    let (gone, unheard) = submit(&service, &texts);
    service.cancel(gone);
    assert!(unheard.recv().is_err(), "nobody is told of a cancelled job");
    assert_eq!(first.1.recv().unwrap().unwrap(), alone[..5]);
    assert_eq!(second.1.recv().unwrap().unwrap(), alone[5..]);
    service.cancel(first.0);
    assert!(submit(&service, &[]).1.recv().unwrap().unwrap().is_empty());
    assert!(service.submit(vec![vec![1], vec![]], Box::new(|_| ())).is_err());
    // A reader that panics ends nothing but itself.
    service.submit(vec![vec![1]], Box::new(|_| panic!("a reader"))).unwrap();
    assert_eq!(submit(&service, &texts[..2]).1.recv().unwrap().unwrap(), alone[..2]);
    let (_, under_way) = submit(&service, &texts);
    let embedder = service.stop().unwrap();
    assert!(under_way.recv().is_err() || embedder.stats().finished > 30);
    assert!(embedder.executor().all_free() && embedder.texts() == (0, 0));
}

#[test]
fn a_panic_in_the_loop_is_an_error_of_its_jobs() {
    let texts = texts(13, 6);
    let alone = embedder("llama", PoolingMode::Mean, ROOM).embed(&texts).unwrap();
    let (embedder, left) = faulty("llama", Call::Launch, true);
    let service = EmbedService::start(embedder).unwrap();
    left.store(2, Ordering::Relaxed);
    let error = submit(&service, &texts).1.recv().unwrap().unwrap_err();
    assert!(error.to_string().contains("panic"), "{error}");
    assert_eq!(submit(&service, &texts).1.recv().unwrap().unwrap(), alone);
    assert!(service.stop().unwrap().executor().all_free());
}
