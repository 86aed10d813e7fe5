//! Rounds as they may meet: threads that come late, sleep, panic, or never come.

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `count` callers have come here: who has not come by then never will.
fn meet(came: &AtomicUsize, count: usize) {
    came.fetch_add(1, Ordering::SeqCst);
    let start = Instant::now();
    while came.load(Ordering::SeqCst) < count {
        assert!(start.elapsed() < PATIENCE, "a thread sleeps through its work");
        std::thread::yield_now();
    }
}

fn count(done: &AtomicUsize, units: Range<usize>) {
    done.fetch_add(units.len(), Ordering::Relaxed);
}

#[test]
fn every_unit_is_done_once_by_threads_that_do_one_chunk_at_a_time() {
    for threads in [1, 2, 3, 5] {
        let pool = Pool::new(threads);
        let busy: Vec<_> = (0..threads).map(|_| AtomicBool::new(false)).collect();
        for round in 0..4000 {
            let units = [0, 1, 2, 3, 7, 40, 1000][round % 7];
            let hits: Vec<_> = (0..units).map(|_| AtomicUsize::new(0)).collect();
            pool.run(units, true, &|thread, range| {
                assert!(!busy[thread].swap(true, Ordering::Acquire));
                for unit in range {
                    hits[unit].fetch_add(1, Ordering::Relaxed);
                }
                busy[thread].store(false, Ordering::Release);
            });
            assert!(hits.iter().all(|hits| hits.load(Ordering::Relaxed) == 1));
            if round % 500 == 0 {
                std::thread::sleep(2 * SPIN); // now and then all are asleep
            }
        }
    }
}

/// What a round reads and writes is gone or another round's as soon as the call returns.
#[test]
fn rounds_do_not_mix() {
    let pool = Pool::new(4);
    for round in 0..20_000_usize {
        let units = 1 + round % 9;
        let mut sums = vec![0; units];
        let places = AtomicPtr::new(sums.as_mut_ptr());
        let given: Vec<usize> = (0..units).map(|unit| unit * round).collect();
        pool.run(units, true, &|_, range| {
            for unit in range {
                // SAFETY: a unit is handed out once, and the call returns when all are done.
                unsafe { *places.load(Ordering::Relaxed).add(unit) += given[unit] };
            }
        });
        assert_eq!(sums, given);
    }
}

#[test]
fn a_panic_in_a_chunk_reaches_the_caller_and_the_pool_lives_on() {
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        for bad in 0..20 {
            let done = AtomicUsize::new(0);
            let run = || {
                pool.run(20, true, &|_, units| {
                    assert!(!units.contains(&bad), "planted");
                    count(&done, units);
                });
            };
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let most = if threads == 1 { 0 } else { 19 };
            assert!(done.load(Ordering::Relaxed) <= most);
            done.store(0, Ordering::Relaxed);
            pool.run(20, true, &|_, units| count(&done, units));
            assert_eq!(done.load(Ordering::Relaxed), 20);
        }
    }
}

/// A panic of a worker, not only of the caller, which is the first to come.
#[test]
fn a_panic_on_another_thread_reaches_the_caller() {
    let pool = Pool::new(2);
    let came = AtomicUsize::new(0);
    let run = || {
        pool.run(2, true, &|thread, _| {
            meet(&came, 2);
            assert!(thread == 0, "planted");
        });
    };
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    pool.run(2, true, &|_, _| {});
}

#[test]
fn sleeping_workers_wake_up() {
    for threads in [2, 3, 5] {
        let pool = Pool::new(threads);
        for round in 0..20 {
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
            let came = AtomicUsize::new(0);
            pool.run(threads, true, &|_, units| {
                assert_eq!(units.len(), 1);
                meet(&came, threads);
            });
        }
    }
}

#[test]
fn a_worker_that_never_comes_is_not_waited_for() {
    let shared = Arc::new(Shared::new(2));
    let idle = {
        let shared = Arc::clone(&shared);
        let asleep = move || {
            while !shared.stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        std::thread::spawn(asleep)
    };
    let pool = Pool { shared, workers: vec![idle], turn: Mutex::new(()), spin: true };
    let done = AtomicUsize::new(0);
    pool.run(100, true, &|thread, units| {
        assert_eq!(thread, 0);
        count(&done, units);
    });
    assert_eq!(done.load(Ordering::Relaxed), 100);
}

/// What a worker finds that looks after the caller has done everything, and one that had looked before.
#[test]
fn a_late_worker_finds_nothing_or_the_next_round() {
    let shared = Shared::new(2);
    let finish = |round: &Round| {
        shared.publish(round);
        let seen = shared.open.load(Ordering::Acquire);
        while shared.chunk(0).is_some() {}
        shared.join(true);
        seen
    };
    let first = finish(&Round { work: &|_, _| {}, units: 5 });
    assert!(shared.chunk(1).is_none());
    let next = AtomicUsize::new(0);
    let work = |thread, units| {
        assert_eq!(thread, 1);
        count(&next, units);
    };
    // SAFETY: the pool lets go of the closure before this test does.
    let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(&work) };
    let round = Round { work, units: 5 };
    shared.publish(&round);
    // Whoever looked during the first round, and would take a unit of it now, can't.
    let take = shared.open.compare_exchange(first, first - 1, Ordering::AcqRel, Ordering::Acquire);
    assert!(take.is_err());
    while shared.chunk(1).is_some() {}
    assert_eq!(next.load(Ordering::Relaxed), 5);
    assert!(shared.chunk(1).is_none());
    shared.join(true);
}

#[test]
fn who_comes_while_a_round_runs_works_alone() {
    let pool = Pool::new(3);
    let inner = AtomicUsize::new(0);
    pool.run(6, true, &|_, outer| {
        for _ in outer {
            pool.run(10, true, &|_, units| count(&inner, units));
        }
    });
    assert_eq!(inner.load(Ordering::Relaxed), 60);
}
