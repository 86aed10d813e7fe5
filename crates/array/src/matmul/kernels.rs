//! The loops: a tile of a few rows of activations against one panel of weights.
//!
//! The order of every sum is fixed here, for all instruction sets and all tile sizes:
//!
//! - codes: 32 columns (16 in some formats) are summed as integers, exactly; then the accumulator
//!   takes one fused multiply-add of that sum and, in formats with a min, one of the min;
//! - floats: runs of 64 columns are chains of fused multiply-adds from zero, added in order.

// Loops over `r` keep several arrays of registers in step.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;

use super::activations::{BOTH, LINE, NEGATED_SUMS, SCALE, SCALED_SUMS};
use super::simd::{Kernel, Simd, for_each_of_8};
use crate::format::Format;
use crate::panel::{PANEL_ROWS, UnitLayout};
use crate::quant::CodeSpec;

/// Columns of a chain of the float sum.
pub(super) const CHAIN: usize = 64;

/// How far before its use a packed weight is asked for, in bytes: into the next panel at the end of
/// one, since they lie one after another.
const AHEAD: usize = 8192;

/// One sum for each row of a panel.
pub(super) type Sums = [f32; PANEL_ROWS];

/// A quantised format as a type, so that its kernels are compiled for its constants.
pub(super) trait Code: Copy {
    const SPEC: CodeSpec;
    type Unpacked: Source + From<*const UnpackedBlock>;
    const PLACE: UnitLayout = UnitLayout::of(Self::SPEC);
}

/// Defines the types of [`Code`] and `with_code!`, which names the one of a format.
macro_rules! codes {
    ($($name:ident)*) => {
        $(#[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        impl Code for $name {
            const SPEC: CodeSpec = CodeSpec::of(Format::$name).expect("a quantised format");
            type Unpacked = Unpacked<{ $name::SPEC.group }, { $name::SPEC.zero }>;
        })*
    };
}
codes!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K);

macro_rules! with_code {
    ($format:expr, $code:ident => $body:expr, float => $float:expr) => {
        with_code!(@ $format, $code, $body, $float,
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K)
    };
    (@ $format:expr, $code:ident, $body:expr, $float:expr, $($name:ident)*) => {
        match $format {
            Format::F32 | Format::F16 | Format::BF16 => $float,
            $(Format::$name => { type $code = crate::matmul::kernels::$name; $body })*
        }
    };
}
pub(super) use with_code;

/// Where a tile finds the codes and scales of 32 columns of a panel.
pub(super) trait Source: Copy {
    const GROUP: usize;
    const ZERO: u8;

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
    code: PhantomData<C>,
}

impl<C: Code> Packed<C> {
    pub(super) fn new(panel: *const u8) -> Self {
        Self { panel, code: PhantomData }
    }

    #[inline(always)]
    unsafe fn unit(self, block: usize) -> *const u8 {
        // SAFETY: the caller asks for a block of the panel.
        unsafe { self.panel.add(block / C::PLACE.blocks * C::PLACE.bytes) }
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
            let scale = S::load_f16(unit.add(floats));
            if !C::SPEC.super_block {
                return scale;
            }
            let group = block % C::PLACE.blocks * (32 / C::SPEC.group) + half;
            S::mul(scale, S::load_i8(unit.add(subs + group * PANEL_ROWS)))
        }
    }
}

