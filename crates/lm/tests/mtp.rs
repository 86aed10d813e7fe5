//! Heads that guess one token further: their maths against a reference, their drafts where these must be right, and
//! hidden states as results.

mod checkpoint_build;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use checkpoint_build::Scratch;
use longrun_array::{CpuDevice, CpuOptions, Wanted};
use longrun_lm::Result;
use longrun_lm::cache::{Room, Sequence};
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::config::Config;
use longrun_lm::draft::Mtp;
use longrun_lm::engine::{Engine, Event, Request};
use longrun_lm::executor::{Executor, MtpSpan, Setup, Span};
use longrun_lm::weights::Source;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

const ROOM: Room = Room { rows: 2, context: 200, tokens: 400, chunk: 64, snapshots: 0, drafts: 0 };

/// Of sums, relative to the largest logit: a head is one more layer and two more norms behind the model.
const NOISE: f32 = 2e-4;

fn testdata() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A golden checkpoint with the tensors of a head in a second file.
fn with_head(family: &str, tag: &str, head: &[u8]) -> Scratch {
    let golden = testdata().join("golden").join(family);
    let file = |name: &str| read(&golden.join(name));
    let folder = Scratch::new(&format!("{tag}-{family}"));
    let folder = folder.with("config.json", file("config.json"));
    folder.with("model-1.safetensors", file("model.safetensors")).with("model-2.safetensors", head)
}

fn executor(folder: &Path, setup: Setup) -> Result<Executor> {
    let checkpoint = Checkpoint::open(folder)?;
    let config = Config::new(checkpoint.config())?;
    let device = CpuDevice::new(CpuOptions { threads: 2, ..CpuOptions::default() });
    Executor::new(Box::new(device), &config, Source::Checkpoint(&checkpoint), setup, &|_, _| {})
}

