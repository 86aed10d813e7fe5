//! Speed beside llama.cpp: the same file, the same threads, alternating in one run, reported as a ratio.
//!
//! Owns the procedure and the table. Two engines on one machine are measured in turns, so that what else the machine
//! does falls on both; the ratio is taken within each turn, and the median of the ratios is what counts.

mod batched;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fetch;
use crate::shell::{
    Result, capture, cargo, json_field, json_number, provenance, root, run, target,
};

/// Tokens of the prompt that is read, and tokens that are generated.
const PROMPT: usize = 512;
const GENERATE: usize = 128;
/// A prompt that greedy decoding goes on with for long.
const COUNTING: &str = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";

/// What is compared with what.
pub(crate) struct Options {
    /// llama-bench, or llama-batched-bench.
    pub(crate) peer: PathBuf,
    models: Vec<PathBuf>,
    pub(crate) threads: usize,
    pub(crate) rounds: usize,
    /// Decoding in batches, instead of one row.
    batched: bool,
    write: bool,
}

impl Options {
    fn new(args: &[&str]) -> Result<Self> {
        let mut o = Self {
            peer: PathBuf::new(),
            models: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            rounds: 5,
            batched: args.contains(&"--batched"),
            write: args.contains(&"--write"),
        };
        let peer = if o.batched { "--llama-batched-bench" } else { "--llama-bench" };
        let mut args = args.iter().filter(|flag| !["--batched", "--write"].contains(*flag));
        while let Some(&flag) = args.next() {
            let value = args.next().ok_or_else(|| format!("{flag} wants a value"))?;
            let number = || {
                let number = value.parse().ok().filter(|n| *n > 0);
                number.ok_or_else(|| format!("{flag} wants a number, has {value:?}"))
            };
            match flag {
                _ if flag == peer => o.peer = PathBuf::from(value),
                "--model" => o.models.push(PathBuf::from(value)),
                "--threads" => o.threads = number()?,
                "--rounds" => o.rounds = number()?,
                _ => return Err(format!("compare does not know {flag}")),
            }
        }
        if o.peer.as_os_str().is_empty() {
            let built = "benches/compare/build_llama_cpp.sh builds one";
            return Err(format!("compare wants {peer} PATH; {built}"));
        }
        if o.models.is_empty() {
            fetch::fetch()?;
            o.models = fetch::files();
        }
        Ok(o)
    }
}

/// Tokens a second of one engine.
#[derive(Clone, Copy)]
struct Speed {
    prefill: f64,
    decode: f64,
}

/// Measures every model and prints the tables.
pub(crate) fn compare(args: &[&str]) -> Result<()> {
    let options = Options::new(args)?;
    run(cargo().args(["build", "--release", "--package", "longrun"]))?;
    let name = format!("longrun{}", std::env::consts::EXE_SUFFIX);
    let ours = target().join("release").join(name);
    let mut report = provenance();
    let _ = writeln!(report, "- processor features: {}", features());
    report += &peer(&options)?;
    for model in &options.models {
        report += &match options.batched {
            true => batched::measure(&options, &ours, model)?,
            false => measure(&options, &ours, model)?,
        };
    }
    println!("{report}");
    let part = if options.batched { "batched" } else { "compare" };
    if options.write { write(&report, part) } else { Ok(()) }
}

/// The vector extensions that matter to either engine.
fn features() -> String {
    let flags = crate::shell::field_of("/proc/cpuinfo", "flags");
    let known = ["avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8"];
    let has = |name: &&str| flags.split(' ').any(|flag| flag == *name);
    known.into_iter().filter(has).collect::<Vec<_>>().join(" ")
}

/// What is known of the other engine: its version, how it was built.
fn peer(options: &Options) -> Result<String> {
    let version = capture(Command::new(&options.peer).arg("--version"))?;
    let version: Vec<&str> = version.out.lines().chain(version.err.lines()).collect();
    let cache = options.peer.parent().and_then(Path::parent);
    let cache = cache.map(|build| build.join("CMakeCache.txt"));
    let cache = cache.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
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
        "- llama.cpp: {}\n- llama.cpp, how it was built: {}\n- threads: {}, rounds: {}\n",
        version.join("; "),
        if built.is_empty() { "unknown".to_owned() } else { built.join(" ") },
        options.threads,
        options.rounds,
    ))
}

/// One model: both engines in turns.
fn measure(options: &Options, ours: &Path, model: &Path) -> Result<String> {
    let file = model.file_name().unwrap_or_default().to_string_lossy();
    let prompt = prompt_of(options, ours, model)?;
    let mut report = format!(
        "\n### {file}\n\nlongrun: `longrun generate --model {file} --threads {t} --temp 0 --raw --json`; prefill is \
         `prompt_tokens_per_second` of a prompt of {PROMPT} tokens, decode is `tokens_per_second` of {GENERATE} \
         tokens after a short prompt.\n\nllama.cpp: `llama-bench -m {file} -t {t} -p {PROMPT} -n {GENERATE} -r 1`. {}\n\n\
         | round | prefill | llama.cpp | ratio | decode | llama.cpp | ratio |\n|---|---|---|---|---|---|---|\n",
        settings(options, model)?,
        t = options.threads,
    );
    let mut ratios: [Vec<f64>; 2] = Default::default();
    for round in 1..=options.rounds {
        // Who goes first changes from round to round.
        let (us, them) = if round % 2 == 1 {
            let us = longrun(options, ours, model, &prompt)?;
            (us, llama(options, model)?)
        } else {
            let them = llama(options, model)?;
            (longrun(options, ours, model, &prompt)?, them)
        };
        let pair = [us.prefill / them.prefill, us.decode / them.decode];
        eprintln!("{file} round {round}: prefill {:.2}x, decode {:.2}x", pair[0], pair[1]);
        let _ = writeln!(
            report,
            "| {round} | {:.1} | {:.1} | {:.2} | {:.1} | {:.1} | {:.2} |",
            us.prefill, them.prefill, pair[0], us.decode, them.decode, pair[1]
        );
        ratios.iter_mut().zip(pair).for_each(|(all, one)| all.push(one));
    }
    let [prefill, decode] = ratios.map(median);
    let _ = writeln!(report, "| median | | | **{prefill:.2}** | | | **{decode:.2}** |");
    Ok(report)
}

