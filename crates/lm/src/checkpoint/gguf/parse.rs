//! Reads the header of a GGUF file (versions 2 and 3, little-endian) out of bytes that may lie.
//!
//! Owns every check: a count is compared with the bytes left before anything is reserved for it,
//! names are unique, tensors are aligned, inside the file and apart. Refuses to read tensor data.

use std::collections::BTreeMap;

use super::super::Placed;
use super::super::tensor::{Located, RawDtype};
use super::{Gguf, GgufNumber, GgufNumbers, GgufStrings, GgufValue};
use crate::{Error, Result};

const MAGIC: &[u8; 4] = b"GGUF";
/// Tensors start at multiples of this many bytes unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 16;
const MAX_DIMS: u32 = 4;
/// Deepest arrays of arrays.
const MAX_DEPTH: u32 = 4;
/// Least bytes of a key with its value: length, type, one byte.
const MIN_PAIR: u64 = 8 + 4 + 1;
/// Least bytes of a tensor's description: length, dimension count, type, offset.
const MIN_TENSOR: u64 = 8 + 4 + 4 + 8;
/// Type number of text and of arrays.
const STRING: u32 = 8;
const ARRAY: u32 = 9;

impl Gguf {
    /// Reads the header at the start of `file`, the bytes of the whole file.
    ///
    /// # Errors
    /// `File` if the header breaks a rule of the format or describes more than `file` holds,
    /// `Unsupported` for versions other than 2 and 3.
    pub fn parse(file: &[u8]) -> Result<Self> {
        let mut reader = Reader { file, at: 0 };
        let version = read_version(&mut reader)?;
        let tensor_count = reader.count(MIN_TENSOR, "tensors")?;
        let pair_count = reader.count(MIN_PAIR, "metadata keys")?;
        let mut metadata = BTreeMap::new();
        for _ in 0..pair_count {
            let key = reader.str("a metadata key")?;
            let kind = reader.u32()?;
            let value = read_value(&mut reader, kind).map_err(|e| e.at(key))?;
            if metadata.insert(key.to_owned(), value).is_some() {
                return Err(Error::file("the metadata has this key twice").at(key));
            }
        }
        let mut gguf = Self { version, metadata, tensors: BTreeMap::new() };
        let alignment = gguf.alignment()?;
        gguf.tensors = read_tensors(&mut reader, tensor_count, alignment)?;
        Ok(gguf)
    }

    /// Bytes at whose multiples tensors start.
    fn alignment(&self) -> Result<u64> {
        let alignment = self.uint("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
        if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
            return Ok(alignment);
        }
        let what = format!("{alignment} is not a power of two up to {MAX_ALIGNMENT}");
        Err(Error::file(what).at("general.alignment"))
    }
}

/// The unread rest of a file.
struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.file.len() - self.at
    }

    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        let left = self.left();
        let len = usize::try_from(len).ok().filter(|len| *len <= left).ok_or_else(|| {
            let what = format!("{what} needs {len} bytes at byte {}, {left} are left", self.at);
            Error::file(what).hint("the file is truncated or damaged; download it again")
        })?;
        let taken = &self.file[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, "a number")?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A count of things of at least `least` bytes each, all of which must still be to come.
    fn count(&mut self, least: u64, what: &str) -> Result<usize> {
        let count = self.u64()?;
        let left = self.left();
        if count > left as u64 / least {
            let what = format!("the file claims {count} {what}, more than its {left} bytes hold");
            return Err(Error::file(what).hint("the file is truncated or damaged"));
        }
        Ok(count as usize)
    }

    fn str(&mut self, what: &str) -> Result<&'a str> {
        let len = self.u64()?;
        let at = self.at;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes)
            .map_err(|_| Error::file(format!("{what} at byte {at} is not UTF-8")))
    }
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32> {
    if &reader.array::<4>()? != MAGIC {
        return Err(Error::file("the file does not start with GGUF").hint("it is no GGUF file"));
    }
    let version = reader.u32()?;
    match version {
        2 | 3 => Ok(version),
        other if matches!(other.swap_bytes(), 2 | 3) => {
            Err(Error::unsupported("the file is big-endian GGUF")
                .hint("use the little-endian file of the model"))
        }
        other => Err(Error::unsupported(format!("GGUF version {other}, not 2 or 3"))),
    }
}

fn number_kind(kind: u32) -> Option<GgufNumber> {
    Some(match kind {
        0 => GgufNumber::U8,
        1 => GgufNumber::I8,
        2 => GgufNumber::U16,
        3 => GgufNumber::I16,
        4 => GgufNumber::U32,
        5 => GgufNumber::I32,
        6 => GgufNumber::F32,
        7 => GgufNumber::Bool,
        10 => GgufNumber::U64,
        11 => GgufNumber::I64,
        12 => GgufNumber::F64,
        _ => return None,
    })
}

fn read_value(reader: &mut Reader<'_>, kind: u32) -> Result<GgufValue> {
    match kind {
        STRING => Ok(GgufValue::Str(reader.str("text")?.into())),
        ARRAY => read_array(reader, 1),
        _ => {
            let number = number_kind(kind).ok_or_else(|| unknown_type(kind))?;
            Ok(number.value(reader.take(number.bytes() as u64, "a number")?))
        }
    }
}

