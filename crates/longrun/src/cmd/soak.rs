//! `longrun soak`: one very long completion, through the same loop as `generate`, with every buffer watched.
//!
//! Owns the driving and the verdict. It decodes past end tokens; what it watches is memory, not text.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use longrun_lm::array::{BLOCK, Limits, Usage};
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, Request, RowId};
use longrun_lm::executor::Setup;
use longrun_lm::source::ModelSource;
use longrun_lm::tiny::{self, TinyShape};
use longrun_lm::{Error, Kind, Result};
use serde::Serialize;

use crate::args::{SoakArgs, SoakMode};
use crate::{machine, model, plot, show};

/// What is seen at one report.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) tokens: usize,
    pub(crate) live: usize,
    cached: usize,
    bytes: usize,
    rss: Option<u64>,
    tokens_per_second: f64,
}

/// What a soak found.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    verdict: &'static str,
    slope_per_token: f64,
    tokens: usize,
    plans: usize,
    predicted_token: Option<usize>,
    died_at: Option<usize>,
    /// The token at which the equality check first saw a difference (leak lab).
    flagged_at: Option<usize>,
    /// Short rows that joined and left.
    joins: usize,
    linear_layers: usize,
    base_live: usize,
    /// Live buffers once all rows have left.
    end_live: usize,
    hist_first: Vec<(usize, usize)>,
    hist_last: Vec<(usize, usize)>,
    device: String,
    model: String,
    argv: Vec<String>,
    pub(crate) samples: Vec<Sample>,
}

pub(crate) fn run(args: &SoakArgs) -> Result<ExitCode> {
    let shape = TinyShape {
        layers: args.layers,
        interval: args.interval,
        experts: args.experts,
        hidden: args.hidden,
        attention_only: args.attention_only,
        text: false,
    };
    let source = model::adapted(model::open(&args.model, shape)?, &args.adapter)?;
    let mut soak = match Soak::new(args, &source) {
        Err(error) if error.kind() == Kind::Limit => {
            show::note(&format!("longrun: {error}"));
            return Ok(ExitCode::from(2));
        }
        soak => soak?,
    };
    let outcome = soak.run()?;
    show::out(&summary(&outcome))?;
    if let Some(path) = &args.json_out {
        show::write(path, &show::json(&outcome)?)?;
    }
    if let Some(path) = &args.plot {
        show::write(path, &plot::svg(&outcome.samples, &args.model))?;
    }
    Ok(ExitCode::from(match outcome.verdict {
        "flat" => 0,
        "growth" => 1,
        _ => 2,
    }))
}

/// Tokens that the long row starts from, and the most of a short one.
const PROMPT: usize = 4;
const SHORT: usize = 16;

struct Soak<'a> {
    args: &'a SoakArgs,
    engine: Engine,
    vocab: usize,
    long: RowId,
    joins: usize,
    random: u64,
    linear_layers: usize,
    samples: Vec<Sample>,
    every: usize,
    #[cfg(feature = "leak-lab")]
    leak: Option<longrun_lm::array::lab::Leak>,
}

impl<'a> Soak<'a> {
    fn new(args: &'a SoakArgs, source: &ModelSource) -> Result<Self> {
        let rows = args.rows.unwrap_or(args.mode.rows());
        if rows == 0 || (args.mode == SoakMode::Single && rows != 1) {
            let what = format!("{rows} rows in mode {:?}", args.mode);
            return Err(Error::usage(what).at("--rows").hint("use --mode batch"));
        }
        if args.tokens == 0 {
            return Err(Error::usage("must be positive").at("--tokens"));
        }
        if args.fail_slope.is_nan() || args.fail_slope < 0.0 {
            return Err(Error::usage("must be 0 or more").at("--fail-slope"));
        }
        let need = args.tokens.saturating_add(PROMPT);
        let context = args.context.unwrap_or(source.config.context);
        if need > context {
            let what = format!(
                "{} tokens after a prompt of {PROMPT} pass the context of {context}",
                args.tokens
            );
            return Err(Error::usage(what).at("--tokens").hint("lift it with --context"));
        }
        let tokens = match args.mode {
            SoakMode::Churn => rows.saturating_mul(2 * (SHORT + BLOCK)).saturating_add(need),
            _ => rows.saturating_mul(need.saturating_add(BLOCK)),
        };
        let device = model::device_or_null(args.device)?;
        let room = Room { rows, context: need, tokens, chunk: SHORT, snapshots: 0, drafts: 0 };
        let limits = Limits { buffers: args.resource_limit, ..Limits::default() };
        let setup = Setup { limits, kv: model::stored(args.kv), ..Setup::new(room) };
        let (exec, _) = model::load(source, device, setup, args.seed)?;
        let every = args.report_every.unwrap_or(args.tokens.div_ceil(20)).max(1);
        #[cfg(feature = "leak-lab")]
        let every = args.heal_every.map_or(every, |h| every.next_multiple_of(h.max(1)));
        let mut soak = Self {
            args,
            vocab: exec.vocab(),
            engine: Engine::new(exec),
            long: RowId(0),
            joins: 0,
            random: args.seed,
            linear_layers: tiny::linear_layers(&source.config),
            samples: Vec::new(),
            every,
            #[cfg(feature = "leak-lab")]
            leak: None,
        };
        soak.long = soak.admit(PROMPT, args.tokens)?;
        if args.mode == SoakMode::Batch {
            for _ in 1..rows {
                soak.admit(PROMPT, args.tokens)?;
            }
        }
        #[cfg(feature = "leak-lab")]
        soak.plant(source);
        Ok(soak)
    }

