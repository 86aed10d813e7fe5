//! Damaged and hostile stores: whatever the bytes are, loading ends in snapshots or reasons, never in a panic, takes no
//! memory that the file could not justify, and what damage leaves is right.
#![forbid(unsafe_code)]

mod stores;

use std::fs;
use std::path::PathBuf;

use longrun_lm::array::counting::{CountingAllocator, Watch};
use longrun_lm::cache::Room;
use longrun_lm::engine::Engine;
use longrun_lm::prefix::disk::{Loaded, Why};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use stores::{Model, ROOM, Said, Scratch, cold, engine, say, talk};
use twox_hash::XxHash3_128;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bytes of the head, and of it with its checksum.
const HEAD: usize = 52;
const MANIFEST: usize = HEAD + 16;

/// A store, where it is, and an engine to load it.
struct Bench {
    store: Vec<u8>,
    path: PathBuf,
    scratch: Scratch,
    snapshots: usize,
    engine: Engine,
    text: Vec<u32>,
    want: Said,
}

impl Bench {
    fn new(family: &'static str, name: &str) -> Self {
        let scratch = Scratch::new(name);
        let model = Model::new(family);
        let mut before = engine(model, ROOM);
        let text = talk(&mut before).remove(2);
        let saved = before.save_prefixes(&scratch.0).unwrap();
        let store = fs::read(&saved.path).unwrap();
        let engine = engine(model, Room { rows: 1, ..ROOM });
        let want = cold(model, &text);
        Self { store, path: saved.path, scratch, snapshots: saved.snapshots, engine, text, want }
    }

    /// Loads these bytes, with every allocation watched.
    fn load(&mut self, store: &[u8]) -> Loaded {
        fs::write(&self.path, store).unwrap();
        let watch = Watch::start();
        let loaded = self.engine.load_prefixes(&self.scratch.0).unwrap();
        let (largest, peak) = (watch.largest(), watch.peak());
        let size = store.len();
        assert!(largest <= 2 * size + (1 << 16), "{largest} bytes at once for a store of {size}");
        assert!(peak <= (4 * size + (1 << 18)) as isize, "{peak} bytes for a store of {size}");
        assert_eq!(loaded.snapshots, self.engine.prefixes().len());
        assert!(loaded.ignored.iter().all(|i| !i.to_string().is_empty()));
        loaded
    }

    /// What the engine says now; then it has nothing any more.
    fn say(&mut self) -> Said {
        let said = say(&mut self.engine, &self.text);
        self.clear();
        said
    }

    fn clear(&mut self) {
        self.engine.clear_prefixes();
        assert!(self.engine.executor().all_free());
    }

    fn right(&mut self) {
        let said = self.say();
        assert!(said.ids == self.want.ids && said.bits == self.want.bits);
    }

    /// The length of the manifest.
    fn manifest(&self) -> usize {
        u64::from_le_bytes(self.store[HEAD - 8..HEAD].try_into().unwrap()) as usize
    }
}

#[test]
fn every_changed_byte_is_seen_and_the_rest_is_right() {
    for family in ["qwen3_next", "deepseek_v4"] {
        let mut bench = Bench::new(family, &format!("bytes-{family}"));
        let (store, start) = (bench.store.clone(), MANIFEST + bench.manifest());
        assert_eq!(bench.load(&store).snapshots, bench.snapshots);
        bench.right();
        // Every byte of the head, and some of all others.
        let rest = (MANIFEST..start).step_by(41).chain((start..store.len()).step_by(7919));
        for (i, at) in (0..MANIFEST).chain(rest).chain([store.len() - 1]).enumerate() {
            let mut changed = store.clone();
            changed[at] ^= 1 << (i % 8);
            let loaded = bench.load(&changed);
            let lost: usize = loaded.ignored.iter().filter_map(|i| i.snapshots).sum();
            assert!(!loaded.ignored.is_empty(), "{family}: byte {at}");
            if at < start {
                assert_eq!((loaded.snapshots, lost), (0, 0), "{family}: byte {at}");
            } else {
                assert_eq!(loaded.snapshots + lost, bench.snapshots, "{family}: byte {at}");
                assert!(loaded.ignored.iter().all(|i| i.why == Why::Damaged));
            }
            if i % 16 == 0 { bench.right() } else { bench.clear() }
        }
    }
}

#[test]
fn a_store_of_another_length_is_refused() {
    let mut bench = Bench::new("gemma3", "lengths");
    let store = bench.store.clone();
    let lengths = (0..MANIFEST + 40).chain((0..store.len()).step_by(4999));
    for length in lengths.chain([store.len() - 1]) {
        let loaded = bench.load(&store[..length]);
        let why = if length < MANIFEST { Why::NoStore } else { Why::Damaged };
        assert_eq!((loaded.snapshots, &loaded.ignored[0].why), (0, &why), "{length}");
        assert_eq!(loaded.ignored[0].snapshots, None);
    }
    assert_eq!(bench.load(&[&store[..], &[0]].concat()).ignored[0].why, Why::Damaged);
    bench.right();
}

