//! What kernels are given: numbers, and small structures with the layout of their twins in the sources.
//!
//! Owns the layouts. Refuses anything that is not plain data: a kernel reads its arguments byte by byte.

use crate::inputs::{InputLayout, TABLES};
use crate::op::{Glu, Map};

/// Plain data that a kernel takes by value.
///
/// # Safety
/// Without padding that is not initialised, and with the layout that the kernel's type has.
pub(super) unsafe trait Argument: Copy {
    /// Its type in the source of a kernel; of an address `*`.
    const NAME: &'static str;
}

/// Declares structures that kernels take. Each has a twin, in `common.cuh` or in the file of its family, with the same
/// fields in the same order.
macro_rules! arguments {
    ($($(#[$about:meta])* $name:ident = $twin:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$about])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub(super) struct $name {
                $(pub(super) $field: $type,)*
            }

            const _: () = assert!(
                size_of::<$name>() == 0 $(+ size_of::<$type>())*,
                "there is padding"
            );

            // SAFETY: C layout without padding; the fields are plain data.
            unsafe impl $crate::cuda::arguments::Argument for $name {
                const NAME: &'static str = $twin;
            }
        )*
    };
}
pub(super) use arguments;

// SAFETY: plain numbers.
unsafe impl Argument for u32 {
    const NAME: &'static str = "u32";
}
// SAFETY: plain numbers.
unsafe impl Argument for f32 {
    const NAME: &'static str = "float";
}
// SAFETY: plain numbers.
unsafe impl Argument for u64 {
    const NAME: &'static str = "*";
}

arguments! {
    /// The block of step inputs.
    StepInputs = "Step" {
        words: u64,
        tokens: u32,
        rows: u32,
        outputs: u32,
        widths: [u32; TABLES],
        zero: u32,
    }
    /// A tensor in the arena.
    Mat = "Mat" {
        at: u64,
        cols: u32,
        stride: u32,
        outputs: u32,
        zero: u32,
    }
    /// A vector weight, or none.
    Vector = "Vec" {
        at: u64,
        len: u32,
        zero: u32,
    }
    /// A matrix weight, or a stack, row-major.
    Matrix = "Matrix" {
        at: u64,
        row_bytes: u64,
        format: Format,
        experts: u32,
        rows: u32,
        cols: u32,
        zero: u32,
    }
    /// A weight format.
    Format = "Format" {
        kind: u32,
        bits: u32,
        group: u32,
        wide: u32,
        block_len: u32,
        block_bytes: u32,
    }
    /// A state.
    State = "State" {
        at: u64,
        unit: u64,
        units: u32,
        table: u32,
        every: u32,
        stored: u32,
        keys: u32,
        heads: u32,
        dim: u32,
        record: u32,
        inputs: u32,
        zero: u32,
    }
    /// Low-rank matrices.
    LowRank = "LowRank" {
        at: u64,
        slots: u32,
        rank: u32,
        rows: u32,
        cols: u32,
        header: u32,
        zero: u32,
    }
    /// A function of one number.
    MapCode = "Map" {
        kind: u32,
        number: f32,
    }
    /// A function of a gate and a number.
    GluCode = "Glu" {
        kind: u32,
        limit: f32,
        alpha: f32,
        map: MapCode,
    }
}

impl Mat {
    /// A tensor that isn't there.
    pub(super) const NONE: Self = Self { at: 0, cols: 0, stride: 0, outputs: 0, zero: 0 };
}

impl Vector {
    /// A vector that isn't there.
    pub(super) const NONE: Self = Self { at: 0, len: 0, zero: 0 };
}

impl State {
    /// A state that isn't there.
    pub(super) const NONE: Self = Self {
        at: 0,
        unit: 0,
        units: 0,
        table: 0,
        every: 1,
        stored: 0,
        keys: 0,
        heads: 0,
        dim: 0,
        record: 0,
        inputs: 0,
        zero: 0,
    };
}

impl StepInputs {
    pub(super) fn new(words: u64, layout: &InputLayout) -> Self {
        let [tokens, rows, outputs] =
            [layout.tokens, layout.rows, layout.outputs].map(|n| n as u32);
        let widths = layout.widths.map(|n| n as u32);
        Self { words, tokens, rows, outputs, widths, zero: 0 }
    }
}

impl From<Map> for MapCode {
    fn from(f: Map) -> Self {
        let (kind, number) = match f {
            Map::Silu => (0, 0.0),
            Map::GeluTanh => (1, 0.0),
            Map::Sigmoid => (2, 0.0),
            Map::Relu2 => (3, 0.0),
            Map::Scale(s) => (4, s),
            Map::Softcap(c) => (5, c),
        };
        Self { kind, number }
    }
}

impl From<Glu> for GluCode {
    fn from(f: Glu) -> Self {
        let map = MapCode { kind: 0, number: 0.0 };
        match f {
            Glu::Of(f) => Self { kind: 0, limit: 0.0, alpha: 0.0, map: f.into() },
            Glu::Clipped { limit } => Self { kind: 1, limit, alpha: 0.0, map },
            Glu::Shifted { limit, alpha } => Self { kind: 2, limit, alpha, map },
        }
    }
}

/// The arguments of one launch: their bytes, and where each begins.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    words: Vec<u64>,
    starts: Vec<usize>,
    types: Vec<&'static str>,
}

impl Arguments {
    /// One more.
    pub(super) fn push<A: Argument>(&mut self, argument: A) {
        let (bytes, start) = (size_of_val(&argument), self.words.len());
        self.words.resize(start + bytes.div_ceil(8), 0);
        self.starts.push(start);
        self.types.push(A::NAME);
        let from = std::ptr::from_ref(&argument).cast::<u8>();
        // SAFETY: an argument is plain data without padding, and there is room for its bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(from, self.words[start..].as_mut_ptr().cast(), bytes);
        }
    }

    /// The types of the arguments, as the source of a kernel names them.
    pub(super) fn types(&self) -> &[&'static str] {
        &self.types
    }

    /// Where each argument is, as a launch wants it.
    pub(super) fn pointers(&mut self) -> Vec<*mut std::ffi::c_void> {
        let words = self.words.as_mut_ptr();
        // SAFETY: each start is inside of the words.
        self.starts.iter().map(|&start| unsafe { words.add(start) }.cast()).collect()
    }
}
