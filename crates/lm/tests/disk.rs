//! Snapshots on disk: a new engine goes on where the old one was, bit for bit, and nothing that is wrong with a store
//! gets further than a reason.
#![forbid(unsafe_code)]

mod stores;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::adapter::Adapter;
use longrun_lm::cache::Room;
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::config::Config;
use longrun_lm::executor::{Executor, Fingerprint, Setup};
use longrun_lm::prefix::disk::{Ignored, Loaded, Why};
use longrun_lm::weights::Source;
use longrun_lm::{Error, Kind};

use stores::{Model, ROOM, Said, Scratch, cold, engine, say, talk, texts};

/// The fingerprint of a model in files, with an adapter or without.
fn fingerprint_of(adapter: Option<&str>) -> Fingerprint {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let mut files = Checkpoint::open(&data.join("golden/llama")).unwrap();
    if let Some(adapter) = adapter {
        files = files.with_adapter(Adapter::open(&data.join("interop").join(adapter)).unwrap());
    }
    let config = Config::new(files.config()).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let setup = Setup::new(ROOM);
    let source = Source::Checkpoint(&files);
    let exec = Executor::new(Box::new(device), &config, source, setup, &|_, _| {}).unwrap();
    exec.fingerprint()
}

/// What a new engine of the model loads from the folder; all comes back.
fn load_into(model: Model, folder: &Path) -> Loaded {
    let mut engine = engine(model, ROOM);
    let loaded = engine.load_prefixes(folder).unwrap();
    engine.clear_prefixes();
    assert!(engine.executor().all_free());
    loaded
}

fn whole(why: Why) -> Loaded {
    Loaded { ignored: vec![Ignored { snapshots: None, why }], ..Loaded::default() }
}

/// Saves what conversations left, loads it into a new engine, and goes on there.
fn goes_on_after_a_restart(family: &'static str) {
    let scratch = Scratch::new(family);
    let (one, two) = (scratch.0.join("one"), scratch.0.join("two"));
    let model = Model::new(family);
    let mut before = engine(model, ROOM);
    let turns = talk(&mut before);
    let saved = before.save_prefixes(&one).unwrap();
    assert_eq!(saved.snapshots, before.prefixes().len());
    assert_eq!(saved.bytes, fs::metadata(&saved.path).unwrap().len());

    let mut after = engine(model, ROOM);
    let loaded = after.load_prefixes(&one).unwrap();
    assert_eq!((loaded.snapshots, &loaded.ignored), (saved.snapshots, &Vec::new()));
    assert_eq!(loaded.blocks, saved.blocks, "what was shared is shared again");
    assert_eq!(after.executor().pools().paged(), before.executor().pools().paged());
    // Order, sharing and contents are those that were saved.
    let again = after.save_prefixes(&two).unwrap();
    assert!(fs::read(&again.path).unwrap() == fs::read(&saved.path).unwrap());

    for turn in &turns {
        let (kept, restarted) = (say(&mut before, turn), say(&mut after, turn));
        assert!(kept.cached > turn.len() / 2, "{family}: {} of {}", kept.cached, turn.len());
        assert!(restarted == kept, "{family}: {} {}", restarted.cached, kept.cached);
        let cold = cold(model, turn);
        assert_eq!(cold.cached, 0);
        assert!(restarted.ids == cold.ids && restarted.bits == cold.bits, "{family}");
    }
    after.clear_prefixes();
    assert!(after.executor().all_free());
}

#[test]
fn attention_goes_on() {
    goes_on_after_a_restart("llama");
}

#[test]
fn windows_go_on() {
    goes_on_after_a_restart("gemma3");
}

#[test]
fn records_go_on() {
    goes_on_after_a_restart("qwen3_next");
}

#[test]
fn latent_keys_go_on() {
    goes_on_after_a_restart("deepseek_v3");
}

