//! Weights whose codes are integers about a zero point: GPTQ, AWQ and compressed-tensors.
//!
//! Owns their names and layouts. `(code - zero) * scale` becomes `scale * code - zero * scale`,
//! which for the few bits of codes and scales is the same number.

use safetensors::Dtype;

use super::super::tensor::RawDtype;
use super::codes::{Order, ZeroOrder};
use super::config::Method;
use super::find::{Parts, expect, rows_grid, split_last};
use super::{Grid, Mins, Numbers, Packed, Packing, Placed, bytes, fp};
use crate::{Error, Result};

/// GPTQ and AWQ: `X.qweight`, `X.scales` and `X.qzeros`, all with columns before rows.
pub(super) fn by_columns(parts: &mut Parts<'_>, base: &str) -> Result<Packed> {
    let codes = parts.need(base, ".qweight")?;
    expect("codes", &codes, &[Dtype::I32, Dtype::U32])?;
    let scales = parts.need(base, ".scales")?;
    let group_of = parts.take(base, ".g_idx");
    let zeros = parts.take(base, ".qzeros");
    let (&[first, second], &[groups, rows]) = (&*codes.located.shape, &*scales.located.shape)
    else {
        return Err(Error::unsupported("its codes or scales are no matrix"));
    };
    let (bits, cols, fits, order, zero_order) = match parts.method {
        Method::Awq => (4, first, second.checked_mul(8) == Some(rows), Order::Awq, ZeroOrder::Awq),
        Method::Gptq { bits, less_one } => {
            let listed = group_of.as_ref().map(|list| list.located.shape.iter().product());
            let bits = gptq_bits(bits, first, listed)?;
            let cols = (first * 32).checked_div(bits).unwrap_or_default();
            (bits, cols, second == rows, Order::Gptq, ZeroOrder::Gptq { less_one })
        }
        _ => return Err(Error::unsupported("config.json names neither GPTQ nor AWQ")),
    };
    if !fits || groups == 0 || cols % groups != 0 {
        let shapes = (&codes.located.shape, &scales.located.shape);
        return Err(Error::file(format!("codes are {:?}, scales {:?}", shapes.0, shapes.1)));
    }
    let mins = match zeros {
        Some(placed) => {
            expect("zero points", &placed, &[Dtype::I32, Dtype::U32])?;
            Mins::Zeros(placed, zero_order)
        }
        None => Mins::Middle(middle(bits)),
    };
    if let Some(list) = &group_of {
        expect("group indices", list, &[Dtype::I32])?;
    }
    let group = cols / groups;
    let grid = Grid { size: [rows, groups], block: [1, group], turned: true };
    let scales = Numbers::floats("scales", scales)?;
    let (shape, packing) = ([rows, cols].into(), Packing::Affine { bits, group });
    Ok(Packed { shape, packing, codes, order, grid, scales, global: None, mins, group_of })
}

/// Bits of a code where `words` hold a row's codes; `listed` is the number of columns, if known.
fn gptq_bits(stated: Option<usize>, words: usize, listed: Option<usize>) -> Result<usize> {
    let all = words.checked_mul(32).ok_or_else(|| Error::file("its size overflows"))?;
    let bits = match listed {
        Some(cols) if cols > 0 && all % cols == 0 => all / cols,
        Some(cols) => return Err(Error::file(format!("{all} bits of codes for {cols} columns"))),
        None => stated.ok_or_else(|| Error::file("config.json does not state its bits"))?,
    };
    match bits {
        2 | 4 | 8 => Ok(bits),
        other => Err(Error::unsupported(format!("GPTQ with {other} bits"))),
    }
}

/// The zero point of a symmetric code.
fn middle(bits: usize) -> f32 {
    (1u32 << (bits - 1)) as f32
}

