//! The CUDA driver: its presence, a device's context, memory, streams, events and graphs, each freed when it is
//! dropped.
//!
//! Owns all calls of the driver but those of `kernel.rs`, and their errors as clauses. Refuses to know what a kernel
//! computes. All but [`Context`] want its context to be current on the calling thread, when they are dropped too:
//! `CudaDevice` sees to it at the start of each of its methods.

use std::ffi::CStr;
use std::ptr;

use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult};

/// The oldest driver that has all that is called here: that of CUDA 12.0.
const OLDEST: i32 = 12_000;

/// Turns a result of the driver into a clause.
pub(super) fn check(what: &str, result: CUresult) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the driver returns a static string or fails, and then `text` stays null.
    let text = unsafe {
        let _ = sys::cuGetErrorString(result, &mut text);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    Err(format!("the CUDA driver can't {what}: {} ({result:?})", text.unwrap_or_default()))
}

/// Loads the driver, once.
fn load() -> Result<(), String> {
    // SAFETY: looking a library up runs its initialisers only, which the driver allows at any time.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no NVIDIA driver (libcuda.so.1); install it, or choose the device \
                    `cpu`"
            .into());
    }
    let mut version = 0;
    // SAFETY: the library is there, and the version is written into the integer.
    check("tell its version", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    if version < OLDEST {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(format!("the NVIDIA driver is for CUDA {major}.{minor}, 12.0 is needed"));
    }
    // SAFETY: no arguments.
    check("start", unsafe { sys::cuInit(0) })
}

