//! The header of a safetensors file.
//!
//! Owns reading it without trust: every name once, every range inside the file. Sizes, overflow and
//! the gap-free order are checked by the `safetensors` crate. Refuses to look at tensor data.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::tensor::{Located, RawDtype};
use crate::Error;

/// Largest header, as the format's own reader has it.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes of the header's length, which comes first.
const PREFIX: usize = 8;
/// Most dimensions of a tensor.
const MAX_DIMS: usize = 8;

/// What the header of a file says.
pub(super) struct Parsed {
    /// The tensors by name.
    pub(super) tensors: BTreeMap<String, Located>,
    /// `format` of the metadata is `mlx`.
    pub(super) mlx: bool,
}

/// Reads the header of the file `bytes`.
///
/// # Errors
/// `File` if the header is not what the format says, with the reason.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, Error> {
    let (prefix, rest) =
        bytes.split_first_chunk::<PREFIX>().ok_or_else(|| truncated(PREFIX as u64, bytes.len()))?;
    let header_len = u64::from_le_bytes(*prefix);
    if header_len > MAX_HEADER {
        let what =
            format!("the header claims {header_len} bytes; at most {MAX_HEADER} are allowed");
        return Err(Error::file(what).hint("the file is not safetensors, or damaged"));
    }
    let (header, data) = rest
        .split_at_checked(header_len as usize)
        .ok_or_else(|| truncated(header_len + PREFIX as u64, bytes.len()))?;
    let Header { tensors, mlx } = serde_json::from_slice(header)
        .map_err(|e| Error::file(format!("the header is not valid: {e}")))?;
    let tensors = locate(tensors, PREFIX + header.len(), data.len())?;
    Ok(Parsed { tensors, mlx })
}

fn truncated(need: u64, have: usize) -> Error {
    Error::file(format!("the file is truncated: {need} bytes expected, {have} present"))
        .hint("download it again")
}

/// Checks ranges against `data_len` and shifts them by `data_start`, both in bytes.
fn locate(
    mut tensors: Vec<(String, TensorInfo)>,
    data_start: usize,
    data_len: usize,
) -> Result<BTreeMap<String, Located>, Error> {
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let end = tensors.last().map_or(0, |(_, info)| info.data_offsets.1);
    if end > data_len {
        return Err(truncated(
            (end as u64).saturating_add(data_start as u64),
            data_start + data_len,
        ));
    }
    if end < data_len {
        let what = format!("{} bytes at the end belong to no tensor", data_len - end);
        return Err(Error::file(what).hint("the file is damaged"));
    }
    let mut located = BTreeMap::new();
    for (name, info) in &tensors {
        let (from, to) = info.data_offsets;
        let entry = Located {
            shape: info.shape.clone().into(),
            dtype: RawDtype::from_safetensors(info.dtype),
            // The last end is inside the file; `Metadata::new` shows that the others precede it.
            range: data_start.saturating_add(from)..data_start.saturating_add(to),
        };
        if located.insert(name.clone(), entry).is_some() {
            return Err(Error::file("the header names it twice").at(name));
        }
    }
    Metadata::new(None, tensors)
        .map_err(|e| Error::file(format!("the header contradicts itself: {e}")))?;
    Ok(located)
}

/// A header as it stands.
struct Header {
    /// In file order, names not yet compared.
    tensors: Vec<(String, TensorInfo)>,
    mlx: bool,
}

/// The part of the metadata that matters.
#[derive(serde::Deserialize)]
struct Notes {
    format: Option<Value>,
}

#[derive(serde::Deserialize)]
struct Entry {
    dtype: Dtype,
    shape: Shape,
    data_offsets: (usize, usize),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensor names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header { tensors: Vec::new(), mlx: false };
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        let notes: Option<Notes> = map.next_value()?;
                        let format = notes.and_then(|notes| notes.format);
                        header.mlx |= format.is_some_and(|format| format == "mlx");
                        continue;
                    }
                    let Entry { dtype, shape, data_offsets } = map.next_value()?;
                    let info = TensorInfo { dtype, shape: shape.0, data_offsets };
                    header.tensors.push((name, info));
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Tensors)
    }
}

/// At most [`MAX_DIMS`] dimensions, so that a long list costs nothing.
struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_DIMS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(A::Error::invalid_length(MAX_DIMS + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(Shape(dims))
            }
        }
        deserializer.deserialize_seq(Dims)
    }
}
