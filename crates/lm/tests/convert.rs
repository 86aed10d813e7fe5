//! What the converter writes is read back and computes the same; what it quantises is what it says.

use std::fs;
use std::path::{Path, PathBuf};

use longrun_array::quant::encode::Float;
use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::check::{Row, check, read_vectors};
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::convert::{Mixed, Mode, Options, Quantize, convert};
use serde_json::Value;

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("convert-{name}"));
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

fn options(quantize: Option<&str>, dtype: Option<Float>) -> Options<'static> {
    let quantize = quantize.map(|name| Quantize::all(Mode::new(name, None).unwrap()));
    Options { quantize, dtype, folder: None }
}

fn written(from: &Path, to: &Path, options: &Options<'_>) -> Checkpoint {
    convert(&Checkpoint::open(from).unwrap(), to, options, &|_, _| ()).unwrap();
    Checkpoint::open(to).unwrap()
}

fn compared(checkpoint: &Checkpoint, family: &str) -> Vec<Row> {
    let vectors = fs::read(testdata("golden").join(family).join("golden.safetensors")).unwrap();
    let vectors = read_vectors(&vectors).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 1, exact: true, ..CpuOptions::default() });
    check(Box::new(device), checkpoint, &vectors).unwrap()
}

/// Every family in `testdata/golden`, in plain numbers, once and once more from what was written: nothing is shifted,
/// folded or turned twice.
#[test]
fn every_family_comes_back() {
    let out = Scratch::new("families");
    let mut names: Vec<String> = fs::read_dir(testdata("golden"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    let complaints: Vec<String> = names.iter().flat_map(|name| round_trip(name, &out.0)).collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// What is wrong with a family that is written, checked, and written again.
fn round_trip(family: &str, out: &Path) -> Vec<String> {
    let (once, twice) = (out.join(family), out.join(format!("{family}-again")));
    let go = |from: &Path, to: &Path, dtype| {
        let source = Checkpoint::open(from).map_err(|e| e.to_string())?;
        convert(&source, to, &options(None, dtype), &|_, _| ()).map_err(|e| e.to_string())
    };
    let done = go(&testdata("golden").join(family), &once, Some(Float::F32))
        .and_then(|_| go(&once, &twice, None));
    if let Err(error) = done {
        return vec![format!("{family}: {error}")];
    }
    let mut complaints = Vec::new();
    for row in compared(&Checkpoint::open(&once).unwrap(), family) {
        if !row.passes(1e-4) {
            complaints.push(format!("{family}: {row:?}"));
        }
    }
    for file in ["model.safetensors", "config.json", "model.safetensors.index.json"] {
        if fs::read(once.join(file)).unwrap() != fs::read(twice.join(file)).unwrap() {
            complaints.push(format!("{family}: {file} changes when it is converted again"));
        }
    }
    for folder in [once, twice] {
        fs::remove_dir_all(folder).unwrap();
    }
    complaints
}

/// The numbers of a weight.
fn numbers(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let t = checkpoint.weight(name).unwrap();
    let mut numbers = vec![0.0; t.shape.iter().product()];
    t.format.dequantize_row(&t.data, &mut numbers);
    numbers
}

/// Codes stand for numbers near those that they were made from, and files say how they are packed.
#[test]
fn modes_are_as_near_as_their_bits() {
    let out = Scratch::new("modes");
    let modes = [
        ("q8", "affine8/64", 0.01),
        ("q6", "affine6/64", 0.04),
        ("q4", "affine4/64", 0.15),
        ("q3", "affine3/64", 0.3),
        ("mxfp8", "fp8/32", 0.05),
        ("mxfp4", "fp4/32", 0.25),
        ("nvfp4", "fp4/16", 0.15),
    ];
    for (mode, packing, bound) in modes {
        for (family, stack) in [("llama", ""), ("qwen3_moe", "switch_mlp.")] {
            let (from, to) =
                (testdata("golden").join(family), out.0.join(format!("{family}-{mode}")));
            let checkpoint = written(&from, &to, &options(Some(mode), None));
            let formats = checkpoint.summary().formats;
            assert!(formats.contains_key(packing), "{mode}: {:?}", formats.keys());
            let name = format!("model.layers.0.mlp.{stack}up_proj.weight");
            let plain =
                written(&from, &out.0.join(format!("{family}-{mode}-plain")), &options(None, None));
            let (have, want) = (numbers(&checkpoint, &name), numbers(&plain, &name));
            let square = |x: f32| f64::from(x) * f64::from(x);
            let all: f64 = want.iter().map(|x| square(*x)).sum();
            let apart: f64 = have.iter().zip(&want).map(|(x, y)| square(x - y)).sum();
            let error = (apart / all).sqrt();
            assert!(error > bound / 10.0 && error < bound, "{family} {mode}: {error}");
        }
    }
}

#[test]
fn routers_keep_eight_bits_and_recipes_mix() {
    let out = Scratch::new("recipes");
    let json = |to: &Path| -> Value {
        serde_json::from_slice(&fs::read(to.join("config.json")).unwrap()).unwrap()
    };
    let to = out.0.join("q4");
    written(&testdata("golden/qwen3_moe"), &to, &options(Some("q4"), None));
    let how = &json(&to)["quantization"];
    assert_eq!((how["bits"].as_u64(), how["group_size"].as_u64()), (Some(4), Some(64)));
    assert_eq!(how["model.layers.0.mlp.gate"]["bits"], 8);
    assert_eq!(&json(&to)["quantization_config"], how);
    let to = out.0.join("mixed");
    let quantize = Some(Quantize::mixed(Mixed::Mixed3And6, Some(32)).unwrap());
    let how = Options { quantize, ..Options::default() };
    let checkpoint = written(&testdata("golden/mistral"), &to, &how);
    assert_eq!(json(&to)["quantization"]["lm_head"]["bits"], 6);
    assert_eq!(json(&to)["quantization"]["bits"], 3);
    assert!(compared(&checkpoint, "mistral").iter().all(|row| row.relative < 1.0));
}

#[test]
fn nothing_is_left_of_what_fails() {
    let out = Scratch::new("failures");
    let there = out.0.join("there");
    fs::create_dir(&there).unwrap();
    let llama = Checkpoint::open(&testdata("golden/llama")).unwrap();
    let go = |to: &Path| convert(&llama, to, &Options::default(), &|_, _| ());
    assert!(go(&there).unwrap_err().to_string().contains("exists already"));
    assert!(go(&out.0.join("no/such/parent")).is_err());
    assert!(go(Path::new("/")).is_err());
    // A tensor that lies about its codes is found while others are written already.
    let bad = out.0.join("bad");
    fs::create_dir(&bad).unwrap();
    let from = testdata("golden/qwen3_moe");
    fs::copy(from.join("config.json"), bad.join("config.json")).unwrap();
    let mut bytes = fs::read(from.join("model.safetensors")).unwrap();
    let text = b"experts.3.up_proj.weight";
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    bytes[at + 8] = b'9';
    fs::write(bad.join("model.safetensors"), bytes).unwrap();
    let bad = Checkpoint::open(&bad).unwrap();
    let error = convert(&bad, &out.0.join("new"), &Options::default(), &|_, _| ()).unwrap_err();
    assert!(error.to_string().contains("part 3 is missing"), "{error}");
    let left: Vec<_> = fs::read_dir(&out.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// The types of what is not quantised: the source's, or what was asked for.
#[test]
fn types_are_kept_or_asked_for() {
    let out = Scratch::new("types");
    let names = |dtype, name: &str| {
        let to = out.0.join(name);
        let checkpoint = written(&testdata("golden/qwen3_5"), &to, &options(None, dtype));
        checkpoint.summary().formats.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(names(None, "kept"), ["bf16"]);
    assert_eq!(names(Some(Float::F32), "wide"), ["f32"]);
    // Decays stay in the type of the source.
    assert_eq!(names(Some(Float::F16), "half"), ["bf16", "f16"]);
}
