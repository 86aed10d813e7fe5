//! The contents of a GGUF file: typed metadata and where its tensors lie.
//!
//! Owns the metadata's values and their typed access. How the bytes are read without trust is in
//! `gguf/parse.rs`; what the names mean is in `gguf_names.rs` and `gguf_config/`;
//! models in several files are in `gguf_parts.rs`.

mod parse;

use std::collections::BTreeMap;

use super::Placed;
use crate::{Error, Result};

/// The header of a GGUF file, copied out of it.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    metadata: BTreeMap<String, GgufValue>,
    tensors: BTreeMap<String, Placed>,
}

/// A metadata value; integers and floats of all widths are widened.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// `u8` to `u64`.
    Uint(u64),
    /// `i8` to `i64`.
    Int(i64),
    /// `f32`, `f64`.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// Text.
    Str(Box<str>),
    /// An array of text.
    Strings(GgufStrings),
    /// An array of numbers or flags.
    Numbers(GgufNumbers),
    /// An array of arrays.
    Arrays(Box<[GgufValue]>),
}

/// Many strings in one allocation: a vocabulary, its merges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GgufStrings {
    text: Box<str>,
    ends: Box<[u32]>,
}

impl GgufStrings {
    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `index`, or `None` behind the last.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        self.text.get(start..end)
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).unwrap_or_default())
    }
}

/// The element type of a [`GgufNumbers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum GgufNumber {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl GgufNumber {
    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The value of the element in `le`, little-endian and of the element's size.
    fn value(self, le: &[u8]) -> GgufValue {
        let mut wide = [0; 8];
        wide[..le.len()].copy_from_slice(le);
        let bits = u64::from_le_bytes(wide);
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => GgufValue::Uint(bits),
            Self::I8 => GgufValue::Int(i64::from(bits as i8)),
            Self::I16 => GgufValue::Int(i64::from(bits as i16)),
            Self::I32 => GgufValue::Int(i64::from(bits as i32)),
            Self::I64 => GgufValue::Int(bits as i64),
            Self::F32 => GgufValue::Float(f64::from(f32::from_bits(bits as u32))),
            Self::F64 => GgufValue::Float(f64::from_bits(bits)),
            Self::Bool => GgufValue::Bool(bits != 0),
        }
    }
}

/// Many numbers in the bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufNumbers {
    kind: GgufNumber,
    bytes: Box<[u8]>,
}

impl GgufNumbers {
    /// The element type.
    pub fn kind(&self) -> GgufNumber {
        self.kind
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.kind.bytes()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The elements in order, widened.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = GgufValue> {
        self.bytes.chunks_exact(self.kind.bytes()).map(|le| self.kind.value(le))
    }
}

impl GgufValue {
    /// As an unsigned integer, if it is an integer that is not negative.
    pub fn as_uint(&self) -> Option<u64> {
        match *self {
            Self::Uint(value) => Some(value),
            Self::Int(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// As an integer, if it is one that fits.
    pub fn as_int(&self) -> Option<i64> {
        match *self {
            Self::Uint(value) => i64::try_from(value).ok(),
            Self::Int(value) => Some(value),
            _ => None,
        }
    }

    /// As a float, if it is a finite number of any kind.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::Uint(value) => Some(value as f64),
            Self::Int(value) => Some(value as f64),
            Self::Float(value) => value.is_finite().then_some(value),
            _ => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Uint(_) | Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a flag",
            Self::Str(_) => "text",
            Self::Strings(_) => "a list of text",
            Self::Numbers(_) => "a list of numbers",
            Self::Arrays(_) => "a list of lists",
        }
    }
}

/// Typed access: `None` if the key is absent, an error naming the key if its type is another.
impl Gguf {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.get(key)
    }

    /// An integer that is not negative.
    pub fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a count", GgufValue::as_uint)
    }

    /// A finite number.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number", GgufValue::as_float)
    }

    /// A flag.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a flag", |value| match value {
            GgufValue::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// Text.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "text", |value| match value {
            GgufValue::Str(text) => Some(&**text),
            _ => None,
        })
    }

    /// A list of text.
    pub fn strings(&self, key: &str) -> Result<Option<&GgufStrings>> {
        self.typed(key, "a list of text", |value| match value {
            GgufValue::Strings(strings) => Some(strings),
            _ => None,
        })
    }

    /// A list of floats.
    pub fn floats(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = f64>>> {
        let numbers = self.typed(key, "a list of floats", |value| match value {
            GgufValue::Numbers(n) if matches!(n.kind, GgufNumber::F32 | GgufNumber::F64) => Some(n),
            _ => None,
        })?;
        Ok(numbers.map(|n| n.iter().map(|v| if let GgufValue::Float(f) = v { f } else { 0.0 })))
    }

    /// A list of integers; one above `i64::MAX` reads as that.
    pub fn ints(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = i64>>> {
        use GgufNumber::{Bool, F32, F64};
        let numbers = self.typed(key, "a list of integers", |value| match value {
            GgufValue::Numbers(n) if !matches!(n.kind, F32 | F64 | Bool) => Some(n),
            _ => None,
        })?;
        Ok(numbers.map(|n| n.iter().map(|value| value.as_int().unwrap_or(i64::MAX))))
    }

    /// The error for a key that has to be there.
    pub fn missing(&self, key: &str) -> Error {
        Error::file(format!("the GGUF metadata lacks the key {key:?}"))
            .hint("convert the model again with a current converter")
    }

    /// The version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The keys and values, sorted by key.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &GgufValue)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The tensors under their GGUF names.
    pub(super) fn tensors(&self) -> &BTreeMap<String, Placed> {
        &self.tensors
    }

    /// Adds the tensors of another file of the same model, which is `shard`.
    pub(super) fn join(&mut self, part: Self, shard: usize) -> Result<()> {
        for (name, placed) in part.tensors {
            if self.tensors.contains_key(&name) {
                return Err(Error::file("another part has a tensor of this name").at(name));
            }
            self.tensors.insert(name, Placed { shard, ..placed });
        }
        Ok(())
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        want: &str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            let kind = value.kind();
            Error::file(format!("the GGUF metadata key {key:?} is {kind} that is not {want}"))
        })
    }
}
