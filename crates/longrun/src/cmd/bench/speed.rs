//! Speed without a load: reading a prompt, decoding behind texts of several lengths, decoding in batches.
//!
//! Owns the procedure. Prompts are never read while decoding is measured; a batch is measured once every row of it
//! decodes, over as many steps as tokens were asked for.

use std::fmt::Write as _;
use std::process::ExitCode;

use longrun_lm::Result;
use longrun_lm::array::BLOCK;
use longrun_lm::cache::Room;
use longrun_lm::engine::Request;
use serde::Serialize;

use super::profile::{self, Phase};
use super::{Bench, Facts, Used, Work, fits, median, open, positive};
use crate::args::SpeedArgs;
use crate::show;

/// Tokens a second of one measurement, the median and all rounds.
#[derive(Debug, Default, Serialize)]
struct Rate {
    tokens_per_second: f64,
    #[serde(flatten)]
    used: Used,
    rounds: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Depth {
    depth: usize,
    #[serde(flatten)]
    rate: Rate,
}

#[derive(Debug, Serialize)]
struct Batch {
    rows: usize,
    /// Of all rows together.
    total_tokens_per_second: f64,
    tokens_per_second_of_a_row: f64,
    /// Over one row, within a round; the median of the rounds.
    ratio: f64,
    #[serde(flatten)]
    used: Used,
    rounds: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    prompt: usize,
    generate: usize,
    prefill: Rate,
    decode: Vec<Depth>,
    batch: Vec<Batch>,
    /// Where the time of steps goes, if that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profile: Vec<Phase>,
    #[serde(flatten)]
    facts: Facts,
}

pub(super) fn run(args: &SpeedArgs) -> Result<ExitCode> {
    positive("--prompt", args.prompt)?;
    positive("--generate", args.generate)?;
    positive("--rounds", args.rounds())?;
    args.batch().iter().try_for_each(|rows| positive("--batch", *rows))?;
    let source = open(&args.model)?;
    let room = room(args);
    fits(&args.model, &source, room.context)?;
    let mut bench = Bench::new(&args.model, &source, room, None)?;
    let outcome = measure(args, &mut bench)?;
    let profile = if args.profile { profiled(args, &mut bench)? } else { Vec::new() };
    let facts = Facts::new(&args.model, &source, &bench);
    let outcome = Outcome { profile, facts, ..outcome };
    show::out(&if args.json { show::json(&outcome)? } else { table(&outcome) })?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens of a row that stands at `depth` and decodes beside others: those that it may be ahead by are included.
fn length(args: &SpeedArgs, rows: usize, depth: usize) -> usize {
    depth.max(1).saturating_add(args.generate).saturating_add(lead(args, rows, depth))
}

/// Steps from the first token of the first row to that of the last one, at most.
pub(super) fn lead(args: &SpeedArgs, rows: usize, depth: usize) -> usize {
    // A step that reads anything reads a token for each prompt, and as much as a chunk if there is as much.
    let steps = depth.max(1).div_ceil(args.model.chunk).saturating_add(1);
    steps.saturating_mul(rows).saturating_add(1)
}

fn room(args: &SpeedArgs) -> Room {
    let whole = |tokens: usize| tokens.saturating_add(BLOCK);
    let depth = args.depth().first().copied().unwrap_or(0);
    let alone = args.depth().iter().map(|depth| length(args, 1, *depth));
    let alone = alone.chain([args.prompt.saturating_add(1)]).max().unwrap_or(1);
    let beside = args.batch().iter().map(|rows| length(args, *rows, depth));
    let context = beside.fold(alone, usize::max);
    let batches = args.batch().iter().map(|n| n.saturating_mul(whole(length(args, *n, depth))));
    let tokens = batches.fold(whole(alone), usize::max);
    let rows = args.batch().iter().copied().fold(1, usize::max);
    Room { rows, context, tokens, chunk: args.model.chunk, snapshots: 0, drafts: 0 }
}

/// All rounds; the facts are filled in later.
fn measure(args: &SpeedArgs, bench: &mut Bench) -> Result<Outcome> {
    let first = args.depth().first().copied().unwrap_or(0);
    let bar = show::bar("measuring");
    let each = args.depth().len() + args.batch().len() + 1;
    bar.set_length(args.rounds().saturating_mul(each) as u64);
    prefill(bench, args.prompt.min(64))?;
    let mut all: [Vec<Vec<Work>>; 3] = Default::default();
    for _ in 0..args.rounds() {
        let mut one: [Vec<Work>; 3] = Default::default();
        one[0].push(prefill(bench, args.prompt)?);
        bar.inc(1);
        for depth in args.depth() {
            one[1].push(decode(args, bench, 1, *depth)?);
            bar.inc(1);
        }
        for rows in args.batch() {
            // One row at the first depth has been measured just now.
            let known = if *rows == 1 { one[1].first().copied() } else { None };
            one[2].push(known.map_or_else(|| decode(args, bench, *rows, first), Ok)?);
            bar.inc(1);
        }
        all.iter_mut().zip(one).for_each(|(all, one)| all.push(one));
    }
    bar.finish_and_clear();
    let peaks = bench.peaks;
    let rounds = |part: usize, i: usize| all[part].iter().map(|r| r[i]).collect::<Vec<Work>>();
    let rate = |work: Vec<Work>| {
        let rounds: Vec<f64> = work.iter().map(Work::rate).collect();
        Rate { tokens_per_second: median(&rounds), used: Used::of(peaks, &work), rounds }
    };
    let batch = args.batch().iter().enumerate().map(|(i, &rows)| {
        let (together, alone) = (rate(rounds(2, i)), rate(rounds(1, 0)));
        let ratios = together.rounds.iter().zip(&alone.rounds).map(|(t, a)| t / a);
        Batch {
            rows,
            total_tokens_per_second: together.tokens_per_second,
            tokens_per_second_of_a_row: together.tokens_per_second / rows as f64,
            ratio: median(&ratios.collect::<Vec<f64>>()),
            used: together.used,
            rounds: together.rounds,
        }
    });
    let depths = args.depth().iter().enumerate();
    Ok(Outcome {
        prompt: args.prompt,
        generate: args.generate,
        prefill: rate(rounds(0, 0)),
        decode: depths.map(|(i, &depth)| Depth { depth, rate: rate(rounds(1, i)) }).collect(),
        batch: batch.collect(),
        profile: Vec::new(),
        facts: Facts::default(),
    })
}

/// One more round of everything, to see where its time goes.
fn profiled(args: &SpeedArgs, bench: &mut Bench) -> Result<Vec<Phase>> {
    let first = args.depth().first().copied().unwrap_or(0);
    bench.engine.profile(true);
    prefill(bench, args.prompt)?;
    let mut phases = vec![profile::phase(bench, format!("prefill, {} tokens", args.prompt))];
    let alone = args.depth().iter().map(|depth| (1, *depth));
    let batches = args.batch().iter().filter(|rows| **rows > 1).map(|rows| (*rows, first));
    for (rows, depth) in alone.chain(batches) {
        decode(args, bench, rows, depth)?;
        let of = if rows > 1 { format!(" of {rows} rows") } else { String::new() };
        phases.push(profile::phase(bench, format!("decode{of}, after {depth} tokens")));
    }
    bench.engine.profile(false);
    Ok(phases)
}

/// Reads a prompt; its first token is included.
fn prefill(bench: &mut Bench, prompt: usize) -> Result<Work> {
    let ids = bench.ids(prompt);
    bench.begin();
    bench.engine.submit(Request::new(ids, 1))?;
    while bench.engine.rows() > 0 {
        bench.step()?;
    }
    Ok(Work { tokens: prompt, ..bench.work })
}

/// Decodes with `rows` rows together, each behind a text of `depth` tokens.
fn decode(args: &SpeedArgs, bench: &mut Bench, rows: usize, depth: usize) -> Result<Work> {
    let most = args.generate + lead(args, rows, depth);
    let prompts = (0..rows).map(|_| bench.ids(depth.max(1))).collect();
    let started = bench.read(prompts, most)?;
    bench.begin();
    for _ in 0..args.generate {
        bench.step()?;
    }
    bench.leave(&started, args.generate)
}

fn table(o: &Outcome) -> String {
    let mut text = o.facts.text();
    let mut line = |name: &str, what: String, rate: &Rate| {
        let used = rate.used.text();
        let speed = rate.tokens_per_second;
        let _ = writeln!(text, "{name:8} {what:24} {speed:>10.1} tokens/s {used}");
    };
    line("prefill", format!("{} tokens", o.prompt), &o.prefill);
    for Depth { depth, rate } in &o.decode {
        line("decode", format!("{} after {depth}", o.generate), rate);
    }
    text += "\nrows    tokens/s   of a row   ratio  memory   arith\n";
    for b in &o.batch {
        let (total, each) = (b.total_tokens_per_second, b.tokens_per_second_of_a_row);
        let used = b.used.text();
        let _ = writeln!(text, "{:4} {total:11.1} {each:10.1} {:7.2} {used}", b.rows, b.ratio);
    }
    let rounds = o.prefill.rounds.len();
    let _ = writeln!(
        text,
        "\nmedians of {rounds} rounds; the ratio is over one row; percents are of the peaks: of the bandwidth, by \
         weights and states, and of the arithmetic"
    );
    o.profile.iter().for_each(|phase| text += &phase.text());
    text
}
