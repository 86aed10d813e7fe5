//! What a config says of experts, in the words of all families.

use longrun_array::{Glu, Groups, Map, Score, Scoring};
use serde_json::Value;

use super::fields::Fields;
use super::{Family, conv};
use crate::error::{Error, Result};

/// Experts of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// How many.
    pub experts: usize,
    /// How many serve a token.
    pub per_token: usize,
    /// Their inner width.
    pub intermediate: usize,
    /// The inner width of the expert that serves every token; 0 without.
    pub shared_intermediate: usize,
    /// Columns that experts work on where they are fewer than the model's.
    pub latent: Option<usize>,
    /// How logits become weights.
    pub scoring: Scoring,
    /// Whether each layer has experts, or a plain MLP.
    pub sparse: Vec<bool>,
    /// What an expert's gate does.
    pub f: Glu,
}

/// The first of these names that the config has.
fn any(f: &Fields<'_>, names: &[&str]) -> Result<usize> {
    for name in names {
        if let Some(n) = f.size_opt(name)? {
            return Ok(n);
        }
    }
    Err(f.missing(names[0]))
}

/// The inner width of an MLP without experts.
pub(super) fn dense_intermediate(f: &Fields<'_>, family: Family, hidden: usize) -> Result<usize> {
    match family {
        Family::GraniteMoeHybrid => f.size_or("shared_intermediate_size", hidden),
        Family::Lfm2 => conv::inner_width(f, hidden),
        _ => f.size_or("intermediate_size", hidden),
    }
}

/// Whether there are experts; some families leave them out.
pub(super) fn has_experts(f: &Fields<'_>, family: Family) -> Result<bool> {
    match family {
        Family::Granite | Family::GraniteMoeHybrid => {
            Ok(f.count("num_local_experts")?.is_some_and(|n| n > 0))
        }
        Family::NemotronH => Ok(f.count("n_routed_experts")?.is_some_and(|n| n > 0)),
        _ => Ok(family.has_experts()),
    }
}

pub(super) fn moe(f: &Fields<'_>, family: Family, layers: usize) -> Result<MoeConfig> {
    let experts = any(f, &["num_experts", "num_local_experts", "n_routed_experts"])?;
    let names = ["num_experts_per_tok", "num_experts_per_token", "experts_per_token"];
    let per_token = any(f, &names)?;
    let own = f.size_opt("moe_intermediate_size")?;
    let intermediate = own.map_or_else(|| f.size("intermediate_size"), Ok)?;
    let moe = MoeConfig {
        experts,
        per_token,
        intermediate,
        shared_intermediate: shared(f, family, intermediate)?,
        latent: match family {
            Family::NemotronH => f.size_opt("moe_latent_size")?,
            _ => None,
        },
        scoring: scoring(f, family)?,
        sparse: sparse(f, layers)?,
        f: match family {
            Family::GptOss => Glu::Shifted {
                limit: f.positive("swiglu_limit")?.unwrap_or(7.0),
                alpha: f.positive("swiglu_alpha")?.unwrap_or(1.702),
            },
            Family::DeepSeekV4 | Family::Glm5Next => {
                Glu::Clipped { limit: f.positive("swiglu_limit")?.unwrap_or(10.0) }
            }
            _ => Glu::Of(Map::Silu),
        },
    };
    if per_token > experts {
        let what = format!("{per_token} of {experts} experts");
        return Err(Error::file(what).at("num_experts_per_tok"));
    }
    Ok(moe)
}

fn shared(f: &Fields<'_>, family: Family, intermediate: usize) -> Result<usize> {
    match family {
        Family::Qwen3Moe | Family::Mixtral | Family::MiniMaxM2 | Family::GptOss => Ok(0),
        Family::Qwen2Moe | Family::Qwen3Next | Family::Qwen35Moe => {
            f.size("shared_expert_intermediate_size")
        }
        Family::GraniteMoeHybrid => f.size("shared_intermediate_size"),
        Family::Granite => Ok(f.count("shared_intermediate_size")?.unwrap_or(0)),
        Family::NemotronH if f.count("n_shared_experts")? == Some(0) => Ok(0),
        Family::NemotronH => f.size("moe_shared_expert_intermediate_size"),
        _ => {
            let count = match f.count("n_shared_experts")? {
                Some(n) => Some(n),
                None => f.count("num_shared_experts")?,
            };
            Ok(count.unwrap_or(1) * intermediate)
        }
    }
}

fn scoring(f: &Fields<'_>, family: Family) -> Result<Scoring> {
    let always = matches!(
        family,
        Family::Mixtral
            | Family::MiniMaxM2
            | Family::GptOss
            | Family::DeepSeekV4
            | Family::Granite
            | Family::GraniteMoeHybrid
    );
    let default = family == Family::Qwen35Moe || family.routes_by_sigmoid();
    let renormalize = match f.get("moe_renormalize") {
        Some(_) => f.bool_or("moe_renormalize", true)?,
        None => f.bool_or("norm_topk_prob", default)?,
    };
    let score = match f.str("scoring_func")?.or(f.str("moe_router_activation_func")?) {
        None if family.routes_by_sigmoid() => Score::Sigmoid,
        None if family == Family::DeepSeekV4 => Score::SqrtSoftplus,
        None => Score::Softmax,
        Some("sigmoid") if family.routes_by_sigmoid() => Score::Sigmoid,
        Some("sqrtsoftplus") if family == Family::DeepSeekV4 => Score::SqrtSoftplus,
        Some("softmax") if !family.routes_by_sigmoid() => Score::Softmax,
        Some(other) => {
            let what = format!("scores by \"{other}\" are not known for {}", family.name());
            return Err(Error::unsupported(what).at("scoring_func"));
        }
    };
    match f.str("topk_method")? {
        None | Some("noaux_tc") => {}
        Some(other) => {
            let what = format!("experts chosen by \"{other}\" are not known");
            return Err(Error::unsupported(what).at("topk_method"));
        }
    }
    let groups = match f.count("n_group")? {
        Some(n) => Some(n),
        None => f.count("num_expert_group")?,
    };
    let groups = match (groups, f.count("topk_group")?) {
        (Some(count), Some(keep)) if count > 1 => Some(Groups { count, keep }),
        _ => None,
    };
    let scale = f.positive("routed_scaling_factor")?.unwrap_or(1.0);
    Ok(Scoring { score, groups, renormalize: always || renormalize, scale })
}

/// Some families have plain layers first, some in between, some by list.
fn sparse(f: &Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    let (every, first) = (f.size_or("decoder_sparse_step", 1)?, f.count("first_k_dense_replace")?);
    let freq = f.size_or("moe_layer_freq", 1)?;
    // A list says it all, whatever stands beside it.
    if let Some(list) = f.list("mlp_layer_types")? {
        if list.len() != layers {
            let what = format!("{} entries for {layers} layers", list.len());
            return Err(Error::file(what).at("mlp_layer_types"));
        }
        return Ok(list.iter().map(|v| v.as_str() != Some("dense")).collect());
    }
    let layer = |v: &Value| {
        let n = v.as_u64().and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| Error::file(format!("{v} is no layer")).at("mlp_only_layers"))
    };
    let dense = f.list("mlp_only_layers")?.map_or(&[][..], Vec::as_slice);
    let dense: Vec<usize> = dense.iter().map(layer).collect::<Result<_>>()?;
    let is_sparse = |i: &usize| {
        let counted = (i + 1).is_multiple_of(every) && i.is_multiple_of(freq);
        counted && *i >= first.unwrap_or(0) && !dense.contains(i)
    };
    Ok((0..layers).map(|i| is_sparse(&i)).collect())
}
