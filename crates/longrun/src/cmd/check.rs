//! `longrun check`: a checkpoint against reference vectors, fed in every way.

use std::process::ExitCode;

use longrun_lm::adapter::Adapter;
use longrun_lm::check::{Row, check_stored, read_vectors, tolerance};
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::{Error, Result};

use crate::args::CheckArgs;
use crate::{model, show};

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let kv = model::stored(args.kv);
    let tolerance = args.tolerance.unwrap_or(tolerance(kv));
    if tolerance.is_nan() || tolerance < 0.0 {
        return Err(Error::usage("must be 0 or more").at("--tolerance"));
    }
    let model = model::place(&args.model)?;
    let mut checkpoint = Checkpoint::open(&model)?;
    if let Some(folder) = &args.adapter.adapter {
        checkpoint = checkpoint.with_adapter(Adapter::open(folder)?);
    }
    let beside = || {
        let folder = if model.is_dir() { Some(&*model) } else { model.parent() };
        folder.unwrap_or(&model).join("golden.safetensors")
    };
    let against = args.against.clone().unwrap_or_else(beside);
    let place = |e: Error| e.at(against.display());
    let bytes = std::fs::read(&against).map_err(|e| {
        place(Error::file(format!("can't be read: {e}"))).hint("name the vectors with --against")
    })?;
    let vectors = read_vectors(&bytes).map_err(place)?;
    let device = model::device(args.device)?;
    show::note(&format!("device: {}", device.name()));
    let rows = check_stored(device, &checkpoint, &vectors, kv)?;
    let good = rows.iter().all(|row| row.passes(tolerance));
    show::out(&if args.json { show::json(&rows)? } else { table(&rows, tolerance) })?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(rows: &[Row], tolerance: f32) -> String {
    let mut text = String::from(
        "vector  mode            tokens  max abs    relative   arg-max  greedy  bits   verdict\n",
    );
    for row in rows {
        let mode = match row.mode {
            longrun_lm::check::Mode::OnePass => "one pass",
            longrun_lm::check::Mode::Chunks => "chunks of 7",
            longrun_lm::check::Mode::TokenByToken => "token by token",
            longrun_lm::check::Mode::Batched => "two rows",
        };
        text += &format!(
            "{:7} {:15} {:6}  {:<9.3e}  {:<9.3e}  {:6.1}%  {:>2}/{:<2}   {:5}  {}\n",
            row.vector,
            mode,
            row.tokens,
            row.max_abs,
            row.relative,
            row.argmax_agreement * 100.0,
            row.greedy_agreed,
            row.greedy_compared,
            if row.same_bits { "same" } else { "differ" },
            if row.passes(tolerance) { "ok" } else { "BEYOND" },
        );
    }
    text
}
