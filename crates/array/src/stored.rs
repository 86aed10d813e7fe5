//! How paged states keep their numbers: the element types, where the bytes of a head lie in a block, what they mean.
//!
//! Owns the definition: a number of a block is what `Layout::number` says. Refuses to be fast; `cpu/paged.rs` has the
//! kernels that are tested against it. A token is encoded from its own numbers alone, so what its bytes are depends on
//! no neighbour, no cut and no batch.

use half::{bf16, f16};

use crate::inputs::BLOCK;
use crate::state::StateKind;

/// The type of the numbers of a paged state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stored {
    /// 32 bits, as they are.
    #[default]
    F32,
    /// 16 bits with 11 of precision; beyond 65,504 they become infinite.
    F16,
    /// 16 bits with 8 of precision and the range of f32.
    BF16,
    /// Signed codes of 8 bits, each [`Stored::GROUP`] numbers with a scale: 8.5 bits a number.
    Q8,
    /// Codes of 4 bits, each [`Stored::GROUP`] numbers with a scale and a least number: 5 bits a number. Keys have
    /// channels that are large and of one sign; a scale alone would spend half of the codes on the other.
    Q4,
}

impl Stored {
    /// Every type, from the widest to the narrowest.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::BF16, Self::Q8, Self::Q4];

    /// Consecutive numbers of a head of a token that share a scale; the last group may be smaller.
    pub const GROUP: usize = 32;

    /// `f32`, `f16`, `bf16`, `q8`, `q4`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
        }
    }

    /// Bytes of `dim` numbers of one head of one token, scales included.
    pub const fn bytes(self, dim: usize) -> usize {
        self.codes(dim) * self.width() + 2 * self.parameters(dim)
    }

    /// Codes of `dim` numbers. Codes of 4 bits go in pairs: `2 i` in the low half of byte `i`, `2 i + 1` in the high one.
    pub(crate) const fn codes(self, dim: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::Q8 => dim,
            Self::Q4 => dim.div_ceil(2),
        }
    }

    /// Bytes of a code, or of a pair.
    const fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8 | Self::Q4 => 1,
        }
    }

    /// Scales of `dim` numbers; where there are least numbers, each behind its scale. All are bf16: their product with
    /// a code is exact in f32, and their range is that of f32.
    pub(crate) const fn parameters(self, dim: usize) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 0,
            Self::Q8 => dim.div_ceil(Self::GROUP),
            Self::Q4 => 2 * dim.div_ceil(Self::GROUP),
        }
    }

    /// The scale of a group and its least number, 0 for types without. A group with a number that is not finite has the
    /// scale NaN, so that all of it reads as NaN. Scales are rounded up and least numbers down: no code is cut off.
    pub(crate) fn scaling(self, x: &[f32]) -> (f32, f32) {
        if !x.iter().all(|x| x.is_finite()) {
            return (f32::NAN, 0.0);
        }
        if self == Self::Q8 {
            return (away(x.iter().fold(0.0, |peak: f32, x| peak.max(x.abs())) / 127.0), 0.0);
        }
        let low = x.iter().copied().fold(f32::INFINITY, f32::min);
        let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let low = if low < 0.0 { away(low) } else { f32::from_bits(low.to_bits() >> 16 << 16) };
        (away((high - low) / 15.0), low)
    }

    /// The code of a number of a group; 0 where the scale is 0 or NaN.
    pub(crate) fn code(self, x: f32, (scale, low): (f32, f32)) -> u8 {
        let code = ((x - low) / scale).round_ties_even();
        if self == Self::Q8 { code as i8 as u8 } else { (code as u8).min(15) }
    }
}

/// The next bf16 that is not nearer to 0.
pub(crate) fn away(x: f32) -> f32 {
    f32::from_bits(x.to_bits().saturating_add(0xffff) >> 16 << 16)
}

/// Where one head of one block lies in its bytes: its codes, then its scales; of keys `[n, BLOCK]` each, of values
/// `[BLOCK, n]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) stored: Stored,
    pub(crate) dim: usize,
    pub(crate) keys: bool,
}

impl Layout {
    /// Heads, and the layout of one; `None` for records, which have no heads.
    pub(crate) fn of(kind: StateKind, stored: Stored) -> Option<(usize, Self)> {
        match kind {
            StateKind::Keys { heads, dim } => Some((heads, Self { stored, dim, keys: true })),
            StateKind::Values { heads, dim } => Some((heads, Self { stored, dim, keys: false })),
            StateKind::Slots { .. } | StateKind::Carry { .. } => None,
        }
    }

    /// Bytes of the head.
    pub(crate) const fn bytes(self) -> usize {
        BLOCK * self.stored.bytes(self.dim)
    }

