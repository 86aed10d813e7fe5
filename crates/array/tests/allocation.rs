//! A replay allocates nothing on the host. One test only: the count is of the whole process, the test harness included.

mod common;

use std::time::Duration;

use common::small::{COLS, at, prepared, replay};
use common::{cpu, null, one, threads};
use longrun_array::counting::{CountingAllocator, calls};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

#[test]
fn replays_allocate_nothing() {
    the_allocator_counts();
    a_thousand_replays();
    a_hundred_thousand_null_replays();
}

fn the_allocator_counts() {
    let before = calls();
    let kept = std::hint::black_box(vec![1_u8; 100]);
    assert!(calls() > before, "{}", kept.len());
}

fn a_thousand_replays() {
    for make in [|| cpu(threads(1)), || cpu(threads(2)), null] {
        let (mut rt, _m) = prepared(make(), &[one()]);
        let (mut inputs, mut result, mut row) = (rt.inputs(), [0.0; COLS], at(0));
        for past in 0..4 {
            row.past = past;
            replay(&mut rt, &mut inputs, &row, &mut result);
        }
        settle();
        let (before, live) = (calls(), rt.usage());
        for past in 4..1004 {
            row.past = past;
            row.ids[0] = past as u32 % 50;
            replay(&mut rt, &mut inputs, &row, &mut result);
        }
        let made = calls() - before;
        assert_eq!(made, 0, "{}", rt.device_name());
        assert_eq!(rt.usage(), live, "{}", rt.device_name());
        assert!(result.iter().all(|x| x.is_finite()));
    }
}

/// Lets every thread of the process start and come to rest: new workers and the test harness.
fn settle() {
    std::thread::sleep(Duration::from_millis(50));
}

fn a_hundred_thousand_null_replays() {
    let (mut rt, _m) = prepared(null(), &[one()]);
    let (mut inputs, mut result, mut row) = (rt.inputs(), [1.0; COLS], at(0));
    replay(&mut rt, &mut inputs, &row, &mut result);
    settle();
    let (before, usage) = (calls(), rt.usage());
    for past in 1..100_000 {
        row.past = past;
        replay(&mut rt, &mut inputs, &row, &mut result);
        assert_eq!(rt.usage().live, usage.live);
    }
    assert_eq!(calls(), before);
    assert_eq!(rt.usage(), usage);
    assert_eq!(result, [0.0; COLS]);
}
