//! Pools under random moves: blocks and slots are held by whom they should be, and come back.

use longrun_array::{BLOCK, Limits, NullDevice, Runtime, Stored, TABLES};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;

/// What happens next to one of four sequences, or to the snapshots.
#[derive(Clone, Debug)]
enum Move {
    /// Sequence `0` finds `3` of its drafts right, and reads `1` tokens, of which `2` are drafts.
    Read(usize, usize, usize, usize),
    Leave(usize),
    Keep(usize),
    Forget(usize),
    /// Sequence `0` goes on from snapshot `1` at a part `2` of 8 of it.
    Restore(usize, usize, usize),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (0usize..4, 1usize..40, 0..=DRAFTS, 0..=DRAFTS)
            .prop_map(|(who, count, drafts, right)| Move::Read(who, count, drafts, right)),
        1 => (0usize..4).prop_map(Move::Leave),
        2 => (0usize..4).prop_map(Move::Keep),
        1 => (0usize..6).prop_map(Move::Forget),
        2 => (0usize..4, 0usize..6, 0usize..9).prop_map(|(s, k, part)| Move::Restore(s, k, part)),
    ]
}

const DRAFTS: usize = 20;

const ROOM: Room =
    Room { rows: 4, context: 400, tokens: 800, chunk: 40, snapshots: 5, drafts: DRAFTS };

/// What each block and slot holds, as the tokens written to it: a device made of labels. A token's label is unique.
struct Model {
    pools: Pools,
    blocks: Vec<Vec<[u64; BLOCK]>>,
    /// Of a slot: the text of its record and log.
    slots: Vec<Vec<u64>>,
    seqs: Vec<Option<(Sequence, Vec<u64>)>>,
    kept: Vec<(Snapshot, Vec<u64>)>,
    next: u64,
}

impl Model {
    fn new(spec: &CacheSpec, runtime: &Runtime) -> Self {
        let (caches, pools) = make(runtime, spec, ROOM).unwrap();
        drop(caches);
        let blocks = pools.totals().map(|total| vec![[0; BLOCK]; total]).collect();
        let slots = vec![Vec::new(); pools.slot_count()];
        let seqs = (0..4).map(|_| None).collect();
        Self { pools, blocks, slots, seqs, kept: Vec::new(), next: 1 }
    }

    fn copy(&mut self) {
        for copied in self.pools.take_copies() {
            match copied {
                Copied::Block { pool, from, to } => {
                    self.blocks[pool][to as usize] = self.blocks[pool][from as usize];
                }
                Copied::Slot { from, to } => {
                    self.slots[to as usize] = self.slots[from as usize].clone();
                }
            }
        }
    }

    fn apply(&mut self, step: Move) {
        match step {
            Move::Read(who, count, drafts, right) => self.read(who, count, drafts, right),
            Move::Leave(who) => {
                self.seqs[who].take().into_iter().for_each(|(seq, _)| self.pools.release(seq));
            }
            Move::Keep(who) => {
                let Some((seq, text)) = &mut self.seqs[who] else { return };
                // What is kept was right.
                seq.accept(DRAFTS);
                self.kept.extend(self.pools.keep(seq).map(|kept| (kept, text.clone())));
            }
            Move::Forget(k) if k < self.kept.len() => {
                self.pools.forget(self.kept.swap_remove(k).0);
            }
            Move::Restore(who, k, part) if k < self.kept.len() && self.seqs[who].is_none() => {
                let (kept, text) = &self.kept[k];
                let cut = self.pools.serves(kept, kept.past() * part / 8);
                let seq = self.pools.restore(kept, cut).unwrap();
                self.seqs[who] = Some((seq, text[..cut].to_vec()));
            }
            Move::Forget(_) | Move::Restore(..) => {}
        }
    }

