use proptest::prelude::*;

use super::*;
use crate::format::Affine;
use crate::panel::pack_panels;
use crate::quant::tests::pattern;

/// A problem: packed weights, their exact values, activations in both forms, a bias.
struct Case {
    layout: PanelLayout,
    panels: Vec<u8>,
    weights: Vec<f32>,
    x: Vec<f32>,
    xq: Vec<u8>,
    bias: Vec<f32>,
    rows: usize,
}

fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let mut state = seed as u32 * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next() * 3.0 + next()).collect()
}

impl Case {
    fn new(format: Format, rows: usize, n: usize, k: usize) -> Self {
        let layout = PanelLayout::new(format, n, k).unwrap();
        let src = pattern(format, n * k / format.block_len());
        let mut weights = vec![0.0; n * k];
        format.dequantize_row(&src, &mut weights);
        let mut panels = vec![0; layout.bytes()];
        pack_panels(&layout, &src, 0..layout.panels(), &mut panels);
        let (x, bias) = (numbers(rows + n, rows * k), numbers(k, n));
        let mut xq = Vec::new();
        if k.is_multiple_of(32) {
            xq = quantized(Isa::SCALAR, &x, k);
        }
        Self { layout, panels, weights, x, xq, bias, rows }
    }

    /// Rows `m` and panels `p` of the product; what is not asked for stays NaN.
    fn product(&self, isa: Isa, exact: bool, m: Range<usize>, p: Range<usize>) -> Vec<f32> {
        let (layout, n, k) = (&self.layout, self.layout.rows(), self.layout.cols());
        let stride = n + 3;
        let mut y = vec![f32::NAN; m.len() * stride];
        // SAFETY: one thread, and rows of n numbers.
        let out = unsafe { Output::new(y.as_mut_ptr(), m.len(), stride) };
        let bias = Some(self.bias.as_slice());
        if exact {
            let x = Rows::new(&self.x[m.start * k..m.end * k], m.len(), k, k);
            matmul_f32(isa, layout, &self.panels, x, bias, out, p);
        } else {
            let bytes = quantized_row_bytes(k);
            let x = QuantizedRows::new(&self.xq[m.start * bytes..m.end * bytes], m.len(), k);
            matmul_q8(isa, layout, &self.panels, x, bias, out, p);
        }
        for row in y.chunks_exact(stride) {
            assert!(row[n..].iter().all(|y| y.is_nan()), "wrote past the rows of the weights");
        }
        y.chunks_exact(stride).flat_map(|row| row[..n].iter().copied()).collect()
    }

    /// Checks a whole product against sums in `f64`: within `1e-5` of the sum of magnitudes.
    fn check(&self, isa: Isa, exact: bool, y: &[f32]) {
        let (n, k) = (self.layout.rows(), self.layout.cols());
        let mut x = self.x.clone();
        if !exact {
            let rows = self.xq.chunks_exact(quantized_row_bytes(k)).zip(x.chunks_exact_mut(k));
            rows.for_each(|(row, out)| dequantize_activations(row, out));
        }
        for (at, &y) in y.iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let (mut sum, mut magnitude) = (f64::from(self.bias[column]), 0.0);
            for (x, w) in x[row * k..][..k].iter().zip(&self.weights[column * k..][..k]) {
                let product = f64::from(*x) * f64::from(*w);
                sum += product;
                magnitude += product.abs();
            }
            let error = (f64::from(y) - sum).abs();
            let name = self.layout.format().name();
            assert!(
                error <= 1e-5 * magnitude + 1e-6,
                "{} {name} exact {exact} rows {} k {k} at {at}: {y} for {sum}",
                isa.name(),
                self.rows,
            );
        }
    }
}

