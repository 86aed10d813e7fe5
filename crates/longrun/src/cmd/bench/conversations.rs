//! A load that is a proof: conversations that share beginnings, in random order, against a budget of bytes.
//!
//! Owns the procedure and the verdict. The ledger is read after every step: what is alive never passes the budget, and
//! every request is answered in full. How much was reused and what had to go is reported, not judged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use longrun_lm::array::BLOCK;
use longrun_lm::budget::Memory;
use longrun_lm::cache::Room;
use longrun_lm::engine::{Event, Request, RowId, Stats};
use longrun_lm::prefix::Miss;
use longrun_lm::{Error, Result};
use serde::Serialize;

use super::{Bench, Facts, Used, fits, open, positive, verdict};
use crate::args::ConversationsArgs;
use crate::show;

/// Tokens of a system prompt, of a message and of an answer: at least, and at most.
const SYSTEM: (usize, usize) = (160, 320);
const MESSAGE: (usize, usize) = (8, 64);
const ANSWER: (usize, usize) = (8, 32);
/// Conversations, and requests of each: above it is a mistake.
const MOST: usize = 1 << 16;

#[derive(Debug, Default, Serialize)]
struct Outcome {
    verdict: String,
    conversations: usize,
    turns: usize,
    requests: usize,
    budget_bytes: usize,
    /// The most that was alive after a step.
    most_bytes: usize,
    steps_above_budget: usize,
    /// Of the ids that snapshots are kept under, on the host, at most.
    most_id_bytes: usize,
    most_snapshots: usize,
    /// Blocks that hold texts, at most, and all there are.
    most_blocks: usize,
    blocks: usize,
    steps: u64,
    seconds: f64,
    requests_per_second: f64,
    generated_tokens_per_second: f64,
    /// Of prompts, cached ones included.
    prompt_tokens_per_second: f64,
    #[serde(flatten)]
    used: Used,
    /// Requests that found a beginning of their prompt.
    hit_rate: f64,
    /// Tokens of prompts that need not be read.
    cached_fraction: f64,
    misses: BTreeMap<&'static str, u64>,
    evicted: u64,
    preempted: u64,
    #[serde(flatten)]
    facts: Facts,
}

