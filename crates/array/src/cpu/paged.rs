//! Paged states as kernels see them: heads of blocks, as f32.
//!
//! Owns the fast decoders, and in `encode.rs` the encoders; [`Layout::number`] and [`Layout::encode`] are their plain
//! twins, to the bit. Where numbers are f32 already a tile is the state's own memory; other types are decoded into the
//! scratch of a thread, or loaded as they are by kernels that can. Refuses to know what a tile is for.

mod encode;

pub(super) use encode::Codes;

use super::context::{Context, StateMem};
use super::lanes::{Isa, per_isa};
use crate::inputs::BLOCK;
use crate::op::MOST_KEY;
use crate::state::StateRef;
use crate::stored::{Layout, Stored};

/// Calls `f` with room for a tile of keys and one of values.
#[inline(never)]
pub(super) fn with_scratch(f: impl FnOnce(&mut [f32])) {
    f(&mut [0.0; MOST_KEY * BLOCK]);
}

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Asks for a line in the second cache.
#[inline(always)]
fn ask(at: &u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has it, and it cannot fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The numbers of a head of a block: of keys `[dim, BLOCK]`, of values `[BLOCK, dim]`.
#[derive(Clone, Copy)]
pub(super) enum Numbers<'a> {
    F32(&'a [f32]),
    F16(&'a [[u8; 2]]),
    BF16(&'a [[u8; 2]]),
}

/// A paged state.
#[derive(Clone, Copy)]
pub(super) struct Paged {
    mem: StateMem,
    layout: Layout,
    heads: usize,
}

impl Paged {
    pub(super) fn new(c: &Context<'_>, state: StateRef) -> Self {
        let Some((heads, layout)) = Layout::of(state.kind, state.stored) else {
            unreachable!("recording checks the kind")
        };
        Self { mem: c.state(state), layout, heads }
    }

    /// Heads, and numbers of each.
    pub(super) fn dims(&self) -> (usize, usize) {
        (self.heads, self.layout.dim)
    }

    /// Whether [`tile`](Self::tile) needs scratch.
    pub(super) fn decodes(&self) -> bool {
        self.layout.stored != Stored::F32
    }

    /// Writes the numbers of tokens of a head of a block, each with its place there.
    ///
    /// # Safety
    /// Nobody else touches this head meanwhile.
    pub(super) unsafe fn write<'x>(
        &self,
        (isa, codes): (Isa, &mut Codes),
        (block, head): (usize, usize),
        tokens: impl Iterator<Item = (usize, &'x [f32])>,
    ) {
        let len = self.layout.bytes();
        // SAFETY: promised by the caller.
        let bytes = unsafe { self.mem.bytes_mut(block, head * len, len) };
        for (at, x) in tokens {
            codes.encode(isa, self.layout, x, at, bytes);
        }
    }

    /// Writes the numbers of token `at` of a head of a block, as they are defined.
    ///
    /// # Safety
    /// Nobody else touches this head meanwhile.
    pub(super) unsafe fn define(&self, (block, head): (usize, usize), at: usize, x: &[f32]) {
        let len = self.layout.bytes();
        // SAFETY: promised by the caller.
        self.layout.encode(x, at, unsafe { self.mem.bytes_mut(block, head * len, len) });
    }

    /// A head of a block that will be read next, for a kernel to ask for it while it works. What is decoded before
    /// kernels work is asked for at once.
    ///
    /// # Safety
    /// Nobody writes this head meanwhile.
    pub(super) unsafe fn ahead(&self, (block, head): (usize, usize)) -> Option<&[u8]> {
        // SAFETY: promised by the caller.
        let bytes = unsafe { self.head(block, head) };
        match self.layout.stored {
            Stored::F32 | Stored::F16 | Stored::BF16 => Some(bytes),
            Stored::Q8 | Stored::Q4 => {
                bytes.iter().step_by(LINE).for_each(ask);
                None
            }
        }
    }

    /// # Safety
    /// Nobody writes this head meanwhile.
    unsafe fn head(&self, block: usize, head: usize) -> &[u8] {
        let len = self.layout.bytes();
        // SAFETY: promised by the caller.
        unsafe { self.mem.bytes(block, head * len, len) }
    }

    /// The numbers of a head of a block: of keys `[dim, BLOCK]`, of values `[BLOCK, dim]`. What is not f32 is decoded
    /// into the start of `scratch`, which holds at least so many.
    ///
    /// # Safety
    /// Nobody writes this head meanwhile.
    pub(super) unsafe fn tile<'t>(
        &'t self,
        isa: Isa,
        (block, head): (usize, usize),
        scratch: &'t mut [f32],
    ) -> &'t [f32] {
        let len = self.layout.dim * BLOCK;
        if !self.decodes() {
            // SAFETY: promised by the caller.
            return unsafe { self.mem.read(block, head * len, len) };
        }
        let tile = &mut scratch[..len];
        // SAFETY: as above.
        decode(isa, tile, self.layout, unsafe { self.head(block, head) });
        tile
    }

    /// The same, in the types that kernels load from memory.
    ///
    /// # Safety
    /// Nobody writes this head meanwhile.
    pub(super) unsafe fn numbers<'t>(
        &'t self,
        isa: Isa,
        place: (usize, usize),
        scratch: &'t mut [f32],
    ) -> Numbers<'t> {
        // SAFETY: promised by the caller.
        unsafe {
            match self.layout.stored {
                Stored::F16 => Numbers::F16(self.head(place.0, place.1).as_chunks().0),
                Stored::BF16 => Numbers::BF16(self.head(place.0, place.1).as_chunks().0),
                Stored::F32 | Stored::Q8 | Stored::Q4 => {
                    Numbers::F32(self.tile(isa, place, scratch))
                }
            }
        }
    }

    /// The numbers of token `at` of a head of a block, the first of them at the start of `to` and `stride` apart.
    ///
    /// # Safety
    /// Nobody writes this head meanwhile.
    pub(super) unsafe fn token(
        &self,
        (block, head): (usize, usize),
        at: usize,
        (to, stride): (&mut [f32], usize),
    ) {
        // SAFETY: promised by the caller.
        decode_token(self.layout, unsafe { self.head(block, head) }, at, (to, stride));
    }

    /// Number `d` of token `at` of a head of a block.
    ///
    /// # Safety
    /// Nobody writes this head meanwhile.
    pub(super) unsafe fn number(&self, block: usize, head: usize, d: usize, at: usize) -> f32 {
        // SAFETY: promised by the caller.
        self.layout.number(unsafe { self.head(block, head) }, d, at)
    }
}

