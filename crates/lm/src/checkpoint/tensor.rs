//! What a checkpoint says of one tensor: name, shape, storage type and where its bytes lie.
//!
//! Owns the two vocabularies of storage types that are not weights here. Refuses to read numbers.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use longrun_array::format::Format;
use safetensors::Dtype;

use super::packed::Packing;

/// A weight in a format that this build can pack.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    /// Its Hugging Face name, or its own where a GGUF name has no counterpart.
    pub name: &'a str,
    /// Dimensions, outermost first; rows of the last dimension are contiguous. `[]` is a scalar.
    pub shape: &'a [usize],
    /// How a row is stored.
    pub format: Format,
    /// The rows, one after another, of no particular alignment: borrowed from the file, or put
    /// together from the parts of a packed weight.
    pub data: Cow<'a, [u8]>,
}

/// Any tensor of a checkpoint, usable as a weight or not.
#[derive(Clone, Copy, Debug)]
pub struct RawTensor<'a> {
    /// As in [`TensorView`].
    pub name: &'a str,
    /// As in [`TensorView`].
    pub shape: &'a [usize],
    /// How its numbers are stored.
    pub dtype: RawDtype,
    /// Its bytes; for an unknown GGUF type all up to the next tensor, for a packed weight the codes
    /// as the file has them.
    pub data: &'a [u8],
    /// Bytes that it takes in its file, with scales and all other parts.
    pub stored: usize,
}

/// A storage type as the file names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawDtype {
    /// One that can be a weight.
    Weight(Format),
    /// Codes, scales and perhaps more in tensors of their own, which can be a weight together.
    Packed(Packing),
    /// Another one of safetensors.
    Safetensors(Dtype),
    /// Another one of GGUF, by its number.
    Ggml(u32),
}

impl RawDtype {
    /// The format, if the bytes of the file can be a weight as they are.
    pub fn format(self) -> Option<Format> {
        match self {
            Self::Weight(format) => Some(format),
            Self::Packed(_) | Self::Safetensors(_) | Self::Ggml(_) => None,
        }
    }

    /// Bytes of a number of a GGUF type that is no weight and has no blocks.
    pub(super) fn plain_bytes(self) -> Option<usize> {
        match self {
            Self::Ggml(24) => Some(1),
            Self::Ggml(25) => Some(2),
            Self::Ggml(26) => Some(4),
            Self::Ggml(27 | 28) => Some(8),
            _ => None,
        }
    }

    /// Whether this can be a weight.
    pub fn is_weight(self) -> bool {
        matches!(self, Self::Weight(_) | Self::Packed(_))
    }

    /// The storage type of safetensors.
    pub(super) fn from_safetensors(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::Weight(Format::F32),
            Dtype::F16 => Self::Weight(Format::F16),
            Dtype::BF16 => Self::Weight(Format::BF16),
            other => Self::Safetensors(other),
        }
    }

    /// The storage type number of GGUF.
    pub(super) fn from_ggml(number: u32) -> Self {
        Self::Weight(match number {
            0 => Format::F32,
            1 => Format::F16,
            2 => Format::Q4_0,
            3 => Format::Q4_1,
            6 => Format::Q5_0,
            7 => Format::Q5_1,
            8 => Format::Q8_0,
            10 => Format::Q2_K,
            11 => Format::Q3_K,
            12 => Format::Q4_K,
            13 => Format::Q5_K,
            14 => Format::Q6_K,
            16 => Format::IQ2_XXS,
            17 => Format::IQ2_XS,
            18 => Format::IQ3_XXS,
            19 => Format::IQ1_S,
            20 => Format::IQ4_NL,
            21 => Format::IQ3_S,
            22 => Format::IQ2_S,
            23 => Format::IQ4_XS,
            29 => Format::IQ1_M,
            30 => Format::BF16,
            34 => Format::TQ1_0,
            35 => Format::TQ2_0,
            39 => Format::MXFP4,
            other => return Self::Ggml(other),
        })
    }

    /// The name that users know: `bf16`, `q4_k`, `affine4/64`, `u32`, `q8_k (GGUF type 15)`.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Weight(format) => format.name(),
            Self::Packed(packing) => packing.to_string().into(),
            Self::Safetensors(dtype) => dtype.to_string().to_lowercase().into(),
            Self::Ggml(number) => match ggml_name(number) {
                Some(name) => format!("{name} (GGUF type {number})").into(),
                None => format!("GGUF type {number}").into(),
            },
        }
    }
}

impl fmt::Display for RawDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Names of the GGUF types that are no weight format here.
fn ggml_name(number: u32) -> Option<&'static str> {
    Some(match number {
        9 => "q8_1",
        15 => "q8_k",
        24 => "i8",
        25 => "i16",
        26 => "i32",
        27 => "i64",
        28 => "f64",
        40 => "nvfp4",
        41 => "q1_0",
        _ => return None,
    })
}

/// A tensor within the file that declares it.
#[derive(Clone, Debug)]
pub(super) struct Located {
    pub(super) shape: Box<[usize]>,
    pub(super) dtype: RawDtype,
    /// Bytes of the file; checked to lie inside it.
    pub(super) range: Range<usize>,
}
