//! Tiny checkpoints in every packing, against the logits that a reference computes with the weights
//! that the codes stand for.

mod checkpoint_build;

use std::path::PathBuf;

use checkpoint_build::{Part, safetensors};
use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::check::{check, read_vectors};
use longrun_lm::checkpoint::{Checkpoint, EmbeddedFile, Packing, RawDtype};

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
}

/// A checkpoint of the file `parts` and this config.
fn build(config: &str, parts: &[Part<'_>]) -> Result<Checkpoint, String> {
    let files: [(&str, Vec<u8>); 2] =
        [("config.json", config.into()), ("model.safetensors", safetensors(parts))];
    // Embedded files live for ever; these are small enough to leak.
    let files: Vec<EmbeddedFile> = files.map(|(name, data)| (name, &*data.leak())).into();
    Checkpoint::from_embedded(files.leak()).map_err(|e| e.to_string())
}

/// Why the checkpoint, or its weight `a.weight`, is refused.
fn refused(config: &str, parts: &[Part<'_>]) -> String {
    match build(config, parts) {
        Ok(checkpoint) => checkpoint.weight("a.weight").unwrap_err().to_string(),
        Err(error) => error,
    }
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

/// Every byte that is an E4M3 number, over and over.
fn e4m3_bytes(count: usize) -> Vec<u8> {
    (0..255).filter(|byte| byte & 0x7f != 0x7f).cycle().take(count).collect()
}

fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7) / 8.0);
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(-6),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    };
    if byte > 127 { -magnitude } else { magnitude }
}

fn e2m1(nibble: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
    if nibble > 7 { -magnitude } else { magnitude }
}

const E2M1_COLS: usize = 64;

/// The numbers of rows of [`E2M1_COLS`] nibbles with an exponent for 32 each.
fn e2m1_numbers(codes: &[u8], exponents: &[u8]) -> Vec<f32> {
    let one = |i: usize| {
        let nibble = codes[i / 2] >> (4 * (i % 2)) & 15;
        e2m1(nibble) * 2f32.powi(i32::from(exponents[i / 32]) - 127)
    };
    (0..codes.len() * 2).map(one).collect()
}

#[test]
fn blocks_of_128_with_a_ragged_edge() {
    let (rows, cols) = (160, 384);
    let codes = e4m3_bytes(rows * cols);
    let scales: Vec<f32> = (0..6).map(|i| 0.3 + i as f32).collect();
    let expected: Vec<f32> = (0..rows * cols)
        .map(|i| scales[i / cols / 128 * 3 + i % cols / 128] * e4m3(codes[i]))
        .collect();
    for scale in ["a.weight_scale_inv", "a.scale"] {
        let parts: [Part<'_>; 2] = [
            ("a.weight", "F8_E4M3", &[rows, cols], codes.clone()),
            (scale, "F32", &[2, 3], f32s(scales.clone())),
        ];
        let config = r#"{"quantization_config":{"quant_method":"fp8"}}"#;
        let checkpoint = build(config, &parts).unwrap();
        let raw = checkpoint.raw("a.weight").unwrap();
        assert_eq!(raw.dtype, RawDtype::Packed(Packing::Fp8 { group: 128 }));
        assert_eq!((raw.shape, raw.stored), (&[rows, cols][..], rows * cols + 24));
        assert_eq!(numbers(&checkpoint, "a.weight"), expected);
        assert!(checkpoint.raw(scale).is_none());
        assert_eq!(checkpoint.summary().parameters, (rows * cols) as u64);
    }
}

