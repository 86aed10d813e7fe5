//! The long proofs, through the real binary: what must stay flat stays flat, what is promised under load is held, and
//! what must be caught is caught.
//!
//! Owns the list of proofs and their two sizes. A proof is a command line, what its exit code must be, and checks on
//! the JSON that it writes. The full size goes into `docs/proofs.md` with everything that was printed.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{
    Output, Result, capture, cargo, json_field, json_number, provenance, root, run, target,
};

/// What a proof must show besides its exit code.
enum Show {
    /// Verdict flat, slope 0, and every count of live buffers equal, at the end too. On the null device, which has no
    /// pools to touch for the first time, the resident size stays within [`RSS_SLACK`], too.
    Flat,
    /// Flat, after at least as many short rows as the size `joins` says have joined and left.
    FlatAfterJoins,
    /// A load of `bench` whose promise is held, with these numbers of its outcome above 0: else it was no load.
    Held(&'static [&'static str]),
    /// The limit is reached within one step of the prediction; the equality check saw it at this step.
    Dies { flagged_at: f64 },
    /// Flat at every report although a leak is planted, because it is healed before each.
    Healed,
    /// The equality check ends the run: no outcome, this text on standard error.
    Refused(&'static str),
}

/// (name, full size, CI size)
type Sizes = &'static [(&'static str, &'static str, &'static str)];

struct Proof {
    title: Cow<'static, str>,
    /// Whether the binary is the one with the leak lab.
    lab: bool,
    /// The command; `{name}` stands for a size.
    command: Cow<'static, str>,
    sizes: Sizes,
    code: i32,
    show: Show,
}

const CPU: (&str, &str, &str) = ("tokens", "20000", "320");
const NULL: (&str, &str, &str) = ("tokens", "1000000", "20000");
const LIMIT: (&str, &str, &str) = ("limit", "499000", "9000");

/// A proof without a leak: exit code 0.
const fn flat(title: &'static str, command: &'static str, sizes: Sizes) -> Proof {
    let (title, command) = (Cow::Borrowed(title), Cow::Borrowed(command));
    Proof { title, lab: false, command, sizes, code: 0, show: Show::Flat }
}

/// Streams that decode while a long prompt arrives.
const fn streams(title: &'static str, command: &'static str) -> Proof {
    let (title, command) = (Cow::Borrowed(title), Cow::Borrowed(command));
    let sizes = &[("long", "30000", "1000"), ("chunk", "512", "64")];
    let show = Show::Held(&["first_token_seconds"]);
    Proof { title, lab: false, command, sizes, code: 0, show }
}

/// Conversations against a budget.
const fn conversations(title: &'static str, command: &'static str, sizes: Sizes) -> Proof {
    let (title, command) = (Cow::Borrowed(title), Cow::Borrowed(command));
    let show = Show::Held(&["hit_rate", "cached_fraction", "evicted"]);
    Proof { title, lab: false, command, sizes, code: 0, show }
}

