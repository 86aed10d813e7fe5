//! Positions that depend on the length of a text: settled when a sequence is admitted, whatever happens to it later.

use longrun_array::{CpuDevice, CpuOptions, Wanted};
use longrun_lm::cache::Room;
use longrun_lm::config::Config;
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::tiny::{self, TinyShape};
use longrun_lm::weights::Source;
use serde_json::{Value, json};

/// The training's length.
const CONTEXT: usize = 32;

fn executor(rope: &Value) -> Executor {
    let shape = TinyShape { layers: Some(2), hidden: Some(32), ..TinyShape::default() };
    let mut config = tiny::config("llama", shape).unwrap();
    config["rope_parameters"] = rope.clone();
    config["max_position_embeddings"] = CONTEXT.into();
    let config = Config::loose(&config).unwrap();
    let room = Room { rows: 2, context: 128, tokens: 256, chunk: 64, snapshots: 0, drafts: 0 };
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let setup = Setup { per_token: true, ..Setup::new(room) };
    Executor::new(Box::new(device), &config, Source::Seed(5), setup, &|_, _| {}).unwrap()
}

/// Bits of the logits of 50 tokens, of a sequence that may have `most`, `chunk` at a time, perhaps beside another that
/// may have `beside`.
fn logits(exec: &mut Executor, most: usize, chunk: usize, beside: Option<usize>) -> Vec<u32> {
    let ids: Vec<u32> = (0..50).map(|i| (i * 29 + 7) % 160).collect();
    let vocab = exec.vocab();
    let mut seq = exec.admit(most).unwrap();
    let mut other = beside.map(|most| exec.admit(most).unwrap());
    let mut bits = Vec::new();
    for ids in ids.chunks(chunk) {
        let span = Span { seq: &mut seq, ids, wanted: Wanted::All, drafts: 0 };
        let all = match &mut other {
            None => exec.run(&mut [span]).unwrap(),
            Some(other) => {
                let neighbour = Span { seq: other, ids: &[3, 4], wanted: Wanted::Last, drafts: 0 };
                &mut exec.run(&mut [neighbour, span]).unwrap()[vocab..]
            }
        };
        bits.extend(all.iter().map(|x| x.to_bits()));
    }
    other.into_iter().chain([seq]).for_each(|seq| exec.release(seq));
    assert!(exec.all_free());
    bits
}

#[test]
fn the_length_is_that_of_the_admission() {
    let divisors = |by: f64| (0..8).map(|i| 1.0 + by * f64::from(i)).collect::<Vec<_>>();
    for rope in [
        json!({"rope_type": "dynamic", "factor": 4.0}),
        json!({"rope_type": "longrope", "short_factor": divisors(0.1), "long_factor": divisors(1.0),
            "original_max_position_embeddings": CONTEXT, "attention_factor": 1.1}),
    ] {
        let exec = &mut executor(&rope);
        let [short, long] = [logits(exec, CONTEXT, 50, None), logits(exec, 100, 50, None)];
        assert_ne!(short, long, "{rope}");
        for chunk in [1, 7, 31, 32, 33, 50] {
            for beside in [None, Some(60), Some(128)] {
                assert_eq!(logits(exec, CONTEXT, chunk, beside), short, "{rope} {chunk}");
                assert_eq!(logits(exec, 100, chunk, beside), long, "{rope} {chunk}");
            }
        }
        let plain = &mut executor(&json!({"rope_type": "default"}));
        if rope["rope_type"] == "dynamic" {
            assert_eq!(logits(plain, 100, 50, None), short);
        }
        // Each further token counts in one variant; in the other there are two kinds of texts.
        let longer = logits(exec, 101, 50, None);
        assert_eq!(longer == long, rope["rope_type"] == "longrope");
    }
}
