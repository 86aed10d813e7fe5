//! `longrun generate`: one completion, as it comes.

use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use longrun_lm::array::Count;
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, FinishReason, Request, Stats};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::sample::{Choice, SamplingOverrides, SamplingParams};
use longrun_lm::source::ModelSource;
use longrun_lm::text::{ChatInput, CompletionText};
use longrun_lm::tiny::TinyShape;
use longrun_lm::{Error, Result};
use serde_json::{Value, json};

use crate::args::GenerateArgs;
use crate::{machine, model, show};

/// Tokens that a prompt is read in at a time.
const CHUNK: usize = 512;
const MAX_TOKENS: usize = 256;
/// Bytes of a prompt from standard input: above it is a mistake.
const MOST_PROMPT: u64 = 64 << 20;

pub(crate) fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let name = args.model.as_deref().unwrap_or("demo");
    let source = model::adapted(model::open(name, TinyShape::default())?, &args.adapter)?;
    let prompt = prompt_ids(args, &source, name == "demo")?;
    let context = source.config.context;
    if prompt.len() >= context {
        let what = format!("the prompt has {} tokens, the context {context}", prompt.len());
        return Err(Error::usage(what).at("--prompt").hint("shorten it"));
    }
    let room = context - prompt.len();
    let max_tokens = args.max_tokens.unwrap_or(MAX_TOKENS.min(room));
    if max_tokens > room {
        let what = format!(
            "{max_tokens} tokens after a prompt of {} pass the context of {context}",
            prompt.len()
        );
        return Err(Error::usage(what).at("--max-tokens"));
    }
    let params = sampling(args, &source);
    params.validate(source.config.vocab)?;
    let text = completion_text(args, &source)?;
    let total = prompt.len() + max_tokens;
    let room = Room {
        rows: 1,
        context: total,
        tokens: total,
        chunk: CHUNK.min(prompt.len()),
        snapshots: 0,
        drafts: model::drafts(&args.draft)?,
    };
    let kv = model::stored(args.kv);
    let setup = Setup { kv, mtp: model::by_own_head(&args.draft), ..Setup::new(room) };
    let device = model::device(args.device)?;
    let seed = args.sampling.seed.unwrap_or(0);
    let (exec, load_seconds) = model::load(&source, device, setup, seed)?;
    let stop_ids = Arc::clone(&source.eos);
    let request = Request { params, stop_ids, ..Request::new(prompt, max_tokens) };
    let engine = model::with_drafts(
        Engine::new(exec),
        &args.draft,
        args.device,
        seed,
        TinyShape::default(),
    )?;
    let outcome = complete(engine, request, text, args)?;
    report(args, &outcome, load_seconds)?;
    Ok(ExitCode::SUCCESS)
}

fn prompt_ids(args: &GenerateArgs, source: &ModelSource, demo: bool) -> Result<Vec<u32>> {
    let text = match args.prompt.as_deref() {
        Some("-") => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(MOST_PROMPT + 1).read_to_string(&mut text);
            read.map_err(|e| Error::usage(format!("standard input: {e}")).at("--prompt -"))?;
            if text.len() as u64 > MOST_PROMPT {
                return Err(Error::usage("longer than 64 MiB").at("--prompt -"));
            }
            text
        }
        Some(text) => text.to_owned(),
        None if demo => "Once upon a time".to_owned(),
        None => {
            return Err(
                Error::usage("a prompt is needed").hint("--prompt TEXT, or - for standard input")
            );
        }
    };
    let Some(tokenizer) = &source.tokenizer else {
        if source.checkpoint().is_some() {
            return Err(Error::unsupported("the model has no tokenizer").hint("add tokenizer.json"));
        }
        // A tiny random model knows no text: its bytes serve as ids.
        return Ok(text.bytes().map(|b| u32::from(b) % source.config.vocab as u32).collect());
    };
    let rendered = match &source.template {
        Some(template) if !args.raw => {
            let system = args.system.iter().map(|s| json!({"role": "system", "content": s}));
            let user = json!({"role": "user", "content": text});
            let messages: Value = system.chain([user]).collect();
            let mut input = ChatInput::new(&messages);
            input.add_generation_prompt = true;
            template.render(&input)?
        }
        _ => text,
    };
    tokenizer.encode(&rendered, true)
}

fn sampling(args: &GenerateArgs, source: &ModelSource) -> SamplingParams {
    let chosen = &args.sampling;
    let bias = chosen.logit_bias.clone();
    let overrides = SamplingOverrides {
        temperature: chosen.temp,
        top_p: chosen.top_p,
        top_k: chosen.top_k,
        min_p: chosen.min_p,
        xtc_probability: chosen.xtc_probability,
        xtc_threshold: chosen.xtc_threshold,
        repetition_penalty: chosen.repetition_penalty,
        presence_penalty: chosen.presence_penalty,
        frequency_penalty: chosen.frequency_penalty,
        logit_bias: Some(bias).filter(|bias| !bias.is_empty()),
        seed: chosen.seed,
        logprobs: args.logprobs,
        ..SamplingOverrides::default()
    };
    overrides.apply(&source.defaults)
}

/// One finished completion and its figures.
struct Outcome {
    text: String,
    prompt_ids: Vec<u32>,
    choices: Vec<Choice>,
    finish_reason: &'static str,
    prompt_seconds: f64,
    seconds: f64,
    start: Count,
    end: Count,
    device: String,
    plans: usize,
    stats: Stats,
}

impl Outcome {
    /// Before the first token.
    fn new(exec: &Executor, request: &Request) -> Self {
        let start = exec.usage().live;
        Self {
            text: String::new(),
            prompt_ids: request.prompt.clone(),
            choices: Vec::new(),
            finish_reason: "length",
            prompt_seconds: 0.0,
            seconds: 0.0,
            start,
            end: start,
            device: exec.device_name(),
            plans: exec.plans(),
            stats: Stats::default(),
        }
    }
}

