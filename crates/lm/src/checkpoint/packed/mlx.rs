//! Weights packed by MLX: `X.weight` in words, `X.scales`, and `X.biases` where codes are integers.
//!
//! Owns telling bits and group from shapes where the config does not name them. A wrong guess would
//! give the weight other columns, so its user would refuse it.

use safetensors::Dtype;

use super::super::tensor::RawDtype;
use super::codes::Order;
use super::config::Mode;
use super::find::{Parts, expect, rows_grid, split_last};
use super::numbers::Kind;
use super::{Global, Mins, Numbers, Packed, Packing};
use crate::{Error, Result};

/// What nvfp4's scale of a whole tensor is divided by: the largest E2M1 times the largest E4M3.
const NVFP4_RANGE: f32 = 6.0 * 448.0;

pub(super) fn weight(parts: &mut Parts<'_>, base: &str) -> Result<Packed> {
    let wanted = parts.method.mlx_mode(base)?;
    let codes = parts.need(base, ".weight")?;
    expect("codes", &codes, &[Dtype::U32])?;
    let scales = parts.need(base, ".scales")?;
    let (before, words) = split_last("codes", &codes)?;
    let (same, groups) = split_last("scales", &scales)?;
    if before != same || groups == 0 {
        let shapes = (&codes.located.shape, &scales.located.shape);
        return Err(Error::file(format!("codes are {:?}, scales {:?}", shapes.0, shapes.1)));
    }
    let bits = words.checked_mul(32).filter(|bits| bits.is_multiple_of(groups));
    let group_bits = bits.ok_or_else(|| Error::file("groups are no whole number of words"))?;
    let group_bits = group_bits / groups;
    let before = before.to_vec();
    let (packing, scales) = match scales.located.dtype {
        RawDtype::Safetensors(Dtype::U8) => {
            let (packing, kind) = of_bytes(group_bits, wanted)?;
            (packing, Numbers { placed: scales, kind })
        }
        _ => (affine(group_bits, wanted)?, Numbers::floats("scales", scales)?),
    };
    let (group, mut shape) = (packing.group(), before);
    let cols = groups.checked_mul(group).ok_or_else(|| Error::file("its size overflows"))?;
    let grid = rows_grid(*shape.last().unwrap_or(&0), groups, group);
    shape.push(cols);
    let mins = match packing {
        Packing::Affine { .. } => {
            Mins::Stored(Numbers::floats("biases", parts.need(base, ".biases")?)?)
        }
        _ => Mins::None,
    };
    let global = match parts.take(base, ".global_scale") {
        Some(placed) if scales.kind == Kind::E4M3 => {
            let numbers = Numbers::floats("global scales", placed)?;
            Some(Global { numbers, over: NVFP4_RANGE })
        }
        Some(_) => return Err(Error::unsupported("a global scale in another mode than nvfp4")),
        None => None,
    };
    let (order, shape) = (Order::Rows, shape.into());
    Ok(Packed { shape, packing, codes, order, grid, scales, global, mins, group_of: None })
}

/// The mode with scales in bytes; each has another number of bits in a group.
fn of_bytes(group_bits: usize, wanted: Option<(bool, Mode<'_>)>) -> Result<(Packing, Kind)> {
    let (name, packing, kind) = match group_bits {
        64 => ("nvfp4", Packing::Fp4 { group: 16 }, Kind::E4M3),
        128 => ("mxfp4", Packing::Fp4 { group: 32 }, Kind::E8M0),
        256 => ("mxfp8", Packing::Fp8 { group: 32 }, Kind::E8M0),
        other => return Err(Error::unsupported(format!("{other} bits share a scale of one byte"))),
    };
    match wanted {
        Some((true, mode)) if mode.name != name => {
            Err(Error::file(format!("config.json says {}, its parts are {name}", mode.name)))
        }
        _ => Ok((packing, kind)),
    }
}

/// The affine mode with so many bits in a group that fits `wanted` best.
fn affine(group_bits: usize, wanted: Option<(bool, Mode<'_>)>) -> Result<Packing> {
    let all = [32, 64, 128].map(|group| (group_bits / group, group));
    let legal =
        |(bits, group): &(usize, usize)| bits * group == group_bits && matches!(bits, 1..=6 | 8);
    let fitting: Vec<_> = all.into_iter().filter(legal).collect();
    let packing = |(bits, group)| Ok(Packing::Affine { bits, group });
    let refuse = |what: String| {
        Err(Error::file(format!("{group_bits} bits of codes share a scale, {what}")))
    };
    let Some((named, mode)) = wanted else {
        return match fitting.as_slice() {
            [] => refuse("which no mode has".into()),
            [one] => packing(*one),
            _ => refuse("and config.json does not say how many bits a code has".into()),
        };
    };
    let agrees = |bits: bool, group: bool| {
        let mut fitting = fitting.iter();
        fitting
            .find(|(b, g)| (!bits || *b as u64 == mode.bits) && (!group || *g as u64 == mode.group))
    };
    if mode.name == "affine"
        && let Some(both) = agrees(true, true)
    {
        return packing(*both);
    }
    if named {
        let Mode { name, bits, group } = mode;
        return refuse(format!("config.json says {name}, {bits} bits, groups of {group}"));
    }
    // Other weights than the settings speak of: those of another width in the usual groups first.
    match agrees(false, true).or_else(|| agrees(true, false)).or(fitting.first()) {
        Some(one) => packing(*one),
        None => refuse("which no mode has".into()),
    }
}
