//! Plain stand-ins for the NEON intrinsics that `neon` uses, with their names and signatures, so that tests run its
//! arithmetic on any machine. Registers are arrays, lane 0 first.
#![allow(non_camel_case_types)]

use std::array::from_fn;

pub(super) type int8x8_t = [i8; 8];
pub(super) type int8x16_t = [i8; 16];
pub(super) type uint8x16_t = [u8; 16];
pub(super) type int16x4_t = [i16; 4];
pub(super) type int16x8_t = [i16; 8];
pub(super) type uint16x4_t = [u16; 4];
pub(super) type int32x4_t = [i32; 4];
pub(super) type uint32x4_t = [u32; 4];
pub(super) type float32x4_t = [f32; 4];

macro_rules! shims {
    ($(fn $name:ident $(<const $n:ident>)? ($($arg:ident: $ty:ty),*)
        $(-> $ret:ty)? = $body:expr;)*) => {
        $(#[inline(always)]
        pub(super) unsafe fn $name $(<const $n: i32>)? ($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's pointers are good, as for the intrinsic.
            #[allow(unused_unsafe)]
            unsafe { $body }
        })*
    };
}

/// What `vshlq` does with a lane: left, or right by a negative count, logically.
fn shift(a: u32, by: i32) -> u32 {
    if by >= 0 {
        a.checked_shl(by as u32).unwrap_or(0)
    } else {
        a.checked_shr(-by as u32).unwrap_or(0)
    }
}

fn words(bytes: [u8; 16]) -> [u32; 4] {
    from_fn(|i| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("four bytes")))
}

fn bytes(words: [u32; 4]) -> [u8; 16] {
    from_fn(|i| words[i / 4].to_le_bytes()[i % 4])
}

shims! {
    fn vld1q_u8(p: *const u8) -> uint8x16_t = p.cast::<[u8; 16]>().read_unaligned();
    fn vst1q_u8(p: *mut u8, a: uint8x16_t) = p.cast::<[u8; 16]>().write_unaligned(a);
    fn vld1q_s8(p: *const i8) -> int8x16_t = p.cast::<[i8; 16]>().read_unaligned();
    fn vld1_u16(p: *const u16) -> uint16x4_t = p.cast::<[u16; 4]>().read_unaligned();
    fn vld1q_f32(p: *const f32) -> float32x4_t = p.cast::<[f32; 4]>().read_unaligned();
    fn vst1q_f32(p: *mut f32, a: float32x4_t) = p.cast::<[f32; 4]>().write_unaligned(a);
    fn vreinterpretq_s32_u8(a: uint8x16_t) -> int32x4_t = words(a).map(u32::cast_signed);
    fn vreinterpretq_u8_s32(a: int32x4_t) -> uint8x16_t = bytes(a.map(i32::cast_unsigned));
    fn vreinterpretq_s8_s32(a: int32x4_t) -> int8x16_t =
        bytes(a.map(i32::cast_unsigned)).map(u8::cast_signed);
    fn vreinterpretq_u32_s32(a: int32x4_t) -> uint32x4_t = a.map(i32::cast_unsigned);
    fn vreinterpretq_s32_u32(a: uint32x4_t) -> int32x4_t = a.map(u32::cast_signed);
    fn vreinterpretq_f32_u32(a: uint32x4_t) -> float32x4_t = a.map(f32::from_bits);
    fn vreinterpretq_f32_s32(a: int32x4_t) -> float32x4_t = a.map(|a| f32::from_bits(a.cast_unsigned()));
    fn vqtbl1q_u8(table: uint8x16_t, a: uint8x16_t) -> uint8x16_t =
        a.map(|a| table.get(usize::from(a)).copied().unwrap_or(0));
    fn vdupq_n_s32(a: i32) -> int32x4_t = [a; 4];
    fn vdupq_n_s8(a: i8) -> int8x16_t = [a; 16];
    fn vdupq_n_f32(a: f32) -> float32x4_t = [a; 4];
    fn vandq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t = from_fn(|i| a[i] & b[i]);
    fn vorrq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t = from_fn(|i| a[i] | b[i]);
    fn veorq_s8(a: int8x16_t, b: int8x16_t) -> int8x16_t = from_fn(|i| a[i] ^ b[i]);
    fn vshlq_u32(a: uint32x4_t, by: int32x4_t) -> uint32x4_t = from_fn(|i| shift(a[i], by[i]));
    fn vshlq_s32(a: int32x4_t, by: int32x4_t) -> int32x4_t =
        from_fn(|i| shift(a[i].cast_unsigned(), by[i]).cast_signed());
    fn vshlq_n_u32<const N>(a: uint32x4_t) -> uint32x4_t = a.map(|a| a << N);
    fn vshlq_n_s32<const N>(a: int32x4_t) -> int32x4_t = a.map(|a| a << N);
    fn vcvtq_f32_s32(a: int32x4_t) -> float32x4_t = a.map(|a| a as f32);
    fn vaddq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t = from_fn(|i| a[i].wrapping_add(b[i]));
    fn vaddq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t = from_fn(|i| a[i] + b[i]);
    fn vmulq_f32(a: float32x4_t, b: float32x4_t) -> float32x4_t = from_fn(|i| a[i] * b[i]);
    fn vfmaq_f32(c: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t =
        from_fn(|i| a[i].mul_add(b[i], c[i]));
    fn vmovl_u16(a: uint16x4_t) -> uint32x4_t = a.map(u32::from);
    fn vmovl_s8(a: int8x8_t) -> int16x8_t = a.map(i16::from);
    fn vmovl_s16(a: int16x4_t) -> int32x4_t = a.map(i32::from);
    fn vget_low_s8(a: int8x16_t) -> int8x8_t = from_fn(|i| a[i]);
    fn vget_high_s8(a: int8x16_t) -> int8x8_t = from_fn(|i| a[8 + i]);
    fn vget_low_s16(a: int16x8_t) -> int16x4_t = from_fn(|i| a[i]);
    fn vget_high_s16(a: int16x8_t) -> int16x4_t = from_fn(|i| a[4 + i]);
    fn vmull_s8(a: int8x8_t, b: int8x8_t) -> int16x8_t = from_fn(|i| i16::from(a[i]) * i16::from(b[i]));
    fn vpaddlq_s8(a: int8x16_t) -> int16x8_t =
        from_fn(|i| i16::from(a[2 * i]) + i16::from(a[2 * i + 1]));
    fn vpaddlq_s16(a: int16x8_t) -> int32x4_t =
        from_fn(|i| i32::from(a[2 * i]) + i32::from(a[2 * i + 1]));
    fn vpaddq_s32(a: int32x4_t, b: int32x4_t) -> int32x4_t =
        from_fn(|i| if i < 2 { a[2 * i] + a[2 * i + 1] } else { b[2 * i - 4] + b[2 * i - 3] });
}
