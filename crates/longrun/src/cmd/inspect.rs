//! `longrun inspect`: what a model's files hold, without loading it.

use std::path::Path;
use std::process::ExitCode;

use longrun_lm::Result;
use longrun_lm::checkpoint::Checkpoint;

use crate::args::InspectArgs;
use crate::{model, show};

pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode> {
    let path = Path::new(&args.path);
    let checkpoint = if args.path == "demo" && !path.exists() {
        Checkpoint::from_embedded(model::DEMO)?
    } else {
        Checkpoint::open(&model::place(path)?)?
    };
    let summary = checkpoint.summary();
    let text = match (args.json, args.tensors) {
        (true, _) => show::json(&summary)?,
        (false, true) => format!("{summary:#}\n"),
        (false, false) => format!("{summary}\n"),
    };
    show::out(&text)?;
    Ok(ExitCode::SUCCESS)
}
