//! Rotary positions: the frequencies of each variant, computed once at load.
//!
//! Owns the formulas (transformers' `modeling_rope_utils`). Where a variant depends on the length of the text, the
//! length is that of the longest text that a sequence may become, settled at its admission: so a token never depends on
//! how a prompt was cut, and keys that are already cached stay right.

use longrun_array::Stretch;
use serde_json::{Map, Value};

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
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Scaling {
    None,
    /// All divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Only the first `pairs` turn, and all are divided by `factor`.
    Proportional {
        factor: f64,
        pairs: usize,
    },
    /// Low frequencies divided by `factor`, high ones kept, smooth between.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
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
    /// A base that grows with the length of texts longer than `context`.
    Dynamic {
        factor: f64,
        context: f64,
    },
    /// Each frequency divided by a number of its own: `long` for texts longer than `original`, else `short`.
    LongRope {
        short: Vec<f64>,
        long: Vec<f64>,
        original: f64,
        attention: f64,
    },
}

/// All that positions may say; some of it is for other parts of a config.
const KNOWN: [&str; 21] = [
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "finetuned",
    "high_freq_factor",
    "llama_4_scaling_beta",
    "long_factor",
    "low_freq_factor",
    "max_position_embeddings",
    // Three positions a token, which are the same for text.
    "mrope_interleaved",
    "mrope_section",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "short_factor",
    "truncate",
    "type",
];

/// The fields of `rope_parameters` or `rope_scaling`.
struct Fields<'a>(Option<&'a Map<String, Value>>);

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.and_then(|map| map.get(name)).filter(|v| !v.is_null())
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().filter(|x| x.is_finite());
        number.map(Some).ok_or_else(|| Error::file(format!("{value} is not a number")).at(name))
    }

    fn or(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number(name)?.unwrap_or(default))
    }

    fn must(&self, name: &str) -> Result<f64> {
        self.number(name)?.ok_or_else(|| Error::file("this field is missing").at(name))
    }

    fn one_or_more(&self, name: &str) -> Result<f64> {
        let x = self.must(name)?;
        if x >= 1.0 { Ok(x) } else { Err(Error::file("must be at least 1").at(name)) }
    }

    /// How much longer texts may be than those of the training.
    fn factor_or_ratio(&self) -> Result<f64> {
        match (self.get("factor"), self.get("max_position_embeddings")) {
            (None, Some(_)) => {
                let context = self.one_or_more("max_position_embeddings")?;
                Ok(context / self.one_or_more("original_max_position_embeddings")?)
            }
            _ => self.one_or_more("factor"),
        }
    }

    /// One divisor for each of `pairs`.
    fn divisors(&self, name: &str, pairs: usize) -> Result<Vec<f64>> {
        let list = self.get(name).and_then(Value::as_array);
        let list = list.ok_or_else(|| Error::file("a list of numbers is missing").at(name))?;
        let numbers = list.iter().filter_map(Value::as_f64).filter(|x| *x > 0.0);
        let numbers: Vec<f64> = numbers.collect();
        if (list.len(), numbers.len()) != (pairs, pairs) {
            let what = format!("{} numbers above 0, wants {pairs}", numbers.len());
            return Err(Error::file(what).at(name));
        }
        Ok(numbers)
    }
}

impl RopeSpec {
    /// Reads `rope_parameters` or `rope_scaling`; `theta` and `partial` hold where it doesn't say. Variants that depend
    /// on lengths want `max_position_embeddings` in it.
    ///
    /// # Errors
    /// The variant or a field is not known, or a number of it is missing.
    pub fn new(json: Option<&Value>, dim: usize, theta: f64, partial: f64) -> Result<Self> {
        let f = Fields(json.and_then(Value::as_object));
        let unknown = f.0.into_iter().flatten().find(|(name, _)| !KNOWN.contains(&name.as_str()));
        if let Some((name, _)) = unknown {
            return Err(Error::unsupported("this is not known of positions").at(name));
        }
        let kind = f.get("rope_type").or_else(|| f.get("type"));
        let kind = kind.map(|k| k.as_str().unwrap_or("?"));
        let partial = f.or("partial_rotary_factor", partial)?;
        let theta = f.or("rope_theta", theta)?;
        let rotary =
            if kind == Some("proportional") { dim } else { (dim as f64 * partial) as usize };
        if rotary == 0 || rotary > dim || !rotary.is_multiple_of(2) || theta <= 0.0 {
            let what = format!("{rotary} of {dim} columns rotated with base {theta} can't be");
            return Err(Error::file(what));
        }
        let scaling = match kind {
            Some("proportional") => {
                let pairs = (partial * dim as f64 / 2.0).floor();
                if !(0.0..=dim as f64 / 2.0).contains(&pairs) {
                    let what = format!("{partial} of a head can't be rotated");
                    return Err(Error::file(what).at("partial_rotary_factor"));
                }
                Scaling::Proportional { factor: f.or("factor", 1.0)?, pairs: pairs as usize }
            }
            kind => scaling(&f, kind, rotary)?,
        };
        let spec = Self { rotary, theta, scaling };
        let numbers = spec.frequencies().into_iter().chain([spec.attention_factor()]);
        match numbers.filter(|x| !x.is_finite()).count() {
            0 => Ok(spec),
            n => Err(Error::file(format!("{n} frequencies of {spec:?} are no finite numbers"))),
        }
    }

