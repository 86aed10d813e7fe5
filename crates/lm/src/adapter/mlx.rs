//! The layout of MLX: `LAYER.lora_a [cols, rank]`, `LAYER.lora_b [rank, rows]`, and one rank and scale for all.

use std::collections::BTreeMap;

use safetensors::SafeTensors;
use serde_json::Value;

use super::{Delta, Matrix, delta, layer, number, rank};
use crate::error::{Error, Result};

const CONFIG: &str = "adapter_config.json";

/// # Errors
/// The fine-tune is no LoRA, or a matrix lacks its partner.
pub(super) fn deltas(config: &Value, file: &SafeTensors<'_>) -> Result<BTreeMap<String, Delta>> {
    match config["fine_tune_type"].as_str() {
        Some("lora") => {}
        None if config["fine_tune_type"].is_null() => {}
        other => {
            let kind = other.unwrap_or("?");
            return Err(Error::unsupported(format!("a fine-tune of type {kind:?} is no LoRA"))
                .at("fine_tune_type")
                .at(CONFIG)
                .hint("fuse it with the program that made it"));
        }
    }
    let settings = &config["lora_parameters"];
    let read = || Ok::<_, Error>((rank(settings, "rank")?, number(settings, "scale")?));
    let (rank, scale) = read().map_err(|e| e.at("lora_parameters").at(CONFIG))?;
    let mut deltas = BTreeMap::new();
    for name in file.names() {
        let Some(base) = name.strip_suffix(".lora_a") else {
            match name.strip_suffix(".lora_b") {
                Some(base) if file.tensor(&format!("{base}.lora_a")).is_ok() => continue,
                Some(_) => return Err(Error::file("lora_a is missing beside it").at(name)),
                None => return Err(Error::unsupported("is no part of a LoRA").at(name)),
            }
        };
        let a = Matrix::read(file, name)?.transposed();
        let b = Matrix::read(file, &format!("{base}.lora_b"))?.transposed();
        let one = delta(base, a, b, rank, scale)?;
        if deltas.insert(layer(base).to_owned(), one).is_some() {
            return Err(Error::file("another adapter is for the same layer").at(name));
        }
    }
    Ok(deltas)
}
