//! The formats of code panels as kernels see them: where a tile finds codes, scales and mins.
//!
//! Owns reading a packed panel. A kernel type serves every format with its codes: the formats of
//! GGUF are types of their own, with all places constant; the members of a family share one for
//! each width of code, and the length of their groups and the form of their scales are fields.

use std::marker::PhantomData;

use super::simd::{Kernel, Simd, for_each_of_8};
use crate::format::{Affine, Format, Fp4, Fp8};
use crate::panel::{PANEL_ROWS, UnitLayout, code_bytes, planes};
use crate::quant::{CodeSpec, Scale};

/// How far before its use a packed weight is asked for, in bytes: into the next panel at the end of
/// one, since they lie one after another.
pub(super) const AHEAD: usize = 8192;

/// One sum for each row of a panel.
pub(super) type Sums = [f32; PANEL_ROWS];

/// Quantised formats as a type, so that kernels are compiled for their constants.
pub(super) trait Code: Copy {
    /// Their arithmetic; of a family that of one of them, of which only what all share may be used:
    /// all but `scale` and how much of `group` is above 32.
    const SPEC: CodeSpec;
    /// The place of everything in a unit, unless they differ in it.
    const PLACE: Option<UnitLayout>;
    type Unpacked: Source + From<*const UnpackedBlock>;

    /// Consecutive columns of a run that share a scale.
    const GROUP: usize = if Self::SPEC.group == 16 { 16 } else { 32 };
    const TABLE: Option<[u8; 16]> = Self::SPEC.table();
}

/// Defines the types of [`Code`].
macro_rules! codes {
    ($($name:ident: $format:expr, $place:expr;)*) => {
        $(#[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        impl Code for $name {
            const SPEC: CodeSpec = CodeSpec::of($format).expect("a quantised format");
            const PLACE: Option<UnitLayout> = $place;
            type Unpacked =
                Unpacked<{ $name::GROUP }, { $name::SPEC.zero }, { $name::SPEC.is_wide() }>;
        })*
    };
    (fixed $($name:ident)*) => {
        codes!($($name: Format::$name, Some(UnitLayout::of(Self::SPEC));)*);
    };
    (affine $($name:ident $bits:literal)*) => {
        codes!($($name: Format::Affine(Affine::new($bits, 32, false).expect("legal")), None;)*);
    };
}
codes!(fixed Q4_0 Q5_0 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS);
codes!(fixed IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ3_XXS IQ3_S TQ2_0);
codes!(affine Affine1 1 Affine2 2 Affine3 3 Affine4 4 Affine5 5 Affine6 6 Affine8 8);
codes! {
    Fp4By16: Format::Fp4(Fp4::new(16, false).expect("legal")), None;
    Fp4By32: Format::Fp4(Fp4::new(32, false).expect("legal")), None;
    Fp8Any: Format::Fp8(Fp8::new(32).expect("legal")), None;
}

/// Names the type of a format of integer codes.
macro_rules! with_code {
    ($format:expr, $code:ident => $body:expr, float => $float:expr) => {
        with_code!(@ $format, $code, $body, $float,
            Q4_0 Q5_0 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS
            IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ3_XXS IQ3_S TQ2_0)
    };
    (@ $format:expr, $code:ident, $body:expr, $float:expr, $($name:ident)*) => {{
        use crate::matmul::codes as types;
        match $format {
            Format::F32 | Format::F16 | Format::BF16 | Format::Fp8(_) => $float,
            $(Format::$name => { type $code = types::$name; $body })*
            Format::Q4_1 => { type $code = types::Affine4; $body }
            Format::Q5_1 => { type $code = types::Affine5; $body }
            Format::IQ2_S => { type $code = types::IQ2_XS; $body }
            Format::TQ1_0 => { type $code = types::TQ2_0; $body }
            Format::Affine(f) => match f.bits() {
                1 => { type $code = types::Affine1; $body }
                2 => { type $code = types::Affine2; $body }
                3 => { type $code = types::Affine3; $body }
                4 => { type $code = types::Affine4; $body }
                5 => { type $code = types::Affine5; $body }
                6 => { type $code = types::Affine6; $body }
                _ => { type $code = types::Affine8; $body }
            },
            Format::Fp4(f) if f.group() == 16 => { type $code = types::Fp4By16; $body }
            Format::Fp4(_) | Format::MXFP4 => { type $code = types::Fp4By32; $body }
        }
    }};
}
pub(super) use with_code;

