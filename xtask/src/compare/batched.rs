//! Decoding in batches beside llama.cpp: the same rows behind the same lengths, in turns.
//!
//! Owns the shape of the load and the table. For each number of rows the two engines run one after the other, so that a
//! ratio is of two runs that are seconds apart.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use super::{Options, median};
use crate::shell::{Result, capture};

/// Rows that decode together.
const ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Tokens of each row's prompt, and tokens that it generates.
const PROMPT: usize = 128;
const GENERATE: usize = 128;

/// Tokens a second of all rows together, round by round: longrun's, llama.cpp's.
type Rounds = [Vec<f64>; 2];

/// One model: both engines in turns.
pub(super) fn measure(options: &Options, ours: &Path, model: &Path) -> Result<String> {
    let file = model.file_name().unwrap_or_default().to_string_lossy();
    let mut all: [Rounds; ROWS.len()] = Default::default();
    for round in 1..=options.rounds {
        for (rounds, rows) in all.iter_mut().zip(ROWS) {
            // Who goes first changes from round to round.
            let pair = if round % 2 == 1 {
                let us = longrun(options, ours, model, rows)?;
                [us, llama(options, model, rows)?]
            } else {
                let them = llama(options, model, rows)?;
                [longrun(options, ours, model, rows)?, them]
            };
            eprintln!("{file} round {round}, {rows} rows: {:.2}x", pair[0] / pair[1]);
            rounds.iter_mut().zip(pair).for_each(|(all, one)| all.push(one));
        }
    }
    let t = options.threads;
    let mut report = format!(
        "\n### {file}\n\nlongrun: `longrun bench --model {file} --threads {t} --rounds 1 --prompt {PROMPT} \
         --depth {PROMPT} --generate {GENERATE} --batch ROWS --json`.\n\n\
         llama.cpp: `llama-batched-bench -m {file} -t {t} -tb {t} -b 2048 -ub 512 \
         -npp {PROMPT} -ntg {GENERATE} -npl ROWS -c {}*ROWS --output-format jsonl`.\n\nTokens a second of all rows \
         together, medians; \"over 1 row\" is each engine's own gain; the ratio is longrun's figure over llama.cpp's \
         within a round.\n\n\
         | rows | longrun | over 1 row | llama.cpp | over 1 row | ratios | median |\n|---|---|---|---|---|---|---|\n",
        PROMPT + GENERATE,
    );
    let alone = all[0].each_ref().map(|rounds| median(rounds.clone()));
    for (rounds, rows) in all.iter().zip(ROWS) {
        let [us, them] = rounds.each_ref().map(|rounds| median(rounds.clone()));
        let ratios: Vec<f64> = rounds[0].iter().zip(&rounds[1]).map(|(a, b)| a / b).collect();
        let each: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        let _ = writeln!(
            report,
            "| {rows} | {us:.1} | {:.2} | {them:.1} | {:.2} | {} | **{:.2}** |",
            us / alone[0],
            them / alone[1],
            each.join(" "),
            median(ratios),
        );
    }
    Ok(report)
}

fn longrun(options: &Options, ours: &Path, model: &Path, rows: usize) -> Result<f64> {
    let [threads, prompt, generate, rows] =
        [options.threads, PROMPT, GENERATE, rows].map(|n| n.to_string());
    let mut command = Command::new(ours);
    command.args(["bench", "--rounds", "1", "--json", "--threads", &threads, "--depth", &prompt]);
    command.args(["--prompt", &prompt, "--generate", &generate, "--batch", &rows, "--model"]);
    let output = capture(command.arg(model))?;
    let speed = number_after(&output.out, "\"total_tokens_per_second\": ");
    speed.ok_or_else(|| format!("longrun bench: {}", output.err))
}

fn llama(options: &Options, model: &Path, rows: usize) -> Result<f64> {
    let context = (PROMPT + GENERATE) * rows;
    let [threads, prompt, generate, rows, context] =
        [options.threads, PROMPT, GENERATE, rows, context].map(|n| n.to_string());
    let mut command = Command::new(&options.peer);
    command.arg("-m").arg(model).args(["-t", &threads, "-tb", &threads, "-b", "2048", "-ub"]);
    command.args(["512", "-npp", &prompt, "-ntg", &generate, "-npl", &rows, "-c", &context]);
    let output = capture(command.args(["--output-format", "jsonl"]))?;
    // Results go where its messages go.
    let found = |text: &str| number_after(text, "\"speed_tg\": ");
    let speed = found(&output.out).or_else(|| found(&output.err));
    speed.ok_or_else(|| format!("llama-batched-bench: {}", output.err))
}

/// The number behind the first `name`.
fn number_after(text: &str, name: &str) -> Option<f64> {
    let rest = text.split_once(name)?.1;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}
