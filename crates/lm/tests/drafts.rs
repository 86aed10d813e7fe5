//! Drafts of every family: however many were drafted, how, how many of them were right, and whatever stood beside them,
//! the logits of a token behind right ones have the bits that they have when its text is read token by token.

mod families;

use families::VOCAB;
use longrun_array::{CpuDevice, CpuOptions, Wanted};
use longrun_lm::cache::{Room, Sequence};
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::weights::Source;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

const LONGEST: usize = 100;
const ROWS: usize = 3;
const DRAFTS: usize = 4;
/// Small, so that windows are rings of few blocks.
const CHUNK: usize = 12;

fn executor(family: &str) -> Executor {
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let (context, tokens) = (LONGEST, ROWS * LONGEST.next_multiple_of(32));
    let room = Room { rows: ROWS, context, tokens, chunk: CHUNK, snapshots: 0, drafts: DRAFTS };
    let setup = Setup::new(room);
    let config = families::config(family);
    Executor::new(Box::new(device), &config, Source::Seed(7), setup, &|_, _| {}).unwrap()
}

/// The tokens of a text, each number another text.
fn text(number: u32) -> Vec<u32> {
    (0..LONGEST as u32).map(|i| (i * (37 + 2 * number) + i * i / 5 + 11 * number) % 160).collect()
}

/// What a row does in one step.
#[derive(Clone, Copy, Debug)]
enum Move {
    Rest,
    /// Reads tokens, to stay.
    Read(usize),
    /// Reads a token to stay and drafts behind it, of which the first `right` are right.
    Verify {
        drafts: usize,
        right: usize,
    },
    /// Reads a token that may turn out wrong, behind others; a model that drafts does so.
    Peek {
        right: bool,
    },
    /// Looks back: of the drafts so far, at most so many are kept.
    Keep(usize),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        1 => Just(Move::Rest),
        2 => (1..=CHUNK).prop_map(Move::Read),
        4 => (0..=DRAFTS, 0..=DRAFTS)
            .prop_map(|(drafts, right)| Move::Verify { drafts, right: right.min(drafts) }),
        4 => prop::bool::weighted(0.8).prop_map(|right| Move::Peek { right }),
        1 => (0..=DRAFTS).prop_map(Move::Keep),
    ]
}

/// One row on its way.
struct Row<'a> {
    seq: Sequence,
    ids: &'a [u32],
    /// The bits that logits should have, by position.
    want: &'a [Vec<u32>],
    /// How many of its drafts are right.
    right: usize,
}

/// The tokens of one row of a step: their ids, how many stay drafts, how many are right.
struct Part {
    ids: Vec<u32>,
    drafts: usize,
    right: usize,
}

impl Row<'_> {
    /// What `step` reads, if anything. Before reading on for good, wrong drafts are let go.
    fn part(&mut self, step: Move) -> Option<Part> {
        let wrong = |id: &mut u32| *id = (*id + 1) % VOCAB as u32;
        if !matches!(step, Move::Peek { .. } | Move::Rest) {
            let most = if let Move::Keep(most) = step { most } else { DRAFTS };
            self.seq.accept(self.right.min(most));
            self.right = self.seq.drafts();
        }
        let (at, logged) = (self.seq.past, self.seq.drafts());
        let take = |n: usize| self.ids[at..(at + n).min(self.ids.len())].to_vec();
        let (mut ids, drafts, right) = match step {
            Move::Rest | Move::Keep(_) => return None,
            Move::Read(n) => (take(n), 0, n),
            Move::Verify { drafts, right } => {
                let ids = take(1 + drafts);
                let drafts = ids.len().saturating_sub(1);
                (ids, drafts, 1 + right.min(drafts))
            }
            Move::Peek { .. } if logged == DRAFTS => return None,
            Move::Peek { right } => (take(1), logged + 1, usize::from(right)),
        };
        if ids.is_empty() {
            return None;
        }
        ids.iter_mut().skip(right).for_each(wrong);
        let known = if self.right == logged { right.min(ids.len()) } else { 0 };
        self.right = (self.right + known).saturating_sub(logged + ids.len() - drafts);
        Some(Part { ids, drafts, right: known })
    }
}

