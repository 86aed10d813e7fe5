//! Rotary positions: the frequencies of each variant, computed once at load.
//!
//! Owns the formulas (transformers' `modeling_rope_utils`). Refuses variants whose factor depends on the length of
//! a prompt: they would make a token depend on how it was cut.

use longrun_array::Stretch;
use serde_json::Value;

use crate::error::{Error, Result};

/// Rotary positions of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Rotated columns of a head, even.
    pub rotary: usize,
    /// The base of the frequencies.
    pub theta: f64,
    /// How they are stretched.
    pub scaling: Scaling,
}

/// How frequencies are stretched for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Scaling {
    None,
    /// All divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high ones kept, smooth between.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
    /// Only the first pairs of a head rotate, with the frequencies of a head that rotates as a whole.
    Proportional {
        factor: f64,
        pairs: usize,
    },
    /// A ramp between kept and divided over the dimensions; cosines and sines times `attention`.
    Yarn {
        factor: f64,
        fast: f64,
        slow: f64,
        original: f64,
        attention: f64,
        truncate: bool,
    },
}

impl RopeSpec {
    /// Reads `rope_parameters` or `rope_scaling`; `theta` and `partial` hold where it doesn't say.
    ///
    /// # Errors
    /// The variant is not known, or a number of it is missing.
    pub fn new(json: Option<&Value>, dim: usize, theta: f64, partial: f64) -> Result<Self> {
        let number = |name: &str| {
            let value = json.and_then(|v| v.get(name)).filter(|v| !v.is_null())?;
            Some(
                value
                    .as_f64()
                    .filter(|x| x.is_finite())
                    .ok_or_else(|| Error::file(format!("{value} is not a number")).at(name)),
            )
        };
        let or = |name: &str, default: f64| number(name).unwrap_or(Ok(default));
        let must = |name: &str| {
            number(name).unwrap_or_else(|| Err(Error::file("this field is missing").at(name)))
        };
        let kind = json.and_then(|v| v.get("rope_type").or_else(|| v.get("type")));
        let one_or_more = |name: &str| {
            must(name).and_then(|x| {
                if x >= 1.0 { Ok(x) } else { Err(Error::file("must be at least 1").at(name)) }
            })
        };
        let factor = || one_or_more("factor");
        let original = || one_or_more("original_max_position_embeddings");
        let scaling = match kind.map(|k| k.as_str().unwrap_or("?")) {
            // With "freq_factors" the file carries divisors, see `nn::Rope`.
            None | Some("default" | "mrope" | "freq_factors") => Scaling::None,
            Some("linear") => Scaling::Linear { factor: factor()? },
            Some("llama3") => Scaling::Llama3 {
                factor: factor()?,
                low: must("low_freq_factor")?,
                high: must("high_freq_factor")?,
                original: original()?,
            },
            Some("yarn") => Scaling::Yarn {
                factor: factor()?,
                fast: or("beta_fast", 32.0)?,
                slow: or("beta_slow", 1.0)?,
                original: original()?,
                attention: yarn_attention(factor()?, &number)?,
                truncate: json.and_then(|v| v.get("truncate")) != Some(&Value::Bool(false)),
            },
            Some("proportional") => {
                let pairs = or("partial_rotary_factor", partial)? * dim as f64 / 2.0;
                if !(0.0..=dim as f64 / 2.0).contains(&pairs) {
                    let what = format!("{pairs} pairs of {dim} columns can't be rotated");
                    return Err(Error::file(what).at("partial_rotary_factor"));
                }
                Scaling::Proportional { factor: or("factor", 1.0)?, pairs: pairs as usize }
            }
            Some(other) => {
                let what = format!("rope type \"{other}\" is not known");
                return Err(Error::unsupported(what).hint("known: default, linear, llama3, yarn"));
            }
        };
        let rotary = match scaling {
            Scaling::Proportional { .. } => dim,
            _ => (dim as f64 * or("partial_rotary_factor", partial)?) as usize,
        };
        let theta = or("rope_theta", theta)?;
        if rotary == 0 || rotary > dim || !rotary.is_multiple_of(2) || theta <= 0.0 {
            let what = format!("{rotary} of {dim} columns rotated with base {theta} can't be");
            return Err(Error::file(what));
        }
        let spec = Self { rotary, theta, scaling };
        let numbers = spec.frequencies().into_iter().chain([spec.attention_factor()]);
        match numbers.filter(|x| !x.is_finite()).count() {
            0 => Ok(spec),
            n => Err(Error::file(format!("{n} frequencies of {spec:?} are no finite numbers"))),
        }
    }

    /// Angle per position of each pair, `[rotary / 2]`.
    pub fn frequencies(&self) -> Vec<f32> {
        let n = self.rotary as f64;
        let plain = (0..self.rotary / 2).map(|i| self.theta.powf(-2.0 * i as f64 / n));
        let scaled = plain.enumerate().map(|(i, f)| match self.scaling {
            Scaling::None => f,
            Scaling::Linear { factor } => f / factor,
            Scaling::Proportional { factor, pairs } if i < pairs => f / factor,
            Scaling::Proportional { .. } => 0.0,
            Scaling::Llama3 { factor, low, high, original } => {
                let turns = original * f / std::f64::consts::TAU;
                let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                f * (keep + (1.0 - keep) / factor)
            }
            Scaling::Yarn { factor, fast, slow, original, truncate, .. } => {
                let dim_of = |turns: f64| {
                    n * (original / (turns * std::f64::consts::TAU)).ln() / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dim_of(fast), dim_of(slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, high) = (low.max(0.0), high.min(n - 1.0));
                let high = if low == high { high + 0.001 } else { high };
                let divide = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                f * (1.0 - divide + divide / factor)
            }
        });
        scaled.map(|f| f as f32).collect()
    }

    /// How the frequencies of a row may change.
    pub fn kind_of_stretch(&self) -> Stretch {
        Stretch::None
    }

    /// What positions of a sequence of at most `tokens` are stretched by: settled once, at admission, so that no cut and
    /// no neighbour can change it. 1 where the positions of all sequences are alike.
    pub fn stretch(&self, tokens: usize) -> f32 {
        let _ = tokens;
        1.0
    }

    /// The factor on cosines and sines.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            Scaling::Yarn { attention, .. } => attention as f32,
            _ => 1.0,
        }
    }
}

fn yarn_attention(factor: f64, number: &dyn Fn(&str) -> Option<Result<f64>>) -> Result<f64> {
    let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let all = number("mscale_all_dim").transpose()?.filter(|m| *m != 0.0);
    match (number("attention_factor").transpose()?, number("mscale").transpose()?, all) {
        (Some(given), _, _) => Ok(given),
        (None, Some(m), Some(all)) => Ok(mscale(m) / mscale(all)),
        _ => Ok(mscale(1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn llama3_keeps_fast_and_divides_slow_frequencies() {
        let json = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
        let rope = RopeSpec::new(Some(&json), 128, 500_000.0, 1.0).unwrap();
        let plain = RopeSpec::new(None, 128, 500_000.0, 1.0).unwrap().frequencies();
        let scaled = rope.frequencies();
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] * 8.0 / plain[63] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let json = json!({"rope_type": "longrope"});
        let e = RopeSpec::new(Some(&json), 128, 1e4, 1.0).unwrap_err();
        assert!(e.to_string().contains("longrope"));
        let json = json!({"rope_type": "linear"});
        assert!(
            RopeSpec::new(Some(&json), 128, 1e4, 1.0).unwrap_err().to_string().contains("factor")
        );
    }
}
