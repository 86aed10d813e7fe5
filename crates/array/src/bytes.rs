//! The casts between numbers and bytes that uploads and downloads need.

/// The bytes of a slice of numbers.
pub(crate) fn of_f32(x: &[f32]) -> &[u8] {
    // SAFETY: u8 has no alignment and no bits that it can't have, and the length in bytes is that of the slice.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), std::mem::size_of_val(x)) }
}

/// The bytes of a slice of numbers, to be written.
pub(crate) fn of_f32_mut(x: &mut [f32]) -> &mut [u8] {
    // SAFETY: any bytes are a valid f32, u8 has no alignment, and the length in bytes is that of the slice.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), std::mem::size_of_val(x)) }
}
