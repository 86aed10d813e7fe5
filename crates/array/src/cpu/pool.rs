//! The thread pool: fork and join around one closure, chunks that whoever is free takes, a short spin and then sleep.
//!
//! Owns the worker threads of one device. Refuses tasks of its own making: no queues, no nesting. The caller takes
//! chunks like everybody else and waits for those alone that hold one: a thread that another process keeps from
//! running costs nothing. A chunk that panics is reported to the caller once all chunks are done.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins for work before it sleeps: what lies between two launches that are shared. Longer spinning
/// takes a core from whoever else needs it, and from this thread when it has work.
const SPIN: Duration = Duration::from_micros(10);

/// Bits of [`Shared::open`] that count units; the others hold the round's number, which does not come again in years.
const UNIT_BITS: u32 = 16;

/// The most units of a round.
pub(crate) const MOST_UNITS: usize = (1 << UNIT_BITS) - 1;

/// What a round does with some of its units; the first argument is the number of the thread.
type Work<'a> = &'a (dyn Fn(usize, Range<usize>) + Sync);

/// A round, on the stack of the caller.
struct Round {
    work: Work<'static>,
    units: usize,
}

/// What the threads have in common.
///
/// A round is open while `open` counts units that nobody has taken. Taking some is one exchange of `open`, which fails
/// if anything has changed: if it succeeds, the round whose number it held was open, and it stays alive until the taker
/// has taken its units off `unfinished`. So who comes late finds either no units or those of the next round.
struct Shared {
    threads: usize,
    /// The round's number, then the units that nobody has taken.
    open: AtomicU64,
    /// Of the round in `open`; must not be followed by who has not taken units.
    round: AtomicPtr<Round>,
    /// Units that are not done.
    unfinished: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Workers that sleep and were not woken, at least.
    asleep: Mutex<usize>,
    work: Condvar,
    /// Whether the caller sleeps.
    waiting: Mutex<bool>,
    done: Condvar,
}

/// Worker threads; the caller is one of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a round runs.
    turn: Mutex<()>,
    /// Spinning only steals time from the others if there are more threads than cores.
    spin: bool,
}

impl Pool {
    /// A pool of `threads`, the calling thread included.
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::new(threads.max(1)));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = threads <= cores;
        let workers = (1..threads.max(1))
            .map(|i| {
                let shared = Arc::clone(&shared);
                let builder = std::thread::Builder::new().name(format!("longrun-cpu-{i}"));
                builder.spawn(move || shared.serve(i, spin))
            })
            .map_while(Result::ok)
            .collect();
        Self { shared, workers, turn: Mutex::new(()), spin }
    }

    /// Threads that take part, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(thread, range)` with disjoint ranges that together are `0..units`, at most [`MOST_UNITS`], and
    /// returns when all are done. Of calls at the same time each has a `thread` of its own, below `threads()`. Workers
    /// that sleep take part if they are to `wake`, which takes a system call each.
    ///
    /// # Panics
    /// A chunk panicked.
    pub(crate) fn run(&self, units: usize, wake: bool, work: Work<'_>) {
        assert!(units <= MOST_UNITS, "{units} units of work");
        if units <= 1 || self.workers.is_empty() {
            return work(0, 0..units);
        }
        // Who comes while a round runs, from within it or on another thread, works alone.
        let Ok(turn) = self.turn.try_lock() else { return work(0, 0..units) };
        let s = &*self.shared;
        // SAFETY: only the lifetime is erased. A thread calls `work` only for units that it has taken and not yet
        // taken off `unfinished`, and this function does not return, nor unwind, before `unfinished` is 0.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let round = Round { work, units };
        s.publish(&round);
        if wake {
            s.wake(units - 1);
        }
        let mut panic = None;
        while let Some(caught) = s.chunk(0) {
            panic = panic.or(caught.err());
        }
        s.join(self.spin);
        drop(turn);
        let elsewhere = s.panicked.swap(false, Ordering::Relaxed);
        match panic {
            Some(panic) => resume_unwind(panic),
            None if elsewhere => panic!("a worker thread panicked in a kernel"),
            None => {}
        }
    }
}

