//! The CUDA device: a plan becomes one graph, which is replayed behind the host.
//!
//! Owns the device's memory, the compiled plans and the rings that steps in flight use. Kernels are compiled at first
//! use, so that nothing of CUDA is needed to build this, and what is missing at run time is said. Refuses to allocate,
//! to wait or to make a graph in a replay.
//!
//! All work goes through one stream, so that steps run in launch order, and results come back through another, beside
//! the step that follows. There is one graph a plan: every step's integers are copied into the first input buffer on
//! the stream, ahead of the graph, and say which place of the ring the step has; the kernel that emits the result reads
//! it there. So the graph holds for both places, and the second input buffer stays unused.

mod arguments;
mod attention;
mod carry;
mod delta;
mod driver;
mod dry;
mod experts;
mod hyper;
mod kernel;
mod launch;
mod linear;
mod low_rank;
mod module;
mod nvrtc;
mod ops;
mod paged;
mod peak;
mod plans;
mod pool;
mod recorder;
mod recurrent;
mod route;
mod select;
mod sources;
mod ssm;
mod weights;

use std::sync::Arc;
use std::time::Duration;

pub use dry::CudaDryRun;

use driver::{Context, Event, Memory, Pinned, Stream};
use module::Kernels;
use plans::Compiled;

use crate::device::{BufferId, Device, IN_FLIGHT, MatrixSpec, PlanId, Shared, Ticket};
use crate::dims::Axis;
use crate::inputs::Inputs;
use crate::plan::Plan;
use crate::profile::Peaks;

/// The most bytes of a result that come to the host beside the next step; what is longer is fetched when it is read.
const MOST_PINNED: usize = 64 << 20;

/// A place of the ring: what a step in flight has to itself.
struct Place {
    inputs: Pinned,
    /// The buffer on the device, and as much of it as comes to the host.
    outputs: (BufferId, Pinned),
    /// Bytes of the result that the last step here has brought to the host.
    brought: usize,
    /// The kernels of the step are done.
    ran: Event,
    /// The result is on the host.
    done: Event,
    /// The plan of the last step here, if its times are measured.
    measured: Option<PlanId>,
    times: Vec<Duration>,
}

/// A CUDA device.
pub struct CudaDevice {
    // In the order in which they go: graphs before the kernels, the context last.
    plans: Vec<Option<Compiled>>,
    ring: Option<[Place; IN_FLIGHT]>,
    buffers: Vec<Option<Memory>>,
    kernels: Kernels,
    stream: Stream,
    results: Stream,
    measuring: bool,
    context: Context,
}

impl CudaDevice {
    /// Device `ordinal` of this machine.
    ///
    /// # Errors
    /// There is no driver, no such device, or no compiler: what is missing, and what to do.
    pub fn new(ordinal: usize) -> Result<Self, String> {
        let context = Context::new(ordinal)?;
        if context.capability < (8, 0) {
            let (name, (major, minor)) = (&context.name, context.capability);
            return Err(format!("{name} has compute capability {major}.{minor}, 8.0 is needed"));
        }
        Ok(Self {
            plans: Vec::new(),
            ring: None,
            buffers: Vec::new(),
            kernels: Kernels::new(&context)?,
            stream: Stream::new()?,
            results: Stream::new()?,
            measuring: false,
            context,
        })
    }

    /// How many CUDA devices this machine has.
    ///
    /// # Errors
    /// There is no driver, or it does not start.
    pub fn count() -> Result<usize, String> {
        driver::count()
    }

    fn buffer(&self, id: BufferId) -> Result<&Memory, String> {
        let buffer = self.buffers.get(id.0 as usize).and_then(Option::as_ref);
        buffer.ok_or_else(|| format!("{id:?} is gone"))
    }

