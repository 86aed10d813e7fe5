//! Host memory of the CPU device: zeroed, aligned to a cache line, on huge pages where it is large.
//!
//! Owns the slabs that buffers of middling size are cut from, most weights of a small model among them: on pages of 4
//! KiB reading those would cost a look into the page tables every few cache lines. A buffer is a buffer wherever it
//! lies. Refuses to share memory between devices, and to move it.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

/// A cache line, so that a vector of them is aligned for any kernel.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    _bytes: [u8; LINE],
}

const LINE: usize = 64;

enum Store {
    Heap(Vec<Line>),
    Piece(Piece),
    Mapped(MmapMut),
}

/// One buffer.
pub(crate) struct HostBuffer {
    store: Store,
    bytes: usize,
}

/// Buffers below this are the heap's.
const SMALL: usize = 64 << 10;

/// Bytes of a slab. Those that were never part of a buffer are not resident.
const SLAB: usize = 32 << 20;

/// Buffers above this are mapped on their own.
const LARGE: usize = SLAB / 2;

/// A page that is worth 1.3 times the bandwidth.
const HUGE_PAGE: usize = 2 << 20;

/// The smallest page.
const PAGE: usize = 4096;

/// The slabs of one device. Who holds a piece of a slab keeps it mapped.
#[derive(Default)]
pub(crate) struct Slabs(Vec<Weak<Slab>>);

impl Slabs {
    /// Zeroed memory, `None` if there is none left.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Option<HostBuffer> {
        let store = if bytes > LARGE {
            let mut map = map(bytes)?;
            // Touched now, so that what is resident doesn't grow as a long completion fills its cache.
            map.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
            Store::Mapped(map)
        } else {
            let piece = if bytes < SMALL { None } else { self.piece(bytes) };
            piece.map(Store::Piece).or_else(|| heap(bytes))?
        };
        Some(HostBuffer { store, bytes })
    }

    fn piece(&mut self, bytes: usize) -> Option<Piece> {
        self.0.retain(|slab| slab.strong_count() > 0);
        let bytes = bytes.next_multiple_of(LINE);
        let found = self.0.iter().filter_map(Weak::upgrade).find_map(|slab| slab.cut(bytes));
        let piece = found.or_else(|| {
            let slab = Arc::new(Slab::new()?);
            self.0.push(Arc::downgrade(&slab));
            slab.cut(bytes)
        })?;
        // What was part of a buffer before has its bytes.
        // SAFETY: the piece is in the slab's memory, and nobody else has it.
        unsafe { piece.ptr().write_bytes(0, bytes) };
        Some(piece)
    }
}

/// Mapped memory for which huge pages are asked.
fn map(bytes: usize) -> Option<MmapMut> {
    let map = MmapMut::map_anon(bytes).ok()?;
    #[cfg(target_os = "linux")]
    let _ = map.advise(Advice::HugePage); // a kernel without huge pages is only slower
    Some(map)
}

fn heap(bytes: usize) -> Option<Store> {
    let mut lines = Vec::new();
    lines.try_reserve_exact(bytes.div_ceil(LINE)).ok()?;
    lines.resize(bytes.div_ceil(LINE), Line { _bytes: [0; LINE] });
    Some(Store::Heap(lines))
}

/// Memory that buffers are cut from, unmapped with the last of them.
struct Slab {
    /// `SLAB` bytes at the start of a huge page, in `_map`.
    base: *mut u8,
    _map: MmapMut,
    /// What is in no buffer, in order; between two gaps lies a buffer.
    gaps: Mutex<Vec<Range<usize>>>,
}

