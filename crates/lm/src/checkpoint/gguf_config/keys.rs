//! The metadata and the shapes of a GGUF file seen through the prefix of its architecture.

use longrun_array::Format;

use super::super::gguf::{Gguf, GgufNumber, GgufNumbers, GgufValue};
use super::super::source::Bytes;
use crate::{Error, Result};

/// The most numbers of a tensor that a config may hold: half a head.
const MOST_NUMBERS: usize = 1 << 12;

/// The metadata seen through the prefix of its architecture.
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) arch: &'a str,
    pub(super) shards: &'a [Bytes],
}

/// The decimal that was meant by a float stored in 32 bits: 1e-6, not 9.999999974752427e-7.
pub(super) fn shortest(wide: f64) -> f64 {
    let narrow = wide as f32;
    if f64::from(narrow) != wide {
        return wide;
    }
    narrow.to_string().parse().unwrap_or(wide)
}

impl Keys<'_> {
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    pub(super) fn has_key(&self, key: &str) -> bool {
        self.gguf.get(&self.key(key)).is_some()
    }

    pub(super) fn float(&self, key: &str) -> Result<Option<f64>> {
        Ok(self.gguf.float(&self.key(key))?.map(shortest))
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.gguf.bool(&self.key(key))
    }

    pub(super) fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.gguf.uint(&self.key(key))
    }

    pub(super) fn need(&self, key: &str) -> Result<u64> {
        self.uint(key)?.ok_or_else(|| self.gguf.missing(&self.key(key)))
    }

    /// A count above 0.
    pub(super) fn size(&self, key: &str) -> Result<u64> {
        match self.need(key)? {
            0 => Err(Error::file("it must be at least 1").at(self.key(key))),
            n => Ok(n),
        }
    }

    fn numbers(&self, key: &str) -> Option<&GgufNumbers> {
        match self.gguf.get(&self.key(key)) {
            Some(GgufValue::Numbers(numbers)) => Some(numbers),
            _ => None,
        }
    }

    /// A count that a file may give once or once a layer; the layers must agree.
    pub(super) fn uniform(&self, key: &str) -> Result<Option<u64>> {
        let Some(numbers) = self.numbers(key) else { return self.uint(key) };
        let mut values = numbers.iter().map(|value| value.as_uint());
        let first = values.next().flatten();
        if numbers.kind() == GgufNumber::F32 || first.is_none() || values.any(|v| v != first) {
            let what = format!("{:?} differs from layer to layer", self.key(key));
            return Err(Error::unsupported(what));
        }
        Ok(first)
    }

    /// A number that a file may give once or once a layer; the layers must agree.
    pub(super) fn uniform_float(&self, key: &str) -> Result<Option<f64>> {
        let Some(numbers) = self.numbers(key) else { return self.float(key) };
        let mut values = numbers.iter().map(|value| value.as_float());
        let first = values.next().flatten();
        if first.is_none() || values.any(|v| v != first) {
            let what = format!("{:?} differs from layer to layer", self.key(key));
            return Err(Error::unsupported(what));
        }
        Ok(first.map(shortest))
    }

    /// A count that a file may give once or once a layer, as a list of at most `layers`.
    pub(super) fn per_layer(&self, key: &str, layers: u64) -> Result<Option<Vec<u64>>> {
        let Some(numbers) = self.numbers(key) else { return Ok(None) };
        let wrong = || {
            let what = format!("{} numbers are not a count for each layer", numbers.len());
            Error::file(what).at(self.key(key))
        };
        if (numbers.len() as u64) < layers {
            return Err(wrong());
        }
        let layers = usize::try_from(layers).unwrap_or(usize::MAX);
        let count = |value: GgufValue| match value {
            GgufValue::Bool(flag) => Some(u64::from(flag)),
            other => other.as_uint(),
        };
        let counts: Option<Vec<u64>> = numbers.iter().take(layers).map(count).collect();
        counts.map(Some).ok_or_else(wrong)
    }

    /// The largest count of a layer.
    pub(super) fn largest(&self, key: &str) -> Result<Option<u64>> {
        match self.numbers(key) {
            Some(numbers) => Ok(numbers.iter().filter_map(|value| value.as_uint()).max()),
            None => self.uint(key),
        }
    }

    /// [`uniform`](Self::uniform) of a key that has to be there.
    pub(super) fn uniform_needed(&self, key: &str) -> Result<u64> {
        self.uniform(key)?.ok_or_else(|| self.gguf.missing(&self.key(key)))
    }

    /// The smallest count of a layer.
    pub(super) fn smallest(&self, key: &str) -> Result<Option<u64>> {
        match self.numbers(key) {
            Some(numbers) => Ok(numbers.iter().filter_map(|value| value.as_uint()).min()),
            None => self.uint(key),
        }
    }

    /// Whether a file says so of each layer: a flag each, or every `n`-th layer not, with `n` from the file or as given.
    pub(super) fn pattern(&self, key: &str, layers: u64, every: u64) -> Result<Vec<bool>> {
        if let Some(flags) = self.per_layer(key, layers)? {
            return Ok(flags.into_iter().map(|flag| flag != 0).collect());
        }
        let every = self.uint(key)?.unwrap_or(every);
        Ok((0..layers).map(|layer| every > 0 && !(layer + 1).is_multiple_of(every)).collect())
    }

    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensors().contains_key(name)
    }

    /// Whether layer `layer` has the tensor `name`.
    pub(super) fn layer_has(&self, layer: u64, name: &str) -> bool {
        self.has_tensor(&format!("blk.{layer}.{name}"))
    }

    /// Rows of the tensor `name` of the first layer that has it.
    pub(super) fn rows_of(&self, name: &str) -> Option<u64> {
        let inside = |full: &str| {
            let inner = full.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            inner.is_some_and(|(_, inner)| inner == name)
        };
        let (_, placed) = self.gguf.tensors().iter().find(|(full, _)| inside(full))?;
        let shape = &placed.located.shape;
        shape.len().checked_sub(2).map(|i| shape[i] as u64)
    }

    /// The numbers of a small tensor in plain floats.
    pub(super) fn numbers_of(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let Some(placed) = self.gguf.tensors().get(name) else { return Ok(None) };
        let located = &placed.located;
        let data = &self.shards[placed.shard][located.range.clone()];
        if located.dtype.format() != Some(Format::F32) || data.len() > 4 * MOST_NUMBERS {
            let what = format!("it is {}, not a few numbers in f32", located.dtype);
            return Err(Error::unsupported(what).at(name));
        }
        let number = |le: &[u8]| f32::from_le_bytes([le[0], le[1], le[2], le[3]]);
        let numbers: Vec<f64> = data.chunks_exact(4).map(|le| f64::from(number(le))).collect();
        match numbers.iter().all(|x| x.is_finite()) {
            true => Ok(Some(numbers)),
            false => Err(Error::file("it has numbers that are not finite").at(name)),
        }
    }

    /// Layers of the text model, bounded by what the file has: each has at least one tensor.
    pub(super) fn layers(&self) -> Result<u64> {
        let all = self.need("block_count")?;
        let tensors = self.gguf.tensors().len();
        if all > tensors as u64 {
            let what = format!("it claims {all} layers with {tensors} tensors in all");
            return Err(Error::file(what).at(self.key("block_count")));
        }
        // The last layers may guess further tokens.
        let guessing = self.uint("nextn_predict_layers")?.unwrap_or(0);
        all.checked_sub(guessing).ok_or_else(|| {
            let what = format!("{guessing} of {all} layers can't be");
            Error::file(what).at(self.key("nextn_predict_layers"))
        })
    }

    /// Rows of the embedding, or what the metadata says if there is none.
    pub(super) fn vocabulary(&self) -> Result<u64> {
        if let Some(embedding) = self.gguf.tensors().get("token_embd.weight")
            && let Some(rows) = embedding.located.shape.first()
        {
            return Ok(*rows as u64);
        }
        self.need("vocab_size")
    }
}
