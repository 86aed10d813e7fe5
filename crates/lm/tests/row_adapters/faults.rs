//! A device that fails while adapters come or rows with them are read: a slot has its adapter or is empty, and is given
//! back with its rows.

use std::sync::atomic::Ordering;

use longrun_lm::engine::Engine;

use crate::faulty::{Call, Faulty};
use crate::make::{Layout, ROOM, adapter, bits, executor, golden, logits, made, prompt, setup};
use crate::serving::{request, say};

#[test]
fn a_slot_whose_adapter_did_not_arrive_is_empty() {
    let (device, left) = Faulty::new(Call::Upload, false);
    let mut exec = made(Box::new(device), &golden("llama"), setup(2, ROOM)).unwrap();
    let [one, two] = [1, 2].map(|seed| adapter("llama", Layout::Peft, 4, seed));
    exec.load_adapter(2, &two).unwrap();
    let rows = [0, 2].map(|adapter| (prompt(20, 1), adapter));
    let (live, want) = (exec.usage(), logits(&mut exec, &rows, 20));
    let mut faults = 0;
    loop {
        exec.load_adapter(1, &two).unwrap();
        left.store(faults, Ordering::Relaxed);
        let arrived = exec.load_adapter(1, &one);
        left.store(-1, Ordering::Relaxed);
        if arrived.is_ok() {
            break;
        }
        faults += 1;
        assert_eq!(exec.adapter(1), None);
        let mut seq = exec.admit(20).unwrap();
        assert!(exec.use_adapter(&mut seq, 1).is_err());
        exec.release(seq);
        if faults % 7 == 0 {
            let got = logits(&mut exec, &rows, 20);
            assert!((0..2).all(|i| bits(&got[i]) == bits(&want[i])), "after {faults} faults");
        }
        assert_eq!(exec.usage(), live);
    }
    assert!(faults > 20, "{faults} uploads");
    let mut plain = executor(&golden("llama"), 1, ROOM, false);
    plain.load_adapter(1, &one).unwrap();
    let row = [(prompt(20, 1), 1)];
    assert!(bits(&logits(&mut exec, &row, 20)[0]) == bits(&logits(&mut plain, &row, 20)[0]));
}

#[test]
fn rows_that_fail_give_their_slot_back() {
    let family = "qwen3_next";
    let [one, other] = [1, 2].map(|seed| adapter(family, Layout::Peft, 4, seed));
    let mut plain = Engine::new(executor(&golden(family), 1, ROOM, false));
    plain.set_adapter(1, Some(&one)).unwrap();
    let want = say(&mut plain, request(60, 1)).1;
    for call in [Call::Launch, Call::Wait, Call::Download, Call::Copy] {
        let (device, left) = Faulty::new(call, false);
        let exec = made(Box::new(device), &golden(family), setup(1, ROOM)).unwrap();
        let (mut engine, mut failed) = (Engine::new(exec), 0);
        for after in 0..6 {
            engine.set_adapter(1, Some(&one)).unwrap();
            for adapter in [1, 0, 1] {
                engine.submit(request(60, adapter)).unwrap();
            }
            left.store(after, Ordering::Relaxed);
            let mut events = Vec::new();
            while engine.rows() > 0 {
                failed += usize::from(engine.step(&mut events).is_err());
            }
            left.store(-1, Ordering::Relaxed);
            engine.set_adapter(1, Some(&other)).unwrap();
            assert_ne!(say(&mut engine, request(60, 1)).1, want, "{call:?} after {after}");
            engine.set_adapter(1, Some(&one)).unwrap();
            assert_eq!(say(&mut engine, request(60, 1)).1, want, "{call:?} after {after}");
        }
        assert!(failed > 0 || call == Call::Copy, "{call:?} never failed");
        engine.clear_prefixes();
        assert!(engine.executor().all_free());
    }
}
