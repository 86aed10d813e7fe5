//! Speed, load time and memory beside other engines: the same file, the same threads, in turns, reported as a ratio.
//!
//! Owns the procedure and the tables. Two engines on one machine are measured one right after the other, so that what
//! else the machine does falls on both; the ratio is taken within each pair, and the median of the ratios is what counts.

mod engines;
mod part;
mod peers;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use engines::Engine;
use part::{FULL, Part, SHORT, Sizes};

use crate::fetch;
use crate::shell::{Result, cargo, field_of, provenance, root, run, target};

/// What is compared with what.
struct Options {
    models: Vec<PathBuf>,
    threads: Vec<usize>,
    rounds: usize,
    parts: Vec<Part>,
    sizes: Sizes,
    /// The folder of llama.cpp's build.
    llama: PathBuf,
    write: bool,
}

impl Options {
    fn new(args: &[&str]) -> Result<Self> {
        let short = args.contains(&"--short");
        let mut o = Self {
            models: Vec::new(),
            threads: vec![std::thread::available_parallelism().map_or(1, usize::from)],
            rounds: 5,
            parts: Part::OF_FILES.to_vec(),
            sizes: if short { SHORT } else { FULL },
            llama: target().join("llama.cpp"),
            write: args.contains(&"--write"),
        };
        let mlx = args.contains(&"--mlx");
        let alone = ["--mlx", "--short", "--write"];
        let mut args = args.iter().filter(|flag| !alone.contains(*flag));
        while let Some(&flag) = args.next() {
            let value = args.next().ok_or_else(|| format!("{flag} wants a value"))?;
            let number = |text: &str| {
                let number = text.parse().ok().filter(|n| *n > 0);
                number.ok_or_else(|| format!("{flag} wants a number, has {text:?}"))
            };
            match flag {
                "--llama" => o.llama = PathBuf::from(value),
                "--model" => o.models.push(PathBuf::from(value)),
                "--threads" => o.threads = value.split(',').map(number).collect::<Result<_>>()?,
                "--rounds" => o.rounds = number(value)?,
                "--parts" => o.parts = value.split(',').map(Part::of).collect::<Result<_>>()?,
                _ => return Err(format!("compare does not know {flag}")),
            }
        }
        if o.write && short {
            return Err("tables of --short lengths don't go into the documentation".into());
        }
        if mlx && !o.parts.contains(&Part::Hybrid) {
            o.parts.push(Part::Hybrid);
        }
        Ok(o)
    }
}

/// Builds and fetches what is missing, measures, and prints the tables.
pub(crate) fn compare(args: &[&str]) -> Result<()> {
    let mut options = Options::new(args)?;
    // Before anything runs: it is this tree that the tables are of.
    let provenance = provenance();
    run(cargo().args(["build", "--release", "--package", "longrun"]))?;
    let name = format!("longrun{}", std::env::consts::EXE_SUFFIX);
    let ours = Engine::Longrun(target().join("release").join(name));
    let of_files: Vec<Part> =
        options.parts.iter().copied().filter(|p| *p != Part::Hybrid).collect();
    if !of_files.is_empty() {
        if options.models.is_empty() {
            fetch::fetch()?;
            options.models = fetch::files();
        }
        let peer = peers::llama(&options.llama)?;
        let mut head = format!("{provenance}{}", peers::llama_facts(&options.llama)?);
        for model in &options.models {
            head += &peers::llama_settings(&options.llama, model)?;
        }
        let text = Turns { options: &options, pair: [&ours, &peer], parts: &of_files }
            .measure(&head, &options.models)?;
        finish(&options, "compare", &text)?;
    }
    if options.parts.contains(&Part::Hybrid) {
        let (peer, models) = peers::mlx()?;
        let head = format!("{provenance}{}", peers::mlx_facts());
        let text = Turns { options: &options, pair: [&ours, &peer], parts: &[Part::Hybrid] }
            .measure(&head, &models)?;
        finish(&options, "hybrid", &text)?;
    }
    Ok(())
}

/// Two engines that take turns.
struct Turns<'a> {
    options: &'a Options,
    /// longrun, and the other one.
    pair: [&'a Engine; 2],
    parts: &'a [Part],
}

/// What was measured of one line of a table: longrun's and the other's, round by round.
type Rounds = [Vec<f64>; 2];

/// The lines of one model on so many threads, with the ratios of each.
struct Table {
    name: String,
    lines: Vec<(String, Vec<f64>)>,
    text: String,
}

