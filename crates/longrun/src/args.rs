//! Every flag of every command, as data.

mod bench;
mod chat;
mod device;
mod perplexity;
mod serve;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub(crate) use bench::{
    BenchArgs, BenchLoad, BenchModel, ConversationsArgs, QuantName, SpeedArgs, StreamsArgs,
};
pub(crate) use chat::{ChatArgs, SamplingArgs};
pub(crate) use device::{DeviceArgs, DeviceName};
pub(crate) use perplexity::PerplexityArgs;
pub(crate) use serve::{LogFormat, MemoryArg, ServeArgs};

/// An inference engine for large language models whose completions run long.
#[derive(Parser)]
#[command(version, about, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 a check, a soak or a load found what it looks for; 2 bad usage, or \
(soak) the object limit was reached; 3 a bad file; 4 not supported by this build; 5 a limit; 6 the device; 70 a bug, \
please report it.";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write text that goes on with a prompt.
    Generate(GenerateArgs),
    /// Talk with a model, here or at a server.
    Chat(Box<ChatArgs>),
    /// Serve a model over HTTP, to the clients of OpenAI and others.
    Serve(Box<ServeArgs>),
    /// Compare a checkpoint's logits with reference vectors, fed in every way.
    Check(CheckArgs),
    /// Say how well a model foretells a text.
    Perplexity(PerplexityArgs),
    /// Decode one very long completion and watch every buffer.
    Soak(SoakArgs),
    /// Measure speed, alone, in batches and under load.
    Bench(BenchArgs),
    /// Say what a model's files hold, without loading it.
    Inspect(InspectArgs),
    /// Write a model in the layout of MLX, quantised or not, with an adapter fused or not.
    Convert(ConvertArgs),
    /// Print what completes this program's flags in a shell.
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write the manual pages.
    #[command(hide = true)]
    Man(ManArgs),
}

/// Types of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvName {
    F32,
    F16,
    Bf16,
    Q8,
    Q4,
}

/// What caches keep.
#[derive(ClapArgs, Clone, Copy)]
pub(crate) struct KvArgs {
    /// The type of stored keys and values
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = KvName::F32)]
    pub(crate) kv_type: KvName,
}

/// What goes beside the weights.
#[derive(ClapArgs, Clone)]
pub(crate) struct AdapterArgs {
    /// The folder of a LoRA adapter, as MLX or PEFT write it
    #[arg(long, value_name = "DIR")]
    pub(crate) adapter: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub(crate) struct GenerateArgs {
    /// A folder with config.json and safetensors, a .gguf file, a model of the hub (`ORG/NAME[:QUANT][@REVISION]` or
    /// ORG/NAME/FILE.gguf, downloaded once), or tiny:FAMILY (random weights) [default: the demo model inside of this
    /// program]
    #[arg(long, value_name = "PATH|ORG/NAME|tiny:FAMILY")]
    pub(crate) model: Option<String>,
    /// The prompt; - reads it from standard input [default with the demo model: "Once upon a time"]
    #[arg(long, value_name = "TEXT|-", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// A system message, for models with a chat template
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Do not apply the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Tokens to generate at most [default: 256, or what the context has room for]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Report the log-probability of each token, with this many alternatives
    #[arg(long, value_name = "N")]
    pub(crate) logprobs: Option<usize>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) draft: DraftArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// Speculation.
#[derive(ClapArgs, Clone)]
pub(crate) struct DraftArgs {
    /// Guess tokens ahead by the checkpoint's own head (MTP), by looking the last tokens up in the text, or by a smaller
    /// model of the same vocabulary; the text stays the same
    #[arg(long, value_name = "mtp|lookup|PATH|ORG/NAME|tiny:FAMILY")]
    pub(crate) draft: Option<String>,
    /// Tokens to guess at most in each step
    #[arg(long, value_name = "N", default_value_t = 4, requires = "draft")]
    pub(crate) drafts: usize,
}

#[derive(ClapArgs)]
pub(crate) struct CheckArgs {
    /// The model's folder or .gguf file, or ORG/NAME on the hub
    #[arg(long, value_name = "PATH|ORG/NAME")]
    pub(crate) model: PathBuf,
    /// The reference vectors [default: golden.safetensors beside the model]
    #[arg(long, value_name = "FILE")]
    pub(crate) against: Option<PathBuf>,
    /// The largest difference allowed, relative to the largest logit [default: 1e-4, or what docs/families.md says of
    /// the type of keys and values]
    #[arg(long, value_name = "X")]
    pub(crate) tolerance: Option<f32>,
    /// Print a JSON array instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SoakMode {
    /// One row.
    Single,
    /// Rows that all run long.
    Batch,
    /// One row that runs long, beside short ones that join and leave.
    Churn,
}

impl SoakMode {
    /// Rows unless told otherwise.
    pub(crate) fn rows(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Batch => 2,
            Self::Churn => 4,
        }
    }
}

