//! The flags of `longrun bench` and of its loads.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::{AdapterArgs, CpuArgs, DeviceName, KvArgs};

/// What is measured, and on what.
#[derive(ClapArgs)]
pub(crate) struct BenchModel {
    /// tiny:FAMILY, demo, a folder, a .gguf file, or ORG/NAME on the hub
    #[arg(long, value_name = "tiny:FAMILY|demo|PATH|ORG/NAME", default_value = "demo")]
    pub(crate) model: String,
    /// The longest sequence, beyond what the model was made for if need be
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Tokens of one prompt that a step reads at most
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) chunk: usize,
    /// Where to run
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    pub(crate) device: DeviceName,
    /// Seed of tiny weights, prompts and order
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
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
#[command(after_help = "Prompts are random ids. A batch decodes at the first depth.")]
pub(crate) struct SpeedArgs {
    /// Tokens of the prompt that is read
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) prompt: usize,
    /// Tokens that each row generates
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) generate: usize,
    /// Tokens before those that are generated
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [0, 512])]
    pub(crate) depth: Vec<usize>,
    /// Rows that decode together
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32])]
    pub(crate) batch: Vec<usize>,
    /// Times that everything is measured; medians count
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Say where the time of steps goes, by operation: a further round, beside those that are measured
    #[arg(long)]
    pub(crate) profile: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: BenchModel,
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
