//! The flags of `longrun serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args as ClapArgs, Parser, ValueEnum};

use super::{AdapterArgs, DeviceArgs, DraftArgs, KvArgs};

/// How much memory the device may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MemoryArg {
    Bytes(usize),
    /// A part of what is free at the start.
    Fraction(f64),
}

impl FromStr for MemoryArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a size such as 12GiB nor a part such as 0.7");
        let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let number: f64 = text[..end].trim().parse().map_err(|_| wrong())?;
        let unit = match &text[end..] {
            "" if number > 0.0 && number <= 1.0 => return Ok(Self::Fraction(number)),
            "" | "B" => 1.0,
            "KiB" | "K" => 1024.0,
            "MiB" | "M" => 1024f64.powi(2),
            "GiB" | "G" => 1024f64.powi(3),
            "KB" | "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            _ => return Err(wrong()),
        };
        let bytes = number * unit;
        // Half of the address space is more than anybody has.
        if !(1.0..2f64.powi(62)).contains(&bytes) {
            return Err(wrong());
        }
        Ok(Self::Bytes(bytes as usize))
    }
}

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

impl LogLevel {
    pub(crate) fn level(self) -> tracing::Level {
        match self {
            Self::Error => tracing::Level::ERROR,
            Self::Warn => tracing::Level::WARN,
            Self::Info => tracing::Level::INFO,
            Self::Debug => tracing::Level::DEBUG,
        }
    }
}

/// A name and what it stands for.
fn named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), PathBuf::from(path)))
        }
        _ => Err("wants NAME=PATH".to_owned()),
    }
}

#[derive(ClapArgs, Clone)]
pub(crate) struct ServeArgs {
    /// A folder, a .gguf file, a model of the hub, or tiny:FAMILY (random weights) [default: the demo model inside of
    /// this program]
    #[arg(long, value_name = "PATH|ORG/NAME|tiny:FAMILY")]
    pub(crate) model: Option<String>,
    /// What clients call the model [default: what --model says]
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Option<String>,
    /// A further model, loaded when a request names it; may be given often
    #[arg(long, value_name = "NAME=PATH", value_parser = named)]
    pub(crate) also: Vec<(String, PathBuf)>,
    /// Models that are loaded at the same time, which share the memory evenly [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) max_loaded: Option<usize>,
    /// Seconds after which a model that nobody asks for is unloaded [default: never]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_unload: Option<u64>,
    /// A LoRA adapter of the first model, which requests choose by this name; may be given often
    #[arg(long, value_name = "NAME=PATH", value_parser = named)]
    pub(crate) lora: Vec<(String, PathBuf)>,
    /// Adapters that are in memory at the same time [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) max_loras: Option<usize>,
    /// The address to listen at
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// The port to listen at; 0 takes any that is free
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub(crate) port: u16,
    /// A key that clients have to show; may be given often
    #[arg(long, value_name = "KEY", env = "LONGRUN_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    /// A file with such keys, a line each
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Memory for weights, caches and all else, as a size or a part of what is free [default: 0.7, of a GPU 0.9]
    #[arg(long, value_name = "SIZE|PART")]
    pub(crate) memory: Option<MemoryArg>,
    /// Tokens of a text at most, prompt and answer [default: what the model was made for, or what the memory holds]
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Texts that are computed at the same time
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) max_rows: usize,
    /// Prompt tokens of a step at most
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) chunk: usize,
    /// Beginnings of texts to keep at most for texts to come, as far as the memory holds them [default: 16 for each row]
    #[arg(long, value_name = "N")]
    pub(crate) max_snapshots: Option<usize>,
    /// A chat template in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Where to keep what texts began with, from one start to the next
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Refuse requests with fields that are not known
    #[arg(long)]
    pub(crate) strict: bool,
    /// Requests under way at most, those that wait included; more are told to come back
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) max_requests: usize,
    /// Bytes of a request's body at most
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub(crate) max_body: usize,
    /// Seconds that a request may take [default: any]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// Seconds that requests have to end after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain: u64,
    /// An origin whose pages may call the server from a browser, or *; may be given often
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors: Vec<String>,
    /// How much is logged
    #[arg(long, value_enum, default_value_t = LogLevel::Info)]
    pub(crate) log_level: LogLevel,
    /// How it is written
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Seed of the weights (tiny models)
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) adapter: AdapterArgs,
    #[command(flatten)]
    pub(crate) draft: DraftArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

impl ServeArgs {
    /// What it is if no flag is given.
    pub(crate) fn plain() -> Self {
        #[derive(Parser)]
        struct Plain {
            #[command(flatten)]
            args: ServeArgs,
        }
        Plain::parse_from(["longrun"]).args
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryArg::{self, Bytes, Fraction};

    #[test]
    fn memory_is_a_size_or_a_part() {
        for (text, memory) in [
            ("12GiB", Bytes(12 << 30)),
            ("1.5G", Bytes(3 << 29)),
            ("2 MiB", Bytes(2 << 20)),
            ("2", Bytes(2)),
            ("3GB", Bytes(3_000_000_000)),
            ("0.7", Fraction(0.7)),
            ("1", Fraction(1.0)),
        ] {
            assert_eq!(text.parse::<MemoryArg>().unwrap(), memory, "{text}");
        }
        for text in ["", "GiB", "x", "-1", "0", "0GiB", "1e400", "5 gib", "NaN", "inf", "1e30GiB"] {
            assert!(text.parse::<MemoryArg>().is_err(), "{text}");
        }
    }
}
