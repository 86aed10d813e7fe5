use super::*;
use proptest::prelude::*;

fn layouts(dim: usize) -> impl Iterator<Item = Layout> {
    let of = move |stored| [true, false].map(|keys| Layout { stored, dim, keys });
    Stored::ALL.into_iter().flat_map(of)
}

/// How far a number may be from what is stored of it, in a group of numbers.
fn bound(stored: Stored, x: f32, group: &[f32]) -> f32 {
    let peak = group.iter().fold(0.0, |peak: f32, x| peak.max(x.abs()));
    let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let low = group.iter().copied().fold(f32::INFINITY, f32::min);
    // Half a step; a step is rounded up to 8 bits, and what it spans grows by the rounding of its lower end.
    let up = 1.0 + 1.0 / 128.0;
    match stored {
        Stored::F32 => 0.0,
        Stored::F16 => (x.abs() / 2048.0).max(3e-8),
        Stored::BF16 => x.abs() / 256.0,
        Stored::Q8 => peak / 254.0 * up + 1e-40,
        Stored::Q4 => (high - low + low.abs() / 128.0) / 30.0 * up + peak * 1e-6 + 1e-40,
    }
}

proptest! {
    /// Every number is within the bound of its type, whatever lies beside it, and a token leaves the others alone.
    #[test]
    fn numbers_come_back_within_their_bound(
        x in proptest::collection::vec(-8.0f32..8.0, 1..80),
        offset in -50.0f32..50.0, power in -30i32..10, at in 0..BLOCK, other in 0..BLOCK,
    ) {
        let x: Vec<f32> = x.iter().map(|x| (x + offset) * 2.0_f32.powi(power)).collect();
        for layout in layouts(x.len()) {
            let mut bytes = vec![0x5a; layout.bytes()];
            layout.encode(&x, at, &mut bytes);
            let read = |bytes: &[u8], at| -> Vec<u32> {
                (0..x.len()).map(|d| layout.number(bytes, d, at).to_bits()).collect()
            };
            let first = read(&bytes, at);
            for (d, x_d) in x.iter().enumerate() {
                let group = &x[d / Stored::GROUP * Stored::GROUP..];
                let group = &group[..group.len().min(Stored::GROUP)];
                let error = (f32::from_bits(first[d]) - x_d).abs();
                let most = bound(layout.stored, *x_d, group);
                prop_assert!(error <= most, "{layout:?} {d}: {error} of {most}, {group:?}");
            }
            if other != at {
                let loud: Vec<f32> = x.iter().map(|x| x * -1e3 + 1e5).collect();
                layout.encode(&loud, other, &mut bytes);
                prop_assert_eq!(read(&bytes, at), first);
            }
        }
    }

    /// Any bits are taken without a panic. Of types with scales a group with a number that is not finite is NaN.
    #[test]
    fn any_bits_are_taken(bits in proptest::collection::vec(any::<u32>(), 1..70)) {
        let x: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        for layout in layouts(x.len()) {
            let mut bytes = vec![0; layout.bytes()];
            layout.encode(&x, 3, &mut bytes);
            for (d, x_d) in x.iter().enumerate() {
                let got = layout.number(&bytes, d, 3);
                let group = x.chunks(Stored::GROUP).nth(d / Stored::GROUP).unwrap();
                let lost = layout.stored.parameters(1) > 0 && group.iter().any(|x| !x.is_finite());
                prop_assert!(!(lost || x_d.is_nan()) || got.is_nan(), "{layout:?} {d}: {got}");
                prop_assert!(x_d.is_finite() || !got.is_finite(), "{layout:?} {d}: {got}");
            }
        }
    }
}

#[test]
fn simple_numbers_are_exact() {
    let zeros = [0.0f32; 64];
    let equal = [-3.0f32; 64];
    let steps: Vec<f32> = (0..64).map(|i| (i % 16) as f32 - 8.0).collect();
    for layout in layouts(64) {
        for x in [&zeros[..], &equal, &steps] {
            let mut bytes = vec![0xff; layout.bytes()];
            layout.encode(x, 31, &mut bytes);
            let got: Vec<f32> = (0..64).map(|d| layout.number(&bytes, d, 31)).collect();
            // A peak of 3 or 8 is no whole number of 127ths that fit 8 bits.
            if layout.stored != Stored::Q8 || x == zeros {
                assert_eq!(got, x, "{layout:?}");
            }
        }
    }
}

#[test]
fn bytes_are_as_documented() {
    let bytes = |dim| Stored::ALL.map(|stored| stored.bytes(dim));
    assert_eq!(bytes(128), [512, 256, 256, 136, 80]);
    assert_eq!(bytes(33), [132, 66, 66, 37, 25]);
    for stored in Stored::ALL {
        for dim in 1..=70 {
            // Units stay aligned, whatever a state's type.
            let kind = StateKind::Keys { heads: 3, dim };
            assert_eq!(kind.unit_bytes(stored), 3 * BLOCK * stored.bytes(dim));
            assert!(kind.unit_bytes(stored).is_multiple_of(4));
        }
    }
}

#[test]
fn heads_are_read_in_the_layout_of_their_kind() {
    for layout in layouts(5) {
        let number = |head: usize, d: usize, at: usize| (head * 100 + at + 3 * d) as f32;
        let mut bytes = vec![0; 2 * layout.bytes()];
        for (head, bytes) in bytes.chunks_exact_mut(layout.bytes()).enumerate() {
            for at in 0..BLOCK {
                let x: Vec<f32> = (0..5).map(|d| number(head, d, at)).collect();
                layout.encode(&x, at, bytes);
            }
        }
        let numbers = layout.numbers(&bytes);
        assert_eq!(numbers.len(), 2 * 5 * BLOCK);
        for (i, got) in numbers.iter().enumerate() {
            let (head, i) = (i / (5 * BLOCK), i % (5 * BLOCK));
            let (d, at) = if layout.keys { (i / BLOCK, i % BLOCK) } else { (i % 5, i / 5) };
            let want = number(head, d, at);
            assert!((got - want).abs() <= 1.0, "{layout:?} {head} {d} {at}: {got}, {want}");
        }
    }
}