const PROOFS: &[Proof] = &[
    flat(
        "qwen3_next, 36 recurrent and 12 attention layers, 2 rows, CPU",
        "soak --model tiny:qwen3_next --layers 48 --mode batch --tokens {tokens} --device cpu",
        &[CPU],
    ),
    flat(
        "qwen3_next, null device",
        "soak --model tiny:qwen3_next --layers 48 --mode batch --tokens {tokens} --device null",
        &[NULL],
    ),
    flat(
        "qwen3_5_moe, CPU",
        "soak --model tiny:qwen3_5_moe --layers 16 --mode batch --tokens {tokens} --device cpu",
        &[CPU],
    ),
    flat(
        "qwen3_5_moe, null device",
        "soak --model tiny:qwen3_5_moe --layers 48 --mode batch --tokens {tokens} --device null",
        &[NULL],
    ),
    flat(
        "gemma3, whose windows of 64 tokens wrap, CPU",
        "soak --model tiny:gemma3 --layers 12 --mode batch --tokens {tokens} --device cpu",
        &[CPU],
    ),
    flat(
        "gemma3, null device",
        "soak --model tiny:gemma3 --layers 12 --mode batch --tokens {tokens} --device null",
        &[NULL],
    ),
    flat(
        "layers that write values which nobody reads, CPU",
        "soak --model tiny:dead_values --layers 8 --mode batch --tokens {tokens} --device cpu",
        &[CPU],
    ),
    flat(
        "layers that write values which nobody reads, null device",
        "soak --model tiny:dead_values --layers 8 --mode batch --tokens {tokens} --device null",
        &[NULL],
    ),
    Proof {
        title: Cow::Borrowed("short rows join and leave beside a long one"),
        lab: false,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --mode churn --tokens {tokens} --device cpu",
        ),
        sizes: &[("tokens", "40000", "1000"), ("joins", "10000", "200")],
        code: 0,
        show: Show::FlatAfterJoins,
    },
    streams(
        "no stream misses a step while a long prompt is read, recurrent layers",
        "bench streams --model tiny:qwen3_next --long {long} --chunk {chunk}",
    ),
    streams(
        "no stream misses a step while a long prompt is read, windows",
        "bench streams --model tiny:gemma3 --long {long} --chunk {chunk}",
    ),
    conversations(
        "conversations stay inside of a budget, recurrent layers",
        "bench conversations --model tiny:qwen3_next --conversations {many} --memory {memory}",
        &[("many", "500", "20"), ("memory", "48MiB", "8MiB")],
    ),
    conversations(
        "conversations stay inside of a budget, attention alone",
        "bench conversations --model tiny:llama --conversations {many} --memory {memory}",
        &[("many", "500", "20"), ("memory", "12MiB", "7MiB")],
    ),
    conversations(
        "conversations stay inside of a budget, windows, null device",
        "bench conversations --model tiny:gemma3 --conversations {many} --memory 64MiB --device null",
        &[("many", "20000", "500")],
    ),
    Proof {
        title: Cow::Borrowed(
            "planted: bookkeeping that only one recurrent layer reads, null device",
        ),
        lab: true,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --layers 48 --tokens 1000000 --device null --inject advance \
                  --resource-limit {limit} --report-every {every}",
        ),
        sizes: &[LIMIT, ("every", "1000", "50")],
        code: 2,
        show: Show::Dies { flagged_at: 1.0 },
    },
    Proof {
        title: Cow::Borrowed("planted: the same, CPU"),
        lab: true,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --layers 48 --tokens {tokens} --device cpu --inject advance \
                  --resource-limit {limit} --report-every {every}",
        ),
        sizes: &[LIMIT, ("every", "1000", "50"), ("tokens", "20000", "1000")],
        code: 2,
        show: Show::Dies { flagged_at: 1.0 },
    },
    Proof {
        title: Cow::Borrowed("planted: a value cache that nobody reads"),
        lab: true,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --layers 48 --tokens 1000000 --device null --inject values \
                  --resource-limit {limit} --report-every {every}",
        ),
        sizes: &[LIMIT, ("every", "2000", "100")],
        code: 2,
        show: Show::Dies { flagged_at: 1.0 },
    },
    Proof {
        title: Cow::Borrowed("planted: a pooled cache that grows once in four tokens"),
        lab: true,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --layers 48 --tokens 1000000 --device null --inject pooling \
                  --resource-limit {limit} --report-every {every}",
        ),
        sizes: &[LIMIT, ("every", "10000", "500")],
        code: 2,
        show: Show::Dies { flagged_at: 4.0 },
    },
    Proof {
        title: Cow::Borrowed(
            "planted and healed: evaluating the chain every N tokens returns the slope to 0",
        ),
        lab: true,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --layers 48 --tokens {tokens} --device null --inject advance \
                  --resource-limit {limit} --heal-every {heal}",
        ),
        sizes: &[LIMIT, ("tokens", "50000", "2000"), ("heal", "1000", "100")],
        code: 0,
        show: Show::Healed,
    },
    Proof {
        title: Cow::Borrowed(
            "planted, with the equality check as an error: refused at the first step",
        ),
        lab: true,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --layers 48 --tokens 1000 --device null --inject advance --strict",
        ),
        sizes: &[],
        code: 70,
        show: Show::Refused("something leaks"),
    },
    Proof {
        title: Cow::Borrowed("planted, strict, values"),
        lab: true,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --layers 48 --tokens 1000 --device null --inject values --strict",
        ),
        sizes: &[],
        code: 70,
        show: Show::Refused("something leaks"),
    },
    Proof {
        title: Cow::Borrowed("planted, strict, pooling"),
        lab: true,
        command: Cow::Borrowed(
            "soak --model tiny:qwen3_next --layers 48 --tokens 1000 --device null --inject pooling --strict",
        ),
        sizes: &[],
        code: 70,
        show: Show::Refused("something leaks"),
    },
];

/// Families that the proofs above don't soak already.
const FAMILIES: &[&str] = &[
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "qwen2_moe",
    "mixtral",
    "gemma2",
    "qwen3_5",
    "phi3",
    "olmo2",
    "olmo3",
    "seed_oss",
    "granite",
    "glm4",
    "glm4_moe",
    "ministral3",
    "minimax_m2",
    "gpt_oss",
    "lfm2",
    "deepseek_v3",
    "deepseek_v32",
    "kimi_linear",
    "mamba2",
    "nemotron_h",
    "falcon_h1",
    "granitemoehybrid",
    "gemma4",
    "deepseek_v4",
    "glm5_next",
];