/// One step: row `i` does `moves[i]`.
fn step(exec: &mut Executor, rows: &mut [Row<'_>], moves: &[Move], what: &str) {
    let parts: Vec<_> = rows.iter_mut().zip(moves).map(|(row, step)| row.part(*step)).collect();
    let at: Vec<usize> = rows.iter().map(|row| row.seq.past).collect();
    let mut spans: Vec<_> = rows
        .iter_mut()
        .zip(&parts)
        .filter_map(|(row, part)| {
            let Part { ids, drafts, .. } = part.as_ref()?;
            let wanted = if ids.len() > 1 + DRAFTS { Wanted::Last } else { Wanted::All };
            Some(Span { seq: &mut row.seq, ids, wanted, drafts: *drafts })
        })
        .collect();
    if spans.is_empty() {
        return;
    }
    let logits = exec.run(&mut spans).unwrap();
    let mut results = logits.chunks_exact(VOCAB);
    for ((row, at), Part { ids, right, .. }) in
        rows.iter().zip(at).zip(parts).filter_map(|(row, part)| Some((row, part?)))
    {
        let first = if ids.len() > 1 + DRAFTS { ids.len() - 1 } else { 0 };
        for i in first..ids.len() {
            let got = results.next().unwrap().iter().map(|x| x.to_bits());
            assert!(
                i >= right || got.eq(row.want[at + i].iter().copied()),
                "{what}: token {}",
                at + i
            );
        }
    }
}

/// The bits of all logits of a text, token by token.
fn plainly(exec: &mut Executor, ids: &[u32]) -> Vec<Vec<u32>> {
    let mut seq = exec.admit(LONGEST).unwrap();
    let one = |id| {
        let span = Span { seq: &mut seq, ids: &[id], wanted: Wanted::Last, drafts: 0 };
        exec.run(&mut [span]).unwrap().iter().map(|x| x.to_bits()).collect()
    };
    let bits = ids.iter().copied().map(one).collect();
    exec.release(seq);
    bits
}

fn run(family: &str) {
    let mut exec = executor(family);
    let (live, plans) = (exec.usage().live, exec.plans());
    let texts: [_; ROWS] = std::array::from_fn(|i| text(i as u32));
    let want: Vec<_> = texts.iter().map(|ids| plainly(&mut exec, ids)).collect();
    let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
    assert!(want.iter().flatten().flatten().all(finite), "{family}: a logit is no number");
    let config = ProptestConfig { cases: 10, rng_seed: RngSeed::Fixed(5), ..Default::default() };
    let cell = std::cell::RefCell::new(&mut exec);
    TestRunner::new(config)
        .run(&vec(vec(moves(), ROWS), 1..60), |script| {
            let exec = &mut *cell.borrow_mut();
            let mut row =
                |(ids, want)| Row { seq: exec.admit(LONGEST).unwrap(), ids, want, right: 0 };
            let mut rows: Vec<_> =
                texts.iter().zip(&want).map(|(ids, want)| row((&ids[..], &want[..]))).collect();
            script.iter().for_each(|moves| step(exec, &mut rows, moves, family));
            (0..LONGEST).for_each(|_| step(exec, &mut rows, &[Move::Read(1); ROWS], family));
            rows.into_iter().for_each(|row| exec.release(row.seq));
            Ok(())
        })
        .unwrap();
    assert!(exec.all_free());
    assert_eq!((exec.usage().live, exec.plans()), (live, plans));
}

#[test]
fn more_drafts_than_there_is_room_for_are_refused() {
    for family in ["llama", "mamba2"] {
        let mut exec = executor(family);
        let mut seq = exec.admit(LONGEST).unwrap();
        for (n, drafts) in [(6, 5), (1, 2), (1, usize::MAX)] {
            let span = Span { seq: &mut seq, ids: &text(0)[..n], wanted: Wanted::Last, drafts };
            let error = exec.run(&mut [span]).unwrap_err().to_string();
            assert!(error.contains("drafts"), "{error}");
            assert_eq!((seq.past, seq.drafts()), (0, 0));
        }
        exec.release(seq);
    }
}

families::each_family!(run);