    /// The ring for these buffers; the one that there is, if it is theirs.
    fn make_ring(&mut self, shared: &Shared) -> Result<(), String> {
        let inputs = self.buffer(shared.inputs[0])?.len();
        let mut places = self.ring.iter().flatten().zip(shared.outputs);
        if self.ring.is_some()
            && places.all(|(p, id)| p.outputs.0 == id && p.inputs.len() == inputs)
        {
            return Ok(());
        }
        let place = |output: BufferId| -> Result<Place, String> {
            let pinned = Pinned::new(self.buffer(output)?.len().min(MOST_PINNED))?;
            Ok(Place {
                inputs: Pinned::new(inputs)?,
                outputs: (output, pinned),
                brought: 0,
                ran: Event::new(false)?,
                done: Event::new(false)?,
                measured: None,
                times: Vec::new(),
            })
        };
        let [a, b] = shared.outputs;
        self.ring = Some([place(a)?, place(b)?]);
        Ok(())
    }

    /// Queues a step: its inputs, its kernels and its result.
    fn queue(&mut self, id: PlanId, inputs: &Inputs, ticket: Ticket) -> Result<(), String> {
        let plan = self.plans[id.0 as usize].as_mut().ok_or("the plan was discarded")?;
        let ring = self.ring.as_mut().ok_or("the plan has no buffers")?;
        let place = &mut ring[ticket.ring()];
        let alive = |b: &BufferId| self.buffers[b.0 as usize].is_some();
        if !plan.plan.buffers.iter().all(alive) {
            return Err(crate::Error::Freed.to_string());
        }
        let memory = |id: BufferId| {
            self.buffers[id.0 as usize].as_ref().ok_or_else(|| format!("{id:?} is gone"))
        };
        let words = inputs.words();
        let bytes = words.len() * 4;
        // SAFETY: the last step of this place was waited for, so no copy from it is under way.
        let pinned = unsafe { place.inputs.bytes_mut() };
        let pinned = pinned.get_mut(..bytes).ok_or("the step inputs are too long")?;
        words.iter().zip(pinned.as_chunks_mut().0).for_each(|(w, to)| *to = w.to_le_bytes());
        pinned[12..16].copy_from_slice(&(ticket.ring() as u32).to_le_bytes());
        let to = memory(plan.shared.inputs[0])?;
        // SAFETY: nobody writes the place's inputs before its step was waited for.
        unsafe { to.fill(&self.stream, &place.inputs, bytes) }?;
        if self.measuring {
            plan.measure(&self.stream, ticket.ring())?.launch(&self.stream)?;
        } else {
            plan.graph.launch(&self.stream)?;
        }
        place.measured = self.measuring.then_some(id);
        place.ran.record(&self.stream)?;
        self.results.wait_for(&place.ran)?;
        let ragged = inputs.ragged();
        let result = plan.plan.result.map_or(0, |shape| match shape.rows {
            Axis::Tokens => shape.cols * ragged.tokens * 4,
            Axis::Outputs => shape.cols * ragged.outputs * 4,
        });
        let (output, host) = &place.outputs;
        place.brought = result.min(host.len());
        if place.brought > 0 {
            // SAFETY: the results of this place are read when its step was waited for.
            unsafe { memory(*output)?.empty(&self.results, host, place.brought) }?;
        }
        place.done.record(&self.results)
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        format!("cuda ({}, {})", self.context.name, self.kernels.architecture())
    }

