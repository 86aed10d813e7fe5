use super::*;
use crate::format::{Format, Fp4, Fp8};

const COLS: usize = 256;

/// Reads the cases that `testdata/mlx_quantize.py` wrote.
struct Cases(&'static [u8]);

impl Cases {
    fn bytes(&mut self, count: usize) -> &'static [u8] {
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        let bytes = self.bytes(count * 4).as_chunks::<4>().0;
        bytes.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    }
}

/// Blocks of a format from scales, mins and codes as bytes a group each.
fn blocks(groups: usize, parts: [&[u8]; 3]) -> Vec<u8> {
    let size = |part: &[u8]| part.len() / groups;
    (0..groups)
        .flat_map(|g| parts.map(|part| &part[g * size(part)..][..size(part)]).concat())
        .collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn rows_become_the_bytes_of_mlx_and_mean_its_numbers() {
    let mut cases = Cases(include_bytes!("../../../testdata/mlx_quantize.bin"));
    let mut count = 0;
    while let &[mode, bits, group, float, ..] = cases.0 {
        cases.bytes(4);
        let (bits, group) = (usize::from(bits), usize::from(group));
        let what = format!("mode {mode} {bits}/{group} of float {float}");
        let float = [Float::F32, Float::F16, Float::BF16][usize::from(float)];
        let row = cases.floats(COLS);
        let (codes, groups) = (cases.bytes(COLS * bits / 8), COLS / group);
        let (format, rows) = if mode == 0 {
            let to = Affine::new(bits, group, true).unwrap();
            let (scales, biases) = (cases.floats(groups), cases.floats(groups));
            let made = affine(to, float, &row);
            assert_eq!(made.scales, scales, "{what}");
            assert_eq!(made.biases, biases, "{what}");
            assert_eq!(made.codes, codes, "{what}");
            (Format::Affine(to), blocks(groups, [&bytes(&scales), &bytes(&biases), codes]))
        } else {
            let scales = cases.bytes(groups);
            let made = [mxfp4, mxfp8, nvfp4][usize::from(mode) - 1](float, &row);
            assert_eq!(made.scales, scales, "{what}");
            assert_eq!(made.codes, codes, "{what}");
            let scale = |&s: &u8| if mode == 3 { super::super::e4m3(s) } else { e8m0(s) };
            let scales: Vec<f32> = scales.iter().map(scale).collect();
            let format = match mode {
                2 => Format::Fp8(Fp8::new(group).unwrap()),
                _ => Format::Fp4(Fp4::new(group, true).unwrap()),
            };
            (format, blocks(groups, [&bytes(&scales), &[], codes]))
        };
        if float == Float::F32 {
            let mut numbers = vec![0.0; COLS];
            format.dequantize_row(&rows, &mut numbers);
            assert_eq!(numbers, cases.floats(COLS), "{what}");
        }
        count += 1;
    }
    assert_eq!(count, 39);
}

#[test]
fn float_codes_survive_a_round_trip() {
    for code in (0..=0x7e).chain(0x80..=0xfe) {
        assert_eq!(to_e4m3(super::super::e4m3(code)), code);
    }
    assert_eq!([448.0, 464.0, 1e30, f32::INFINITY].map(to_e4m3), [0x7e; 4]);
    for e in 0..=254 {
        assert_eq!(exponent(e8m0(e)).0, e);
        assert_eq!(exponent(e8m0(e) * 0.75).0, e);
    }
}

#[test]
fn what_is_not_finite_does_not_panic() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        let mut row = [0.5; 64];
        row[7] = bad;
        for float in [Float::F32, Float::F16, Float::BF16] {
            assert_eq!(affine(Affine::new(3, 64, false).unwrap(), float, &row).codes.len(), 24);
            assert_eq!(mxfp4(float, &row).codes.len(), 32);
            assert_eq!(mxfp8(float, &row).codes.len(), 64);
            assert_eq!(nvfp4(float, &row).scales.len(), 4);
        }
    }
}