impl Turns<'_> {
    /// Everything, as Markdown below `head`.
    fn measure(&self, head: &str, models: &[PathBuf]) -> Result<String> {
        let load = || std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let before = load();
        let mut tables = Vec::new();
        for model in models {
            for &threads in &self.options.threads {
                tables.push(self.table(model, threads)?);
            }
        }
        let minute = |load: &str| load.split(' ').next().unwrap_or("unknown").to_owned();
        let mut text = format!(
            "{head}- processor features: {}\n- rounds: {}; load of the machine before and after: {}, {}\n\n{}",
            features(),
            self.options.rounds,
            minute(&before),
            minute(&load()),
            self.summary(&tables),
        );
        tables.iter().for_each(|table| text += &table.text);
        Ok(text + &self.commands())
    }

    /// One model on so many threads.
    fn table(&self, model: &Path, threads: usize) -> Result<Table> {
        let sizes = &self.options.sizes;
        let file = model.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("{file}, {threads} {}", if threads == 1 { "thread" } else { "threads" });
        let mut all: Vec<Vec<Rounds>> = self
            .parts
            .iter()
            .map(|part| vec![Rounds::default(); part.lines(sizes).len()])
            .collect();
        for round in 0..self.options.rounds {
            for (part, lines) in self.parts.iter().zip(&mut all) {
                // Who goes first changes from round to round.
                let first = round % 2;
                let mut numbers = [Vec::new(), Vec::new()];
                for who in [first, 1 - first] {
                    numbers[who] = self.pair[who].measure(*part, sizes, model, threads)?;
                }
                eprintln!("{name}, round {}, {}: {numbers:.1?}", round + 1, part.name());
                for (who, numbers) in numbers.into_iter().enumerate() {
                    lines.iter_mut().zip(numbers).for_each(|(line, one)| line[who].push(one));
                }
            }
        }
        let mut text = format!(
            "\n### {name}\n\n| | longrun | {} | ratios | median |\n|---|---|---|---|---|\n",
            self.pair[1].name()
        );
        let parts = self.parts.iter().zip(all);
        let lines = parts.flat_map(|(part, rounds)| part.lines(sizes).into_iter().zip(rounds));
        let lines = lines.map(|(line, [us, them])| {
            let pairs = us.iter().zip(&them);
            let ratio = |(us, them): (&f64, &f64)| if line.less { them / us } else { us / them };
            let ratios: Vec<f64> = pairs.map(ratio).collect();
            let each: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
            let (us, them, middle) = (median(&us), median(&them), median(&ratios));
            let figures = format!("{us:.*} | {them:.*}", line.digits, line.digits);
            let _ = writeln!(
                text,
                "| {} | {figures} | {} | **{middle:.2}** |",
                line.name,
                each.join(" ")
            );
            (line.name, ratios)
        });
        let lines = lines.collect();
        Ok(Table { name, lines, text })
    }

    /// The medians of all tables beside each other.
    fn summary(&self, tables: &[Table]) -> String {
        let names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        let mut text = format!(
            "Medians of the ratios; above 1 longrun is better than {}:\n\n| | {} |\n|---|{}\n",
            self.pair[1].name(),
            names.join(" | "),
            "---|".repeat(tables.len())
        );
        let lines = tables.first().map_or(0, |table| table.lines.len());
        for i in 0..lines {
            let medians = tables.iter().map(|table| format!("{:.2}", median(&table.lines[i].1)));
            let medians: Vec<String> = medians.collect();
            let _ = writeln!(text, "| {} | {} |", tables[0].lines[i].0, medians.join(" | "));
        }
        text
    }

    /// What was run, with FILE and T in place of a model and the number of threads.
    fn commands(&self) -> String {
        let mut text = "\nWhat was run:\n\n```text\n".to_owned();
        for part in self.parts {
            let _ = writeln!(text, "# {}", part.name());
            for engine in self.pair {
                let _ = writeln!(text, "{}", engine.shown(*part, &self.options.sizes));
            }
        }
        text + "```\n"
    }
}

/// The vector extensions that matter to engines.
fn features() -> String {
    let flags = field_of("/proc/cpuinfo", "flags");
    let known = ["avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8"];
    let has = |name: &&str| flags.split(' ').any(|flag| flag == *name);
    known.into_iter().filter(has).collect::<Vec<_>>().join(" ")
}

/// The middle one; 0 of none.
fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    match all.get(middle) {
        None => 0.0,
        Some(high) if all.len() % 2 == 1 => *high,
        Some(high) => f64::midpoint(all[middle - 1], *high),
    }
}

/// Prints a report; with `--write` puts it between the marks of its part of `docs/performance.md`, too.
fn finish(options: &Options, part: &str, report: &str) -> Result<()> {
    println!("{report}");
    if !options.write {
        return Ok(());
    }
    let marks = ["begin", "end"].map(|end| format!("<!-- {part}: {end} -->\n"));
    let path = root().join("docs/performance.md");
    let page = std::fs::read_to_string(&path).map_err(|e| format!("docs/performance.md: {e}"))?;
    let parts = page.split_once(&marks[0]).and_then(|(head, rest)| {
        let (_, tail) = rest.split_once(&marks[1])?;
        Some(format!("{head}{}\n{report}\n{}{tail}", marks[0], marks[1]))
    });
    let page = parts.ok_or_else(|| format!("docs/performance.md has lost its marks of {part}"))?;
    std::fs::write(&path, page).map_err(|e| format!("docs/performance.md: {e}"))
}
