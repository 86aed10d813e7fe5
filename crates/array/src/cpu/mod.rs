//! The CPU device: the default, and the oracle for the others.
//!
//! Owns host memory, the thread pool and one kernel for each operation. Runs a step where it is launched, so a
//! ticket is settled when it is handed out. For every operation the arithmetic of one number of one row depends on
//! the weights, their layout and the token's absolute position, and on nothing else: not on the batch, not on how a
//! prompt is cut, not on threads.

mod attention;
mod carry;
mod columns;
mod context;
mod delta;
mod experts;
mod grouped;
mod hyper;
pub(crate) mod lanes;
mod launch;
mod linear;
mod low_rank;
mod memory;
mod ops;
mod paged;
mod peak;
mod pool;
mod record;
mod recurrent;
mod reference;
mod route;
mod select;
mod ssm;
mod view;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use memory::{HostBuffer, Slabs};
use pool::Pool;

use crate::device::{BufferId, Device, IN_FLIGHT, MatrixSpec, PlanId, Shared, Ticket};
use crate::inputs::{Inputs, Ragged};
use crate::matmul::Isa;
use crate::plan::Plan;
use crate::profile::Peaks;

/// How a CPU device computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads, the calling one included; 0 takes one a core.
    pub threads: usize,
    /// The instruction set; `None` takes the best that the processor has.
    pub isa: Option<Isa>,
    /// Quantised weights meet f32 activations instead of 8-bit ones.
    pub exact: bool,
    /// Runs the plain kernels, which define each operation. For tests.
    pub reference: bool,
}

impl Default for CpuOptions {
    /// One thread a core, the best instruction set, fast kernels.
    fn default() -> Self {
        Self { threads: 0, isa: None, exact: false, reference: false }
    }
}

/// The CPU device.
pub struct CpuDevice {
    options: CpuOptions,
    isa: Isa,
    pool: Pool,
    slabs: Slabs,
    buffers: Vec<Option<HostBuffer>>,
    /// The address of each buffer, in step with `buffers`.
    addresses: Vec<*mut u8>,
    plans: Vec<Option<(Arc<Plan>, Shared)>>,
    /// How long the nodes of the last steps took, where that is measured.
    times: Option<[Vec<Duration>; IN_FLIGHT]>,
}

// SAFETY: the addresses point into the device's own buffers, which move with it and stay where they are.
unsafe impl Send for CpuDevice {}

impl CpuDevice {
    /// A device with its threads.
    pub fn new(options: CpuOptions) -> Self {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if options.threads == 0 { cores() } else { options.threads };
        Self {
            options,
            isa: options.isa.unwrap_or_else(Isa::detect),
            pool: Pool::new(threads),
            slabs: Slabs::default(),
            buffers: Vec::new(),
            addresses: Vec::new(),
            plans: Vec::new(),
            times: None,
        }
    }

    fn buffer(&mut self, id: BufferId) -> Result<&mut HostBuffer, String> {
        let buffer = self.buffers.get_mut(id.0 as usize).and_then(Option::as_mut);
        buffer.ok_or_else(|| format!("{id:?} is gone"))
    }

