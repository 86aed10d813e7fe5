//! A load that is a proof: streams decode, and a long prompt arrives.
//!
//! Owns the procedure and the verdict. What is promised is counted in steps: a stream that is in service gets a token in
//! every one of them, so the time between two of its tokens is that of one step, and a step reads at most a chunk. The
//! times are reported; they are the machine's.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use longrun_lm::Result;
use longrun_lm::array::{BLOCK, Key};
use longrun_lm::cache::Room;
use longrun_lm::engine::{Event, Request, RowId};
use serde::Serialize;

use super::{Bench, Facts, Used, Work, fits, median, open, positive, verdict};
use crate::args::StreamsArgs;
use crate::show;

/// Steps before the prompt arrives, and after it was read.
const QUIET: usize = 32;
/// Tokens that a stream begins with.
const PROMPT: usize = 32;
/// Prefixes are kept meanwhile, as in service.
const SNAPSHOTS: usize = 16;

/// Steps of one kind.
#[derive(Debug, Default, Serialize)]
struct Phase {
    steps: usize,
    median_step_seconds: f64,
    longest_step_seconds: f64,
    /// Between two tokens of a stream.
    longest_gap_seconds: f64,
    longest_gap_steps: usize,
    #[serde(flatten)]
    used: Used,
    #[serde(skip)]
    seconds: Vec<f64>,
    #[serde(skip)]
    work: Work,
}

#[derive(Debug, Serialize)]
struct Outcome {
    verdict: String,
    streams: usize,
    long: usize,
    /// The streams alone.
    before: Phase,
    /// The long prompt is read.
    during: Phase,
    /// It decodes, too.
    after: Phase,
    /// From its arrival to its first token.
    first_token_seconds: f64,
    prompt_tokens_per_second: f64,
    preempted: u64,
    #[serde(flatten)]
    facts: Facts,
}

