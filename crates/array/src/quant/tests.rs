use super::*;

/// Bytes of a pattern, with tame floats where the blocks keep theirs.
pub(crate) fn pattern(format: Format, blocks: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut bytes = vec![0; blocks * format.block_bytes()];
    for byte in &mut bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (state >> 24) as u8;
    }
    bytes.chunks_exact_mut(format.block_bytes()).for_each(|block| tame(format, block));
    bytes
}

/// Gives the floats of a random block an exponent from a small range.
fn tame(format: Format, block: &mut [u8]) {
    let half = |byte: &mut u8| *byte = *byte & 0x83 | 0x24;
    let full = |byte: &mut u8| *byte = *byte & 0x81 | 0x3c;
    match format {
        Format::F16 | Format::Q4_0 | Format::Q5_0 | Format::Q8_0 => half(&mut block[1]),
        Format::IQ4_NL | Format::IQ4_XS => half(&mut block[1]),
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => {
            _ = [1, 3].map(|at| half(&mut block[at]));
        }
        Format::Q2_K => _ = [81, 83].map(|at| half(&mut block[at])),
        Format::Q3_K => half(&mut block[109]),
        Format::Q6_K => half(&mut block[209]),
        Format::F32 => full(&mut block[3]),
        Format::BF16 => full(&mut block[1]),
        Format::MXFP4 => block[0] = block[0] & 7 | 0x78,
        Format::Affine(f) if f.is_wide() => _ = [3, 7].map(|at| full(&mut block[at])),
        Format::Affine(_) => _ = [1, 3].map(|at| half(&mut block[at])),
        Format::Fp4(f) if !f.is_wide() => half(&mut block[1]),
        Format::Fp4(_) | Format::Fp8(_) => full(&mut block[3]),
    }
}

fn fingerprint(numbers: &[f32]) -> u64 {
    numbers
        .iter()
        .flat_map(|x| (x + 0.0).to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// The fingerprints are those of the numbers that the `gguf` Python package makes of these bytes.
#[test]
fn blocks_mean_what_gguf_says() {
    let golden = [
        (Format::Q4_0, 0xd43b_5423_e5ab_db9b),
        (Format::Q4_1, 0xec64_abd3_d3b2_63e9),
        (Format::Q5_0, 0xcc5d_30ce_4c2c_f990),
        (Format::Q5_1, 0xac71_f424_ca62_5745),
        (Format::Q8_0, 0xcc5c_db83_3253_e0fc),
        (Format::Q2_K, 0x3026_9bed_416c_4559),
        (Format::Q3_K, 0x9647_8b8e_b326_1c4d),
        (Format::Q4_K, 0x7199_56f0_a54a_01b6),
        (Format::Q5_K, 0xd6eb_c463_9d83_9fe9),
        (Format::Q6_K, 0x18ae_9c8c_b2c9_57e5),
        (Format::IQ4_NL, 0xf5af_61ef_74c0_2fea),
        (Format::IQ4_XS, 0xa59b_c65c_57a0_2220),
        (Format::MXFP4, 0xa328_e9b5_a1b0_9e4c),
    ];
    for (format, golden) in golden {
        let bytes = pattern(format, 4);
        let mut out = vec![0.0; 4 * format.block_len()];
        format.dequantize_row(&bytes, &mut out);
        assert_eq!(fingerprint(&out), golden, "{}", format.name());
    }
}

#[test]
fn encoding_errs_by_half_a_step() {
    let row: Vec<f32> = (0..256).map(|k| ((k * 37 % 101) as f32 - 43.0) / 17.0).collect();
    let mut encoded = 0;
    for format in Format::ALL {
        let mut bytes = vec![0; format.row_bytes(row.len()).unwrap()];
        if !format.quantize_row(&row, &mut bytes) {
            assert!(bytes.iter().all(|&byte| byte == 0), "{} wrote", format.name());
            continue;
        }
        encoded += 1;
        let mut back = vec![0.0; row.len()];
        format.dequantize_row(&bytes, &mut back);
        // The range is about 6; formats without a min may lose the far end of theirs: one step.
        let bound = match format {
            Format::F32 => 0.0,
            Format::F16 | Format::BF16 | Format::Q8_0 => 0.02,
            Format::Q5_0 | Format::Q5_1 => 0.25,
            _ => 0.5,
        };
        for (x, y) in row.iter().zip(&back) {
            assert!((x - y).abs() <= bound, "{}: {x} became {y}", format.name());
        }
    }
    assert_eq!(encoded, 8);
}
