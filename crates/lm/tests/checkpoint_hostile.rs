//! Damaged and hostile files: opening ends in a checkpoint or an error, never in a panic, and no
//! allocation is larger than the file could justify.
#![forbid(unsafe_code)]

mod checkpoint_build;

use checkpoint_build::{
    ARRAY, F32, Gguf, I32, Part, STRING, T_IQ3_S, T_Q8_K, U8, array, model, safetensors, text,
    with_header,
};
use longrun_lm::array::counting::{CountingAllocator, Watch};
use longrun_lm::checkpoint::{Checkpoint, EmbeddedFile, RawDtype};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const MIB: usize = 1 << 20;
const CONFIG: &[u8] = br#"{"model_type":"llama","architectures":["A"],"vocab_size":5}"#;

/// Opens the files and looks at everything; whether it worked.
fn survives(files: &[(&'static str, &[u8])]) -> bool {
    let size: usize = files.iter().map(|file| file.1.len()).sum();
    // Embedded files live for ever; the tests are small enough to leak them.
    let files: Vec<EmbeddedFile> =
        files.iter().map(|file| (file.0, &*file.1.to_vec().leak())).collect();
    let files = files.leak();
    let watch = Watch::start();
    let opened = match Checkpoint::from_embedded(files) {
        Ok(checkpoint) => {
            look_at(&checkpoint);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    };
    let (largest, peak) = (watch.largest(), watch.peak());
    assert!(largest > 0, "the allocator does not count");
    assert!(largest <= size * 4 + MIB, "{largest} bytes at once for files of {size}");
    assert!(peak <= (size * 16 + 4 * MIB) as isize, "{peak} bytes live for files of {size}");
    opened
}

fn look_at(checkpoint: &Checkpoint) {
    let mut bytes = 0;
    for tensor in checkpoint.raw_tensors() {
        bytes += tensor.stored;
        assert!(checkpoint.raw(tensor.name).is_some());
        let weight = checkpoint.weight(tensor.name);
        match tensor.dtype {
            // Its scales may turn out to be no numbers.
            RawDtype::Packed(_) => weight.iter().for_each(|weight| {
                let (cols, rows) = weight.shape.split_last().unwrap();
                let row = weight.format.row_bytes(*cols).unwrap();
                assert_eq!(weight.data.len(), rows.iter().product::<usize>() * row);
            }),
            dtype => assert_eq!(weight.is_ok(), dtype.format().is_some()),
        }
        checkpoint.release(tensor.name);
    }
    assert_eq!(checkpoint.summary().bytes, bytes as u64);
    assert!(checkpoint.config().is_object());
    assert!(checkpoint.summary().to_string().contains("container"));
}

/// One of everything.
fn gguf() -> Gguf {
    let nested = array(ARRAY, 2, &[array(U8, 1, &[7]), array(STRING, 1, &text("q"))].concat());
    model("gemma3")
        .raw("nested", ARRAY, &nested)
        .raw("flag", 7, &[1])
        .raw("scores", ARRAY, &array(F32, 2, &[0; 8]))
        .f32("gemma3.rope.freq_base", 1e6)
        .u32("general.alignment", 32)
        .zeros("blk.0.attn_q.weight", &[2, 2])
        .tensor("blk.0.attn_k.weight", &[256], T_IQ3_S, vec![1; 110])
        .tensor("blk.0.attn_v.weight", &[256], T_Q8_K, vec![1; 16])
}

fn weights() -> Vec<u8> {
    let parts: [Part<'_>; 3] = [
        ("a", "F32", &[2, 1], vec![0; 8]),
        ("b", "BF16", &[], vec![0; 2]),
        ("c", "I8", &[3], vec![0; 3]),
    ];
    safetensors(&parts)
}

const INDEX: &[u8] =
    br#"{"metadata":{},"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors"}}"#;

/// Every truncation, every value of interest in every byte, and lying 64-bit numbers everywhere.
fn each_damage(intact: &[u8], mut damaged: impl FnMut(&[u8])) {
    for len in 0..intact.len() {
        damaged(&intact[..len]);
    }
    let mut bytes = intact.to_vec();
    for at in 0..intact.len() {
        let was = bytes[at];
        let flips = (0..8).map(|bit| was ^ (1 << bit));
        for value in flips.chain([0, 0xff, was.wrapping_add(1), was.wrapping_sub(1)]) {
            bytes[at] = value;
            damaged(&bytes);
        }
        bytes[at] = was;
    }
    for at in 0..intact.len().saturating_sub(8) {
        for lie in [1 << 60, 1 << 32, u64::MAX, i64::MAX as u64, intact.len() as u64] {
            bytes[at..at + 8].copy_from_slice(&lie.to_le_bytes());
            damaged(&bytes);
        }
        bytes[at..at + 8].copy_from_slice(&intact[at..at + 8]);
    }
}

#[test]
fn damaged_gguf() {
    let intact = gguf().finish();
    assert!(survives(&[("m.gguf", &intact)]));
    // Opening does not look at tensor data, which is the tail: cut it, but flip nothing in it.
    let (head, tail) = intact.split_at(intact.len() - 512);
    for len in 0..tail.len() {
        survives(&[("m.gguf", &intact[..head.len() + len])]);
    }
    let (mut opened, mut refused) = (0, 0);
    each_damage(head, |damaged| {
        let whole = [damaged, tail].concat();
        let file = if damaged.len() == head.len() { &whole } else { damaged };
        if survives(&[("m.gguf", file)]) { opened += 1 } else { refused += 1 }
    });
    assert!(opened > 1000 && refused > 1000, "{opened} opened, {refused} refused");
}

#[test]
fn damaged_safetensors() {
    let intact = weights();
    assert!(survives(&[("config.json", CONFIG), ("model.safetensors", &intact)]));
    each_damage(&intact, |damaged| {
        survives(&[("config.json", CONFIG), ("model.safetensors", damaged)]);
    });
}

/// One weight in each way of packing, with the config that it needs.
fn packed() -> Vec<(&'static [u8], Vec<u8>)> {
    let ones = |count: usize| [0, 0x3c].repeat(count);
    let shape = [8_i64.to_le_bytes(), 32_i64.to_le_bytes()].concat();
    let mlx: [Part<'_>; 5] = [
        ("a.weight", "U32", &[2, 2, 3], vec![0x35; 48]),
        ("a.scales", "F16", &[2, 2, 1], ones(4)),
        ("a.biases", "F16", &[2, 2, 1], ones(4)),
        ("b.weight", "U32", &[1, 4], vec![0x17; 16]),
        ("b.scales", "U8", &[1, 2], vec![0x38; 2]),
    ];
    let gptq: [Part<'_>; 4] = [
        ("a.qweight", "I32", &[4, 8], vec![0x24; 128]),
        ("a.qzeros", "I32", &[1, 1], vec![0x77; 4]),
        ("a.scales", "F16", &[1, 8], ones(8)),
        ("a.g_idx", "I32", &[32], vec![0; 128]),
    ];
    let awq: [Part<'_>; 3] = [
        ("a.qweight", "I32", &[32, 1], vec![0x24; 128]),
        ("a.qzeros", "I32", &[1, 1], vec![0x77; 4]),
        ("a.scales", "F16", &[1, 8], ones(8)),
    ];
    let parts: [Part<'_>; 8] = [
        ("a.weight_packed", "I32", &[8, 4], vec![0x24; 128]),
        ("a.weight_scale", "F16", &[8, 1], ones(8)),
        ("a.weight_shape", "I64", &[2], shape),
        ("a.weight_zero_point", "I32", &[1, 1], vec![0x77; 4]),
        ("b.weight", "F8_E4M3", &[2, 32], vec![0x24; 64]),
        ("b.weight_scale_inv", "F32", &[1, 1], vec![0; 4]),
        ("c_blocks", "U8", &[1, 2, 1, 16], vec![0x17; 32]),
        ("c_scales", "U8", &[1, 2, 1], vec![120; 2]),
    ];
    vec![
        (br#"{"quantization":{"group_size":32,"bits":3,"b":{"mode":"nvfp4"}}}"#, safetensors(&mlx)),
        (br#"{"quantization_config":{"quant_method":"gptq","bits":4}}"#, safetensors(&gptq)),
        (br#"{"quantization_config":{"quant_method":"awq","bits":4}}"#, safetensors(&awq)),
        (br#"{"quantization_config":{"quant_method":"fp8"}}"#, safetensors(&parts)),
    ]
}

#[test]
fn damaged_packed_weights() {
    for (config, intact) in packed() {
        assert!(survives(&[("config.json", config), ("model.safetensors", &intact)]));
        let (mut opened, mut refused) = (0, 0);
        each_damage(&intact, |damaged| {
            let files = [("config.json", config), ("model.safetensors", damaged)];
            if survives(&files) { opened += 1 } else { refused += 1 }
        });
        assert!(opened > 100 && refused > 1000, "{opened} opened, {refused} refused");
        each_damage(config, |damaged| {
            survives(&[("config.json", damaged), ("model.safetensors", &intact)]);
        });
    }
}

/// Shapes that nothing in the file pays for.
#[test]
fn packed_weights_of_huge_shapes() {
    let huge: [&[usize]; 4] = [&[1 << 40, 0, 8], &[0, 1 << 62], &[1 << 62, 0], &[usize::MAX, 0]];
    for shape in huge {
        for (codes, dtype, scale) in [
            ("a.weight", "U32", "a.scales"),
            ("a.weight", "F8_E4M3", "a.weight_scale_inv"),
            ("a.weight_packed", "U8", "a.weight_scale"),
            ("a.qweight", "I32", "a.scales"),
            ("a_blocks", "U8", "a_scales"),
        ] {
            let parts: [Part<'_>; 3] = [
                (codes, dtype, shape, Vec::new()),
                (scale, "F16", shape, Vec::new()),
                ("a.biases", "F16", shape, Vec::new()),
            ];
            for (config, _) in packed() {
                let file = safetensors(&parts);
                assert!(!survives(&[("config.json", config), ("model.safetensors", &file)]));
            }
        }
    }
}

#[test]
fn damaged_config_and_index() {
    let weights = weights();
    let intact = [
        ("config.json", CONFIG),
        ("model-1.safetensors", &weights),
        ("model.safetensors.index.json", INDEX),
        ("tokenizer_config.json", br#"{"chat_template":"x"}"#),
    ];
    assert!(survives(&intact));
    for place in [0, 2, 3] {
        each_damage(intact[place].1, |damaged| {
            let mut files = intact;
            files[place].1 = damaged;
            survives(&files);
        });
    }
    let deep = [b"{\"a\":".repeat(200), b"[".repeat(200)].concat();
    assert!(!survives(&[("config.json", &deep), ("model.safetensors", &weights)]));
}

#[test]
fn large_lies_cost_little() {
    let many = 40_000;
    let empty = array(U8, 0, &[]);
    let nested = Gguf::new("x").raw("k", ARRAY, &array(ARRAY, many, &empty.repeat(many as usize)));
    assert!(survives(&[("m.gguf", &nested.finish())]));
    let words = Gguf::new("x").raw("k", ARRAY, &array(STRING, many, &vec![0; 8 * many as usize]));
    assert!(survives(&[("m.gguf", &words.finish())]));
    // The longest list of end tokens and the most layers that a file can claim.
    let ends = ["<|im_end|>"; 40_000];
    let mut claims = model("gemma3").i32s("x", &[0; 100]);
    claims.pairs.retain(|pair| pair.0 != "tokenizer.ggml.tokens");
    let mut claims = claims.strings("tokenizer.ggml.tokens", &ends);
    claims = (0..2000).fold(claims, |gguf, i| gguf.tensor(&format!("{i}"), &[0], 0, Vec::new()));
    claims.pairs[1].1 = [4_u32.to_le_bytes(), 2000_u32.to_le_bytes()].concat();
    assert!(survives(&[("m.gguf", &claims.finish())]));
    // Counts that the length of the file just allows, with nothing behind them.
    for (at, least) in [(8, 24), (16, 13)] {
        let mut file = Gguf::new("x").raw("k", ARRAY, &array(I32, 1 << 18, &vec![0; MIB])).finish();
        let claim = (file.len() as u64 - 100) / least;
        file[at..at + 8].copy_from_slice(&claim.to_le_bytes());
        assert!(!survives(&[("m.gguf", &file)]));
    }
    let dims = "1,".repeat(200_000);
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{dims}1],"data_offsets":[0,4]}}}}"#);
    let file = with_header(&header, &[0; 4]);
    assert!(!survives(&[("config.json", CONFIG), ("model.safetensors", &file)]));
    let entries: Vec<_> = (0..10_000)
        .map(|i| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#))
        .collect();
    let file = with_header(&format!("{{{}}}", entries.join(",")), &[]);
    assert!(survives(&[("config.json", CONFIG), ("model.safetensors", &file)]));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::default()
    })]

    /// A piece of a sound file moved, doubled or replaced by noise.
    #[test]
    fn spliced_files(
        which in 0..2_usize,
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..24),
        keep in 0..24_usize,
    ) {
        let intact = if which == 0 { gguf().finish() } else { weights() };
        let (from, to) = (from.index(intact.len()), to.index(intact.len()));
        let mut file = intact[..from].to_vec();
        file.extend(&noise);
        file.extend(&intact[to..(to + keep).min(intact.len())]);
        file.extend(&intact[from..]);
        match which {
            0 => survives(&[("m.gguf", &file)]),
            _ => survives(&[("config.json", CONFIG), ("model.safetensors", &file)]),
        };
    }

    /// Noise behind a sound beginning.
    #[test]
    fn noise(which in 0..3_usize, noise in prop::collection::vec(any::<u8>(), 0..400)) {
        let gguf = [b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", &*noise].concat();
        let weights = [&(noise.len() as u64 / 2).to_le_bytes()[..], &noise].concat();
        match which {
            0 => survives(&[("m.gguf", &gguf)]),
            1 => survives(&[("config.json", CONFIG), ("model.safetensors", &weights)]),
            _ => survives(&[("config.json", &noise), ("model.safetensors", &weights)]),
        };
    }
}
