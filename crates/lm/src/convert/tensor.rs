//! One tensor on its way: rows chosen, turned, scaled, rounded or encoded.
//!
//! Owns the numbers. All arithmetic is in f32, rounded once at the end.

use std::borrow::Cow;
use std::num::NonZero;
use std::thread;

use longrun_array::SsmHeads;
use longrun_array::format::Format;
use longrun_array::quant::encode::{self, Float};
use serde_json::Value;

use super::plan::{Part, Stored};
use super::quantize::Mode;
use crate::adapter::Delta;
use crate::checkpoint::{Checkpoint, RawDtype, TensorView};
use crate::config::{Config, Fields};
use crate::error::{Error, Result};
use crate::weights::HostMatrix;

/// The type of the model's plain numbers: what the config says, else that of most of its plain matrices, else bf16.
pub(super) fn main_type(source: &Checkpoint) -> Float {
    let json = source.config();
    let said = [json, &json["text_config"]].into_iter().flat_map(|json| {
        ["dtype", "torch_dtype"].into_iter().filter_map(|name| json[name].as_str())
    });
    let said = said.filter_map(|name| match name {
        "float32" => Some(Float::F32),
        "float16" => Some(Float::F16),
        "bfloat16" => Some(Float::BF16),
        _ => None,
    });
    let matrices = source.raw_tensors().filter(|t| t.shape.len() > 1);
    let seen = matrices.filter_map(|t| match t.dtype {
        RawDtype::Weight(Format::F16) => Some(Float::F16),
        RawDtype::Weight(Format::F32) if source.gguf().is_none() => Some(Float::F32),
        _ => None,
    });
    let has_bf16 = || source.raw_tensors().any(|t| t.dtype == RawDtype::Weight(Format::BF16));
    said.into_iter().next().unwrap_or_else(|| match seen.into_iter().next() {
        Some(float) if !has_bf16() => float,
        _ => Float::BF16,
    })
}

/// What `falcon_h1` multiplies the rows of the weight `path` with: nothing, one number, or one a row. The layout has
/// these factors in its weights.
pub(super) fn falcon_factor(json: &Value, shape: &Config, path: &str) -> Result<Vec<f32>> {
    let f = Fields::of(json);
    let number = |name: &str| Ok::<f32, Error>(f.number(name)?.unwrap_or(1.0) as f32);
    let listed = |name: &str, count: usize| match f.list(name)? {
        None => Ok(vec![1.0; count]),
        Some(list) if list.len() == count => {
            let number = |v: &Value| v.as_f64().map(|x| x as f32);
            let numbers = list.iter().map(number).collect::<Option<Vec<_>>>();
            numbers.ok_or_else(|| Error::file("a factor is no number").at(name))
        }
        Some(list) => Err(Error::file(format!("{} of {count} factors", list.len())).at(name)),
    };
    let Some((module, kind)) = path.rsplit_once('.') else { return Ok(Vec::new()) };
    // A factor on what goes into a projection is none of its bias.
    let (into, out) = match module.rsplit('.').next().unwrap_or(module) {
        "embed_tokens" => (1.0, number("embedding_multiplier")?),
        "lm_head" => (1.0, number("lm_head_multiplier")?),
        "q_proj" | "v_proj" => (number("attention_in_multiplier")?, 1.0),
        "k_proj" => (number("attention_in_multiplier")?, number("key_multiplier")?),
        "o_proj" => (1.0, number("attention_out_multiplier")?),
        "out_proj" => (1.0, number("ssm_out_multiplier")?),
        "gate_proj" => (1.0, listed("mlp_multipliers", 2)?[0]),
        "down_proj" => (1.0, listed("mlp_multipliers", 2)?[1]),
        "in_proj" => {
            let into = if kind == "bias" { 1.0 } else { number("ssm_in_multiplier")? };
            let ssm = shape.ssm.as_ref().ok_or_else(|| Error::file("it has no selective scan"))?;
            let SsmHeads { heads, groups, dim, state } = ssm.heads;
            let sizes = [heads * dim, heads * dim, groups * state, groups * state, heads];
            let factors = listed("ssm_multipliers", 5)?;
            let rows = factors.iter().zip(sizes);
            return Ok(rows.flat_map(|(x, n)| std::iter::repeat_n(into * x, n)).collect());
        }
        _ => return Ok(Vec::new()),
    };
    Ok(vec![if kind == "bias" { out } else { into * out }])
}