    fn admit(&mut self, prompt: usize, max_tokens: usize) -> Result<RowId> {
        let prompt = (0..prompt).map(|_| (self.draw() % self.vocab as u64) as u32).collect();
        self.engine.submit(Request::new(prompt, max_tokens))
    }

    fn draw(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    fn usage(&self) -> Usage {
        self.engine.executor().usage()
    }

    fn run(&mut self) -> Result<Outcome> {
        let base = self.usage();
        let mut out = self.outcome(&base);
        let (mut tokens, mut events) = (0, Vec::new());
        let mut mark = (Instant::now(), 0);
        while tokens < self.args.tokens {
            self.churn()?;
            if let Err(error) = self.engine.step(&mut events) {
                if error.kind() != Kind::Limit {
                    return Err(error.at(format!("token {}", tokens + 1)));
                }
                show::note(&format!("longrun: {error}"));
                out.died_at = Some(tokens + 1);
                out.hist_last = histogram(&self.usage());
                break;
            }
            let mut new = 0;
            for event in events.drain(..) {
                match event {
                    Event::Token { row, .. } if row == self.long => new += 1,
                    Event::Failed { error, .. } => return Err(error),
                    _ => {}
                }
            }
            tokens += new;
            self.heal(tokens, new);
            let alone = tokens >= self.args.tokens && self.samples.is_empty();
            if new > 0 && (tokens.is_multiple_of(self.every) || alone) {
                let rate = (tokens - mark.1) as f64 / mark.0.elapsed().as_secs_f64();
                mark = (Instant::now(), tokens);
                self.sample(tokens, rate)?;
            }
        }
        out.tokens = tokens;
        out.joins = self.joins;
        self.settle(&mut out, &base);
        Ok(out)
    }

    /// Keeps every other row busy with a short request.
    fn churn(&mut self) -> Result<()> {
        let rows = self.engine.executor().room().rows;
        while self.args.mode == SoakMode::Churn && self.engine.rows() < rows {
            let prompt = 1 + self.draw() as usize % SHORT;
            let tokens = 1 + self.draw() as usize % SHORT;
            self.admit(prompt, tokens)?;
            self.joins += 1;
        }
        Ok(())
    }

    fn sample(&mut self, tokens: usize, rate: f64) -> Result<()> {
        let usage = self.usage();
        let sample = Sample {
            tokens,
            live: usage.live.buffers,
            cached: usage.cached.buffers,
            bytes: usage.live.bytes,
            rss: machine::rss(),
            tokens_per_second: rate,
        };
        self.samples.push(sample);
        let rss = sample.rss.map_or("?".into(), show::bytes);
        let line = format!(
            "{tokens:>9} tokens  {:>6} live  {} cached  {}  rss {rss}  {rate:.1} tokens/s\n",
            sample.live,
            sample.cached,
            show::bytes(sample.bytes as u64),
        );
        show::out(&line).map(|_| ())
    }

    fn outcome(&self, base: &Usage) -> Outcome {
        Outcome {
            verdict: "limit",
            slope_per_token: 0.0,
            tokens: 0,
            plans: self.engine.executor().plans(),
            predicted_token: self.predicted(base.live.buffers),
            died_at: None,
            flagged_at: None,
            joins: 0,
            linear_layers: self.linear_layers,
            base_live: base.live.buffers,
            end_live: 0,
            hist_first: histogram(base),
            hist_last: Vec::new(),
            device: self.engine.executor().device_name(),
            model: self.args.model.clone(),
            argv: std::env::args().collect(),
            samples: Vec::new(),
        }
    }

    /// All rows leave; what is then left, and the verdict.
    fn settle(&mut self, out: &mut Outcome, base: &Usage) {
        if out.died_at.is_none() {
            out.hist_last = histogram(&self.usage());
        }
        out.flagged_at = self.flagged();
        (self.long.0..=self.long.0 + (out.joins + self.engine.rows()) as u64)
            .for_each(|id| self.engine.cancel(RowId(id)));
        out.samples = std::mem::take(&mut self.samples);
        out.slope_per_token = slope(&out.samples);
        out.end_live = self.usage().live.buffers;
        let steady = out.slope_per_token.abs() <= self.args.fail_slope;
        let back = out.end_live == base.live.buffers || self.args.fail_slope > 0.0;
        let back = back && self.engine.executor().all_free();
        let same = out.plans == self.engine.executor().plans();
        out.verdict = match out.died_at {
            Some(_) => "limit",
            None if steady && back && same => "flat",
            None => "growth",
        };
    }
}

#[cfg(not(feature = "leak-lab"))]
impl Soak<'_> {
    fn predicted(&self, _: usize) -> Option<usize> {
        None
    }

