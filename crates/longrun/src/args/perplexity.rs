//! The flags of `longrun perplexity`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{AdapterArgs, DeviceArgs, KvArgs};

#[derive(ClapArgs)]
#[command(
    after_help = "The text is cut into chunks of --context tokens; of each the second half is scored, so that every \
scored token has at least half a context before it. A model that begins texts with a token of its own has it at the \
beginning of each chunk. These are the rules of llama.cpp's llama-perplexity, whose figures for the same file can stand \
beside these (docs/testing.md)."
)]
pub(crate) struct PerplexityArgs {
    /// A folder with config.json and safetensors, a .gguf file, ORG/NAME on the hub, demo, or tiny:FAMILY
    #[arg(long, value_name = "PATH|ORG/NAME|tiny:FAMILY")]
    pub(crate) model: String,
    /// The text, in UTF-8; - reads it from standard input. A newline at its end does not count
    #[arg(long, value_name = "FILE|-")]
    pub(crate) text: PathBuf,
    /// Tokens of a chunk
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) context: usize,
    /// Score the last N tokens of chunks that begin N tokens apart, each half of N longer than --context
    #[arg(long, value_name = "N")]
    pub(crate) stride: Option<usize>,
    /// Chunks to read at most [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) chunks: Option<u32>,
    /// Chunks that are read together; the figures do not depend on it
    #[arg(long, value_name = "R", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) rows: u8,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}