#[test]
fn nibbles_with_exponents() {
    let (experts, rows) = (2, 4);
    let codes: Vec<u8> = (0..experts * rows * E2M1_COLS / 2).map(|i| (i * 37) as u8).collect();
    let exponents: Vec<u8> = (0..experts * rows * 2).map(|i| 100 + 3 * i as u8).collect();
    let expected = e2m1_numbers(&codes, &exponents);
    let blocks: [Part<'_>; 3] = [
        ("x.gate_up_proj_blocks", "U8", &[experts, rows, 2, 16], codes.clone()),
        ("x.gate_up_proj_scales", "U8", &[experts, rows, 2], exponents.clone()),
        ("x.gate_up_proj_bias", "F32", &[1], vec![0; 4]),
    ];
    let config = r#"{"quantization_config":{"quant_method":"mxfp4"}}"#;
    let checkpoint = build(config, &blocks).unwrap();
    assert_eq!(checkpoint.raw_tensors().count(), 2);
    assert_eq!(checkpoint.weight("x.gate_up_proj").unwrap().shape, [experts, rows, E2M1_COLS]);
    assert_eq!(numbers(&checkpoint, "x.gate_up_proj"), expected);
    let split: [Part<'_>; 2] = [
        ("a.weight", "I8", &[experts * rows, E2M1_COLS / 2], codes),
        ("a.scale", "F8_E8M0", &[experts * rows, 2], exponents),
    ];
    let checkpoint = build(r#"{"quantization_config":{"quant_method":"fp8"}}"#, &split).unwrap();
    assert_eq!(numbers(&checkpoint, "a.weight"), expected);
    // The scales of the other half are no halves, so all are wide.
    assert_eq!(checkpoint.weight("a.weight").unwrap().format.name(), "fp4/32 wide");
}

#[test]
fn gpt_oss_blocks_of_the_real_names() {
    let checkpoint = open("gpt-oss", &["fp4/32"]);
    for (name, rows) in [("gate_up_proj", 128), ("down_proj", 64)] {
        let weight = checkpoint.weight(&format!("model.layers.0.mlp.experts.{name}")).unwrap();
        assert_eq!((weight.shape, &*weight.format.name()), (&[2, rows, 64][..], "fp4/32"));
    }
}

/// MLX's parts of `a.weight [8, cols]` with so many bits and groups, all zeros and scales of 1.
fn mlx_parts(
    bits: usize,
    cols: usize,
    group: usize,
) -> [(&'static str, &'static str, [usize; 2], Vec<u8>); 3] {
    let scales = [8, cols / group];
    [
        ("a.weight", "U32", [8, cols * bits / 32], vec![0; cols * bits]),
        ("a.scales", "F32", scales, f32s(vec![1.0; 8 * cols / group])),
        ("a.biases", "F32", scales, f32s(vec![1.0; 8 * cols / group])),
    ]
}

fn mlx(config: &str, (bits, cols, group): (usize, usize, usize)) -> Result<Checkpoint, String> {
    let parts = mlx_parts(bits, cols, group);
    let parts: Vec<Part<'_>> = parts.iter().map(|p| (p.0, p.1, &p.2[..], p.3.clone())).collect();
    build(config, &parts)
}

#[test]
fn bits_and_groups_from_shapes() {
    let config = |inner: &str| format!(r#"{{"quantization":{{{inner}}}}}"#);
    let packing = |config: &str, size| {
        mlx(config, size).map(|c| c.raw("a.weight").unwrap().dtype.to_string())
    };
    let four = config(r#""bits":4,"group_size":64"#);
    assert_eq!(packing(&four, (4, 128, 64)).unwrap(), "affine4/64");
    // Not of the width that the settings name: the same groups are more likely than other bits.
    assert_eq!(packing(&four, (8, 128, 64)).unwrap(), "affine8/64");
    assert_eq!(packing(&four, (5, 128, 32)).unwrap(), "affine5/32");
    let own = config(r#""bits":4,"group_size":64,"a":{"bits":8,"group_size":32}"#);
    assert_eq!(packing(&own, (8, 128, 32)).unwrap(), "affine8/32");
    assert!(packing(&own, (3, 128, 32)).unwrap_err().contains("8 bits, groups of 32"));
    let off = config(r#""bits":4,"group_size":64,"a":false"#);
    assert!(packing(&off, (4, 128, 64)).unwrap_err().contains("not quantised, but it has scales"));
    // Without settings only what can be one thing is taken.
    assert_eq!(packing("{}", (3, 128, 32)).unwrap(), "affine3/32");
    assert!(packing("{}", (4, 128, 64)).unwrap_err().contains("does not say how many bits"));
    let nested = r#"{"text_config":{"quantization_config":{"bits":2,"group_size":128}}}"#;
    assert_eq!(packing(nested, (2, 128, 128)).unwrap(), "affine2/128");
    for wrong in [
        r#""bits":0"#,
        r#""group_size":0"#,
        r#""bits":-4"#,
        r#""bits":"4""#,
        r#""bits":1e30"#,
        r#""mode":"ternary""#,
        r#""mode":7"#,
        r#""a":7"#,
        r#""a":{"bits":7}"#,
        r#""a":{"group_size":48}"#,
    ] {
        let error = packing(&config(wrong), (4, 128, 64)).unwrap_err();
        assert!(error.contains("a") && error.len() > 20, "{wrong}: {error}");
    }
    assert!(packing(r#"{"quantization":4}"#, (4, 128, 64)).unwrap_err().contains("no object"));
    assert!(packing(&four, (4, 16, 16)).unwrap_err().contains("64 bits of codes"));
}

#[test]
fn narrow_only_without_loss() {
    let config = r#"{"quantization":{"bits":4,"group_size":32}}"#;
    let format = |scale: f32, bias: f32| {
        let parts: [Part<'_>; 3] = [
            ("a.weight", "U32", &[1, 8], vec![0x21; 32]),
            ("a.scales", "F32", &[1, 2], f32s([1.0, scale])),
            ("a.biases", "F32", &[1, 2], f32s([-0.5, bias])),
        ];
        let checkpoint = build(config, &parts).unwrap();
        let scales = [1.0, scale];
        let expected: Vec<f32> =
            (0..64).map(|i| scales[i / 32] * [1.0, 2.0][i % 2] + [-0.5, bias][i / 32]).collect();
        assert_eq!(numbers(&checkpoint, "a.weight"), expected);
        checkpoint.weight("a.weight").unwrap().format.name().into_owned()
    };
    assert_eq!(format(0.5, 65504.0), "affine4/32");
    assert_eq!(format(2f32.powi(-24), 0.0), "affine4/32");
    assert_eq!(format(2f32.powi(-25), 0.0), "affine4/32 wide");
    assert_eq!(format(0.5, 65520.0), "affine4/32 wide");
    assert_eq!(format(0.1, 0.0), "affine4/32 wide");
}

#[test]
fn methods_that_are_not_understood() {
    let plain: [Part<'_>; 1] = [("a.weight", "F32", &[1], vec![0; 4])];
    for (settings, said) in [
        (r#"{"quant_method":"bitsandbytes","load_in_4bit":true}"#, "bitsandbytes"),
        (r#"{"quant_method":"hqq"}"#, "hqq"),
        (r#"{"quant_method":"eetq"}"#, "eetq"),
        (r#"{"load_in_8bit":true}"#, "names no quant_method"),
        (r#"{"quant_method":"awq","version":"gemv"}"#, "gemv"),
        (r#"{"quant_method":"awq","bits":8}"#, "8"),
        (r#"{"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"}"#, "marlin"),
        (r#"{"quant_method":"gptq","bits":4,"is_marlin_format":true}"#, "marlin"),
        (r#"{"quant_method":"modelopt","quant_algo":"W4A8_AWQ"}"#, "W4A8_AWQ"),
        (r#"{"quant_method":"compressed-tensors","format":"marlin-24"}"#, "marlin-24"),
        (
            r#"{"quant_method":"compressed-tensors","config_groups":{"g":{"format":"mxfp6-pack-quantized"}}}"#,
            "mxfp6",
        ),
        (
            r#"{"quant_method":"compressed-tensors","format":"dense","sparsity_config":{"format":"sparse-24-bitmask"}}"#,
            "sparse-24-bitmask",
        ),
        (
            r#"{"quant_method":"compressed-tensors","format":"dense","transform_config":{"config_groups":{"u":{}}}}"#,
            "transforms",
        ),
    ] {
        let error = build(&format!(r#"{{"quantization_config":{settings}}}"#), &plain).unwrap_err();
        assert!(error.contains(said), "{settings}: {error}");
    }
    let dense = r#"{"quantization_config":{"quant_method":"compressed-tensors","format":"dense"}}"#;
    assert!(build(dense, &plain).is_ok());
    assert!(build(r#"{"quantization_config":null}"#, &plain).is_ok());
    assert!(!build("{}", &plain).unwrap().is_mlx());
}

const GPTQ: &str = r#"{"quantization_config":{"quant_method":"gptq","bits":4,"group_size":32}}"#;
const AWQ_METHOD: &str = r#"{"quantization_config":{"quant_method":"awq","bits":4}}"#;

/// GPTQ's parts of a weight of 8 rows and 64 columns in two groups.
fn gptq_parts(group_of: &[i32]) -> Vec<Part<'static>> {
    let list: Vec<u8> = group_of.iter().flat_map(|g| g.to_le_bytes()).collect();
    vec![
        ("a.qweight", "I32", &[8, 8], vec![0x42; 256]),
        ("a.qzeros", "I32", &[2, 1], vec![0x77; 8]),
        ("a.scales", "F16", &[2, 8], [0, 0x3c].repeat(16)),
        ("a.g_idx", "I32", &[64], list),
    ]
}

#[test]
fn reordered_columns_are_refused() {
    let natural: Vec<i32> = (0..64).map(|i| i / 32).collect();
    let checkpoint = build(GPTQ, &gptq_parts(&natural)).unwrap();
    // Codes are 2 and 4 by turns, zeros 7 + 1.
    let expected: Vec<f32> = (0..512).map(|i| [-6.0, -4.0][i % 2]).collect();
    assert_eq!(numbers(&checkpoint, "a.weight"), expected);
    let mut mixed = natural.clone();
    mixed.swap(3, 40);
    assert!(refused(GPTQ, &gptq_parts(&mixed)).contains("reordered by activation"));
    let short = gptq_parts(&natural[..32]);
    let error = refused(GPTQ, &short);
    assert!(
        error.contains("group indices")
            || error.contains("not valid")
            || error.contains("contradicts"),
        "{error}"
    );
    assert!(refused("{}", &gptq_parts(&natural)).contains("neither GPTQ nor AWQ"));
}

#[test]
fn parts_that_do_not_fit() {
    let bare = r#"{"quantization":{"bits":4,"group_size":32}}"#;
    let codes: Part<'_> = ("a.weight", "U32", &[8, 8], vec![0; 256]);
    let scales: Part<'_> = ("a.scales", "F16", &[8, 2], vec![0; 32]);
    let biases: Part<'_> = ("a.biases", "F16", &[8, 2], vec![0; 32]);
    let fp8: Part<'_> = ("a.weight", "F8_E4M3", &[4, 64], vec![0; 256]);
    let one: Part<'_> = ("a.weight_scale", "F32", &[], f32s([1.0]));
    let gptq = gptq_parts(&[]);
    let packed: Part<'_> = ("a.weight_packed", "I32", &[8, 8], vec![0; 256]);
    let rows: Part<'_> = ("a.weight_scale", "F16", &[8, 2], vec![0; 32]);
    let shape = |rows: i64, cols: i64| -> Part<'_> {
        let dims = [rows, cols].iter().flat_map(|dim| dim.to_le_bytes()).collect();
        ("a.weight_shape", "I64", &[2], dims)
    };
    let nan = f32s([f32::NAN]);
    let cases: Vec<(&str, Vec<Part<'_>>, &str)> = vec![
        (bare, vec![codes.clone(), scales.clone()], "\"a.biases\" is missing"),
        (bare, vec![scales.clone(), biases.clone()], "\"a.weight\" is missing"),
        (bare, vec![codes.clone(), biases.clone()], "belongs to no weight"),
        (
            bare,
            vec![("a.weight", "I32", &[8, 8], vec![0; 256]), scales.clone(), biases.clone()],
            "i32",
        ),
        (
            bare,
            vec![("a.weight", "BF16", &[8, 8], vec![0; 128]), scales.clone(), biases.clone()],
            "bf16",
        ),
        (
            bare,
            vec![codes.clone(), ("a.scales", "F16", &[4, 4], vec![0; 32]), biases.clone()],
            "[4, 4]",
        ),
        (
            bare,
            vec![codes.clone(), scales.clone(), ("a.biases", "F16", &[8], vec![0; 16])],
            "16 bytes of biases",
        ),
        (bare, vec![codes.clone(), ("a.scales", "I8", &[8, 2], vec![0; 16]), biases.clone()], "i8"),
        (bare, vec![codes.clone(), ("a.scales", "F16", &[8, 0], vec![])], "groups"),
        (
            bare,
            vec![
                ("a.weight", "U32", &[0, 8], vec![]),
                ("a.scales", "F16", &[0, 2], vec![]),
                ("a.biases", "F16", &[0, 2], vec![]),
            ],
            "shape [0, 64]",
        ),
        (
            bare,
            vec![
                codes.clone(),
                ("a.scales", "U8", &[8, 2], vec![127; 16]),
                ("a.global_scale", "F32", &[1], nan.clone()),
            ],
            "another mode than nvfp4",
        ),
        (
            "{}",
            vec![fp8.clone(), one.clone(), ("a.weight_zero_point", "I8", &[1], vec![0])],
            "belongs to no weight",
        ),
        ("{}", vec![fp8.clone(), ("a.weight_scale", "F32", &[3], vec![0; 12])], "scales [3]"),
        ("{}", vec![fp8.clone(), ("a.weight_scale", "F32", &[2, 3], vec![0; 24])], "scales [2, 3]"),
        ("{}", vec![fp8.clone(), ("a.weight_scale", "I32", &[1], vec![0; 4])], "i32"),
        ("{}", vec![fp8.clone(), ("a.weight_scale", "F32", &[1], nan)], "NaN"),
        (
            "{}",
            vec![("a.weight", "F8_E4M3", &[1, 32], vec![0x7f; 32]), one.clone()],
            "not a number",
        ),
        (
            "{}",
            vec![("a.weight", "F8_E4M3", &[4, 48], vec![0; 192]), one.clone()],
            "48 of 48 columns",
        ),
        ("{}", vec![("a.weight", "F8_E5M2", &[4, 64], vec![0; 256]), one.clone()], "f8_e5m2"),
        ("{}", vec![fp8, ("a.weight_scale_2", "F32", &[], vec![0; 4])], "belongs to no weight"),
        ("{}", vec![("a.SCB", "F32", &[4], vec![0; 16])], "belongs to no weight"),
        (
            "{}",
            vec![
                ("a_blocks", "U8", &[1, 2, 16], vec![0; 32]),
                ("a_scales", "U8", &[1, 3], vec![0; 3]),
            ],
            "[1, 3]",
        ),
        (GPTQ, vec![gptq[0].clone()], "\"a.scales\" is missing"),
        (GPTQ, vec![gptq[0].clone(), ("a.scales", "F16", &[3, 8], vec![0; 48])], "[3, 8]"),
        (
            GPTQ,
            vec![gptq[0].clone(), gptq[2].clone(), ("a.qzeros", "I32", &[1, 1], vec![0; 4])],
            "4 bytes of zero points",
        ),
        (AWQ_METHOD, vec![gptq[0].clone(), gptq[2].clone()], "[2, 8]"),
        ("{}", vec![packed.clone(), rows.clone()], "\"a.weight_shape\" is missing"),
        ("{}", vec![packed.clone(), rows.clone(), shape(8, 60)], "8 words for 60 columns"),
        ("{}", vec![packed.clone(), rows.clone(), shape(9, 64)], "[9, 64]"),
        ("{}", vec![packed.clone(), rows.clone(), shape(8, 0)], "8 words for 0 columns"),
        ("{}", vec![packed.clone(), rows.clone(), shape(8, -64)], "8 words for 0 columns"),
        (
            "{}",
            vec![
                packed.clone(),
                rows.clone(),
                shape(8, 64),
                ("a.weight_zero_point", "I32", &[2, 2], vec![0; 16]),
            ],
            "16 bytes of zero points",
        ),
        (
            "{}",
            vec![packed.clone(), rows.clone(), shape(8, 64), ("a.weight", "F32", &[1], vec![0; 4])],
            "both packed and as it is",
        ),
        (
            "{}",
            vec![packed, ("a.weight_scale", "F16", &[8, 4], vec![0; 64]), shape(8, 64)],
            "16 of 64 columns",
        ),
    ];
    for (config, parts, said) in cases {
        let names: Vec<_> = parts.iter().map(|part| (part.0, part.1, part.2)).collect();
        let error = refused(config, &parts);
        assert!(error.contains(said), "{names:?}: {error}");
    }
}