#[test]
fn compressed_entries_go_on() {
    goes_on_after_a_restart("deepseek_v4");
}

/// Engines of other sizes, with other chunks, take what they can hold: the last used first.
#[test]
fn another_room_takes_what_fits() {
    for family in ["llama", "gemma3", "qwen3_next"] {
        let scratch = Scratch::new(&format!("room-{family}"));
        let model = Model::new(family);
        let mut before = engine(model, ROOM);
        let turns = talk(&mut before);
        let saved = before.save_prefixes(&scratch.0).unwrap();
        assert!(saved.snapshots >= 3, "{family}: {}", saved.snapshots);
        let last = turns.last().unwrap();
        let want = say(&mut before, last);

        let wide = Room { chunk: 100, rows: 3, tokens: 2000, ..ROOM };
        let mut after = engine(Model { threads: 2, ..model }, wide);
        assert_eq!(after.load_prefixes(&scratch.0).unwrap().snapshots, saved.snapshots);
        assert!(say(&mut after, last) == want, "{family}");

        let mut narrow = engine(model, Room { snapshots: 2, chunk: 8, ..ROOM });
        let rest = vec![Ignored { snapshots: Some(saved.snapshots - 2), why: Why::NoRoom }];
        let loaded = narrow.load_prefixes(&scratch.0).unwrap();
        assert_eq!((loaded.snapshots, loaded.ignored), (2, rest), "{family}");
        let said = say(&mut narrow, last);
        assert!(said.cached > 0 && said.ids == want.ids && said.bits == want.bits, "{family}");

        let mut none = engine(model, Room { snapshots: 0, ..ROOM });
        let all = vec![Ignored { snapshots: Some(saved.snapshots), why: Why::NoRoom }];
        assert_eq!(none.load_prefixes(&scratch.0).unwrap().ignored, all);
        assert!(none.executor().all_free());

        let mut short = engine(model, Room { context: 80, tokens: 80, ..ROOM });
        let loaded = short.load_prefixes(&scratch.0).unwrap();
        let long = loaded.ignored.iter().find(|i| i.why == Why::TooLong);
        assert!(long.is_some() && loaded.snapshots < saved.snapshots, "{family}: {loaded:?}");
        short.clear_prefixes();
        assert!(short.executor().all_free());
    }
}

/// Of three texts of 4, 4 and 5 blocks that share 2, the last one fits into 6 blocks, and no other beside it.
#[test]
fn loading_stops_where_blocks_run_out() {
    let scratch = Scratch::new("blocks");
    let model = Model::new("llama");
    let mut before = engine(model, ROOM);
    let turns = talk(&mut before);
    let saved = before.save_prefixes(&scratch.0).unwrap();
    assert_eq!((saved.snapshots, saved.blocks), (3, 9));
    let mut after = engine(model, Room { context: 192, tokens: 192, ..ROOM });
    let loaded = after.load_prefixes(&scratch.0).unwrap();
    let rest = vec![Ignored { snapshots: Some(2), why: Why::NoRoom }];
    assert_eq!((loaded.snapshots, loaded.blocks, loaded.ignored), (1, 5, rest));
    assert!(say(&mut after, &turns[2]) == say(&mut before, &turns[2]));
}

/// Nothing that is there goes for what is on disk, and what is there already is not loaded again.
#[test]
fn loading_lets_nothing_go() {
    let scratch = Scratch::new("kept");
    let model = Model::new("qwen3_next");
    let mut before = engine(model, ROOM);
    talk(&mut before);
    let saved = before.save_prefixes(&scratch.0).unwrap();
    let free = before.executor().pools().paged();
    let loaded = before.load_prefixes(&scratch.0).unwrap();
    let all = vec![Ignored { snapshots: Some(saved.snapshots), why: Why::Kept }];
    assert_eq!((loaded.snapshots, loaded.blocks, loaded.ignored), (0, 0, all));
    assert_eq!(before.executor().pools().paged(), free);

    let mut other = engine(model, Room { snapshots: 4, ..ROOM });
    say(&mut other, &[9, 8, 7, 6, 5, 4]);
    let own = other.prefixes().len();
    let loaded = other.load_prefixes(&scratch.0).unwrap();
    assert_eq!((loaded.snapshots, other.prefixes().len()), (4 - own, 4));
    assert_eq!(other.stats().evicted, 0);
    assert!(say(&mut other, &[9, 8, 7, 6, 5, 4]).cached > 0);
}

