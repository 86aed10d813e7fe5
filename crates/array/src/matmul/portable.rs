//! 16 lanes in plain Rust: what runs where nothing better does, and the same bits as all others.

use std::array::from_fn;

use half::{bf16, f16};

use super::simd::{Kernel, Simd, operations};
use crate::quant::e8m0;

#[derive(Clone, Copy)]
pub(super) struct Portable;

type I = [u32; 16];
type F = [f32; 16];

impl Simd for Portable {
    type I = I;
    type F = F;

    const TILE_ROWS: usize = 1;
    const UNROLL: bool = false;

    operations! {
        fn load_i(from: *const u8) -> I = from.cast::<I>().read_unaligned();
        fn store_i(to: *mut u8, a: I) = to.cast::<I>().write_unaligned(a);
        fn load_f(from: *const f32) -> F = from.cast::<F>().read_unaligned();
        fn store_f(to: *mut f32, a: F) = to.cast::<F>().write_unaligned(a);
        fn load_f16(from: *const u8) -> F = {
            let bits = from.cast::<[u16; 16]>().read_unaligned();
            from_fn(|lane| f16::from_bits(bits[lane]).to_f32())
        };
        fn load_bf16(from: *const u8) -> F = {
            let bits = from.cast::<[u16; 16]>().read_unaligned();
            from_fn(|lane| bf16::from_bits(bits[lane]).to_f32())
        };
        fn load_i8(from: *const u8) -> F = {
            let bytes = from.cast::<[i8; 16]>().read_unaligned();
            from_fn(|lane| f32::from(bytes[lane]))
        };
        fn load_e8m0(from: *const u8) -> F = from.cast::<[u8; 16]>().read_unaligned().map(e8m0);
    }

    #[inline(always)]
    unsafe fn splat_i(a: i32) -> I {
        [a.cast_unsigned(); 16]
    }
    #[inline(always)]
    unsafe fn and(a: I, b: I) -> I {
        from_fn(|lane| a[lane] & b[lane])
    }
    #[inline(always)]
    unsafe fn or(a: I, b: I) -> I {
        from_fn(|lane| a[lane] | b[lane])
    }
    #[inline(always)]
    unsafe fn shr(a: I, bits: i32) -> I {
        a.map(|a| a >> bits)
    }
    #[inline(always)]
    unsafe fn shl(a: I, bits: i32) -> I {
        a.map(|a| a << bits)
    }
    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        a.map(|a| a.cast_signed() as f32)
    }
    #[inline(always)]
    unsafe fn cast_f(a: I) -> F {
        a.map(f32::from_bits)
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], a: I) -> I {
        a.map(|a| u32::from_le_bytes(a.to_le_bytes().map(|code| table[usize::from(code & 15)])))
    }
    #[inline(always)]
    unsafe fn dot<const WIDE: bool>(sum: I, w: I, x: I) -> I {
        from_fn(|lane| {
            let (w, x) = (w[lane].to_le_bytes(), x[lane].to_le_bytes());
            let product = |i: usize| i32::from(w[i]) * i32::from(x[i].cast_signed());
            let products = product(0) + product(1) + product(2) + product(3);
            sum[lane].wrapping_add_signed(products)
        })
    }
    #[inline(always)]
    unsafe fn splat_f(a: f32) -> F {
        [a; 16]
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        from_fn(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        from_fn(|lane| a[lane] * b[lane])
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    unsafe fn run<K: Kernel>(kernel: K) {
        // SAFETY: the caller's; every machine has this instruction set.
        unsafe { kernel.run::<Portable>() }
    }
}
