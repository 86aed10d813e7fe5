use proptest::prelude::*;

use super::*;
use crate::format::{Affine, Fp4, Fp8};
use crate::quant::tests::pattern;

fn packed(format: Format, rows: usize, cols: usize) -> (PanelLayout, Vec<u8>, Vec<u8>) {
    let layout = PanelLayout::new(format, rows, cols).unwrap();
    let src = pattern(format, rows * cols / format.block_len());
    let mut dst = vec![0xaa; layout.bytes()];
    pack_panels(&layout, &src, 0..layout.panels(), &mut dst);
    (layout, src, dst)
}

#[test]
fn unpacked_rows_are_dequantized_rows() {
    for format in Format::ALL {
        let (rows, cols) = (37, 2 * format.block_len().max(32));
        let (layout, src, dst) = packed(format, rows, cols);
        let (mut expected, mut actual) = (vec![0.0; cols], vec![0.0; cols]);
        for (row, bytes) in src.chunks_exact(layout.row_bytes()).enumerate() {
            format.dequantize_row(bytes, &mut expected);
            unpack_row(&layout, &dst, row, &mut actual);
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&actual), bits(&expected), "{} row {row}", format.name());
        }
    }
}

/// Mins of `IQ1_S` are eighths of its scale, which has to come through whole down to the last.
#[test]
fn the_smallest_scale_survives() {
    let layout = PanelLayout::new(Format::IQ1_S, 1, 256).unwrap();
    let mut src = pattern(Format::IQ1_S, 1);
    src[..2].copy_from_slice(&[1, 0]);
    let (mut bytes, mut expected, mut actual) = (vec![0; layout.bytes()], [0.0; 256], [0.0; 256]);
    pack_panels(&layout, &src, 0..1, &mut bytes);
    Format::IQ1_S.dequantize_row(&src, &mut expected);
    unpack_row(&layout, &bytes, 0, &mut actual);
    assert_eq!(actual, expected);
    let unit = 2_f32.powi(-27);
    assert!(expected.iter().all(|x| x / unit % 2.0 != 0.0 && x.abs() <= 135.0 * unit));
}

#[test]
fn panels_are_not_much_larger_than_files() {
    for format in Format::ALL {
        let layout = PanelLayout::new(format, 16, 512).unwrap();
        let growth = layout.bytes() as f64 / (16 * layout.row_bytes()) as f64;
        let bound = match format {
            Format::IQ1_S | Format::IQ1_M | Format::IQ2_XXS | Format::IQ2_XS => continue,
            Format::IQ2_S | Format::IQ3_XXS | Format::IQ3_S | Format::TQ1_0 => continue,
            Format::Q2_K => 1.2,
            _ => 1.04,
        };
        assert!((1.0..bound).contains(&growth), "{}: {growth}", format.name());
    }
}

/// Bits of a number in the file and in panels, of the formats whose codes widen.
#[test]
fn points_of_grids_widen_to_codes() {
    for (format, file, panel) in [
        (Format::IQ1_S, 1.5625, 2.625),
        (Format::IQ1_M, 1.75, 3.5625),
        (Format::IQ2_XXS, 2.0625, 3.3125),
        (Format::IQ2_XS, 2.3125, 3.5625),
        (Format::IQ2_S, 2.5625, 3.5625),
        (Format::IQ3_XXS, 3.0625, 4.3125),
        (Format::IQ3_S, 3.4375, 4.3125),
        (Format::TQ1_0, 1.6875, 2.0625),
    ] {
        let layout = PanelLayout::new(format, 16, 256).unwrap();
        let bits = |bytes: usize| bytes as f64 * 8.0 / 256.0;
        assert_eq!(bits(layout.row_bytes()), file, "{}", format.name());
        assert_eq!(bits(layout.bytes()) / 16.0, panel, "{}", format.name());
    }
}

#[test]
fn members_of_families_take_the_bits_that_their_blocks_say() {
    let bits = |format: Format| {
        let layout = PanelLayout::new(format, 160, 1024).unwrap();
        layout.bytes() as f64 * 8.0 / (160.0 * 1024.0)
    };
    let affine = |bits, group, wide| Format::Affine(Affine::new(bits, group, wide).unwrap());
    assert_eq!(bits(affine(4, 64, false)), 4.5);
    assert_eq!(bits(affine(4, 32, true)), 6.0);
    assert_eq!(bits(affine(1, 128, false)), 1.25);
    assert_eq!(bits(affine(3, 64, false)), 3.5);
    assert_eq!(bits(Format::Fp4(Fp4::new(32, false).unwrap())), 4.5);
    assert_eq!(bits(Format::Fp4(Fp4::new(16, false).unwrap())), 5.0);
    assert_eq!(bits(Format::Fp8(Fp8::new(128).unwrap())), 8.25);
    assert_eq!(bits(Format::MXFP4), 4.25);
}

#[test]
fn what_does_not_fit_has_no_layout() {
    assert_eq!(PanelLayout::new(Format::Q4_0, 16, 33), None);
    assert_eq!(PanelLayout::new(Format::Q4_K, 16, 128), None);
    assert_eq!(PanelLayout::new(Format::F32, usize::MAX, 1), None);
    assert_eq!(PanelLayout::new(Format::F32, 1, usize::MAX), None);
    let fp4 = Format::Fp4(Fp4::new(16, false).unwrap());
    assert_eq!(PanelLayout::new(fp4, 16, 48), None);
    assert_eq!(PanelLayout::new(Format::Fp8(Fp8::new(128).unwrap()), 16, 192), None);
    let empty = PanelLayout::new(Format::Q6_K, 5, 0).unwrap();
    pack_panels(&empty, &[], 0..empty.panels(), &mut []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn packing_in_pieces_is_packing(
        format in 0..Format::ALL.len(), rows in 1..70_usize, cut in 0..5_usize,
    ) {
        let format = Format::ALL[format];
        let (layout, src, dst) = packed(format, rows, 256);
        let cut = cut.min(layout.panels());
        let (mut pieces, at) = (vec![0x55; layout.bytes()], cut * layout.panel_bytes());
        let src_at = layout.rows_of(&(0..cut)).len() * layout.row_bytes();
        pack_panels(&layout, &src[..src_at], 0..cut, &mut pieces[..at]);
        pack_panels(&layout, &src[src_at..], cut..layout.panels(), &mut pieces[at..]);
        prop_assert_eq!(pieces, dst);
    }
}