/// Every other family, on both devices, in few lines.
fn family_proofs() -> impl Iterator<Item = Proof> {
    let cpu: Sizes = &[CPU, ("every", "5000", "80")];
    let null: Sizes = &[NULL, ("every", "250000", "5000")];
    [("cpu", "CPU", cpu), ("null", "null device", null)].into_iter().flat_map(|(device, on, sizes)| {
        FAMILIES.iter().map(move |family| Proof {
            title: format!("{family}, {on}").into(),
            lab: false,
            command: format!(
                "soak --model tiny:{family} --layers 4 --tokens {{tokens}} --report-every {{every}} \
                 --device {device} --threads 1"
            )
            .into(),
            sizes,
            code: 0,
            show: Show::Flat,
        })
    })
}

impl Proof {
    /// Whether it takes one core.
    fn lone(&self) -> bool {
        self.command.contains("--threads 1")
    }

    fn size(&self, name: &str, full: bool) -> Option<&'static str> {
        let (_, whole, small) = self.sizes.iter().find(|(n, _, _)| *n == name)?;
        Some(if full { whole } else { small })
    }

    fn args(&self, full: bool) -> Vec<String> {
        let mut command = self.command.clone().into_owned();
        for (name, whole, small) in self.sizes {
            command = command.replace(&format!("{{{name}}}"), if full { whole } else { small });
        }
        command.split_whitespace().map(str::to_owned).collect()
    }

    /// What is not as it must be.
    fn judge(&self, full: bool, output: &Output, json: &str) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut want = |ok: bool, what: &str| {
            if !ok {
                wrong.push(what.to_owned());
            }
        };
        want(output.code == self.code, &format!("the exit code is {}", output.code));
        let number = |name: &str| json_number(json, name).unwrap_or(f64::NAN);
        let verdict = json_field(json, "verdict").unwrap_or("none");
        let base = number("base_live");
        let live: Vec<&str> = lines_of(json, "live");
        match self.show {
            Show::Flat | Show::FlatAfterJoins | Show::Healed => {
                want(verdict == "flat", &format!("the verdict is {verdict}"));
                want(number("slope_per_token") == 0.0, "the slope is not 0");
                want(live.len() > 1, "there are not two reports");
                want(live.iter().all(|n| n.parse() == Ok(base)), "a report differs from the start");
                want(number("end_live") == base, "the end differs from the start");
            }
            Show::Held(above) => {
                want(verdict == "held", &format!("the verdict is {verdict}"));
                let load = above.iter().all(|name| number(name) > 0.0);
                want(load, "it was no load: nothing was reused, or nothing had to go");
            }
            Show::Dies { flagged_at } => {
                want(verdict == "limit", &format!("the verdict is {verdict}"));
                let apart = (number("died_at") - number("predicted_token")).abs();
                want(apart <= 1.0, "it did not die where predicted");
                want(number("flagged_at") == flagged_at, "it was not flagged at its first step");
            }
            Show::Refused(text) => {
                want(json.is_empty(), "the run reached its end");
                want(output.err.contains(text), "the refusal does not say why");
            }
        }
        if matches!(self.show, Show::Flat) && self.command.contains("--device null") {
            let rss: Vec<f64> = lines_of(json, "rss").iter().flat_map(|n| n.parse()).collect();
            let grown = rss.last().zip(rss.first()).map(|(last, first)| last - first);
            want(grown.is_none_or(|n| n.abs() <= RSS_SLACK), "the resident size is not flat");
        }
        if let Show::FlatAfterJoins = self.show {
            let least = self.size("joins", full).and_then(|n| n.parse().ok()).unwrap_or(f64::NAN);
            want(number("joins") >= least, "too few rows have joined");
        }
        wrong
    }
}

/// The values of a field of the samples.
fn lines_of<'a>(json: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!("      \"{name}\": ");
    let values = json.lines().filter_map(|line| line.strip_prefix(&start));
    values.map(|value| value.trim_end_matches(',')).collect()
}

/// The full size, in a release build, into `docs/proofs.md`.
pub(crate) fn full() -> Result<()> {
    into("docs/proofs.md", "Proofs", "cargo xtask prove", PROOFS)
}

