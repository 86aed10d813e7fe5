//! Tiny checkpoints in every packing, against the logits that a reference computes with the weights
//! that the codes stand for.

#[path = "../checkpoint_build/mod.rs"]
mod checkpoint_build;
mod parts;
mod refused;

use std::path::PathBuf;

use checkpoint_build::{Part, safetensors};
use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::check::{check, read_vectors};
use longrun_lm::checkpoint::{Checkpoint, EmbeddedFile};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/quantized").join(name)
}

/// Opens the checkpoint `name`, whose packed weights are in the formats `packings` and no others.
fn open(name: &str, packings: &[&str]) -> Checkpoint {
    let checkpoint = Checkpoint::open(&folder(name)).unwrap();
    let summary = checkpoint.summary();
    let plain = |format: &&String| !matches!(format.as_str(), "bf16" | "f32" | "f16");
    let found: Vec<_> = summary.formats.keys().filter(plain).collect();
    assert_eq!(found, packings, "{name}");
    assert!(summary.formats.values().all(|total| total.usable));
    assert_eq!(checkpoint.is_mlx(), name.starts_with("mlx"), "{name}");
    checkpoint
}

fn run(name: &str, packings: &[&str]) {
    let checkpoint = open(name, packings);
    let vectors = std::fs::read(folder(name).join("golden.safetensors")).unwrap();
    let vectors = read_vectors(&vectors).unwrap();
    for options in [
        CpuOptions { threads: 2, exact: true, ..CpuOptions::default() },
        CpuOptions { reference: true, exact: true, ..CpuOptions::default() },
    ] {
        let rows = check(Box::new(CpuDevice::new(options)), &checkpoint, &vectors).unwrap();
        assert_eq!(rows.len(), 8);
        for row in rows {
            assert!(row.passes(1e-4), "{name}: {row:?}");
            assert!(row.same_bits || options.reference, "{name}: {row:?}");
        }
    }
}

macro_rules! checkpoints {
    ($($test:ident: $name:literal $packings:expr;)*) => { $(
        #[test]
        fn $test() {
            run($name, &$packings);
        }
    )* };
}

checkpoints! {
    mlx_affine1: "mlx-affine1" ["affine1/64"];
    mlx_affine2: "mlx-affine2" ["affine2/32"];
    mlx_affine3: "mlx-affine3" ["affine3/64"];
    mlx_affine4: "mlx-affine4" ["affine4/64"];
    mlx_affine4_wide: "mlx-affine4-wide" ["affine4/32"];
    mlx_affine5: "mlx-affine5" ["affine5/32"];
    mlx_affine6: "mlx-affine6" ["affine6/64"];
    mlx_affine8: "mlx-affine8" ["affine8/64"];
    mlx_gemma3: "mlx-gemma3" ["affine4/64"];
    mlx_mixed: "mlx-mixed" ["affine4/64", "affine6/32", "affine8/128", "fp4/32"];
    mlx_mxfp4: "mlx-mxfp4" ["fp4/32"];
    mlx_mxfp8: "mlx-mxfp8" ["fp8/32"];
    mlx_nvfp4: "mlx-nvfp4" ["fp4/16"];
    mlx_moe: "mlx-moe" ["affine4/32", "affine8/64"];
    mlx_moe_nvfp4: "mlx-moe-nvfp4" ["affine8/64", "fp4/16"];
    mlx_gpt_oss: "mlx-gpt-oss" ["affine8/64", "fp4/32"];
    mlx_hybrid: "mlx-hybrid" ["affine4/32", "affine8/64"];
    fp8_block: "fp8-block" ["fp8/32"];
    fp8_ue8m0: "fp8-ue8m0" ["fp8/32"];
    fp8_moe: "fp8-moe" ["fp8/32"];
    fp8_moe_fused: "fp8-moe-fused" ["fp8/32"];
    ct_fp8_tensor: "ct-fp8-tensor" ["fp8/128", "fp8/32"];
    ct_fp8_channel: "ct-fp8-channel" ["fp8/128", "fp8/32"];
    ct_mxfp8: "ct-mxfp8" ["fp8/32"];
    ct_int8: "ct-int8" ["affine8/128", "affine8/64"];
    ct_int4: "ct-int4" ["affine4/32"];
    ct_int4_zero: "ct-int4-zero" ["affine4/64"];
    ct_int8_channel: "ct-int8-channel" ["affine8/128", "affine8/64"];
    ct_nvfp4: "ct-nvfp4" ["fp4/16"];
    ct_mxfp4: "ct-mxfp4" ["fp4/32"];
    modelopt_nvfp4: "modelopt-nvfp4" ["fp4/16"];
    awq: "awq" ["affine4/32"];
    gptq4: "gptq4" ["affine4/32"];
    gptq4_v2: "gptq4-v2" ["affine4/64"];
    gptq8: "gptq8" ["affine8/64"];
    gpt_oss: "gpt-oss" ["fp4/32"];
}

#[test]
fn gpt_oss_blocks_of_the_real_names() {
    let checkpoint = open("gpt-oss", &["fp4/32"]);
    for (name, rows) in [("gate_up_proj", 128), ("down_proj", 64)] {
        let weight = checkpoint.weight(&format!("model.layers.0.mlp.experts.{name}")).unwrap();
        assert_eq!((weight.shape, &*weight.format.name()), (&[2, rows, 64][..], "fp4/32"));
    }
}

/// A checkpoint of the file `parts` and this config.
fn build(config: &str, parts: &[Part<'_>]) -> Result<Checkpoint, String> {
    let files: [(&str, Vec<u8>); 2] =
        [("config.json", config.into()), ("model.safetensors", safetensors(parts))];
    // Embedded files live for ever; these are small enough to leak.
    let files: Vec<EmbeddedFile> = files.map(|(name, data)| (name, &*data.leak())).into();
    Checkpoint::from_embedded(files.leak()).map_err(|e| e.to_string())
}

fn numbers(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let view = checkpoint.weight(name).unwrap();
    let mut numbers = vec![0.0; view.shape.iter().product()];
    view.format.dequantize_row(&view.data, &mut numbers);
    numbers
}

fn f32s(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}
