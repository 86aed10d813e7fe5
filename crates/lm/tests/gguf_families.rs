//! Every family's GGUF file, as the converter that defined the format writes it, gives the reference vectors.
//!
//! `testdata/gguf/FAMILY.pieces` says how to put a file together; `make_gguf.py` beside it says how they are made.

use std::path::{Path, PathBuf};

use longrun_array::quant::encode::Float;
use longrun_array::{CpuDevice, CpuOptions};
use longrun_lm::Kind;
use longrun_lm::check::{check, read_vectors};
use longrun_lm::checkpoint::Checkpoint;
use longrun_lm::convert::{Options, convert};

fn testdata(path: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    std::fs::read(root.join(path)).unwrap()
}

/// The GGUF file of a golden folder.
fn whole(family: &str) -> Vec<u8> {
    let source = testdata(&format!("golden/{family}/model.safetensors"));
    let pieces = testdata(&format!("gguf/{family}.pieces"));
    let mut rest = pieces.strip_prefix(b"PIECES\0\0").unwrap();
    let mut whole = Vec::new();
    while let Some((head, tail)) = rest.split_at_checked(16) {
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let (offset, len) = (number(0), number(8) as usize);
        rest = tail;
        match usize::try_from(offset).ok().filter(|offset| *offset < source.len()) {
            Some(offset) => whole.extend_from_slice(&source[offset..offset + len]),
            None => {
                assert_eq!(offset, u64::MAX);
                let (literal, tail) = rest.split_at(len);
                whole.extend_from_slice(literal);
                rest = tail;
            }
        }
    }
    assert!(rest.is_empty());
    whole
}

fn run(family: &str) {
    let bytes: &'static [u8] = whole(family).leak();
    let checkpoint = Checkpoint::from_embedded(Box::leak(Box::new([("m.gguf", bytes)]))).unwrap();
    let vectors = read_vectors(&testdata(&format!("golden/{family}/golden.safetensors"))).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let rows = check(Box::new(device), &checkpoint, &vectors).unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        println!("{family} {row:?}");
        assert!(row.passes(1e-4), "{family}: {row:?}");
        assert!(row.same_bits, "{family}: {row:?}");
    }
}

/// Families whose files say something that the layout of MLX has no place for.
const NOT_CONVERTED: &[&str] = &["llama3_rope", "qwen3_5", "qwen3_5_moe"];

/// What the converter makes of them gives the same vectors, or it says why not.
#[test]
fn files_are_converted() {
    let out = std::env::temp_dir().join(format!("longrun-gguf-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(&out).unwrap();
    let complaints: Vec<String> =
        NAMES.iter().filter_map(|family| converted(family, &out.join(family)).err()).collect();
    std::fs::remove_dir_all(&out).unwrap();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn converted(family: &str, to: &Path) -> Result<(), String> {
    let bytes: &'static [u8] = whole(family).leak();
    let source = Checkpoint::from_embedded(Box::leak(Box::new([("m.gguf", bytes)]))).unwrap();
    let options = Options { dtype: Some(Float::F32), ..Options::default() };
    let done = convert(&source, to, &options, &|_, _| ());
    if NOT_CONVERTED.contains(&family) {
        let refused = done.is_err_and(|e| e.kind() == Kind::Unsupported);
        return if refused { Ok(()) } else { Err(format!("{family} is not refused")) };
    }
    done.map_err(|e| format!("{family}: {e}"))?;
    let vectors = read_vectors(&testdata(&format!("golden/{family}/golden.safetensors"))).unwrap();
    let device = CpuDevice::new(CpuOptions { threads: 1, ..CpuOptions::default() });
    let read = Checkpoint::open(to).and_then(|to| check(Box::new(device), &to, &vectors));
    let rows = read.map_err(|e| format!("{family}, read back: {e}"))?;
    match rows.iter().find(|row| !row.passes(1e-4)) {
        Some(row) => Err(format!("{family}: {row:?}")),
        None => Ok(()),
    }
}

macro_rules! families {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            run(stringify!($name));
        }
        )*
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

families!(llama llama3_rope llama_linear mixtral ministral3 smollm3 qwen2 qwen2_moe qwen3 qwen3_yarn phi3 phi3_longrope
    seed_oss olmo2 olmo3 glm4 glm4_moe minimax_m2 gpt_oss gemma2 gemma3 gemma4 gemma4_shared gemma4_moe deepseek_v3
    deepseek_v32 kimi_linear kimi_linear_small qwen3_next qwen3_5 qwen3_5_moe mamba2 nemotron_h nemotron_h_latent
    falcon_h1 falcon_h1_folded granite granitemoeshared granitemoehybrid granitemoehybrid_plain lfm2 qwen3_moe_sparse
    deepseek_v3_stretch deepseek_v4 deepseek_v4_hash glm5_next_shared);
