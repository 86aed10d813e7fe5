//! A replay allocates nothing on the host. One test only: the count is of the whole process, the test harness included.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::small::{COLS, at, prepared, replay};
use common::{cpu, null, one, threads};

/// Counts what the whole process allocates.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: hands everything to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[test]
fn replays_allocate_nothing() {
    the_allocator_counts();
    a_thousand_replays();
    a_hundred_thousand_null_replays();
}

fn the_allocator_counts() {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let kept = std::hint::black_box(vec![1_u8; 100]);
    assert!(ALLOCATIONS.load(Ordering::Relaxed) > before, "{}", kept.len());
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
        let (before, live) = (ALLOCATIONS.load(Ordering::Relaxed), rt.usage());
        for past in 4..1004 {
            row.past = past;
            row.ids[0] = past as u32 % 50;
            replay(&mut rt, &mut inputs, &row, &mut result);
        }
        let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
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
    let (before, usage) = (ALLOCATIONS.load(Ordering::Relaxed), rt.usage());
    for past in 1..100_000 {
        row.past = past;
        replay(&mut rt, &mut inputs, &row, &mut result);
        assert_eq!(rt.usage().live, usage.live);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
    assert_eq!(rt.usage(), usage);
    assert_eq!(result, [0.0; COLS]);
}
