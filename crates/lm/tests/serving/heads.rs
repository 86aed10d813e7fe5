//! Drafts by the head of a checkpoint: in a batch they are what the head says of the text alone, and texts stay.

use std::sync::{Arc, Mutex};

use longrun_array::Wanted;
use longrun_lm::Result;
use longrun_lm::cache::Room;
use longrun_lm::draft::{Ask, Draft, Mtp, Read};
use longrun_lm::engine::{Engine, Request};
use longrun_lm::executor::{Executor, MtpSpan, Setup, Span};
use longrun_lm::sample::SamplingParams;

use crate::answers::{Random, answer, engine, set_up};
use crate::speculation::{DRAFTS, ROOM, requests, together};

/// Texts, and the drafts behind them.
type Told = Arc<Mutex<Vec<(Vec<u32>, Vec<u32>)>>>;

pub(crate) fn executor_with_head(family: &str, room: Room) -> Executor {
    set_up(family, Setup { mtp: true, ..Setup::new(room) }, 3)
}

/// With as many drafts by the model's own head as there is room for.
pub(crate) fn engine_with_head(family: &str, room: Room) -> Engine {
    let exec = executor_with_head(family, room);
    let drafter = Mtp::new(room.drafts, &exec).unwrap();
    Engine::new(exec).with_drafts(Box::new(drafter))
}

/// Writes down what the head guesses.
struct Witness(Mtp, Told);

impl Draft for Witness {
    fn most(&self) -> usize {
        self.0.most()
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<()> {
        self.0.draft(asks)?;
        let told = asks.iter().map(|ask| (ask.ids.to_vec(), ask.drafts.clone()));
        self.1.lock().unwrap().extend(told);
        Ok(())
    }

    fn observe(&mut self, exec: &mut Executor, reads: &mut [Read<'_>]) -> Result<()> {
        self.0.observe(exec, reads)
    }

    fn release(&mut self, row: u64) {
        self.0.release(row);
    }
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0) as u32
}

/// What the head says behind `ids`, read from their beginning.
fn alone(exec: &mut Executor, ids: &[u32], count: usize) -> Vec<u32> {
    let mut seq = exec.admit(ROOM.context).unwrap();
    let (read, mut drafts, mut carried) = (ids.len() - 1, Vec::new(), 0);
    while seq.past < read {
        let (past, n) = (seq.past, ROOM.chunk.min(read - seq.past));
        let (ids, next) = (&ids[past..past + n], &ids[past + 1..=past + n]);
        exec.run(&mut [Span { seq: &mut seq, ids, wanted: Wanted::None, drafts: 0 }]).unwrap();
        let span = MtpSpan { seq: &seq, ids: next, past, carried: 0, wanted: true };
        drafts = vec![best(exec.run_mtp(&[span]).unwrap())];
        carried = n - 1;
    }
    assert!(exec.reserve(&mut seq, count).unwrap());
    while drafts.len() < count {
        let (past, ids) = (read + drafts.len() - 1, &drafts[drafts.len() - 1..]);
        let span = MtpSpan { seq: &seq, ids, past, carried, wanted: true };
        let id = best(exec.run_mtp(&[span]).unwrap());
        drafts.push(id);
        carried = 0;
    }
    exec.release(seq);
    drafts
}

#[test]
fn drafts_of_many_rows_are_those_of_each_alone() {
    for family in ["qwen3_next", "qwen3_5", "deepseek_v3", "deepseek_v32"] {
        let room = Room { snapshots: 0, ..ROOM };
        let exec = executor_with_head(family, room);
        let told = Told::default();
        let witness = Witness(Mtp::new(DRAFTS, &exec).unwrap(), Arc::clone(&told));
        let mut engine = Engine::new(exec).with_drafts(Box::new(witness));
        let requests = requests(&mut Random(12)).into_iter();
        let greedy = |r: Request| Request { params: SamplingParams::default(), ..r };
        together(&mut engine, &requests.map(greedy).collect::<Vec<_>>());
        assert!(engine.draft_error().is_none());
        let (mut lone, told) = (executor_with_head(family, room), told.lock().unwrap());
        let most = told.iter().map(|(_, drafts)| drafts.len()).max();
        assert!(told.len() > 60 && most == Some(DRAFTS), "{family}: {} {most:?}", told.len());
        for (ids, drafts) in told.iter() {
            let want = alone(&mut lone, ids, drafts.len());
            assert_eq!(*drafts, want, "{family}: behind {} tokens", ids.len());
        }
    }
}

/// The turns of a chat, with what was read before and without.
#[test]
fn a_head_changes_no_turn_of_a_chat() {
    for family in ["qwen3_next", "qwen3_5_moe", "deepseek_v3"] {
        let mut plain = engine(family, Room { rows: 1, snapshots: 0, drafts: 0, ..ROOM });
        let mut with_head = engine_with_head(family, ROOM);
        let mut random = Random(5);
        let mut text = random.ids(90);
        for turn in 0..5 {
            let request = Request {
                params: SamplingParams {
                    temperature: [0.0, 0.8][turn % 2],
                    seed: Some(turn as u64),
                    logprobs: Some(2),
                    ..SamplingParams::default()
                },
                ..Request::new(text.clone(), 30)
            };
            let want = answer(&mut plain, request.clone());
            let got = answer(&mut with_head, request);
            assert_eq!(got.said(), want.said(), "{family}: turn {turn}");
            assert!(got.cached > 0 || turn == 0, "{family}: turn {turn}");
            text.extend(want.ids);
            let more = 1 + random.below(50);
            text.extend(random.ids(more));
        }
        assert!(with_head.draft_error().is_none() && with_head.stats().drafted > 0);
    }
}
