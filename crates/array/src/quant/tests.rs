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
        Format::IQ4_NL | Format::IQ4_XS | Format::IQ1_S | Format::IQ2_XXS => half(&mut block[1]),
        Format::IQ2_XS | Format::IQ2_S | Format::IQ3_XXS | Format::IQ3_S => half(&mut block[1]),
        Format::IQ1_M => {
            block[55] = block[55] & 0x8f | 0x20;
            block[53] = block[53] & 0x3f | 0x40;
        }
        Format::TQ1_0 => half(&mut block[53]),
        Format::TQ2_0 => half(&mut block[65]),
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

/// The fingerprints are those of the numbers that the `gguf` Python package makes of these bytes:
/// `testdata/gguf_blocks.py` prints them. Formats of grids have enough blocks for every point.
#[test]
fn blocks_mean_what_gguf_says() {
    let golden = [
        (Format::Q4_0, 4, 0xd43b_5423_e5ab_db9b),
        (Format::Q4_1, 4, 0xec64_abd3_d3b2_63e9),
        (Format::Q5_0, 4, 0xcc5d_30ce_4c2c_f990),
        (Format::Q5_1, 4, 0xac71_f424_ca62_5745),
        (Format::Q8_0, 4, 0xcc5c_db83_3253_e0fc),
        (Format::Q2_K, 4, 0x3026_9bed_416c_4559),
        (Format::Q3_K, 4, 0x9647_8b8e_b326_1c4d),
        (Format::Q4_K, 4, 0x7199_56f0_a54a_01b6),
        (Format::Q5_K, 4, 0xd6eb_c463_9d83_9fe9),
        (Format::Q6_K, 4, 0x18ae_9c8c_b2c9_57e5),
        (Format::IQ4_NL, 4, 0xf5af_61ef_74c0_2fea),
        (Format::IQ4_XS, 4, 0xa59b_c65c_57a0_2220),
        (Format::MXFP4, 4, 0xa328_e9b5_a1b0_9e4c),
        (Format::TQ1_0, 4, 0x6ec4_2dac_fa20_97b6),
        (Format::TQ2_0, 4, 0x781c_c4a9_ed43_5303),
        (Format::IQ1_S, 512, 0x6de3_564d_04e7_dec5),
        (Format::IQ1_M, 512, 0x99b7_d568_16bc_15ea),
        (Format::IQ2_XXS, 512, 0xacc5_0f4b_0f91_580f),
        (Format::IQ2_XS, 512, 0x728a_57fa_3066_af5b),
        (Format::IQ2_S, 512, 0x36c2_4da5_36ac_3040),
        (Format::IQ3_XXS, 512, 0x34c9_9860_1c97_30c4),
        (Format::IQ3_S, 512, 0xee11_19f3_02d5_ad1d),
    ];
    for (format, blocks, golden) in golden {
        let bytes = pattern(format, blocks);
        let mut out = vec![0.0; blocks * format.block_len()];
        format.dequantize_row(&bytes, &mut out);
        assert_eq!(fingerprint(&out), golden, "{}", format.name());
    }
}

/// What kernels take for granted of the tables: levels are unsigned with the zero, and below 128
/// unless the format says so.
#[test]
fn levels_are_bytes_that_products_can_take() {
    for format in Format::ALL {
        let Some(spec) = CodeSpec::of(format) else { continue };
        let Some(levels) = spec.codebook.levels() else { continue };
        for (code, &level) in levels.iter().enumerate().take(1 << spec.bits) {
            let unsigned = i16::from(spec.zero) + i16::from(level);
            let most = if spec.is_wide() { 255 } else { 127 };
            assert!((0..=most).contains(&unsigned), "{} code {code}", format.name());
            assert_eq!(spec.table().unwrap()[code], unsigned as u8);
        }
        assert!(spec.zero.is_power_of_two(), "{}", format.name());
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
