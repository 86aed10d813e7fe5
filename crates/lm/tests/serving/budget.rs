//! One budget: what is made fits it, stays as it is, and serves.

use longrun_array::{CpuDevice, CpuOptions, NullDevice, Stored};
use longrun_lm::Kind;
use longrun_lm::budget::Memory;
use longrun_lm::cache::Room;
use longrun_lm::engine::Engine;
use longrun_lm::executor::{Executor, Setup};
use longrun_lm::weights::Source;

use crate::answers::{Random, answer, asked};
use crate::families::{self, each_family};

const ROOM: Room = Room { rows: 3, context: 400, tokens: 0, chunk: 48, snapshots: 0, drafts: 2 };

fn made(family: &str, memory: Memory, kv: Stored) -> longrun_lm::Result<Executor> {
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let setup = Setup { memory: Some(memory), kv, ..Setup::new(ROOM) };
    let config = families::config(family);
    Executor::new(Box::new(device), &config, Source::Seed(3), setup, &|_, _| {})
}

fn a_budget_is_kept_and_used(family: &str) {
    let least = made(family, Memory { bytes: 0, shorten: false }, Stored::F32).err().unwrap();
    assert_eq!(least.kind(), Kind::Limit, "{least}");
    let mut used = 0;
    for (kv, mib) in [(Stored::F32, 8), (Stored::F32, 12), (Stored::Q8, 12)] {
        let bytes = mib << 20;
        let exec = made(family, Memory { bytes, shorten: false }, kv).unwrap();
        let (parts, room) = (exec.parts(), exec.room());
        assert_eq!(exec.usage().live.bytes, parts.total(), "{family}: {parts:?}");
        assert!(parts.total() <= bytes, "{family}: {parts:?} of {bytes}");
        assert!(room.snapshots > 0 && room.context == 400, "{family}: {room:?}");
        let grew = parts.total() > used;
        assert!(grew || kv == Stored::Q8 || room.snapshots == 4096, "{family}: {parts:?}");
        used = parts.total();
        let (mut engine, prompt) = (Engine::new(exec), Random(1).ids(200));
        assert_eq!(answer(&mut engine, asked(&prompt, 9)).ids.len(), 9);
        assert_eq!(answer(&mut engine, asked(&prompt, 9)).cached, 199, "{family}");
        assert_eq!(engine.executor().usage().live.bytes, parts.total());
    }
}

each_family!(a_budget_is_kept_and_used);

#[test]
fn a_context_that_does_not_fit_is_an_error_or_shorter() {
    let exec = made("llama", Memory { bytes: 64 << 20, shorten: false }, Stored::F32).unwrap();
    let taken = exec.parts().weights + exec.parts().steps;
    let tight = taken + (exec.parts().tokens / exec.room().tokens) * 200;
    let error = made("llama", Memory { bytes: tight, shorten: false }, Stored::F32).err().unwrap();
    assert_eq!(error.kind(), Kind::Limit);
    for word in ["400 tokens", "MiB", "context of"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    let short = made("llama", Memory { bytes: tight, shorten: true }, Stored::F32).unwrap();
    assert!((128..=200).contains(&short.room().context), "{:?}", short.room());
    assert!(short.parts().total() <= tight);
}

#[test]
fn the_null_device_counts_the_same_budget() {
    let config = families::config("qwen3_next");
    let memory = Some(Memory { bytes: 1 << 30, shorten: false });
    let setup = Setup { memory, ..Setup::new(ROOM) };
    let device = Box::new(NullDevice::new());
    let exec = Executor::new(device, &config, Source::Seed(1), setup, &|_, _| {}).unwrap();
    assert_eq!(exec.usage().live.bytes, exec.parts().total());
    assert!(exec.parts().total() <= 1 << 30);
}

/// What a head takes is in the budget: its weights, what it keeps of texts, and what steps leave to it.
#[test]
fn a_head_is_in_the_budget() {
    for family in ["qwen3_5_moe", "deepseek_v3"] {
        let exec = |mtp| {
            let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
            let memory = Some(Memory { bytes: 9 << 20, shorten: false });
            let (config, room) = (families::config(family), Room { context: 300, ..ROOM });
            let setup = Setup { mtp, memory, ..Setup::new(room) };
            Executor::new(Box::new(device), &config, Source::Seed(3), setup, &|_, _| {}).unwrap()
        };
        let (with, without) = (exec(true), exec(false));
        let ([with_parts, without_parts], hidden) = ([with.parts(), without.parts()], 32);
        assert_eq!(with.usage().live.bytes, with_parts.total(), "{family}: {with_parts:?}");
        assert!(with_parts.total() <= 9 << 20 && with_parts.weights > without_parts.weights);
        // Of 3 rows and a chunk of 48, the key ladder makes 64 tokens.
        assert_eq!(with_parts.rows, without_parts.rows + 64 * hidden * 4, "{family}");
        assert!(with.room().tokens < without.room().tokens, "{family}");
    }
}