/// How many devices there are.
pub(super) fn count() -> Result<usize, String> {
    load()?;
    let mut count = 0;
    // SAFETY: the count is written into the integer.
    check("count its devices", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// A device and its primary context.
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// What its maker calls it.
    pub(super) name: String,
    /// Its compute capability.
    pub(super) capability: (u32, u32),
    /// The most shared memory of a block, in bytes.
    pub(super) shared: usize,
    /// Its multiprocessors.
    pub(super) processors: u32,
}

// SAFETY: contexts of the driver may be used by any thread.
unsafe impl Send for Context {}

impl Context {
    pub(super) fn new(ordinal: usize) -> Result<Self, String> {
        let count = count()?;
        if ordinal >= count {
            return Err(format!("there is no CUDA device {ordinal}, there are {count}"));
        }
        let (mut device, mut context) = (0, ptr::null_mut());
        let mut name = [0; 256];
        // SAFETY: each call writes into the place it is given; the name is no longer than its room.
        unsafe {
            check("find the device", sys::cuDeviceGet(&mut device, ordinal as i32))?;
            let named = sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device);
            check("name the device", named)?;
            let retained = sys::cuDevicePrimaryCtxRetain(&mut context, device);
            check("make a context", retained)?;
        }
        // SAFETY: the driver ends the name with a zero, and so does the buffer.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut new = Self { device, context, name, capability: (0, 0), shared: 0, processors: 0 };
        let (major, minor) = (
            new.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            new.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        new.capability = (major, minor);
        let shared = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        new.shared = new.attribute(shared)? as usize;
        new.processors = new.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        new.enter()?;
        Ok(new)
    }

    fn attribute(&self, attribute: Attribute) -> Result<u32, String> {
        let mut value = 0;
        // SAFETY: the value is written into the integer.
        let done = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) };
        check("describe the device", done)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Bytes of its memory that are free, and all of them. The context is current.
    pub(super) fn memory(&self) -> Result<(usize, usize), String> {
        let (mut free, mut all) = (0, 0);
        // SAFETY: both numbers are written into the integers.
        check("tell its memory", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut all) })?;
        Ok((free, all))
    }

    /// Makes the context current on this thread.
    pub(super) fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is alive as long as `self`.
        check("enter the context", unsafe { sys::cuCtxSetCurrent(self.context) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once. A failure leaves the context to the end of the process.
        unsafe {
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

/// Memory on the device.
pub(super) struct Memory {
    at: u64,
    len: usize,
}

impl Memory {
    /// Zeroed memory, as soon as `stream` comes to it; `None` when there is no more.
    pub(super) fn new(stream: &Stream, len: usize) -> Option<Self> {
        let mut at = 0;
        // SAFETY: the address is written into the integer.
        let done = unsafe { sys::cuMemAlloc_v2(&mut at, len.max(1)) };
        check("allocate", done).ok()?;
        let new = Self { at, len };
        // SAFETY: all of the memory that was just made.
        let done = unsafe { sys::cuMemsetD8Async(at, 0, len, stream.0) };
        (len == 0 || check("zero memory", done).is_ok()).then_some(new)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Its address on the device.
    pub(super) fn address(&self) -> u64 {
        self.at
    }

    fn range(&self, offset: usize, len: usize) -> Result<u64, String> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let outside = || format!("{len} bytes at {offset} are outside of {}", self.len);
        inside.then_some(self.at + offset as u64).ok_or_else(outside)
    }

    /// Copies from the host, and waits for it.
    pub(super) fn write(&self, stream: &Stream, at: usize, bytes: &[u8]) -> Result<(), String> {
        let to = self.range(at, bytes.len())?;
        let from = bytes.as_ptr().cast();
        // SAFETY: both ranges are inside of their memory, and the bytes are borrowed until the stream is through.
        let done = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), stream.0) };
        check("copy to the device", done)?;
        stream.wait()
    }

    /// Copies to the host, and waits for it.
    pub(super) fn read(&self, stream: &Stream, at: usize, bytes: &mut [u8]) -> Result<(), String> {
        let from = self.range(at, bytes.len())?;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: as in `write`.
        let done = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes.len(), stream.0) };
        check("copy from the device", done)?;
        stream.wait()
    }

    /// Copies within, behind all that the stream has.
    pub(super) fn copy(
        &self,
        stream: &Stream,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<(), String> {
        let (from, to) = (self.range(from, len)?, self.range(to, len)?);
        // SAFETY: both ranges are inside of this memory, which no other stream touches.
        let done = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, stream.0) };
        check("copy on the device", done)
    }

    /// Copies the first `len` bytes of `from`, behind all that the stream has.
    ///
    /// # Safety
    /// `from` stays as it is until the stream is through.
    pub(super) unsafe fn fill(
        &self,
        stream: &Stream,
        from: &Pinned,
        len: usize,
    ) -> Result<(), String> {
        assert!(len <= from.len, "{len} bytes of {}", from.len);
        let to = self.range(0, len)?;
        // SAFETY: both ranges are inside of their memory; the caller keeps the source.
        let done = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.at.cast(), len, stream.0) };
        check("copy inputs to the device", done)
    }

    /// Copies the first `len` bytes into `to`, behind all that the stream has.
    ///
    /// # Safety
    /// Nobody touches `to` until the stream is through.
    pub(super) unsafe fn empty(
        &self,
        stream: &Stream,
        to: &Pinned,
        len: usize,
    ) -> Result<(), String> {
        assert!(len <= to.len, "{len} bytes of {}", to.len);
        let from = self.range(0, len)?;
        // SAFETY: both ranges are inside of their memory; the caller leaves the target alone.
        let done = unsafe { sys::cuMemcpyDtoHAsync_v2(to.at.cast(), from, len, stream.0) };
        check("copy results from the device", done)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated once. A failure leaves the memory to the end of the process.
        unsafe {
            let _ = sys::cuMemFree_v2(self.at);
        }
    }
}

/// Memory of the host that the device reads and writes on its own.
pub(super) struct Pinned {
    at: *mut u8,
    len: usize,
}

// SAFETY: it is memory of the process, which any thread may touch; who touches it when is up to its methods.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(len: usize) -> Result<Self, String> {
        let mut at = ptr::null_mut();
        // SAFETY: the address is written into the pointer.
        let done = unsafe { sys::cuMemHostAlloc(&mut at, len.max(1), 0) };
        check("allocate memory of the host", done)?;
        let at = at.cast::<u8>();
        // SAFETY: all of the memory that was just made.
        unsafe { at.write_bytes(0, len) };
        Ok(Self { at, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// No copy of the device into it is under way.
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: all of the memory, initialised when it was made; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// # Safety
    /// No copy of the device from it or into it is under way.
    pub(super) unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it was allocated once. A failure leaves the memory to the end of the process.
        unsafe {
            let _ = sys::cuMemFreeHost(self.at.cast());
        }
    }
}

