//! What a config says of constant factors between the parts of a model.

use serde_json::Value;

use super::fields::Fields;
use super::{Config, Family};
use crate::error::{Error, Result};

/// Factors, 1 where a family has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// On embeddings.
    pub embedding: f32,
    /// On logits.
    pub logits: f32,
    /// On what a block adds to the residual stream.
    pub residual: f32,
    /// On what goes into attention.
    pub attention_in: f32,
    /// On what comes out of it.
    pub attention_out: f32,
    /// On the gate of an MLP, before its activation.
    pub mlp_gate: f32,
    /// On the result of an MLP.
    pub mlp_down: f32,
    /// On what goes into a selective scan's projection.
    pub ssm_in: f32,
    /// On what comes out of its layer.
    pub ssm_out: f32,
    /// On the parts of that projection: gate, `x`, `b`, `c`, time steps.
    pub ssm: [f32; 5],
}

impl Default for Multipliers {
    fn default() -> Self {
        Self {
            embedding: 1.0,
            logits: 1.0,
            residual: 1.0,
            attention_in: 1.0,
            attention_out: 1.0,
            mlp_gate: 1.0,
            mlp_down: 1.0,
            ssm_in: 1.0,
            ssm_out: 1.0,
            ssm: [1.0; 5],
        }
    }
}

impl Multipliers {
    /// What is left of them where MLX has multiplied the weights of `falcon_h1` with all that it knows: not the values,
    /// and a head that is the embedding has the wrong factor.
    pub(crate) fn in_weights(self, config: &Config) -> Self {
        if config.family != Family::FalconH1 {
            return self;
        }
        let logits = if config.tied { self.logits / self.embedding } else { 1.0 };
        Self { logits, attention_out: self.attention_in, ..Self::default() }
    }
}

pub(super) fn multipliers(f: &Fields<'_>, family: Family) -> Result<Multipliers> {
    let one = |name: &str| f.positive(name).map(|x| x.unwrap_or(1.0));
    match family {
        Family::Granite | Family::GraniteMoeHybrid => Ok(Multipliers {
            embedding: one("embedding_multiplier")?,
            logits: 1.0 / one("logits_scaling")?,
            residual: one("residual_multiplier")?,
            ..Multipliers::default()
        }),
        Family::FalconH1 => {
            let [mlp_gate, mlp_down] = list(f, "mlp_multipliers")?;
            Ok(Multipliers {
                embedding: one("embedding_multiplier")?,
                logits: one("lm_head_multiplier")?,
                residual: 1.0,
                attention_in: one("attention_in_multiplier")?,
                attention_out: one("attention_out_multiplier")?,
                mlp_gate,
                mlp_down,
                ssm_in: one("ssm_in_multiplier")?,
                ssm_out: one("ssm_out_multiplier")?,
                ssm: list(f, "ssm_multipliers")?,
            })
        }
        _ => Ok(Multipliers::default()),
    }
}

/// The factor on attention scores where it is not the size of a head alone.
pub(super) fn scale(f: &Fields<'_>, family: Family, head_dim: usize) -> Result<Option<f32>> {
    match family {
        Family::Granite | Family::GraniteMoeHybrid => {
            Ok(Some(f.positive("attention_multiplier")?.unwrap_or(1.0)))
        }
        // Keys are used in scores only, so the factor on them is one on scores.
        Family::FalconH1 => {
            let keys = f.positive("key_multiplier")?.unwrap_or(1.0);
            Ok(Some((head_dim as f32).powf(-0.5) * keys))
        }
        _ => Ok(None),
    }
}

fn list<const N: usize>(f: &Fields<'_>, name: &str) -> Result<[f32; N]> {
    let Some(list) = f.list(name)? else { return Ok([1.0; N]) };
    let number = |v: &Value| {
        let x = v.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
        x.ok_or_else(|| Fields::wrong(name, v, "a number"))
    };
    let numbers: Vec<f32> = list.iter().map(number).collect::<Result<_>>()?;
    let wrong = |n: Vec<f32>| Error::file(format!("{} numbers, {N} are wanted", n.len())).at(name);
    numbers.try_into().map_err(wrong)
}
