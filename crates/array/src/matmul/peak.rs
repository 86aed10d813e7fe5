//! The most that vector units give: chains of products that wait for nothing, over numbers in the first cache.
//!
//! Owns the loops, of the same operations that kernels are made of. Refuses to measure: `cpu/peak.rs` has the clock.

use std::hint::black_box;

use super::isa::Isa;
use super::simd::{Kernel, Simd};

/// Vectors of 64 bytes that a loop goes over: a part of the first cache.
const VECTORS: usize = 96;

/// Does `rounds` rounds; gives how many products of 8-bit integers were added up.
pub(crate) fn integer_products(isa: Isa, rounds: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if isa.0 == super::isa::Kind::Amx {
        // SAFETY: this `Isa` is only made where there are tiles.
        return unsafe { super::amx::products_of_zeros(rounds) };
    }
    // Products of each four bytes cancel: no sum ever grows.
    let numbers = [i32::from_le_bytes([1, 0xff, 1, 0xff]); 16 * VECTORS];
    // SAFETY: the kernel reads its own numbers.
    unsafe { isa.run(Integers { numbers: black_box(&numbers), rounds }) };
    (rounds * VECTORS * 64) as u64
}

/// Does `rounds` rounds; gives how many f32 operations were done, a multiply-add as two.
pub(crate) fn float_operations(isa: Isa, rounds: usize) -> u64 {
    let numbers = [0.5; 16 * VECTORS];
    // SAFETY: the kernel reads its own numbers.
    unsafe { isa.run(Floats { numbers: black_box(&numbers), rounds }) };
    (rounds * VECTORS * 32) as u64
}

struct Integers<'a> {
    numbers: &'a [i32; 16 * VECTORS],
    rounds: usize,
}

impl Kernel for Integers<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller has the instruction set.
        unsafe { if S::TILE_ROWS < 12 { self.chains::<S, 4>() } else { self.chains::<S, 12>() } }
    }
}

impl Integers<'_> {
    #[inline(always)]
    unsafe fn chains<S: Simd, const R: usize>(self) {
        const { assert!(VECTORS.is_multiple_of(R)) };
        // SAFETY: the caller has the instruction set; vectors are inside of the numbers.
        unsafe {
            let (ones, mut sums) = (S::splat_i(0x0101_0101), [S::splat_i(0); R]);
            for _ in 0..self.rounds {
                for vectors in self.numbers.chunks_exact(16 * R) {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let x = S::load_i(vectors.as_ptr().add(16 * r).cast());
                        *sum = S::dot::<false>(*sum, ones, x);
                    }
                }
            }
            black_box(sums);
        }
    }
}

struct Floats<'a> {
    numbers: &'a [f32; 16 * VECTORS],
    rounds: usize,
}

impl Kernel for Floats<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller has the instruction set.
        unsafe { if S::TILE_ROWS < 12 { self.chains::<S, 4>() } else { self.chains::<S, 12>() } }
    }
}

impl Floats<'_> {
    #[inline(always)]
    unsafe fn chains<S: Simd, const R: usize>(self) {
        const { assert!(VECTORS.is_multiple_of(R)) };
        // SAFETY: the caller has the instruction set; vectors are inside of the numbers.
        unsafe {
            // Each sum goes towards twice what is added.
            let (half, mut sums) = (S::splat_f(0.5), [S::splat_f(0.0); R]);
            for _ in 0..self.rounds {
                for vectors in self.numbers.chunks_exact(16 * R) {
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let x = S::load_f(vectors.as_ptr().add(16 * r));
                        *sum = S::fma(*sum, half, x);
                    }
                }
            }
            black_box(sums);
        }
    }
}
