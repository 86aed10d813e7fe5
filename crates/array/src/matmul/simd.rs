//! The few vector operations that kernels are written in, and how a kernel is compiled for an ISA.
//!
//! A vector has 16 lanes of 32 bits whatever the machine: one register, two or four. A lane is a
//! row of a weight panel, so no kernel ever sums across lanes and every ISA gives the same bits.

/// 16 lanes on one instruction set.
///
/// # Safety
/// Of every function: the machine has the instruction set, and pointers are good for the 64 bytes
/// (or what the function states) that it reads or writes; they need no alignment.
pub(crate) trait Simd: Copy {
    /// 16 integers, or 16 times four bytes.
    type I: Copy;
    /// 16 floats.
    type F: Copy;

    /// The most rows of activations that a tile has registers for.
    const TILE_ROWS: usize;
    /// Whether the loops over the eight groups of a block are written out. It is most of what there
    /// is to compile, and worth that where vectors are registers.
    const UNROLL: bool;

    unsafe fn load_i(from: *const u8) -> Self::I;
    unsafe fn store_i(to: *mut u8, a: Self::I);
    unsafe fn splat_i(a: i32) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Logical shifts of 32-bit lanes.
    unsafe fn shr(a: Self::I, bits: i32) -> Self::I;
    unsafe fn shl(a: Self::I, bits: i32) -> Self::I;
    unsafe fn to_f(a: Self::I) -> Self::F;
    /// The floats whose bits these are.
    unsafe fn cast_f(a: Self::I) -> Self::F;
    /// The byte of the table that each byte, below 16, names.
    unsafe fn lookup(table: &[u8; 16], a: Self::I) -> Self::I;
    /// Adds the products of four unsigned bytes `w` with four signed ones `x` to each lane,
    /// exactly. Unless `WIDE`, `w` is below 128. `x` is above -128.
    unsafe fn dot<const WIDE: bool>(sum: Self::I, w: Self::I, x: Self::I) -> Self::I;

    unsafe fn load_f(from: *const f32) -> Self::F;
    unsafe fn store_f(to: *mut f32, a: Self::F);
    unsafe fn splat_f(a: f32) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Reads 16 `f16` (32 bytes).
    unsafe fn load_f16(from: *const u8) -> Self::F;
    /// Reads 16 `bf16` (32 bytes).
    unsafe fn load_bf16(from: *const u8) -> Self::F;
    /// Reads 16 `i8` (16 bytes).
    unsafe fn load_i8(from: *const u8) -> Self::F;
    /// Reads 16 exponents (16 bytes): `e` is `2^(e - 127)`.
    unsafe fn load_e8m0(from: *const u8) -> Self::F;

    /// Asks for the cache line at `from`, which may lie anywhere.
    #[inline(always)]
    fn prefetch(from: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has it, and it cannot fault.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(from.cast())
        };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = from;
    }

    /// Runs `kernel`, compiled with the instruction set.
    unsafe fn run<K: Kernel>(kernel: K);
}

/// A loop to compile once for each instruction set.
pub(crate) trait Kernel {
    /// Runs it.
    ///
    /// # Safety
    /// The machine has the instruction set, and the kernel's own pointers are as it states.
    unsafe fn run<S: Simd>(self);
}

/// Repeats a statement with 0 to 7: a constant, so that what depends on it is constant too, where
/// the instruction set `$s` has its loops written out.
macro_rules! for_each_of_8 {
    ($s:ident, $i:ident, $body:block) => {
        for_each_of_8!(@ $s, $i, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $s:ident, $i:ident, $body:block, $($n:literal)*) => {
        if $s::UNROLL {
            $({ #[allow(non_upper_case_globals)] const $i: usize = $n; $body })*
        } else {
            for $i in 0..8 $body
        }
    };
}
pub(super) use for_each_of_8;

/// Defines operations of a [`Simd`] each as one expression of intrinsics.
macro_rules! operations {
    ($($(#[$attr:meta])* fn $name:ident $(<const $c:ident: bool>)? ($($arg:ident: $ty:ty),*)
        $(-> $ret:ty)? = $body:expr;)*) => {
        $($(#[$attr])* #[inline(always)]
        unsafe fn $name $(<const $c: bool>)? ($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller has the instruction set, and its pointers are good.
            unsafe { $body }
        })*
    };
}
pub(super) use operations;