/// What becomes of the ids; `None` for a tiny model, whose ids are no text.
fn completion_text(args: &GenerateArgs, source: &ModelSource) -> Result<Option<CompletionText>> {
    match &source.tokenizer {
        Some(tokenizer) => {
            CompletionText::new(Arc::clone(tokenizer), &args.sampling.stop).map(Some)
        }
        None if args.sampling.stop.is_empty() => Ok(None),
        None => Err(Error::usage("the model writes no text that could stop").at("--stop")),
    }
}

fn complete(
    mut engine: Engine,
    request: Request,
    mut text: Option<CompletionText>,
    args: &GenerateArgs,
) -> Result<Outcome> {
    let mut outcome = Outcome::new(engine.executor(), &request);
    let bar = show::bar("reading the prompt");
    let began = Instant::now();
    let row = engine.submit(request)?;
    let mut events = Vec::new();
    let mut reader = true;
    while engine.rows() > 0 && reader {
        engine.step(&mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Progress { done, total, .. } => {
                    bar.set_length(total as u64);
                    bar.set_position(done as u64);
                }
                Event::Token { choice, .. } => {
                    if outcome.choices.is_empty() {
                        outcome.prompt_seconds = began.elapsed().as_secs_f64();
                        bar.finish_and_clear();
                    }
                    let (new, stopped) = shown(&mut text, &choice);
                    outcome.choices.push(choice);
                    reader = emit(args, &mut outcome.text, &new)?;
                    if stopped {
                        outcome.finish_reason = "stop";
                        engine.cancel(row);
                        break;
                    }
                }
                Event::Finished { reason: FinishReason::Stop, .. } => {
                    outcome.finish_reason = "stop"
                }
                Event::Finished { reason: FinishReason::Length, .. }
                | Event::Started { .. }
                | Event::Scored { .. } => {}
                Event::Failed { error, .. } => return Err(error),
            }
        }
    }
    outcome.seconds = began.elapsed().as_secs_f64() - outcome.prompt_seconds;
    if let Some(text) = &mut text {
        emit(args, &mut outcome.text, &text.finish())?;
    }
    outcome.end = engine.executor().usage().live;
    outcome.stats = engine.stats();
    if let Some(error) = engine.draft_error() {
        show::note(&format!("longrun: no drafts any more: {error}"));
    }
    Ok(outcome)
}

/// The text that a token adds, and whether a stop string was met.
fn shown(text: &mut Option<CompletionText>, choice: &Choice) -> (String, bool) {
    match text {
        Some(text) => {
            let (new, stop) = text.push(choice.id);
            (new.to_owned(), stop.is_some())
        }
        None => (format!(" {}", choice.id), false),
    }
}

/// Streams a piece of text; `Ok(false)` when nobody reads it any more.
fn emit(args: &GenerateArgs, all: &mut String, new: &str) -> Result<bool> {
    all.push_str(new);
    if args.json || new.is_empty() { Ok(true) } else { show::out(new) }
}

fn report(args: &GenerateArgs, o: &Outcome, load_seconds: f64) -> Result<()> {
    let generated = o.choices.len();
    let prompt_rate = o.prompt_ids.len() as f64 / o.prompt_seconds.max(1e-9);
    // The first token belongs to the prompt: its logits were computed there.
    let rate = generated.saturating_sub(1) as f64 / o.seconds.max(1e-9);
    if !args.json {
        show::out("\n")?;
        if args.logprobs.is_some() {
            show::out(&show::json(&logprobs(&o.choices))?)?;
        }
        let peak = machine::peak_rss().map_or("unknown".into(), show::bytes);
        show::note(&format!(
            "{}, {} plans; loaded in {load_seconds:.2} s; prompt {} tokens, {prompt_rate:.1} tokens/s; generated \
             {generated} tokens, {rate:.1} tokens/s; peak memory {peak}; live buffers {} at start, {} at end",
            o.device,
            o.plans,
            o.prompt_ids.len(),
            o.start.buffers,
            o.end.buffers,
        ));
        if args.draft.draft.is_some() {
            let Stats { drafted, accepted, steps, .. } = o.stats;
            show::note(&format!("{accepted} of {drafted} drafts were right; {steps} steps"));
        }
        return Ok(());
    }
    let mut object = json!({
        "text": o.text,
        "prompt_ids": o.prompt_ids,
        "ids": o.choices.iter().map(|c| c.id).collect::<Vec<_>>(),
        "finish_reason": o.finish_reason,
        "prompt_tokens_per_second": prompt_rate,
        "tokens_per_second": rate,
        "load_seconds": load_seconds,
        "peak_rss_bytes": machine::peak_rss(),
        "steps": o.stats.steps,
        "drafts": o.stats.drafted,
        "drafts_right": o.stats.accepted,
        "ledger": {
            "live_start": o.start.buffers,
            "live_end": o.end.buffers,
            "bytes_start": o.start.bytes,
            "bytes_end": o.end.bytes,
        },
    });
    if args.logprobs.is_some() {
        object["logprobs"] = logprobs(&o.choices);
    }
    show::out(&show::json(&object)?)?;
    Ok(())
}

fn logprobs(choices: &[Choice]) -> Value {
    let entry = |c: &Choice| {
        let top: Vec<_> = c.top.iter().map(|(id, l)| json!({"id": id, "logprob": l})).collect();
        json!({"id": c.id, "logprob": c.logprob, "top": top})
    };
    choices.iter().map(entry).collect()
}
