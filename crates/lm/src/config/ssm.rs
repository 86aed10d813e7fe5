//! What a config says of selective scans (Mamba 2), in the words of its families, and of the layers that have them.

use longrun_array::SsmHeads;
use serde_json::Value;

use super::fields::Fields;
use super::{Family, Mixer};
use crate::error::{Error, Result};

/// Sizes of a Mamba 2 layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsmConfig {
    /// Heads and their sizes.
    pub heads: SsmHeads,
    /// Taps of the convolution.
    pub taps: usize,
    /// The least and the most that a time step may be.
    pub limits: (f32, f32),
    /// The convolution has biases.
    pub conv_bias: bool,
    /// The projection on the way in has biases.
    pub in_bias: bool,
    /// The projection on the way out has biases.
    pub out_bias: bool,
    /// How the gate meets the norm.
    pub gate: SsmGate,
}

/// What becomes of the result `y` of a scan and its gate `z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SsmGate {
    /// `norm(y silu(z))`
    BeforeNorm,
    /// `norm(y) silu(z)`
    AfterNorm,
    /// `y silu(z)`
    Alone,
}

/// The names that families have for one thing; transformers reads older files of nemotron_h by other names.
struct Names {
    heads: &'static str,
    groups: &'static [&'static str],
    dim: &'static str,
    state: &'static str,
    taps: &'static [&'static str],
    conv_bias: &'static [&'static str],
    in_bias: &'static str,
    out_bias: &'static str,
    limits: &'static [&'static str],
}

const MAMBA2: Names = Names {
    heads: "num_heads",
    groups: &["n_groups"],
    dim: "head_dim",
    state: "state_size",
    taps: &["conv_kernel"],
    conv_bias: &["use_conv_bias"],
    in_bias: "use_bias",
    out_bias: "use_bias",
    limits: &["time_step_limit"],
};

const NEMOTRON: Names = Names {
    heads: "mamba_num_heads",
    groups: &["mamba_n_groups", "n_groups"],
    dim: "mamba_head_dim",
    state: "ssm_state_size",
    taps: &["mamba_d_conv", "conv_kernel"],
    conv_bias: &["mamba_conv_bias", "use_conv_bias"],
    limits: &["mamba_dt_limit", "time_step_limit"],
    ..MAMBA2
};

const BAMBA: Names = Names {
    heads: "mamba_n_heads",
    groups: &["mamba_n_groups"],
    dim: "mamba_d_head",
    state: "mamba_d_state",
    taps: &["mamba_d_conv"],
    conv_bias: &["mamba_conv_bias"],
    in_bias: "mamba_proj_bias",
    out_bias: "mamba_proj_bias",
    ..MAMBA2
};

const FALCON: Names = Names { out_bias: "projectors_bias", ..BAMBA };

impl Family {
    fn ssm_names(self) -> Option<Names> {
        match self {
            Self::Mamba2 => Some(MAMBA2),
            Self::NemotronH => Some(NEMOTRON),
            Self::GraniteMoeHybrid => Some(BAMBA),
            Self::FalconH1 => Some(FALCON),
            _ => None,
        }
    }
}

