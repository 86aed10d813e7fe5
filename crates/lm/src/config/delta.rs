//! What a config says of gated delta layers.

use super::fields::Fields;
use super::{Family, Mixer};
use crate::error::{Error, Result};

/// Sizes of a gated delta layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DeltaConfig {
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub taps: usize,
    /// Value head `i` belongs to key head `i mod key_heads`, not to `i` by their ratio: in GGUF files.
    pub tiled: bool,
}

pub(super) fn delta(f: &Fields<'_>) -> Result<DeltaConfig> {
    let d = DeltaConfig {
        key_heads: f.size("linear_num_key_heads")?,
        value_heads: f.size("linear_num_value_heads")?,
        key_dim: f.size("linear_key_head_dim")?,
        value_dim: f.size("linear_value_head_dim")?,
        taps: f.size_or("linear_conv_kernel_dim", 4)?,
        tiled: f.bool_or("linear_value_heads_tiled", false)?,
    };
    if !d.value_heads.is_multiple_of(d.key_heads) {
        let what = format!("{} value heads for {} key heads", d.value_heads, d.key_heads);
        return Err(Error::file(what).at("linear_num_value_heads"));
    }
    Ok(d)
}

/// Sizes of a delta layer with a decay for each channel of a key (KDA).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KdaConfig {
    /// Heads of queries, keys and values alike.
    pub heads: usize,
    /// Numbers of a head.
    pub dim: usize,
    /// Taps of the convolutions.
    pub taps: usize,
    /// The lowest logarithm of a decay, below 0; `None` has no bound and another curve.
    pub lowest: Option<f32>,
}

/// The original config keeps these in an object of their own.
const KDA: &str = "linear_attn_config";

fn kda_object<'a>(f: &Fields<'a>) -> Result<Option<Fields<'a>>> {
    match f.get(KDA) {
        None => Ok(None),
        Some(v) if v.is_object() => Ok(Some(Fields::new(v, v))),
        Some(other) => Err(Fields::wrong(KDA, other, "an object")),
    }
}

pub(super) fn kda(f: &Fields<'_>, family: Family) -> Result<KdaConfig> {
    let own = kda_object(f)?;
    let size =
        |inner: &str, flat: &str| match own.as_ref().map(|o| o.size_opt(inner)).transpose()? {
            Some(Some(n)) => Ok(Some(n)),
            _ => f.size_opt(flat),
        };
    Ok(KdaConfig {
        heads: size("num_heads", "linear_num_heads")?.ok_or_else(|| f.missing("num_heads"))?,
        dim: size("head_dim", "linear_head_dim")?.ok_or_else(|| f.missing("linear_head_dim"))?,
        taps: size("short_conv_kernel_size", "linear_conv_kernel_dim")?.unwrap_or(4),
        lowest: lowest(f, own.as_ref(), family)?,
    })
}

/// Where a bound is said to be null, a safe gate has one all the same.
fn lowest(f: &Fields<'_>, own: Option<&Fields<'_>>, family: Family) -> Result<Option<f32>> {
    const DEFAULT: f64 = -5.0;
    let flat = "linear_lower_bound";
    let has_bound = family == Family::Glm5Next;
    let said = match own {
        Some(own) if own.text.get("gate_lower_bound").is_some() => {
            Some(own.number("gate_lower_bound")?)
        }
        _ if f.text.get(flat).is_some() => Some(f.number(flat)?),
        _ => None,
    };
    let safe = own.is_some_and(|own| own.get("safe_gate") != Some(&false.into()));
    let lowest = match said {
        None | Some(None) if has_bound && (said.is_none() || safe) => Some(DEFAULT),
        said => said.flatten(),
    };
    match lowest.map(|x| x as f32) {
        Some(x) if x >= 0.0 || !x.is_normal() => {
            Err(Error::file(format!("{x} is not a number below 0")).at(flat))
        }
        lowest => Ok(lowest),
    }
}

/// Which layers of the original config are delta layers; both lists count from 1.
pub(super) fn kda_mixers(f: &Fields<'_>, layers: usize) -> Result<Vec<Mixer>> {
    let own = kda_object(f)?.ok_or_else(|| f.missing(KDA))?;
    let mut mixers = vec![None; layers];
    for (name, mixer) in [("full_attn_layers", Mixer::Full), ("kda_layers", Mixer::Linear)] {
        for v in own.list(name)?.ok_or_else(|| own.missing(name))? {
            let i = v.as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
            let Some(place @ None) = i.checked_sub(1).and_then(|i| mixers.get_mut(i)) else {
                return Err(Fields::wrong(name, v, "a layer of its own, counted from 1"));
            };
            *place = Some(mixer);
        }
    }
    let all: Option<Vec<Mixer>> = mixers.into_iter().collect();
    all.ok_or_else(|| Error::file(format!("not all of {layers} layers are listed")).at(KDA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::tiny;
    use serde_json::{Value, json};

    fn kimi(own: Value) -> Result<Config> {
        let shape = tiny::TinyShape { layers: Some(3), ..Default::default() };
        let mut json = tiny::config("kimi_linear", shape).unwrap();
        json.as_object_mut().unwrap().remove("layer_types");
        json["linear_attn_config"] = own;
        Config::loose(&json)
    }

    #[test]
    fn the_original_object_counts_layers_from_one() {
        let own = |full: &[usize], kda: &[usize]| {
            let sizes = [("full_attn_layers", full), ("kda_layers", kda)];
            let mut own = json!({"num_heads": 3, "head_dim": 8});
            sizes.iter().for_each(|(name, layers)| own[*name] = json!(layers));
            own
        };
        let c = kimi(own(&[2], &[1, 3])).unwrap();
        assert_eq!(c.mixers, [Mixer::Linear, Mixer::Full, Mixer::Linear]);
        assert_eq!(c.kda, Some(KdaConfig { heads: 3, dim: 8, taps: 4, lowest: None }));
        for (full, kda) in
            [(&[0, 2][..], &[1, 3][..]), (&[2], &[1]), (&[2], &[1, 2, 3]), (&[4], &[1])]
        {
            assert!(kimi(own(full, kda)).is_err(), "{full:?} {kda:?}");
        }
        let mut bounded = own(&[2], &[1, 3]);
        bounded["gate_lower_bound"] = json!(-4.5);
        assert_eq!(kimi(bounded.clone()).unwrap().kda.unwrap().lowest, Some(-4.5));
        bounded["gate_lower_bound"] = json!(1);
        assert!(kimi(bounded).is_err());
    }
}