/// Saving does not wait for rows to end, and they do not notice.
#[test]
fn a_store_can_be_written_between_steps() {
    let scratch = Scratch::new("between");
    let model = Model::new("gemma3");
    let text = &texts()[0];
    let mut busy = engine(model, ROOM);
    let (row, heard) = stores::submit(&mut busy, text);
    let mut events = Vec::new();
    for _ in 0..7 {
        busy.step(&mut events).unwrap();
        busy.save_prefixes(&scratch.0).unwrap();
    }
    let said = Said::until_idle(&mut busy, row, events, &heard);
    let want = cold(model, text);
    assert!(said == want);
    let mut after = engine(model, ROOM);
    assert!(after.load_prefixes(&scratch.0).unwrap().snapshots > 0);
    let said = say(&mut after, text);
    assert!(said.cached > 0 && said.bits == want.bits);
}

#[test]
fn a_folder_without_a_store_is_no_mistake() {
    let scratch = Scratch::new("nothing");
    let mut engine = engine(Model::new("llama"), ROOM);
    assert_eq!(engine.load_prefixes(&scratch.0).unwrap(), Loaded::default());
    assert_eq!(engine.load_prefixes(&scratch.0.join("none")).unwrap(), Loaded::default());
    let saved = engine.save_prefixes(&scratch.0.join("made")).unwrap();
    assert_eq!((saved.snapshots, saved.blocks), (0, 0));
    assert_eq!(engine.load_prefixes(&scratch.0.join("made")).unwrap(), Loaded::default());
}

