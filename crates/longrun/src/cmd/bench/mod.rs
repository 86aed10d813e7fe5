//! `longrun bench`: speed alone, in batches and behind prompts, and two loads that are proofs too.
//!
//! Owns what all have in common: a model on its device, random prompts, medians, the facts that a figure needs
//! beside it. Everything is driven through the engine that serves; there is no loop for measuring.

mod conversations;
mod profile;
mod rows;
mod speed;
mod streams;

use std::process::ExitCode;
use std::time::Instant;

use longrun_lm::array::{Cost, Peaks, Usage};
use longrun_lm::budget::Memory;
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, Request, RowId};
use longrun_lm::executor::Setup;
use longrun_lm::source::ModelSource;
use longrun_lm::{Error, Kind, Result};
use serde::Serialize;

use crate::args::{BenchArgs, BenchLoad, BenchModel};
use crate::{machine, model, show};

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    match &args.load {
        None => match args.speed.batches() {
            Some(batches) => rows::run(&args.speed, batches),
            None => speed::run(&args.speed),
        },
        Some(BenchLoad::Streams(args)) => streams::run(args),
        Some(BenchLoad::Conversations(args)) => conversations::run(args),
    }
}

/// The model, once the flags that all have are in order.
fn open(args: &BenchModel) -> Result<ModelSource> {
    positive("--chunk", args.chunk)?;
    model::adapted(model::open_stored(&args.model, args.quant)?, &args.adapter)
}

fn positive(flag: &'static str, value: usize) -> Result<()> {
    if value > 0 { Ok(()) } else { Err(Error::usage("must be positive").at(flag)) }
}

/// Refuses sequences of `need` tokens beyond the context.
fn fits(args: &BenchModel, source: &ModelSource, need: usize) -> Result<()> {
    let context = args.context.unwrap_or(source.config.context);
    if need <= context {
        return Ok(());
    }
    let what = format!("sequences of {need} tokens pass the context of {context}");
    Err(Error::usage(what).hint("lift it with --context, or ask for fewer tokens"))
}

/// An engine and random prompts for it.
struct Bench {
    engine: Engine,
    vocab: usize,
    random: u64,
    /// What the last step told.
    events: Vec<Event>,
    /// Before the first request.
    base: Usage,
    /// What the machine can do at most; `None` if the device runs nothing.
    peaks: Option<Peaks>,
    /// Since [`begin`](Self::begin).
    work: Work,
}

/// What steps took, moved and computed.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    tokens: usize,
    seconds: f64,
    cost: Cost,
}

impl Work {
    /// Tokens a second.
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(1e-9)
    }
}

/// How much of what the machine can do at most was used: what weights and states take from memory, and arithmetic.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Used {
    bandwidth_fraction: Option<f64>,
    arithmetic_fraction: Option<f64>,
}

impl Used {
    fn of(peaks: Option<Peaks>, work: &[Work]) -> Self {
        let middle = |of: &dyn Fn(&Peaks, &Work) -> Option<f64>| {
            let peaks = peaks?;
            let all = work.iter().map(|work| of(&peaks, work)).collect::<Option<Vec<f64>>>()?;
            Some(median(&all))
        };
        Self {
            bandwidth_fraction: middle(&|p, w| Some(p.bandwidth_fraction(&w.cost, w.seconds))),
            arithmetic_fraction: middle(&|p, w| p.arithmetic_fraction(&w.cost, w.seconds)),
        }
    }

    /// Two columns of 7: percents.
    fn text(&self) -> String {
        let column = |part: Option<f64>| match part {
            None => format!("{:>7}", "-"),
            Some(part) => format!("{:6.1}%", part * 100.0),
        };
        column(self.bandwidth_fraction) + &column(self.arithmetic_fraction)
    }
}

impl Bench {
    fn new(
        args: &BenchModel,
        source: &ModelSource,
        room: Room,
        memory: Option<Memory>,
    ) -> Result<Self> {
        let setup = Setup { memory, kv: model::stored(args.kv), ..Setup::new(room) };
        let device = model::device_or_null(args.device)?;
        let (exec, seconds) = model::load(source, device, setup, args.seed)?;
        show::note(&format!("loaded in {seconds:.2} s"));
        let (vocab, base, peaks) = (exec.vocab(), exec.usage(), exec.peaks());
        let (engine, events, work) = (Engine::new(exec), Vec::new(), Work::default());
        Ok(Self { engine, vocab, random: args.seed, events, base, peaks, work })
    }

    /// Steps count from now on.
    fn begin(&mut self) {
        self.work = Work::default();
        if self.engine.profiled().is_some() {
            self.engine.profile(true);
        }
    }

    /// A number below `n`; the same ones for the same seed.
    fn below(&mut self, n: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % n.max(1)
    }

