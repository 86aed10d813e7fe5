//! Where the time of a phase's steps goes: the launches by operation, what lies between them, and the engine around them.
//!
//! Owns the table. Its lines add up to the step as the engine's caller sees it; counts are of one step in the middle.

use std::fmt::Write as _;

use longrun_lm::array::Cost;
use serde::Serialize;

use super::{Bench, Used, Work};

/// A phase; all but `steps` is of one step, on average.
#[derive(Debug, Serialize)]
pub(super) struct Phase {
    phase: String,
    steps: u64,
    step_seconds: f64,
    #[serde(flatten)]
    used: Used,
    parts: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    /// An operation with the format of its matrix; or `between`, the runtime's part, or `engine`, all around the model.
    name: String,
    launches: f64,
    seconds: f64,
    /// Of the step.
    fraction: f64,
    weight_bytes: f64,
    state_bytes: f64,
    arena_bytes: f64,
    /// Of 8-bit integers and of f32, a multiply-add as two.
    operations: f64,
    #[serde(flatten)]
    used: Used,
}

/// What the engine's profile says of the steps since the last [`Bench::begin`].
pub(super) fn phase(bench: &Bench, phase: String) -> Phase {
    let profile = bench.engine.profiled().cloned().unwrap_or_default();
    let n = profile.steps.max(1) as f64;
    let all = bench.work.seconds;
    let line = |name: String, launches: u64, seconds: f64, cost: Cost| {
        let work = Work { seconds, cost, ..Work::default() };
        Line {
            name,
            launches: launches as f64 / n,
            seconds: seconds / n,
            fraction: if all > 0.0 { seconds / all } else { 0.0 },
            weight_bytes: cost.weight_bytes as f64 / n,
            state_bytes: cost.state_bytes as f64 / n,
            arena_bytes: cost.arena_bytes as f64 / n,
            operations: cost.operations() as f64 / n,
            used: Used::of(bench.peaks, &[work]),
        }
    };
    let parts = profile.parts.iter();
    let mut parts: Vec<Line> = parts
        .map(|p| line(p.kind.name().into_owned(), p.launches, p.time.as_secs_f64(), p.cost))
        .collect();
    parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let (between, inside) = (profile.between().as_secs_f64(), profile.time.as_secs_f64());
    parts.push(line("between".into(), 0, between, Cost::default()));
    parts.push(line("engine".into(), 0, (all - inside).max(0.0), Cost::default()));
    let used = Used::of(bench.peaks, &[bench.work]);
    Phase { phase, steps: profile.steps, step_seconds: all / n, used, parts }
}

impl Phase {
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "\nprofile  {}: {} steps\n\n{:24} launches        ms      %    GB/s memory    Gop/s  arith  arena GB/s\n",
            self.phase, self.steps, ""
        );
        let mut sum = 0.0;
        for line in &self.parts {
            sum += line.seconds;
            let giga = |n: f64| if line.seconds > 0.0 { n / line.seconds * 1e-9 } else { 0.0 };
            let [memory, arith] = [line.used.bandwidth_fraction, line.used.arithmetic_fraction]
                .map(|part| part.map_or(String::from("-"), |part| format!("{:.1}", part * 100.0)));
            let _ = writeln!(
                text,
                "{:24} {:8.1} {:9.4} {:6.1} {:7.2} {memory:>6} {:8.2} {arith:>6} {:11.2}",
                line.name,
                line.launches,
                line.seconds * 1e3,
                line.fraction * 100.0,
                giga(line.weight_bytes + line.state_bytes),
                giga(line.operations),
                giga(line.arena_bytes),
            );
        }
        let launches: f64 = self.parts.iter().map(|line| line.launches).sum();
        let _ = writeln!(text, "{:24} {launches:8.1} {:9.4}  100.0", "step", sum * 1e3);
        text
    }
}