impl<C: Code> Source for Packed<C> {
    const GROUP: usize = C::SPEC.group;
    const ZERO: u8 = C::SPEC.zero;

    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, block: usize) {
        let bytes = C::PLACE.bytes / C::PLACE.blocks;
        let at = self.panel.wrapping_add(block * bytes + AHEAD);
        for line in 0..bytes.div_ceil(64) {
            S::prefetch(at.wrapping_add(line * 64));
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(self, block: usize, group: usize) -> S::I {
        // SAFETY: the caller has the instruction set and asks for a block of the panel.
        unsafe {
            let codes = self.unit(block).add(block % C::PLACE.blocks * C::PLACE.code_bytes);
            let [low, high] = C::PLACE.planes;
            let code = Self::plane::<S>(codes, 0, low, group, 0);
            if high == 0 {
                return code;
            }
            S::or(code, Self::plane::<S>(codes, low, high, group, low))
        }
    }

    #[inline(always)]
    unsafe fn scale<S: Simd>(self, block: usize, half: usize) -> S::F {
        // SAFETY: the caller's.
        unsafe { self.scale_at::<S>(block, half, C::PLACE.d, C::PLACE.sub_scales) }
    }

    #[inline(always)]
    unsafe fn min<S: Simd>(self, block: usize, half: usize) -> S::F {
        // SAFETY: the caller's.
        unsafe { self.scale_at::<S>(block, half, C::PLACE.m, C::PLACE.sub_mins) }
    }
}

/// 32 columns of a panel unpacked to bytes and floats, for tiles that share the work of unpacking.
#[repr(C, align(64))]
pub(super) struct UnpackedBlock {
    codes: [[u8; 64]; 8],
    scales: [Sums; 2],
    mins: [Sums; 2],
}

/// Unpacked blocks of a format with the given group and zero.
#[derive(Clone, Copy)]
pub(super) struct Unpacked<const GROUP: usize, const ZERO: u8>(*const UnpackedBlock);

impl<const GROUP: usize, const ZERO: u8> From<*const UnpackedBlock> for Unpacked<GROUP, ZERO> {
    fn from(blocks: *const UnpackedBlock) -> Self {
        Self(blocks)
    }
}

impl<const GROUP: usize, const ZERO: u8> Source for Unpacked<GROUP, ZERO> {
    const GROUP: usize = GROUP;
    const ZERO: u8 = ZERO;

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
                for_each_of_8!(group, {
                    let codes = self.panel.codes::<S>(from, group);
                    S::store_i((&raw mut (*to).codes[group]).cast(), codes);
                });
                for half in 0..32 / C::SPEC.group {
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

/// Adds to `sums[r]` the products of row `r` of quantised activations and `blocks` blocks of
/// weights.
pub(super) struct CodeTile<W, const R: usize> {
    pub(super) weights: W,
    pub(super) blocks: usize,
    /// The first of those blocks in row 0, and bytes from row to row.
    pub(super) x: *const u8,
    pub(super) stride: usize,
    pub(super) sums: *mut Sums,
}

impl<W: Source, const R: usize> Kernel for CodeTile<W, R> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if R > S::TILE_ROWS {
            unreachable!("a tile of {R} rows");
        }
        // SAFETY: the caller has the instruction set, R rows of activations and of sums, and the
        // weights, for all blocks.
        unsafe {
            let mut sums = [S::splat_f(0.0); R];
            for r in 0..R {
                sums[r] = S::load_f(self.sums.add(r).cast());
            }
            for block in 0..self.blocks {
                let x = self.x.add(block * LINE);
                self.weights.prefetch::<S>(block);
                let mut dots = [S::splat_i(0); R];
                for_each_of_8!(group, {
                    let sum = if W::GROUP == 16 { group / 4 } else { BOTH };
                    if (group * 4).is_multiple_of(W::GROUP) {
                        for r in 0..R {
                            dots[r] = zero_term::<S, W>(x.add(r * self.stride), sum);
                        }
                    }
                    let codes = self.weights.codes::<S>(block, group);
                    for r in 0..R {
                        let four = S::splat_i(read(x.add(r * self.stride + group * 4)));
                        dots[r] = match W::ZERO {
                            128 => S::dot::<true>(dots[r], codes, four),
                            _ => S::dot::<false>(dots[r], codes, four),
                        };
                    }
                    if ((group + 1) * 4).is_multiple_of(W::GROUP) {
                        let half = sum % BOTH;
                        let scale = self.weights.scale::<S>(block, half);
                        for r in 0..R {
                            let d = S::splat_f(read(x.add(r * self.stride + SCALE)));
                            sums[r] = S::fma(S::to_f(dots[r]), S::mul(scale, d), sums[r]);
                        }
                        if W::ZERO == 0 {
                            let min = self.weights.min::<S>(block, half);
                            for r in 0..R {
                                let at = r * self.stride + SCALED_SUMS + 4 * sum;
                                sums[r] = S::fma(min, S::splat_f(read(x.add(at))), sums[r]);
                            }
                        }
                    }
                });
            }
            for r in 0..R {
                S::store_f(self.sums.add(r).cast(), sums[r]);
            }
        }
    }
}

/// What a sum of products starts from, so that codes count from their zero.
#[inline(always)]
unsafe fn zero_term<S: Simd, W: Source>(x: *const u8, sum: usize) -> S::I {
    // SAFETY: the caller has the instruction set and a line of activations.
    unsafe {
        if W::ZERO == 0 {
            return S::splat_i(0);
        }
        let negated = S::splat_i(read(x.add(NEGATED_SUMS + 4 * sum)));
        S::shl(negated, W::ZERO.trailing_zeros() as i32)
    }
}

#[inline(always)]
unsafe fn read<T: Copy>(from: *const u8) -> T {
    // SAFETY: the caller has a `T` there.
    unsafe { from.cast::<T>().read_unaligned() }
}

/// Turns `count` blocks of a code panel, from block `first` on, into floats `[columns][16]`.
pub(super) struct CodesToFloats<C> {
    pub(super) panel: Packed<C>,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) to: *mut Sums,
}

