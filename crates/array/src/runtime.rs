//! The runtime: one device, its memory, and a dense table of plans that are replayed.
//!
//! Owns the promise of this crate: [`Runtime::launch`] checks after every step, in every build, that the number of
//! live buffers is what it was before. Plans are made in [`Runtime::prepare`], and nowhere else.

use std::sync::Arc;
use std::time::Instant;

use crate::device::{BufferId, Device, IN_FLIGHT, PlanId, Shared, Ticket};
use crate::dims::{Axis, Shape};
use crate::error::{Error, Result};
use crate::inputs::{Bounds, InputLayout, Inputs, TABLES};
use crate::key::Key;
use crate::ledger::{Growth, Ledger, Tag, Usage};
use crate::memory::{Buffer, Inner, Memory};
use crate::plan::Plan;
use crate::profile::{LiveRow, Peaks, Profile, StepCost};
use crate::state::State;
use crate::step::{Record, record};

/// The most plans a runtime prepares.
pub const MOST_PLANS: usize = 256;

/// Limits of a runtime.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most live plus cached buffers.
    pub buffers: usize,
    /// Bytes of freed buffers that are kept for reuse.
    pub cache_bytes: usize,
}

impl Default for Limits {
    /// 65,536 buffers: some ten times what a large model needs, so that a leak is found soon.
    fn default() -> Self {
        Self { buffers: 1 << 16, cache_bytes: 0 }
    }
}

/// What is known of a compiled plan without asking the device.
#[derive(Clone)]
struct Entry {
    id: PlanId,
    /// Shared with the device.
    plan: Arc<Plan>,
    bounds: Bounds,
    layout: InputLayout,
    result: Option<Shape>,
    /// Its weights and states, each with its owner when the plan was made.
    buffers: Vec<(BufferId, u64)>,
    /// The count of releases at which these owners were last seen alive.
    seen: u64,
}

impl Entry {
    fn new(plan: &Arc<Plan>, inner: &Inner) -> Result<Self> {
        let owned = |&b: &BufferId| Some((b, inner.owner(b)?));
        let buffers = plan.buffers.iter().map(owned).collect::<Option<_>>().ok_or(Error::Freed)?;
        let Plan { bounds, layout, result, .. } = **plan;
        let (id, seen) = (PlanId(0), inner.releases);
        Ok(Self { id, plan: Arc::clone(plan), bounds, layout, result, buffers, seen })
    }

    /// Checks that the plan's memory still belongs to those who had it when the plan was made.
    fn check_owners(&mut self, inner: &Inner) -> Result<()> {
        if self.seen != inner.releases {
            let same = |(b, owner): &(BufferId, u64)| inner.owner(*b) == Some(*owner);
            if !self.buffers.iter().all(same) {
                return Err(Error::Freed);
            }
            self.seen = inner.releases;
        }
        Ok(())
    }

    /// Numbers of the result of a step.
    fn numbers(&self, inputs: &Inputs) -> usize {
        self.result.map_or(0, |s| match s.rows {
            Axis::Tokens => s.cols * inputs.ragged().tokens,
            Axis::Outputs => s.cols * inputs.results(),
        })
    }
}

/// Where the time of steps went, and the steps that are under way.
#[derive(Default)]
struct Profiler {
    profile: Profile,
    /// With the ticket of each: what was launched, and when.
    open: [Option<(Ticket, Launched)>; IN_FLIGHT],
}

struct Launched {
    key: Key,
    rows: Vec<LiveRow>,
    began: Instant,
}

struct Io {
    arena: Buffer,
    inputs: [Buffer; IN_FLIGHT],
    outputs: [Buffer; IN_FLIGHT],
}

/// A device with its memory and plans.
pub struct Runtime {
    memory: Memory,
    plans: Vec<Option<Entry>>,
    io: Option<Io>,
    widths: [usize; TABLES],
    input_words: usize,
    /// Numbers of the results in the ring.
    results: [usize; IN_FLIGHT],
    profiler: Option<Box<Profiler>>,
    #[cfg(feature = "leak-lab")]
    pub(crate) lab: crate::lab::Lab,
}