    fn read(&mut self, who: usize, count: usize, drafts: usize, right: usize) {
        let Some((mut seq, mut text)) = self.seqs[who].take() else {
            self.seqs[who] = Some((self.pools.admit(1.0).unwrap(), Vec::new()));
            return;
        };
        seq.accept(right);
        text.truncate(seq.past);
        let all = seq.drafts() + count;
        let drafts = if drafts < count || all > DRAFTS { drafts.min(count) } else { all };
        if !matches!(self.pools.reserve(&mut seq, count), Ok(true)) {
            return self.pools.release(seq);
        }
        self.copy();
        for pos in seq.past..seq.past + count {
            text.push(self.next);
            for (i, pool) in self.pools.pools().iter().enumerate() {
                if (pos + 1).is_multiple_of(pool.every) {
                    let entry = pos / pool.every;
                    let block = seq.tables[i][entry / BLOCK % pool.width];
                    self.blocks[i][block as usize][entry % BLOCK] = self.next;
                }
            }
            self.next += 1;
        }
        self.slots[seq.slot as usize].clone_from(&text);
        (seq.past, seq.logged) = (seq.past + count, drafts);
        self.seqs[who] = Some((seq, text));
    }

    /// What a sequence's next token would read is what it has written.
    fn check_contents(&self, records: bool) {
        for (seq, text) in self.seqs.iter().flatten().filter(|(seq, _)| seq.past > 0) {
            assert_eq!(text.len(), seq.past);
            for (i, pool) in self.pools.pools().iter().enumerate() {
                let first = pool.first_read(seq.past - seq.drafts());
                for entry in first / pool.every..seq.past / pool.every {
                    let block = seq.tables[i][entry / BLOCK % pool.width];
                    let label = text[(entry + 1) * pool.every - 1];
                    assert_eq!(self.blocks[i][block as usize][entry % BLOCK], label, "pool {i}");
                }
            }
            if records {
                assert!(self.slots[seq.slot as usize].starts_with(text));
            }
        }
    }

    /// Every block is held by exactly those who say so.
    fn check_holders(&self) {
        for (i, pool) in self.pools.pools().iter().enumerate() {
            let mut holders = vec![0u32; pool.total()];
            for (seq, _) in self.seqs.iter().flatten() {
                assert!(seq.held(i).len() <= pool.width);
                seq.held(i).for_each(|j| holders[seq.tables[i][j % pool.width] as usize] += 1);
            }
            for (kept, _) in &self.kept {
                kept.blocks(i).1.iter().for_each(|b| holders[*b as usize] += 1);
            }
            assert_eq!(pool.holders(), holders);
            assert_eq!(pool.free(), holders.iter().filter(|h| **h == 0).count());
        }
        let rows = self.seqs.iter().flatten().count();
        assert_eq!((self.pools.rows(), self.pools.snapshots()), (rows, self.kept.len()));
    }
}

/// Sequences that join, grow, leave, are kept and gone on from in any order find what they wrote, never write what
/// another holds, and give everything back.
fn hold(windows: &[Option<usize>], every: &[usize], records: bool) {
    let runtime = Runtime::new(Box::new(NullDevice::new()), Limits::default());
    let mut spec = CacheSpec::default();
    windows.iter().for_each(|window| _ = spec.keys(1, 8, *window));
    every.iter().for_each(|every| _ = spec.entries(8, *every));
    if records {
        spec.record(8, 8);
    }
    let live = runtime.usage().live;
    let config = ProptestConfig { cases: 200, rng_seed: RngSeed::Fixed(7), ..Default::default() };
    proptest!(config, |(script in proptest::collection::vec(moves(), 1..150))| {
        let mut model = Model::new(&spec, &runtime);
        for step in script {
            model.apply(step);
            model.copy();
            model.check_contents(records);
            model.check_holders();
        }
        (0..4).for_each(|who| model.apply(Move::Leave(who)));
        while !model.kept.is_empty() {
            model.apply(Move::Forget(0));
        }
        prop_assert!(model.pools.all_free());
        prop_assert_eq!(runtime.usage().live, live);
    });
}

#[test]
fn full_pools_hold() {
    hold(&[None], &[], false);
}

#[test]
fn windows_hold() {
    hold(&[None, Some(70), Some(1)], &[], false);
}

#[test]
fn records_and_entries_hold() {
    hold(&[None, Some(70)], &[4], true);
}

#[test]
fn records_alone_hold() {
    hold(&[], &[], true);
}

fn facts(past: usize) -> Facts {
    Facts { past, logged: 0, stretch: 1.0 }
}

