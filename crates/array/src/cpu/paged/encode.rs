//! Numbers of tokens on their way into paged states.
//!
//! Owns the fast encoders; [`Layout::encode`] is their plain twin, to the bit. The codes of a token are made side by
//! side and then put where they belong: of keys each into a row of its own. Refuses to know whose head it is.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::super::lanes::{Isa, per_isa};
use crate::inputs::BLOCK;
use crate::op::MOST_KEY;
use crate::stored::{Layout, Stored, away};

/// Room for the codes and scales of a token.
pub(in crate::cpu) struct Codes {
    halves: [f16; MOST_KEY],
    brains: [bf16; MOST_KEY],
    codes: [u8; MOST_KEY],
    parameters: [[u8; 2]; 2 * MOST_KEY / Stored::GROUP],
}

impl Codes {
    pub(in crate::cpu) const fn new() -> Self {
        Self {
            halves: [f16::ZERO; MOST_KEY],
            brains: [bf16::ZERO; MOST_KEY],
            codes: [0; MOST_KEY],
            parameters: [[0; 2]; 2 * MOST_KEY / Stored::GROUP],
        }
    }

    /// Writes the numbers of token `at`.
    pub(super) fn encode(
        &mut self,
        isa: Isa,
        layout: Layout,
        x: &[f32],
        at: usize,
        bytes: &mut [u8],
    ) {
        let Layout { stored, dim, keys } = layout;
        let (bytes, parameters) = bytes.split_at_mut(layout.code_bytes());
        match stored {
            Stored::F32 => put(keys, at, bytes, x.iter().map(|x| x.to_le_bytes())),
            Stored::F16 => {
                let halves = &mut self.halves[..dim];
                halves.convert_from_f32_slice(x);
                put(keys, at, bytes, halves.iter().map(|x| x.to_le_bytes()));
            }
            Stored::BF16 => {
                let brains = &mut self.brains[..dim];
                brains.convert_from_f32_slice(x);
                put(keys, at, bytes, brains.iter().map(|x| x.to_le_bytes()));
            }
            Stored::Q8 | Stored::Q4 => {
                let codes = &mut self.codes[..stored.codes(dim)];
                let scales = &mut self.parameters[..stored.parameters(dim)];
                match stored {
                    Stored::Q4 => four_bits(isa, x, codes, scales),
                    _ => eight_bits(isa, x, codes, scales),
                }
                put(keys, at, bytes, codes.iter().map(|code| [*code]));
                put(keys, at, parameters, scales.iter().copied());
            }
        }
    }
}

/// Puts numbers of `W` bytes where token `at` has them.
#[inline(always)]
fn put<const W: usize>(
    keys: bool,
    at: usize,
    bytes: &mut [u8],
    numbers: impl ExactSizeIterator<Item = [u8; W]>,
) {
    let places = bytes.as_chunks_mut::<W>().0;
    if keys {
        let rows = places.as_chunks_mut::<BLOCK>().0;
        rows.iter_mut().zip(numbers).for_each(|(row, x)| row[at] = x);
    } else {
        let places = &mut places[at * numbers.len()..];
        places.iter_mut().zip(numbers).for_each(|(place, x)| *place = x);
    }
}

/// What is added to this is rounded to an integer, half to even, which the last bits then are.
const ROUND: f32 = 12_582_912.0;

per_isa! {
    fn eight_bits(x: &[f32], codes: &mut [u8], scales: &mut [[u8; 2]]) {
        const GROUP: usize = Stored::GROUP;
        for ((x, codes), parameter) in x.chunks(GROUP).zip(codes.chunks_mut(GROUP)).zip(scales) {
            let peak = x.iter().fold(0, |peak: u32, x| peak.max(x.to_bits() & 0x7fff_ffff));
            let peak = f32::from_bits(peak);
            let scale = if peak.is_finite() { away(peak / 127.0) } else { f32::NAN };
            *parameter = high(scale);
            if scale > 0.0 {
                let numbers = codes.iter_mut().zip(x);
                numbers.for_each(|(code, x)| *code = (x / scale + ROUND).to_bits() as u8);
            } else {
                let numbers = codes.iter_mut().zip(x);
                numbers.for_each(|(code, x)| *code = Stored::Q8.code(*x, (scale, 0.0)));
            }
        }
    }
}

per_isa! {
    fn four_bits(x: &[f32], codes: &mut [u8], scales: &mut [[u8; 2]]) {
        const GROUP: usize = Stored::GROUP;
        let groups = x.chunks(GROUP).zip(codes.chunks_mut(GROUP / 2));
        for ((x, codes), parameters) in groups.zip(scales.as_chunks_mut::<2>().0) {
            let (scale, low) = Stored::Q4.scaling(x);
            *parameters = [scale, low].map(high);
            let mut all = [0; GROUP];
            if scale > 0.0 && scale.is_finite() {
                let numbers = all.iter_mut().zip(x);
                let round = |x: &f32| ((x - low) / scale + ROUND).to_bits() as u8;
                numbers.for_each(|(code, x)| *code = round(x).min(15));
            } else {
                let numbers = all.iter_mut().zip(x);
                numbers.for_each(|(code, x)| *code = Stored::Q4.code(*x, (scale, low)));
            }
            let pairs = codes.iter_mut().zip(all.as_chunks::<2>().0);
            pairs.for_each(|(code, [low, high])| *code = low | high << 4);
        }
    }
}

/// A number that is a bf16.
#[inline(always)]
fn high(x: f32) -> [u8; 2] {
    ((x.to_bits() >> 16) as u16).to_le_bytes()
}
