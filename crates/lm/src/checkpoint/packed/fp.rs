//! Weights whose codes are floats of 8 or 4 bits.
//!
//! Owns their names, and telling from a shape which part of a weight shares a scale.

use safetensors::Dtype;

use super::super::tensor::RawDtype;
use super::codes::Order;
use super::find::{Parts, expect, rows_grid, split_last};
use super::numbers::Kind;
use super::{Global, Grid, Mins, Numbers, Packed, Packing, Placed, ints};
use crate::{Error, Result};

/// The rows and columns that share a scale where nothing else is said.
const BLOCK: [usize; 2] = [128, 128];

/// `X` with `X_scale_inv`.
pub(super) fn inverse(parts: &mut Parts<'_>, base: &str) -> Result<Packed> {
    weight(parts, base, "", "_scale_inv")
}

/// `X.weight` with `X.scale`.
pub(super) fn plain(parts: &mut Parts<'_>, base: &str) -> Result<Packed> {
    weight(parts, base, ".weight", ".scale")
}

/// `X.weight` with `X.weight_scale`, perhaps with `X.weight_scale_2`.
pub(super) fn scaled(parts: &mut Parts<'_>, base: &str) -> Result<Packed> {
    weight(parts, base, ".weight", ".weight_scale")
}

fn weight(parts: &mut Parts<'_>, base: &str, codes: &str, scales: &str) -> Result<Packed> {
    let codes = parts.need(base, codes)?;
    let scales = parts.need(base, scales)?;
    let RawDtype::Safetensors(dtype) = codes.located.dtype else {
        return Err(Error::file(format!("it has scales but is stored as {}", codes.located.dtype)));
    };
    let floats = matches!(scales.located.dtype, RawDtype::Weight(_));
    match dtype {
        Dtype::F8_E4M3 => bytes(parts, codes, scales),
        Dtype::I8 if floats => ints::bytes_with_scales(parts, base, codes, scales),
        Dtype::I8 | Dtype::U8 if !floats => {
            let global = parts.take(base, ".weight_scale_2");
            nibbles(codes, scales, global, 1.0)
        }
        other => Err(Error::unsupported(format!("it is stored as {other} with scales"))),
    }
}

/// E4M3 in `codes` with a scale for all, for rows, for blocks, or for groups of a row.
fn bytes(parts: &Parts<'_>, codes: Placed, scales: Placed) -> Result<Packed> {
    let shape = codes.located.shape.clone();
    let &[.., rows, cols] = &*shape else {
        return Err(Error::file(format!("its shape is {shape:?}")));
    };
    let grid = fp8_grid(parts.method.block(), [rows, cols], &scales.located.shape)?;
    let kind = Kind::of_exponents(scales.located.dtype).ok_or_else(|| bad_scales(&scales))?;
    let scales = Numbers { placed: scales, kind };
    let (packing, order) = (Packing::Fp8 { group: grid.block[1] }, Order::Rows);
    let (mins, global, group_of) = (Mins::None, None, None);
    Ok(Packed { shape, packing, codes, order, grid, scales, global, mins, group_of })
}

fn fp8_grid(stated: Option<[usize; 2]>, dims: [usize; 2], scales: &[usize]) -> Result<Grid> {
    let [rows, cols] = dims;
    let size = match *scales {
        [] | [1] => [1, 1],
        [n] if n == rows => [rows, 1],
        [.., down, across] => [down, across],
        _ => [0, 0],
    };
    let grid = |block: [usize; 2]| Grid { size, block, turned: false };
    let covers = |block: &[usize; 2]| {
        block.iter().all(|n| *n > 0) && [rows.div_ceil(block[0]), cols.div_ceil(block[1])] == size
    };
    if size == [1, 1] {
        return Ok(grid(dims));
    }
    if let Some(block) = stated.into_iter().chain([BLOCK]).find(covers) {
        return Ok(grid(block));
    }
    let [down, across] = size;
    if down > 0 && across > 0 && rows.is_multiple_of(down) && cols.is_multiple_of(across) {
        return Ok(grid([rows / down, cols / across]));
    }
    Err(Error::file(format!("scales {scales:?} for a weight {dims:?}")))
}

fn bad_scales(scales: &Placed) -> Error {
    Error::unsupported(format!("its scales are stored as {}", scales.located.dtype))
}

/// Two E2M1 in a byte: 16 with a scale in E4M3, or 32 with an exponent.
/// `global` as in [`Global`].
pub(super) fn nibbles(
    codes: Placed,
    scales: Placed,
    global: Option<Placed>,
    over: f32,
) -> Result<Packed> {
    expect("codes", &codes, &[Dtype::U8, Dtype::I8])?;
    let kind = Kind::of_exponents(scales.located.dtype).ok_or_else(|| bad_scales(&scales))?;
    let group = match kind {
        Kind::E4M3 => 16,
        Kind::E8M0 => 32,
        Kind::Float(_) => return Err(bad_scales(&scales)),
    };
    let global = global.map(|placed| Numbers::floats("global scales", placed)).transpose()?;
    let global = global.map(|numbers| Global { numbers, over });
    let (before, half) = split_last("codes", &codes)?;
    let (same, groups) = split_last("scales", &scales)?;
    if before != same || half.checked_mul(2) != groups.checked_mul(group) {
        let shapes = (&codes.located.shape, &scales.located.shape);
        return Err(Error::file(format!("codes are {:?}, scales {:?}", shapes.0, shapes.1)));
    }
    Ok(fours(before.to_vec(), codes, Numbers { placed: scales, kind }, groups, group, global))
}

/// Sixteen bytes with an exponent each: `X_blocks [.., rows, groups, 16]`, `X_scales`.
pub(super) fn blocks(parts: &mut Parts<'_>, base: &str) -> Result<Packed> {
    let codes = parts.need(base, "_blocks")?;
    let scales = parts.need(base, "_scales")?;
    expect("codes", &codes, &[Dtype::U8])?;
    expect("scales", &scales, &[Dtype::U8])?;
    let (before, len) = split_last("codes", &codes)?;
    if len != 16 || before != &*scales.located.shape {
        let shapes = (&codes.located.shape, &scales.located.shape);
        return Err(Error::file(format!("blocks are {:?}, scales {:?}", shapes.0, shapes.1)));
    }
    let (rows, groups) = split_last("scales", &scales)?;
    let (rows, placed) = (rows.to_vec(), scales.clone());
    Ok(fours(rows, codes, Numbers { placed, kind: Kind::E8M0 }, groups, 32, None))
}

/// `shape` is that of the weight but for its last dimension.
fn fours(
    mut shape: Vec<usize>,
    codes: Placed,
    scales: Numbers,
    groups: usize,
    group: usize,
    global: Option<Global>,
) -> Packed {
    let grid = rows_grid(*shape.last().unwrap_or(&0), groups, group);
    // Where this saturates, the codes are shorter than the shape asks for.
    shape.push(groups.saturating_mul(group));
    let (packing, order, shape) = (Packing::Fp4 { group }, Order::Rows, shape.into());
    Packed { shape, packing, codes, order, grid, scales, global, mins: Mins::None, group_of: None }
}
