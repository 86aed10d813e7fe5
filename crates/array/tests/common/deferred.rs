//! A device behind the host: launched steps run when they are waited for, and each looks whether its memory is there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use longrun_array::device::{PlanId, Shared};
use longrun_array::plan::Plan;
use longrun_array::{BufferId, Device, IN_FLIGHT, Inputs, MatrixSpec, Ticket};

/// What a test sees of the device.
#[derive(Default)]
pub struct Log {
    /// Bytes of each buffer that the device holds.
    pub alive: BTreeMap<BufferId, usize>,
    /// Steps that ran on memory that was gone, and other breaches of the contract.
    pub faults: Vec<String>,
    /// The most steps that were in flight.
    pub most_in_flight: usize,
    /// Bytes that the device has.
    pub capacity: usize,
}

impl Log {
    pub fn bytes(&self) -> usize {
        self.alive.values().sum()
    }
}

pub struct Deferred {
    log: Arc<Mutex<Log>>,
    next: u32,
    plans: Vec<Option<(Vec<BufferId>, Shared)>>,
    queue: VecDeque<(PlanId, Ticket)>,
}

impl Deferred {
    pub fn new(capacity: usize) -> (Self, Arc<Mutex<Log>>) {
        let log = Arc::new(Mutex::new(Log { capacity, ..Log::default() }));
        let device = Self { log: log.clone(), next: 0, plans: Vec::new(), queue: VecDeque::new() };
        (device, log)
    }

    fn execute(&self, plan: PlanId, ticket: Ticket) {
        let mut log = self.log.lock().unwrap();
        let Some((buffers, shared)) = &self.plans[plan.0 as usize] else {
            return log.faults.push(format!("{plan:?} was discarded in flight"));
        };
        let ring = ticket.ring();
        let io = [shared.arena, shared.inputs[ring], shared.outputs[ring]];
        for buffer in buffers.iter().chain(&io) {
            if !log.alive.contains_key(buffer) {
                log.faults.push(format!("{ticket:?} ran on {buffer:?}, which is gone"));
            }
        }
    }
}

impl Device for Deferred {
    fn name(&self) -> String {
        "deferred".into()
    }

    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        let mut log = self.log.lock().unwrap();
        if log.bytes().checked_add(bytes)? > log.capacity {
            return None;
        }
        let id = BufferId(self.next);
        self.next += 1;
        log.alive.insert(id, bytes);
        Some(id)
    }

    fn free(&mut self, buffer: BufferId) {
        let mut log = self.log.lock().unwrap();
        if log.alive.remove(&buffer).is_none() {
            log.faults.push(format!("{buffer:?} was freed twice"));
        }
    }

    fn upload(&mut self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), String> {
        let have = self.log.lock().unwrap().alive.get(&buffer).copied().ok_or("gone")?;
        if offset + bytes.len() <= have { Ok(()) } else { Err("outside".into()) }
    }

    fn download(&mut self, buffer: BufferId, at: usize, bytes: &mut [u8]) -> Result<(), String> {
        bytes.fill(0);
        self.upload(buffer, at, bytes)
    }

    fn copy(&mut self, b: BufferId, from: usize, to: usize, bytes: usize) -> Result<(), String> {
        let zeros = vec![0; bytes];
        self.upload(b, from, &zeros)?;
        self.upload(b, to, &zeros)
    }

    fn matrix_bytes(&self, spec: &MatrixSpec) -> Option<usize> {
        spec.format.row_bytes(spec.cols)?.checked_mul(spec.rows)?.checked_mul(spec.experts)
    }

    fn load_matrix(&mut self, to: BufferId, _: &MatrixSpec, rows: &[u8]) -> Result<(), String> {
        self.upload(to, 0, rows)
    }

    fn scratch_bytes(&self, _: &Plan, _: usize, _: usize) -> usize {
        0
    }

    fn compile(&mut self, plan: Arc<Plan>, shared: Shared) -> Result<PlanId, String> {
        self.plans.push(Some((plan.buffers.clone(), shared)));
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn discard(&mut self, plan: PlanId) {
        self.plans[plan.0 as usize] = None;
    }

    fn launch(&mut self, plan: PlanId, _: &Inputs, ticket: Ticket) -> Result<(), String> {
        self.queue.push_back((plan, ticket));
        let mut log = self.log.lock().unwrap();
        log.most_in_flight = log.most_in_flight.max(self.queue.len());
        if self.queue.len() > IN_FLIGHT {
            log.faults.push(format!("{} steps in flight", self.queue.len()));
        }
        Ok(())
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), String> {
        while let Some((plan, first)) = self.queue.pop_front_if(|(_, first)| *first <= ticket) {
            self.execute(plan, first);
        }
        Ok(())
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if !self.queue.is_empty() {
            self.log.lock().unwrap().faults.push("dropped with steps in flight".into());
        }
    }
}
