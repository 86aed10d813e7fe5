//! The same weights in the layouts of other writers give the same vectors.

mod checkpoint_build;

use std::fs;
use std::path::PathBuf;

use checkpoint_build::Scratch;
use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::check::{check, read_vectors};
use longrun_lm::checkpoint::Checkpoint;
use serde_json::{Value, json};

/// A tensor of two-byte numbers.
struct Part {
    name: String,
    shape: Vec<usize>,
    data: Vec<[u8; 2]>,
}

fn golden(family: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden").join(family)
}

fn parts(family: &str) -> Vec<Part> {
    let bytes = fs::read(golden(family).join("model.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..head]).unwrap();
    let mut parts = Vec::new();
    for (name, tensor) in header.as_object().unwrap().iter().filter(|(k, _)| *k != "__metadata__") {
        let numbers = |v: &Value| -> Vec<usize> {
            v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
        };
        let at = numbers(&tensor["data_offsets"]);
        let data = bytes[head + at[0]..head + at[1]].as_chunks::<2>().0.to_vec();
        parts.push(Part { name: name.clone(), shape: numbers(&tensor["shape"]), data });
    }
    parts
}

fn passes(family: &str, tag: &str, parts: &[Part]) {
    let (mut header, mut data) = (json!({}), Vec::new());
    for part in parts {
        let start = data.len();
        data.extend(part.data.iter().flatten());
        let offsets = [start, data.len()];
        header[&part.name] = json!({"dtype": "BF16", "shape": part.shape, "data_offsets": offsets});
    }
    let file = checkpoint_build::with_header(&header.to_string(), &data);
    let config = fs::read(golden(family).join("config.json")).unwrap();
    let folder = Scratch::new(tag).with("config.json", config).with("model.safetensors", file);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let vectors = fs::read(golden(family).join("golden.safetensors")).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let rows = check(Box::new(device), &checkpoint, &read_vectors(&vectors).unwrap()).unwrap();
    assert!(rows.iter().all(|row| row.passes(1e-4)), "{tag}: {rows:?}");
}

/// `[experts, rows, cols]` with rows and columns exchanged.
fn turned(part: Part) -> Part {
    let [e, r, k] = part.shape[..] else { panic!("{}", part.name) };
    let at = |i: usize| part.data[i / (r * k) * r * k + i % r * k + i % (r * k) / r];
    let data = (0..e * r * k).map(at).collect();
    Part { shape: vec![e, k, r], data, ..part }
}

#[test]
fn gpt_oss_with_rows_as_its_maker_packs_them() {
    let turn = |part: Part| match part.shape.len() {
        3 => turned(part),
        _ => part,
    };
    passes("gpt_oss", "straight", &parts("gpt_oss").into_iter().map(turn).collect::<Vec<_>>());
}

#[test]
fn gpt_oss_with_gate_and_up_apart() {
    let mut apart = Vec::new();
    for part in parts("gpt_oss") {
        let Some((layer, kind)) = part.name.split_once("experts.") else {
            apart.push(part);
            continue;
        };
        let (layer, kind) = (layer.to_owned(), kind.to_owned());
        let (name, end) = match kind.strip_suffix("_bias") {
            Some(name) => (name.to_owned(), "bias"),
            None => (kind, "weight"),
        };
        let part = if end == "weight" { turned(part) } else { part };
        let full = |name: &str| format!("{layer}experts.{name}.{end}");
        if name == "down_proj" {
            apart.push(Part { name: full("down_proj"), ..part });
            continue;
        }
        let row = if end == "weight" { part.shape[2] } else { 1 };
        let mut shape = part.shape.clone();
        shape[1] /= 2;
        for (second, name) in ["gate_proj", "up_proj"].into_iter().enumerate() {
            let rows = part.data.chunks(row).skip(second).step_by(2);
            let data = rows.flatten().copied().collect();
            apart.push(Part { name: full(name), shape: shape.clone(), data });
        }
    }
    passes("gpt_oss", "apart", &apart);
}

#[test]
fn phi3_with_its_projections_apart() {
    let mut apart = Vec::new();
    for part in parts("phi3") {
        let names: &[(&str, usize)] = match part.name.rsplit('.').nth(1) {
            Some("qkv_proj") => &[("q_proj", 64), ("k_proj", 32), ("v_proj", 32)],
            Some("gate_up_proj") => &[("gate_proj", 128), ("up_proj", 128)],
            _ => {
                apart.push(part);
                continue;
            }
        };
        let (module, _) = part.name.strip_suffix(".weight").unwrap().rsplit_once('.').unwrap();
        let mut rows = part.data.chunks(part.shape[1]);
        for (name, count) in names {
            let data = rows.by_ref().take(*count).flatten().copied().collect();
            let shape = vec![*count, part.shape[1]];
            apart.push(Part { name: format!("{module}.{name}.weight"), shape, data });
        }
    }
    passes("phi3", "split", &apart);
}

/// Keys and values of latent attention by head, keys turned; experts stacked.
#[test]
fn deepseek_v3_as_mlx_converts_it() {
    let (heads, nope, value, rank, experts) = (4, 32, 32, 32, 8);
    let mut made = Vec::new();
    let mut stacks: std::collections::BTreeMap<String, Part> = Default::default();
    for part in parts("deepseek_v3") {
        if let Some(at) = part.name.strip_suffix("kv_b_proj.weight") {
            let head = |range: std::ops::Range<usize>| {
                let rows = part.data.chunks((nope + value) * rank);
                rows.flat_map(|head| &head[range.start * rank..range.end * rank]).copied().collect()
            };
            let k = Part {
                name: format!("{at}embed_q.weight"),
                shape: vec![heads, nope, rank],
                data: head(0..nope),
            };
            made.push(turned(k));
            made.push(Part {
                name: format!("{at}unembed_out.weight"),
                shape: vec![heads, value, rank],
                data: head(nope..nope + value),
            });
        } else if let Some((layer, rest)) =
            part.name.split_once("experts.").filter(|p| p.0.ends_with("mlp."))
        {
            let (e, name) = rest.split_once('.').unwrap();
            let e: usize = e.parse().unwrap();
            let size = part.data.len();
            let stack =
                stacks.entry(format!("{layer}switch_mlp.{name}")).or_insert_with_key(|name| Part {
                    name: name.clone(),
                    shape: vec![experts, part.shape[0], part.shape[1]],
                    data: vec![[0; 2]; experts * size],
                });
            stack.data[e * size..][..size].copy_from_slice(&part.data);
        } else {
            made.push(part);
        }
    }
    assert!(!stacks.is_empty());
    made.extend(stacks.into_values());
    passes("deepseek_v3", "mlx", &made);
}
