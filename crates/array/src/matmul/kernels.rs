//! The loops: a tile of a few rows of activations against one panel of weights.
//!
//! The order of every sum is fixed here, for all instruction sets and all tile sizes:
//!
//! - codes: 32 columns (16 in some formats) are summed as integers, exactly; then the accumulator
//!   takes one fused multiply-add of that sum and, in formats with a min, one of the min;
//! - floats: runs of 64 columns are chains of fused multiply-adds from zero, added in order.

// Loops over `r` keep several arrays of registers in step.
#![allow(clippy::needless_range_loop)]

use super::activations::{BOTH, LINE, NEGATED_SUMS, SCALE, SCALED_SUMS};
use super::codes::{AHEAD, Code, Packed, Source, Sums};
use super::simd::{Kernel, Simd, for_each_of_8};
use crate::panel::PANEL_ROWS;
use crate::quant::{Codebook, E4M3_UNIT};

/// Columns of a chain of the float sum.
pub(super) const CHAIN: usize = 64;

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
                for_each_of_8!(S, group, {
                    let sum = if W::GROUP == 16 { group / 4 } else { BOTH };
                    if (group * 4).is_multiple_of(W::GROUP) {
                        for r in 0..R {
                            dots[r] = zero_term::<S, W>(x.add(r * self.stride), sum);
                        }
                    }
                    let codes = self.weights.codes::<S>(block, group);
                    for r in 0..R {
                        let four = S::splat_i(read(x.add(r * self.stride + group * 4)));
                        dots[r] = match W::WIDE {
                            true => S::dot::<true>(dots[r], codes, four),
                            false => S::dot::<false>(dots[r], codes, four),
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
pub(super) unsafe fn read<T: Copy>(from: *const u8) -> T {
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
                for_each_of_8!(S, group, {
                    let half = if C::GROUP == 16 { group / 4 } else { 0 };
                    let scale = self.panel.scale::<S>(from, half);
                    let codes = self.panel.codes::<S>(from, group);
                    for column in 0..4_i32 {
                        let value = S::mul(level::<S, C>(codes, 8 * column), scale);
                        let value = match C::SPEC.min {
                            true => S::add(value, self.panel.min::<S>(from, half)),
                            false => value,
                        };
                        S::store_f(
                            self.to.add(block * 32 + group * 4 + column as usize).cast(),
                            value,
                        );
                    }
                });
            }
        }
    }
}

/// The levels of the codes at bit `at` of each lane.
#[inline(always)]
unsafe fn level<S: Simd, C: Code>(codes: S::I, at: i32) -> S::F {
    // SAFETY: the caller has the instruction set.
    unsafe {
        if C::SPEC.codebook == Codebook::E4m3 {
            let sign = S::and(S::shl(codes, 24 - at), S::splat_i(i32::MIN));
            let rest = if at < 20 { S::shl(codes, 20 - at) } else { S::shr(codes, at - 20) };
            let bits = S::or(sign, S::and(rest, S::splat_i(0x7f << 20)));
            return S::mul(S::cast_f(bits), S::splat_f(E4M3_UNIT));
        }
        let code = S::to_f(S::and(S::shr(codes, at), S::splat_i(0xff)));
        match C::SPEC.zero {
            0 => code,
            zero => S::add(code, S::splat_f(-f32::from(zero))),
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