impl<C: Code> Kernel for CodesToFloats<C> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for block in 0..self.count {
            // SAFETY: the caller has the instruction set, these blocks and room for them.
            unsafe {
                let from = self.first + block;
                self.panel.prefetch::<S>(from);
                for_each_of_8!(group, {
                    let half = if C::SPEC.group == 16 { group / 4 } else { 0 };
                    let scale = self.panel.scale::<S>(from, half);
                    let codes = self.panel.codes::<S>(from, group);
                    for column in 0..4 {
                        let code = S::shr(codes, 8 * column as i32);
                        let code = S::to_f(S::and(code, S::splat_i(0xff)));
                        let value = if C::SPEC.min {
                            S::fma(code, scale, self.panel.min::<S>(from, half))
                        } else {
                            S::mul(S::add(code, S::splat_f(-f32::from(C::SPEC.zero))), scale)
                        };
                        S::store_f(self.to.add(block * 32 + group * 4 + column).cast(), value);
                    }
                });
            }
        }
    }
}

/// Turns `count` columns of an `f16` or, if `BF16`, a `bf16` panel into floats `[count][16]`.
pub(super) struct HalvesToFloats<const BF16: bool> {
    pub(super) from: *const u8,
    pub(super) count: usize,
    pub(super) to: *mut Sums,
}

impl<const BF16: bool> Kernel for HalvesToFloats<BF16> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for column in 0..self.count {
            // SAFETY: the caller has the instruction set, these columns and room for them.
            unsafe {
                let from = self.from.add(column * 2 * PANEL_ROWS);
                S::prefetch(from.wrapping_add(AHEAD));
                let value = if BF16 { S::load_bf16(from) } else { S::load_f16(from) };
                S::store_f(self.to.add(column).cast(), value);
            }
        }
    }
}

/// Adds to `sums[r]` the products of row `r` of activations and `count` columns of float weights,
/// running `J` chains at a time.
pub(super) struct FloatTile<const R: usize, const J: usize> {
    pub(super) weights: *const f32,
    pub(super) count: usize,
    /// The first of those columns in row 0, and floats from row to row.
    pub(super) x: *const f32,
    pub(super) stride: usize,
    pub(super) sums: *mut Sums,
}

impl<const R: usize, const J: usize> Kernel for FloatTile<R, J> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if R > S::TILE_ROWS {
            unreachable!("a tile of {R} rows");
        }
        // SAFETY: the caller has the instruction set, R rows of activations and of sums, and the
        // weights, for all columns.
        unsafe {
            let mut sums = [S::splat_f(0.0); R];
            for r in 0..R {
                sums[r] = S::load_f(self.sums.add(r).cast());
            }
            let mut k = 0;
            while k + CHAIN * J <= self.count {
                self.chains::<S, J>(k, CHAIN, &mut sums);
                k += CHAIN * J;
            }
            while k < self.count {
                self.chains::<S, 1>(k, CHAIN.min(self.count - k), &mut sums);
                k += CHAIN;
            }
            for r in 0..R {
                S::store_f(self.sums.add(r).cast(), sums[r]);
            }
        }
    }
}

impl<const R: usize, const J: usize> FloatTile<R, J> {
    /// `C` chains of `length` columns side by side from column `k` on.
    #[inline(always)]
    unsafe fn chains<S: Simd, const C: usize>(
        &self,
        k: usize,
        length: usize,
        sums: &mut [S::F; R],
    ) {
        // SAFETY: as in `run`.
        unsafe {
            let mut chains = [[S::splat_f(0.0); R]; C];
            for i in k..k + length {
                for c in 0..C {
                    let column = i + c * CHAIN;
                    let w = S::load_f(self.weights.add(column * PANEL_ROWS));
                    for r in 0..R {
                        let x = S::splat_f(*self.x.add(r * self.stride + column));
                        chains[c][r] = S::fma(x, w, chains[c][r]);
                    }
                }
            }
            for chain in chains {
                for r in 0..R {
                    sums[r] = S::add(sums[r], chain[r]);
                }
            }
        }
    }
}
