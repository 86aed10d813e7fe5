//! A guard that the noise of a machine can't move: instructions of a step, counted by valgrind, beside those on record.
//!
//! Owns the cases and the tolerance; the record is `benches/counts.txt`. What is counted is the difference between two
//! runs of which one does more, so that neither the start of a program nor loading is part of it. Valgrind's processor
//! has AVX2 and no AVX-512: it is that path which is counted, on every machine that has it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Result, capture, cargo, first_line, root, run, target};

/// How far a count of products may be above the one on record: they repeat to the last instruction or nearly so.
const TOLERANCE: f64 = 0.02;
/// The same of whole models: what an engine does around kernels varies by some percent from run to run.
const TOLERANCE_OF_MODELS: f64 = 0.15;
const RECORD: &str = "benches/counts.txt";
/// Formats whose products are counted, with one row and with 32.
const FORMATS: [&str; 7] = ["bf16", "q4_0", "q4_1", "q5_0", "q8_0", "q4_k", "q6_k"];

/// Two command lines, of the binary or of `matmul_count`, and what the second one does more.
struct Case {
    name: String,
    less: String,
    more: String,
}

fn cases(quantised: &Path) -> Vec<Case> {
    let bench = |model: &str, prompt: usize, tokens: usize| {
        let load = format!("--prompt {prompt} --depth 0 --generate {tokens} --batch 1 --rounds 1");
        format!("longrun bench --model {model} --threads 1 {load}")
    };
    let quantised = quantised.to_string_lossy();
    let models = [("demo", "demo"), ("demo in 4 bits", &*quantised)];
    let models = models.into_iter().flat_map(|(name, model)| {
        let case = |what: &str, prompt, tokens| Case {
            name: format!("{name}, {what}"),
            less: bench(model, 1, 1),
            more: bench(model, prompt, tokens),
        };
        [case("32 tokens", 1, 33), case("prompts of 32 tokens", 32, 1)]
    });
    let kernels = FORMATS.into_iter().flat_map(|format| {
        let case = |rows, times| Case {
            name: format!("product in {format}, rows: {rows}"),
            less: format!("matmul_count {format} 1 0"),
            more: format!("matmul_count {format} {rows} {times}"),
        };
        [case(1, 16), case(32, 2)]
    });
    models.chain(kernels).collect()
}

/// Counts every case and compares with the record, or makes it the record.
pub(crate) fn count(update: bool) -> Result<()> {
    if capture(Command::new("valgrind").arg("--version")).is_err() {
        eprintln!(
            "xtask: no valgrind on this machine: instructions are not counted (apt-get install valgrind)"
        );
        return Ok(());
    }
    let programs = build()?;
    let quantised = target().join("count/demo-q4");
    if !quantised.is_dir() {
        let mut convert = Command::new(&programs[0]);
        convert.args(["convert", "--model", "demo", "--quantize", "q4", "--out"]).arg(&quantised);
        run(&mut convert)?;
    }
    let cases = cases(&quantised);
    let Some(counts) = counts(&cases, &programs)? else {
        eprintln!("xtask: valgrind shows no AVX2 on this machine: instructions are not compared");
        return Ok(());
    };
    let compiler = first_line("rustc", &["--version"]);
    let path = root().join(RECORD);
    if update {
        let valgrind = first_line("valgrind", &["--version"]);
        let mut text = format!(
            "# Instructions, written by `cargo xtask count --update` (docs/testing.md)\n# {compiler}\n# {valgrind}\n"
        );
        for (case, count) in cases.iter().zip(&counts) {
            let _ = writeln!(text, "{}: {count}", case.name);
        }
        return std::fs::write(&path, text).map_err(|e| format!("{RECORD}: {e}"));
    }
    let record = std::fs::read_to_string(&path).map_err(|e| format!("{RECORD}: {e}"))?;
    judge(&cases, &counts, &record, &compiler)
}