#[cfg(feature = "leak-lab")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Inject {
    /// Per-layer bookkeeping that only one layer reads (every linear layer but one).
    Advance,
    /// A value cache that nobody reads (every attention layer).
    Values,
    /// A pooled cache grown by concatenation (every attention layer, once in four tokens).
    Pooling,
}

#[derive(ClapArgs)]
#[command(
    after_help = "The demo model's context of 1,024 tokens can be lifted with --context; text past the trained \
length is noise, and that is fine here: what is watched is memory."
)]
pub(crate) struct SoakArgs {
    /// tiny:FAMILY, demo, a folder, a .gguf file, or ORG/NAME on the hub
    #[arg(long, value_name = "tiny:FAMILY|demo|PATH|ORG/NAME", default_value = "demo")]
    pub(crate) model: String,
    /// Layers (tiny models)
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<usize>,
    /// Every n-th layer attends to everything (tiny models)
    #[arg(long, value_name = "N")]
    pub(crate) interval: Option<usize>,
    /// Experts (tiny models)
    #[arg(long, value_name = "N")]
    pub(crate) experts: Option<usize>,
    /// Width (tiny models)
    #[arg(long, value_name = "N")]
    pub(crate) hidden: Option<usize>,
    /// No recurrent layers (tiny models)
    #[arg(long)]
    pub(crate) attention_only: bool,
    /// What runs beside the long completion
    #[arg(long, value_enum, default_value_t = SoakMode::Single)]
    pub(crate) mode: SoakMode,
    /// Rows, the long one included [default: 1; 2 for batch, 4 for churn]
    #[arg(long, value_name = "R")]
    pub(crate) rows: Option<usize>,
    /// Tokens of the long completion
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub(crate) tokens: usize,
    /// Tokens between reports [default: a twentieth]
    #[arg(long, value_name = "N")]
    pub(crate) report_every: Option<usize>,
    /// The most live and cached buffers
    #[arg(long, value_name = "N", default_value_t = 499_000)]
    pub(crate) resource_limit: usize,
    /// The longest sequence, beyond what the model was made for if need be
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Live buffers per token that are called growth
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) fail_slope: f64,
    /// Seed of the weights and of the churn
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,
    /// Plant a historical leak
    #[cfg(feature = "leak-lab")]
    #[arg(long, value_enum)]
    pub(crate) inject: Option<Inject>,
    /// Make the equality check an error again, which ends the run at the first link
    #[cfg(feature = "leak-lab")]
    #[arg(long, requires = "inject")]
    pub(crate) strict: bool,
    /// Drop the planted chains every N tokens
    #[cfg(feature = "leak-lab")]
    #[arg(long, value_name = "N", requires = "inject")]
    pub(crate) heal_every: Option<usize>,
    /// Write the outcome as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json_out: Option<PathBuf>,
    /// Draw live buffers over tokens
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(ClapArgs)]
pub(crate) struct InspectArgs {
    /// A folder, a .gguf file, demo, or ORG/NAME on the hub
    #[arg(value_name = "PATH|ORG/NAME")]
    pub(crate) path: String,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Ways to quantise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizeName {
    Q2,
    Q3,
    Q4,
    Q5,
    Q6,
    Q8,
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

/// Recipes of few bits for most weights and more for some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MixedName {
    #[value(name = "mixed_2_6")]
    Mixed2And6,
    #[value(name = "mixed_3_4")]
    Mixed3And4,
    #[value(name = "mixed_3_6")]
    Mixed3And6,
    #[value(name = "mixed_4_6")]
    Mixed4And6,
}

/// Types of plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DtypeName {
    Float32,
    Bfloat16,
    Float16,
}

#[derive(ClapArgs)]
pub(crate) struct ConvertArgs {
    /// A folder with config.json and safetensors, a .gguf file, or demo
    #[arg(long, value_name = "PATH")]
    pub(crate) model: String,
    /// The folder to write; it must not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// How to quantise [default: not at all]
    #[arg(long, value_enum, conflicts_with = "mixed")]
    pub(crate) quantize: Option<QuantizeName>,
    /// Quantise with more bits where they count most
    #[arg(long, value_enum)]
    pub(crate) mixed: Option<MixedName>,
    /// Numbers that share a scale: 32, 64 or 128 [default: 64, or what the mode has]
    #[arg(long, value_name = "N")]
    pub(crate) group_size: Option<usize>,
    /// The type of what is not quantised [default: that of the source]
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<DtypeName>,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
}

#[derive(ClapArgs)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(ClapArgs)]
pub(crate) struct ManArgs {
    /// The folder to write them into; it is made
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}