/// Where a tile finds the codes and scales of 32 columns of a panel.
pub(super) trait Source: Copy {
    const GROUP: usize;
    const ZERO: u8;
    /// Whether codes may be 128 and more.
    const WIDE: bool;

    /// Asks for the bytes of a block ahead of `block`.
    unsafe fn prefetch<S: Simd>(self, block: usize);
    /// The codes of four columns: group 0 to 7 of a block of 32.
    unsafe fn codes<S: Simd>(self, block: usize, group: usize) -> S::I;
    /// The scales of the whole block, or of its half 0 or 1 where a group is 16.
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::F;
    /// The mins alike; only of formats whose zero is 0.
    unsafe fn min<S: Simd>(self, block: usize, half: usize) -> S::F;
}

/// A packed panel.
#[derive(Clone, Copy)]
pub(super) struct Packed<C> {
    panel: *const u8,
    place: UnitLayout,
    code: PhantomData<C>,
}

impl<C: Code> Packed<C> {
    /// A panel of a format that `C` serves.
    pub(super) fn new(panel: *const u8, format: Format) -> Self {
        let spec = CodeSpec::of(format).expect("a quantised format");
        Self { panel, place: UnitLayout::of(spec), code: PhantomData }
    }

    #[inline(always)]
    fn place(self) -> UnitLayout {
        match C::PLACE {
            Some(place) => place,
            None => self.place,
        }
    }

    #[inline(always)]
    unsafe fn unit(self, block: usize) -> *const u8 {
        let place = self.place();
        // SAFETY: the caller asks for a block of the panel.
        unsafe { self.panel.add((block >> place.runs.trailing_zeros()) * place.bytes) }
    }

    /// Which run of its unit a block is.
    #[inline(always)]
    fn run_of(self, block: usize) -> usize {
        block & (self.place().runs - 1)
    }

    /// The part of a code that the plane starting at vector `first` keeps, moved to bit `to`.
    #[inline(always)]
    unsafe fn plane<S: Simd>(
        codes: *const u8,
        first: usize,
        bits: usize,
        group: usize,
        to: usize,
    ) -> S::I {
        // SAFETY: the caller has the instruction set and a block of codes.
        unsafe {
            let vector = S::load_i(codes.add((first + group % bits) * 64));
            if bits == 8 {
                return vector;
            }
            let from = group / bits * bits;
            let vector = if from >= to {
                S::shr(vector, (from - to) as i32)
            } else {
                S::shl(vector, (to - from) as i32)
            };
            S::and(vector, S::splat_i(0x0101_0101 * (((1 << bits) - 1) << to)))
        }
    }

    #[inline(always)]
    unsafe fn scale_at<S: Simd>(
        self,
        block: usize,
        half: usize,
        floats: usize,
        subs: usize,
    ) -> S::F {
        // SAFETY: the caller has the instruction set and asks for a block of the panel.
        unsafe {
            let unit = self.unit(block);
            let scale = if C::SPEC.super_block {
                let group = self.run_of(block) * (32 / C::GROUP) + half;
                let scale = S::load_f16(unit.add(floats));
                S::mul(scale, S::load_i8(unit.add(subs + group * PANEL_ROWS)))
            } else {
                let scale = self.place().scale;
                let at = unit.add(floats + half * PANEL_ROWS * scale.bytes());
                match scale {
                    Scale::F16 => S::load_f16(at),
                    Scale::F32 => S::load_f(at.cast()),
                    Scale::E8m0 => S::load_e8m0(at),
                }
            };
            match const { C::SPEC.codebook.unit() } {
                1.0 => scale,
                unit => S::mul(scale, S::splat_f(unit)),
            }
        }
    }
}