    fn numerics(&self) -> String {
        format!("cuda {}", self.kernels.architecture())
    }

    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        self.context.enter().ok()?;
        let id = BufferId(u32::try_from(self.buffers.len()).ok()?);
        self.buffers.push(Some(Memory::new(&self.stream, bytes)?));
        Some(id)
    }

    fn free(&mut self, buffer: BufferId) {
        // Without a context there is no memory either.
        let _ = self.context.enter();
        if self.ring.as_ref().is_some_and(|ring| ring.iter().any(|p| p.outputs.0 == buffer)) {
            self.ring = None;
        }
        self.buffers[buffer.0 as usize] = None;
    }

    fn upload(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.context.enter()?;
        self.buffer(buffer)?.write(&self.stream, offset, bytes)
    }

    fn download(
        &mut self,
        buffer: BufferId,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), String> {
        self.context.enter()?;
        let place = self.ring.iter().flatten().find(|place| place.outputs.0 == buffer);
        if let Some(place) = place.filter(|p| offset.saturating_add(bytes.len()) <= p.brought) {
            place.done.wait()?;
            // SAFETY: the copy into it is done.
            let from = unsafe { place.outputs.1.bytes() };
            bytes.copy_from_slice(&from[offset..offset + bytes.len()]);
            return Ok(());
        }
        self.buffer(buffer)?.read(&self.stream, offset, bytes)
    }

    fn copy(
        &mut self,
        buffer: BufferId,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.context.enter()?;
        self.buffer(buffer)?.copy(&self.stream, from, to, bytes)
    }

    fn matrix_bytes(&self, spec: &MatrixSpec) -> Option<usize> {
        weights::matrix_bytes(spec)
    }

    fn load_matrix(
        &mut self,
        buffer: BufferId,
        spec: &MatrixSpec,
        rows: &[u8],
    ) -> Result<(), String> {
        self.context.enter()?;
        weights::load(&self.stream, self.buffer(buffer)?, spec, rows)
    }

    fn scratch_bytes(&self, plan: &Plan, node: usize, rows: usize) -> usize {
        launch::scratch_bytes(plan, node, rows)
    }

    fn compile(&mut self, plan: Arc<Plan>, shared: Shared) -> Result<PlanId, String> {
        self.context.enter()?;
        plan.buffers.iter().try_for_each(|&b| self.buffer(b).map(|_| ()))?;
        self.make_ring(&shared)?;
        let processors = self.context.processors;
        let buffers = |id: BufferId| {
            let memory = self.buffers.get(id.0 as usize)?.as_ref()?;
            Some((memory.address(), memory.len()))
        };
        let launches = launch::record(&plan, &buffers, shared, processors)?;
        let compiled = Compiled::new(
            (plan, shared),
            launches,
            &mut self.kernels,
            (&self.stream, self.context.shared),
        )?;
        self.plans.push(Some(compiled));
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn discard(&mut self, plan: PlanId) {
        // Without a context there is no graph either.
        let _ = self.context.enter();
        self.plans[plan.0 as usize] = None;
    }

    fn launch(&mut self, plan: PlanId, inputs: &Inputs, ticket: Ticket) -> Result<(), String> {
        self.context.enter()?;
        self.queue(plan, inputs, ticket).inspect_err(|_| {
            // The place is free for another step, so nothing of this one may be under way.
            let _ = (self.stream.wait(), self.results.wait());
        })
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), String> {
        self.context.enter()?;
        let ring = self.ring.as_mut().ok_or("the step has no buffers")?;
        let place = &mut ring[ticket.ring()];
        place.done.wait()?;
        if let Some(plan) = place.measured.and_then(|id| self.plans[id.0 as usize].as_ref()) {
            plan.times(ticket.ring(), &mut place.times)?;
        }
        Ok(())
    }

    fn multiplies_integers(&self, _: &MatrixSpec) -> bool {
        false
    }

    fn memory(&self) -> Option<(usize, usize)> {
        self.context.enter().ok()?;
        self.context.memory().ok()
    }

    fn peaks(&self) -> Option<Peaks> {
        self.context.enter().ok()?;
        let read = peak::copied(&self.stream).ok().flatten()?;
        Some(Peaks { read, arithmetic: None })
    }

    fn measure(&mut self, on: bool) {
        self.measuring = on;
    }

    fn times(&self, ticket: Ticket) -> Option<&[Duration]> {
        let place = &self.ring.as_ref()?[ticket.ring()];
        place.measured.map(|_| &place.times[..])
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // What is freed next may be in use; errors here have nobody to go to.
        let _ = (self.context.enter(), self.stream.wait(), self.results.wait());
    }
}
