//! The other engines: fetched and built where they are missing, and what there is to know about them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::engines::Engine;
use crate::shell::{Result, capture, first_line, json_field, python, root, run, target};

/// What the comparison with mlx-lm is made with.
const MLX: [&str; 2] = ["mlx[cpu]==0.32.4", "mlx-lm==0.32.2"];
/// Models that `mlx_hybrid.py` makes. On a CPU mlx-lm has no product of experts in bfloat16.
const HYBRIDS: [[&str; 2]; 3] =
    [["qwen3_next", "float32"], ["qwen3_5", "float32"], ["qwen3_5", "bfloat16"]];
/// The programs of llama.cpp that are run.
const PROGRAMS: [&str; 3] = ["llama-bench", "llama-batched-bench", "llama-completion"];

fn programs(folder: &Path) -> PathBuf {
    folder.join("build/bin")
}

/// llama.cpp as `build_llama_cpp.sh` leaves it in `folder`.
pub(super) fn llama(folder: &Path) -> Result<Engine> {
    let bin = programs(folder);
    if !PROGRAMS.iter().all(|program| bin.join(program).is_file()) {
        let script = root().join("benches/compare/build_llama_cpp.sh");
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut build = Command::new("bash");
        build.arg(script).arg(folder).env("JOBS", cores.to_string());
        let needs = "it needs python3 with venv and pip, and clang or gcc with g++";
        run(&mut build).map_err(|e| format!("{e}; {needs}"))?;
    }
    Ok(Engine::Llama(bin))
}

/// Its version and how it was built, as a list in Markdown.
pub(super) fn llama_facts(folder: &Path) -> Result<String> {
    let version = capture(Command::new(programs(folder).join("llama-bench")).arg("--version"))?;
    let version: Vec<&str> = version.out.lines().chain(version.err.lines()).collect();
    let cache = std::fs::read_to_string(folder.join("build/CMakeCache.txt")).unwrap_or_default();
    let wanted = [
        "CMAKE_BUILD_TYPE:",
        "CMAKE_CXX_COMPILER:",
        "GGML_NATIVE:",
        "GGML_OPENMP:",
        "GGML_LLAMAFILE:",
        "GGML_CPU_REPACK:",
    ];
    let of = |line: &&str| wanted.iter().any(|name| line.starts_with(name));
    let built: Vec<&str> = cache.lines().filter(of).collect();
    Ok(format!(
        "- llama.cpp: {}\n- llama.cpp, how it was built: {}\n",
        version.join("; "),
        if built.is_empty() { "unknown".to_owned() } else { built.join(" ") },
    ))
}

/// The settings that llama-bench reports of itself on a model, and which buffers it put the weights in.
pub(super) fn llama_settings(folder: &Path, model: &Path) -> Result<String> {
    let mut command = Command::new(programs(folder).join("llama-bench"));
    command.arg("-m").arg(model).args(["-r", "1", "-o", "json", "-p", "1", "-n", "0", "-v"]);
    let output = capture(&mut command)?;
    if output.code != 0 {
        return Err(format!("llama-bench: {}", output.err));
    }
    let json = output.out.replace("\n    \"", "\n  \"");
    let names = ["backends", "n_batch", "n_ubatch", "type_k", "type_v", "flash_attn", "repack"];
    let value = |name: &str| json_field(&json, name).unwrap_or("?").to_owned();
    let shown: Vec<String> = names.iter().map(|name| format!("{name} {}", value(name))).collect();
    let buffers: Vec<&str> = output
        .err
        .lines()
        .filter(|line| line.starts_with("load_tensors:") && line.contains("model buffer size"))
        .map(|line| line.trim_start_matches("load_tensors:").trim())
        .collect();
    let file = model.file_name().unwrap_or_default().to_string_lossy();
    let (shown, mut buffers) = (shown.join(", "), buffers.join(", "));
    if super::features().contains("amx_int8") && !buffers.contains("AMX") {
        buffers += "; it has no AMX, although the processor does: no fair comparison";
    }
    Ok(format!("- llama.cpp on {file} reports: {shown}; {buffers}\n"))
}

/// The program that makes hybrid models and runs mlx-lm on them.
pub(super) fn script() -> PathBuf {
    root().join("benches/compare/mlx_hybrid.py")
}

/// mlx-lm, and the models that both engines can read.
pub(super) fn mlx() -> Result<(Engine, Vec<PathBuf>)> {
    let needs = "it needs python3 with venv and pip";
    let python = python(".cache/mlx-compare", &MLX).map_err(|e| format!("{e}; {needs}"))?;
    let folder = target().join("compare");
    let models = HYBRIDS.map(|named| folder.join(named.join("-")));
    for (named, model) in HYBRIDS.iter().zip(&models) {
        run(Command::new(&python).arg(script()).arg("make").args(named).arg(model))?;
    }
    Ok((Engine::Mlx(python), models.to_vec()))
}

/// Its version, as a list in Markdown.
pub(super) fn mlx_facts() -> String {
    let python = first_line("python3", &["--version"]);
    format!("- mlx-lm: {}, on the CPU, {python}\n- models: random weights\n", MLX.join(" "))
}