/// Puts the right checksum over a head and a manifest of this length.
fn sum(store: &mut [u8], manifest: usize) {
    let mut sum = XxHash3_128::new();
    sum.write(&store[..HEAD]);
    sum.write(&store[MANIFEST..][..manifest]);
    store[HEAD..MANIFEST].copy_from_slice(&sum.finish_128().to_le_bytes());
}

#[test]
fn numbers_of_what_is_not_there_are_damage() {
    let mut bench = Bench::new("qwen3_next", "numbers");
    let (store, manifest) = (bench.store.clone(), bench.manifest());
    let word = |store: &[u8], at: usize| u32::from_le_bytes(store[at..at + 4].try_into().unwrap());
    // A snapshot more than there are slots.
    let mut more = store.clone();
    more[MANIFEST..][..4].copy_from_slice(&(bench.snapshots as u32 + 1).to_le_bytes());
    sum(&mut more, manifest);
    let ignored = bench.load(&more).ignored;
    assert_eq!((ignored[0].snapshots, &ignored[0].why), (None, &Why::Damaged));
    // The first block of the first snapshot, behind counts of both sections, its length, log, stretch, adapter and ids;
    // the number is the first that is none.
    let length = word(&store, MANIFEST + 12) as usize;
    let mut beyond = store.clone();
    let units = word(&store, MANIFEST + 4);
    beyond[MANIFEST + 40 + 4 * length..][..4].copy_from_slice(&units.to_le_bytes());
    sum(&mut beyond, manifest);
    let loaded = bench.load(&beyond);
    // Where the manifest is wrong nothing behind it is believed.
    let all = Some(bench.snapshots);
    assert_eq!((loaded.snapshots, loaded.ignored.len()), (0, 1));
    assert_eq!((loaded.ignored[0].snapshots, &loaded.ignored[0].why), (all, &Why::Damaged));
    bench.clear();
    // A log that the record has no room for.
    let mut logged = store.clone();
    logged[MANIFEST + 16..][..4].copy_from_slice(&9u32.to_le_bytes());
    sum(&mut logged, manifest);
    let loaded = bench.load(&logged);
    assert_eq!((loaded.snapshots, loaded.ignored.len()), (bench.snapshots - 1, 1));
    assert_eq!((loaded.ignored[0].snapshots, &loaded.ignored[0].why), (Some(1), &Why::Damaged));
    bench.clear();
    // Any bit of an adapter makes it one that no slot has.
    for bit in 0..128 {
        let mut adapted = store.clone();
        adapted[MANIFEST + 24 + bit / 8] ^= 1 << (bit % 8);
        sum(&mut adapted, manifest);
        let loaded = bench.load(&adapted);
        assert_eq!((loaded.snapshots, loaded.ignored.len()), (bench.snapshots - 1, 1));
        assert_eq!((loaded.ignored[0].snapshots, &loaded.ignored[0].why), (Some(1), &Why::Adapter));
        bench.clear();
    }
}

/// Whoever writes a checksum can write anything: what is said of lengths and places is checked all the same.
#[test]
fn a_manifest_that_lies_does_no_harm() {
    for family in ["llama", "qwen3_next", "deepseek_v4"] {
        let bench = std::cell::RefCell::new(Bench::new(family, &format!("lies-{family}")));
        let store = bench.borrow().store.clone();
        let words = bench.borrow().manifest() / 4;
        let value = prop_oneof![
            Just(0u32),
            Just(1),
            Just(u32::MAX),
            Just(1 << 31),
            0u32..300,
            any::<u32>()
        ];
        // Half of the lies are about counts, which stand first.
        let place = prop_oneof![0..8usize, 0..words];
        let lies = proptest::collection::vec((place, value), 1..4);
        let length = prop_oneof![6 => Just(None), 1 => any::<u64>().prop_map(Some)];
        let config =
            ProptestConfig { cases: 150, rng_seed: RngSeed::Fixed(2), ..Default::default() };
        let run = TestRunner::new(config).run(&(lies, length), |(lies, length)| {
            let mut store = store.clone();
            for (word, value) in lies {
                store[MANIFEST + 4 * word..][..4].copy_from_slice(&value.to_le_bytes());
            }
            if let Some(length) = length {
                store[HEAD - 8..HEAD].copy_from_slice(&length.to_le_bytes());
            }
            sum(&mut store, 4 * words);
            let bench = &mut *bench.borrow_mut();
            bench.load(&store);
            bench.say();
            Ok(())
        });
        run.unwrap();
        bench.borrow_mut().load(&store);
        bench.borrow_mut().right();
    }
}
