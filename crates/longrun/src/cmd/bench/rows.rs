//! Speed behind a prompt: some rows read one each, then all of them decode together.
//!
//! Owns the procedure and its JSON. The prompt counts from the first step to the first token of the last row; decoding is
//! measured once every row does, over as many steps as tokens were asked for. Rounds have the same prompts, and must give
//! the same tokens, each the likeliest one.

use std::fmt::Write as _;
use std::process::ExitCode;

use longrun_lm::array::BLOCK;
use longrun_lm::cache::Room;
use longrun_lm::engine::Event;
use longrun_lm::source::ModelSource;
use longrun_lm::{Error, Kind, Result};
use serde::Serialize;

use super::speed::lead;
use super::{Bench, Facts, Used, Work, fits, median, open, positive};
use crate::args::SpeedArgs;
use crate::{model, show};

/// Steps that warm up.
const WARM: usize = 3;

/// What was measured of one number of rows.
#[derive(Debug, Serialize)]
struct Run {
    /// The model.
    shape: String,
    /// How most of its weights are stored.
    quant: Option<String>,
    kv_type: &'static str,
    device: String,
    weight_bytes: usize,
    /// Rows that decode together.
    batch: usize,
    prompt: usize,
    generate: usize,
    /// Of all rows together, as are the next ones.
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    ms_per_step: f64,
    /// Of decoding.
    #[serde(flatten)]
    used: Used,
    /// Buffers on the device before the first request, and once all rows have left.
    live_before: usize,
    live_after: usize,
    prefill_rounds: Vec<f64>,
    decode_rounds: Vec<f64>,
}

pub(super) fn run(args: &SpeedArgs, batches: &[usize]) -> Result<ExitCode> {
    positive("--prompt", args.prompt)?;
    positive("--generate", args.generate)?;
    positive("--rounds", args.rounds())?;
    batches.iter().try_for_each(|rows| positive("-b", *rows))?;
    let source = open(&args.model)?;
    let room = room(args, batches);
    fits(&args.model, &source, room.context)?;
    let mut bench = Bench::new(&args.model, &source, room, None)?;
    let prompts = vec![bench.ids(args.prompt)];
    read_and_decode(args, &mut bench, &prompts, WARM)?;
    let facts = Facts::new(&args.model, &source, &bench);
    let runs = batches.iter().map(|rows| measure(args, &mut bench, &source, *rows));
    let runs = runs.collect::<Result<Vec<Run>>>()?;
    show::out(&if args.json { show::json(&runs)? } else { table(args, &facts, &runs) })?;
    Ok(ExitCode::SUCCESS)
}

/// The longest text of `rows` rows: those that began to decode before the last one did are ahead of it.
fn length(args: &SpeedArgs, rows: usize) -> usize {
    let steps = args.generate.max(WARM).saturating_add(lead(args, rows, args.prompt));
    args.prompt.saturating_add(steps)
}

fn room(args: &SpeedArgs, batches: &[usize]) -> Room {
    let tokens = |rows: usize| rows.saturating_mul(length(args, rows).saturating_add(BLOCK));
    let all = || batches.iter().copied().chain([1]);
    Room {
        rows: all().fold(1, usize::max),
        context: all().map(|rows| length(args, rows)).fold(1, usize::max),
        tokens: all().map(tokens).fold(1, usize::max),
        chunk: args.model.chunk,
        snapshots: 0,
        drafts: 0,
    }
}

