//! Engines of tiny models, random texts, and what came of a request.

use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::cache::Room;
use longrun_lm::engine::{Engine, Event, FinishReason, Request};
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::prefix::Miss;
use longrun_lm::sample::{Choice, SamplingParams};
use longrun_lm::weights::Source;

use crate::families::{self, VOCAB};

pub(crate) fn executor(family: &str, room: Room, seed: u64) -> Executor {
    set_up(family, Setup::new(room), seed)
}

pub(crate) fn set_up(family: &str, setup: Setup, seed: u64) -> Executor {
    let config = families::config(family);
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let source = Source::Seed(seed);
    let exec = Executor::new(Box::new(device), &config, source, setup, &|_, _| {});
    exec.unwrap_or_else(|e| panic!("{family}: {e}"))
}

pub(crate) fn engine(family: &str, room: Room) -> Engine {
    Engine::new(executor(family, room, 3))
}

/// Numbers from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    pub(crate) fn ids(&mut self, n: u64) -> Vec<u32> {
        (0..n).map(|_| self.below(VOCAB as u64) as u32).collect()
    }
}

/// The bits of a token's log-probability, and the best tokens with those of theirs.
type Bits = (Option<u32>, Vec<(u32, u32)>);

type Said<'a> = (&'a [u32], &'a [Bits], &'a [(u32, Bits)], Option<FinishReason>);

fn bits(choice: &Choice) -> Bits {
    let top = choice.top.iter().map(|(id, p)| (*id, p.to_bits())).collect();
    (choice.logprob.map(f32::to_bits), top)
}

/// What came of a request: its tokens with the bits of what was said about them and about the prompt, and its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) ids: Vec<u32>,
    pub(crate) bits: Vec<Bits>,
    pub(crate) scores: Vec<(u32, Bits)>,
    pub(crate) end: Option<FinishReason>,
    pub(crate) cached: usize,
    pub(crate) miss: Option<Miss>,
}

impl Answer {
    pub(crate) fn take(&mut self, event: &Event) {
        match event {
            Event::Started { cached, miss, .. } => (self.cached, self.miss) = (*cached, *miss),
            Event::Scored { scores, .. } => {
                assert!(self.ids.is_empty(), "what was read is told before what is chosen");
                self.scores.extend(scores.iter().map(|score| (score.id, bits(score))));
            }
            Event::Token { choice, .. } => {
                self.ids.push(choice.id);
                self.bits.push(bits(choice));
            }
            Event::Finished { reason, .. } => self.end = Some(*reason),
            Event::Failed { error, .. } => panic!("{error}"),
            Event::Progress { .. } => {}
        }
    }

    /// What neighbours and memory must not change.
    pub(crate) fn said(&self) -> Said<'_> {
        (&self.ids, &self.bits, &self.scores, self.end)
    }
}

pub(crate) fn answer(engine: &mut Engine, request: Request) -> Answer {
    let row = engine.submit(request).unwrap();
    let (mut answer, mut events) = (Answer::default(), Vec::new());
    while engine.rows() > 0 {
        engine.step(&mut events).unwrap();
        events.drain(..).filter(|e| e.row() == row).for_each(|e| answer.take(&e));
    }
    answer
}

pub(crate) const CONTEXT: usize = 700;

pub(crate) const ROOMY: Room =
    Room { rows: 2, context: CONTEXT, tokens: 4 * CONTEXT, chunk: 64, snapshots: 24, drafts: 0 };

pub(crate) fn asked(prompt: &[u32], max_tokens: usize) -> Request {
    let params = SamplingParams { logprobs: Some(2), ..SamplingParams::default() };
    Request { params, ..Request::new(prompt.to_vec(), max_tokens) }
}
