//! The flags of `longrun chat`, and those that say how tokens are chosen.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::serve::MemoryArg;
use super::{AdapterArgs, DeviceArgs, DraftArgs, KvArgs};

/// How tokens are chosen.
#[derive(ClapArgs, Clone, Default)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 takes the most likely token [default: the checkpoint's, else 0]
    #[arg(long, value_name = "T")]
    pub(crate) temp: Option<f32>,
    /// Sample among the most likely tokens that make up this much probability
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f32>,
    /// Sample among this many most likely tokens
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<usize>,
    /// Drop tokens less likely than this fraction of the most likely one
    #[arg(long, value_name = "P")]
    pub(crate) min_p: Option<f32>,
    /// Chance that the likeliest tokens above the threshold are dropped
    #[arg(long, value_name = "P")]
    pub(crate) xtc_probability: Option<f32>,
    /// See --xtc-probability
    #[arg(long, value_name = "P")]
    pub(crate) xtc_threshold: Option<f32>,
    /// Makes tokens of the recent text less likely (1 is off)
    #[arg(long, value_name = "X")]
    pub(crate) repetition_penalty: Option<f32>,
    /// Subtracted from the logit of each recent token
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Subtracted from the logit of each recent token, as often as it occurs
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Added to the logit of a token id; may be given often
    #[arg(long, value_name = "ID=X", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text [default: a random one]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// End before this text; may be given often
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("wants ID=NUMBER")?;
    let id = id.trim().parse().map_err(|_| format!("{id:?} is no token id"))?;
    let bias = bias.trim().parse().map_err(|_| format!("{bias:?} is no number"))?;
    Ok((id, bias))
}

#[derive(ClapArgs)]
#[command(
    after_help = "Without a terminal, standard input is a script: a message or a /command a line."
)]
pub(crate) struct ChatArgs {
    /// A folder, a .gguf file, a model of the hub, or tiny:FAMILY (random weights) [default: the demo model inside of
    /// this program]; with --server the name of one of its models [default: its first]
    #[arg(long, value_name = "PATH|ORG/NAME|tiny:FAMILY")]
    pub(crate) model: Option<String>,
    /// Talk to a server in place of a model in this process: any that speaks OpenAI's chat completions
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// The key that it wants
    #[arg(long, value_name = "KEY", env = "LONGRUN_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// A system message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Tokens of an answer at most [default: what the context has room for]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    /// A chat template in place of the model's own
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Tokens of a conversation at most [default: what the model was made for, or what the memory holds]
    #[arg(long, value_name = "N", conflicts_with = "server")]
    pub(crate) context: Option<usize>,
    /// Memory for weights, caches and all else, as a size or a part of what is free [default: 0.7, of a GPU 0.9]
    #[arg(long, value_name = "SIZE|PART", conflicts_with = "server")]
    pub(crate) memory: Option<MemoryArg>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) draft: DraftArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}