// SAFETY: `base` is an address; what lies there is touched through pieces only, which do not overlap.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn new() -> Option<Self> {
        let mut map = map(SLAB + HUGE_PAGE)?;
        let start = map.as_ptr().align_offset(HUGE_PAGE);
        let base = map.get_mut(start..start.checked_add(SLAB)?)?.as_mut_ptr();
        let all = 0..SLAB;
        Some(Self { base, _map: map, gaps: Mutex::new(vec![all]) })
    }

    /// The first gap of `bytes`, or its beginning.
    fn cut(self: Arc<Self>, bytes: usize) -> Option<Piece> {
        let mut gaps = self.gaps();
        let i = gaps.iter().position(|gap| gap.len() >= bytes)?;
        let range = gaps[i].start..gaps[i].start + bytes;
        gaps[i].start = range.end;
        if gaps[i].is_empty() {
            gaps.remove(i);
        }
        drop(gaps);
        Some(Piece { slab: self, range })
    }

    fn gaps(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a slab that is one buffer's.
struct Piece {
    slab: Arc<Slab>,
    range: Range<usize>,
}

impl Piece {
    fn ptr(&self) -> *mut u8 {
        // SAFETY: the range is inside of the slab.
        unsafe { self.slab.base.add(self.range.start) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut gaps = self.slab.gaps();
        let i = gaps.partition_point(|gap| gap.end <= self.range.start);
        gaps.insert(i, self.range.clone());
        for i in [i, i.wrapping_sub(1)] {
            if i < gaps.len() && gaps.get(i + 1).is_some_and(|next| next.start == gaps[i].end) {
                gaps[i].end = gaps.remove(i + 1).end;
            }
        }
    }
}

impl HostBuffer {
    fn ptr(&self) -> *const u8 {
        match &self.store {
            Store::Heap(lines) => lines.as_ptr().cast(),
            Store::Piece(piece) => piece.ptr(),
            Store::Mapped(map) => map.as_ptr(),
        }
    }

    pub(crate) fn ptr_mut(&mut self) -> *mut u8 {
        match &mut self.store {
            Store::Heap(lines) => lines.as_mut_ptr().cast(),
            Store::Piece(piece) => piece.ptr(),
            Store::Mapped(map) => map.as_mut_ptr(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` were allocated, zeroed, and live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr_mut(), self.bytes) }
    }

    /// The buffer as numbers.
    pub(crate) fn numbers(&self) -> &[f32] {
        // SAFETY: the memory is aligned to 64 bytes and any bits are a valid f32.
        unsafe { std::slice::from_raw_parts(self.ptr().cast(), self.bytes / 4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(buffer: &HostBuffer) -> usize {
        buffer.ptr() as usize
    }

    /// Buffers of all kinds come and go; each is zeroed, aligned, and nobody else's.
    #[test]
    fn buffers_do_not_overlap_and_start_as_zeros() {
        let (mut slabs, mut held) = (Slabs::default(), Vec::<(u8, HostBuffer)>::new());
        let sizes = [1, SMALL - 1, SMALL, 100_001, 3 << 20, LARGE, LARGE + 1, 900_000];
        let mut random = 7_usize;
        for step in 0..100_usize {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pick = random >> 33;
            if held.len() > 6 {
                let (mark, buffer) = held.swap_remove(pick % held.len());
                let ends = [0, buffer.len() / 2, buffer.len() - 1];
                assert!(ends.iter().all(|&at| buffer.bytes()[at] == mark), "step {step}");
            }
            let bytes = sizes[pick % sizes.len()];
            let mut buffer = slabs.allocate(bytes).unwrap();
            assert!(address(&buffer).is_multiple_of(LINE) && buffer.len() == bytes);
            assert!(buffer.bytes().iter().all(|byte| *byte == 0));
            buffer.bytes_mut().fill(step as u8 | 1);
            held.push((step as u8 | 1, buffer));
        }
    }

    #[test]
    fn slabs_fill_up_and_go_with_their_last_buffer() {
        let mut slabs = Slabs::default();
        let count = |slabs: &Slabs| slabs.0.iter().filter(|slab| slab.strong_count() > 0).count();
        let quarter = |slabs: &mut Slabs| slabs.allocate(SLAB / 4).unwrap();
        let mut held: Vec<HostBuffer> = (0..4).map(|_| quarter(&mut slabs)).collect();
        assert_eq!(count(&slabs), 1);
        assert!(address(&held[0]).is_multiple_of(HUGE_PAGE));
        let places: Vec<usize> = held.iter().map(address).collect();
        assert!(places.windows(2).all(|pair| pair[0] + SLAB / 4 == pair[1]));
        let fifth = quarter(&mut slabs);
        assert_eq!(count(&slabs), 2);
        drop(fifth);
        assert_eq!(count(&slabs), 1);
        // Two gaps that touch are one, in whatever order they come.
        for order in [[1, 1], [2, 1]] {
            order.iter().for_each(|&i| drop(held.remove(i)));
            let half = slabs.allocate(SLAB / 2).unwrap();
            assert_eq!(address(&half), places[1]);
            drop(half);
            held.splice(1..1, [quarter(&mut slabs), quarter(&mut slabs)]);
            assert_eq!(held.iter().map(address).collect::<Vec<_>>(), places);
        }
        drop(held);
        assert_eq!(count(&slabs), 0);
    }
}
