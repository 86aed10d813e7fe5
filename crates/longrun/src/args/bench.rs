//! The flags of `longrun bench` and of its loads.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};

use super::{AdapterArgs, DeviceArgs, KvArgs};

/// How weights that are made up are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantName {
    /// Plain numbers.
    Bf16,
    /// MLX's groups of 64, in 8 bits.
    Q8,
    /// MLX's groups of 64, in 4 bits.
    Q4,
    /// Blocks of GGUF.
    #[value(name = "q4_k")]
    Q4K,
}

/// What is measured, and on what.
#[derive(ClapArgs)]
pub(crate) struct BenchModel {
    /// A folder, a .gguf file, ORG/NAME on the hub, demo, tiny:FAMILY, or the shape of a real model with weights that are
    /// made up: shape:llama-8b, shape:qwen3-0.6b, shape:qwen3.5-35b-a3b, shape:tiny
    #[arg(long, value_name = "PATH|ORG/NAME|demo|tiny:FAMILY|shape:NAME", default_value = "demo")]
    pub(crate) model: String,
    /// How the weights of a shape are stored [default: bf16]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) quant: Option<QuantName>,
    /// The longest sequence, beyond what the model was made for if need be
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Tokens of one prompt that a step reads at most
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) chunk: usize,
    /// Seed of tiny weights, prompts and order
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

#[derive(ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) load: Option<BenchLoad>,
    #[command(flatten)]
    pub(crate) speed: SpeedArgs,
}

/// Loads that are proofs too: 1 is the exit code if what they promise is not held.
#[derive(Subcommand)]
pub(crate) enum BenchLoad {
    /// Streams that decode while a long prompt arrives: none misses a step.
    Streams(StreamsArgs),
    /// Conversations with shared beginnings against a budget of bytes: it is never passed.
    Conversations(ConversationsArgs),
}

#[derive(ClapArgs)]
#[command(
    after_help = "Prompts are random ids, and tokens are the likeliest ones. A batch of --batch decodes at the first \
depth. With -b, as with a shape if none of --depth, --batch and --profile is given, each batch is measured on its own: \
all of its rows read a prompt, then all decode behind it."
)]
pub(crate) struct SpeedArgs {
    /// Tokens of the prompt that is read
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub(crate) prompt: usize,
    /// Tokens that each row generates
    #[arg(short, long, value_name = "N", default_value_t = 128)]
    pub(crate) generate: usize,
    /// Rows that each read a prompt and then decode together, a line for each number [default for shapes: 1]
    #[arg(short = 'b', value_name = "N,..", value_delimiter = ',', conflicts_with_all = ["depth", "batch", "profile"])]
    pub(crate) rows: Option<Vec<usize>>,
    /// Tokens before those that are generated [default: 0,512]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    depth: Option<Vec<usize>>,
    /// Rows that decode together [default: 1,2,4,8,16,32]
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    batch: Option<Vec<usize>>,
    /// Times that everything is measured; medians count [default: 3; 1 with -b]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Say where the time of steps goes, by operation: a further round, beside those that are measured
    #[arg(long)]
    pub(crate) profile: bool,
    /// Print one JSON object instead of a table; with -b an array
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: BenchModel,
}

impl SpeedArgs {
    /// The batches to measure on their own, if that is what is asked for.
    pub(crate) fn batches(&self) -> Option<&[usize]> {
        let other = self.depth.is_some() || self.batch.is_some() || self.profile;
        let shape = self.model.model.starts_with("shape:");
        self.rows.as_deref().or_else(|| (shape && !other).then_some(&[1]))
    }

    pub(crate) fn depth(&self) -> &[usize] {
        self.depth.as_deref().unwrap_or(&[0, 512])
    }

    pub(crate) fn batch(&self) -> &[usize] {
        self.batch.as_deref().unwrap_or(&[1, 2, 4, 8, 16, 32])
    }

    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.batches().is_some() { 1 } else { 3 })
    }
}

#[derive(ClapArgs)]
pub(crate) struct StreamsArgs {
    /// Rows that decode
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) streams: usize,
    /// Tokens of the prompt that arrives
    #[arg(long, value_name = "N", default_value_t = 30_000)]
    pub(crate) long: usize,
    /// Write the outcome as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json_out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: BenchModel,
}

#[derive(ClapArgs)]
pub(crate) struct ConversationsArgs {
    /// Conversations
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub(crate) conversations: usize,
    /// Requests of each
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) turns: usize,
    /// System prompts that they share
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) systems: usize,
    /// Rows in service at the same time; twice as many requests are there
    #[arg(long, value_name = "R", default_value_t = 8)]
    pub(crate) rows: usize,
    /// Budget of all memory of the device, such as 64MiB [default: what a quarter of the conversations needs]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) memory: Option<usize>,
    /// Write the outcome as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json_out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: BenchModel,
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("{unit:?} is no unit; KiB, MiB and GiB are")),
    };
    let number: usize = number.parse().map_err(|_| "wants NUMBER or NUMBER MiB".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "more bytes than there are".into())
}
