//! A device that fails once, at a stated call of a kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use longrun_array::device::{PlanId, Shared};
use longrun_array::inputs::InputLayout;
use longrun_array::plan::Plan;
use longrun_array::{BufferId, CpuDevice, CpuOptions, Device, Inputs, MatrixSpec, Ticket};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Call {
    Launch,
    Wait,
    Download,
    Copy,
    Upload,
}

/// A CPU that fails once, when `left` calls of a kind have gone by.
pub(crate) struct Faulty {
    inner: CpuDevice,
    call: Call,
    left: Arc<AtomicI64>,
    panics: bool,
}

impl Faulty {
    /// One that never fails, until the number of calls that still pass is stored in what comes with it.
    pub(crate) fn new(call: Call, panics: bool) -> (Self, Arc<AtomicI64>) {
        let left = Arc::new(AtomicI64::new(-1));
        let inner = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
        (Self { inner, call, left: Arc::clone(&left), panics }, left)
    }

    fn pass(&self, call: Call) -> Result<(), String> {
        if call == self.call && self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            assert!(!self.panics, "a fault that panics");
            return Err("a fault".into());
        }
        Ok(())
    }
}

impl Device for Faulty {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        self.inner.allocate(bytes)
    }
    fn free(&mut self, buffer: BufferId) {
        self.inner.free(buffer);
    }
    fn upload(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), String> {
        self.pass(Call::Upload)?;
        self.inner.upload(buffer, offset, bytes)
    }
    fn download(&mut self, b: BufferId, offset: usize, bytes: &mut [u8]) -> Result<(), String> {
        self.pass(Call::Download)?;
        self.inner.download(b, offset, bytes)
    }
    fn copy(&mut self, b: BufferId, from: usize, to: usize, bytes: usize) -> Result<(), String> {
        self.pass(Call::Copy)?;
        self.inner.copy(b, from, to, bytes)
    }
    fn matrix_bytes(&self, spec: &MatrixSpec) -> Option<usize> {
        self.inner.matrix_bytes(spec)
    }
    fn load_matrix(&mut self, b: BufferId, spec: &MatrixSpec, rows: &[u8]) -> Result<(), String> {
        self.inner.load_matrix(b, spec, rows)
    }
    fn scratch_bytes(&self, plan: &Plan, node: usize, rows: usize) -> usize {
        self.inner.scratch_bytes(plan, node, rows)
    }
    fn compile(&mut self, plan: Arc<Plan>, shared: Shared) -> Result<PlanId, String> {
        self.inner.compile(plan, shared)
    }
    fn discard(&mut self, plan: PlanId) {
        self.inner.discard(plan);
    }
    fn launch(&mut self, plan: PlanId, inputs: &Inputs, ticket: Ticket) -> Result<(), String> {
        self.pass(Call::Launch)?;
        self.inner.launch(plan, inputs, ticket)
    }
    fn wait(&mut self, ticket: Ticket) -> Result<(), String> {
        self.pass(Call::Wait)?;
        self.inner.wait(ticket)
    }
    fn input_bytes(&self, layout: &InputLayout) -> usize {
        self.inner.input_bytes(layout)
    }
}