/// A queue of work.
pub(super) struct Stream(pub(super) sys::CUstream);

// SAFETY: streams of the driver may be used by any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new() -> Result<Self, String> {
        let (mut stream, apart) =
            (ptr::null_mut(), sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: the stream is written into the pointer.
        check("make a stream", unsafe { sys::cuStreamCreate(&mut stream, apart) })?;
        Ok(Self(stream))
    }

    /// Waits until all of its work is done.
    pub(super) fn wait(&self) -> Result<(), String> {
        // SAFETY: the stream is alive.
        check("finish", unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// What is queued from now on waits until `event` has come to pass.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), String> {
        // SAFETY: both are alive.
        check("order its streams", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }

    /// Records what `queue` queues, running none of it.
    pub(super) fn capture(
        &self,
        queue: impl FnOnce() -> Result<(), String>,
    ) -> Result<Graph, String> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive, and this is its only capture.
        let began = unsafe { sys::cuStreamBeginCapture_v2(self.0, mode) };
        check("record a graph", began)?;
        let queued = queue();
        let mut graph = ptr::null_mut();
        // SAFETY: the capture was begun above; the graph is written into the pointer.
        let ended = unsafe { sys::cuStreamEndCapture(self.0, &mut graph) };
        queued?;
        check("record a graph", ended)?;
        let mut exec = ptr::null_mut();
        // SAFETY: the graph was just made and is dropped once it is instantiated.
        let made = unsafe {
            let made = sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            made
        };
        check("make a graph", made)?;
        let graph = Graph(exec);
        // SAFETY: the graph is alive; it is brought to the device now, so that the first launch need not.
        check("upload a graph", unsafe { sys::cuGraphUpload(exec, self.0) })?;
        Ok(graph)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was made once. A failure leaves it to the end of the process.
        unsafe {
            let _ = sys::cuStreamDestroy_v2(self.0);
        }
    }
}

/// A point in a stream's work.
pub(super) struct Event(sys::CUevent);

// SAFETY: events of the driver may be used by any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event; with a clock if it is to tell times.
    pub(super) fn new(clock: bool) -> Result<Self, String> {
        let flags = if clock { 0 } else { sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32 };
        let mut event = ptr::null_mut();
        // SAFETY: the event is written into the pointer.
        check("make an event", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(Self(event))
    }

    /// Comes to pass when the stream has done what it has now.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), String> {
        // SAFETY: both are alive.
        check("note an event", unsafe { sys::cuEventRecord(self.0, stream.0) })
    }

    /// The same within a graph that is being recorded: comes to pass in each of its runs.
    pub(super) fn record_in_graph(&self, stream: &Stream) -> Result<(), String> {
        let outside = sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: both are alive, and the event lives as long as the graph: they are kept together.
        check("note an event", unsafe { sys::cuEventRecordWithFlags(self.0, stream.0, outside) })
    }

    /// Waits until it has come to pass.
    pub(super) fn wait(&self) -> Result<(), String> {
        // SAFETY: the event is alive.
        check("finish a step", unsafe { sys::cuEventSynchronize(self.0) })
    }

    /// Seconds from `earlier` to this one; both have come to pass.
    pub(super) fn since(&self, earlier: &Self) -> Result<f64, String> {
        let mut milliseconds = 0.0;
        // SAFETY: both are alive, and the time is written into the number.
        let done = unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.0, self.0) };
        check("tell a time", done)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was made once. A failure leaves it to the end of the process.
        unsafe {
            let _ = sys::cuEventDestroy_v2(self.0);
        }
    }
}

/// Work that was recorded once and is replayed.
pub(super) struct Graph(sys::CUgraphExec);

// SAFETY: graphs may be launched by any thread, one at a time, which `&mut` of the device gives.
unsafe impl Send for Graph {}

impl Graph {
    pub(super) fn launch(&self, stream: &Stream) -> Result<(), String> {
        // SAFETY: both are alive. What the graph's kernels touch is up to who recorded it.
        check("launch a graph", unsafe { sys::cuGraphLaunch(self.0, stream.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it was made once. A failure leaves it to the end of the process.
        unsafe {
            let _ = sys::cuGraphExecDestroy(self.0);
        }
    }
}