impl Shared {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            open: AtomicU64::new(0),
            round: AtomicPtr::new(std::ptr::null_mut()),
            unfinished: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            asleep: Mutex::new(0),
            work: Condvar::new(),
            waiting: Mutex::new(false),
            done: Condvar::new(),
        }
    }

    /// Opens a round. The last one is done: all of its units were taken, and taken off `unfinished`.
    fn publish(&self, round: &Round) {
        self.unfinished.store(round.units, Ordering::Relaxed);
        self.round.store(std::ptr::from_ref(round).cast_mut(), Ordering::Relaxed);
        let number = (self.open.load(Ordering::Relaxed) >> UNIT_BITS).wrapping_add(1);
        // Release: who sees the units sees what was written before, the two words above included.
        self.open.store(number << UNIT_BITS | round.units as u64, Ordering::Release);
    }

    /// Wakes up to `most` of the workers that sleep.
    fn wake(&self, most: usize) {
        // Under the lock, or a worker could have seen no units and sleep just after it was counted.
        let mut asleep = lock(&self.asleep);
        let wake = (*asleep).min(most);
        *asleep -= wake;
        drop(asleep);
        (0..wake).for_each(|_| self.work.notify_one());
    }

    /// Takes some units, large pieces first, and does them. `None` if there are none.
    fn chunk(&self, thread: usize) -> Option<Result<(), Box<dyn Any + Send>>> {
        let mut open = self.open.load(Ordering::Acquire);
        let (round, left, take) = loop {
            let left = open as usize & MOST_UNITS;
            if left == 0 {
                return None;
            }
            let round = self.round.load(Ordering::Relaxed);
            let take = left.div_ceil(2 * self.threads);
            let taken = open - take as u64;
            // Acquire, as for the load; release, so that the pointer was loaded before.
            match self.open.compare_exchange_weak(open, taken, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break (round, left, take),
                Err(now) => open = now,
            }
        };
        // SAFETY: the exchange succeeded, so the round numbered in `open` had units left until then; these are ours,
        // and `Pool::run` waits for them before the round goes away or another one is published. The pointer is that
        // round's: it was written before `open` was, and is written again only after these units are done.
        let round = unsafe { &*round };
        let first = round.units - left;
        let done = catch_unwind(AssertUnwindSafe(|| (round.work)(thread, first..first + take)));
        // The round may be gone as soon as its last units are taken off here.
        if thread > 0 && done.is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        let last = self.unfinished.fetch_sub(take, Ordering::AcqRel) == take;
        if last && thread > 0 && *lock(&self.waiting) {
            self.done.notify_one();
        }
        Some(done)
    }

    /// A worker's life.
    fn serve(&self, thread: usize, spin: bool) {
        let any = || self.open.load(Ordering::Acquire) as usize & MOST_UNITS != 0;
        loop {
            while self.chunk(thread).is_some() {}
            if spin_until(spin, any) {
                continue;
            }
            let mut asleep = lock(&self.asleep);
            while !any() {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                *asleep += 1;
                asleep = self.work.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits for those that hold units.
    fn join(&self, spin: bool) {
        let done = || self.unfinished.load(Ordering::Acquire) == 0;
        if done() || spin_until(spin, done) {
            return;
        }
        let mut waiting = lock(&self.waiting);
        while !done() {
            *waiting = true;
            waiting = self.done.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        *waiting = false;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it came true while this thread was spinning.
fn spin_until(spin: bool, ready: impl Fn() -> bool) -> bool {
    if !spin {
        return false;
    }
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let s = &*self.shared;
        {
            let _asleep = lock(&s.asleep);
            s.stop.store(true, Ordering::Relaxed);
        }
        s.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker only ends by returning: its panics are caught inside.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests;
