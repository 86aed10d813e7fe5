//! Adapters from a seed, in both layouts, and executors of the golden models with room for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use longrun_array::{CpuDevice, CpuOptions, Device, Wanted};
use longrun_lm::Result;
use longrun_lm::adapter::{Adapter, Adapters};
use longrun_lm::cache::{Room, Sequence};
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::config::Config;
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::weights::Source;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::json;

pub(crate) fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

pub(crate) fn golden(family: &str) -> Checkpoint {
    Checkpoint::open(&testdata("golden").join(family)).unwrap()
}

/// Whose layout an adapter is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Mlx,
    Peft,
}

/// Parts of the names of matrices that take no adapter by row: lookups, experts, towers that are not loaded, and what is
/// multiplied head by head.
const OTHERS: [&str; 5] = ["embed", ".experts.", "visual.", "kv_b_proj", "wo_a"];

/// A folder that goes with its owner.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("row-adapters-{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn floats(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).flat_map(|_| (0.2 * next()).to_le_bytes()).collect()
}

/// An adapter for layers `[(name, [rows, cols])]`.
pub(crate) fn write(
    layers: &[(String, [usize; 2])],
    layout: Layout,
    rank: usize,
    seed: u64,
) -> Adapter {
    let scratch = Scratch::new("made");
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (i, (name, [rows, cols])) in layers.iter().enumerate() {
        let [a, b] = [(0, cols), (1, rows)]
            .map(|(second, side)| floats(seed * 1000 + 2 * i as u64 + second, rank * side));
        match layout {
            Layout::Mlx => {
                tensors.push((format!("{name}.lora_a"), vec![*cols, rank], a));
                tensors.push((format!("{name}.lora_b"), vec![rank, *rows], b));
            }
            Layout::Peft => {
                let name = format!("base_model.model.{name}");
                tensors.push((format!("{name}.lora_A.weight"), vec![rank, *cols], a));
                tensors.push((format!("{name}.lora_B.weight"), vec![*rows, rank], b));
            }
        }
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    let (file, config) = match layout {
        Layout::Mlx => {
            ("adapters.safetensors", json!({ "lora_parameters": { "rank": rank, "scale": 2.0 } }))
        }
        Layout::Peft => (
            "adapter_model.safetensors",
            json!({ "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank }),
        ),
    };
    fs::write(scratch.0.join(file), serialize(views, None).unwrap()).unwrap();
    fs::write(scratch.0.join("adapter_config.json"), config.to_string()).unwrap();
    Adapter::open(&scratch.0).unwrap()
}

/// The linear layers of a golden model.
pub(crate) fn layers(checkpoint: &Checkpoint) -> Vec<(String, [usize; 2])> {
    let layer = |name: &str, shape: &[usize]| {
        let base = name.strip_suffix(".weight")?;
        let &[rows, cols] = shape else { return None };
        let ours = !OTHERS.iter().any(|part| base.contains(part));
        ours.then(|| (base.to_owned(), [rows, cols]))
    };
    checkpoint.raw_tensors().filter_map(|t| layer(t.name, t.shape)).collect()
}

/// An adapter for all linear layers of a golden model.
pub(crate) fn adapter(family: &str, layout: Layout, rank: usize, seed: u64) -> Adapter {
    let layers = layers(&golden(family));
    assert!(layers.len() > 4, "{family}: {layers:?}");
    write(&layers, layout, rank, seed)
}

pub(crate) const ROOM: Room =
    Room { rows: 4, context: 160, tokens: 640, chunk: 48, snapshots: 12, drafts: 0 };

/// With room for so many adapters, of rank 8 at most.
pub(crate) fn setup(slots: usize, room: Room) -> Setup {
    Setup { adapters: Adapters { slots, rank: 8 }, per_token: true, ..Setup::new(room) }
}

/// These files on a device.
pub(crate) fn made(device: Box<dyn Device>, files: &Checkpoint, setup: Setup) -> Result<Executor> {
    let config = Config::new(files.config()).unwrap();
    Executor::new(device, &config, Source::Checkpoint(files), setup, &|_, _| {})
}

pub(crate) fn cpu(exact: bool) -> CpuDevice {
    CpuDevice::new(CpuOptions { threads: 1, exact, ..CpuOptions::default() })
}

pub(crate) fn executor(files: &Checkpoint, slots: usize, room: Room, exact: bool) -> Executor {
    made(Box::new(cpu(exact)), files, setup(slots, room)).unwrap()
}

/// Ids that all golden models know.
pub(crate) fn prompt(len: usize, seed: u32) -> Vec<u32> {
    (0..len as u32).map(|i| (i * 37 + 11 + seed * 53) % 64).collect()
}

/// Logits of rows `(ids, adapter)`, in steps of `chunk` tokens of each row.
pub(crate) fn logits(
    exec: &mut Executor,
    rows: &[(Vec<u32>, usize)],
    chunk: usize,
) -> Vec<Vec<f32>> {
    let vocab = exec.vocab();
    let mut seqs: Vec<Sequence> = Vec::new();
    for (ids, adapter) in rows {
        let mut seq = exec.admit(ids.len()).unwrap();
        exec.use_adapter(&mut seq, *adapter).unwrap();
        seqs.push(seq);
    }
    let mut all = vec![Vec::new(); rows.len()];
    let longest = rows.iter().map(|(ids, _)| ids.len()).max().unwrap();
    for start in (0..longest).step_by(chunk) {
        let mut spans: Vec<Span<'_>> = Vec::new();
        let mut counts = Vec::new();
        for (i, (seq, (ids, _))) in seqs.iter_mut().zip(rows).enumerate() {
            let ids = &ids[start.min(ids.len())..(start + chunk).min(ids.len())];
            if !ids.is_empty() {
                counts.push((i, ids.len()));
                spans.push(Span { seq, ids, wanted: Wanted::All, drafts: 0 });
            }
        }
        let mut results = &*exec.run(&mut spans).unwrap();
        for (i, count) in counts {
            let (own, rest) = results.split_at(count * vocab);
            all[i].extend_from_slice(own);
            results = rest;
        }
    }
    seqs.into_iter().for_each(|seq| exec.release(seq));
    all
}

/// The largest difference, relative to the largest number.
pub(crate) fn relative(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let peak = want.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / peak
}

pub(crate) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}