    fn ids(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(self.vocab) as u32).collect()
    }

    /// One step; gives its seconds. A row that fails is an error.
    fn step(&mut self) -> Result<f64> {
        self.events.clear();
        let began = Instant::now();
        self.engine.step(&mut self.events)?;
        let seconds = began.elapsed().as_secs_f64();
        self.work.seconds += seconds;
        self.work.tokens += self.events.iter().filter(|e| matches!(e, Event::Token { .. })).count();
        if self.peaks.is_some()
            && let Some(step) = self.engine.executor().step_cost()
        {
            self.work.cost += step.cost;
        }
        let failed = self.events.iter().find_map(|event| match event {
            Event::Failed { error, .. } => Some(error.clone()),
            _ => None,
        });
        failed.map_or(Ok(seconds), Err)
    }

    /// Reads the prompts, a row each that may generate `most` tokens, until each has its first one.
    fn read(&mut self, prompts: Vec<Vec<u32>>, most: usize) -> Result<Vec<RowId>> {
        let submit = |ids| self.engine.submit(Request::new(ids, most));
        let rows = prompts.into_iter().map(submit).collect::<Result<Vec<RowId>>>()?;
        let mut wait = rows.clone();
        while !wait.is_empty() && self.engine.rows() == rows.len() {
            self.step()?;
            for event in &self.events {
                let Event::Token { row, .. } = event else { continue };
                wait.retain(|id| id != row);
            }
        }
        Ok(rows)
    }

    /// Lets the rows go, which have decoded in each of the last `steps` steps; gives the work of these.
    fn leave(&mut self, rows: &[RowId], steps: usize) -> Result<Work> {
        rows.iter().for_each(|row| self.engine.cancel(*row));
        let (work, rows) = (self.work, rows.len());
        if work.tokens != rows * steps {
            let what = format!("{} tokens in {steps} steps of {rows} rows", work.tokens);
            return Err(Error::new(Kind::Bug, what).hint("please report it"));
        }
        Ok(work)
    }

    /// What is wrong with the memory once all rows have left: nothing may be.
    fn leftovers(&mut self) -> Vec<String> {
        self.engine.clear_prefixes();
        let mut wrong = Vec::new();
        if !self.engine.executor().all_free() {
            wrong.push("blocks or slots are held although no row is left".to_owned());
        }
        let (live, base) = (self.engine.executor().usage().live, self.base.live);
        if live != base {
            let what = format!("{} buffers live at the end, {} before", live.buffers, base.buffers);
            wrong.push(what);
        }
        wrong
    }
}

/// What a figure means nothing without.
#[derive(Debug, Default, Serialize)]
struct Facts {
    model: String,
    /// Bytes of the tensors in the model's files; absent for random weights.
    file_bytes: Option<u64>,
    processor: Option<String>,
    cores: usize,
    threads: usize,
    device: String,
    weight_bytes: usize,
    cache_bytes: usize,
    /// Everything on the device.
    live_bytes: usize,
    rss_bytes: Option<u64>,
    /// What the machine can do at most, measured at the start; absent where nothing runs.
    read_bytes_per_second: Option<f64>,
    /// A multiply-add is two, of both kinds.
    int8_operations_per_second: Option<f64>,
    f32_operations_per_second: Option<f64>,
    argv: Vec<String>,
}

impl Facts {
    fn new(args: &BenchModel, source: &ModelSource, bench: &Bench) -> Self {
        let exec = bench.engine.executor();
        let arithmetic = bench.peaks.and_then(|peaks| peaks.arithmetic);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            model: args.model.clone(),
            file_bytes: source.checkpoint().map(|files| files.summary().bytes),
            processor: machine::processor(),
            cores,
            threads: args.device.threads.map_or(cores, usize::from),
            device: exec.device_name(),
            weight_bytes: exec.parts().weights,
            cache_bytes: exec.cache_bytes(),
            live_bytes: exec.usage().live.bytes,
            rss_bytes: machine::rss(),
            read_bytes_per_second: bench.peaks.map(|peaks| peaks.read),
            int8_operations_per_second: arithmetic.map(|peaks| 2.0 * peaks.ops),
            f32_operations_per_second: arithmetic.map(|peaks| peaks.flops),
            argv: std::env::args().collect(),
        }
    }

    fn text(&self) -> String {
        let bytes = |n: usize| show::bytes(n as u64);
        let giga = |n: Option<f64>| n.map_or("unknown".into(), |n| format!("{:.1}", n * 1e-9));
        format!(
            "model    {}, {}\nmachine  {}, {} cores; {}\nmemory   weights {}, caches {}, all {}; resident {}\n\
             peaks    {} GB/s read, {} Gop/s in 8 bits, {} in f32\n",
            self.model,
            self.file_bytes.map_or("random".into(), |n| format!("{} in its files", show::bytes(n))),
            self.processor.as_deref().unwrap_or("unknown processor"),
            self.cores,
            self.device,
            bytes(self.weight_bytes),
            bytes(self.cache_bytes),
            bytes(self.live_bytes),
            self.rss_bytes.map_or("unknown".into(), show::bytes),
            giga(self.read_bytes_per_second),
            giga(self.int8_operations_per_second),
            giga(self.f32_operations_per_second),
        )
    }
}

/// The middle value; 0 of none.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.get(middle) {
        None => 0.0,
        Some(high) if sorted.len() % 2 == 1 => *high,
        Some(high) => f64::midpoint(sorted[middle - 1], *high),
    }
}

/// "held", or why it is not.
fn verdict(broken: &[String]) -> String {
    if broken.is_empty() { "held".into() } else { format!("broken: {}", broken.join("; ")) }
}