fn read_array(reader: &mut Reader<'_>, depth: u32) -> Result<GgufValue> {
    let kind = reader.u32()?;
    match kind {
        STRING => read_strings(reader).map(GgufValue::Strings),
        ARRAY if depth == MAX_DEPTH => {
            Err(Error::file(format!("arrays are nested deeper than {MAX_DEPTH}")))
        }
        ARRAY => {
            // An inner array has at least its type and count.
            let count = reader.count(4 + 8, "arrays")?;
            let mut arrays = Vec::with_capacity(count);
            for _ in 0..count {
                arrays.push(read_array(reader, depth + 1)?);
            }
            Ok(GgufValue::Arrays(arrays.into()))
        }
        _ => {
            let kind = number_kind(kind).ok_or_else(|| unknown_type(kind))?;
            let count = reader.count(kind.bytes() as u64, "numbers")?;
            let bytes = reader.take((count * kind.bytes()) as u64, "a list of numbers")?;
            Ok(GgufValue::Numbers(GgufNumbers { kind, bytes: bytes.into() }))
        }
    }
}

fn unknown_type(kind: u32) -> Error {
    Error::file(format!("{kind} is not a type of GGUF metadata"))
}

/// Walks the strings twice, so that both allocations have their final size.
fn read_strings(reader: &mut Reader<'_>) -> Result<GgufStrings> {
    let count = reader.count(8, "strings")?;
    let first = reader.at;
    let mut total = 0;
    for _ in 0..count {
        total += reader.str("text")?.len();
    }
    if u32::try_from(total).is_err() {
        return Err(Error::file(format!("a list of text has {total} bytes, more than 4 GiB")));
    }
    reader.at = first;
    let (mut text, mut ends) = (String::with_capacity(total), Vec::with_capacity(count));
    for _ in 0..count {
        text.push_str(reader.str("text")?);
        ends.push(text.len() as u32);
    }
    Ok(GgufStrings { text: text.into(), ends: ends.into() })
}

/// The tensor descriptions at the reader, their ranges moved to the start of the file.
fn read_tensors(
    reader: &mut Reader<'_>,
    count: usize,
    alignment: u64,
) -> Result<BTreeMap<String, Placed>> {
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        let name = reader.str("a tensor name")?;
        let described = Description::read(reader).map_err(|e| e.at(name))?;
        if !described.offset.is_multiple_of(alignment) {
            let what = format!("its offset {} is no multiple of {alignment}", described.offset);
            return Err(Error::file(what).at(name));
        }
        found.push((name, described));
    }
    let data_start = (reader.at as u64).next_multiple_of(alignment);
    let file_len = reader.file.len() as u64;
    // At one offset, tensors without bytes come first.
    found.sort_by_key(|(_, described)| (described.offset, described.bytes));
    let starts: Vec<u64> =
        found.iter().map(|(_, described)| data_start.saturating_add(described.offset)).collect();
    let mut tensors = BTreeMap::new();
    for (index, (name, described)) in found.into_iter().enumerate() {
        let limit = starts.get(index + 1).copied();
        let located = described.locate(starts[index], limit, file_len).map_err(|e| e.at(name))?;
        if tensors.insert(name.to_owned(), Placed { shard: 0, located }).is_some() {
            return Err(Error::file("two tensors have this name").at(name));
        }
    }
    Ok(tensors)
}

/// What the file says of one tensor.
struct Description {
    shape: Box<[usize]>,
    dtype: RawDtype,
    /// From the start of the tensor data.
    offset: u64,
    /// Size, where the type's is known.
    bytes: Option<u64>,
}

impl Description {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let dims = reader.u32()?;
        if dims > MAX_DIMS {
            return Err(Error::file(format!("it has {dims} dimensions; at most {MAX_DIMS} exist")));
        }
        let mut shape = Vec::with_capacity(dims as usize);
        for _ in 0..dims {
            let dim = reader.u64()?;
            shape.push(usize::try_from(dim).map_err(|_| too_large())?);
        }
        // GGUF counts the contiguous dimension first.
        shape.reverse();
        let dtype = RawDtype::from_ggml(reader.u32()?);
        let offset = reader.u64()?;
        let elements = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
        let elements = elements.ok_or_else(too_large)?;
        let bytes = match dtype.format() {
            None => match dtype.plain_bytes() {
                None => None,
                Some(bytes) => Some(elements.checked_mul(bytes).ok_or_else(too_large)? as u64),
            },
            Some(format) => {
                let cols = shape.last().copied().unwrap_or(1);
                if !cols.is_multiple_of(format.block_len()) {
                    let (name, block) = (format.name(), format.block_len());
                    let what = format!("rows of {cols} are no whole {name} blocks of {block}");
                    return Err(Error::file(what));
                }
                let row = format.row_bytes(cols).ok_or_else(too_large)?;
                let rows = elements.checked_div(cols).unwrap_or(0);
                Some(row.checked_mul(rows).ok_or_else(too_large)? as u64)
            }
        };
        Ok(Self { shape: shape.into(), dtype, offset, bytes })
    }

    /// The range from `start` of the file, which must end before `limit`, the next tensor's start.
    /// A tensor of unknown size reaches to `limit`.
    fn locate(self, start: u64, limit: Option<u64>, file_len: u64) -> Result<Located> {
        let end = match self.bytes {
            Some(bytes) => start.checked_add(bytes).ok_or_else(too_large)?,
            None => limit.unwrap_or(file_len).max(start),
        };
        if end > file_len {
            let what = format!("its data ends at byte {end} of a file of {file_len} bytes");
            return Err(Error::file(what).hint("the file is truncated; download it again"));
        }
        if limit.is_some_and(|limit| limit < end) {
            return Err(Error::file("its data overlaps the next tensor's"));
        }
        Ok(Located { shape: self.shape, dtype: self.dtype, range: start as usize..end as usize })
    }
}

fn too_large() -> Error {
    Error::file("its size overflows").hint("the file is damaged")
}
