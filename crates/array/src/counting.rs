//! A host allocator that counts, for tests that bound what a program allocates.
//!
//! Owns the counters: calls of the whole process, bytes of each thread. Does nothing unless a test makes it the global
//! allocator; it lives here because this crate is where `unsafe` is.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system allocator, counted. Declare it with `#[global_allocator]`.
pub struct CountingAllocator;

static CALLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn note(added: usize, removed: usize) {
    LARGEST.set(LARGEST.get().max(added));
    LIVE.set(LIVE.get() + added as isize - removed as isize);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

/// Allocations and reallocations of the whole process so far.
pub fn calls() -> usize {
    CALLS.load(Ordering::Relaxed)
}

/// What the current thread allocates from here on.
pub struct Watch {
    before: isize,
}

impl Watch {
    /// Starts watching; an earlier watch of this thread ends.
    pub fn start() -> Self {
        let before = LIVE.get();
        LARGEST.set(0);
        PEAK.set(before);
        Self { before }
    }

    /// Bytes of the largest single allocation.
    pub fn largest(&self) -> usize {
        LARGEST.get()
    }

    /// The most bytes that were live at once, above those at the start.
    pub fn peak(&self) -> isize {
        PEAK.get() - self.before
    }
}

// SAFETY: every call is passed on to the system allocator unchanged; the counters are plain cells and an atomic, which
// neither allocate nor need dropping.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        note(layout.size(), 0);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note(0, layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        note(size, layout.size());
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}
