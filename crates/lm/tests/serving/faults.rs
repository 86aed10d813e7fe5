//! Faults at every stage: a device that fails at its n-th launch, copy, download or upload. Rows of the step end with the
//! error, all memory is back, and whoever comes next is answered as if nothing had been.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use longrun_array::device::{PlanId, Shared};
use longrun_array::inputs::InputLayout;
use longrun_array::plan::Plan;
use longrun_array::{BufferId, CpuDevice, CpuOptions, Device, Inputs, MatrixSpec, Ticket};
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, Request, Service};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::prefix::Miss;
use longrun_lm::weights::Source;

use crate::answers::{CONTEXT, Random, answer, asked, engine};
use crate::families;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Launch,
    Wait,
    Download,
    Copy,
}

/// A CPU that fails once, when `left` calls of a kind have gone by.
struct Faulty {
    inner: CpuDevice,
    call: Call,
    left: Arc<AtomicI64>,
    panics: bool,
}

impl Faulty {
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
    fn compile(&mut self, plan: Plan, shared: Shared) -> Result<PlanId, String> {
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

const ROOM: Room =
    Room { rows: 2, context: CONTEXT, tokens: 2 * CONTEXT, chunk: 32, snapshots: 6, drafts: 0 };

fn faulty(family: &str, call: Call, panics: bool) -> (Engine, Arc<AtomicI64>) {
    let left = Arc::new(AtomicI64::new(-1));
    let inner = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let device = Box::new(Faulty { inner, call, left: Arc::clone(&left), panics });
    let (config, setup) = (families::config(family), Setup::new(ROOM));
    let exec = Executor::new(device, &config, Source::Seed(3), setup, &|_, _| {}).unwrap();
    (Engine::new(exec), left)
}

fn requests() -> [Request; 3] {
    let header = Random(7).ids(90);
    [0, 1, 2].map(|i| {
        let mut prompt = header.clone();
        prompt.extend(Random(i).ids(20));
        Request { boundaries: vec![90], ..asked(&prompt, 8) }
    })
}

#[test]
fn a_fault_at_any_call_ends_its_rows_only() {
    for (family, calls) in [
        ("llama", [Call::Launch, Call::Wait, Call::Download, Call::Copy]),
        ("qwen3_next", [Call::Launch, Call::Wait, Call::Download, Call::Copy]),
    ] {
        let mut plain = engine(family, Room { snapshots: 0, ..ROOM });
        let alone = requests().map(|request| answer(&mut plain, request));
        for call in calls {
            let (mut engine, left) = faulty(family, call, false);
            let live = engine.executor().usage().live;
            let mut faults = 0;
            for after in 0..40 {
                left.store(after, Ordering::Relaxed);
                let rows = requests().map(|request| engine.submit(request).unwrap());
                let (mut events, mut failed) = (Vec::new(), Vec::new());
                while engine.rows() > 0 {
                    // The error of the step is told to each of its rows.
                    let _ = engine.step(&mut events);
                    assert_eq!(engine.executor().usage().live, live);
                }
                events.iter().filter(|e| matches!(e, Event::Failed { .. })).for_each(|event| {
                    failed.push(event.row());
                });
                faults += failed.len();
                left.store(-1, Ordering::Relaxed);
                for (row, alone) in rows.iter().zip(&alone) {
                    let ids: Vec<u32> = events
                        .iter()
                        .filter_map(|event| match event {
                            Event::Token { row: of, choice } if of == row => Some(choice.id),
                            _ => None,
                        })
                        .collect();
                    assert!(alone.ids.starts_with(&ids), "{family}: {call:?} after {after}");
                    assert!(failed.contains(row) || ids == alone.ids);
                }
                for (request, alone) in requests().into_iter().zip(&alone) {
                    assert_eq!(answer(&mut engine, request).said(), alone.said());
                }
                if after % 2 == 0 {
                    engine.clear_prefixes();
                    assert!(engine.executor().all_free());
                }
            }
            assert!(faults > 0, "{family}: {call:?} never failed");
        }
    }
}

/// A row that failed leaves nothing behind that later texts might begin with.
#[test]
fn what_a_failed_row_had_kept_goes_with_it() {
    let (mut engine, left) = faulty("qwen3_next", Call::Launch, false);
    let request = requests()[0].clone();
    engine.submit(request.clone()).unwrap();
    left.store(4, Ordering::Relaxed);
    let mut events = Vec::new();
    while engine.rows() > 0 {
        let _ = engine.step(&mut events);
    }
    assert!(matches!(events.last(), Some(Event::Failed { .. })), "{events:?}");
    assert!(engine.prefixes().is_empty());
    assert_eq!(answer(&mut engine, request).miss, Some(Miss::Unknown));
}

/// A panic in a step ends what is in the engine, and the service goes on.
#[test]
fn a_panic_in_the_loop_is_an_error_of_its_rows() {
    let (engine, left) = faulty("qwen3_next", Call::Copy, true);
    let service = Service::start(engine).unwrap();
    left.store(2, Ordering::Relaxed);
    let events: Vec<Event> = service.submit(requests()[0].clone()).unwrap().collect();
    let Some(Event::Failed { error, .. }) = events.last() else { panic!("{events:?}") };
    assert!(error.to_string().contains("panicked"), "{error}");
    let events = service.submit(requests()[1].clone()).unwrap();
    assert_eq!(events.filter(|e| matches!(e, Event::Token { .. })).count(), 8);
    let view = service.look().unwrap();
    assert_eq!((view.running, view.waiting), (0, 0));
}
