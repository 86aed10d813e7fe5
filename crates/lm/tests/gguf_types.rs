//! Every storage type of GGUF that can be a weight: a model in it computes the very bits of the same numbers in `f32`,
//! is converted to them, and is refused where its sizes lie.

mod checkpoint_build;

use checkpoint_build::{Gguf, Scratch, T_F32};
use longrun_array::quant::encode::Float;
use longrun_array::{CpuDevice, CpuOptions, Wanted};
use longrun_lm::cache::Room;
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::config::Config;
use longrun_lm::convert::{Options, convert};
use longrun_lm::executor::{Executor, Setup, Span};
use longrun_lm::weights::Source;

/// A storage type: its number and name, and the bytes of a block that hold the exponents of its floats.
struct Type {
    number: u32,
    name: &'static str,
    /// Numbers and bytes of a block.
    block: (usize, usize),
    /// Of each byte: where, which bits of it stay random, and what the others are.
    tame: &'static [(usize, u8, u8)],
}

const fn half(at: usize) -> (usize, u8, u8) {
    (at, 0x83, 0x14)
}

const fn of(
    number: u32,
    name: &'static str,
    block: (usize, usize),
    tame: &'static [(usize, u8, u8)],
) -> Type {
    Type { number, name, block, tame }
}

const TYPES: [Type; 22] = [
    of(2, "q4_0", (32, 18), &[half(1)]),
    of(3, "q4_1", (32, 20), &[half(1), half(3)]),
    of(6, "q5_0", (32, 22), &[half(1)]),
    of(7, "q5_1", (32, 24), &[half(1), half(3)]),
    of(8, "q8_0", (32, 34), &[half(1)]),
    of(10, "q2_k", (256, 84), &[half(81), half(83)]),
    of(11, "q3_k", (256, 110), &[half(109)]),
    of(12, "q4_k", (256, 144), &[half(1), half(3)]),
    of(13, "q5_k", (256, 176), &[half(1), half(3)]),
    of(14, "q6_k", (256, 210), &[half(209)]),
    of(16, "iq2_xxs", (256, 66), &[half(1)]),
    of(17, "iq2_xs", (256, 74), &[half(1)]),
    of(18, "iq3_xxs", (256, 98), &[half(1)]),
    of(19, "iq1_s", (256, 50), &[half(1)]),
    of(20, "iq4_nl", (32, 18), &[half(1)]),
    of(21, "iq3_s", (256, 110), &[half(1)]),
    of(22, "iq2_s", (256, 82), &[half(1)]),
    of(23, "iq4_xs", (256, 136), &[half(1)]),
    of(29, "iq1_m", (256, 56), &[(55, 0x8f, 0x10), (53, 0x3f, 0x40)]),
    of(34, "tq1_0", (256, 54), &[half(53)]),
    of(35, "tq2_0", (256, 66), &[half(65)]),
    of(39, "mxfp4", (32, 17), &[(0, 7, 0x70)]),
];

const HIDDEN: usize = 256;
const VOCAB: usize = 24;
const MATRICES: [(&str, usize); 9] = [
    ("token_embd", VOCAB),
    ("output", VOCAB),
    ("blk.0.attn_q", HIDDEN),
    ("blk.0.attn_k", HIDDEN / 2),
    ("blk.0.attn_v", HIDDEN / 2),
    ("blk.0.attn_output", HIDDEN),
    ("blk.0.ffn_gate", HIDDEN),
    ("blk.0.ffn_up", HIDDEN),
    ("blk.0.ffn_down", HIDDEN),
];

impl Type {
    /// Random blocks with small scales.
    fn blocks(&self, numbers: usize, state: &mut u32) -> Vec<u8> {
        let mut bytes = vec![0; numbers / self.block.0 * self.block.1];
        for byte in &mut bytes {
            *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (*state >> 24) as u8;
        }
        for block in bytes.chunks_exact_mut(self.block.1) {
            self.tame.iter().for_each(|&(at, keep, set)| block[at] = block[at] & keep | set);
        }
        bytes
    }
}

/// A llama of one layer whose matrices `matrix` gives: the type's number and the bytes of so many numbers.
fn llama(mut matrix: impl FnMut(usize) -> (u32, Vec<u8>)) -> Gguf {
    let mut gguf = Gguf::new("llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 128)
        .u32("llama.embedding_length", HIDDEN as u32)
        .u32("llama.feed_forward_length", HIDDEN as u32)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-6)
        .str("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &["a"; VOCAB])
        .u32("tokenizer.ggml.eos_token_id", 2);
    for (name, rows) in MATRICES {
        let (kind, data) = matrix(rows * HIDDEN);
        gguf = gguf.tensor(&format!("{name}.weight"), &[HIDDEN as u64, rows as u64], kind, data);
    }
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
        let ones = [1_f32; HIDDEN].iter().flat_map(|x| x.to_le_bytes()).collect();
        gguf = gguf.tensor(&format!("{name}.weight"), &[HIDDEN as u64], T_F32, ones);
    }
    gguf
}

