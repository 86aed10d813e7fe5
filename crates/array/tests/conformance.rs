//! Every operation, through the real runtime: its fast kernels on every instruction set and thread count, and on a CUDA
//! device where there is one, against its definition, on random ragged batches; results and states both.
//!
//! The binary reads no files, so it can be carried to a machine with a device.

#[path = "conformance/cases.rs"]
mod cases;
mod common;
#[path = "conformance/compressed.rs"]
mod compressed;
#[path = "conformance/cuda.rs"]
mod cuda;
#[path = "conformance/experts.rs"]
mod experts;
#[path = "conformance/hyper.rs"]
mod hyper;
#[path = "conformance/matrices.rs"]
mod matrices;
#[path = "conformance/recurrent.rs"]
mod recurrent;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use cases::{Case, Rig};
use common::drafts::{self, Draft, drafts};
use common::{IDS, MOST_ROWS, Rng, WIDTHS, cut, script_keys, sequences};
use longrun_array::device::{PlanId, Shared};
use longrun_array::plan::Plan;
use longrun_array::{
    BufferId, CpuDevice, CpuOptions, Device, Inputs, Key, Limits, MatrixSpec, Op, Runtime, Stored,
    Ticket,
};

/// One line an operation: its case, and how far its fast kernels may be from its definition, as a part of the largest
/// number of a result (at least 1). An operation without a line does not compile.
macro_rules! table {
    ($($op:ident: $case:path, $tolerance:expr;)*) => {
        #[allow(dead_code)] // compiling it is the test
        fn every_operation_has_a_line(op: Op) {
            match op { $(Op::$op { .. } => {})* }
        }
        const TABLE: &[(&str, Case, f32)] = &[$((stringify!($op), $case, $tolerance)),*];
    };
}

table! {
    Embed: cases::embed, 0.0;
    RopeTable: cases::rope_table, 1e-6;
    PositionScale: cases::position_scale, 1e-6;
    Carried: cases::carry, 0.0;
    Columns: cases::columns, 0.0;
    Concat: cases::concat, 0.0;
    TakeOutputs: cases::take_outputs, 0.0;
    Add: cases::add, 0.0;
    Apply: cases::apply, 1e-6;
    Gate: cases::gate, 1e-6;
    RmsNorm: cases::rms_norm, 2e-6;
    GatedRmsNorm: cases::gated_rms_norm, 2e-6;
    LayerNorm: cases::layer_norm, 5e-6;
    UnitNorm: cases::unit_norm, 2e-6;
    Linear: cases::linear, 1e-5;
    GroupedLinear: cases::grouped_linear, 1e-5;
    Route: cases::route, 1e-6;
    ExpertsUp: cases::experts_up, 1e-5;
    ExpertsDown: cases::experts_down, 1e-5;
    HyperWeights: hyper::weights, 1e-5;
    HyperIn: hyper::mix_in, 1e-6;
    HyperOut: hyper::mix_out, 1e-6;
    Rope: cases::rope, 2e-6;
    WriteKv: cases::write_kv, 0.0;
    Carry: cases::carry, 0.0;
    Attention: compressed::attention, 1e-5;
    Select: compressed::select, 0.0;
    Pool: compressed::pool, 1e-5;
    Conv: recurrent::conv, 2e-6;
    // Two units in the last place of running sums below 256, which are rounded to f32 by definition.
    Decay: recurrent::decay, 3.1e-5;
    DeltaRule: recurrent::delta_rule, 1e-5;
    Ssm: recurrent::ssm, 1e-5;
    Emit: cases::emit, 0.0;
}

/// Results of all steps, then all states; row by row.
struct Outcome {
    numbers: Vec<Vec<f32>>,
    ops: BTreeSet<String>,
}

/// Runs a case's script on a device, with up to `flight` steps launched and not waited for. The seed alone decides
/// shapes, weights and batches.
///
/// # Errors
/// The device has no kernel for an operation, or failed.
fn run(
    case: Case,
    (seed, stored): (u64, Stored),
    device: Box<dyn Device>,
    flight: usize,
) -> longrun_array::Result<Outcome> {
    let ops = Arc::new(Mutex::new(BTreeSet::new()));
    let device = Spy { inner: device, ops: ops.clone() };
    let mut rig =
        Rig::new(Runtime::new(Box::new(device), Limits::default()), Rng::new(seed), stored);
    let model = case(&mut rig);
    let Rig { mut rt, mut rng, states, adapters, .. } = rig;
    rt.prepare(&model, &script_keys(), WIDTHS)?;

    let rows = rng.int(1, MOST_ROWS);
    let mut sequences = sequences(&mut rng, rows, 200);
    let mut script = drafts(&mut rng, &sequences);
    // A new sequence in a slot that was used: its record counts as zeros.
    sequences[0].ids.reverse();
    let row = sequences[0].row(0, sequences[0].ids.len().min(3));
    script.push(vec![Draft { sequence: 0, row, right: 0 }]);

    let (mut numbers, mut under_way) = (Vec::new(), VecDeque::new());
    for step in script {
        let key = drafts::key(&step);
        let mut rows: Vec<_> = step.into_iter().map(|draft| draft.row).collect();
        rows.iter_mut().for_each(|row| row.adapter = row.slot as usize % (adapters + 1));
        if under_way.len() == flight {
            finish(&mut rt, under_way.pop_front(), &mut numbers)?;
        }
        under_way.push_back((key, common::launch_step(&mut rt, key, &rows)?));
    }
    while !under_way.is_empty() {
        finish(&mut rt, under_way.pop_front(), &mut numbers)?;
    }
    for state in states {
        numbers.push(state.read(&rt)?);
    }
    let ops = ops.lock().unwrap().clone();
    Ok(Outcome { numbers, ops })
}

