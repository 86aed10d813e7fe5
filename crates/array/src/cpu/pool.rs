//! The thread pool: fork and join around one closure, static shares, a short spin and then sleep.
//!
//! Owns the worker threads of one device. Refuses tasks of its own making: no queues, no stealing, no nesting. A
//! share that panics is reported to the caller once all shares are done.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins for work before it sleeps: some launches, not some steps.
const SPIN: Duration = Duration::from_micros(20);

/// The closure of the current round, as an address that all workers may call.
#[derive(Clone, Copy)]
struct Task(*const (dyn Fn(usize) + Sync));

// SAFETY: the pointee is `Sync`, and `Pool::run` keeps it alive until every worker is done with it.
unsafe impl Send for Task {}

struct Shared {
    /// Counts rounds; a worker runs a share each time it changes.
    round: AtomicU64,
    /// Shares of the round that are not done.
    pending: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    task: Mutex<Option<Task>>,
    work: Condvar,
    done: Condvar,
}

/// Worker threads; the caller is one of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Spinning only steals time from the others if there are more threads than cores.
    spin: bool,
}

impl Pool {
    /// A pool of `threads`, the calling thread included.
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            round: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            task: Mutex::new(None),
            work: Condvar::new(),
            done: Condvar::new(),
        });
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
        Self { shared, workers, spin }
    }

    /// Threads that take part, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `share(i)` once for each `i < threads()`, on different threads, and returns when all are done.
    ///
    /// # Panics
    /// A share panicked.
    pub(crate) fn run(&self, share: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return share(0);
        }
        let s = &*self.shared;
        // SAFETY: only the lifetime is erased. This function does not return before `pending` is 0, and a worker
        // touches the task only before it decrements `pending`.
        let task = Task(unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync),
                *const (dyn Fn(usize) + Sync + 'static),
            >(share)
        });
        s.pending.store(self.workers.len(), Ordering::Relaxed);
        {
            // Under the lock, or a worker could look at the round, miss this one, and sleep through the call.
            let mut slot = s.lock();
            *slot = Some(task);
            s.round.fetch_add(1, Ordering::Release);
        }
        s.work.notify_all();
        let mine = catch_unwind(AssertUnwindSafe(|| share(0)));
        s.join(self.spin);
        if s.panicked.swap(false, Ordering::Relaxed) || mine.is_err() {
            match mine {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => panic!("a worker thread panicked in a kernel"),
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Task>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, index: usize, spin: bool) {
        let mut seen = 0;
        loop {
            spin_until(spin, || self.round.load(Ordering::Acquire) != seen);
            let mut slot = self.lock();
            while self.round.load(Ordering::Acquire) == seen {
                slot = self.work.wait(slot).unwrap_or_else(PoisonError::into_inner);
            }
            let task = *slot;
            drop(slot);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            seen = self.round.load(Ordering::Acquire);
            if let Some(Task(share)) = task {
                // SAFETY: `Pool::run` waits for this share before the closure goes away.
                let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*share)(index) }));
                self.panicked.fetch_or(done.is_err(), Ordering::Relaxed);
            }
            if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                drop(self.lock());
                self.done.notify_one();
            }
        }
    }

    fn join(&self, spin: bool) {
        spin_until(spin, || self.pending.load(Ordering::Acquire) == 0);
        let mut slot = self.lock();
        while self.pending.load(Ordering::Acquire) != 0 {
            slot = self.done.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
        *slot = None;
    }
}

fn spin_until(spin: bool, ready: impl Fn() -> bool) {
    if !spin {
        return;
    }
    let start = Instant::now();
    while !ready() {
        for _ in 0..64 {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let s = &*self.shared;
        s.stop.store(true, Ordering::Relaxed);
        {
            let _slot = s.lock();
            s.round.fetch_add(1, Ordering::Release);
        }
        s.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker only ends by returning: its panics are caught inside.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_runs_once_a_round() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            let hits: Vec<_> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..2000 {
                pool.run(&|i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 2000));
        }
    }

    #[test]
    fn a_panic_in_a_share_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..3 {
            let run = || pool.run(&|i| assert!(i != bad, "planted"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            pool.run(&|_| {});
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let pool = Pool::new(2);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(2));
            pool.run(&|_| {});
        }
    }
}
