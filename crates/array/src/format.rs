//! How the numbers of a weight are stored: the closed list of formats and their block geometry.
//!
//! Owns sizes and names. What the bytes of a block mean is in `quant.rs`; how a kernel likes them
//! is in `panel.rs`.
//!
//! Two sorts of formats: those that files have as they are (plain floats, and the blocks of GGUF),
//! and three families with parameters, [`Affine`], [`Fp4`] and [`Fp8`], into whose blocks a loader
//! puts the scales and codes that other checkpoints keep in tensors of their own.

use std::borrow::Cow;

/// A storage format of a weight row.
///
/// A row is a sequence of blocks of [`block_len`](Self::block_len) numbers in
/// [`block_bytes`](Self::block_bytes) bytes each. Those without parameters but for the floats are
/// GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    Affine(Affine),
    Fp4(Fp4),
    Fp8(Fp8),
}

/// Groups with a scale and a min: a number is `scale * code + min`, rounded to `f32` after the
/// product and after the sum.
///
/// A block is a group: the scale, the min (both `f16`, or both `f32` in the wide form), then
/// `group * bits / 8` bytes of codes, a little-endian stream of `bits` each from the lowest bit on.
/// Scales may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    bits: u8,
    group: u8,
    wide: bool,
}

impl Affine {
    /// Codes of `bits` (1, 2, 3, 4, 5, 6 or 8) in groups of 32, 64 or 128; `wide` for scales and
    /// mins in `f32`. `None` for other numbers.
    pub const fn new(bits: usize, group: usize, wide: bool) -> Option<Self> {
        match (bits, group) {
            (1..=6 | 8, 32 | 64 | 128) => Some(Self { bits: bits as u8, group: group as u8, wide }),
            _ => None,
        }
    }

    /// Bits of a code.
    pub const fn bits(self) -> usize {
        self.bits as usize
    }

    /// Numbers that share a scale and a min.
    pub const fn group(self) -> usize {
        self.group as usize
    }

    /// Whether scale and min are `f32`.
    pub const fn is_wide(self) -> bool {
        self.wide
    }
}

/// Groups of E2M1 codes with a scale: a number is `scale * e2m1`.
///
/// A block is a group: the scale (`f16`, or `f32` in the wide form), then a nibble for each number,
/// the low one of a byte first. A nibble's bit 3 is the sign, the others name 0, 0.5, 1, 1.5, 2, 3,
/// 4 and 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp4 {
    group: u8,
    wide: bool,
}

impl Fp4 {
    /// Groups of 16 or 32; `wide` for scales in `f32`. `None` for other groups.
    pub const fn new(group: usize, wide: bool) -> Option<Self> {
        match group {
            16 | 32 => Some(Self { group: group as u8, wide }),
            _ => None,
        }
    }

    /// Numbers that share a scale.
    pub const fn group(self) -> usize {
        self.group as usize
    }

    /// Whether the scale is `f32`.
    pub const fn is_wide(self) -> bool {
        self.wide
    }
}

/// Groups of E4M3 codes with a scale: a number is `scale * e4m3`.
///
/// A block is a group: the scale (`f32`), then a byte for each number: sign, four bits of exponent
/// with bias 7, three of mantissa. There are no infinities, and the codes `0x7f` and `0xff`, which
/// encoders keep for NaN, are read as the 480 and -480 that their bits say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fp8 {
    group: u8,
}

impl Fp8 {
    /// Groups of 32 or 128. `None` for others.
    pub const fn new(group: usize) -> Option<Self> {
        match group {
            32 | 128 => Some(Self { group: group as u8 }),
            _ => None,
        }
    }

    /// Numbers that share a scale.
    pub const fn group(self) -> usize {
        self.group as usize
    }
}

const fn affine(bits: usize, group: usize, wide: bool) -> Format {
    Format::Affine(Affine::new(bits, group, wide).expect("legal parameters"))
}

const fn fp4(group: usize, wide: bool) -> Format {
    Format::Fp4(Fp4::new(group, wide).expect("a legal group"))
}

