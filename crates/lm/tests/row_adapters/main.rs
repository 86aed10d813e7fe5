//! Adapters that rows choose: each row as if the model had its adapter alone, whoever is beside it.
#![forbid(unsafe_code)]

mod faults;
#[path = "../serving/faulty.rs"]
mod faulty;
mod make;
mod random;
mod serving;

use longrun_lm::adapter::{Adapter, Adapters};
use longrun_lm::budget::Memory;
use longrun_lm::config::Config;
use longrun_lm::executor::Setup;
use longrun_lm::{Kind, Result};

use make::{
    Layout, ROOM, adapter, bits, cpu, executor, golden, layers, logits, made, prompt, relative,
    setup, testdata, write,
};

/// A plain model, one with joined projections, a hybrid whose rows are taken apart, latent attention with experts.
const FAMILIES: [&str; 4] = ["llama", "phi3", "qwen3_next", "deepseek_v3"];

/// How far apart two orders of the same sums may be. In a few families roundings grow from layer to layer, or from token
/// to token: theirs are 1.2e-5 apart after 40 tokens.
fn noise(family: &str) -> f32 {
    let grows = ["gemma4", "qwen3_5", "qwen3_next"].iter().any(|name| family.starts_with(name));
    if grows { 2e-5 } else { 1e-5 }
}

/// Beside every linear layer of every family.
#[test]
fn a_row_has_what_the_model_would_have_with_its_adapter() {
    let ids = prompt(40, 1);
    let folders = std::fs::read_dir(testdata("golden")).unwrap().map(std::result::Result::unwrap);
    let folders = folders.filter(|entry| entry.path().is_dir());
    let families: Vec<_> = folders.map(|f| f.file_name().into_string().unwrap()).collect();
    assert!(families.len() > 40 && FAMILIES.iter().all(|f| families.iter().any(|g| g == f)));
    for family in &families {
        for layout in [Layout::Mlx, Layout::Peft] {
            if layout == Layout::Mlx && !FAMILIES.contains(&family.as_str()) {
                continue;
            }
            let (files, adapter) = (golden(family), adapter(family, layout, 5, 3));
            let cols = Config::new(files.config()).unwrap().vocab;
            let mut fixed = executor(&golden(family).with_adapter(adapter.clone()), 0, ROOM, true);
            let want = logits(&mut fixed, &[(ids.clone(), 0)], 40);
            let mut exec = executor(&files, 2, ROOM, true);
            exec.load_adapter(2, &adapter).unwrap();
            let got = logits(&mut exec, &[(ids.clone(), 2)], 40);
            let error = relative(&got[0], &want[0]);
            assert!(error <= noise(family), "{family} {layout:?}: {error}");
            let first = relative(&got[0][..cols], &want[0][..cols]);
            assert!(first <= 1e-5, "{family} {layout:?}: {first} at the first token");
            let without = logits(&mut exec, &[(ids.clone(), 0)], 40);
            assert!(relative(&without[0], &want[0]) > 1e-2, "{family}: it changes nothing");
        }
    }
}

/// Those that others made, beside what they made them for.
#[test]
fn adapters_of_others_are_the_same_by_row() {
    let pairs = [
        ("llama", "mlx-llama"),
        ("qwen3", "mlx-qwen3"),
        ("qwen3_yarn", "peft-qwen3_yarn"),
        ("qwen3_next", "peft-qwen3_next"),
    ];
    for (family, name) in pairs {
        let adapter = Adapter::open(&testdata("interop").join(name)).unwrap();
        let rows = [(prompt(30, 2), 0)];
        let mut fixed = executor(&golden(family).with_adapter(adapter.clone()), 0, ROOM, true);
        let want = logits(&mut fixed, &rows, 30);
        let mut exec = executor(&golden(family), 1, ROOM, true);
        exec.load_adapter(1, &adapter).unwrap();
        let got = logits(&mut exec, &[(prompt(30, 2), 1)], 30);
        assert!(relative(&got[0], &want[0]) <= noise(family), "{name}");
    }
}