/// Reads `ids` but for the last `step` at a time, model and head in turn; the logits of the head at each end of a step.
fn by_steps(exec: &mut Executor, seq: &mut Sequence, ids: &[u32], step: usize) -> Vec<Vec<f32>> {
    let read = ids.len() - 1;
    let mut ends = Vec::new();
    while seq.past < read {
        let (past, n) = (seq.past, step.min(read - seq.past));
        let ids = &ids[past..];
        let span = Span { seq, ids: &ids[..n], wanted: Wanted::None, drafts: 0 };
        exec.run(&mut [span]).unwrap();
        let span = MtpSpan { seq, ids: &ids[1..=n], past, carried: 0, wanted: true };
        ends.push(exec.run_mtp(&[span]).unwrap().to_vec());
    }
    ends
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = file.tensor(name).unwrap().data();
    data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn ids(file: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    let data = file.tensor(name).unwrap().data();
    data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
}

fn is_near(got: &[f32], want: &[f32], at: &str) {
    let largest = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    let off = got.iter().zip(want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(got.len() == want.len() && off <= NOISE * largest, "{at}: {off} of {largest}");
}

fn maths_are_the_reference_s(family: &str) {
    let from = testdata().join("mtp").join(family);
    let bytes = read(&from.join("vectors.safetensors"));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let folder = with_head(family, "maths", &read(&from.join("head.safetensors")));
    let setup = Setup { mtp: true, ..Setup::new(ROOM) };
    let mut exec = executor(folder.path(), setup).unwrap();
    let (text, vocab) = (ids(&file, "ids"), exec.vocab());
    let want = floats(&file, "logits");
    let mut seq = exec.admit(200).unwrap();
    let single = by_steps(&mut exec, &mut seq, &text, 1);
    for (i, (got, want)) in single.iter().zip(want.chunks_exact(vocab)).enumerate() {
        is_near(got, want, &format!("{family}, token {i}"));
    }
    assert_eq!(single.len() * vocab, want.len());

    // Its own hidden states in place of the model's.
    let (chain, want) = (ids(&file, "chain"), floats(&file, "chain_logits"));
    is_near(single.last().unwrap(), &want[..vocab], "the first of the chain");
    exec.reserve(&mut seq, chain.len()).unwrap();
    for (i, (id, want)) in chain.iter().zip(want.chunks_exact(vocab).skip(1)).enumerate() {
        let (ids, past) = (&[*id][..], seq.past + i);
        let span = MtpSpan { seq: &seq, ids, past, carried: 0, wanted: true };
        is_near(exec.run_mtp(&[span]).unwrap(), want, &format!("{family}, guess {}", i + 1));
    }

    // However a text is cut, and beside another row.
    for step in [7, 40] {
        let mut again = exec.admit(200).unwrap();
        let ends = by_steps(&mut exec, &mut again, &text, step);
        let at = |i: usize| (step * (i + 1)).min(text.len() - 1) - 1;
        assert!(ends.iter().enumerate().all(|(i, end)| *end == single[at(i)]), "{family}: {step}");
        exec.release(again);
    }
    let mut other = exec.admit(200).unwrap();
    let read = text.len() - 1;
    exec.release(seq);
    let mut seq = exec.admit(200).unwrap();
    let spans = [(&mut other, 5), (&mut seq, read)];
    let wanted = Wanted::None;
    exec.run(&mut spans.map(|(seq, n)| Span { seq, ids: &text[..n], wanted, drafts: 0 })).unwrap();
    let span =
        |seq, n: usize, carried| MtpSpan { seq, ids: &text[1..=n], past: 0, carried, wanted: true };
    // In another order than the model's step had.
    let logits = exec.run_mtp(&[span(&seq, read, 5), span(&other, 5, 0)]).unwrap();
    assert!(logits[..vocab] == single[read - 1] && logits[vocab..] == single[4], "{family}");
    exec.release(seq);
    exec.release(other);
    assert!(exec.all_free());
}

#[test]
fn the_head_of_qwen3_next() {
    maths_are_the_reference_s("qwen3_next");
}

#[test]
fn the_head_of_qwen3_5() {
    maths_are_the_reference_s("qwen3_5");
}

#[test]
fn the_head_of_qwen3_5_moe() {
    maths_are_the_reference_s("qwen3_5_moe");
}

#[test]
fn the_head_of_deepseek_v3() {
    maths_are_the_reference_s("deepseek_v3");
}

/// Embedding and scores of the head that are copies of the model's take no memory.
#[test]
fn what_a_head_shares_is_held_once() {
    let bytes = read(&testdata().join("golden/deepseek_v3/model.safetensors"));
    let main = SafeTensors::deserialize(&bytes).unwrap();
    let bytes = read(&testdata().join("mtp/deepseek_v3/head.safetensors"));
    let head = SafeTensors::deserialize(&bytes).unwrap();
    let weights = |tag: &str, pairs: [Option<&str>; 2]| {
        let mut tensors: BTreeMap<String, TensorView<'_>> = head.tensors().into_iter().collect();
        let names =
            ["embed_tokens", "shared_head.head"].map(|n| format!("model.layers.4.{n}.weight"));
        for (name, as_in) in names.into_iter().zip(pairs) {
            match as_in {
                Some(as_in) => tensors.insert(name, main.tensor(as_in).unwrap()),
                None => tensors.remove(&name),
            };
        }
        let file = safetensors::serialize(tensors, None).unwrap();
        let folder = with_head("deepseek_v3", tag, &file);
        let setup = Setup { mtp: true, ..Setup::new(ROOM) };
        executor(folder.path(), setup).unwrap().parts().weights
    };
    let (embedding, scores) = ("model.embed_tokens.weight", "lm_head.weight");
    let shared = weights("none", [None, None]);
    assert_eq!(weights("copies", [Some(embedding), Some(scores)]), shared);
    let each = weights("one", [Some(embedding), Some(embedding)]) - shared;
    assert!(each > 0);
    assert_eq!(weights("both", [Some(scores), Some(embedding)]), shared + 2 * each);
}

#[test]
fn a_checkpoint_without_a_head_says_so() {
    for family in ["deepseek_v3", "qwen3_next", "llama", "gemma4", "deepseek_v4", "glm5_next"] {
        let folder = testdata().join("golden").join(family);
        let error = executor(&folder, Setup { mtp: true, ..Setup::new(ROOM) }).err().unwrap();
        assert!(error.to_string().contains("no head that guesses"), "{family}: {error}");
        let exec = executor(&folder, Setup::new(ROOM)).unwrap();
        assert!(!exec.has_mtp() && Mtp::new(0, &exec).is_err());
    }
}

/// Of bytes in bfloat16.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (pairs, _) = bytes.as_chunks::<2>();
    pairs.iter().map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16))
}

