//! The `longrun` binary: one match over its commands.
//!
//! Owns flags, files named on the command line, the terminal and the clock. It sees no tensor and no device.
#![forbid(unsafe_code)]

mod args;
mod cmd;
mod hub;
mod machine;
mod model;
mod plot;
mod serve;
mod show;

use std::process::ExitCode;

use clap::Parser;
use longrun_lm::Kind;

use args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.command {
        Command::Generate(args) => cmd::generate::run(&args),
        Command::Chat(args) => cmd::chat::run(*args),
        Command::Serve(args) => serve::run(&args),
        Command::Check(args) => cmd::check::run(&args),
        Command::Perplexity(args) => cmd::perplexity::run(&args),
        Command::Soak(args) => cmd::soak::run(&args),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Inspect(args) => cmd::inspect::run(&args),
        Command::Convert(args) => cmd::convert::run(&args),
        Command::Completions(args) => cmd::shipped::completions(&args),
        Command::Man(args) => cmd::shipped::man(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            show::note(&format!("longrun: {error}"));
            exit_code(error.kind())
        }
    }
}

/// What a shell sees of an error; 1 is kept for a command's own negative verdict.
fn exit_code(kind: Kind) -> ExitCode {
    ExitCode::from(match kind {
        Kind::Usage => 2,
        Kind::File => 3,
        Kind::Unsupported => 4,
        Kind::Limit => 5,
        Kind::Device => 6,
        Kind::Bug => 70,
    })
}