#[test]
fn what_an_adopted_snapshot_takes_comes_back() {
    let runtime = Runtime::new(Box::new(NullDevice::new()), Limits::default());
    let mut spec = CacheSpec::default();
    spec.keys(1, 8, None);
    spec.record(8, 8);
    let (_caches, mut pools) = make(&runtime, &spec, ROOM).unwrap();
    let kept = pools.adopt(facts(70), &[vec![None; 3]]).unwrap();
    assert_eq!((kept.past(), kept.blocks(0).1.len(), kept.slot().is_some()), (70, 3, true));
    assert!(pools.adopt(facts(401), &[vec![None; 13]]).is_none(), "beyond the context");
    assert!(pools.adopt(facts(70), &[vec![None; 2]]).is_none());
    assert!(pools.adopt(facts(70), &vec![vec![None; 3]; TABLES]).is_none());
    let seq = pools.restore(&kept, 70).unwrap();
    pools.forget(kept);
    assert!(!pools.all_free());
    pools.release(seq);
    assert!(pools.all_free());
}

#[test]
fn each_cache_has_its_type_and_tokens_their_bytes() {
    let runtime = Runtime::new(Box::new(NullDevice::new()), Limits::default());
    let mut spec = CacheSpec::default();
    spec.keys(2, 64, None);
    spec.values(2, 64, Some(70));
    let index = spec.entries(32, 4);
    spec.mark_indexer(index);
    spec.record(10, 3);
    let list = |kv| {
        let spec = spec.clone().stored_as(kv);
        let room = Room { drafts: 2, ..ROOM };
        let (caches, _) = make(&runtime, &spec, room).unwrap();
        assert_eq!((caches.record_bytes(), caches.bytes()), (64, spec.bytes(room)));
        caches.types().iter().map(|t| (t.stored, t.caches, t.token_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(list(Stored::F32), [(Stored::F32, 3, 1024.0 + 32.0)]);
    assert_eq!(list(Stored::Q8), [(Stored::F32, 1, 32.0), (Stored::Q8, 2, 272.0)]);
    assert_eq!(list(Stored::Q4), [(Stored::F32, 1, 32.0), (Stored::Q4, 2, 160.0)]);
}

#[test]
fn adopted_snapshots_share_blocks_and_slots_run_out() {
    let runtime = Runtime::new(Box::new(NullDevice::new()), Limits::default());
    let mut spec = CacheSpec::default();
    spec.keys(1, 8, None);
    spec.keys(1, 8, Some(70));
    spec.record(8, 8);
    let room = Room { rows: 1, tokens: 400, ..ROOM };
    let (_caches, mut pools) = make(&runtime, &spec, room).unwrap();
    assert_eq!((pools.needs(0, 300), pools.needs(1, 300)), (0..10, 7..10));
    let first = pools.adopt(facts(300), &[vec![None; 10], vec![None; 3]]).unwrap();
    assert_eq!(first.blocks(1).0, 7, "what lies before the window is not held");
    let share = |pool: usize| first.blocks(pool).1.iter().map(|b| Some(*b));
    let shared: Vec<Option<u32>> = share(0).take(9).chain([None]).collect();
    let lists = [shared, share(1).collect()];
    let free = pools.paged().0;
    let second = pools.adopt(facts(300), &lists).unwrap();
    assert_eq!(pools.paged().0, free - 1, "one block is new");
    assert_eq!(first.blocks(0).1[..9], second.blocks(0).1[..9]);
    assert_ne!(first.blocks(0).1[9], second.blocks(0).1[9]);
    assert_eq!(first.blocks(1), second.blocks(1));
    assert!(
        pools.adopt(facts(100), &[vec![None; 4], vec![None; 4]]).is_none(),
        "2 blocks are free"
    );
    let lists = [second.blocks(0).1[..4].iter().map(|b| Some(*b)).collect(), vec![None; 4]];
    let mut others = Vec::new();
    while let Some(kept) = pools.adopt(facts(100), &lists) {
        others.push(kept);
    }
    assert_eq!(others.len(), 3, "there is room for 5 snapshots");
    pools.forget(first);
    let mut seq = pools.restore(&second, 300).unwrap();
    pools.forget(second);
    assert!(pools.reserve(&mut seq, 40).unwrap());
    others.into_iter().for_each(|kept| pools.forget(kept));
    pools.release(seq);
    assert!(pools.all_free());
}
