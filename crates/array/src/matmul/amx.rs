//! 16 or 8 rows of activations at a time on the tile unit of AMX; all that is not a product of bytes is AVX-512's.
//!
//! Owns what the unit needs (the system's leave, the shapes of the tiles) and the products. The integer sums are
//! exact, and what is made of them goes in the order that `kernels.rs` states: the same bits as elsewhere.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::mem::MaybeUninit;

use super::activations::{BOTH, LINE, SCALE, SCALED_SUMS};
use super::codes::{Source, Sums, UnpackedBlock};
use super::kernels::read;
use super::simd::{Kernel, Simd};
use crate::panel::PANEL_ROWS;

/// Rows below which tiles don't pay.
pub(super) const LEAST_ROWS: usize = 8;

/// Whether the processor, which has AVX-512, has tiles of bytes, and the system lets this process use them.
pub(super) fn exists() -> bool {
    const TILES_AND_BYTES: u32 = 1 << 24 | 1 << 25;
    const STATE: u64 = 1 << 17 | 1 << 18;
    let has = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & TILES_AND_BYTES == TILES_AND_BYTES;
    // SAFETY: a processor with AVX-512 has the instruction.
    has && unsafe { _xgetbv(0) } & STATE == STATE && permitted()
}

/// Asks for tiles, which Linux gives to processes that ask; it may be asked again.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call reads its two numbers and nothing else.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The shapes of the tiles of this thread, until dropped.
pub(super) struct Shapes;

/// What `ldtilecfg` reads: for each tile the bytes of a row and the rows.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// For products of groups of `group` columns: two sets of tiles for codes, 16 rows of activations and their sums;
    /// then activations and sums of 8 rows.
    ///
    /// # Safety
    /// The processor has tiles, and the system lets this process use them.
    pub(super) unsafe fn new(group: usize) -> Self {
        let (codes, x, sums) = ((group / 4, 64), (16, group), (16, 64));
        // SAFETY: the caller's, and the shapes are legal.
        unsafe { Self::of([codes, x, sums, codes, x, sums, (8, group), (8, 64)]) }
    }

    /// Of tiles with so many rows of so many bytes, 16 and 64 at most.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    unsafe fn of(tiles: [(usize, usize); 8]) -> Self {
        let mut config =
            Config { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, (rows, bytes)) in tiles.into_iter().enumerate() {
            (config.rows[tile], config.row_bytes[tile]) = (rows as u8, bytes as u16);
        }
        // SAFETY: the caller's, and the shapes are legal.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        Self
    }
}

impl Drop for Shapes {
    /// Tiles in use make a switch of threads slower.
    fn drop(&mut self) {
        // SAFETY: the unit was there when this was made.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// As [`CodeTile`](super::kernels::CodeTile) for `R` rows, 16 or 8, of unpacked weights whose codes are counted from
/// their zero: as [`Center`](super::codes::Center) leaves them.
pub(super) struct GridTile<W, const R: usize> {
    pub(super) weights: W,
    /// The same blocks.
    pub(super) codes: *const UnpackedBlock,
    pub(super) blocks: usize,
    pub(super) x: *const u8,
    pub(super) stride: usize,
    pub(super) sums: *mut Sums,
}

/// Integer sums of a few rows, in whole cache lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Dots<const R: usize>([[i32; PANEL_ROWS]; R]);

impl<W: Source, const R: usize> Kernel for GridTile<W, R> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller has the instruction set and tiles in shape, R rows of activations and of sums, and the
        // weights, for all blocks.
        unsafe {
            let mut sums = [S::splat_f(0.0); R];
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = S::load_f(self.sums.add(r).cast());
            }
            // The grid is two units ahead of the vectors.
            let mut dots = [const { MaybeUninit::<Dots<R>>::uninit() }; 4];
            let dots = dots.as_mut_ptr().cast::<Dots<R>>();
            let halves = 32 / W::GROUP;
            let units = self.blocks * halves;
            for unit in 0..units.min(2) {
                self.products(unit, halves, dots.add(unit));
            }
            for unit in 0..units {
                if unit + 2 < units {
                    self.products(unit + 2, halves, dots.add((unit + 2) % 4));
                }
                self.take::<S>(unit / halves, unit % halves, dots.add(unit % 4), &mut sums);
            }
            for (r, sum) in sums.into_iter().enumerate() {
                S::store_f(self.sums.add(r).cast(), sum);
            }
        }
    }
}