/// Every other family in full size, into `docs/proofs-families.md`.
pub(crate) fn families() -> Result<()> {
    let proofs: Vec<Proof> = family_proofs().collect();
    let (page, title) = ("docs/proofs-families.md", "Proofs: every family");
    into(page, title, "cargo xtask prove --families", &proofs)
}

fn into(page: &str, title: &str, command: &str, proofs: &[Proof]) -> Result<()> {
    // Before anything runs: it is this tree that the proofs are of.
    let provenance = provenance();
    let (text, failed) = prove(true, proofs)?;
    let head = format!(
        "# {title}\n\nWritten by `{command}`. Each command below is the real binary in a release \
         build; those of the leak lab are built with `--features leak-lab`. What was printed is \
         printed here in full.\n\n{provenance}\n"
    );
    std::fs::write(root().join(page), head + &text).map_err(|e| format!("{page}: {e}"))?;
    verdict(proofs.len(), failed)
}

/// The CI size of all, in a development build, to the terminal.
pub(crate) fn small() -> Result<()> {
    let families: Vec<Proof> = family_proofs().collect();
    let (first, second) = (prove(false, PROOFS)?.1, prove(false, &families)?.1);
    verdict(PROOFS.len() + families.len(), first + second)
}

fn verdict(proofs: usize, failed: usize) -> Result<()> {
    println!("{} passed, {failed} failed", proofs - failed);
    if failed == 0 { Ok(()) } else { Err(format!("{failed} proofs failed")) }
}

/// Builds the binaries and runs the proofs, as many at once as [`Proof::lone`] allows; gives the report and the number
/// that failed.
fn prove(full: bool, proofs: &[Proof]) -> Result<(String, usize)> {
    let folder = target().join("prove");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let plain = build(full, false, &folder.join("longrun"))?;
    let lab = match proofs.iter().any(|proof| proof.lab) {
        true => build(full, true, &folder.join("longrun-lab"))?,
        false => plain.clone(),
    };
    let one = |place: usize, proof: &Proof| {
        eprintln!("xtask: {}", proof.title);
        let binary = if proof.lab { &lab } else { &plain };
        prove_one(proof, full, binary, &folder.join(format!("outcome{place}.json")))
    };
    let (mut report, mut failed) = (String::new(), 0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let together = if proofs.iter().all(|proof| proof.lone()) { cores } else { 1 };
    for group in proofs.chunks(together) {
        let sections: Vec<Result<String>> = std::thread::scope(|scope| {
            let runs =
                group.iter().enumerate().map(|(i, proof)| scope.spawn(move || one(i, proof)));
            let runs: Vec<_> = runs.collect();
            let joined = runs.into_iter().map(|run| run.join());
            joined.map(|run| run.unwrap_or_else(|_| Err("a proof panicked".into()))).collect()
        });
        for section in sections {
            let section = section?;
            failed += usize::from(section.contains(FAILED));
            println!("{section}");
            report += &section;
            report.push('\n');
        }
    }
    Ok((report, failed))
}

/// Bytes by which the resident size of a flat run on the null device may differ between first and last report.
const RSS_SLACK: f64 = 4e6;
const FAILED: &str = "**FAILED**";

fn prove_one(proof: &Proof, full: bool, binary: &Path, json: &Path) -> Result<String> {
    let args = proof.args(full);
    let _ = std::fs::remove_file(json);
    let output = capture(Command::new(binary).args(&args).arg("--json-out").arg(json))?;
    let outcome = std::fs::read_to_string(json).unwrap_or_default();
    let wrong = proof.judge(full, &output, &outcome);
    let held = match wrong.as_slice() {
        [] => "held".to_owned(),
        wrong => format!("{FAILED}: {}", wrong.join("; ")),
    };
    let mut text = format!("## {}\n\n", proof.title);
    let features = if proof.lab { " (built with `--features leak-lab`)" } else { "" };
    let _ = write!(
        text,
        "{held}; exit code {}; {:.1} s{features}\n\n```text\n$ longrun {}\n{}{}```\n",
        output.code,
        output.seconds,
        args.join(" "),
        output.out,
        output.err
    );
    Ok(text)
}

/// Builds the binary and copies it to `to`, because both kinds of build write the same file.
fn build(full: bool, lab: bool, to: &Path) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", "longrun"]);
    command.args(full.then_some("--release"));
    command.args(if lab { &["--features", "leak-lab"][..] } else { &[] });
    run(&mut command)?;
    let name = format!("longrun{}", std::env::consts::EXE_SUFFIX);
    let built = target().join(if full { "release" } else { "debug" }).join(name);
    std::fs::copy(&built, to).map_err(|e| format!("{}: {e}", built.display()))?;
    Ok(to.to_path_buf())
}