/// The middle one.
pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    if all.len() % 2 == 1 { all[middle] } else { f64::midpoint(all[middle - 1], all[middle]) }
}

fn generate(
    options: &Options,
    ours: &Path,
    model: &Path,
    prompt: &str,
    max: usize,
) -> Result<String> {
    let (threads, max) = (options.threads.to_string(), max.to_string());
    let mut command = Command::new(ours);
    command.args(["generate", "--temp", "0", "--raw", "--json", "--threads", &threads]);
    command.args(["--max-tokens", &max, "--prompt", prompt, "--model"]).arg(model);
    let output = capture(&mut command)?;
    if output.code == 0 { Ok(output.out) } else { Err(format!("longrun generate: {}", output.err)) }
}

/// The numbers in an array of the JSON that `generate` prints.
fn count(json: &str, array: &str) -> usize {
    let rest = json.split_once(&format!("\"{array}\": [")).map_or("", |(_, rest)| rest);
    let body = rest.split_once(']').map_or("", |(body, _)| body);
    body.split(',').filter(|n| !n.trim().is_empty()).count()
}

/// A text of exactly [`PROMPT`] tokens, or as near as words come.
fn prompt_of(options: &Options, ours: &Path, model: &Path) -> Result<String> {
    let words = |n: usize| " and".repeat(n);
    let few = count(&generate(options, ours, model, &words(8), 1)?, "prompt_ids");
    let prompt = words(PROMPT + 8 - few.min(PROMPT));
    let have = count(&generate(options, ours, model, &prompt, 1)?, "prompt_ids");
    if have.abs_diff(PROMPT) > 8 {
        return Err(format!("the prompt has {have} tokens instead of {PROMPT}"));
    }
    Ok(prompt)
}

fn longrun(options: &Options, ours: &Path, model: &Path, prompt: &str) -> Result<Speed> {
    let number = |json: &str, name: &str| {
        json_number(json, name).ok_or_else(|| format!("longrun generate printed no {name}"))
    };
    let read = generate(options, ours, model, prompt, 1)?;
    let prefill = number(&read, "prompt_tokens_per_second")?;
    // The first token belongs to the prompt.
    let written = generate(options, ours, model, COUNTING, GENERATE + 1)?;
    if count(&written, "ids") != GENERATE + 1 {
        return Err(format!("{}: the text ended early", model.display()));
    }
    Ok(Speed { prefill, decode: number(&written, "tokens_per_second")? })
}

/// Runs llama-bench; gives its JSON, one object a test.
fn bench(options: &Options, model: &Path, more: &[&str]) -> Result<crate::shell::Output> {
    let threads = options.threads.to_string();
    let mut command = Command::new(&options.peer);
    command.arg("-m").arg(model).args(["-t", &threads, "-r", "1", "-o", "json"]).args(more);
    let output = capture(&mut command)?;
    if output.code == 0 { Ok(output) } else { Err(format!("llama-bench: {}", output.err)) }
}

fn llama(options: &Options, model: &Path) -> Result<Speed> {
    let (prompt, generate) = (PROMPT.to_string(), GENERATE.to_string());
    let output = bench(options, model, &["-p", &prompt, "-n", &generate])?;
    let speeds: Vec<f64> = output
        .out
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"avg_ts\": "))
        .filter_map(|value| value.trim_end_matches(',').parse().ok())
        .collect();
    match speeds[..] {
        [prefill, decode] => Ok(Speed { prefill, decode }),
        _ => Err(format!("llama-bench printed {} results instead of 2", speeds.len())),
    }
}

/// The settings that llama-bench reports of itself, and which buffers it put the weights in.
fn settings(options: &Options, model: &Path) -> Result<String> {
    let output = bench(options, model, &["-p", "1", "-n", "0", "-v"])?;
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
    Ok(format!("It reports: {}; {}.", shown.join(", "), buffers.join(", ")))
}

/// Puts the report between the marks of a part of `docs/performance.md`.
fn write(report: &str, part: &str) -> Result<()> {
    let marks = ["begin", "end"].map(|end| format!("<!-- {part}: {end} -->\n"));
    let path = root().join("docs/performance.md");
    let page = std::fs::read_to_string(&path).map_err(|e| format!("docs/performance.md: {e}"))?;
    let parts = page.split_once(&marks[0]).and_then(|(head, rest)| {
        let (_, tail) = rest.split_once(&marks[1])?;
        Some(format!("{head}{}\n{report}\n{}{tail}", marks[0], marks[1]))
    });
    let page = parts.ok_or("docs/performance.md has lost its marks")?;
    std::fs::write(&path, page).map_err(|e| format!("docs/performance.md: {e}"))
}