/// The binary and `matmul_count` of the development build, without what valgrind would read for long.
fn build() -> Result<[PathBuf; 2]> {
    // Incremental builds cut crates into other pieces and so inline other calls.
    let build = |args: &[&str]| run(cargo().env("CARGO_INCREMENTAL", "0").arg("build").args(args));
    build(&["--package", "longrun"])?;
    build(&["--package", "longrun-array", "--example", "matmul_count"])?;
    let folder = target().join("count");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let copy = |from: &str, name: &str| -> Result<PathBuf> {
        let (from, to) = (target().join(from), folder.join(name));
        let strip = Command::new("strip").arg("-g").arg("-o").arg(&to).arg(&from).status();
        if !strip.is_ok_and(|status| status.success()) {
            std::fs::copy(&from, &to).map_err(|e| format!("{}: {e}", from.display()))?;
        }
        Ok(to)
    };
    Ok([copy("debug/longrun", "longrun")?, copy("debug/examples/matmul_count", "matmul_count")?])
}

/// The instructions that each case takes; `None` if they are not those of AVX2.
fn counts(cases: &[Case], programs: &[PathBuf; 2]) -> Result<Option<Vec<u64>>> {
    let mut lines: Vec<&str> = cases.iter().flat_map(|c| [&*c.less, &*c.more]).collect();
    lines.sort_unstable();
    lines.dedup();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut known = Vec::new();
    for group in lines.chunks(cores) {
        let found: Vec<Result<Option<u64>>> = std::thread::scope(|scope| {
            let runs = group.iter().map(|line| scope.spawn(|| instructions(line, programs)));
            let runs: Vec<_> = runs.collect();
            let joined = runs.into_iter().map(|run| run.join());
            joined.map(|run| run.unwrap_or_else(|_| Err("a count panicked".into()))).collect()
        });
        for (line, found) in group.iter().zip(found) {
            let Some(count) = found? else { return Ok(None) };
            known.push((*line, count));
        }
    }
    let of = |line: &str| known.iter().find(|(known, _)| *known == line).map_or(0, |(_, n)| *n);
    Ok(Some(cases.iter().map(|c| of(&c.more).saturating_sub(of(&c.less))).collect()))
}

/// The instructions of one command line.
fn instructions(line: &str, programs: &[PathBuf; 2]) -> Result<Option<u64>> {
    let (name, args) = line.split_once(' ').unwrap_or((line, ""));
    let program = if name == "longrun" { &programs[0] } else { &programs[1] };
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    let output = capture(command.args(args.split(' ')))?;
    let collected = output.err.lines().find_map(|line| line.split_once("Collected : "));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    match count {
        Some(count) if output.code == 0 => Ok(output.out.contains("avx2").then_some(count)),
        _ => Err(format!("{line} under valgrind: exit code {}\n{}", output.code, output.err)),
    }
}

/// Prints the counts beside those on record; more than those, beyond the tolerance, are an error.
fn judge(cases: &[Case], counts: &[u64], record: &str, compiler: &str) -> Result<()> {
    let of = |name: &str| -> Option<u64> {
        let line = record.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line?.parse().ok()
    };
    let mut wrong = Vec::new();
    for (case, &count) in cases.iter().zip(counts) {
        let Some(before) = of(&case.name) else {
            wrong.push(format!("{} is not on record", case.name));
            continue;
        };
        let change = count as f64 / before.max(1) as f64 - 1.0;
        println!("{:40} {count:>12} {:+.2} %", case.name, 100.0 * change);
        let most = match case.name.starts_with("product") {
            true => TOLERANCE,
            false => TOLERANCE_OF_MODELS,
        };
        if change > most {
            wrong.push(format!("{}: {before} have become {count}", case.name));
        } else if change < -most {
            println!("  fewer: `cargo xtask count --update` keeps it so");
        }
    }
    if !record.contains(compiler) {
        println!(
            "the record is of another compiler than {compiler}: not judged; --update makes one"
        );
        return Ok(());
    }
    let next =
        "if that is what the change is worth, `cargo xtask count --update` puts it on record";
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}\n{next}", wrong.join("\n"))) }
}
