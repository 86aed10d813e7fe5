//! What is refused, and with which words.

use crate::checkpoint_build::Part;
use crate::{build, f32s, numbers};

/// Why the checkpoint, or its weight `a.weight`, is refused.
fn refused(config: &str, parts: &[Part<'_>]) -> String {
    match build(config, parts) {
        Ok(checkpoint) => checkpoint.weight("a.weight").unwrap_err().to_string(),
        Err(error) => error,
    }
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
const AWQ: &str = r#"{"quantization_config":{"quant_method":"awq","bits":4}}"#;

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

/// Config, parts, what the message says.
type Case<'a> = (&'a str, Vec<Part<'a>>, &'a str);

fn all_refused(cases: Vec<Case<'_>>) {
    for (config, parts, said) in cases {
        let names: Vec<_> = parts.iter().map(|part| (part.0, part.1, part.2)).collect();
        let error = refused(config, &parts);
        assert!(error.contains(said), "{names:?}: {error}");
    }
}

#[test]
fn parts_of_mlx_that_do_not_fit() {
    let config = r#"{"quantization":{"bits":4,"group_size":32}}"#;
    let codes: Part<'_> = ("a.weight", "U32", &[8, 8], vec![0; 256]);
    let scales: Part<'_> = ("a.scales", "F16", &[8, 2], vec![0; 32]);
    let biases: Part<'_> = ("a.biases", "F16", &[8, 2], vec![0; 32]);
    let with = |parts: &[&Part<'static>], said| -> Case<'static> {
        (config, parts.iter().map(|part| (*part).clone()).collect(), said)
    };
    let none: Part<'_> = ("a.weight", "U32", &[0, 8], vec![]);
    let no_scales: Part<'_> = ("a.scales", "F16", &[0, 2], vec![]);
    let no_biases: Part<'_> = ("a.biases", "F16", &[0, 2], vec![]);
    let global: Part<'_> = ("a.global_scale", "F32", &[1], vec![0; 4]);
    let bytes: Part<'_> = ("a.scales", "U8", &[8, 2], vec![127; 16]);
    all_refused(vec![
        with(&[&codes, &scales], "\"a.biases\" is missing"),
        with(&[&scales, &biases], "\"a.weight\" is missing"),
        with(&[&codes, &biases], "belongs to no weight"),
        with(&[&("a.weight", "I32", &[8, 8], vec![0; 256]), &scales, &biases], "i32"),
        with(&[&("a.weight", "BF16", &[8, 8], vec![0; 128]), &scales, &biases], "bf16"),
        with(&[&codes, &("a.scales", "F16", &[4, 4], vec![0; 32]), &biases], "[4, 4]"),
        with(&[&codes, &scales, &("a.biases", "F16", &[8], vec![0; 16])], "16 bytes of biases"),
        with(&[&codes, &("a.scales", "I8", &[8, 2], vec![0; 16]), &biases], "i8"),
        with(&[&codes, &("a.scales", "F16", &[8, 0], vec![])], "[8, 0]"),
        with(&[&none, &no_scales, &no_biases], "shape [0, 64]"),
        with(&[&codes, &bytes, &global], "another mode than nvfp4"),
    ]);
}

#[test]
fn parts_of_floats_that_do_not_fit() {
    let codes: Part<'_> = ("a.weight", "F8_E4M3", &[4, 64], vec![0; 256]);
    let scale = |dtype, shape, data| -> Part<'static> { ("a.weight_scale", dtype, shape, data) };
    let one = scale("F32", &[], f32s([1.0]));
    let with = |codes: &Part<'static>, part: &Part<'static>, said| -> Case<'static> {
        ("{}", vec![codes.clone(), part.clone()], said)
    };
    let zero: Part<'_> = ("a.weight_zero_point", "I8", &[1], vec![0]);
    let second: Part<'_> = ("a.weight_scale_2", "F32", &[], vec![0; 4]);
    let nan: Part<'_> = ("a.weight", "F8_E4M3", &[1, 32], vec![0x7f; 32]);
    let narrow: Part<'_> = ("a.weight", "F8_E4M3", &[4, 48], vec![0; 192]);
    let other: Part<'_> = ("a.weight", "F8_E5M2", &[4, 64], vec![0; 256]);
    let blocks: Part<'_> = ("a_blocks", "U8", &[1, 2, 16], vec![0; 32]);
    all_refused(vec![
        ("{}", vec![codes.clone(), one.clone(), zero], "belongs to no weight"),
        with(&codes, &scale("F32", &[3], vec![0; 12]), "scales [3]"),
        with(&codes, &scale("F32", &[2, 3], vec![0; 24]), "scales [2, 3]"),
        with(&codes, &scale("I32", &[1], vec![0; 4]), "i32"),
        with(&codes, &scale("F32", &[1], f32s([f32::NAN])), "NaN"),
        with(&codes, &second, "belongs to no weight"),
        with(&nan, &one, "not a number"),
        with(&narrow, &one, "48 of 48 columns"),
        with(&other, &one, "F8_E5M2"),
        with(&blocks, &("a_scales", "U8", &[1, 3], vec![0; 3]), "[1, 3]"),
        ("{}", vec![("a.SCB", "F32", &[4], vec![0; 16])], "belongs to no weight"),
    ]);
}

#[test]
fn parts_of_integers_that_do_not_fit() {
    let gptq = gptq_parts(&[]);
    let with = |config, scales: &Part<'static>, said| -> Case<'static> {
        (config, vec![gptq[0].clone(), scales.clone()], said)
    };
    let zeros: Part<'_> = ("a.qzeros", "I32", &[1, 1], vec![0; 4]);
    let codes: Part<'_> = ("a.weight_packed", "I32", &[8, 8], vec![0; 256]);
    let scales: Part<'_> = ("a.weight_scale", "F16", &[8, 2], vec![0; 32]);
    let packed = |rows: i64, cols: i64, more: Option<Part<'static>>, said| -> Case<'static> {
        let dims = [rows, cols].iter().flat_map(|dim| dim.to_le_bytes()).collect();
        let shape: Part<'_> = ("a.weight_shape", "I64", &[2], dims);
        let parts = [codes.clone(), scales.clone(), shape].into_iter().chain(more).collect();
        ("{}", parts, said)
    };
    let short: Part<'_> = ("a.weight_zero_point", "I32", &[2, 2], vec![0; 16]);
    let plain: Part<'_> = ("a.weight", "F32", &[1], vec![0; 4]);
    all_refused(vec![
        (GPTQ, vec![gptq[0].clone()], "\"a.scales\" is missing"),
        with(GPTQ, &("a.scales", "F16", &[3, 8], vec![0; 48]), "[3, 8]"),
        (GPTQ, vec![gptq[0].clone(), gptq[2].clone(), zeros], "4 bytes of zero points"),
        with(AWQ, &gptq[2], "[2, 8]"),
        ("{}", vec![codes.clone(), scales.clone()], "\"a.weight_shape\" is missing"),
        packed(8, 60, None, "8 words for 60 columns"),
        packed(9, 64, None, "[9, 64]"),
        packed(8, 0, None, "8 words for 0 columns"),
        packed(8, -64, None, "8 words for 0 columns"),
        packed(8, 64, Some(short), "16 bytes of zero points"),
        packed(8, 64, Some(plain), "both packed and as it is"),
    ]);
}