pub(super) fn run(args: &StreamsArgs) -> Result<ExitCode> {
    positive("--streams", args.streams)?;
    positive("--long", args.long)?;
    let source = open(&args.model)?;
    let most = most_tokens(args);
    let (stream, long) = (most.saturating_add(PROMPT), args.long.saturating_add(2 * QUIET));
    let context = stream.max(long);
    fits(&args.model, &source, context)?;
    let rows = args.streams.saturating_add(1);
    let streams = args.streams.saturating_mul(stream.saturating_add(BLOCK));
    let tokens = streams.saturating_add(long).saturating_add(SNAPSHOTS * BLOCK);
    let chunk = args.model.chunk;
    let room = Room { rows, context, tokens, chunk, snapshots: SNAPSHOTS, drafts: 0 };
    let bench = Bench::new(&args.model, &source, room, None)?;
    let facts = Facts::new(&args.model, &source, &bench);
    let mut load = Streams { bench, streams: Vec::new(), step: 0, long: None, done: false };
    let outcome = load.run(args, most, facts)?;
    show::out(&text(&outcome))?;
    if let Some(path) = &args.json_out {
        show::write(path, &show::json(&outcome)?)?;
    }
    Ok(if outcome.verdict == "held" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Steps that the whole load takes at most: so many tokens a stream has to go on for.
fn most_tokens(args: &StreamsArgs) -> usize {
    // What a step reads of the prompt beside the streams; where chunks end a step may read the rest of one only.
    let part = args.model.chunk.min(Key::MOST.0.saturating_sub(args.streams).max(1));
    let reading = args.long.div_ceil(part).saturating_mul(2);
    let starting = args.streams.saturating_mul(PROMPT);
    reading.saturating_add(starting).saturating_add(4 * QUIET)
}

struct Stream {
    row: RowId,
    /// When its last token came, and in which step.
    last: Option<(Instant, usize)>,
}

struct Streams {
    bench: Bench,
    streams: Vec<Stream>,
    step: usize,
    long: Option<RowId>,
    /// The long prompt has its first token.
    done: bool,
}

impl Streams {
    fn run(&mut self, args: &StreamsArgs, most: usize, facts: Facts) -> Result<Outcome> {
        for _ in 0..args.streams {
            let row = self.bench.ids(PROMPT);
            let row = self.bench.engine.submit(Request::new(row, most))?;
            self.streams.push(Stream { row, last: None });
        }
        let mut starting = Phase::default();
        while self.streams.iter().any(|s| s.last.is_none()) && starting.steps < most {
            self.one(&mut starting)?;
        }
        let mut phases: [Phase; 3] = Default::default();
        for _ in 0..QUIET {
            self.one(&mut phases[0])?;
        }
        let long = self.bench.ids(args.long);
        let arrival = Instant::now();
        self.long = Some(self.bench.engine.submit(Request::new(long, 2 * QUIET))?);
        while !self.done && phases[1].steps < most {
            self.one(&mut phases[1])?;
        }
        let first_token_seconds = arrival.elapsed().as_secs_f64();
        for _ in 0..QUIET {
            self.one(&mut phases[2])?;
        }
        let preempted = self.bench.engine.stats().preempted;
        let broken = self.broken(&phases, preempted);
        for phase in &mut phases {
            phase.median_step_seconds = median(&phase.seconds);
            phase.longest_step_seconds = phase.seconds.iter().copied().fold(0.0, f64::max);
            phase.used = Used::of(self.bench.peaks, &[phase.work]);
        }
        let [before, during, after] = phases;
        let (streams, long) = (args.streams, args.long);
        let prompt_tokens_per_second = long as f64 / first_token_seconds.max(1e-9);
        Ok(Outcome {
            verdict: verdict(&broken),
            streams,
            long,
            before,
            during,
            after,
            first_token_seconds,
            prompt_tokens_per_second,
            preempted,
            facts,
        })
    }

    /// One step of a phase. A stream that got no token in it has a gap that grows.
    fn one(&mut self, phase: &mut Phase) -> Result<()> {
        self.bench.begin();
        phase.seconds.push(self.bench.step()?);
        phase.work.seconds += self.bench.work.seconds;
        phase.work.cost += self.bench.work.cost;
        phase.steps += 1;
        self.step += 1;
        let (now, step) = (Instant::now(), self.step);
        for event in &self.bench.events {
            let Event::Token { row, .. } = event else { continue };
            self.done |= Some(*row) == self.long;
            if let Some(stream) = self.streams.iter_mut().find(|s| s.row == *row) {
                let (then, before) = stream.last.replace((now, step)).unwrap_or((now, step));
                let gap = (now - then).as_secs_f64();
                phase.longest_gap_seconds = phase.longest_gap_seconds.max(gap);
                phase.longest_gap_steps = phase.longest_gap_steps.max(step - before);
            }
        }
        // A stream without a token waits still: its gap counts as it is now.
        for (_, before) in self.streams.iter().filter_map(|s| s.last) {
            let waits = if before == step { 0 } else { step - before + 1 };
            phase.longest_gap_steps = phase.longest_gap_steps.max(waits);
        }
        Ok(())
    }

    /// All rows leave; what was promised and not held.
    fn broken(&mut self, phases: &[Phase; 3], preempted: u64) -> Vec<String> {
        let mut broken = Vec::new();
        for (phase, name) in phases.iter().zip(["before", "during", "after"]) {
            if phase.longest_gap_steps != 1 {
                let steps = phase.longest_gap_steps;
                broken.push(format!("{name}: a stream had a token after {steps} steps, not 1"));
            }
        }
        if !self.done {
            broken.push("the long prompt was not read".to_owned());
        }
        if preempted > 0 {
            broken.push(format!("{preempted} rows lost their places"));
        }
        let rows = self.streams.iter().map(|s| s.row).chain(self.long);
        rows.for_each(|row| self.bench.engine.cancel(row));
        broken.extend(self.bench.leftovers());
        broken
    }
}

fn text(o: &Outcome) -> String {
    let mut text = o.facts.text();
    let _ = writeln!(text, "load     {} streams, a prompt of {} tokens", o.streams, o.long);
    text += "\n        steps  median step  longest step  longest gap of a stream  memory   arith\n";
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    for (name, phase) in [("before", &o.before), ("during", &o.during), ("after", &o.after)] {
        let _ = writeln!(
            text,
            "{name:7} {:5} {:>12} {:>13} {:>12}, {} steps {:>17}",
            phase.steps,
            ms(phase.median_step_seconds),
            ms(phase.longest_step_seconds),
            ms(phase.longest_gap_seconds),
            phase.longest_gap_steps,
            phase.used.text(),
        );
    }
    let _ = writeln!(
        text,
        "\nthe long prompt: first token after {:.2} s, {:.1} tokens/s\n{}",
        o.first_token_seconds, o.prompt_tokens_per_second, o.verdict
    );
    text
}
