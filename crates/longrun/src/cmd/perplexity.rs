//! `longrun perplexity`: how well a model foretells a text, by the rules of llama.cpp's `llama-perplexity`.
//!
//! Owns which tokens of the text are scored, and the sums over their log-probabilities, which are in the order of the
//! text whatever is read together. Refuses texts of less than two chunks: a figure of them would say little.

use std::collections::VecDeque;
use std::io::Read;
use std::process::ExitCode;
use std::time::Instant;

use longrun_lm::array::BLOCK;
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, Request, RowId, Score};
use longrun_lm::executor::Setup;
use longrun_lm::source::ModelSource;
use longrun_lm::tiny::TinyShape;
use longrun_lm::{Error, Result};
use serde_json::json;

use crate::args::PerplexityArgs;
use crate::{machine, model, show};

/// Tokens that a step reads of chunks where nothing is scored, and where each has logits.
const STEP: (usize, usize) = (512, 64);
/// Bytes of a text: above it is a mistake.
const MOST_TEXT: u64 = 256 << 20;
/// Tokens of a chunk at least: one of them is scored.
const LEAST_CONTEXT: usize = 4;

pub(crate) fn run(args: &PerplexityArgs) -> Result<ExitCode> {
    let text = text(args)?;
    let shape = TinyShape { text: true, ..TinyShape::default() };
    let source = model::adapted(model::open(&args.model, shape)?, &args.adapter)?;
    let (ids, prefix) = ids(&source, &text)?;
    let chunks = Chunks::new(args, source.config.context, ids, prefix)?;
    let rows = usize::from(args.rows).min(chunks.count);
    // A row is admitted if a block more is free.
    let tokens = rows * (chunks.length.next_multiple_of(BLOCK) + BLOCK);
    let room =
        Room { rows, context: chunks.length, tokens, chunk: STEP.0, snapshots: 0, drafts: 0 };
    let setup = Setup { kv: model::stored(args.kv), results: STEP.1, ..Setup::new(room) };
    let (exec, load_seconds) = model::load(&source, model::device(args.device)?, setup, 0)?;
    let device = exec.device_name();
    let began = Instant::now();
    let mut running = Vec::with_capacity(chunks.count);
    let sums = measure(&mut Engine::new(exec), &chunks, |sums| {
        running.push(sums.perplexity());
        let told = format!("[{}]{:.4},", running.len(), sums.perplexity());
        if args.json { Ok(true) } else { show::out(&told) }
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let read = running.len() * chunks.length;
    let rate = read as f64 / seconds.max(1e-9);
    if args.json {
        show::out(&show::json(&json!({
            "perplexity": sums.perplexity(),
            "error": sums.error(),
            "nll": sums.mean(),
            "running": running,
            "context": chunks.length,
            "stride": args.stride,
            "tokens": chunks.ids.len(),
            "read": read,
            "scored": sums.count,
            "device": device,
            "exact": args.device.exact,
            "kv_type": model::stored(args.kv).name(),
            "load_seconds": load_seconds,
            "seconds": seconds,
            "tokens_per_second": rate,
            "peak_rss_bytes": machine::peak_rss(),
        }))?)?;
        return Ok(ExitCode::SUCCESS);
    }
    show::out(&format!("\nPPL = {:.4} +/- {:.5}\n", sums.perplexity(), sums.error()))?;
    show::note(&format!(
        "{device}; loaded in {load_seconds:.2} s; {} chunks of {} tokens, {} scored; {rate:.1} tokens/s",
        running.len(),
        chunks.length,
        sums.count,
    ));
    Ok(ExitCode::SUCCESS)
}

/// The text, without the newline at its end.
fn text(args: &PerplexityArgs) -> Result<String> {
    let place = |e: Error| e.at(format!("--text {}", args.text.display()));
    let broken = |e: std::io::Error| place(Error::file(format!("can't be read: {e}")));
    let mut bytes = Vec::new();
    if args.text.as_os_str() == "-" {
        std::io::stdin().lock().take(MOST_TEXT + 1).read_to_end(&mut bytes).map_err(broken)?;
    } else {
        let file = std::fs::File::open(&args.text).map_err(broken)?;
        file.take(MOST_TEXT + 1).read_to_end(&mut bytes).map_err(broken)?;
    }
    if bytes.len() as u64 > MOST_TEXT {
        return Err(place(Error::usage("longer than 256 MiB")).hint("a part of it says as much"));
    }
    let mut text = String::from_utf8(bytes).map_err(|e| {
        let what = format!("not UTF-8 from byte {} on", e.utf8_error().valid_up_to());
        place(Error::file(what)).hint("save it as UTF-8")
    })?;
    if text.ends_with('\n') {
        text.pop();
    }
    if text.is_empty() {
        return Err(place(Error::usage("it is empty")).hint("name a file with some text"));
    }
    Ok(text)
}

/// The ids of the text, in which no special token is read, and those that begin any text.
fn ids(source: &ModelSource, text: &str) -> Result<(Vec<u32>, Vec<u32>)> {
    let Some(tokenizer) = &source.tokenizer else {
        return Err(Error::unsupported("the model has no tokenizer").hint("add tokenizer.json"));
    };
    let prefix = tokenizer.prefix().to_vec();
    let ids = [&prefix[..], &tokenizer.encode_bare(text, false)?].concat();
    Ok((ids, prefix))
}

/// Parts of a text that are read each for itself.
struct Chunks {
    ids: Vec<u32>,
    /// Stands in place of the first tokens of each.
    prefix: Vec<u32>,
    length: usize,
    /// From the beginning of one to that of the next.
    step: usize,
    /// The first token of each that is scored.
    from: usize,
    count: usize,
}

impl Chunks {
    fn new(args: &PerplexityArgs, most: usize, ids: Vec<u32>, prefix: Vec<u32>) -> Result<Self> {
        let wrong = |flag: &str, what: String| Err(Error::usage(what).at(flag.to_owned()));
        let stride = args.stride.unwrap_or(0);
        let length = args.context.saturating_add(stride / 2);
        if args.context < LEAST_CONTEXT || length > most {
            let what = format!("chunks of {length} tokens: the model's context is {most}");
            return wrong("--context", format!("{what}, and {LEAST_CONTEXT} are the least"));
        }
        if args.stride == Some(0) || stride >= length {
            return wrong("--stride", format!("{stride} is not 1 to less than a chunk, {length}"));
        }
        if ids.len() < 2 * length {
            let (have, need) = (ids.len(), 2 * length);
            let what = format!("the text has {have} tokens, two chunks of {length} are {need}");
            let hint = match (have / 2).saturating_sub(stride / 2) {
                0..LEAST_CONTEXT => "take a longer text".to_owned(),
                context => format!("take a longer text, or --context {context} or less"),
            };
            return Err(Error::usage(what).at("--text").hint(hint));
        }
        // With strides llama-perplexity reads chunks as they stand in the text.
        let (from, step, count, prefix) = match args.stride {
            None => (length / 2 + 1, length, ids.len() / length, prefix),
            Some(n) => (length - n, n, (ids.len() - length).div_ceil(n), Vec::new()),
        };
        if prefix.len() >= from {
            let what =
                format!("{from} tokens before the scored ones: {} begin any text", prefix.len());
            return wrong("--context", what);
        }
        let count = args.chunks.map_or(count, |most| count.min(most as usize));
        Ok(Self { ids, prefix, length, step, from, count })
    }

    fn request(&self, i: usize) -> Request {
        let mut ids = self.ids[i * self.step..][..self.length].to_vec();
        ids[..self.prefix.len()].copy_from_slice(&self.prefix);
        Request { score: Some(Score { from: self.from, top: 0 }), ..Request::new(ids, 0) }
    }
}

/// Sums over scored tokens.
#[derive(Clone, Copy, Default)]
struct Sums {
    count: usize,
    /// Of negative log-probabilities, and of their squares.
    nll: f64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, logprob: f32) {
        let nll = -f64::from(logprob);
        self.count += 1;
        self.nll += nll;
        self.squares += nll * nll;
    }

    fn mean(&self) -> f64 {
        self.nll / self.count as f64
    }

    fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// The standard error of the mean, carried over to the perplexity.
    fn error(&self) -> f64 {
        let variance = (self.squares / self.count as f64 - self.mean().powi(2)).max(0.0);
        (variance / self.count.saturating_sub(1).max(1) as f64).sqrt() * self.perplexity()
    }
}

/// A chunk in the engine.
struct Open {
    row: RowId,
    logprobs: Vec<f32>,
    done: bool,
}

/// Reads all chunks. After each, in their order, `tell` hears of the sums so far; false ends it.
fn measure(
    engine: &mut Engine,
    chunks: &Chunks,
    mut tell: impl FnMut(&Sums) -> Result<bool>,
) -> Result<Sums> {
    let most = 2 * engine.executor().room().rows;
    let (mut sums, mut events) = (Sums::default(), Vec::new());
    let (mut open, mut next) = (VecDeque::new(), 0);
    loop {
        while next < chunks.count && open.len() < most {
            let row = engine.submit(chunks.request(next))?;
            open.push_back(Open { row, logprobs: Vec::new(), done: false });
            next += 1;
        }
        if open.is_empty() {
            return Ok(sums);
        }
        engine.step(&mut events)?;
        for event in events.drain(..) {
            let row = event.row();
            let Some(chunk) = open.iter_mut().find(|chunk| chunk.row == row) else { continue };
            match event {
                Event::Scored { scores, .. } => {
                    chunk.logprobs.extend(scores.iter().filter_map(|score| score.logprob));
                }
                Event::Finished { .. } => chunk.done = true,
                Event::Failed { error, .. } => return Err(error),
                Event::Started { .. } | Event::Progress { .. } | Event::Token { .. } => {}
            }
        }
        while let Some(chunk) = open.pop_front_if(|chunk| chunk.done) {
            chunk.logprobs.into_iter().for_each(|logprob| sums.add(logprob));
            if !tell(&sums)? {
                return Ok(sums);
            }
        }
    }
}
