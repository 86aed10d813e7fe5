//! 16 lanes on AVX-512 with VNNI: one register, one instruction for a dot product of bytes.

use std::arch::x86_64::*;

use super::simd::{Kernel, Simd, operations};

#[derive(Clone, Copy)]
pub(super) struct Avx512;

impl Simd for Avx512 {
    type I = __m512i;
    type F = __m512;

    const TILE_ROWS: usize = 12;
    const UNROLL: bool = true;

    operations! {
        fn load_i(from: *const u8) -> __m512i = _mm512_loadu_si512(from.cast());
        fn store_i(to: *mut u8, a: __m512i) = _mm512_storeu_si512(to.cast(), a);
        fn splat_i(a: i32) -> __m512i = _mm512_set1_epi32(a);
        fn and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn shr(a: __m512i, bits: i32) -> __m512i = _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits));
        fn shl(a: __m512i, bits: i32) -> __m512i = _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits));
        fn to_f(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        fn cast_f(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        fn lookup(table: &[u8; 16], a: __m512i) -> __m512i = {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a)
        };
        fn dot<const WIDE: bool>(sum: __m512i, w: __m512i, x: __m512i) -> __m512i =
            _mm512_dpbusd_epi32(sum, w, x);
        fn load_f(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        fn store_f(to: *mut f32, a: __m512) = _mm512_storeu_ps(to, a);
        fn splat_f(a: f32) -> __m512 = _mm512_set1_ps(a);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn load_f16(from: *const u8) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        fn load_bf16(from: *const u8) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())),
        ));
        fn load_i8(from: *const u8) -> __m512 =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())));
        fn load_e8m0(from: *const u8) -> __m512 = {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let bits = _mm512_max_epi32(_mm512_slli_epi32::<23>(wide), _mm512_set1_epi32(1 << 22));
            _mm512_castsi512_ps(bits)
        };
    }

    unsafe fn run<K: Kernel>(kernel: K) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,f16c")]
        unsafe fn compiled<K: Kernel>(kernel: K) {
            // SAFETY: the caller's.
            unsafe { kernel.run::<Avx512>() }
        }
        // SAFETY: the caller has the instruction set.
        unsafe { compiled(kernel) }
    }
}