impl<C: Code> Source for Packed<C> {
    const GROUP: usize = C::GROUP;
    const ZERO: u8 = C::SPEC.zero;
    const WIDE: bool = C::SPEC.is_wide();

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        let at = self.panel.wrapping_add(block * self.place().run_bytes + AHEAD);
        // Of a family the lines of codes and one more: the lines of the narrow forms.
        let lines = match C::PLACE {
            Some(place) => place.run_bytes.div_ceil(64),
            None => C::SPEC.bits + 1,
        };
        for line in 0..lines {
            S::prefetch(at.wrapping_add(line * 64));
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(self, block: usize, group: usize) -> S::I {
        // SAFETY: the caller has the instruction set and asks for a block of the panel.
        unsafe {
            let codes = self.unit(block).add(self.run_of(block) * code_bytes(C::SPEC.bits));
            let [low, high] = const { planes(C::SPEC.bits) };
            let mut code = Self::plane::<S>(codes, 0, low, group, 0);
            if high > 0 {
                code = S::or(code, Self::plane::<S>(codes, low, high, group, low));
            }
            match &C::TABLE {
                Some(table) => S::lookup(table, code),
                None => code,
            }
        }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::F {
        let place = self.place();
        // SAFETY: the caller's.
        unsafe { self.scale_at::<S>(block, half, place.d, place.sub_scales) }
    }

    #[inline(always)]
    unsafe fn min<S: Simd>(self, block: usize, half: usize) -> S::F {
        let place = self.place();
        // SAFETY: the caller's.
        unsafe { self.scale_at::<S>(block, half, place.m, place.sub_mins) }
    }
}

/// 32 columns of a panel unpacked to bytes and floats, for tiles that share the work of unpacking.
#[repr(C, align(64))]
pub(super) struct UnpackedBlock {
    pub(super) codes: [[u8; 64]; 8],
    scales: [Sums; 2],
    mins: [Sums; 2],
}

/// Unpacked blocks of a format with the given group and zero, and whether its codes are wide.
#[derive(Clone, Copy)]
pub(super) struct Unpacked<const GROUP: usize, const ZERO: u8, const WIDE: bool>(
    *const UnpackedBlock,
);

impl<const GROUP: usize, const ZERO: u8, const WIDE: bool> From<*const UnpackedBlock>
    for Unpacked<GROUP, ZERO, WIDE>
{
    fn from(blocks: *const UnpackedBlock) -> Self {
        Self(blocks)
    }
}

impl<const GROUP: usize, const ZERO: u8, const WIDE: bool> Source for Unpacked<GROUP, ZERO, WIDE> {
    const GROUP: usize = GROUP;
    const ZERO: u8 = ZERO;
    const WIDE: bool = WIDE;

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, _: usize) {}

    #[inline(always)]
    unsafe fn codes<S: Simd>(self, block: usize, group: usize) -> S::I {
        // SAFETY: the caller has the instruction set and asks for an unpacked block.
        unsafe { S::load_i((&raw const (*self.0.add(block)).codes[group]).cast()) }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::F {
        // SAFETY: as above.
        unsafe { S::load_f((&raw const (*self.0.add(block)).scales[half]).cast()) }
    }

    #[inline(always)]
    unsafe fn min<S: Simd>(self, block: usize, half: usize) -> S::F {
        // SAFETY: as above.
        unsafe { S::load_f((&raw const (*self.0.add(block)).mins[half]).cast()) }
    }
}

/// Unpacks `count` blocks of a panel from block `first` on.
pub(super) struct Unpack<C> {
    pub(super) panel: Packed<C>,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) to: *mut UnpackedBlock,
}

impl<C: Code> Kernel for Unpack<C> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for block in 0..self.count {
            // SAFETY: the caller has the instruction set, these blocks and room for them.
            unsafe {
                let (from, to) = (self.first + block, self.to.add(block));
                self.panel.prefetch::<S>(from);
                for_each_of_8!(S, group, {
                    let codes = self.panel.codes::<S>(from, group);
                    S::store_i((&raw mut (*to).codes[group]).cast(), codes);
                });
                for half in 0..32 / C::GROUP {
                    let scale = self.panel.scale::<S>(from, half);
                    S::store_f((&raw mut (*to).scales[half]).cast(), scale);
                    if C::SPEC.min {
                        let min = self.panel.min::<S>(from, half);
                        S::store_f((&raw mut (*to).mins[half]).cast(), min);
                    }
                }
            }
        }
    }
}

/// Counts the codes of unpacked blocks from their zero, as signed bytes.
#[cfg(target_arch = "x86_64")]
pub(super) struct Center<'a> {
    pub(super) blocks: &'a mut [UnpackedBlock],
    pub(super) zero: u8,
}

#[cfg(target_arch = "x86_64")]
impl Kernel for Center<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for block in self.blocks {
            block.codes.as_flattened_mut().iter_mut().for_each(|c| *c = c.wrapping_sub(self.zero));
        }
    }
}
