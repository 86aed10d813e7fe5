//! The null device: runs nothing, holds nothing, counts all.
//!
//! For tests of bookkeeping in milliseconds, and for soaks of a million tokens. Outputs read as zeros.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{BufferId, Device, MatrixSpec, PlanId, Shared, Ticket};
use crate::inputs::Inputs;
use crate::plan::Plan;

/// What it refuses to have in one buffer: more than any machine addresses.
const MOST_BYTES: usize = 1 << 48;

/// A device that runs nothing.
#[derive(Default)]
pub struct NullDevice {
    alive: BTreeSet<BufferId>,
    next: u32,
    plans: Vec<Option<Arc<Plan>>>,
    launched: u64,
}

impl NullDevice {
    /// A new one.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many steps were launched.
    pub fn launched(&self) -> u64 {
        self.launched
    }

    fn check(&self, buffer: BufferId) -> Result<(), String> {
        if self.alive.contains(&buffer) { Ok(()) } else { Err(format!("{buffer:?} is gone")) }
    }
}

impl Device for NullDevice {
    fn name(&self) -> String {
        "null (runs nothing)".into()
    }

    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        if bytes > MOST_BYTES {
            return None;
        }
        let id = BufferId(self.next);
        self.next = self.next.checked_add(1)?;
        self.alive.insert(id);
        Some(id)
    }

    fn free(&mut self, buffer: BufferId) {
        self.alive.remove(&buffer);
    }

    fn upload(&mut self, buffer: BufferId, _offset: usize, _bytes: &[u8]) -> Result<(), String> {
        self.check(buffer)
    }

    fn download(&mut self, buffer: BufferId, _: usize, bytes: &mut [u8]) -> Result<(), String> {
        bytes.fill(0);
        self.check(buffer)
    }

    fn copy(&mut self, buffer: BufferId, _: usize, _: usize, _: usize) -> Result<(), String> {
        self.check(buffer)
    }

    fn matrix_bytes(&self, spec: &MatrixSpec) -> Option<usize> {
        spec.format.row_bytes(spec.cols)?.checked_mul(spec.rows)?.checked_mul(spec.experts)
    }

    fn load_matrix(&mut self, buffer: BufferId, _: &MatrixSpec, _: &[u8]) -> Result<(), String> {
        self.check(buffer)
    }

    fn scratch_bytes(&self, _: &Plan, _: usize, _: usize) -> usize {
        0
    }

    fn compile(&mut self, plan: Arc<Plan>, _: Shared) -> Result<PlanId, String> {
        self.plans.push(Some(plan));
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn discard(&mut self, plan: PlanId) {
        self.plans[plan.0 as usize] = None;
    }

    fn launch(&mut self, plan: PlanId, _: &Inputs, _: Ticket) -> Result<(), String> {
        let plan = self.plans[plan.0 as usize].as_ref().ok_or("the plan was discarded")?;
        self.launched += 1;
        plan.buffers.iter().try_for_each(|&b| self.check(b))
    }

    fn wait(&mut self, _: Ticket) -> Result<(), String> {
        Ok(())
    }
}