fn quantized(isa: Isa, x: &[f32], k: usize) -> Vec<u8> {
    let mut xq = vec![0; x.len() / k * quantized_row_bytes(k)];
    for (row, dst) in x.chunks_exact(k).zip(xq.chunks_exact_mut(quantized_row_bytes(k))) {
        quantize_activations(isa, row, dst);
    }
    xq
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// Columns to test a format with: a few blocks, more than one run of unpacked columns.
fn columns(format: Format) -> [usize; 2] {
    match format {
        _ if format.is_float() => [13, 337],
        _ if format.block_len() == 256 => [256, 512],
        _ if format.block_len() == 128 => [128, 384],
        _ if format.block_len() == 64 => [64, 320],
        _ => [96, 352],
    }
}

#[test]
fn products_are_right_and_the_same_bits_on_every_instruction_set() {
    for format in Format::ALL {
        for rows in 1..=20 {
            let case = Case::new(format, rows, 16 + rows % 18, columns(format)[rows % 2]);
            for exact in [true, false] {
                if !exact && !format.quantises_activations() {
                    continue;
                }
                let all = 0..case.layout.panels();
                let expected = case.product(Isa::SCALAR, exact, 0..rows, all.clone());
                case.check(Isa::SCALAR, exact, &expected);
                for isa in Isa::available() {
                    let y = case.product(isa, exact, 0..rows, all.clone());
                    assert_eq!(bits(&y), bits(&expected), "{} {}", isa.name(), format.name());
                }
            }
        }
    }
}

/// Many rows: more than one chunk of them.
#[test]
fn prompts_are_products_of_their_rows() {
    let isa = Isa::detect();
    for (format, exact) in [(Format::F32, true), (Format::Q4_K, true), (Format::Q6_K, false)] {
        let case = Case::new(format, 260, 16, 256);
        let y = case.product(isa, exact, 0..260, 0..1);
        case.check(isa, exact, &y);
        for row in (0..260).step_by(13) {
            let alone = case.product(isa, exact, row..row + 1, 0..1);
            assert_eq!(bits(&alone), bits(&y[row * 16..][..16]), "row {row}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// The order contract: a row alone, among others, with some panels or all: the same bits.
    #[test]
    fn neighbours_and_cuts_change_no_bit(
        format in 0..Format::ALL.len(), rows in 1..40_usize, n in 1..80_usize, wide in 0..2_usize,
        row in 0..40_usize, more in 0..40_usize, cut in 0..6_usize, exact: bool, isa in 0..3_usize,
    ) {
        let format = Format::ALL[format];
        let exact = exact || !format.quantises_activations();
        let isa = Isa::available().nth(isa).unwrap_or(Isa::SCALAR);
        let case = Case::new(format, rows, n, columns(format)[wide]);
        let panels = case.layout.panels();
        let whole = case.product(isa, exact, 0..rows, 0..panels);
        let some = row.min(rows - 1)..(row.min(rows - 1) + 1 + more).min(rows);
        let cut = cut.min(panels);
        let (low, high) = (
            case.product(isa, exact, some.clone(), 0..cut),
            case.product(isa, exact, some.clone(), cut..panels),
        );
        for (at, &expected) in whole[some.start * n..some.end * n].iter().enumerate() {
            let (got, other) = match at % n / 16 < cut {
                true => (low[at], high[at]),
                false => (high[at], low[at]),
            };
            prop_assert_eq!(got.to_bits(), expected.to_bits());
            prop_assert!(other.is_nan(), "wrote a panel that was not asked for");
        }
    }
}

#[test]
fn quantized_activations_are_the_same_everywhere_and_near() {
    let mut x = numbers(7, 96);
    x[32..64].fill(0.0);
    x[70] = 1e-30;
    let expected = quantized(Isa::SCALAR, &x, 96);
    let mut back = vec![0.0; 96];
    dequantize_activations(&expected, &mut back);
    for (block, back) in x.chunks_exact(32).zip(back.chunks_exact(32)) {
        let peak = block.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
        for (x, y) in block.iter().zip(back) {
            assert!((x - y).abs() <= peak / 253.0, "{x} became {y}");
        }
    }
    for isa in Isa::available() {
        assert_eq!(quantized(isa, &x, 96), expected, "{}", isa.name());
    }
}

#[test]
fn what_is_not_finite_stays_so_and_what_is_tiny_is_zero() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut case = Case::new(Format::Q4_0, 2, 16, 64);
        case.x[40] = bad;
        for isa in Isa::available() {
            case.xq = quantized(isa, &case.x, 64);
            let y = case.product(isa, false, 0..2, 0..1);
            assert!(y[..16].iter().all(|y| y.is_nan()), "{}", isa.name());
            assert!(y[16..].iter().all(|y| y.is_finite()), "{}", isa.name());
        }
    }
    let xq = quantized(Isa::detect(), &[1e-38; 32], 32);
    let mut back = [1.0; 32];
    dequantize_activations(&xq, &mut back);
    assert_eq!(back, [0.0; 32]);
}

/// The product of one row of 32 weights, all of the block `src`, with 32 times `x`.
fn one_block(format: Format, src: &[u8], x: f32, exact: bool, isa: Isa) -> f32 {
    let layout = PanelLayout::new(format, 1, 32).unwrap();
    let mut panels = vec![0; layout.bytes()];
    pack_panels(&layout, src, 0..1, &mut panels);
    let x = [x; 32];
    let mut y = [0.0];
    // SAFETY: one number.
    let out = unsafe { Output::new(y.as_mut_ptr(), 1, 1) };
    if exact {
        matmul_f32(isa, &layout, &panels, Rows::new(&x, 1, 32, 32), None, out, 0..1);
    } else {
        let xq = quantized(Isa::SCALAR, &x, 32);
        matmul_q8(isa, &layout, &panels, QuantizedRows::new(&xq, 1, 32), None, out, 0..1);
    }
    y[0]
}

/// The extremes of codes and activations, where 16-bit sums of pairs would saturate.
#[test]
fn extreme_codes_do_not_saturate() {
    let affine8 = Format::Affine(Affine::new(8, 32, true).unwrap());
    let one = half::f16::ONE.to_le_bytes();
    for code in [0x80_u8, 0x7f, 0x81, 0xff, 0] {
        let q8_0 = [&one[..], &[code; 32]].concat();
        let a8 = [&1_f32.to_le_bytes()[..], &[0; 4], &[code; 32]].concat();
        for (x, isa) in
            [127.0, -127.0].into_iter().flat_map(|x| Isa::available().map(move |i| (x, i)))
        {
            let y = one_block(Format::Q8_0, &q8_0, x, false, isa);
            assert_eq!(y, 32.0 * x * f32::from(code as i8), "{}", isa.name());
            let y = one_block(affine8, &a8, x, false, isa);
            assert_eq!(y, 32.0 * x * f32::from(code), "{}", isa.name());
        }
    }
    // The lowest and the highest level of the table.
    for (codes, level) in [(0x00, -127.0), (0xff, 113.0)] {
        let src = [&one[..], &[codes; 16]].concat();
        for isa in Isa::available() {
            let y = one_block(Format::IQ4_NL, &src, 127.0, false, isa);
            assert_eq!(y, 32.0 * 127.0 * level, "{}", isa.name());
        }
    }
}

#[test]
fn exponent_bytes_are_powers_of_two_down_to_the_last() {
    for e in [0, 1, 2, 127, 240] {
        let src = [&[e][..], &[0x22; 16]].concat();
        for isa in Isa::available() {
            let y = one_block(Format::MXFP4, &src, 1.0, true, isa);
            assert_eq!(y, 2_f32.powi(i32::from(e) - 122), "{} {e}", isa.name());
        }
    }
}
