//! Writes small GGUF and safetensors files, and folders of them that remove themselves.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::fs;
use std::path::{Path, PathBuf};

pub const U8: u32 = 0;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// GGUF tensor types.
pub const T_F32: u32 = 0;
pub const T_F16: u32 = 1;
pub const T_Q8_0: u32 = 8;
pub const T_Q8_K: u32 = 15;
pub const T_IQ3_S: u32 = 21;

#[derive(Clone)]
pub struct GgufTensor {
    pub name: String,
    /// Contiguous dimension first, as the file has it.
    pub dims: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
    /// Written instead of the offset that fits.
    pub offset: Option<u64>,
}

#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub alignment: usize,
    pub pairs: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<GgufTensor>,
}

pub fn text(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend(value.as_bytes());
    bytes
}

/// An array value behind its type.
pub fn array(kind: u32, count: u64, items: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(items);
    bytes
}

impl Gguf {
    pub fn new(arch: &str) -> Self {
        let empty = Self { version: 3, alignment: 32, pairs: Vec::new(), tensors: Vec::new() };
        empty.str("general.architecture", arch)
    }

    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(value);
        self.pairs.push((key.into(), bytes));
        self
    }

    pub fn str(self, key: &str, value: &str) -> Self {
        self.raw(key, STRING, &text(value))
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, F32, &value.to_le_bytes())
    }

    pub fn strings(self, key: &str, values: &[&str]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.raw(key, ARRAY, &array(STRING, values.len() as u64, &items))
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(key, ARRAY, &array(I32, values.len() as u64, &items))
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], kind: u32, data: Vec<u8>) -> Self {
        let (name, dims) = (name.into(), dims.to_vec());
        self.tensors.push(GgufTensor { name, dims, kind, data, offset: None });
        self
    }

    /// A float tensor of zeros.
    pub fn zeros(self, name: &str, dims: &[u64]) -> Self {
        let len = dims.iter().product::<u64>() as usize * 4;
        self.tensor(name, dims, T_F32, vec![0; len])
    }

    pub fn finish(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            bytes.extend(text(key));
            bytes.extend(value);
        }
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            bytes.extend(text(&tensor.name));
            bytes.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(self.alignment), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(data);
        bytes
    }
}

/// Metadata that every known architecture needs, with an embedding of 8 rows of 32.
pub fn model(arch: &str) -> Gguf {
    Gguf::new(arch)
        .u32(&format!("{arch}.block_count"), 1)
        .u32(&format!("{arch}.context_length"), 128)
        .u32(&format!("{arch}.embedding_length"), 32)
        .u32(&format!("{arch}.feed_forward_length"), 64)
        .u32(&format!("{arch}.attention.head_count"), 4)
        .u32(&format!("{arch}.attention.head_count_kv"), 2)
        .f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-6)
        .str("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &["a", "b", "<|im_end|>", "<|endoftext|>", "é", ""])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 3, 3, 1, -1])
        .u32("tokenizer.ggml.eos_token_id", 2)
        .tensor("token_embd.weight", &[32, 8], T_Q8_0, (0..34 * 8).map(|i| i as u8).collect())
        .zeros("output_norm.weight", &[32])
}

/// One tensor of a safetensors file: name, dtype, shape, data.
pub type Part<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

pub fn safetensors(parts: &[Part<'_>]) -> Vec<u8> {
    let mut entries = vec![r#""__metadata__":{"format":"pt"}"#.to_owned()];
    let mut data: Vec<u8> = Vec::new();
    for (name, dtype, shape, bytes) in parts {
        let start = data.len();
        data.extend(bytes);
        let offsets = [start, data.len()];
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{offsets:?}}}"#
        ));
    }
    with_header(&format!("{{{}}}", entries.join(",")), &data)
}

/// A folder in the system's place for temporary files, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("longrun-ckpt-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        fs::write(self.0.join(name), bytes).unwrap();
        self
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