pub(super) fn run(args: &ConversationsArgs) -> Result<ExitCode> {
    for (flag, value) in [
        ("--conversations", args.conversations),
        ("--turns", args.turns),
        ("--systems", args.systems),
        ("--rows", args.rows),
    ] {
        positive(flag, value)?;
        if value > MOST {
            return Err(Error::usage(format!("{value} are more than {MOST}")).at(flag));
        }
    }
    let source = open(&args.model)?;
    let context = SYSTEM.1 + args.turns * (MESSAGE.1 + ANSWER.1);
    fits(&args.model, &source, context)?;
    let quarter = args.conversations.div_ceil(4);
    let room = Room {
        rows: args.rows,
        context,
        tokens: (quarter + args.rows) * (context + BLOCK),
        chunk: args.model.chunk,
        snapshots: if args.memory.is_some() { 0 } else { (quarter * (args.turns + 1)).min(MOST) },
        drafts: 0,
    };
    let memory = args.memory.map(|bytes| Memory { bytes, shorten: false });
    let mut bench = Bench::new(&args.model, &source, room, memory)?;
    let systems: Vec<Vec<u32>> = (0..args.systems).map(|_| some(&mut bench, SYSTEM)).collect();
    let all = (0..args.conversations).map(|i| Conversation {
        ids: systems[i % systems.len()].clone(),
        ends: vec![systems[i % systems.len()].len()],
        left: args.turns,
    });
    let all = all.collect::<Vec<_>>();
    let ready = (0..all.len()).collect();
    let facts = Facts::new(&args.model, &source, &bench);
    let budget_bytes = args.memory.unwrap_or(facts.live_bytes);
    let outcome = Outcome { budget_bytes, facts, ..Outcome::default() };
    let load = Load { bench, all, ready, running: BTreeMap::new(), answered: 0, outcome };
    let outcome = load.run(args)?;
    show::out(&text(&outcome))?;
    if let Some(path) = &args.json_out {
        show::write(path, &show::json(&outcome)?)?;
    }
    Ok(if outcome.verdict == "held" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn between(bench: &mut Bench, (least, most): (usize, usize)) -> usize {
    least + bench.below(most - least + 1)
}

fn some(bench: &mut Bench, lengths: (usize, usize)) -> Vec<u32> {
    let count = between(bench, lengths);
    bench.ids(count)
}

struct Conversation {
    /// Everything that was said.
    ids: Vec<u32>,
    /// Where messages end.
    ends: Vec<usize>,
    /// Requests still to come.
    left: usize,
}

struct Load {
    bench: Bench,
    all: Vec<Conversation>,
    /// Conversations that may go on.
    ready: Vec<usize>,
    /// Those that are being answered, with the tokens still to come.
    running: BTreeMap<RowId, (usize, usize)>,
    answered: usize,
    outcome: Outcome,
}

impl Load {
    fn run(mut self, args: &ConversationsArgs) -> Result<Outcome> {
        let began = Instant::now();
        let bar = show::bar("answering");
        bar.set_length((args.conversations * args.turns) as u64);
        while !self.ready.is_empty() || !self.running.is_empty() {
            while self.running.len() < 2 * args.rows && !self.ready.is_empty() {
                self.ask()?;
            }
            self.bench.step()?;
            self.listen();
            self.sample();
            bar.set_position(self.answered as u64);
        }
        bar.finish_and_clear();
        let seconds = began.elapsed().as_secs_f64().max(1e-9);
        self.close(args, seconds);
        Ok(self.outcome)
    }

    /// The next request of any conversation.
    fn ask(&mut self) -> Result<()> {
        let place = self.bench.below(self.ready.len());
        let who = self.ready.swap_remove(place);
        let message = some(&mut self.bench, MESSAGE);
        let answer = between(&mut self.bench, ANSWER);
        let conversation = &mut self.all[who];
        conversation.left -= 1;
        conversation.ids.extend(message);
        conversation.ends.push(conversation.ids.len());
        let boundaries = conversation.ends.clone();
        let request = Request { boundaries, ..Request::new(conversation.ids.clone(), answer) };
        self.running.insert(self.bench.engine.submit(request)?, (who, answer));
        Ok(())
    }

    fn listen(&mut self) {
        for event in &self.bench.events {
            match event {
                Event::Token { row, choice } => {
                    if let Some((who, left)) = self.running.get_mut(row) {
                        self.all[*who].ids.push(choice.id);
                        *left -= 1;
                    }
                }
                Event::Finished { row, .. } => {
                    let Some((who, left)) = self.running.remove(row) else { continue };
                    let conversation = &mut self.all[who];
                    conversation.ends.push(conversation.ids.len());
                    self.answered += usize::from(left == 0);
                    if conversation.left > 0 {
                        self.ready.push(who);
                    }
                }
                Event::Started { .. }
                | Event::Progress { .. }
                | Event::Scored { .. }
                | Event::Failed { .. } => {}
            }
        }
    }

    /// What the ledger says now.
    fn sample(&mut self) {
        let (exec, out) = (self.bench.engine.executor(), &mut self.outcome);
        let usage = exec.usage();
        let bytes = usage.live.bytes + usage.cached.bytes;
        out.most_bytes = out.most_bytes.max(bytes);
        out.steps_above_budget += usize::from(bytes > out.budget_bytes);
        let (free, blocks) = exec.pools().paged();
        out.most_blocks = out.most_blocks.max(blocks - free);
        out.blocks = blocks;
        let prefixes = self.bench.engine.prefixes();
        out.most_id_bytes = out.most_id_bytes.max(prefixes.id_bytes());
        out.most_snapshots = out.most_snapshots.max(prefixes.len());
    }

    fn close(&mut self, args: &ConversationsArgs, seconds: f64) {
        let stats: Stats = self.bench.engine.stats();
        let requests = args.conversations * args.turns;
        let mut broken = Vec::new();
        if self.outcome.steps_above_budget > 0 {
            let (most, budget) = (self.outcome.most_bytes, self.outcome.budget_bytes);
            broken.push(format!("{most} bytes were alive, the budget is {budget}"));
        }
        if self.answered != requests || stats.finished != requests as u64 {
            broken.push(format!("{} of {requests} requests were answered in full", self.answered));
        }
        broken.extend(self.bench.leftovers());
        let prompts: usize = stats.prompt_tokens as usize + stats.cached_tokens as usize;
        let out = &mut self.outcome;
        out.verdict = verdict(&broken);
        (out.conversations, out.turns, out.requests) = (args.conversations, args.turns, requests);
        (out.steps, out.seconds) = (stats.steps, seconds);
        out.requests_per_second = requests as f64 / seconds;
        out.generated_tokens_per_second = stats.generated_tokens as f64 / seconds;
        out.prompt_tokens_per_second = prompts as f64 / seconds;
        out.hit_rate = stats.hits as f64 / stats.started.max(1) as f64;
        out.cached_fraction = stats.cached_tokens as f64 / prompts.max(1) as f64;
        out.misses = Miss::NAMES.into_iter().zip(stats.misses).collect();
        out.used = Used::of(self.bench.peaks, &[self.bench.work]);
        (out.evicted, out.preempted) = (stats.evicted, stats.preempted);
    }
}

fn text(o: &Outcome) -> String {
    let mut text = o.facts.text();
    let bytes = |n: usize| show::bytes(n as u64);
    let misses: Vec<String> = o.misses.iter().map(|(name, n)| format!("{name} {n}")).collect();
    let _ = write!(
        text,
        "load     {} conversations of {} requests\n\n\
         speed    {:.2} requests/s, {:.1} generated and {:.1} prompt tokens/s; {:.1} s, {} steps\n\
         peaks    of the bandwidth and of the arithmetic{}\n\
         reuse    {:.1}% of requests, {:.1}% of prompt tokens; misses: {}\n\
         memory   at most {} alive, budget {}; at most {} of {} blocks, {} snapshots, their ids {}\n\
         room     {} snapshots evicted, {} rows preempted\n{}\n",
        o.conversations,
        o.turns,
        o.requests_per_second,
        o.generated_tokens_per_second,
        o.prompt_tokens_per_second,
        o.seconds,
        o.steps,
        o.used.text(),
        o.hit_rate * 100.0,
        o.cached_fraction * 100.0,
        misses.join(", "),
        bytes(o.most_bytes),
        bytes(o.budget_bytes),
        o.most_blocks,
        o.blocks,
        o.most_snapshots,
        bytes(o.most_id_bytes),
        o.evicted,
        o.preempted,
        o.verdict,
    );
    text
}