    /// Angle per position of each pair, `[rotary / 2]`; of short and then of long texts where these differ.
    pub fn frequencies(&self) -> Vec<f32> {
        let n = self.rotary as f64;
        let plain = (0..self.rotary / 2).map(|i| self.theta.powf(-2.0 * i as f64 / n));
        if let Scaling::LongRope { short, long, .. } = &self.scaling {
            let divided = |by: &[f64]| -> Vec<f32> {
                plain.clone().zip(by).map(|(f, by)| (f / by) as f32).collect()
            };
            return [divided(short), divided(long)].concat();
        }
        let scaled = plain.enumerate().map(|(i, f)| match self.scaling {
            Scaling::None | Scaling::Dynamic { .. } | Scaling::LongRope { .. } => f,
            Scaling::Linear { factor } => f / factor,
            Scaling::Proportional { factor, pairs } => {
                if i < pairs {
                    f / factor
                } else {
                    0.0
                }
            }
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
        match self.scaling {
            Scaling::Dynamic { .. } => Stretch::Power,
            Scaling::LongRope { .. } => Stretch::Choice,
            _ => Stretch::None,
        }
    }

    /// Whether positions depend on the length of a text.
    pub fn stretches(&self) -> bool {
        self.kind_of_stretch() != Stretch::None
    }

    /// What positions of a sequence of at most `tokens` are stretched by: settled once, at admission, so that no cut and
    /// no neighbour can change it. 1 where the positions of all sequences are alike.
    pub fn stretch(&self, tokens: usize) -> f32 {
        let tokens = tokens as f64;
        match self.scaling {
            // The base is times this to the power of n / (n - 2), of n rotated columns.
            Scaling::Dynamic { factor, context } if tokens > context => {
                (factor * tokens / context - (factor - 1.0)) as f32
            }
            Scaling::LongRope { original, .. } if tokens > original => 2.0,
            _ => 1.0,
        }
    }

    /// The factor on cosines and sines.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            Scaling::Yarn { attention, .. } | Scaling::LongRope { attention, .. } => {
                attention as f32
            }
            _ => 1.0,
        }
    }
}

fn scaling(f: &Fields<'_>, kind: Option<&str>, rotary: usize) -> Result<Scaling> {
    let original = || match f.get("original_max_position_embeddings") {
        None if f.get("max_position_embeddings").is_some() => {
            f.one_or_more("max_position_embeddings")
        }
        _ => f.one_or_more("original_max_position_embeddings"),
    };
    Ok(match kind {
        // With "freq_factors" the file carries divisors, see `nn::Rope`.
        None | Some("default" | "mrope" | "freq_factors") => Scaling::None,
        Some("linear") => Scaling::Linear { factor: f.one_or_more("factor")? },
        Some("llama3") => Scaling::Llama3 {
            factor: f.one_or_more("factor")?,
            low: f.must("low_freq_factor")?,
            high: f.must("high_freq_factor")?,
            original: original()?,
        },
        Some("yarn") => {
            let factor = f.factor_or_ratio()?;
            Scaling::Yarn {
                factor,
                fast: f.or("beta_fast", 32.0)?,
                slow: f.or("beta_slow", 1.0)?,
                original: original()?,
                attention: yarn_attention(factor, f)?,
                truncate: f.get("truncate") != Some(&Value::Bool(false)),
            }
        }
        Some("dynamic") => {
            let context = f.one_or_more("max_position_embeddings")?;
            if original()? != context || rotary < 4 {
                let what = format!("\"dynamic\" from another length than {context}");
                return Err(Error::unsupported(what).at("original_max_position_embeddings"));
            }
            Scaling::Dynamic { factor: f.one_or_more("factor")?, context }
        }
        Some("longrope") => {
            let (factor, original) = (f.factor_or_ratio()?, original()?);
            let grown = (1.0 + factor.ln() / original.ln()).sqrt();
            let attention = f.or("attention_factor", if factor <= 1.0 { 1.0 } else { grown })?;
            let short = f.divisors("short_factor", rotary / 2)?;
            let long = f.divisors("long_factor", rotary / 2)?;
            Scaling::LongRope { short, long, original, attention }
        }
        Some(other) => {
            let what = format!("rope type \"{other}\" is not known");
            return Err(Error::unsupported(what)
                .hint("known: default, linear, dynamic, llama3, yarn, longrope, proportional"));
        }
    })
}

fn yarn_attention(factor: f64, f: &Fields<'_>) -> Result<f64> {
    let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let [one, all] = ["mscale", "mscale_all_dim"].map(|name| f.number(name));
    match (f.number("attention_factor")?, one?, all?.filter(|m| *m != 0.0)) {
        (Some(given), _, _) => Ok(given),
        (None, Some(m), Some(all)) => Ok(mscale(m) / mscale(all)),
        _ => Ok(mscale(1.0)),
    }
}

#[cfg(test)]
mod tests;