/// The first of these names that the config has.
fn given<'a>(f: &Fields<'_>, names: &[&'a str]) -> &'a str {
    names.iter().find(|n| f.get(n).is_some()).copied().unwrap_or(names[names.len() - 1])
}

/// Sizes of the selective scans of a family that has them.
pub(super) fn ssm(f: &Fields<'_>, family: Family, hidden: usize) -> Result<Option<SsmConfig>> {
    let Some(names) = family.ssm_names() else { return Ok(None) };
    let heads = f.size(names.heads)?;
    let groups = f.size_or(given(f, names.groups), 1)?;
    if !heads.is_multiple_of(groups) {
        let what = format!("{heads} heads can't share {groups} groups");
        return Err(Error::file(what).at(given(f, names.groups)));
    }
    let dim = match f.get(names.dim) {
        Some(Value::String(auto)) if auto == "auto" => None,
        _ => f.size_opt(names.dim)?,
    };
    let dim = match dim {
        Some(dim) => dim,
        None => {
            let expand = f.size_or("mamba_expand", 2)? * hidden;
            let inner = f.size_opt("mamba_d_ssm")?.unwrap_or(expand);
            if !inner.is_multiple_of(heads) {
                let what = format!("{inner} columns in {heads} heads");
                return Err(Error::file(what).at(names.heads));
            }
            inner / heads
        }
    };
    let gate = match family {
        Family::FalconH1 if !f.bool_or("mamba_rms_norm", false)? => SsmGate::Alone,
        Family::FalconH1 if f.bool_or("mamba_norm_before_gate", true)? => SsmGate::AfterNorm,
        _ => SsmGate::BeforeNorm,
    };
    let mut limits = limits(f, given(f, names.limits))?;
    if family == Family::NemotronH {
        // Its own code takes the least of initialisation as a limit, too.
        limits.0 = limits.0.max(f.positive("time_step_min")?.unwrap_or(1e-3)).min(limits.1);
    }
    let silu = f.str("mamba_hidden_act")?.unwrap_or("silu");
    if !matches!(silu, "silu" | "swish") {
        let what = format!("activation \"{silu}\" is not known for {}", family.name());
        return Err(Error::unsupported(what).at("mamba_hidden_act"));
    }
    Ok(Some(SsmConfig {
        heads: SsmHeads { heads, groups, dim, state: f.size(names.state)? },
        taps: f.size_or(given(f, names.taps), 4)?,
        limits,
        conv_bias: f.bool_or(given(f, names.conv_bias), true)?,
        in_bias: f.bool_or(names.in_bias, false)?,
        out_bias: f.bool_or(names.out_bias, false)?,
        gate,
    }))
}

/// Two numbers, the second perhaps infinite: `{"__float__": "Infinity"}`.
fn limits(f: &Fields<'_>, name: &str) -> Result<(f32, f32)> {
    let Some(list) = f.list(name)? else { return Ok((0.0, f32::INFINITY)) };
    let number = |v: &Value| match v.get("__float__").and_then(Value::as_str) {
        Some("Infinity") => Some(f32::INFINITY),
        Some("-Infinity") => Some(f32::NEG_INFINITY),
        _ => v.as_f64().map(|x| x as f32),
    };
    let pair = match &list[..] {
        [low, high] => number(low).zip(number(high)),
        _ => None,
    };
    let wrong = || Error::file("two numbers are wanted, the smaller one first").at(name);
    pair.filter(|(low, high)| low <= high).ok_or_else(wrong)
}

/// What the layers of a family with selective scans are, `None` for other families.
pub(super) fn mixers(f: &Fields<'_>, family: Family, layers: usize) -> Result<Option<Vec<Mixer>>> {
    let plain = match family {
        Family::Mamba2 => Mixer::Linear,
        // Both side by side.
        Family::FalconH1 | Family::Granite => Mixer::Full,
        Family::NemotronH => return Ok(Some(blocks(f)?.ok_or_else(|| f.missing(LISTS[0]))?)),
        Family::GraniteMoeHybrid => match blocks(f)? {
            Some(list) if list.len() == layers => return Ok(Some(list)),
            Some(list) => {
                let what = format!("{} entries for {layers} layers", list.len());
                return Err(Error::file(what).at("layer_types"));
            }
            None => Mixer::Linear,
        },
        _ => return Ok(None),
    };
    Ok(Some(vec![plain; layers]))
}

/// The names of the list of layers.
const LISTS: [&str; 2] = ["layers_block_type", "layer_types"];

/// Layers as a list of words, or as a string of letters.
fn blocks(f: &Fields<'_>) -> Result<Option<Vec<Mixer>>> {
    let name = given(f, &LISTS);
    let unknown = |what: &dyn std::fmt::Display, name| {
        Error::unsupported(format!("a layer \"{what}\" is not known here")).at(name)
    };
    if let Some(list) = f.list(name)? {
        let kind = |v: &Value| match v.as_str() {
            Some("mamba" | "linear_attention") => Ok(Mixer::Linear),
            Some("attention" | "full_attention") => Ok(Mixer::Full),
            Some("mlp") => Ok(Mixer::Mlp),
            Some("moe") => Ok(Mixer::Experts),
            _ => Err(unknown(v, name)),
        };
        return list.iter().map(kind).collect::<Result<_>>().map(Some);
    }
    let name = "hybrid_override_pattern";
    let Some(pattern) = f.str(name)? else { return Ok(None) };
    let kind = |letter: char| match letter {
        'M' => Ok(Mixer::Linear),
        '*' => Ok(Mixer::Full),
        '-' => Ok(Mixer::Mlp),
        'E' => Ok(Mixer::Experts),
        _ => Err(unknown(&letter, name)),
    };
    pattern.chars().map(kind).collect::<Result<_>>().map(Some)
}

/// The number of layers: nemotron_h may leave it to its list.
pub(super) fn layers(f: &Fields<'_>, family: Family) -> Result<usize> {
    if family != Family::NemotronH {
        return f.size("num_hidden_layers");
    }
    let list = blocks(f)?.ok_or_else(|| f.missing(LISTS[0]))?.len();
    let said = f.size_or("num_hidden_layers", list)?;
    if said != list || list == 0 {
        let what = format!("{list} entries for {said} layers");
        return Err(Error::file(what).at("num_hidden_layers"));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::tiny;
    use serde_json::json;

    /// The config of a tiny model of a family with one field changed.
    fn with(family: &str, name: &str, value: Value) -> Result<Config> {
        let mut json = tiny::config(family, tiny::TinyShape::default()).unwrap();
        json[name] = value;
        Config::loose(&json)
    }

    fn limits_of(value: Value) -> Result<(f32, f32)> {
        with("mamba2", "time_step_limit", value).map(|c| c.ssm.unwrap().limits)
    }

    #[test]
    fn a_limit_may_be_infinite() {
        let infinite = json!({"__float__": "Infinity"});
        assert_eq!(limits_of(json!([0.0, infinite])).unwrap(), (0.0, f32::INFINITY));
        assert_eq!(limits_of(json!([0.25, 4])).unwrap(), (0.25, 4.0));
        assert_eq!(limits_of(Value::Null).unwrap(), (0.0, f32::INFINITY));
        for wrong in [json!([1, 0]), json!([0]), json!([0, "x"]), json!([0, {"__float__": "NaN"}])]
        {
            let error = limits_of(wrong).unwrap_err().to_string();
            assert!(error.contains("time_step_limit"), "{error}");
        }
    }

    #[test]
    fn layers_are_a_list_or_letters() {
        let mut json = tiny::config("nemotron_h", tiny::TinyShape::default()).unwrap();
        let fields = json.as_object_mut().unwrap();
        fields.remove("layer_types");
        fields.remove("num_hidden_layers");
        assert!(Config::loose(&json).unwrap_err().to_string().contains("layers_block_type"));
        json["hybrid_override_pattern"] = "M*-E".into();
        let mixers = Config::loose(&json).unwrap().mixers;
        assert_eq!(mixers, [Mixer::Linear, Mixer::Full, Mixer::Mlp, Mixer::Experts]);
        json["num_hidden_layers"] = 5.into();
        assert!(Config::loose(&json).unwrap_err().to_string().contains("num_hidden_layers"));
        json["hybrid_override_pattern"] = "M|E".into();
        assert!(Config::loose(&json).unwrap_err().to_string().contains("hybrid_override_pattern"));
    }

    #[test]
    fn a_head_may_be_left_to_the_width() {
        let sizes = |c: Config| c.ssm.unwrap().heads;
        let auto = with("falcon_h1", "mamba_d_head", "auto".into()).unwrap();
        assert_eq!(sizes(auto).dim, 2 * 64 / 4);
        for (name, value) in [("mamba_n_groups", json!(3)), ("mamba_n_heads", json!(0))] {
            let error = with("falcon_h1", name, value).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn positions_of_hybrids_are_known_or_refused() {
        let of = |value| with("granitemoehybrid", "position_embedding_type", value);
        assert!(!of("nope".into()).unwrap().rotates[0] && of("rope".into()).unwrap().rotates[0]);
        assert!(of("alibi".into()).unwrap_err().to_string().contains("position_embedding_type"));
    }
}
