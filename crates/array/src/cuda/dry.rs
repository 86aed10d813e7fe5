//! A device that records plans as the CUDA device does, checks them, and runs nothing: what can be tested without a GPU.
//!
//! Owns invented addresses. Every operation gets its launches, each compared with the source of its kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{launch, weights};
use crate::device::{BufferId, Device, MatrixSpec, NullDevice, PlanId, Shared, Ticket};
use crate::inputs::Inputs;
use crate::plan::Plan;

/// Multiprocessors that launches are recorded for.
const PROCESSORS: u32 = 132;

/// Memory begins at multiples of this.
const ALIGN: u64 = 256;

/// Records and checks plans of the CUDA device.
#[derive(Default)]
pub struct CudaDryRun {
    inner: NullDevice,
    buffers: BTreeMap<BufferId, (u64, usize)>,
    end: u64,
}

impl CudaDryRun {
    /// A new one.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Device for CudaDryRun {
    fn name(&self) -> String {
        "cuda (dry run)".into()
    }

    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        let id = self.inner.allocate(bytes)?;
        self.end += ALIGN;
        self.buffers.insert(id, (self.end, bytes));
        self.end = (self.end + bytes as u64).next_multiple_of(ALIGN);
        Some(id)
    }

    fn free(&mut self, buffer: BufferId) {
        self.buffers.remove(&buffer);
        self.inner.free(buffer);
    }

    fn upload(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.inner.upload(buffer, offset, bytes)
    }

    fn download(&mut self, buffer: BufferId, at: usize, bytes: &mut [u8]) -> Result<(), String> {
        self.inner.download(buffer, at, bytes)
    }

    fn copy(&mut self, b: BufferId, from: usize, to: usize, bytes: usize) -> Result<(), String> {
        self.inner.copy(b, from, to, bytes)
    }

    fn matrix_bytes(&self, spec: &MatrixSpec) -> Option<usize> {
        weights::matrix_bytes(spec)
    }

    fn load_matrix(&mut self, b: BufferId, spec: &MatrixSpec, rows: &[u8]) -> Result<(), String> {
        self.inner.load_matrix(b, spec, rows)
    }

    fn scratch_bytes(&self, plan: &Plan, node: usize, rows: usize) -> usize {
        launch::scratch_bytes(plan, node, rows)
    }

    fn compile(&mut self, plan: Arc<Plan>, shared: Shared) -> Result<PlanId, String> {
        let buffers = |id: BufferId| self.buffers.get(&id).copied();
        launch::record(&plan, &buffers, shared, PROCESSORS)?;
        self.inner.compile(plan, shared)
    }

    fn discard(&mut self, plan: PlanId) {
        self.inner.discard(plan);
    }

    fn launch(&mut self, plan: PlanId, inputs: &Inputs, ticket: Ticket) -> Result<(), String> {
        self.inner.launch(plan, inputs, ticket)
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), String> {
        self.inner.wait(ticket)
    }
}
