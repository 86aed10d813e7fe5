//! 16 lanes on NEON: four registers, with what every aarch64 has.
//!
//! On other machines tests run the same code over `neon_shim`, plain stand-ins for the intrinsics: that proves the
//! arithmetic, not the instructions.

use std::array::from_fn;

use half::f16;

#[cfg(not(target_arch = "aarch64"))]
use super::neon_shim::*;
use super::simd::{Kernel, Simd, operations};
use crate::quant::e8m0;
#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
pub(super) struct Neon;

type I = [int32x4_t; 4];
type F = [float32x4_t; 4];

impl Simd for Neon {
    type I = I;
    type F = F;

    const TILE_ROWS: usize = 4;
    const UNROLL: bool = cfg!(target_arch = "aarch64");

    operations! {
        fn load_i(from: *const u8) -> I =
            from_fn(|j| vreinterpretq_s32_u8(vld1q_u8(from.add(16 * j))));
        fn store_i(to: *mut u8, a: I) =
            (0..4).for_each(|j| vst1q_u8(to.add(16 * j), vreinterpretq_u8_s32(a[j])));
        fn splat_i(a: i32) -> I = [vdupq_n_s32(a); 4];
        fn and(a: I, b: I) -> I = from_fn(|j| vandq_s32(a[j], b[j]));
        fn or(a: I, b: I) -> I = from_fn(|j| vorrq_s32(a[j], b[j]));
        fn shr(a: I, bits: i32) -> I = a.map(|a| {
            let shifted = vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-bits));
            vreinterpretq_s32_u32(shifted)
        });
        fn shl(a: I, bits: i32) -> I = a.map(|a| vshlq_s32(a, vdupq_n_s32(bits)));
        fn to_f(a: I) -> F = a.map(|a| vcvtq_f32_s32(a));
        fn cast_f(a: I) -> F = a.map(|a| vreinterpretq_f32_s32(a));
        fn lookup(table: &[u8; 16], a: I) -> I = {
            let table = vld1q_u8(table.as_ptr());
            a.map(|a| vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(a))))
        };
        fn dot<const WIDE: bool>(sum: I, w: I, x: I) -> I =
            from_fn(|j| dot::<WIDE>(sum[j], vreinterpretq_s8_s32(w[j]), vreinterpretq_s8_s32(x[j])));
        fn load_f(from: *const f32) -> F = from_fn(|j| vld1q_f32(from.add(4 * j)));
        fn store_f(to: *mut f32, a: F) = (0..4).for_each(|j| vst1q_f32(to.add(4 * j), a[j]));
        fn splat_f(a: f32) -> F = [vdupq_n_f32(a); 4];
        fn add(a: F, b: F) -> F = from_fn(|j| vaddq_f32(a[j], b[j]));
        fn mul(a: F, b: F) -> F = from_fn(|j| vmulq_f32(a[j], b[j]));
        fn fma(a: F, b: F, c: F) -> F = from_fn(|j| vfmaq_f32(c[j], a[j], b[j]));
        fn load_f16(from: *const u8) -> F = {
            // Conversion intrinsics of f16 vectors are not stable; these loads are once a block.
            let bits = from.cast::<[u16; 16]>().read_unaligned();
            let floats = bits.map(|bits| f16::from_bits(bits).to_f32());
            Self::load_f(floats.as_ptr())
        };
        fn load_bf16(from: *const u8) -> F = from_fn(|j| {
            let bits = from.add(8 * j).cast::<[u16; 4]>().read_unaligned();
            let wide = vmovl_u16(vld1_u16(bits.as_ptr()));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide))
        });
        fn load_i8(from: *const u8) -> F = {
            let bytes = vld1q_s8(from.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        };
        fn load_e8m0(from: *const u8) -> F = {
            let floats = from.cast::<[u8; 16]>().read_unaligned().map(e8m0);
            Self::load_f(floats.as_ptr())
        };
    }

    unsafe fn run<K: Kernel>(kernel: K) {
        #[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
        unsafe fn compiled<K: Kernel>(kernel: K) {
            // SAFETY: the caller's.
            unsafe { kernel.run::<Neon>() }
        }
        // SAFETY: the caller has the instruction set.
        unsafe { compiled(kernel) }
    }
}

/// Adds to each of four lanes the products of its four bytes; `w` holds unsigned bytes.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn dot<const WIDE: bool>(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe {
        if !WIDE {
            return vaddq_s32(sum, dot_signed(w, x));
        }
        // w = (w - 128) + 128, and w - 128 is w with its top bit turned, as a signed byte.
        let centred = veorq_s8(w, vdupq_n_s8(-128));
        let sum_x = vpaddlq_s16(vpaddlq_s8(x));
        vaddq_s32(vaddq_s32(sum, dot_signed(centred, x)), vshlq_n_s32::<7>(sum_x))
    }
}

/// Products fit 16 bits: 128 * 127.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn dot_signed(w: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
        let high = vmull_s8(vget_high_s8(w), vget_high_s8(x));
        vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))
    }
}