const fn fp8(group: usize) -> Format {
    Format::Fp8(Fp8::new(group).expect("a legal group"))
}

impl Format {
    /// Every format without parameters and members of each family that differ in all that kernels
    /// see: what tests walk.
    pub const ALL: [Self; 41] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ1_S,
        Self::IQ1_M,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ2_S,
        Self::IQ3_XXS,
        Self::IQ3_S,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::MXFP4,
        affine(1, 64, false),
        affine(2, 32, true),
        affine(2, 128, false),
        affine(3, 64, false),
        affine(4, 32, false),
        affine(4, 64, false),
        affine(4, 128, true),
        affine(5, 64, true),
        affine(6, 64, false),
        affine(8, 128, false),
        fp4(16, false),
        fp4(16, true),
        fp4(32, false),
        fp4(32, true),
        fp8(32),
        fp8(128),
    ];

    /// Numbers in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::IQ4_NL | Self::MXFP4 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
            Self::IQ1_S | Self::IQ1_M | Self::IQ2_XXS | Self::IQ2_XS | Self::IQ2_S => 256,
            Self::IQ3_XXS | Self::IQ3_S | Self::IQ4_XS | Self::TQ1_0 | Self::TQ2_0 => 256,
            Self::Affine(f) => f.group(),
            Self::Fp4(f) => f.group(),
            Self::Fp8(f) => f.group(),
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ1_S => 50,
            Self::IQ1_M => 56,
            Self::IQ2_XXS | Self::TQ2_0 => 66,
            Self::IQ2_XS => 74,
            Self::IQ2_S => 82,
            Self::IQ3_XXS => 98,
            Self::IQ3_S => 110,
            Self::IQ4_XS => 136,
            Self::TQ1_0 => 54,
            Self::MXFP4 => 17,
            Self::Affine(f) => (if f.wide { 8 } else { 4 }) + f.group() * f.bits() / 8,
            Self::Fp4(f) => (if f.wide { 4 } else { 2 }) + f.group() / 2,
            Self::Fp8(f) => 4 + f.group(),
        }
    }

    /// Bytes of a row of `cols` numbers, or `None` if `cols` is not a whole number of blocks or the
    /// size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Whether the format is a plain float, so that its numbers need no scale.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether a product with such weights may round its activations to 8 bits: those whose codes
    /// are integers do. The plain floats and [`Fp8`] take `f32` activations always.
    pub const fn quantises_activations(self) -> bool {
        !self.is_float() && !matches!(self, Self::Fp8(_))
    }

    /// The name that users know: `bf16`, `q4_k`, and of the families with their parameters
    /// `affine4/64`, `fp4/16`, `fp8/128`. A wide form says so: `affine4/64 wide`.
    pub fn name(self) -> Cow<'static, str> {
        let wide = |wide: bool| if wide { " wide" } else { "" };
        Cow::Borrowed(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2_K => "q2_k",
            Self::Q3_K => "q3_k",
            Self::Q4_K => "q4_k",
            Self::Q5_K => "q5_k",
            Self::Q6_K => "q6_k",
            Self::IQ1_S => "iq1_s",
            Self::IQ1_M => "iq1_m",
            Self::IQ2_XXS => "iq2_xxs",
            Self::IQ2_XS => "iq2_xs",
            Self::IQ2_S => "iq2_s",
            Self::IQ3_XXS => "iq3_xxs",
            Self::IQ3_S => "iq3_s",
            Self::IQ4_NL => "iq4_nl",
            Self::IQ4_XS => "iq4_xs",
            Self::TQ1_0 => "tq1_0",
            Self::TQ2_0 => "tq2_0",
            Self::MXFP4 => "mxfp4",
            Self::Affine(f) => {
                return format!("affine{}/{}{}", f.bits, f.group, wide(f.wide)).into();
            }
            Self::Fp4(f) => return format!("fp4/{}{}", f.group, wide(f.wide)).into(),
            Self::Fp8(f) => return format!("fp8/{}", f.group).into(),
        })
    }
}