#[test]
fn rows_of_different_adapters_share_a_step_and_feel_nothing() {
    for family in FAMILIES {
        let mut exec = executor(&golden(family), 3, ROOM, false);
        exec.load_adapter(1, &adapter(family, Layout::Peft, 8, 1)).unwrap();
        exec.load_adapter(2, &adapter(family, Layout::Mlx, 2, 2)).unwrap();
        let adapters = [0, 1, 2, 1];
        let rows: Vec<(Vec<u32>, usize)> =
            (0..).zip(adapters).map(|(i, a)| (prompt(20 + 3 * i, i as u32), a)).collect();
        let together = logits(&mut exec, &rows, 12);
        for (row, together) in rows.iter().zip(&together) {
            let alone = logits(&mut exec, std::slice::from_ref(row), 64);
            assert!(bits(&alone[0]) == bits(together), "{family}: adapter {}", row.1);
            let one_by_one = logits(&mut exec, std::slice::from_ref(row), 1);
            assert!(bits(&one_by_one[0]) == bits(together), "{family}: adapter {}", row.1);
        }
        // The first row is one of a model that knows no adapters.
        let mut plain = executor(&golden(family), 0, ROOM, false);
        assert!(bits(&logits(&mut plain, &rows[..1], 12)[0]) == bits(&together[0]), "{family}");
        assert!(exec.all_free());
    }
}

#[test]
fn adapters_come_and_go_in_the_same_memory() {
    let mut exec = executor(&golden("llama"), 2, ROOM, false);
    let [one, two] = [1, 2].map(|seed| adapter("llama", Layout::Peft, 6, seed));
    let (live, rows) = (exec.usage(), [(prompt(20, 1), 1)]);
    assert!(exec.parts().adapters > 0);
    assert_eq!(exec.parts().total(), live.live.bytes);
    exec.load_adapter(1, &one).unwrap();
    let first = logits(&mut exec, &rows, 20);
    exec.load_adapter(1, &two).unwrap();
    assert_ne!(bits(&logits(&mut exec, &rows, 20)[0]), bits(&first[0]));
    // Beside layers that it has nothing for nothing is left of the one before.
    let few = write(&layers(&golden("llama"))[..3], Layout::Mlx, 2, 3);
    exec.load_adapter(1, &few).unwrap();
    exec.load_adapter(2, &few).unwrap();
    let [after, alone] = [1, 2].map(|slot| logits(&mut exec, &[(prompt(20, 1), slot)], 20));
    assert_eq!(bits(&after[0]), bits(&alone[0]));
    exec.unload_adapter(1).unwrap();
    assert_eq!(exec.adapter(1), None);
    let mut seq = exec.admit(5).unwrap();
    assert!(exec.use_adapter(&mut seq, 1).is_err());
    exec.release(seq);
    exec.load_adapter(1, &one).unwrap();
    assert_eq!(bits(&logits(&mut exec, &rows, 20)[0]), bits(&first[0]));
    assert_eq!(exec.adapter(1), Some(one.identity()));
    assert_eq!(exec.usage(), live, "nothing was made, nothing went");
    let none = executor(&golden("llama"), 0, ROOM, false);
    assert_eq!((none.parts().adapters, none.adapter_slots()), (0, 0));
    assert!(none.usage().live.bytes + exec.parts().adapters <= live.live.bytes + 64 * 1024);
}

/// The same matrices are the same adapter, whoever wrote them.
#[test]
fn an_adapter_is_told_by_what_it_holds() {
    let of = |layout, seed| write(&layers(&golden("llama")), layout, 1, seed).identity();
    assert_eq!(of(Layout::Mlx, 1), of(Layout::Peft, 1));
    assert_ne!(of(Layout::Mlx, 1), of(Layout::Mlx, 2));
    let beside = |name: &str| write(&[(name.into(), [64, 64])], Layout::Mlx, 1, 1).identity();
    assert_ne!(beside("model.layers.0.mlp.up_proj"), beside("model.layers.1.mlp.up_proj"));
    assert_eq!(beside("model.layers.0.mlp.up_proj"), beside("layers.0.mlp.up_proj"));
}

