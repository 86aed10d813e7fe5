//! 16 lanes on AVX2 with FMA and F16C: two registers.

use std::arch::x86_64::*;

use super::simd::{Kernel, Simd, operations};

#[derive(Clone, Copy)]
pub(super) struct Avx2;

type I = (__m256i, __m256i);
type F = (__m256, __m256);

impl Simd for Avx2 {
    type I = I;
    type F = F;

    const TILE_ROWS: usize = 4;
    const UNROLL: bool = true;

    operations! {
        fn load_i(from: *const u8) -> I =
            (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast()));
        fn store_i(to: *mut u8, a: I) = {
            _mm256_storeu_si256(to.cast(), a.0);
            _mm256_storeu_si256(to.add(32).cast(), a.1);
        };
        fn splat_i(a: i32) -> I = (_mm256_set1_epi32(a), _mm256_set1_epi32(a));
        fn and(a: I, b: I) -> I = (_mm256_and_si256(a.0, b.0), _mm256_and_si256(a.1, b.1));
        fn or(a: I, b: I) -> I = (_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1));
        fn shr(a: I, bits: i32) -> I = {
            let bits = _mm_cvtsi32_si128(bits);
            (_mm256_srl_epi32(a.0, bits), _mm256_srl_epi32(a.1, bits))
        };
        fn shl(a: I, bits: i32) -> I = {
            let bits = _mm_cvtsi32_si128(bits);
            (_mm256_sll_epi32(a.0, bits), _mm256_sll_epi32(a.1, bits))
        };
        fn to_f(a: I) -> F = (_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1));
        fn cast_f(a: I) -> F = (_mm256_castsi256_ps(a.0), _mm256_castsi256_ps(a.1));
        fn lookup(table: &[u8; 16], a: I) -> I = {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            (_mm256_shuffle_epi8(table, a.0), _mm256_shuffle_epi8(table, a.1))
        };
        fn dot<const WIDE: bool>(sum: I, w: I, x: I) -> I =
            (dot::<WIDE>(sum.0, w.0, x.0), dot::<WIDE>(sum.1, w.1, x.1));
        fn load_f(from: *const f32) -> F = (_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8)));
        fn store_f(to: *mut f32, a: F) = {
            _mm256_storeu_ps(to, a.0);
            _mm256_storeu_ps(to.add(8), a.1);
        };
        fn splat_f(a: f32) -> F = (_mm256_set1_ps(a), _mm256_set1_ps(a));
        fn add(a: F, b: F) -> F = (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1));
        fn mul(a: F, b: F) -> F = (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1));
        fn fma(a: F, b: F, c: F) -> F =
            (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1));
        fn load_f16(from: *const u8) -> F = (
            _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())),
        );
        fn load_bf16(from: *const u8) -> F = (bf16_at(from), bf16_at(from.add(16)));
        fn load_i8(from: *const u8) -> F = (
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()))),
        );
        fn load_e8m0(from: *const u8) -> F = (e8m0_at(from), e8m0_at(from.add(8)));
    }

    unsafe fn run<K: Kernel>(kernel: K) {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn compiled<K: Kernel>(kernel: K) {
            // SAFETY: the caller's.
            unsafe { kernel.run::<Avx2>() }
        }
        // SAFETY: the caller has the instruction set.
        unsafe { compiled(kernel) }
    }
}

/// Pairs of products of bytes must fit in 16 bits: 127 * 127 * 2 does, so a wide code is split into
/// its low seven bits and its eighth.
#[inline(always)]
unsafe fn dot<const WIDE: bool>(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let low = if WIDE { _mm256_and_si256(w, _mm256_set1_epi8(0x7f)) } else { w };
        let mut sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(low, x), ones));
        if WIDE {
            let high = _mm256_and_si256(w, _mm256_set1_epi8(0x80_u8 as i8));
            let pairs = _mm256_maddubs_epi16(high, x);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        sum
    }
}

#[inline(always)]
unsafe fn bf16_at(from: *const u8) -> __m256 {
    // SAFETY: the caller has the instruction set and 16 bytes at `from`.
    unsafe {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
}

#[inline(always)]
unsafe fn e8m0_at(from: *const u8) -> __m256 {
    // SAFETY: the caller has the instruction set and 8 bytes at `from`.
    unsafe {
        let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
        let bits = _mm256_max_epi32(_mm256_slli_epi32::<23>(wide), _mm256_set1_epi32(1 << 22));
        _mm256_castsi256_ps(bits)
    }
}
