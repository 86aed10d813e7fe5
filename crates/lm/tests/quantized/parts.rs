//! What the numbers of packed weights are, written out in plain loops, and in which format.

use longrun_lm::checkpoint::{Checkpoint, Packing, RawDtype};

use crate::checkpoint_build::Part;
use crate::{build, f32s, numbers};

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
    assert!(packing(&four, (7, 128, 32)).unwrap_err().contains("224 bits of codes"));
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
