//! What `config.json` says about how weights were packed.
//!
//! Owns naming the method and refusing those that are not understood. Shapes of weights are checked
//! by whoever finds them.

use serde_json::{Map, Value};

use crate::{Error, Result};

/// Containers of compressed-tensors that are read; which one a weight is in, its parts show.
const COMPRESSED: [&str; 9] = [
    "dense",
    "pack-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
];

/// Who packed the weights.
#[derive(Clone, Copy, Debug)]
pub(super) enum Method<'a> {
    /// Nobody, as far as the config knows.
    None,
    /// MLX: the settings of all weights, and of some by name.
    Mlx(&'a Map<String, Value>),
    /// One whose parts say all there is to know; `[rows, cols]` that share a scale, if stated.
    Parts { block: Option<[usize; 2]> },
    /// AutoAWQ.
    Awq,
    /// GPTQ: bits of a code, and whether zero points are stored less 1.
    Gptq { bits: Option<usize>, less_one: bool },
}

/// How MLX packs a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode<'a> {
    pub(super) name: &'a str,
    pub(super) bits: u64,
    pub(super) group: u64,
}

impl<'a> Method<'a> {
    /// The method that `config` names.
    ///
    /// # Errors
    /// `Unsupported` for one that is not known, `File` for settings that are no object.
    pub(super) fn of(config: &'a Value) -> Result<Self> {
        for config in [config, &config["text_config"]] {
            if let Some(settings) = object(config, "quantization")? {
                return Ok(Self::Mlx(settings));
            }
        }
        for config in [config, &config["text_config"]] {
            if let Some(settings) = object(config, "quantization_config")? {
                return Self::named(settings).map_err(|e| e.at("quantization_config"));
            }
        }
        Ok(Self::None)
    }

    fn named(settings: &'a Map<String, Value>) -> Result<Self> {
        let text = |key: &str| settings.get(key).and_then(Value::as_str);
        let Some(method) = text("quant_method") else {
            // MLX copies its settings to this place too.
            if settings.contains_key("bits") && settings.contains_key("group_size") {
                return Ok(Self::Mlx(settings));
            }
            return Err(Error::unsupported("it names no quant_method"));
        };
        let refuse = |what: &str| Err(Error::unsupported(format!("{method}: {what}")));
        match method {
            "mxfp4" | "mxfp8" | "fbgemm_fp8" => Ok(Self::Parts { block: None }),
            "fp8" => Ok(Self::Parts { block: pair(settings.get("weight_block_size")) }),
            "modelopt" => match text("quant_algo") {
                Some("FP8" | "NVFP4") => Ok(Self::Parts { block: None }),
                other => refuse(&format!("quant_algo {}", other.unwrap_or("is missing"))),
            },
            "compressed-tensors" => compressed(settings),
            "awq" => match (text("version"), bits(settings)) {
                (None | Some("gemm" | "GEMM"), Some(4) | None) => Ok(Self::Awq),
                (version, bits) => refuse(&format!("version {version:?} with bits {bits:?}")),
            },
            "gptq" => {
                if settings.get("is_marlin_format").and_then(Value::as_bool) == Some(true) {
                    return refuse("repacked for one kernel (marlin)");
                }
                let less_one = match text("checkpoint_format").or_else(|| text("format")) {
                    None | Some("gptq") => true,
                    Some("gptq_v2") => false,
                    Some(other) => return refuse(&format!("checkpoint_format {other}")),
                };
                Ok(Self::Gptq { bits: bits(settings), less_one })
            }
            other => Err(Error::unsupported(format!("quant_method {other:?} is not supported"))
                .hint("use an unquantised, MLX, GPTQ, AWQ, FP8, compressed-tensors or GGUF model")),
        }
    }

    /// The block of [`Method::Parts`].
    pub(super) fn block(self) -> Option<[usize; 2]> {
        match self {
            Self::Parts { block } => block,
            _ => None,
        }
    }

    /// What MLX's settings say of the module `path`: whether they name it, and its mode.
    ///
    /// # Errors
    /// `File` if the settings say that it is not packed, or make no sense.
    pub(super) fn mlx_mode(self, path: &str) -> Result<Option<(bool, Mode<'a>)>> {
        let Self::Mlx(all) = self else { return Ok(None) };
        match all.get(path) {
            Some(Value::Object(own)) => Ok(Some((true, mode(own)?))),
            Some(Value::Bool(false)) => {
                Err(Error::file("config.json says it is not quantised, but it has scales"))
            }
            Some(Value::Bool(true)) | None => Ok(Some((false, mode(all)?))),
            Some(other) => Err(Error::file(format!("config.json's quantization is {other}"))),
        }
    }
}

fn bits(settings: &Map<String, Value>) -> Option<usize> {
    let bits = settings.get("bits").or_else(|| settings.get("w_bit"))?;
    usize::try_from(bits.as_u64()?).ok()
}

/// The object `key`, if it is there and neither null nor false.
fn object<'a>(config: &'a Value, key: &str) -> Result<Option<&'a Map<String, Value>>> {
    match &config[key] {
        Value::Null | Value::Bool(false) => Ok(None),
        Value::Object(settings) => Ok(Some(settings)),
        _ => Err(Error::file("it is no object").at(key)),
    }
}

fn mode(settings: &Map<String, Value>) -> Result<Mode<'_>> {
    let name = match settings.get("mode") {
        None => "affine",
        Some(name) => name.as_str().unwrap_or("?"),
    };
    let (bits, group) = match name {
        "affine" => (4, 64),
        "mxfp4" => (4, 32),
        "nvfp4" => (4, 16),
        "mxfp8" => (8, 32),
        other => return Err(Error::unsupported(format!("quantization mode {other:?}"))),
    };
    let number = |key, default| match settings.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_u64()
            .filter(|n| (1..=1024).contains(n))
            .ok_or_else(|| Error::file(format!("{key} is {value}")).at("quantization")),
    };
    Ok(Mode { name, bits: number("bits", bits)?, group: number("group_size", group)? })
}

fn pair(value: Option<&Value>) -> Option<[usize; 2]> {
    let list = value?.as_array()?;
    let number = |i: usize| usize::try_from(list.get(i)?.as_u64()?).ok();
    Some([number(0)?, number(1)?])
}

fn compressed<'a>(settings: &'a Map<String, Value>) -> Result<Method<'a>> {
    let groups = settings.get("config_groups").and_then(Value::as_object);
    let groups = groups.into_iter().flat_map(Map::values);
    let formats = groups.clone().filter_map(|group| group["format"].as_str());
    let formats = formats.chain(settings.get("format").and_then(Value::as_str));
    if let Some(format) = formats.into_iter().find(|format| !COMPRESSED.contains(format)) {
        return Err(Error::unsupported(format!("compressed-tensors format {format:?}")));
    }
    let sparsity = &settings.get("sparsity_config").unwrap_or(&Value::Null)["format"];
    if sparsity.as_str().is_some_and(|format| format != "dense") {
        return Err(Error::unsupported(format!("compressed-tensors sparsity {sparsity}")));
    }
    let rotations = settings.get("transform_config").and_then(|t| t.get("config_groups"));
    if rotations.and_then(Value::as_object).is_some_and(|groups| !groups.is_empty()) {
        return Err(Error::unsupported("compressed-tensors transforms (rotations of activations)"));
    }
    let block = groups.filter_map(|g| pair(g["weights"].get("block_structure"))).next();
    Ok(Method::Parts { block })
}
