//! The layout of PEFT: `base_model.model.LAYER.lora_A.weight [rank, cols]`, `lora_B.weight [rows, rank]`, and ranks and
//! scales that patterns may change layer by layer.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use serde_json::Value;

use super::{Delta, Matrix, delta, layer, number, rank, shown};
use crate::error::{Error, Result};

const CONFIG: &str = "adapter_config.json";
const PREFIX: &str = "base_model.model.";

/// Settings of kinds of adapters that are more than a product beside a layer. They must be empty, or off.
const REFUSED: [&str; 12] = [
    "alora_invocation_tokens",
    "arrow_config",
    "fan_in_fan_out",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
];

/// # Errors
/// The adapter is no plain LoRA, or a matrix lacks its partner.
pub(super) fn deltas(config: &Value, file: &SafeTensors<'_>) -> Result<BTreeMap<String, Delta>> {
    let settings = Settings::new(config).map_err(|e| e.at(CONFIG))?;
    let mut deltas = BTreeMap::new();
    for name in file.names() {
        let refuse = |what: &str| Err(Error::unsupported(what).at(name));
        let Some(base) = name.strip_suffix(".lora_A.weight") else {
            match name.strip_suffix(".lora_B.weight") {
                Some(base) if file.tensor(&format!("{base}.lora_A.weight")).is_ok() => continue,
                Some(_) => return Err(Error::file("lora_A is missing beside it").at(name)),
                None if name.contains("lora_embedding_") => {
                    return refuse("an adapter of an embedding is not supported");
                }
                None if name.contains("lora_magnitude_vector") => return refuse("is of a DoRA"),
                None => return refuse("is no part of a LoRA"),
            }
        };
        let a = Matrix::read(file, name)?;
        let b = Matrix::read(file, &format!("{base}.lora_B.weight"))?;
        let path = base.strip_prefix(PREFIX).unwrap_or(base);
        let (rank, scale) = settings.of(path).map_err(|e| e.at(CONFIG))?;
        let one = delta(path, a, b, rank, scale)?;
        if deltas.insert(layer(path).to_owned(), one).is_some() {
            return Err(Error::file("another adapter is for the same layer").at(name));
        }
    }
    Ok(deltas)
}

struct Settings<'a> {
    rank: usize,
    alpha: f64,
    by_root: bool,
    ranks: &'a Value,
    alphas: &'a Value,
}

impl<'a> Settings<'a> {
    fn new(config: &'a Value) -> Result<Self> {
        match config["peft_type"].as_str() {
            Some("LORA") => {}
            other => {
                let kind = other.unwrap_or("?");
                let what = format!("an adapter of type {kind:?} is not supported");
                return Err(Error::unsupported(what).at("peft_type"));
            }
        }
        let empty = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if let Some(name) = REFUSED.iter().find(|name| !empty(&config[**name])) {
            let what = format!("{} is not supported", shown(&config[*name]));
            return Err(Error::unsupported(what).at(name).hint("merge it with PEFT first"));
        }
        if !matches!(config["bias"].as_str(), None | Some("none")) {
            let what = format!("biases are trained: {}", shown(&config["bias"]));
            return Err(Error::unsupported(what).at("bias").hint("merge it with PEFT first"));
        }
        Ok(Self {
            rank: rank(config, "r")?,
            alpha: number(config, "lora_alpha")?,
            by_root: config["use_rslora"] == true,
            ranks: &config["rank_pattern"],
            alphas: &config["alpha_pattern"],
        })
    }

    /// Rank and scale of the layer `path`.
    fn of(&self, path: &str) -> Result<(usize, f64)> {
        let rank = match find(self.ranks, path).map_err(|e| e.at("rank_pattern"))? {
            Some((patterns, key)) => rank(patterns, key).map_err(|e| e.at("rank_pattern"))?,
            None => self.rank,
        };
        let alpha = match find(self.alphas, path).map_err(|e| e.at("alpha_pattern"))? {
            Some((patterns, key)) => number(patterns, key).map_err(|e| e.at("alpha_pattern"))?,
            None => self.alpha,
        };
        let by = if self.by_root { (rank as f64).sqrt() } else { rank as f64 };
        Ok((rank, alpha / by))
    }
}

/// The first pattern that `path` ends with. A pattern is a name or its end; expressions are refused.
fn find<'a>(patterns: &'a Value, path: &str) -> Result<Option<(&'a Value, &'a str)>> {
    let map = match patterns {
        Value::Null => return Ok(None),
        Value::Object(map) => map,
        other => return Err(Error::file(format!("{} is no object", shown(other)))),
    };
    for key in map.keys() {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !key.chars().all(plain) {
            return Err(Error::unsupported(format!("{key:?} is more than a name")));
        }
        let before = path.strip_suffix(key.as_str());
        if before.is_some_and(|before| before.is_empty() || before.ends_with('.')) {
            return Ok(Some((patterns, key)));
        }
    }
    Ok(None)
}