impl Runtime {
    /// A runtime without plans.
    pub fn new(device: Box<dyn Device>, limits: Limits) -> Self {
        let ledger = Ledger::new(limits.buffers);
        Self {
            memory: Memory::new(device, ledger, limits.cache_bytes),
            plans: vec![None; Key::COUNT],
            io: None,
            widths: [0; TABLES],
            input_words: 0,
            results: [0; IN_FLIGHT],
            profiler: None,
            #[cfg(feature = "leak-lab")]
            lab: crate::lab::Lab::default(),
        }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The name of the device.
    pub fn device_name(&self) -> String {
        self.memory.lock().device.name()
    }

    /// What results and states of the device depend on, see [`Device::numerics`].
    pub fn numerics(&self) -> String {
        self.memory.lock().device.numerics()
    }

    /// All counts now.
    pub fn usage(&self) -> Usage {
        self.memory.ledger.usage()
    }

    /// The book of all counts, to be read while the runtime is busy elsewhere.
    pub fn ledger(&self) -> Ledger {
        self.memory.ledger.clone()
    }

    /// How many plans there are.
    pub fn plans(&self) -> usize {
        self.plans.iter().flatten().count()
    }

    /// Whether a step of this key can be launched.
    pub fn has_plan(&self, key: Key) -> bool {
        self.plans[key.index()].is_some()
    }

    /// Records and compiles a plan for each of `keys`; the only place where plans are made. Earlier plans are dropped.
    /// `widths` are the entries a row of each block table.
    ///
    /// # Errors
    /// A step is in flight, the model is wrong (with its source line) or holds what was freed, or memory or objects
    /// run out. After any but the first there are no plans.
    pub fn prepare(
        &mut self,
        model: &dyn Record,
        keys: &[Key],
        widths: [usize; TABLES],
    ) -> Result<()> {
        if keys.len() > MOST_PLANS {
            return Err(Error::TooManyPlans { asked: keys.len(), most: MOST_PLANS });
        }
        self.memory.lock().idle()?;
        self.discard_plans();
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let mut plans = Vec::with_capacity(keys.len());
        for key in keys {
            let nodes = record(key, |step| model.record(step))?;
            let layout = InputLayout::new(key, widths);
            plans.push(Arc::new(Plan::new(key, nodes, layout, &*self.memory.lock().device)));
        }
        let io = self.make_io(&plans)?;
        let shared = Shared {
            arena: io.arena.id,
            inputs: std::array::from_fn(|i| io.inputs[i].id),
            outputs: std::array::from_fn(|i| io.outputs[i].id),
        };
        self.io = Some(io);
        self.widths = widths;
        self.input_words = plans.iter().map(|p| p.layout.words()).max().unwrap_or(0);
        for plan in plans {
            let mut inner = self.memory.lock();
            let (key, entry) = (plan.key, Entry::new(&plan, &inner)?);
            let id = inner.device.compile(plan, shared).map_err(Error::Device)?;
            self.plans[key.index()] = Some(Entry { id, ..entry });
        }
        Ok(())
    }

    fn discard_plans(&mut self) {
        for entry in self.plans.iter_mut().filter_map(Option::take) {
            self.memory.lock().device.discard(entry.id);
        }
        self.io = None;
    }

    fn make_io(&self, plans: &[Arc<Plan>]) -> Result<Io> {
        let arena = plans.iter().map(|p| p.arena_len).max().unwrap_or(0) * 4;
        let result = |p: &Arc<Plan>| p.result.map_or(0, |s| s.cols * p.capacity(s.rows) * 4);
        let outputs = plans.iter().map(result).max().unwrap_or(0);
        let device_bytes = |p: &Arc<Plan>| self.memory.lock().device.input_bytes(&p.layout);
        let inputs = plans.iter().map(device_bytes).max().unwrap_or(0);
        let new = |bytes: usize, tag| self.memory.allocate(bytes.max(64), tag, Growth::Prepare);
        Ok(Io {
            arena: new(arena, Tag::Arena)?,
            inputs: [new(inputs, Tag::Io)?, new(inputs, Tag::Io)?],
            outputs: [new(outputs, Tag::Io)?, new(outputs, Tag::Io)?],
        })
    }

    /// Step inputs with room for every prepared plan.
    pub fn inputs(&self) -> Inputs {
        let key = Key::fit(1, 1, crate::key::Outputs::None, crate::key::Head::Logits)
            .expect("the smallest key exists");
        Inputs::with_room(key, self.widths, self.input_words)
    }

    /// Starts a step. At most [`IN_FLIGHT`] steps may be launched and not yet waited for.
    ///
    /// # Errors
    /// No plan was prepared or it names freed memory, the inputs are inconsistent or were made for other plans, too many
    /// steps are in flight, or a kernel failed: then no step was launched. If the number of live buffers changed, all
    /// steps in flight are waited for and their results are lost.
    pub fn launch(&mut self, inputs: &Inputs) -> Result<Ticket> {
        let entry = self.plans[inputs.key().index()].as_mut();
        let entry = entry.ok_or(Error::NotPrepared(inputs.key()))?;
        if inputs.layout != entry.layout {
            return Err(Error::Inputs("the block tables are not as wide as the plan's".into()));
        }
        let began = self.profiler.as_ref().map(|_| Instant::now());
        inputs.check(&entry.bounds)?;
        let before = self.memory.ledger.live();
        let ticket = {
            let mut inner = self.memory.lock();
            let ticket = Ticket(inner.issued);
            if inner.in_flight() >= IN_FLIGHT as u64 {
                return Err(Error::Ticket { ticket: ticket.0 });
            }
            entry.check_owners(&inner)?;
            inner.device.launch(entry.id, inputs, ticket).map_err(Error::Device)?;
            inner.issued += 1;
            self.results[ticket.ring()] = entry.numbers(inputs);
            ticket
        };
        let checked = self.check_replay(before);
        if checked.is_err() {
            // The caller gets no ticket, so nobody else could wait for this step.
            self.memory.lock().finish();
        } else if let (Some(profiler), Some(began)) = (&mut self.profiler, began) {
            let (key, rows) = (inputs.key(), LiveRow::of(&inputs.ragged()));
            profiler.open[ticket.ring()] = Some((ticket, Launched { key, rows, began }));
        }
        checked.map(|()| ticket)
    }

    fn check_replay(&mut self, before: usize) -> Result<()> {
        #[cfg(feature = "leak-lab")]
        self.lab.advance(&self.memory)?;
        self.check_live(before)
    }

    /// A replay cannot change the number of live buffers: two integers, compared after every step in every build.
    fn check_live(&mut self, before: usize) -> Result<()> {
        let after = self.memory.ledger.live();
        if after == before {
            return Ok(());
        }
        #[cfg(feature = "leak-lab")]
        if self.lab.tolerates() {
            return Ok(());
        }
        Err(Error::LiveCount { before, after })
    }

    /// Waits for a step and copies the first rows of its result into `rows`, which holds `n * columns` numbers.
    ///
    /// # Errors
    /// The step is not in flight or has failed; `rows` is longer than the result.
    pub fn wait(&mut self, ticket: Ticket, rows: &mut [f32]) -> Result<()> {
        self.fetch(ticket, rows)?;
        if self.profiler.is_some() {
            self.note(ticket);
        }
        Ok(())
    }

    fn fetch(&mut self, ticket: Ticket, rows: &mut [f32]) -> Result<()> {
        let mut guard = self.memory.lock();
        let inner = &mut *guard;
        if ticket.0 < inner.finished || ticket.0 >= inner.issued {
            return Err(Error::Ticket { ticket: ticket.0 });
        }
        let done = inner.device.wait(ticket);
        inner.settle(ticket);
        done.map_err(Error::Device)?;
        let have = self.results[ticket.ring()];
        if rows.len() > have {
            let want = rows.len();
            return Err(Error::Inputs(format!("{want} numbers of a result of {have}")));
        }
        if rows.is_empty() {
            return Ok(());
        }
        let io = self.io.as_ref().expect("there are plans while a step is in flight");
        let bytes = crate::bytes::of_f32_mut(rows);
        inner.device.download(io.outputs[ticket.ring()].id, 0, bytes).map_err(Error::Device)
    }

    /// Adds a step that has ended to the profile.
    fn note(&mut self, ticket: Ticket) {
        let Some(profiler) = &mut self.profiler else { return };
        let open = profiler.open[ticket.ring()].take_if(|(launched, _)| *launched == ticket);
        let Some((_, Launched { key, rows, began })) = open else { return };
        let Some(entry) = &self.plans[key.index()] else { return };
        let (took, inner) = (began.elapsed(), self.memory.lock());
        let device = &*inner.device;
        profiler.profile.step(&entry.plan, (device, device.times(ticket)), &rows, took);
    }

    /// Profiles steps from now on, or does so no more; what was seen before is forgotten either way.
    pub fn profile(&mut self, on: bool) {
        self.memory.lock().device.measure(on);
        self.profiler = on.then(Box::default);
    }

    /// What steps cost and where their time went since [`profile`](Self::profile) was switched on; `None` while it is
    /// off.
    pub fn profiled(&self) -> Option<&Profile> {
        self.profiler.as_ref().map(|profiler| &profiler.profile)
    }

    /// What a step of these rows costs by the plan of `key`; `None` without that plan.
    pub fn cost(&self, key: Key, rows: &[LiveRow]) -> Option<StepCost> {
        let entry = self.plans[key.index()].as_ref()?;
        Some(entry.plan.cost(&*self.memory.lock().device, rows))
    }

    /// What the machine can do at most, measured now, in less than a second; `None` if the device runs nothing.
    pub fn peaks(&self) -> Option<Peaks> {
        self.memory.lock().device.peaks()
    }

    /// Copies block or slot `from` of a state over `to`, behind all steps launched so far.
    ///
    /// # Errors
    /// The state belongs to another runtime or has no such units, or the device failed.
    pub fn copy_unit(&mut self, state: &State, from: usize, to: usize) -> Result<()> {
        let bytes = self.unit_of(state, from.max(to))?;
        if from == to {
            return Ok(());
        }
        let mut inner = self.memory.lock();
        let copied = inner.device.copy(state.r.buffer, from * bytes, to * bytes, bytes);
        copied.map_err(Error::Device)
    }

    /// The bytes of a block or slot of a state, as the last step has left them: for [`write_unit`](Self::write_unit) on
    /// a device of the same kind.
    ///
    /// # Errors
    /// As [`copy_unit`](Self::copy_unit), or a step is in flight.
    pub fn read_unit(&mut self, state: &State, unit: usize, bytes: &mut Vec<u8>) -> Result<()> {
        let len = self.unit_of(state, unit)?;
        let mut inner = self.memory.lock();
        inner.idle()?;
        let start = bytes.len();
        bytes.resize(start + len, 0);
        let read = inner.device.download(state.r.buffer, unit * len, &mut bytes[start..]);
        read.map_err(Error::Device)
    }

    /// Overwrites a block or slot of a state with what [`read_unit`](Self::read_unit) gave.
    ///
    /// # Errors
    /// As [`read_unit`](Self::read_unit), or `bytes` is not as long as a unit.
    pub fn write_unit(&mut self, state: &State, unit: usize, bytes: &[u8]) -> Result<()> {
        let len = self.unit_of(state, unit)?;
        if bytes.len() != len {
            return Err(Error::Inputs(format!("{} bytes for a unit of {len}", bytes.len())));
        }
        let mut inner = self.memory.lock();
        inner.idle()?;
        inner.device.upload(state.r.buffer, unit * len, bytes).map_err(Error::Device)
    }

    /// Bytes of a unit, if the state is this runtime's and has unit `last`.
    fn unit_of(&self, state: &State, last: usize) -> Result<usize> {
        if !state.belongs_to(self) {
            return Err(Error::Device("the state belongs to another runtime".into()));
        }
        if last >= state.r.units {
            return Err(Error::Inputs(format!("unit {last} of a state of {}", state.r.units)));
        }
        Ok(state.unit_bytes())
    }

    /// Columns of the result of a plan; 0 without a plan or a result.
    pub fn result_cols(&self, key: Key) -> usize {
        self.plans[key.index()].as_ref().and_then(|e| e.result).map_or(0, |s| s.cols)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.memory.lock().finish();
        self.discard_plans();
    }
}