impl<W: Source, const R: usize> GridTile<W, R> {
    /// `dots = x w^T` for the columns of one group.
    #[inline(always)]
    unsafe fn products(&self, unit: usize, halves: usize, dots: *mut Dots<R>) {
        let (block, half) = (unit / halves, unit % halves);
        // SAFETY: the caller asks for unpacked blocks.
        let codes = unsafe { &raw const (*self.codes.add(block)).codes[half * (W::GROUP / 4)] };
        /// One product, in the tiles named.
        macro_rules! product {
            ($multiply:literal, $codes:literal, $x:literal, $sums:literal) => {
                // SAFETY: the caller's: codes, rows of activations and sums are as the shapes say.
                unsafe {
                    asm!(
                        concat!("tileloadd ", $codes, ", [{codes} + {line}]"),
                        concat!("tileloadd ", $x, ", [{x} + {stride}]"),
                        concat!("tilezero ", $sums),
                        concat!($multiply, " ", $sums, ", ", $x, ", ", $codes),
                        concat!("tilestored [{dots} + {line}], ", $sums),
                        codes = in(reg) codes,
                        x = in(reg) self.x.add(block * LINE + half * W::GROUP),
                        dots = in(reg) dots,
                        stride = in(reg) self.stride,
                        line = in(reg) LINE,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
                        out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            };
        }
        match (R, W::ZERO) {
            (16, 0) if unit.is_multiple_of(2) => product!("tdpbsud", "tmm0", "tmm1", "tmm2"),
            (16, 0) => product!("tdpbsud", "tmm3", "tmm4", "tmm5"),
            (16, _) if unit.is_multiple_of(2) => product!("tdpbssd", "tmm0", "tmm1", "tmm2"),
            (16, _) => product!("tdpbssd", "tmm3", "tmm4", "tmm5"),
            (8, 0) => product!("tdpbsud", "tmm0", "tmm6", "tmm7"),
            (8, _) => product!("tdpbssd", "tmm0", "tmm6", "tmm7"),
            _ => unreachable!("a grid of {R} rows"),
        }
    }

    /// Adds what the sums of one group stand for.
    #[inline(always)]
    unsafe fn take<S: Simd>(
        &self,
        block: usize,
        half: usize,
        dots: *const Dots<R>,
        sums: &mut [S::F; R],
    ) {
        // SAFETY: as in `run`.
        unsafe {
            let x = self.x.add(block * LINE);
            let scale = self.weights.scale::<S>(block, half);
            for (r, sum) in sums.iter_mut().enumerate() {
                let d = S::splat_f(read(x.add(r * self.stride + SCALE)));
                let dot = S::to_f(S::load_i((&raw const (*dots).0[r]).cast()));
                *sum = S::fma(dot, S::mul(scale, d), *sum);
            }
            if W::ZERO == 0 {
                let min = self.weights.min::<S>(block, half);
                let which = if W::GROUP == 16 { half } else { BOTH };
                for (r, sum) in sums.iter_mut().enumerate() {
                    let at = r * self.stride + SCALED_SUMS + 4 * which;
                    *sum = S::fma(min, S::splat_f(read(x.add(at))), *sum);
                }
            }
        }
    }
}

/// Multiplies whole tiles of zeros, `rounds` rounds of four; gives how many products of bytes were added up.
///
/// # Safety
/// The processor has tiles, and the system lets this process use them.
pub(super) unsafe fn products_of_zeros(rounds: usize) -> u64 {
    // SAFETY: the caller's.
    let _shapes = unsafe { Shapes::of([(16, 64); 8]) };
    for _ in 0..rounds {
        // SAFETY: the shapes fit each other; new shapes start as zeros.
        unsafe {
            asm!(
                "tdpbssd tmm2, tmm0, tmm1",
                "tdpbssd tmm3, tmm0, tmm1",
                "tdpbssd tmm4, tmm0, tmm1",
                "tdpbssd tmm5, tmm0, tmm1",
                out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _,
                options(nostack, nomem),
            );
        }
    }
    rounds as u64 * 4 * 16 * 16 * 64
}