/// compressed-tensors: `X.weight_packed` with `X.weight_scale`.
pub(super) fn compressed(parts: &mut Parts<'_>, base: &str) -> Result<Packed> {
    let codes = parts.need(base, ".weight_packed")?;
    let scales = parts.need(base, ".weight_scale")?;
    if codes.located.dtype == RawDtype::Safetensors(Dtype::U8) {
        let global = parts.take(base, ".weight_global_scale");
        return fp::nibbles(codes, scales, global, 0.0);
    }
    expect("codes", &codes, &[Dtype::I32])?;
    let shape = stated_shape(parts, base, &codes)?;
    let (rows, cols) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let (_, words) = split_last("codes", &codes)?;
    let bits = words.checked_mul(32).filter(|bits| cols > 0 && bits.is_multiple_of(cols));
    let bits = bits.map_or(0, |bits| bits / cols);
    if !matches!(bits, 1..=6 | 8) {
        return Err(Error::unsupported(format!("{words} words for {cols} columns")));
    }
    let mut packed = integers(codes, scales, shape, bits, Order::Rows)?;
    packed.group_of = parts.take(base, ".weight_g_idx");
    if let Some(list) = &packed.group_of {
        expect("group indices", list, &[Dtype::I32])?;
    }
    if let Some(zeros) = parts.take(base, ".weight_zero_point") {
        packed.mins = zero_points(zeros, &packed.shape)?;
    }
    if packed.shape.len() > 2 && packed.shape[0] == 0 || rows == 0 {
        return Err(Error::file("it is empty"));
    }
    Ok(packed)
}

/// The shape in `X.weight_shape`, which must be that of the codes but for the last dimension.
fn stated_shape(parts: &mut Parts<'_>, base: &str, codes: &Placed) -> Result<Vec<usize>> {
    let placed = parts.need(base, ".weight_shape")?;
    expect("dimensions", &placed, &[Dtype::I64, Dtype::I32])?;
    let size = placed.located.range.len() / placed.located.shape.iter().product::<usize>().max(1);
    let number = |dim: &[u8]| {
        let mut long = [0; 8];
        long[..size].copy_from_slice(dim);
        usize::try_from(i64::from_le_bytes(long)).unwrap_or(0)
    };
    let data = bytes(&placed, parts.shards);
    let dims: Vec<usize> = data.chunks_exact(size.max(1)).take(9).map(number).collect();
    let (before, _) = split_last("codes", codes)?;
    match dims.split_last() {
        Some((_, same)) if same == before => Ok(dims),
        _ => {
            let codes = &codes.located.shape;
            Err(Error::file(format!("its shape is said to be {dims:?}, its codes are {codes:?}")))
        }
    }
}

/// Whole signed bytes: `X.weight` with scales for rows, groups or all.
pub(super) fn bytes_with_scales(
    parts: &mut Parts<'_>,
    base: &str,
    codes: Placed,
    scales: Placed,
) -> Result<Packed> {
    let shape = codes.located.shape.to_vec();
    let mut packed = integers(codes, scales, shape, 8, Order::Signed)?;
    if let Some(zeros) = parts.take(base, ".weight_zero_point") {
        packed.mins = zero_points(zeros, &packed.shape)?;
    }
    Ok(packed)
}

fn integers(
    codes: Placed,
    scales: Placed,
    shape: Vec<usize>,
    bits: usize,
    order: Order,
) -> Result<Packed> {
    let &[.., rows, cols] = &*shape else {
        return Err(Error::file(format!("its shape is {shape:?}")));
    };
    let grid = match *scales.located.shape {
        [] | [1] => Grid { size: [1, 1], block: [rows, cols], turned: false },
        [n] if n == rows => rows_grid(rows, 1, cols),
        [.., n, groups] if n == rows && groups > 0 && cols.is_multiple_of(groups) => {
            rows_grid(rows, groups, cols / groups)
        }
        _ => {
            let scales = &scales.located.shape;
            return Err(Error::file(format!("scales {scales:?} for a weight {shape:?}")));
        }
    };
    let scales = Numbers::floats("scales", scales)?;
    let packing = Packing::Affine { bits, group: grid.block[1] };
    let (mins, shape) = (Mins::Middle(middle(bits)), shape.into());
    Ok(Packed { shape, packing, codes, order, grid, scales, global: None, mins, group_of: None })
}

fn zero_points(zeros: Placed, shape: &[usize]) -> Result<Mins> {
    if shape.len() != 2 {
        return Err(Error::unsupported("zero points of stacked matrices"));
    }
    match zeros.located.dtype {
        RawDtype::Safetensors(Dtype::I8) => Ok(Mins::Zeros(zeros, ZeroOrder::Signed)),
        RawDtype::Safetensors(Dtype::I32) => Ok(Mins::Zeros(zeros, ZeroOrder::Rows)),
        other => Err(Error::unsupported(format!("its zero points are stored as {other}"))),
    }
}