/// A store stands under its model's hash; one that was put under another name, made with other states or kernels, or in
/// another version's form says so.
#[test]
fn stores_of_others_are_ignored() {
    let scratch = Scratch::new("others");
    let model = Model::new("llama");
    let mut own = engine(model, ROOM);
    talk(&mut own);
    let path = own.save_prefixes(&scratch.0).unwrap().path;
    let store = fs::read(&path).unwrap();

    for other in [Model { seed: 4, ..model }, Model { eps: 1e-5, ..model }, Model::new("qwen3")] {
        let mut other = engine(other, ROOM);
        assert_eq!(other.load_prefixes(&scratch.0).unwrap(), Loaded::default());
        let place = other.save_prefixes(&scratch.0).unwrap().path;
        assert_ne!(place, path);
        fs::write(&place, &store).unwrap();
        assert_eq!(other.load_prefixes(&scratch.0).unwrap(), whole(Why::Model));
        assert!(other.executor().all_free());
    }
    assert_eq!(fs::read(&path).unwrap(), store, "models don't take each other's place");

    let exact = CpuOptions { exact: true, ..CpuOptions::default() };
    let mut exact = stores::engine_on(model, ROOM, exact);
    assert_eq!(exact.load_prefixes(&scratch.0).unwrap(), whole(Why::Form));

    for (bytes, why) in [
        ([&store[..8], &[9, 0, 0, 0], &store[12..]].concat(), Why::Version(9)),
        ([b"GGUF    ", &store[8..]].concat(), Why::NoStore),
        (Vec::new(), Why::NoStore),
        (b"hello".to_vec(), Why::NoStore),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(load_into(model, &scratch.0), whole(why));
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(load_into(model, &scratch.0), whole(Why::NoStore));
}

#[test]
fn a_fingerprint_is_of_what_matters() {
    let model = Model::new("qwen3_next");
    let of = |model, room| engine(model, room).executor().fingerprint();
    let own = of(model, ROOM);
    assert_eq!(of(Model { threads: 2, ..model }, Room { rows: 1, context: 64, ..ROOM }), own);
    assert_ne!(of(Model { seed: 4, ..model }, ROOM).model, own.model);
    assert_eq!(of(Model { seed: 4, ..model }, ROOM).form, own.form);
    assert_ne!(of(Model::new("gemma3"), ROOM).form, own.form);
    let [plain, again, adapted] = [None, None, Some("mlx-llama")].map(fingerprint_of);
    assert_eq!(plain, again);
    assert!(plain.model != adapted.model && plain.form == adapted.form);
}

/// Writers at once wait for each other, and readers see one store or the other, whole.
#[test]
fn writers_at_once_do_no_harm() {
    let scratch = Scratch::new("writers");
    let model = Model::new("llama");
    let (done, folder) = (AtomicBool::new(false), &scratch.0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=3)
            .map(|count| {
                scope.spawn(move || {
                    let mut engine = engine(model, ROOM);
                    for text in &texts()[..count] {
                        say(&mut engine, text);
                    }
                    (0..30).for_each(|_| _ = engine.save_prefixes(folder).unwrap());
                    engine.prefixes().len()
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut engine = engine(model, ROOM);
            let mut seen = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let loaded = engine.load_prefixes(folder).unwrap();
                assert_eq!(loaded.ignored, []);
                seen.push(loaded.snapshots);
                engine.clear_prefixes();
            }
            seen
        });
        let written: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::Relaxed);
        let written: Vec<_> = written.into_iter().map(|w| w.unwrap()).collect();
        let seen = reader.join().unwrap();
        assert!(seen.iter().all(|n| *n == 0 || written.contains(n)), "{seen:?} of {written:?}");
    });
    let left: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    let extensions = left.iter().filter_map(|path| path.extension()?.to_str());
    assert_eq!(extensions.filter(|e| *e != "lock").collect::<Vec<_>>(), ["prefixes"], "{left:?}");
}

fn refused(error: &Error, words: &str) {
    let said = error.to_string();
    assert_eq!(error.kind(), Kind::File, "{said}");
    assert!(said.contains(words) && said.contains("make room on the disk"), "{said}");
}

/// What was there stays when a store can't be written, and the error names the place.
#[test]
fn a_folder_that_cannot_be_written_to_is_an_error() {
    let scratch = Scratch::new("refused");
    let mut own = engine(Model::new("llama"), ROOM);
    say(&mut own, &texts()[0]);
    let path = own.save_prefixes(&scratch.0).unwrap().path;
    let store = fs::read(&path).unwrap();
    refused(&own.save_prefixes(&path).unwrap_err(), path.to_str().unwrap());
    refused(&own.save_prefixes(&path.join("below")).unwrap_err(), "below");

    // A disk that is full.
    #[cfg(target_os = "linux")]
    {
        let new = path.with_extension("new");
        std::os::unix::fs::symlink("/dev/full", &new).unwrap();
        refused(&own.save_prefixes(&scratch.0).unwrap_err(), path.to_str().unwrap());
        assert!(fs::symlink_metadata(&new).is_err(), "nothing is left of the try");
    }
    // A folder that is read-only, unless the user may do anything.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let locked = scratch.0.join("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
        if fs::write(locked.join("probe"), "").is_err() {
            refused(&own.save_prefixes(&locked).unwrap_err(), locked.to_str().unwrap());
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o77, 0, "texts are nobody else's business");
    }
    assert_eq!(fs::read(&path).unwrap(), store);
    let want = say(&mut own, &texts()[0]);
    assert!(want.cached > 0, "the engine has all it had");
    assert_eq!(Path::new(&path).extension().unwrap(), "prefixes");
}