/// The tensors of a file, those whose names `change` knows with other numbers.
fn changed(bytes: &[u8], change: impl Fn(&str, &[usize]) -> Option<Vec<f32>>) -> Vec<u8> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let tensors: Vec<_> = file.tensors();
    let other: Vec<Option<Vec<u8>>> = tensors
        .iter()
        .map(|(name, t)| {
            let numbers = change(name, t.shape())?;
            Some(numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect())
        })
        .collect();
    let views = tensors.iter().zip(&other).map(|((name, t), other)| {
        let data = other.as_ref().map_or(t.data(), |bytes| bytes);
        (name.as_str(), TensorView::new(Dtype::BF16, t.shape().to_vec(), data).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// A model whose blocks add nothing says after a token what that token alone makes it say; a head that looks at the
/// embedding alone, without a block and with the model's last norm, must say the same.
fn certain(tag: &str) -> Scratch {
    let family = "qwen3_next";
    let golden = read(&testdata().join("golden").join(family).join("model.safetensors"));
    let head = read(&testdata().join("mtp").join(family).join("head.safetensors"));
    let last = SafeTensors::deserialize(&golden).unwrap();
    let last: Vec<f32> = numbers(last.tensor("model.norm.weight").unwrap().data()).collect();
    let change = |name: &str, shape: &[usize]| {
        let nothing = ["o_proj.", "out_proj.", "down_proj"].iter().any(|part| name.contains(part));
        match name {
            "mtp.norm.weight" => Some(last.clone()),
            "mtp.pre_fc_norm_embedding.weight" => Some(vec![0.0; shape[0]]),
            "mtp.fc.weight" => {
                let (rows, cols) = (shape[0], shape[1]);
                let at = |i| if i / cols == i % cols { 1.0 } else { 0.0 };
                Some((0..rows * cols).map(at).collect())
            }
            _ => nothing.then(|| vec![0.0; shape.iter().product()]),
        }
    };
    let folder = with_head(family, tag, &changed(&head, change));
    folder.with("model-1.safetensors", changed(&golden, change))
}

#[test]
fn drafts_that_must_be_right_stand() {
    let folder = certain("certain");
    for drafts in [1, 3] {
        let setup = Setup { mtp: true, ..Setup::new(Room { drafts, ..ROOM }) };
        let exec = executor(folder.path(), setup).unwrap();
        let drafter = Mtp::new(drafts, &exec).unwrap();
        let mut engine = Engine::new(exec).with_drafts(Box::new(drafter));
        let mut events = Vec::new();
        for prompt in [vec![5; 70], vec![9, 30, 77]] {
            engine.submit(Request::new(prompt, 61)).unwrap();
        }
        while engine.rows() > 0 {
            engine.step(&mut events).unwrap();
        }
        let told = events.iter().filter(|e| matches!(e, Event::Token { .. })).count();
        let stats = engine.stats();
        assert_eq!((told, stats.accepted), (2 * 61, stats.drafted));
        // The first token of a text has none.
        assert_eq!(stats.accepted, 2 * 60 * drafts as u64 / (drafts as u64 + 1));
        assert!(stats.steps <= 2 + 60 / (drafts as u64 + 1) + 1, "{stats:?}");
        assert!(engine.draft_error().is_none() && engine.executor().all_free());
    }
}

/// A last hidden state times the head is what the reference says.
#[test]
fn hidden_states_are_results() {
    for family in ["llama", "qwen3_next", "deepseek_v3", "gemma3", "mamba2", "deepseek_v4"] {
        let folder = testdata().join("golden").join(family);
        let (model, golden) =
            (read(&folder.join("model.safetensors")), read(&folder.join("golden.safetensors")));
        let (model, golden) =
            (SafeTensors::deserialize(&model).unwrap(), SafeTensors::deserialize(&golden).unwrap());
        let names = [
            "lm_head.weight",
            "head.weight",
            "model.embed_tokens.weight",
            "backbone.embeddings.weight",
        ];
        let head = names.iter().find_map(|name| model.tensor(name).ok()).unwrap();
        let width = head.shape()[1];
        let head: Vec<f64> = numbers(head.data()).map(f64::from).collect();
        let (prompt, want) = (ids(&golden, "prompt"), floats(&golden, "logits"));
        for per_token in [false, true] {
            let setup = Setup { hidden: true, per_token, ..Setup::new(ROOM) };
            let mut exec = executor(&folder, setup).unwrap();
            let mut seq = exec.admit(200).unwrap();
            let wanted = if per_token { Wanted::All } else { Wanted::Last };
            let mut read = 0;
            for ids in prompt.chunks(if per_token { 30 } else { 1 }) {
                let span = Span { seq: &mut seq, ids, wanted, drafts: 0 };
                let hidden = exec.run(&mut [span]).unwrap();
                assert_eq!(hidden.len(), ids.len() * width);
                for h in hidden.chunks_exact(width) {
                    let score = |row: &[f64]| -> f32 {
                        row.iter().zip(h).map(|(w, h)| w * f64::from(*h)).sum::<f64>() as f32
                    };
                    let got: Vec<f32> = head.chunks_exact(width).map(score).collect();
                    let vocab = got.len();
                    is_near(&got, &want[read * vocab..][..vocab], &format!("{family}, {read}"));
                    read += 1;
                }
            }
            assert_eq!(read, prompt.len());
            exec.release(seq);
            let refused = Engine::new(exec).submit(Request::new(vec![1], 1)).unwrap_err();
            assert!(refused.to_string().contains("needs logits"), "{refused}");
        }
    }
}