fn words(result: Result<()>, kind: Kind, says: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    says.iter().for_each(|words| assert!(error.to_string().contains(words), "{error}"));
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let files = golden("deepseek_v3");
    let mut exec = executor(&files, 2, ROOM, false);
    let good = adapter("deepseek_v3", Layout::Mlx, 3, 1);
    exec.load_adapter(1, &good).unwrap();
    let rows = [(prompt(20, 1), 1)];
    let before = logits(&mut exec, &rows, 20);
    let mut all = layers(&files);
    let large = write(&all, Layout::Peft, 9, 2);
    words(exec.load_adapter(1, &large), Kind::Usage, &["a rank of 9", "room for 8"]);
    // Latent attention takes this one apart by head.
    let split = ("model.layers.0.self_attn.kv_b_proj".to_owned(), [128, 16]);
    let split = write(&[split], Layout::Mlx, 2, 3);
    words(exec.load_adapter(1, &split), Kind::Unsupported, &["kv_b_proj", "takes an adapter"]);
    let expert = ("model.layers.1.mlp.experts.0.up_proj".to_owned(), [32, 64]);
    let experts = write(&[all[0].clone(), expert], Layout::Peft, 2, 4);
    words(
        exec.load_adapter(1, &experts),
        Kind::Unsupported,
        &["experts.0.up_proj", "experts are not"],
    );
    all[3].1[0] += 1;
    let name = all[3].0.clone();
    let misshapen = write(&all, Layout::Mlx, 2, 5);
    words(exec.load_adapter(1, &misshapen), Kind::File, &[&name, "another model"]);
    let other = adapter("qwen3_next", Layout::Peft, 2, 6);
    assert!(exec.load_adapter(1, &other).is_err());
    words(exec.load_adapter(0, &good), Kind::Usage, &["no adapter slot 0"]);
    words(exec.load_adapter(3, &good), Kind::Usage, &["no adapter slot 3: there are 2"]);
    words(exec.unload_adapter(usize::MAX), Kind::Usage, &["no adapter slot"]);
    let mut seq = exec.admit(20).unwrap();
    exec.use_adapter(&mut seq, 1).unwrap();
    words(exec.load_adapter(1, &good), Kind::Usage, &["slot 1 is in use by 1 sequences"]);
    exec.load_adapter(2, &good).unwrap();
    words(exec.use_adapter(&mut seq, 3), Kind::Usage, &["no adapter is in slot 3 of 2"]);
    exec.use_adapter(&mut seq, 2).unwrap();
    words(exec.unload_adapter(2), Kind::Usage, &["slot 2 is in use"]);
    exec.release(seq);
    assert_eq!(bits(&logits(&mut exec, &rows, 20)[0]), bits(&before[0]));
    exec.unload_adapter(1).unwrap();
    exec.unload_adapter(2).unwrap();
}

#[test]
fn room_for_adapters_that_can_not_be_is_refused() {
    let files = golden("llama");
    for (slots, rank) in [(1, 0), (5000, 8), (usize::MAX, 8), (1, usize::MAX), (2, 1 << 40)] {
        let adapters = Adapters { slots, rank };
        let setup = Setup { adapters, ..setup(0, ROOM) };
        assert!(made(Box::new(cpu(false)), &files, setup).is_err(), "{adapters:?}");
    }
}

/// What adapters take is gone before tokens and snapshots get theirs.
#[test]
fn room_for_adapters_is_in_the_budget() {
    let files = golden("qwen3_next");
    let of = |slots, bytes| {
        let memory = Some(Memory { bytes, shorten: false });
        // As many snapshots as fit.
        let room = longrun_lm::cache::Room { snapshots: 0, ..ROOM };
        made(Box::new(cpu(false)), &files, Setup { memory, ..setup(slots, room) })
    };
    let bytes = 16 << 20;
    let [none, some] = [0, 8].map(|slots| of(slots, bytes).unwrap());
    for exec in [&none, &some] {
        assert_eq!(exec.usage().live.bytes, exec.parts().total());
        assert!(exec.parts().total() <= bytes && exec.room().context == ROOM.context);
    }
    let (before, after) = (none.parts(), some.parts());
    assert_eq!((before.adapters, before.weights), (0, after.weights));
    assert!(after.adapters > 1 << 20, "{after:?}");
    let [left, rest] = [before, after].map(|parts| parts.tokens + parts.snapshots);
    // Scratch of steps is all that adapters take beside their room, and what is left is used up to a snapshot.
    let missing = (left - rest) as isize - (after.adapters + after.steps - before.steps) as isize;
    assert!(missing.unsigned_abs() < 64 << 10, "{missing} bytes: {before:?} {after:?}");
    let error = of(8, after.weights + after.adapters).err().unwrap();
    assert!(error.kind() == Kind::Limit && error.to_string().contains("adapters"), "{error}");
}
