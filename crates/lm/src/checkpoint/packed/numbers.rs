//! The small numbers beside the codes of a packed weight: scales, minima and zero points.
//!
//! Owns reading them from every type that writers use, and telling whether a number is a half.
//! Refuses to look at codes of weights.

use longrun_array::format::Format;
use safetensors::Dtype;

use super::super::tensor::RawDtype;

/// How a number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `F32`, `F16` or `BF16`.
    Float(Format),
    /// A byte `e` that means 2^(e - 127).
    E8M0,
    /// A byte with 4 bits of exponent and 3 of mantissa, without infinities.
    E4M3,
}

impl Kind {
    /// The kind that a storage type states by itself; bytes do not.
    pub(super) fn of(dtype: RawDtype) -> Option<Self> {
        match dtype {
            RawDtype::Weight(format) if format.is_float() => Some(Self::Float(format)),
            RawDtype::Safetensors(Dtype::F8_E8M0) => Some(Self::E8M0),
            RawDtype::Safetensors(Dtype::F8_E4M3) => Some(Self::E4M3),
            _ => None,
        }
    }

    /// As [`of`](Self::of), where a plain byte is an exponent.
    pub(super) fn of_exponents(dtype: RawDtype) -> Option<Self> {
        match dtype {
            RawDtype::Safetensors(Dtype::U8) => Some(Self::E8M0),
            other => Self::of(other),
        }
    }

    /// Bytes of `count` numbers.
    pub(super) fn bytes(self, count: usize) -> Option<usize> {
        match self {
            Self::Float(format) => count.checked_mul(format.block_bytes()),
            Self::E8M0 | Self::E4M3 => Some(count),
        }
    }

    /// All numbers in `data`.
    pub(super) fn read(self, data: &[u8]) -> Vec<f32> {
        match self {
            Self::Float(format) => {
                let mut numbers = vec![0.0; data.len() / format.block_bytes()];
                format.dequantize_row(data, &mut numbers);
                numbers
            }
            Self::E8M0 => data.iter().map(|byte| e8m0(*byte)).collect(),
            Self::E4M3 => data.iter().map(|byte| e4m3(*byte)).collect(),
        }
    }
}

fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (0, _) => mantissa * 2f32.powi(-9),
        (15, 7) => f32::NAN,
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The bytes of the half that equals `x`, if there is one; -0 is one.
pub(super) fn half(x: f32) -> Option<[u8; 2]> {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let half = if x.abs() >= 2f32.powi(-14) {
        // Both count exponents from their bias, 112 apart; the half has 13 bits less of mantissa.
        (x.abs() <= 65504.0 && bits & 0x1fff == 0).then(|| ((magnitude - (112 << 23)) >> 13) as u16)
    } else {
        // Smaller halves are multiples of 2^-24.
        let units = x.abs() * 2f32.powi(24);
        (units.fract() == 0.0).then_some(units as u16)
    };
    half.map(|half| (half | (bits >> 16 & 0x8000) as u16).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_a_half() {
        for bits in 0..=u16::MAX {
            let mut x = [0.0];
            Format::F16.dequantize_row(&bits.to_le_bytes(), &mut x);
            let expected = x[0].is_finite().then(|| bits.to_le_bytes());
            assert_eq!(half(x[0]), expected, "{bits:#x} {}", x[0]);
            if x[0].is_finite() && x[0] != 0.0 {
                for near in [x[0].next_up(), x[0].next_down()] {
                    assert_eq!(half(near), None, "{near}");
                }
            }
        }
        for no in [65536.0, 65520.0, 1e-8, f32::MIN_POSITIVE, f32::NAN, f32::INFINITY, 1e30] {
            assert_eq!(half(no), None, "{no}");
        }
    }

    #[test]
    fn bytes_as_scales() {
        let e8m0 = Kind::E8M0.read(&[0, 1, 127, 130, 254, 255]);
        assert_eq!(e8m0[..5], [2f32.powi(-127), 2f32.powi(-126), 1.0, 8.0, 2f32.powi(127)]);
        assert!(e8m0[5].is_nan());
        let e4m3 = Kind::E4M3.read(&[0, 1, 7, 8, 0x38, 0x7e, 0xb9, 0x7f, 0xff]);
        let smallest = 2f32.powi(-9);
        let expected = [0.0, smallest, 7.0 * smallest, 8.0 * smallest, 1.0, 448.0, -1.125];
        assert_eq!(e4m3[..7], expected);
        assert!(e4m3[7].is_nan() && e4m3[8].is_nan());
    }
}
