//! The weight files: safetensors in shards of less than five gigabytes, and their index.
//!
//! Owns headers and offsets. A header is written before its tensors, from what the plan says of their sizes, and a
//! tensor that turns out otherwise is an error. Each file is on disk before this returns.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use longrun_array::quant::encode::Float;
use serde_json::{Map, Value, json};

use super::plan::{Output, Plan, Stored};
use super::quantize::Mode;
use super::{tensor, unwritable};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Kind, Result};
use crate::weights::Progress;

/// Bytes of tensors in a file, unless one tensor alone is larger.
const SHARD: u64 = 5 << 30;

/// A tensor in a header.
struct Piece {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
}

/// The tensors that `output` is stored in, in the order in which their bytes follow each other.
fn pieces(output: &Output) -> Vec<Piece> {
    let piece = |name: String, dtype: &str, cols: usize, width: usize| {
        let mut shape = output.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last = cols;
        }
        let bytes = shape.iter().product::<usize>() as u64 * width as u64;
        Piece { name, dtype: dtype.to_owned(), shape, bytes }
    };
    let cols = output.shape.last().copied().unwrap_or(1);
    match output.stored {
        Stored::Float(float) => {
            let (dtype, width) = float_type(float);
            vec![piece(output.name.clone(), dtype, cols, width)]
        }
        Stored::Raw(dtype) => {
            let name = format!("{dtype:?}");
            vec![piece(output.name.clone(), &name, cols, dtype.bitsize() / 8)]
        }
        Stored::Codes(mode, float) => {
            let named = |end: &str| format!("{}.{end}", output.base());
            let groups = cols / mode.group();
            let mut all = vec![piece(named("weight"), "U32", cols * mode.bits() / 32, 4)];
            match mode {
                Mode::Affine(_) => {
                    let (dtype, width) = float_type(float);
                    all.push(piece(named("scales"), dtype, groups, width));
                    all.push(piece(named("biases"), dtype, groups, width));
                }
                _ => all.push(piece(named("scales"), "U8", groups, 1)),
            }
            all
        }
    }
}

fn float_type(float: Float) -> (&'static str, usize) {
    match float {
        Float::F32 => ("F32", 4),
        Float::F16 => ("F16", 2),
        Float::BF16 => ("BF16", 2),
    }
}

fn size(output: &Output) -> u64 {
    pieces(output).iter().map(|piece| piece.bytes).sum()
}

/// Writes all outputs of `plan` below `to`. Gives the number of files, and the bytes of all tensors.
///
/// # Errors
/// A tensor of `source` can't be read, or a file can't be written.
pub(super) fn weights(
    source: &Checkpoint,
    plan: &Plan,
    to: &Path,
    progress: Progress<'_>,
) -> Result<(usize, u64)> {
    let shards = shards(plan);
    let (mut map, mut total, mut done) = (BTreeMap::new(), 0, 0);
    for (i, shard) in shards.iter().enumerate() {
        let file = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        let path = to.join(&file);
        let mut out = Out::create(&path, shard).map_err(|e| e.at(&file))?;
        for output in shard {
            write_output(source, output, &mut out)?;
            for piece in pieces(output) {
                total += piece.bytes;
                map.insert(piece.name, file.clone());
            }
            done += 1;
            progress(done, plan.outputs.len());
        }
        out.finish().map_err(|e| e.at(&file))?;
    }
    let metadata = json!({ "total_size": total, "total_parameters": plan.parameters() });
    let index = json!({ "metadata": metadata, "weight_map": map });
    let text = format!("{index:#}\n");
    whole(&to.join("model.safetensors.index.json"), text.as_bytes())?;
    Ok((shards.len(), total))
}

/// The outputs of each file.
fn shards(plan: &Plan) -> Vec<Vec<&Output>> {
    let mut shards: Vec<Vec<&Output>> = Vec::new();
    let mut room = 0;
    for output in &plan.outputs {
        let size = size(output);
        match shards.last_mut() {
            Some(shard) if size <= room => shard.push(output),
            _ => {
                shards.push(vec![output]);
                room = SHARD;
            }
        }
        room = room.saturating_sub(size);
    }
    // Those of an odd length come last, so that the others are aligned.
    shards.iter_mut().for_each(|shard| shard.sort_by_key(|output| !size(output).is_multiple_of(8)));
    shards
}

fn write_output(source: &Checkpoint, output: &Output, out: &mut Out) -> Result<()> {
    let (start, mut scales, mut biases) = (out.written, Vec::new(), Vec::new());
    for part in &output.parts {
        let name = &part.tensor;
        if let Stored::Raw(_) = output.stored {
            let raw = source.raw(name).map_or(&[][..], |raw| raw.data);
            out.put(raw)?;
            continue;
        }
        let view = source.weight(name)?;
        let delta = source.adapter().and_then(|adapter| adapter.delta(name));
        for i in 0..part.view[0] {
            let host = tensor::matrix(&view, part, i, delta).map_err(|e| e.at(name))?;
            tensor::encode(&host, part, output.stored, |encoded| {
                scales.extend_from_slice(&encoded.scales);
                biases.extend_from_slice(&encoded.biases);
                out.put(&encoded.main)
            })?;
        }
        drop(view);
        source.release(name);
    }
    out.put(&scales)?;
    out.put(&biases)?;
    match size(output) == out.written - start {
        true => Ok(()),
        false => {
            let what = format!("{} bytes instead of {}", out.written - start, size(output));
            Err(Error::new(Kind::Bug, what).at(&output.name))
        }
    }
}

/// A weight file in the making.
struct Out {
    file: BufWriter<File>,
    written: u64,
}

impl Out {
    /// Opens the file and writes the header for `outputs`.
    fn create(path: &Path, outputs: &[&Output]) -> Result<Self> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({ "format": "mlx" }));
        let mut offset = 0;
        for piece in outputs.iter().flat_map(|output| pieces(output)) {
            let Piece { name, dtype, shape, bytes } = piece;
            let offsets = [offset, offset + bytes];
            let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
            header.insert(name, entry);
            offset += bytes;
        }
        let mut header = Value::Object(header).to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let file = File::create_new(path).map_err(|e| unwritable(&e))?;
        let mut out = Self { file: BufWriter::with_capacity(1 << 20, file), written: 0 };
        out.put(&(header.len() as u64).to_le_bytes())?;
        out.put(header.as_bytes())?;
        out.written = 0;
        Ok(out)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| unwritable(&e))
    }

    fn finish(self) -> Result<()> {
        let file = self.file.into_inner().map_err(|e| unwritable(e.error()))?;
        file.sync_all().map_err(|e| unwritable(&e))
    }
}

/// Writes the small file `path` and sees it to the disk.
///
/// # Errors
/// It can't be written.
pub(super) fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = File::create_new(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    file.map_err(|e| unwritable(&e).at(path.file_name().unwrap_or_default().display()))
}
