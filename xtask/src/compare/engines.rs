//! How each engine is run for a measurement, and where in what it prints the numbers are.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::part::{Part, Sizes};
use super::peers;
use crate::shell::{Output, Result, capture, words};

/// An engine and where it is.
pub(super) enum Engine {
    /// The binary.
    Longrun(PathBuf),
    /// The folder of llama.cpp's programs.
    Llama(PathBuf),
    /// A Python that has mlx-lm.
    Mlx(PathBuf),
}

/// What one process that loads takes: its seconds, and the most memory that it had resident.
const WATCH: &str = "\
import json, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps({'seconds': seconds, 'peak': peak}))
sys.exit(code)
";

impl Engine {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Longrun(_) => "longrun",
            Self::Llama(_) => "llama.cpp",
            Self::Mlx(_) => "mlx-lm",
        }
    }

    /// The command of a part, with FILE and T in place of a model and the number of threads.
    pub(super) fn shown(&self, part: Part, sizes: &Sizes) -> String {
        words(&self.command(part, sizes, Path::new("FILE"), "T"))
    }

    /// The numbers of a part, as [`Part::lines`] lists them.
    pub(super) fn measure(
        &self,
        part: Part,
        sizes: &Sizes,
        model: &Path,
        threads: usize,
    ) -> Result<Vec<f64>> {
        let threads = threads.to_string();
        let mut command = self.command(part, sizes, model, &threads);
        let shown = words(&command);
        if part == Part::Load {
            let mut watched = Command::new("python3");
            watched.args(["-c", WATCH]).arg(command.get_program()).args(command.get_args());
            command = watched;
        }
        if let Self::Mlx(_) = self {
            ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"].iter().for_each(|name| {
                command.env(name, &threads);
            });
        }
        let output = capture(&mut command)?;
        let numbers = if output.code == 0 { self.numbers(part, &output) } else { None };
        numbers.ok_or_else(|| {
            let lines: Vec<&str> = output.err.lines().collect();
            let last = lines[lines.len().saturating_sub(8)..].join("\n");
            format!("{shown} gave no numbers (exit code {}):\n{last}", output.code)
        })
    }

    fn command(&self, part: Part, sizes: &Sizes, model: &Path, threads: &str) -> Command {
        match self {
            Self::Longrun(binary) => {
                let mut command = Command::new(binary);
                command.args(longrun(part, sizes).split(' ')).args([
                    "--threads",
                    threads,
                    "--model",
                ]);
                command.arg(model);
                command
            }
            Self::Llama(folder) => {
                let (program, flags) = llama(part, sizes, threads);
                let mut command = Command::new(folder.join(program));
                command.arg("-m").arg(model).args(["-t", threads]).args(flags.split(' '));
                command
            }
            Self::Mlx(python) => {
                let mut command = Command::new(python);
                command.arg(peers::script()).arg("speed").arg(model);
                command.args([sizes.prompt, sizes.after].map(|n| n.to_string()));
                command
            }
        }
    }

    fn numbers(&self, part: Part, output: &Output) -> Option<Vec<f64>> {
        let out = output.out.as_str();
        let one = |name: &str| Some(vec![number_after(out, name)?]);
        match (self, part) {
            (_, Part::Load) => {
                Some(vec![number_after(out, "\"seconds\": ")?, number_after(out, "\"peak\": ")?])
            }
            (Self::Longrun(_), Part::Prefill) => one("\"tokens_per_second\": "),
            (Self::Longrun(_), Part::Rows(_)) => one("\"total_tokens_per_second\": "),
            (Self::Longrun(_), Part::Decode | Part::Depth) => Some(vec![number_after(
                out.split_once("\"decode\"")?.1,
                "\"tokens_per_second\": ",
            )?]),
            (Self::Longrun(_), Part::Hybrid) => {
                let (prefill, decode) = out.split_once("\"decode\"")?;
                let number = |text| number_after(text, "\"tokens_per_second\": ");
                Some(vec![number(prefill)?, number(decode)?])
            }
            // Results go where its messages go.
            (Self::Llama(_), Part::Rows(_)) => {
                let found = |text: &str| number_after(text, "\"speed_tg\": ");
                Some(vec![found(out).or_else(|| found(&output.err))?])
            }
            // The best of all settings that were tried.
            (Self::Llama(_), _) => {
                let speeds = out.match_indices("\"avg_ts\": ");
                let speeds = speeds.filter_map(|(at, _)| number_after(&out[at..], "\"avg_ts\": "));
                speeds.reduce(f64::max).map(|best| vec![best])
            }
            (Self::Mlx(_), _) => {
                Some(vec![number_after(out, "\"prefill\": ")?, number_after(out, "\"decode\": ")?])
            }
        }
    }
}

/// What longrun is told, threads and model aside. Keys and values are as the peer keeps them.
fn longrun(part: Part, sizes: &Sizes) -> String {
    let Sizes { prompt, generate, depth, after, row } = *sizes;
    let kv = if part == Part::Hybrid { "f32" } else { "f16" };
    let bench = |rows: usize, prompt: usize, depth: usize, generate: usize| {
        let lengths = format!("--prompt {prompt} --depth {depth} --generate {generate}");
        format!("bench --rounds 1 --json {lengths} --batch {rows} --kv-type {kv}")
    };
    match part {
        Part::Prefill => bench(1, prompt, 0, 1),
        Part::Decode => bench(1, 1, 0, generate),
        Part::Depth => bench(1, 1, depth, after),
        Part::Rows(rows) => bench(rows, 1, row, row),
        Part::Hybrid => bench(1, prompt, prompt, after),
        Part::Load => {
            format!("generate --raw --temp 0 --prompt Hello --max-tokens 1 --kv-type {kv}")
        }
    }
}

/// A program of llama.cpp and what it is told, model and threads of decoding aside.
fn llama(part: Part, sizes: &Sizes, threads: &str) -> (&'static str, String) {
    let Sizes { prompt, generate, depth, after, row } = sizes;
    let bench = |flags: String| ("llama-bench", format!("-r 1 -o json {flags}"));
    match part {
        Part::Prefill => bench(format!("-p {prompt} -n 0")),
        Part::Decode => bench(format!("-p 0 -n {generate}")),
        Part::Depth => bench(format!("-p 0 -n {after} -d {depth} -fa 0,1")),
        Part::Hybrid => bench(format!("-p 0 -n {after} -d {prompt} -fa 0,1")),
        Part::Rows(rows) => {
            let context = 2 * row * rows;
            let batch = format!("-tb {threads} -b 2048 -ub 512 -npp {row} -ntg {row} -npl {rows}");
            ("llama-batched-bench", format!("{batch} -c {context} --output-format jsonl"))
        }
        Part::Load => {
            let flags = "-p Hello -n 1 -c 256 --temp 0 --no-warmup -no-cnv";
            ("llama-completion", flags.into())
        }
    }
}

/// The number behind the first `name`.
fn number_after(text: &str, name: &str) -> Option<f64> {
    let rest = text.split_once(name)?.1;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}