    /// Bytes of its codes, behind which its scales begin.
    pub(crate) const fn code_bytes(self) -> usize {
        BLOCK * self.stored.codes(self.dim) * self.stored.width()
    }

    /// Where token `at` has the `i`-th of its `n` codes, or scales.
    const fn place(self, n: usize, i: usize, at: usize) -> usize {
        if self.keys { i * BLOCK + at } else { at * n + i }
    }

    /// Where token `at` has code `i`, in bytes.
    pub(crate) const fn code_at(self, i: usize, at: usize) -> usize {
        self.place(self.stored.codes(self.dim), i, at) * self.stored.width()
    }

    /// Where token `at` has scale `i`, in bytes.
    const fn parameter_at(self, i: usize, at: usize) -> usize {
        self.code_bytes() + 2 * self.place(self.stored.parameters(self.dim), i, at)
    }

    pub(crate) fn parameter(self, bytes: &[u8], i: usize, at: usize) -> f32 {
        let place = self.parameter_at(i, at);
        bf16::from_le_bytes([bytes[place], bytes[place + 1]]).to_f32()
    }

    /// Writes the `dim` numbers of token `at`.
    pub(crate) fn encode(self, x: &[f32], at: usize, bytes: &mut [u8]) {
        let mut put = |place: usize, code: &[u8]| {
            bytes[place..][..code.len()].copy_from_slice(code);
        };
        match self.stored {
            Stored::F32 => {
                x.iter().enumerate().for_each(|(d, x)| put(self.code_at(d, at), &x.to_le_bytes()))
            }
            Stored::F16 => x.iter().enumerate().for_each(|(d, x)| {
                put(self.code_at(d, at), &f16::from_f32(*x).to_le_bytes());
            }),
            Stored::BF16 => x.iter().enumerate().for_each(|(d, x)| {
                put(self.code_at(d, at), &bf16::from_f32(*x).to_le_bytes());
            }),
            Stored::Q8 | Stored::Q4 => {
                for (g, x) in x.chunks(Stored::GROUP).enumerate() {
                    self.encode_group(g, x, at, &mut put);
                }
            }
        }
    }

    fn encode_group(self, g: usize, x: &[f32], at: usize, put: &mut impl FnMut(usize, &[u8])) {
        let stored = self.stored;
        let scaling = stored.scaling(x);
        let (per_byte, per_group) = if stored == Stored::Q4 { (2, 2) } else { (1, 1) };
        let parameters = [scaling.0, scaling.1];
        for (i, parameter) in parameters.into_iter().enumerate().take(per_group) {
            let bits = (parameter.to_bits() >> 16) as u16; // exact: see `scaling`
            put(self.parameter_at(per_group * g + i, at), &bits.to_le_bytes());
        }
        for (i, x) in x.chunks(per_byte).enumerate() {
            let codes = x.iter().enumerate();
            let byte =
                codes.fold(0, |byte, (half, x)| byte | stored.code(*x, scaling) << (4 * half));
            put(self.code_at(g * Stored::GROUP / per_byte + i, at), &[byte]);
        }
    }

    /// All numbers of some heads, each in the layout of its kind.
    pub(crate) fn numbers(self, heads: &[u8]) -> Vec<f32> {
        let of_head = |i: usize| match self.keys {
            true => (i / BLOCK, i % BLOCK),
            false => (i % self.dim, i / self.dim),
        };
        let places = move || (0..BLOCK * self.dim).map(of_head);
        let head = |bytes| places().map(move |(d, at)| self.number(bytes, d, at));
        heads.chunks_exact(self.bytes()).flat_map(head).collect()
    }

    /// Number `d` of token `at`.
    pub(crate) fn number(self, bytes: &[u8], d: usize, at: usize) -> f32 {
        let code = |i: usize| &bytes[self.code_at(i, at)..];
        match self.stored {
            Stored::F32 => f32::from_le_bytes(*code(d).first_chunk().expect("in the block")),
            Stored::F16 => f16::from_le_bytes(*code(d).first_chunk().expect("as above")).to_f32(),
            Stored::BF16 => bf16::from_le_bytes(*code(d).first_chunk().expect("as above")).to_f32(),
            Stored::Q8 => {
                f32::from(code(d)[0] as i8) * self.parameter(bytes, d / Stored::GROUP, at)
            }
            Stored::Q4 => {
                let [scale, low] = [0, 1].map(|i| 2 * (d / Stored::GROUP) + i);
                let [scale, low] = [scale, low].map(|i| self.parameter(bytes, i, at));
                f32::from(code(d / 2)[0] >> (d % 2 * 4) & 15) * scale + low
            }
        }
    }
}

#[cfg(test)]
mod tests;
