//! What a config says of an indexer that chooses pools of positions: their size, and which layers share a choice.

use serde_json::Value;

use super::Mixer;
use super::fields::Fields;
use super::mla::IndexerConfig;
use crate::error::{Error, Result};

/// An indexer over pools of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KPoolConfig {
    /// Positions of a pool.
    pub every: usize,
    /// Pools that are chosen at most.
    pub top: usize,
    /// Whether each layer takes the choice of the last layer that made one.
    pub shares: Vec<bool>,
}

pub(super) fn kpool(
    f: &Fields<'_>,
    indexer: IndexerConfig,
    mixers: &[Mixer],
) -> Result<KPoolConfig> {
    let every = f.size_or("index_kpool", 16)?;
    if !indexer.top.is_multiple_of(every) {
        let what = format!("{} positions in pools of {every}", indexer.top);
        return Err(Error::file(what).at("index_topk"));
    }
    if f.count("qk_rope_head_dim")?.is_some_and(|n| n > 0) {
        let what = "rotated columns are not known here";
        return Err(Error::unsupported(what).at("qk_rope_head_dim"));
    }
    if !f.bool_or("index_kpool_always_select_tail", true)? {
        let what = "positions after the last whole pool are always seen here";
        return Err(Error::unsupported(what).at("index_kpool_always_select_tail"));
    }
    let shares = shares(f, mixers.len())?;
    let attends = |(m, shares): (&Mixer, &bool)| (*m == Mixer::Full).then_some(*shares);
    if mixers.iter().zip(&shares).find_map(attends) == Some(true) {
        let what = "the first layer that attends has nobody to share with";
        return Err(Error::file(what).at("indexer_types"));
    }
    Ok(KPoolConfig { every, top: indexer.top / every, shares })
}

/// A list of words or letters, or every so many layers.
fn shares(f: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    let word = |word: &str, at: &str| match word {
        "full" | "F" => Ok(false),
        "shared" | "S" => Ok(true),
        _ => Err(Error::unsupported(format!("{word:?} is not known here")).at(at)),
    };
    let words = |v: &Value, at: &str| match v {
        Value::String(s) => s.chars().map(|c| word(c.encode_utf8(&mut [0; 4]), at)).collect(),
        Value::Array(list) => list.iter().map(|v| word(v.as_str().unwrap_or("?"), at)).collect(),
        other => Err(Fields::wrong(at, other, "a list")),
    };
    for at in ["indexer_types", "index_topk_pattern"] {
        let Some(value) = f.get(at) else { continue };
        let shares: Vec<bool> = words(value, at)?;
        if shares.len() < layers {
            let what = format!("{} entries for {layers} layers", shares.len());
            return Err(Error::file(what).at(at));
        }
        return Ok(shares[..layers].to_vec());
    }
    let freq = f.count("index_topk_freq")?.unwrap_or(1).max(1);
    let offset = f.count("index_skip_topk_offset")?.unwrap_or(2);
    let shares = |i: usize| !(i + 1).saturating_sub(offset).is_multiple_of(freq);
    Ok((0..layers).map(shares).collect())
}
