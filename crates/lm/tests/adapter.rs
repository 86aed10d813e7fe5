//! LoRA adapters of both layouts beside golden models, against the logits of those who made them.

use std::path::{Path, PathBuf};

use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::adapter::Adapter;
use longrun_lm::check::{check, read_vectors};
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::convert::{Mode, Options, Quantize, convert};

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn adapted(family: &str, adapter: &str) -> Checkpoint {
    let adapter = Adapter::open(&testdata("interop").join(adapter)).unwrap();
    Checkpoint::open(&testdata("golden").join(family)).unwrap().with_adapter(adapter)
}

/// The worst relative difference from the adapter's own vectors.
fn error(checkpoint: &Checkpoint, adapter: &str) -> f32 {
    let vectors = std::fs::read(testdata("interop").join(adapter).join("golden.safetensors"));
    let vectors = read_vectors(&vectors.unwrap()).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 1, exact: true, ..CpuOptions::default() });
    let rows = check(Box::new(device), checkpoint, &vectors).unwrap();
    assert!(rows.iter().all(|row| row.same_bits), "{adapter}");
    rows.iter().map(|row| row.relative).fold(0.0, f32::max)
}

const PAIRS: [(&str, &str); 4] = [
    ("llama", "mlx-llama"),
    ("qwen3", "mlx-qwen3"),
    ("qwen3_yarn", "peft-qwen3_yarn"),
    ("qwen3_next", "peft-qwen3_next"),
];

#[test]
fn adapters_add_what_their_makers_say() {
    for (family, adapter) in PAIRS {
        let error_with = error(&adapted(family, adapter), adapter);
        assert!(error_with <= 1e-4, "{adapter}: {error_with}");
        let plain = Checkpoint::open(&testdata("golden").join(family)).unwrap();
        assert!(error(&plain, adapter) > 1e-2, "{adapter} changes nothing");
    }
}

#[test]
fn a_fused_adapter_computes_the_same() {
    let out = Scratch::new("fused");
    for (family, adapter) in PAIRS {
        let to = out.0.join(adapter);
        let options =
            Options { dtype: Some(longrun_array::quant::encode::Float::F32), ..Options::default() };
        convert(&adapted(family, adapter), &to, &options, &|_, _| ()).unwrap();
        let error = error(&Checkpoint::open(&to).unwrap(), adapter);
        assert!(error <= 1e-4, "{adapter}: {error}");
    }
}

/// An adapter goes beside quantised weights as beside others: the same base dequantised gives the same.
#[test]
fn adapters_go_beside_quantised_weights() {
    let out = Scratch::new("beside");
    let base = Checkpoint::open(&testdata("golden/llama")).unwrap();
    let quantize = Some(Quantize::all(Mode::new("q8", None).unwrap()));
    let dtype = Some(longrun_array::quant::encode::Float::F32);
    let options = |quantize| Options { quantize, dtype, folder: None };
    let (codes, plain) = (out.0.join("codes"), out.0.join("plain"));
    convert(&base, &codes, &options(quantize), &|_, _| ()).unwrap();
    let codes = Checkpoint::open(&codes).unwrap();
    convert(&codes, &plain, &options(None), &|_, _| ()).unwrap();
    let adapter = Adapter::open(&testdata("interop/mlx-llama")).unwrap();
    let plain = Checkpoint::open(&plain).unwrap().with_adapter(adapter.clone());
    let (codes, plain) =
        (error(&codes.with_adapter(adapter), "mlx-llama"), error(&plain, "mlx-llama"));
    assert!((codes - plain).abs() <= 1e-4 && codes < 0.1, "{codes} {plain}");
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let adapter = Adapter::open(&testdata("interop/peft-qwen3_next")).unwrap();
    let other = Checkpoint::open(&testdata("golden/llama")).unwrap().with_adapter(adapter);
    let vectors = std::fs::read(testdata("golden/llama/golden.safetensors")).unwrap();
    let vectors = read_vectors(&vectors).unwrap();
    let device = CpuDevice::new(CpuOptions::default());
    let error = check(Box::new(device), &other, &vectors).unwrap_err().to_string();
    assert!(error.contains("takes an adapter") && error.contains("linear_attn"), "{error}");
    let out = Scratch::new("other");
    let error = convert(&other, &out.0.join("x"), &Options::default(), &|_, _| ()).unwrap_err();
    assert!(error.to_string().contains("takes an adapter"), "{error}");
    assert_eq!(std::fs::read_dir(&out.0).unwrap().count(), 0);
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("adapter-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