/// Matrix `i` of `part`, of its tensor `view`; with what an adapter adds.
///
/// # Errors
/// The tensor has fewer rows than the plan says: it changed under us.
pub(super) fn matrix<'a>(
    view: &'a TensorView<'_>,
    part: &Part,
    i: usize,
    delta: Option<&Delta>,
) -> Result<HostMatrix<'a>> {
    let [_, rows, cols] = part.view;
    let size = view.format.row_bytes(cols).and_then(|row| row.checked_mul(rows));
    let bytes = size.and_then(|size| view.data.get(size.checked_mul(i)?..)?.get(..size));
    let bytes = bytes.ok_or_else(|| {
        Error::unsupported(format!("{} can't be cut into rows of {cols}", view.format.name()))
    })?;
    let mut host = HostMatrix { format: view.format, rows, cols, bytes: Cow::Borrowed(bytes) };
    if let Some(delta) = delta {
        let (mut numbers, all) = (host.numbers(), part.view[0] * rows);
        delta.add_to(&mut numbers, i * rows, [all, cols]).map_err(|e| e.at(view.name))?;
        host = HostMatrix::of_numbers(&numbers, [rows, cols], Format::F32);
    }
    if !part.rows.is_empty() {
        host = host.take_rows(part.rows.iter().copied());
    }
    if part.turned {
        host = host.transposed();
    }
    if !part.keep.is_empty() {
        host = host.take_rows(part.keep.iter().copied());
    }
    Ok(host)
}

/// Rows as they are stored: bytes of the tensor itself, and of its scales and biases.
#[derive(Default)]
pub(super) struct Encoded {
    pub(super) main: Vec<u8>,
    pub(super) scales: Vec<u8>,
    pub(super) biases: Vec<u8>,
}

/// Numbers that one thread takes at a time.
const BLOCK: usize = 1 << 20;

/// Encodes all rows of `host`, on all cores, and hands them to `take` in order.
///
/// # Errors
/// Those of `take`.
pub(super) fn encode(
    host: &HostMatrix<'_>,
    part: &Part,
    stored: Stored,
    mut take: impl FnMut(Encoded) -> Result<()>,
) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let step = (BLOCK / host.cols.max(1)).max(1);
    let starts: Vec<usize> = (0..host.rows).step_by(step).collect();
    let rows = |start: &usize| {
        let end = (*start + step).min(host.rows);
        encode_rows(host, part, stored, *start..end)
    };
    for together in starts.chunks(threads) {
        if let [one] = together {
            take(rows(one))?;
            continue;
        }
        let done: Vec<Encoded> = thread::scope(|scope| {
            let workers: Vec<_> =
                together.iter().map(|start| scope.spawn(move || rows(start))).collect();
            workers.into_iter().map(|w| w.join().unwrap_or_default()).collect()
        });
        done.into_iter().try_for_each(&mut take)?;
    }
    Ok(())
}

fn encode_rows(
    host: &HostMatrix<'_>,
    part: &Part,
    stored: Stored,
    rows: std::ops::Range<usize>,
) -> Encoded {
    let row_bytes = host.bytes.len() / host.rows;
    let mut numbers = vec![0.0; host.cols];
    let mut out = Encoded::default();
    for row in rows {
        host.format.dequantize_row(&host.bytes[row * row_bytes..][..row_bytes], &mut numbers);
        let times = match part.times.as_slice() {
            [] => 1.0,
            [all] => *all,
            each => each.get(row).copied().unwrap_or(1.0),
        };
        if times != 1.0 || part.add != 0.0 {
            numbers.iter_mut().for_each(|x| *x = *x * times + part.add);
        }
        if part.ln {
            numbers.iter_mut().for_each(|x| *x = (-*x).ln());
        }
        match stored {
            Stored::Codes(mode, float) => encode_codes(mode, float, &mut numbers, &mut out),
            Stored::Float(float) => float.put(&numbers, &mut out.main),
            Stored::Raw(_) => {}
        }
    }
    out
}

fn encode_codes(mode: Mode, float: Float, numbers: &mut [f32], out: &mut Encoded) {
    // What is encoded are the numbers of the type that they would be stored in.
    numbers.iter_mut().for_each(|x| *x = float.round(*x));
    let row = match mode {
        Mode::Affine(affine) => {
            let row = encode::affine(affine, float, numbers);
            out.main.extend_from_slice(&row.codes);
            float.put(&row.scales, &mut out.scales);
            float.put(&row.biases, &mut out.biases);
            return;
        }
        Mode::MxFp4 => encode::mxfp4(float, numbers),
        Mode::MxFp8 => encode::mxfp8(float, numbers),
        Mode::NvFp4 => encode::nvfp4(float, numbers),
    };
    out.main.extend_from_slice(&row.codes);
    out.scales.extend_from_slice(&row.scales);
}