per_isa! {
    /// All numbers of a head, in the layout of its kind.
    fn decode(out: &mut [f32], layout: Layout, bytes: &[u8]) {
        let (codes, parameters) = bytes.split_at(layout.code_bytes());
        match layout.stored {
            Stored::F32 => {
                let codes = codes.as_chunks().0;
                out.iter_mut().zip(codes).for_each(|(out, x)| *out = f32::from_le_bytes(*x));
            }
            Stored::F16 => {
                let codes = codes.as_chunks().0;
                out.iter_mut().zip(codes).for_each(|(out, x)| *out = half(u16::from_le_bytes(*x)));
            }
            Stored::BF16 => {
                let codes = codes.as_chunks().0;
                out.iter_mut().zip(codes).for_each(|(out, x)| *out = brain(*x));
            }
            Stored::Q8 | Stored::Q4 if layout.keys => {
                decode_keys(layout.stored, out, codes, parameters);
            }
            Stored::Q8 | Stored::Q4 => decode_values(layout, out, codes, parameters),
        }
    }
}

/// A bf16.
#[inline(always)]
pub(super) fn brain(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// An f16, without branches: of normal numbers, of those below, and of those that are not finite.
#[inline(always)]
pub(super) fn half(x: u16) -> f32 {
    const BIAS: u32 = (127 - 15) << 23;
    const LEAST: u32 = BIAS + (1 << 23);
    let bits = u32::from(x & 0x7fff) << 13;
    let below = f32::from_bits(bits + LEAST) - f32::from_bits(LEAST);
    let magnitude = match bits >> 23 {
        0 => below.to_bits(),
        31 => bits + 2 * BIAS,
        _ => bits + BIAS,
    };
    f32::from_bits(magnitude | u32::from(x & 0x8000) << 16)
}

/// The scales of a row, one a token.
#[inline(always)]
fn scales(parameters: &[u8], i: usize) -> [f32; BLOCK] {
    let (row, _) = parameters[2 * BLOCK * i..].as_chunks::<2>();
    let row: &[[u8; 2]; BLOCK] = row.first_chunk().expect("in the block");
    row.map(brain)
}

/// Keys `[dim, BLOCK]`, a lane for each token.
#[inline(always)]
fn decode_keys(stored: Stored, out: &mut [f32], codes: &[u8], parameters: &[u8]) {
    let four = stored == Stored::Q4;
    let rows = out.chunks_mut(Stored::GROUP * BLOCK);
    let per_group = Stored::GROUP / if four { 2 } else { 1 } * BLOCK;
    for (g, (out, codes)) in rows.zip(codes.chunks(per_group)).enumerate() {
        let (out, codes) = (out.as_chunks_mut::<BLOCK>().0, codes.as_chunks::<BLOCK>().0);
        if !four {
            let scale = scales(parameters, g);
            for (out, codes) in out.iter_mut().zip(codes) {
                let codes = codes.iter().zip(&scale).map(|(c, scale)| f32::from(*c as i8) * scale);
                out.iter_mut().zip(codes).for_each(|(out, x)| *out = x);
            }
            continue;
        }
        let (scale, low) = (scales(parameters, 2 * g), scales(parameters, 2 * g + 1));
        for (out, codes) in out.chunks_mut(2).zip(codes) {
            for (out, shift) in out.iter_mut().zip([0, 4]) {
                for (p, out) in out.iter_mut().enumerate() {
                    *out = f32::from(codes[p] >> shift & 15) * scale[p] + low[p];
                }
            }
        }
    }
}

/// Values `[BLOCK, dim]`, a lane for each number.
#[inline(always)]
fn decode_values(layout: Layout, out: &mut [f32], codes: &[u8], parameters: &[u8]) {
    let Layout { stored, dim, .. } = layout;
    let codes = codes.chunks_exact(stored.codes(dim));
    let parameters = parameters.chunks_exact(2 * stored.parameters(dim));
    for ((out, codes), parameters) in out.chunks_exact_mut(dim).zip(codes).zip(parameters) {
        let parameters = parameters.as_chunks::<2>().0;
        if stored == Stored::Q8 {
            let groups = out.chunks_mut(Stored::GROUP).zip(codes.chunks(Stored::GROUP));
            for ((out, codes), scale) in groups.zip(parameters) {
                let scale = brain(*scale);
                let codes = codes.iter().map(|c| f32::from(*c as i8) * scale);
                out.iter_mut().zip(codes).for_each(|(out, x)| *out = x);
            }
            continue;
        }
        let groups = out.chunks_mut(Stored::GROUP).zip(codes.chunks(Stored::GROUP / 2));
        for ((out, codes), [scale, low]) in groups.zip(parameters.as_chunks::<2>().0) {
            let (scale, low) = (brain(*scale), brain(*low));
            for (out, code) in out.chunks_mut(2).zip(codes) {
                for (out, shift) in out.iter_mut().zip([0, 4]) {
                    *out = f32::from(code >> shift & 15) * scale + low;
                }
            }
        }
    }
}

/// The numbers of token `at`, `stride` apart.
fn decode_token(layout: Layout, bytes: &[u8], at: usize, (to, stride): (&mut [f32], usize)) {
    let code = |i: usize| &bytes[layout.code_at(i, at)..];
    let to = to.iter_mut().step_by(stride).take(layout.dim).enumerate();
    match layout.stored {
        Stored::F32 => to.for_each(|(d, to)| {
            *to = f32::from_le_bytes(*code(d).first_chunk().expect("in the block"));
        }),
        Stored::F16 => to.for_each(|(d, to)| {
            *to = half(u16::from_le_bytes(*code(d).first_chunk().expect("in the block")));
        }),
        Stored::BF16 => to.for_each(|(d, to)| {
            *to = brain(*code(d).first_chunk().expect("in the block"));
        }),
        Stored::Q8 | Stored::Q4 => {
            let four = layout.stored == Stored::Q4;
            let (mut scale, mut low) = (0.0, 0.0);
            for (d, to) in to {
                let (g, i) = (d / Stored::GROUP, d % Stored::GROUP);
                let parameter = |i: usize| layout.parameter(bytes, i, at);
                *to = if four {
                    if i == 0 {
                        (scale, low) = (parameter(2 * g), parameter(2 * g + 1));
                    }
                    f32::from(code(d / 2)[0] >> (d % 2 * 4) & 15) * scale + low
                } else {
                    if i == 0 {
                        scale = parameter(g);
                    }
                    f32::from(code(d)[0] as i8) * scale
                };
            }
        }
    }
}

#[cfg(test)]
mod tests;
