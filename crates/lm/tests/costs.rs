//! What steps cost, exactly: launches, bytes and arithmetic of a prompt and of a token, for small models of many families.
//!
//! Times are noisy, these numbers are not: what a change adds to a step shows here. `testdata/costs.txt` has them, and
//! docs/testing.md says what each means.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use longrun_array::matmul::Isa;
use longrun_array::{CpuDevice, CpuOptions, StepCost, Wanted};
use longrun_lm::cache::Room;
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::source::{ModelName, ModelSource};
use longrun_lm::tiny::TinyShape;

/// Families as `tiny:FAMILY` has them.
const FAMILIES: [&str; 16] = [
    "llama",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_5",
    "gemma3",
    "gemma4",
    "gpt_oss",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "mamba2",
    "nemotron_h",
    "falcon_h1",
    "lfm2",
    "kimi_linear",
    "glm5_next",
];
/// Models whose weights are quantised, below `testdata/quantized`.
const QUANTISED: [&str; 2] = ["mlx-affine4", "mlx-moe"];
/// Tokens of the prompt.
const PROMPT: usize = 40;
/// The variable that has the file written anew.
const UPDATE: &str = "LONGRUN_UPDATE_COSTS";

const HEAD: &str = "\
# What steps of small models cost. Written and read by crates/lm/tests/costs.rs; docs/testing.md says what the numbers mean.
#
model         step    launches  arena_len  weight_bytes  state_bytes  arena_bytes       ops     flops
";

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// A step that reads a prompt, and the step that reads the token behind it.
fn steps(name: ModelName<'_>) -> [StepCost; 2] {
    let source = ModelSource::open(name).unwrap();
    let room = Room { rows: 1, context: 64, tokens: 64, chunk: 64, snapshots: 0, drafts: 0 };
    // Costs are those of any machine with any number of threads.
    let options = CpuOptions { threads: 1, isa: Some(Isa::SCALAR), ..CpuOptions::default() };
    let device = Box::new(CpuDevice::new(options));
    let (config, weights) = (&source.config, source.weights(7));
    let mut exec = Executor::new(device, config, weights, Setup::new(room), &|_, _| {}).unwrap();
    assert_eq!(exec.step_cost(), None);
    let mut seq = exec.admit(64).unwrap();
    let ids: Vec<u32> = (0..PROMPT as u32).map(|i| i * 7 % 31).collect();
    let costs = [&ids[..], &ids[..1]].map(|ids| {
        exec.run(&mut [Span { seq: &mut seq, ids, wanted: Wanted::Last, drafts: 0 }]).unwrap();
        exec.step_cost().unwrap()
    });
    exec.release(seq);
    costs
}

fn lines(model: &str, costs: [StepCost; 2]) -> String {
    let mut text = String::new();
    for (step, StepCost { launches, arena_len, cost: c }) in
        ["prompt", "token"].into_iter().zip(costs)
    {
        let (weights, states, arena) = (c.weight_bytes, c.state_bytes, c.arena_bytes);
        let _ = writeln!(
            text,
            "{model:13} {step:6} {launches:9} {arena_len:10} {weights:13} {states:12} {arena:12} {:9} {:9}",
            c.ops, c.flops
        );
    }
    text
}

#[test]
fn steps_cost_what_they_did() {
    let mut now = HEAD.to_owned();
    for family in FAMILIES {
        now += &lines(family, steps(ModelName::Tiny(family, TinyShape::default())));
    }
    for folder in QUANTISED {
        let path = testdata("quantized").join(folder);
        now += &lines(folder, steps(ModelName::Path(&path)));
    }
    let path = testdata("costs.txt");
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(path, now).unwrap();
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = |(now, before): &(&str, &str)| now != before;
    let mut complaint = String::new();
    for (now, before) in now.lines().zip(before.lines().chain(std::iter::repeat(""))).filter(differ)
    {
        let _ = writeln!(complaint, "before {before}\nnow    {now}");
    }
    assert!(
        complaint.is_empty() && now.len() == before.len(),
        "steps cost something else than testdata/costs.txt says:\n       {}\n{complaint}\
         If that is meant, say so in the commit and write the file anew:\n    \
         {UPDATE}=1 cargo test -p longrun-lm --test costs\n\
         docs/testing.md says what each number means.",
        HEAD.lines().last().unwrap_or_default()
    );
}

/// What steps read grows with the text as far as a model looks back, and nothing else does.
#[test]
fn only_states_grow_with_the_text() {
    for (family, grows) in [("llama", true), ("mamba2", false)] {
        let source = ModelSource::open(ModelName::Tiny(family, TinyShape::default())).unwrap();
        let room = Room { rows: 1, context: 64, tokens: 64, chunk: 64, snapshots: 0, drafts: 0 };
        let device = Box::new(CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() }));
        let (config, setup) = (&source.config, Setup::new(room));
        let mut exec = Executor::new(device, config, source.weights(7), setup, &|_, _| {}).unwrap();
        let mut seq = exec.admit(64).unwrap();
        let mut last: Option<StepCost> = None;
        for id in 0..50 {
            exec.run(&mut [Span { seq: &mut seq, ids: &[id], wanted: Wanted::Last, drafts: 0 }])
                .unwrap();
            let now = exec.step_cost().unwrap();
            let (c, fresh) = (now.cost, id < 2);
            if let Some(StepCost { cost: b, launches, arena_len }) = last.replace(now) {
                assert_eq!((now.launches, now.arena_len), (launches, arena_len));
                assert_eq!(
                    (c.weight_bytes, c.arena_bytes, c.ops),
                    (b.weight_bytes, b.arena_bytes, b.ops)
                );
                let grown = (c.state_bytes > b.state_bytes, c.flops > b.flops);
                assert!(fresh || grown == (grows, grows), "{family}: {b:?}, then {c:?}");
            }
        }
        exec.release(seq);
    }
}
