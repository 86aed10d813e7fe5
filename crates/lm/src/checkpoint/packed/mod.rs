//! Weights that a checkpoint keeps in several tensors: codes, scales, minima or zero points.
//!
//! Owns finding them by what writers call their parts, and joining the parts of one weight into
//! rows of blocks when it is asked for. Refuses parts that do not fit each other, parts that belong
//! to nothing, and whatever would change a number on the way.

mod codes;
mod config;
mod find;
mod fp;
mod ints;
mod mlx;
mod numbers;

use std::borrow::Cow;
use std::fmt;

use longrun_array::format::{Affine, Format, Fp4, Fp8};

use self::codes::{Order, ZeroOrder};
use self::numbers::Kind;
use super::Placed;
use super::source::Bytes;
use crate::{Error, Result};

pub(super) use self::find::gather;

/// How the numbers of a packed weight are kept. Printed as `affine4/64`, `fp4/16`, `fp8/128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// `scale * code + min` with codes of `bits`.
    Affine {
        /// 1, 2, 3, 4, 5, 6 or 8.
        bits: usize,
        /// Numbers that share scale and min: 32, 64 or 128.
        group: usize,
    },
    /// `scale * e2m1`.
    Fp4 {
        /// Numbers that share a scale: 16 or 32.
        group: usize,
    },
    /// `scale * e4m3`.
    Fp8 {
        /// Numbers that share a scale: 32 or 128.
        group: usize,
    },
}

impl Packing {
    /// Bits of a code.
    fn bits(self) -> usize {
        match self {
            Self::Affine { bits, .. } => bits,
            Self::Fp4 { .. } => 4,
            Self::Fp8 { .. } => 8,
        }
    }

    /// Numbers that share a scale.
    fn group(self) -> usize {
        match self {
            Self::Affine { group, .. } | Self::Fp4 { group } | Self::Fp8 { group } => group,
        }
    }

    /// The groups that blocks may have, the best first.
    fn groups(self) -> &'static [usize] {
        match self {
            Self::Affine { .. } => &[128, 64, 32],
            Self::Fp4 { .. } => &[32, 16],
            Self::Fp8 { .. } => &[128, 32],
        }
    }

    fn with_group(self, group: usize) -> Self {
        match self {
            Self::Affine { bits, .. } => Self::Affine { bits, group },
            Self::Fp4 { .. } => Self::Fp4 { group },
            Self::Fp8 { .. } => Self::Fp8 { group },
        }
    }

    /// The format of the blocks; `wide` for scales in `f32`.
    fn format(self, wide: bool) -> Option<Format> {
        match self {
            Self::Affine { bits, group } => Affine::new(bits, group, wide).map(Format::Affine),
            Self::Fp4 { group } => Fp4::new(group, wide).map(Format::Fp4),
            Self::Fp8 { group } => Fp8::new(group).map(Format::Fp8),
        }
    }
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affine { bits, group } => write!(f, "affine{bits}/{group}"),
            Self::Fp4 { group } => write!(f, "fp4/{group}"),
            Self::Fp8 { group } => write!(f, "fp8/{group}"),
        }
    }
}

/// Which number of a grid belongs to which part of each matrix `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
struct Grid {
    /// Numbers for each matrix: down, across.
    size: [usize; 2],
    /// Rows and columns of the part that shares a number; the last parts may be smaller.
    block: [usize; 2],
    /// The file keeps it `[across, down]`.
    turned: bool,
}

impl Grid {
    /// Where the numbers of a row begin, and how far apart those of neighbouring columns are.
    fn row(&self, matrix: usize, row: usize) -> (usize, usize) {
        let [down, across] = self.size;
        let row = row / self.block[0];
        match self.turned {
            false => ((matrix * down + row) * across, 1),
            true => (matrix * down * across + row, down),
        }
    }
}

/// A tensor of scales or minima.
#[derive(Debug)]
struct Numbers {
    placed: Placed,
    kind: Kind,
}

impl Numbers {
    /// The tensor `placed` of stated floats.
    fn floats(what: &str, placed: Placed) -> Result<Self> {
        let dtype = placed.located.dtype;
        let kind = Kind::of(dtype);
        let kind = kind.ok_or_else(|| Error::unsupported(format!("its {what} are {dtype}")))?;
        Ok(Self { placed, kind })
    }

    fn count(&self) -> usize {
        self.placed.located.shape.iter().product()
    }
}

/// A second scale for a whole matrix.
#[derive(Debug)]
struct Global {
    /// One number, or one a matrix.
    numbers: Numbers,
    /// What it is divided by before scales are multiplied with it; 0 if scales are divided by it.
    over: f32,
}

/// Where minima come from.
#[derive(Debug)]
enum Mins {
    /// There are none.
    None,
    /// From the file.
    Stored(Numbers),
    /// `-zero * scale` with the same zero everywhere.
    Middle(f32),
    /// `-zero * scale`.
    Zeros(Placed, ZeroOrder),
}