    fn range(&mut self, id: BufferId, offset: usize, len: usize) -> Result<&mut [u8], String> {
        let bytes = self.buffer(id)?.bytes_mut();
        let have = bytes.len();
        let end = offset.checked_add(len).filter(|&end| end <= have);
        end.map(|end| &mut bytes[offset..end])
            .ok_or_else(|| format!("{len} bytes at {offset} are outside of {have}"))
    }
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        let exact = if self.options.exact { ", exact" } else { "" };
        format!("cpu ({}, {} threads{exact})", self.isa.name(), self.pool.threads())
    }

    fn numerics(&self) -> String {
        format!("{:?}", CpuOptions { threads: 0, isa: Some(self.isa), ..self.options })
    }

    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        let id = BufferId(u32::try_from(self.buffers.len()).ok()?);
        let mut buffer = self.slabs.allocate(bytes)?;
        self.addresses.push(buffer.ptr_mut());
        self.buffers.push(Some(buffer));
        Some(id)
    }

    fn free(&mut self, buffer: BufferId) {
        self.buffers[buffer.0 as usize] = None;
        self.addresses[buffer.0 as usize] = std::ptr::null_mut();
    }

    fn upload(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.range(buffer, offset, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn download(
        &mut self,
        buffer: BufferId,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), String> {
        bytes.copy_from_slice(self.range(buffer, offset, bytes.len())?);
        Ok(())
    }

    fn copy(
        &mut self,
        buffer: BufferId,
        from: usize,
        to: usize,
        bytes: usize,
    ) -> Result<(), String> {
        let end = from.max(to).saturating_add(bytes);
        self.range(buffer, 0, end)?.copy_within(from..from + bytes, to);
        Ok(())
    }

    fn matrix_bytes(&self, spec: &MatrixSpec) -> Option<usize> {
        linear::matrix_bytes(spec)
    }

    fn load_matrix(
        &mut self,
        buffer: BufferId,
        spec: &MatrixSpec,
        rows: &[u8],
    ) -> Result<(), String> {
        let have = self.buffers.get_mut(buffer.0 as usize).and_then(Option::as_mut);
        let have = have.ok_or_else(|| format!("{buffer:?} is gone"))?;
        linear::load(&self.pool, spec, rows, have.bytes_mut())
    }

    fn scratch_bytes(&self, plan: &Plan, node: usize, rows: usize) -> usize {
        let products = linear::scratch_bytes(plan, node, rows, self.options.exact);
        let (threads, exact) = (self.pool.threads(), self.options.exact);
        let columns = columns::scratch_bytes(plan, node, threads);
        let experts = grouped::scratch_bytes(plan, node, rows, exact, threads);
        products.max(experts).max(select::scratch_bytes(plan, node, rows)).max(columns)
    }

    fn compile(&mut self, plan: Arc<Plan>, shared: Shared) -> Result<PlanId, String> {
        plan.buffers.iter().try_for_each(|&b| self.buffer(b).map(|_| ()))?;
        self.plans.push(Some((plan, shared)));
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn discard(&mut self, plan: PlanId) {
        self.plans[plan.0 as usize] = None;
    }

    fn launch(&mut self, plan: PlanId, inputs: &Inputs, ticket: Ticket) -> Result<(), String> {
        let (plan, shared) =
            self.plans[plan.0 as usize].as_ref().ok_or("the plan was discarded")?;
        let alive = |b: &BufferId| self.buffers[b.0 as usize].is_some();
        if !plan.buffers.iter().all(alive) {
            return Err(crate::Error::Freed.to_string());
        }
        let [arena, result] = [shared.arena, shared.outputs[ticket.ring()]].map(|id| id.0 as usize);
        let arena_bytes = self.buffers[arena].as_ref().map_or(0, HostBuffer::len);
        if arena_bytes < plan.arena_len * 4 {
            return Err(format!("an arena of {arena_bytes} bytes is too small"));
        }
        let context = context::Context {
            plan,
            b: Ragged::new(&inputs.layout, inputs.words()),
            pool: &self.pool,
            isa: self.isa,
            exact: self.options.exact,
            buffers: &self.buffers,
            arena: self.addresses[arena].cast(),
            addresses: &self.addresses,
        };
        let reference = self.options.reference;
        let times = self.times.as_mut().map(|times| &mut times[ticket.ring()]);
        let run = || launch::run(&context, reference, result, times);
        catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
            let what = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let what = what.or_else(|| panic.downcast_ref::<String>().cloned());
            format!("a kernel panicked: {}", what.unwrap_or_default())
        })
    }

    fn wait(&mut self, _: Ticket) -> Result<(), String> {
        Ok(())
    }

    fn multiplies_integers(&self, spec: &MatrixSpec) -> bool {
        linear::quantises(spec, self.options.exact)
    }

    fn measure(&mut self, on: bool) {
        self.times = on.then(Default::default);
    }

    fn times(&self, ticket: Ticket) -> Option<&[Duration]> {
        self.times.as_ref().map(|times| &times[ticket.ring()][..])
    }

    fn peaks(&self) -> Option<Peaks> {
        Some(peak::measure(&self.pool, self.isa))
    }
}
