//! Which weights are quantised, and how.
//!
//! Owns the modes of MLX with their legal parameters, and its recipes of mixed precision. Routers keep 8 bits.

use std::fmt;

use longrun_array::format::Affine;
use serde_json::{Value, json};

use super::rules;
use crate::config::Family;
use crate::error::{Error, Result};

/// A way to quantise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Integer codes with a scale and a bias for each group.
    Affine(Affine),
    /// E2M1 codes in groups of 32, scales that are powers of two.
    MxFp4,
    /// E4M3 codes in groups of 32, scales that are powers of two.
    MxFp8,
    /// E2M1 codes in groups of 16, E4M3 scales.
    NvFp4,
}

/// Numbers in a group unless told otherwise.
const GROUP: usize = 64;

impl Mode {
    /// The mode called `name` (`q4`, `mxfp4`, ...), with groups of `group` numbers where that can be chosen.
    ///
    /// # Errors
    /// The name is not known, or the mode has no such groups.
    pub fn new(name: &str, group: Option<usize>) -> Result<Self> {
        let fixed = |mode: Self| match group {
            Some(other) if other != mode.group() => {
                let what = format!("{name} has groups of {}, not {other}", mode.group());
                Err(Error::usage(what).at("--group-size"))
            }
            _ => Ok(mode),
        };
        match name {
            "mxfp4" => fixed(Self::MxFp4),
            "mxfp8" => fixed(Self::MxFp8),
            "nvfp4" => fixed(Self::NvFp4),
            "q2" | "q3" | "q4" | "q5" | "q6" | "q8" => {
                affine(usize::from(name.as_bytes()[1] - b'0'), group)
            }
            _ => Err(Error::usage(format!("{name} is no way to quantise"))
                .hint("q2, q3, q4, q5, q6, q8, mxfp4, mxfp8 or nvfp4")),
        }
    }

    /// Numbers that share a scale.
    pub fn group(self) -> usize {
        match self {
            Self::Affine(affine) => affine.group(),
            Self::MxFp4 | Self::MxFp8 => 32,
            Self::NvFp4 => 16,
        }
    }

    /// Bits of a code.
    pub fn bits(self) -> usize {
        match self {
            Self::Affine(affine) => affine.bits(),
            Self::MxFp4 | Self::NvFp4 => 4,
            Self::MxFp8 => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Affine(_) => "affine",
            Self::MxFp4 => "mxfp4",
            Self::MxFp8 => "mxfp8",
            Self::NvFp4 => "nvfp4",
        }
    }

    /// As `config.json` has it.
    pub(super) fn json(self) -> Value {
        json!({ "group_size": self.group(), "bits": self.bits(), "mode": self.name() })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.name(), self.bits(), self.group())
    }
}

fn affine(bits: usize, group: Option<usize>) -> Result<Mode> {
    let group = group.unwrap_or(GROUP);
    let affine = Affine::new(bits, group, false);
    affine.map(Mode::Affine).ok_or_else(|| {
        Error::usage(format!("groups of {group} can't be")).at("--group-size").hint("32, 64 or 128")
    })
}

/// A recipe that gives more bits to values, to what leaves an MLP in some layers, and to the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Mixed {
    Mixed2And6,
    Mixed3And4,
    Mixed3And6,
    Mixed4And6,
}

impl Mixed {
    /// Its few and its many bits.
    fn bits(self) -> [usize; 2] {
        match self {
            Self::Mixed2And6 => [2, 6],
            Self::Mixed3And4 => [3, 4],
            Self::Mixed3And6 => [3, 6],
            Self::Mixed4And6 => [4, 6],
        }
    }
}

/// How a model is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantize {
    /// The mode of most weights.
    mode: Mode,
    /// The mode of those that a recipe gives more bits to.
    more: Option<Mode>,
}

impl Quantize {
    /// One mode for all.
    pub fn all(mode: Mode) -> Self {
        Self { mode, more: None }
    }

    /// A recipe, in groups of `group`.
    ///
    /// # Errors
    /// There are no such groups.
    pub fn mixed(recipe: Mixed, group: Option<usize>) -> Result<Self> {
        let [few, many] = recipe.bits();
        Ok(Self { mode: affine(few, group)?, more: Some(affine(many, group)?) })
    }

    /// The mode that `config.json` names for all.
    pub(super) fn default_mode(self) -> Mode {
        self.mode
    }

    /// The mode of the weight `base` (its name without `.weight`) with rows of `cols`, in a model of `layers`; `None`
    /// if it stays plain.
    pub(super) fn mode_of(
        self,
        family: Family,
        base: &str,
        cols: usize,
        layers: usize,
    ) -> Option<Mode> {
        if rules::is_never_quantised(family, base) || !cols.is_multiple_of(self.mode.group()) {
            return None;
        }
        if rules::is_router(base) {
            return affine(8, None).ok().filter(|mode| cols.is_multiple_of(mode.group()));
        }
        match self.more {
            Some(more) if gets_more(base, layers) => Some(more),
            _ => Some(self.mode),
        }
    }
}

/// The choice of MLX's recipes: by parts of the name, in the first and last eighth of the layers and every third.
fn gets_more(base: &str, layers: usize) -> bool {
    let layer = base.split('.').find_map(|piece| piece.parse::<usize>().ok()).unwrap_or(0);
    let eighth = layers / 8;
    let chosen = layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
    let value = ["v_proj", "v_a_proj", "v_b_proj", "down_proj"];
    base.contains("lm_head") || (chosen && value.iter().any(|part| base.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::{Mixed, Mode, Quantize, gets_more};
    use crate::config::Family;

    #[test]
    fn names_and_groups() {
        for (name, bits, group) in
            [("q4", 4, 64), ("q3", 3, 64), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
        {
            let mode = Mode::new(name, None).unwrap();
            assert_eq!((mode.bits(), mode.group()), (bits, group));
        }
        assert_eq!(Mode::new("q4", Some(128)).unwrap().group(), 128);
        for (name, group) in [("q4", Some(16)), ("q7", None), ("mxfp4", Some(64)), ("q1", None)] {
            assert!(Mode::new(name, group).is_err(), "{name} {group:?}");
        }
    }

    #[test]
    fn a_recipe_gives_more_bits_where_mlx_does() {
        let chosen: Vec<usize> =
            (0..32).filter(|i| gets_more(&format!("model.layers.{i}.mlp.down_proj"), 32)).collect();
        assert_eq!(chosen, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        assert!(gets_more("lm_head", 32) && !gets_more("model.embed_tokens", 32));
        assert!(!gets_more("model.layers.0.mlp.up_proj", 32));
        let recipe = Quantize::mixed(Mixed::Mixed3And6, None).unwrap();
        let mode = |base| recipe.mode_of(Family::Llama, base, 64, 32).map(Mode::bits);
        assert_eq!(mode("model.layers.0.self_attn.v_proj"), Some(6));
        assert_eq!(mode("model.layers.4.self_attn.v_proj"), Some(3));
        assert_eq!(mode("model.layers.4.mlp.gate"), Some(8));
        assert_eq!(recipe.mode_of(Family::Llama, "lm_head", 96, 32), None);
        assert_eq!(recipe.mode_of(Family::Glm4Moe, "model.layers.1.mlp.gate", 64, 32), None);
    }
}