/// One weight in parts. All sizes were checked against each other by [`Packed::checked`].
#[derive(Debug)]
pub(super) struct Packed {
    /// `[.., rows, cols]` of the weight.
    pub(super) shape: Box<[usize]>,
    pub(super) packing: Packing,
    codes: Placed,
    order: Order,
    grid: Grid,
    scales: Numbers,
    global: Option<Global>,
    mins: Mins,
    /// `I32 [cols]`: the group of each column, which must be the natural one.
    group_of: Option<Placed>,
}

impl Packed {
    /// Matrices, rows and columns of one.
    fn dims(&self) -> [usize; 3] {
        let (matrices, last) = self.shape.split_at(self.shape.len() - 2);
        [matrices.iter().product(), last[0], last[1]]
    }

    /// The same with blocks as large as its grid allows, if every part is as long as it must be.
    fn checked(mut self) -> Result<Self> {
        if self.shape.len() < 2 || self.shape.contains(&0) {
            return Err(Error::file(format!("a packed weight of shape {:?}", self.shape)));
        }
        let numbers = self.shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim));
        let numbers = numbers.and_then(|n| n.checked_mul(self.packing.bits()));
        let bits = numbers.ok_or_else(|| Error::file("its size overflows"))?;
        let [matrices, rows, cols] = self.dims();
        let ([down, across], [tall, wide]) = (self.grid.size, self.grid.block);
        if tall == 0 || wide == 0 || rows.div_ceil(tall) != down || cols.div_ceil(wide) != across {
            let shape = &self.shape;
            return Err(Error::file(format!("{down} x {across} scales for a weight {shape:?}")));
        }
        let span = if across == 1 { cols } else { wide };
        let fits = |group: &&usize| cols.is_multiple_of(**group) && span.is_multiple_of(**group);
        let Some(group) = self.packing.groups().iter().find(fits) else {
            let allowed = self.packing.groups();
            let what = format!("{span} of {cols} columns share a scale, not {allowed:?} or more");
            return Err(Error::unsupported(what));
        };
        self.packing = self.packing.with_group(*group);
        let grid = matrices * down * across;
        expect_bytes("codes", &self.codes, (bits % 8 == 0).then_some(bits / 8))?;
        expect_bytes("scales", &self.scales.placed, self.scales.kind.bytes(grid))?;
        match &self.mins {
            Mins::None | Mins::Middle(_) => {}
            Mins::Stored(mins) => expect_bytes("biases", &mins.placed, mins.kind.bytes(grid))?,
            Mins::Zeros(placed, order) => {
                let bits = self.packing.bits();
                expect_bytes("zero points", placed, order.bytes(bits, down, matrices * across))?;
            }
        }
        if let Some(placed) = &self.group_of {
            expect_bytes("group indices", placed, cols.checked_mul(4))?;
        }
        if let Some(global) = &self.global
            && ![1, matrices].contains(&global.numbers.count())
        {
            return Err(Error::file("its global scale is not one number, nor one a matrix"));
        }
        Ok(self)
    }

    /// The tensors of the file that it is made of.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Placed> {
        let mins = match &self.mins {
            Mins::None | Mins::Middle(_) => None,
            Mins::Stored(Numbers { placed, .. }) | Mins::Zeros(placed, _) => Some(placed),
        };
        let global = self.global.as_ref().map(|global| &global.numbers.placed);
        let first = [&self.codes, &self.scales.placed].into_iter();
        first.chain(mins).chain(global).chain(&self.group_of)
    }

    /// The codes as they lie in the file.
    pub(super) fn codes(&self) -> &Placed {
        &self.codes
    }

    /// The weight as rows of blocks.
    ///
    /// # Errors
    /// `File` for a scale, a minimum or a code that is no number; `Unsupported` for columns whose
    /// groups are mixed.
    pub(super) fn assemble(&self, shards: &[Bytes]) -> Result<(Format, Vec<u8>)> {
        let [matrices, rows, cols] = self.dims();
        self.check_groups(shards, cols)?;
        let (scales, mins) = self.numbers(shards, matrices)?;
        let all = || scales.iter().chain(&mins);
        if let Some(bad) = all().find(|x| !x.is_finite()) {
            return Err(Error::file(format!("a scale or bias is {bad}")).hint("download it again"));
        }
        let wide = all().any(|x| numbers::half(*x).is_none());
        let format = self.packing.format(wide).ok_or_else(|| self.impossible())?;
        let row_bytes = format.row_bytes(cols).ok_or_else(|| self.impossible())?;
        let size = row_bytes.checked_mul(matrices * rows).ok_or_else(|| self.impossible())?;
        let code_bytes = self.packing.group() * self.packing.bits() / 8;
        let row_codes = cols / self.packing.group() * code_bytes;
        let codes = self.order.rows(bytes(&self.codes, shards), matrices * rows, row_codes);
        if matches!(self.packing, Packing::Fp8 { .. }) && codes.iter().any(|c| c & 0x7f == 0x7f) {
            return Err(Error::file("a weight is not a number").hint("download it again"));
        }
        let put = match (self.packing, wide) {
            (Packing::Fp8 { .. }, _) | (_, true) => put_wide,
            (_, false) => put_half,
        };
        let mut out = Vec::with_capacity(size);
        for (i, row) in codes.chunks_exact(row_codes).enumerate() {
            let (start, step) = self.grid.row(i / rows, i % rows);
            for (g, group) in row.chunks_exact(code_bytes).enumerate() {
                let at = start + g * self.packing.group() / self.grid.block[1] * step;
                put(scales[at], &mut out);
                if let Some(min) = mins.get(at) {
                    put(*min, &mut out);
                }
                out.extend_from_slice(group);
            }
        }
        Ok((format, out))
    }

    /// What [`checked`](Self::checked) has shown not to happen.
    fn impossible(&self) -> Error {
        Error::unsupported(format!("{} of shape {:?}", self.packing, self.shape))
    }

    /// Scales and minima, in the order of the grid in the file.
    fn numbers(&self, shards: &[Bytes], matrices: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        let read = |numbers: &Numbers| numbers.kind.read(bytes(&numbers.placed, shards));
        let mut scales = read(&self.scales);
        let [down, across] = self.grid.size;
        if let Some(global) = &self.global {
            let all = read(&global.numbers);
            for (i, scales) in scales.chunks_mut(down * across).enumerate() {
                let global_scale = *all.get(i).unwrap_or(&all[0]);
                for scale in scales {
                    *scale = match global.over {
                        0.0 => *scale / global_scale,
                        over => *scale * (global_scale / over),
                    };
                }
            }
        }
        let product = |(zero, scale): (f32, &f32)| -(zero * scale);
        let mins = match &self.mins {
            Mins::None => Vec::new(),
            Mins::Stored(mins) => read(mins),
            Mins::Middle(zero) => scales.iter().map(|scale| product((*zero, scale))).collect(),
            Mins::Zeros(placed, order) => {
                let data = bytes(placed, shards);
                let zeros = order.read(data, self.packing.bits(), down, matrices * across);
                zeros.into_iter().zip(&scales).map(product).collect()
            }
        };
        Ok((scales, mins))
    }

    /// Refuses columns whose groups are not one after another.
    fn check_groups(&self, shards: &[Bytes], cols: usize) -> Result<()> {
        let Some(placed) = &self.group_of else { return Ok(()) };
        let (groups, _) = bytes(placed, shards).as_chunks::<4>();
        let group = |i: usize| i32::from_le_bytes(groups[i]);
        let natural = |i: usize| usize::try_from(group(i)) == Ok(i / self.grid.block[1]);
        // A writer without reordering may leave the list filled with -1.
        if (0..cols).all(natural) || (0..cols).all(|i| group(i) == -1) {
            return Ok(());
        }
        Err(Error::unsupported("its columns are reordered by activation (desc_act, act-order)")
            .hint("use a checkpoint quantised without reordering"))
    }
}