/// All rounds of `rows` rows.
fn measure(args: &SpeedArgs, bench: &mut Bench, source: &ModelSource, rows: usize) -> Result<Run> {
    let prompts: Vec<Vec<u32>> = (0..rows).map(|_| bench.ids(args.prompt)).collect();
    let live_before = bench.engine.executor().usage().live.buffers;
    let mut rounds: Vec<Round> = Vec::new();
    for _ in 0..args.rounds() {
        let round = read_and_decode(args, bench, &prompts, args.generate)?;
        if rounds.first().is_some_and(|first| first.tokens != round.tokens) {
            let what = format!("{rows} rows were given other tokens than the round before");
            return Err(Error::new(Kind::Bug, what).hint("please report it"));
        }
        rounds.push(round);
    }
    let exec = bench.engine.executor();
    let rates = |of: &dyn Fn(&Round) -> Work| rounds.iter().map(|r| of(r).rate()).collect();
    let prefill_rounds: Vec<f64> = rates(&|round| round.prefill);
    let decode_rounds: Vec<f64> = rates(&|round| round.decode);
    let decode: Vec<Work> = rounds.iter().map(|round| round.decode).collect();
    let step = |work: &Work| 1e3 * work.seconds / args.generate as f64;
    let shape = args.model.model.as_str();
    Ok(Run {
        shape: shape.strip_prefix(model::SHAPE).unwrap_or(shape).to_owned(),
        quant: stored(source),
        kv_type: model::stored(args.model.kv).name(),
        device: exec.device_name(),
        weight_bytes: exec.parts().weights,
        batch: rows,
        prompt: args.prompt,
        generate: args.generate,
        prefill_tokens_per_second: median(&prefill_rounds),
        decode_tokens_per_second: median(&decode_rounds),
        ms_per_step: median(&decode.iter().map(step).collect::<Vec<f64>>()),
        used: Used::of(bench.peaks, &decode),
        live_before,
        live_after: exec.usage().live.buffers,
        prefill_rounds,
        decode_rounds,
    })
}

/// One round.
struct Round {
    prefill: Work,
    decode: Work,
    /// What was chosen while decoding, step by step.
    tokens: Vec<u32>,
}

/// Reads the prompts, a row each, and decodes so many steps behind them.
fn read_and_decode(
    args: &SpeedArgs,
    bench: &mut Bench,
    prompts: &[Vec<u32>],
    steps: usize,
) -> Result<Round> {
    let rows = prompts.len();
    bench.begin();
    let started = bench.read(prompts.to_vec(), steps + lead(args, rows, args.prompt))?;
    let prefill = Work { tokens: rows * args.prompt, ..bench.work };
    bench.begin();
    let mut tokens = Vec::with_capacity(rows * steps);
    for _ in 0..steps {
        bench.step()?;
        tokens.extend(bench.events.iter().filter_map(|event| match event {
            Event::Token { choice, .. } => Some(choice.id),
            _ => None,
        }));
    }
    let decode = bench.leave(&started, steps)?;
    Ok(Round { prefill, decode, tokens })
}

/// How the weights of a model are stored: the format that most bytes have.
fn stored(source: &ModelSource) -> Option<String> {
    if let Some(storage) = source.storage() {
        return Some(storage.name().to_owned());
    }
    let formats = source.checkpoint()?.summary().formats;
    formats.into_iter().max_by_key(|(_, total)| total.bytes).map(|(name, _)| name)
}

fn table(args: &SpeedArgs, facts: &Facts, runs: &[Run]) -> String {
    let mut text = facts.text();
    if let Some(Run { quant: Some(quant), kv_type, .. }) = runs.first() {
        let _ = writeln!(text, "stored   weights in {quant}, keys and values in {kv_type}");
    }
    text += "\nrows   prompt t/s   decode t/s   ms a step  memory   arith   live buffers\n";
    for run in runs {
        let _ = writeln!(
            text,
            "{:4} {:12.1} {:12.1} {:11.3} {} {:>7} -> {}",
            run.batch,
            run.prefill_tokens_per_second,
            run.decode_tokens_per_second,
            run.ms_per_step,
            run.used.text(),
            run.live_before,
            run.live_after,
        );
    }
    let _ = writeln!(
        text,
        "\n{} tokens behind prompts of {}, {} {}; speeds are of all rows together, percents of the peaks while decoding",
        args.generate,
        args.prompt,
        args.rounds(),
        if args.rounds() == 1 { "round" } else { "rounds, medians" },
    );
    text
}