    fn flagged(&self) -> Option<usize> {
        None
    }

    fn heal(&mut self, _: usize, _: usize) {}
}

#[cfg(feature = "leak-lab")]
impl Soak<'_> {
    /// Plants the leak that was asked for: its chains, and what each link pins.
    fn plant(&mut self, source: &ModelSource) {
        use crate::args::Inject;
        use longrun_lm::array::lab::Leak;
        let Some(inject) = self.args.inject else { return };
        let c = &source.config;
        let attention = c.layers - self.linear_layers;
        let row = c.kv_heads * c.head_dim * 4;
        let leak = match inject {
            Inject::Advance => {
                Leak { chains: self.linear_layers.saturating_sub(1), link_bytes: 4, every: 1 }
            }
            Inject::Values => Leak { chains: attention, link_bytes: row, every: 1 },
            Inject::Pooling => Leak { chains: attention, link_bytes: c.head_dim * 4, every: 4 },
        };
        self.leak = Some(leak);
        self.engine.executor_mut().runtime().plant(leak, self.args.strict);
    }

    /// `(limit - base) / chains + 1` links, each after so many tokens.
    fn predicted(&self, base: usize) -> Option<usize> {
        let leak = self.leak.filter(|l| l.chains > 0)?;
        Some((self.args.resource_limit.saturating_sub(base) / leak.chains + 1) * leak.every)
    }

    fn flagged(&mut self) -> Option<usize> {
        let flagged = self.engine.executor_mut().runtime().first_flagged_step();
        self.engine.executor_mut().runtime().heal();
        flagged
    }

    fn heal(&mut self, tokens: usize, new: usize) {
        let every = self.args.heal_every.filter(|h| new > 0 && *h > 0 && tokens.is_multiple_of(*h));
        if every.is_some() {
            self.engine.executor_mut().runtime().heal();
        }
    }
}

/// Live buffers per token: the least-squares slope over the samples.
fn slope(samples: &[Sample]) -> f64 {
    let n = samples.len() as f64;
    let mean = |f: &dyn Fn(&Sample) -> f64| samples.iter().map(f).sum::<f64>() / n;
    let (mx, my) = (mean(&|s| s.tokens as f64), mean(&|s| s.live as f64));
    let sxy = samples.iter().map(|s| (s.tokens as f64 - mx) * (s.live as f64 - my)).sum::<f64>();
    let sxx = samples.iter().map(|s| (s.tokens as f64 - mx).powi(2)).sum::<f64>();
    if sxx == 0.0 { 0.0 } else { sxy / sxx }
}

/// Live buffers by size class: (largest bytes, count).
fn histogram(usage: &Usage) -> Vec<(usize, usize)> {
    usage.classes().map(|(bytes, count)| (bytes, count.buffers)).collect()
}

fn summary(o: &Outcome) -> String {
    let mut text = format!(
        "{}: {} tokens on {}, {} joins, {} plans; live buffers {} at start, {} at the end; slope {} per token\n",
        o.verdict, o.tokens, o.device, o.joins, o.plans, o.base_live, o.end_live, o.slope_per_token
    );
    if let Some(predicted) = o.predicted_token {
        let died = o.died_at.map_or("not reached".into(), |t| t.to_string());
        let _ =
            writeln!(text, "planted leak: predicted to die at token {predicted}, died at {died}");
    }
    if let Some(token) = o.flagged_at {
        let _ = writeln!(text, "the equality check flagged it at token {token}");
    }
    let count = |hist: &[(usize, usize)], class| {
        hist.iter().find(|(bytes, _)| *bytes == class).map_or(0, |(_, n)| *n)
    };
    let mut classes: Vec<usize> =
        o.hist_first.iter().chain(&o.hist_last).map(|(bytes, _)| *bytes).collect();
    classes.sort_unstable();
    classes.dedup();
    for class in classes {
        let (first, last) = (count(&o.hist_first, class), count(&o.hist_last, class));
        if first != last {
            let _ = writeln!(text, "size class <= {class} B: {first} -> {last}");
        }
    }
    text
}