fn put_wide(x: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&x.to_le_bytes());
}

/// Only for numbers that are halves.
fn put_half(x: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&numbers::half(x).unwrap_or_default());
}

fn bytes<'a>(placed: &Placed, shards: &'a [Bytes]) -> &'a [u8] {
    // Ranges were checked against the file when its header was read.
    &shards[placed.shard][placed.located.range.clone()]
}

fn expect_bytes(what: &str, placed: &Placed, expected: Option<usize>) -> Result<()> {
    let have = placed.located.range.len();
    match expected {
        Some(expected) if expected == have => Ok(()),
        Some(expected) => Err(Error::file(format!("{have} bytes of {what}, {expected} fit"))),
        None => Err(Error::file(format!("its {what} do not fit its shape"))),
    }
}

/// The same numbers with scales in `f32`, if `format` is the narrow form of a packed weight.
/// Weights that are joined must be of one form, and each comes as narrow as its numbers allow.
pub(crate) fn widened(format: Format, data: &[u8]) -> Option<(Format, Cow<'static, [u8]>)> {
    let (wide, halves) = match format {
        Format::Affine(f) if !f.is_wide() => {
            (Format::Affine(Affine::new(f.bits(), f.group(), true)?), 2)
        }
        Format::Fp4(f) if !f.is_wide() => (Format::Fp4(Fp4::new(f.group(), true)?), 1),
        _ => return None,
    };
    let mut out = Vec::with_capacity(data.len() / format.block_bytes() * wide.block_bytes());
    for block in data.chunks_exact(format.block_bytes()) {
        let (scales, codes) = block.split_at(2 * halves);
        Kind::Float(Format::F16).read(scales).into_iter().for_each(|x| put_wide(x, &mut out));
        out.extend_from_slice(codes);
    }
    Some((wide, out.into()))
}
