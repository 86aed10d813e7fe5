//! Every family at every boundary: of windows, of groups of tokens that share an entry, of blocks, of running sums.
//!
//! A token's logits have the same bits however its prompt was cut and whatever stood beside it, in rows and blocks that
//! others have used before.

mod families;

use families::VOCAB;
use longrun_array::{CpuDevice, CpuOptions, Stored, Wanted};
use longrun_lm::cache::{Room, Sequence};
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::weights::Source;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

/// Around windows of 8, groups of 4 and of 16, blocks of 32, running sums of 64, and blocks of entries of groups of 4.
const LENGTHS: [usize; 19] =
    [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129];
const LONGEST: usize = 140;
const ROWS: usize = 3;

fn executor(family: &str, kv: Stored) -> Executor {
    let config = families::config(family);
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let room = Room {
        rows: ROWS,
        context: LONGEST,
        tokens: ROWS * LONGEST,
        chunk: LONGEST,
        snapshots: 0,
        drafts: 0,
    };
    let setup = Setup { per_token: true, kv, ..Setup::new(room) };
    Executor::new(Box::new(device), &config, Source::Seed(7), setup, &|_, _| {}).unwrap()
}

/// The tokens of a text, each number another text.
fn text(number: u32) -> Vec<u32> {
    (0..LONGEST as u32).map(|i| (i * (37 + 2 * number) + i * i / 5 + 11 * number) % 160).collect()
}

/// One row on its way: what it reads, and the bits of all its logits.
struct Row {
    seq: Sequence,
    ids: Vec<u32>,
    bits: Vec<u32>,
}

impl Row {
    fn new(exec: &mut Executor, ids: &[u32]) -> Self {
        // The longest of all: positions may be those of the text that a row can become.
        let seq = exec.admit(LONGEST).unwrap();
        Self { seq, ids: ids.to_vec(), bits: Vec::new() }
    }
}

/// One step: row `i` reads `counts[i]` tokens, or what it has left; a row that reads none rests.
fn step(exec: &mut Executor, rows: &mut [Row], counts: &[usize]) {
    let mut read = Vec::new();
    let mut spans = Vec::new();
    for (i, row) in rows.iter_mut().enumerate() {
        let at = row.seq.past;
        let n = counts[i].min(row.ids.len() - at);
        if n > 0 {
            read.push((i, n));
            let ids = &row.ids[at..at + n];
            spans.push(Span { seq: &mut row.seq, ids, wanted: Wanted::All, drafts: 0 });
        }
    }
    if spans.is_empty() {
        return;
    }
    let logits = exec.run(&mut spans).unwrap();
    let mut bits = logits.iter().map(|x| x.to_bits());
    for (i, n) in read {
        rows[i].bits.extend(bits.by_ref().take(n * VOCAB));
    }
}

/// The bits of the logits of `ids`, read in pieces of these sizes, then at once.
fn read(exec: &mut Executor, ids: &[u32], pieces: impl IntoIterator<Item = usize>) -> Vec<u32> {
    let mut rows = [Row::new(exec, ids)];
    pieces.into_iter().for_each(|n| step(exec, &mut rows, &[n]));
    step(exec, &mut rows, &[LONGEST]);
    let [row] = rows;
    exec.release(row.seq);
    row.bits
}

/// The first place where bits differ, as a token.
fn same(what: &str, got: &[u32], want: &[u32]) {
    let wrong = got.iter().zip(want).position(|(a, b)| a != b).map(|i| i / VOCAB);
    assert!(got.len() <= want.len() && wrong.is_none(), "{what}: token {wrong:?}");
}

fn cuts_change_nothing(exec: &mut Executor, family: &str) -> [Vec<u32>; ROWS] {
    let whole: [_; ROWS] = std::array::from_fn(|i| read(exec, &text(i as u32), []));
    let finite = |bits: &u32| f32::from_bits(*bits).is_finite();
    assert!(whole.iter().flatten().all(finite), "{family}: a logit is no number");
    let ids = text(0);
    for n in LENGTHS {
        let alone = read(exec, &ids[..n], []);
        assert_eq!(alone.len(), n * VOCAB);
        same(&format!("{family}: {n} tokens in one pass"), &alone, &whole[0]);
    }
    let ends = |from: usize| LENGTHS.into_iter().skip(from).step_by(2);
    for from in 0..2 {
        let mut at = 0;
        let pieces: Vec<_> = ends(from).map(|end| end - std::mem::replace(&mut at, end)).collect();
        same(&format!("{family}: cut at boundaries"), &read(exec, &ids, pieces), &whole[0]);
    }
    let ones = read(exec, &ids, vec![1; LONGEST]);
    same(&format!("{family}: token by token"), &ones, &whole[0]);
    whole
}

/// Rows of any lengths, cut anywhere, side by side.
fn neighbours_change_nothing(exec: &mut Executor, family: &str, whole: &[Vec<u32>; ROWS]) {
    let config = ProptestConfig { cases: 12, rng_seed: RngSeed::Fixed(11), ..Default::default() };
    let length = prop_oneof![prop::sample::select(&LENGTHS[..]), 1..LONGEST];
    let counts = vec(prop_oneof![Just(0), Just(1), 1usize..20, 1..LONGEST], ROWS);
    let strategy = (vec(length, ROWS), vec(counts, 0..30));
    let exec = std::cell::RefCell::new(exec);
    TestRunner::new(config)
        .run(&strategy, |(lengths, script)| {
            let exec = &mut *exec.borrow_mut();
            let row = |(i, n): (usize, &usize)| Row::new(exec, &text(i as u32)[..*n]);
            let mut rows: Vec<Row> = lengths.iter().enumerate().map(row).collect();
            script.iter().for_each(|counts| step(exec, &mut rows, counts));
            step(exec, &mut rows, &[LONGEST; ROWS]);
            for ((row, want), n) in rows.into_iter().zip(whole).zip(lengths) {
                exec.release(row.seq);
                assert_eq!(row.bits.len(), n * VOCAB);
                same(&format!("{family}: {n} tokens beside others"), &row.bits, want);
            }
            Ok(())
        })
        .unwrap();
}

fn run(family: &str, kv: Stored) {
    let mut exec = executor(family, kv);
    let live = exec.usage().live;
    let whole = cuts_change_nothing(&mut exec, family);
    assert_ne!(whole[0], whole[1]);
    neighbours_change_nothing(&mut exec, family, &whole);
    assert!(exec.all_free());
    assert_eq!(exec.usage().live, live);
}

families::each_family!(run_f32);

fn run_f32(family: &str) {
    run(family, Stored::F32);
}

/// Windows, sinks, shared caches, latent keys, indexers, entries and records beside keys, over each type of keys and
/// values.
#[test]
fn rounded_keys_and_values() {
    let families =
        ["gemma3", "gpt_oss", "gemma4", "deepseek_v32", "deepseek_v4", "glm5_next", "falcon_h1"];
    for (i, family) in families.into_iter().enumerate() {
        let exec = executor(family, Stored::Q4);
        let types: Vec<_> = exec.caches().types().iter().map(|of| of.stored).collect();
        let chooses = ["deepseek_v32", "deepseek_v4", "glm5_next"].contains(&family);
        let want = if chooses { &[Stored::F32, Stored::Q4][..] } else { &[Stored::Q4] };
        assert_eq!(types, want, "{family}");
        run(family, Stored::Q4);
        run(family, [Stored::F16, Stored::BF16, Stored::Q8][i % 3]);
    }
}