/// Waits for a step and adds the rows of its result.
fn finish(
    rt: &mut Runtime,
    step: Option<(Key, (Ticket, usize))>,
    numbers: &mut Vec<Vec<f32>>,
) -> longrun_array::Result<()> {
    let Some((key, (ticket, tokens))) = step else { return Ok(()) };
    let cols = rt.result_cols(key);
    let mut result = vec![f32::NAN; tokens * cols];
    rt.wait(ticket, &mut result)?;
    numbers.extend(result.chunks_exact(cols).map(<[f32]>::to_vec));
    Ok(())
}

/// Runs a case's script on a CPU device.
fn run_on_cpu(case: Case, of: (u64, Stored), options: CpuOptions) -> Outcome {
    run(case, of, Box::new(CpuDevice::new(options)), 1).unwrap()
}

/// The types that paged states are to have in the case of an operation.
fn stored_types(name: &str) -> &'static [Stored] {
    let paged = ["WriteKv", "Attention", "Select"].contains(&name);
    if paged { &Stored::ALL[..] } else { &[Stored::F32] }
}

/// The first number that is too far from what it is defined as.
fn distance(got: &[Vec<f32>], want: &[Vec<f32>], tolerance: f32) -> Result<f32, String> {
    let mut worst = 0.0_f32;
    if got.len() != want.len() {
        return Err(format!("{} rows for {}", got.len(), want.len()));
    }
    for (row, (got, want)) in got.iter().zip(want).enumerate() {
        if got.len() != want.len() {
            return Err(format!("row {row} has {} numbers for {}", got.len(), want.len()));
        }
        let peak = want.iter().fold(1.0_f32, |peak, x| peak.max(x.abs()));
        for (col, (got, want)) in got.iter().zip(want).enumerate() {
            // Lists of numbers are the bits of u32, not all of which are numbers in f32.
            let same = got.to_bits() == want.to_bits();
            let off = if same { 0.0 } else { (got - want).abs() / peak };
            let near = off <= tolerance;
            if !near {
                return Err(format!("row {row} column {col}: {got}, defined as {want}"));
            }
            worst = worst.max(off);
        }
    }
    Ok(worst)
}

fn assert_close(name: &str, got: &[Vec<f32>], want: &[Vec<f32>], tolerance: f32) {
    if let Err(what) = distance(got, want, tolerance) {
        panic!("{name}: {what}");
    }
}

fn bits(numbers: &[Vec<f32>]) -> impl Iterator<Item = u32> {
    numbers.iter().flatten().map(|x| x.to_bits())
}

#[test]
fn fast_kernels_agree_with_the_definitions_and_with_each_other() {
    // One operation at a time while it is written: LONGRUN_OP=Select.
    let only = std::env::var("LONGRUN_OP").ok();
    for (name, case, tolerance) in TABLE {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        // What reads or writes paged states does it for every type of theirs.
        for of in
            stored_types(name).iter().flat_map(|stored| (1..=3).map(move |seed| (seed, *stored)))
        {
            let want = run_on_cpu(*case, of, common::definition());
            let snake = |op: &String| op.replace('_', "") == name.to_lowercase();
            assert!(want.ops.iter().any(snake), "the case of {name} has {:?}", want.ops);
            assert!(bits(&want.numbers).any(|x| x != 0), "{name}: all zeros");
            let mut first = None;
            for options in common::machines(true) {
                let got = run_on_cpu(*case, of, options).numbers;
                let name = format!("{name} {of:?} {options:?}");
                assert_close(&name, &got, &want.numbers, *tolerance);
                let first = first.get_or_insert_with(|| got.clone());
                assert!(bits(&got).eq(bits(first)), "{name}: other bits");
            }
        }
    }
}

#[test]
fn scripts_cover_what_they_should() {
    let (mut mixed, mut longest, mut wide) = (false, 0, 0);
    for seed in 1..=3 {
        let mut rng = Rng::new(seed);
        for step in {
            let s = sequences(&mut rng, MOST_ROWS, 200);
            cut(&mut rng, &s)
        } {
            let counts: Vec<_> = step.iter().map(|(_, row)| row.ids.len()).collect();
            mixed |= counts.contains(&1) && counts.iter().any(|n| *n > 1);
            longest = longest.max(step.iter().map(|(_, row)| row.past).max().unwrap());
            wide = wide.max(counts.len());
            assert!(step.iter().all(|(_, row)| row.ids.iter().all(|id| (*id as usize) < IDS)));
        }
    }
    assert!(mixed && longest > 150 && wide == MOST_ROWS, "{mixed} {longest} {wide}");
}

/// Notes which operations reach the device.
struct Spy {
    inner: Box<dyn Device>,
    ops: Arc<Mutex<BTreeSet<String>>>,
}

impl Device for Spy {
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
        self.inner.download(b, offset, bytes)
    }
    fn copy(&mut self, b: BufferId, from: usize, to: usize, bytes: usize) -> Result<(), String> {
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
        self.ops.lock().unwrap().extend(plan.nodes.iter().map(|n| n.op.name().to_owned()));
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
