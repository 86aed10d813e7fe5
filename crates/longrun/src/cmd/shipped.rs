//! `longrun completions` and `longrun man`: what packages ship beside the program.
//!
//! Owns nothing of its own: both are made from the flags.

use std::process::ExitCode;

use clap::CommandFactory;
use longrun_lm::{Error, Result};

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::show;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "longrun", &mut text);
    show::out(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `longrun.1` and a page for each command that is shown.
pub(crate) fn man(args: &ManArgs) -> Result<ExitCode> {
    let made = std::fs::create_dir_all(&args.folder);
    made.and_then(|()| clap_mangen::generate_to(Args::command(), &args.folder))
        .map_err(|e| Error::file(format!("can't be written: {e}")).at(args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