fn open(gguf: &Gguf) -> Result<Checkpoint, String> {
    let bytes: &'static [u8] = gguf.finish().leak();
    let files = Box::leak(Box::new([("m.gguf", bytes)]));
    Checkpoint::from_embedded(files).map_err(|e| e.to_string())
}

/// A model in this type, and the same numbers in `f32`.
fn twins(kind: &Type) -> (Checkpoint, Checkpoint) {
    let mut state = kind.number;
    let coded = open(&llama(|n| (kind.number, kind.blocks(n, &mut state)))).unwrap();
    let format = coded.weight("model.embed_tokens.weight").unwrap().format;
    assert_eq!(format.name(), kind.name);
    let mut state = kind.number;
    let plain = llama(|n| {
        let mut numbers = vec![0.0; n];
        format.dequantize_row(&kind.blocks(n, &mut state), &mut numbers);
        (T_F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
    });
    (coded, open(&plain).unwrap())
}

/// Logits of a short text, in full precision.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let config = Config::new(checkpoint.config()).unwrap();
    let room = Room { rows: 1, context: 32, tokens: 32, chunk: 16, snapshots: 0, drafts: 0 };
    let options = CpuOptions { threads: 1, exact: true, ..CpuOptions::default() };
    let setup = Setup { per_token: true, ..Setup::new(room) };
    let source = Source::Checkpoint(checkpoint);
    let device = Box::new(CpuDevice::new(options));
    let mut exec = Executor::new(device, &config, source, setup, &|_, _| {}).unwrap();
    let mut seq = exec.admit(16).unwrap();
    let ids: Vec<u32> = (0..11).map(|i| i * 7 % VOCAB as u32).collect();
    let span = Span { seq: &mut seq, ids: &ids, wanted: Wanted::All, drafts: 0 };
    let logits = exec.run(&mut [span]).unwrap().to_vec();
    exec.release(seq);
    assert!(logits.iter().all(|x| x.is_finite()));
    logits
}

#[test]
fn a_type_computes_the_bits_of_its_numbers() {
    for kind in &TYPES {
        let (coded, plain) = twins(kind);
        let summary = coded.summary();
        assert!(summary.formats.get(kind.name).is_some_and(|total| total.usable), "{}", kind.name);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let (got, want) = (logits(&coded), logits(&plain));
        assert!(want.iter().any(|x| *x != want[0]), "{}", kind.name);
        assert_eq!(bits(&got), bits(&want), "{}", kind.name);
    }
}

#[test]
fn a_type_is_converted_to_its_numbers() {
    let folder = Scratch::new("types");
    for kind in &TYPES {
        let (coded, plain) = twins(kind);
        let to = folder.path().join(kind.name);
        let options = Options { dtype: Some(Float::F32), ..Options::default() };
        convert(&coded, &to, &options, &|_, _| ()).unwrap();
        let want = logits(&plain);
        let peak = want.iter().fold(0.0_f32, |peak, x| peak.max(x.abs()));
        for (x, y) in logits(&Checkpoint::open(&to).unwrap()).iter().zip(&want) {
            assert!((x - y).abs() <= 1e-4 * peak, "{}: {x} for {y}", kind.name);
        }
    }
}

#[test]
fn sizes_that_lie_are_refused() {
    for kind in &TYPES {
        let ((len, size), name) = (kind.block, kind.name);
        let one = |dims: &[u64], bytes| {
            open(&Gguf::new("x").tensor("a", dims, kind.number, vec![0; bytes]))
        };
        let len = len as u64;
        for (dims, bytes, says) in [
            (&[len - 1][..], size, format!("no whole {name} blocks of {len}")),
            (&[len + 16, 3], 3 * size, format!("no whole {name} blocks of {len}")),
            (&[1, len], size, format!("no whole {name} blocks of {len}")),
            (&[2 * len], size, "its data ends at byte".to_owned()),
            (&[len, 1 << 40], size, "its data ends at byte".to_owned()),
            (&[1 << 62, 1 << 62], size, "overflows".to_owned()),
        ] {
            let error = one(dims, bytes).unwrap_err();
            assert!(error.contains(&says), "{name} {dims:?}: {error}");
        }
        let exact = one(&[len, 3], 3 * size).unwrap();
        let weight = exact.weight("a").unwrap();
        assert_eq!((&*weight.format.name(), weight.data.len()), (name, 3 * size));
    }
}
