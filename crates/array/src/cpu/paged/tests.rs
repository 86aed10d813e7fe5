use super::*;
use proptest::prelude::*;

proptest! {
    /// The decoders of every instruction set have the bits of the definition, on any bytes.
    #[test]
    fn decoders_have_the_bits_of_the_definition(dim in 1..80_usize, seed: u64) {
        let mut random = seed | 1;
        let mut byte = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 56) as u8
        };
        let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
        for (stored, keys) in Stored::ALL.into_iter().flat_map(|s| [(s, true), (s, false)]) {
            let layout = Layout { stored, dim, keys };
            let bytes: Vec<u8> = (0..layout.bytes()).map(|_| byte()).collect();
            let want = layout.numbers(&bytes);
            for isa in Isa::available() {
                let mut got = vec![7.0; dim * BLOCK];
                decode(isa, &mut got, layout, &bytes);
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    prop_assert_eq!(bits(*got), bits(*want), "{:?} {:?} {}", isa, layout, i);
                }
            }
            for at in [0, 17, BLOCK - 1] {
                let mut got = vec![7.0; 3 * dim];
                decode_token(layout, &bytes, at, (&mut got, 3));
                for d in 0..dim {
                    let want = layout.number(&bytes, d, at);
                    prop_assert_eq!(bits(got[3 * d]), bits(want), "{:?} {} {}", layout, d, at);
                }
                prop_assert!(got.chunks(3).all(|x| x[1..] == [7.0; 2]));
            }
        }
    }
}

proptest! {
    /// So do the encoders, of any numbers.
    #[test]
    fn encoders_have_the_bits_of_the_definition(
        x in prop::collection::vec(
            prop_oneof![
                8 => -2.0..2.0_f32,
                1 => any::<u32>().prop_map(f32::from_bits),
                1 => prop::sample::select(&[0.0, -0.0, 1e-45, -1e-40, f32::MAX, f32::MIN, f32::NAN][..]),
            ],
            1..80,
        ),
        at in 0..BLOCK,
    ) {
        let dim = x.len();
        for (stored, keys) in Stored::ALL.into_iter().flat_map(|s| [(s, true), (s, false)]) {
            let layout = Layout { stored, dim, keys };
            let mut want = vec![0x5a; layout.bytes()];
            layout.encode(&x, at, &mut want);
            for isa in Isa::available() {
                let mut got = vec![0x5a; layout.bytes()];
                Codes::new().encode(isa, layout, &x, at, &mut got);
                prop_assert_eq!(&got, &want, "{:?} {:?}", isa, layout);
            }
        }
    }
}

#[test]
fn halves_are_exact() {
    for x in 0..=u16::MAX {
        let (got, want) = (half(x), ::half::f16::from_bits(x).to_f32());
        let same = if want.is_nan() { got.is_nan() } else { got.to_bits() == want.to_bits() };
        assert!(same, "{x:#x}: {got}, {want}");
    }
}
