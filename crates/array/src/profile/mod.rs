//! What a step costs, from its plan alone; and where its time goes, as the device measures it.
//!
//! Owns what is counted and how: [`Cost`] says what each number means. Knows no kernel: two kernels of one operation cost
//! the same here, so a figure in these numbers says how near a kernel is to what the machine can do. Refuses to look at
//! numbers of tensors: where they decide what is read (routed experts, chosen keys), the most that it can be counts.

mod matrices;
mod node;
mod states;

use std::borrow::Cow;
use std::ops::AddAssign;
use std::time::Duration;

use crate::device::Device;
use crate::format::Format;
use crate::inputs::Ragged;
use crate::plan::Plan;

use node::Meter;

/// What an operation or a step moves and computes, by the definition of its operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights that are read, in the device's layout: each once a launch, of tables the rows that are looked up.
    pub weight_bytes: u64,
    /// Bytes of states that are read and written: of paged ones what the tokens of a row see, once a row, and what they
    /// write; a record once in and once out.
    pub state_bytes: u64,
    /// Bytes of tensors that are read and made, scratch aside: they lie in the caches where those are large enough.
    pub arena_bytes: u64,
    /// Products of integers of 8 bits, each added to a sum.
    pub ops: u64,
    /// f32 operations: a multiply-add is two, a function of one number is one. What is done once for a group of numbers,
    /// or by a kernel on its way (scales of blocks, rounding to 8 bits), does not count.
    pub flops: u64,
}

impl Cost {
    /// Bytes that come from memory or go there: weights and states.
    pub const fn memory_bytes(&self) -> u64 {
        self.weight_bytes + self.state_bytes
    }

    /// Operations of both kinds; a multiply-add of integers is two, as one of f32.
    pub const fn operations(&self) -> u64 {
        2 * self.ops + self.flops
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.weight_bytes += other.weight_bytes;
        self.state_bytes += other.state_bytes;
        self.arena_bytes += other.arena_bytes;
        self.ops += other.ops;
        self.flops += other.flops;
    }
}

/// A row of a step as far as costs depend on it; see [`RowInput`](crate::RowInput).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRow {
    /// Tokens that it reads.
    pub tokens: usize,
    /// Tokens before these.
    pub past: usize,
    /// Of those before, how many are in its log.
    pub logged: usize,
    /// Of the logged tokens and these, how many are put into records.
    pub confirmed: usize,
    /// How many of its tokens have a result.
    pub results: usize,
    /// Its slot of low-rank matrices, 0 for none.
    pub adapter: usize,
}

impl LiveRow {
    /// A row without drafts and adapter.
    pub const fn reading(tokens: usize, past: usize, results: usize) -> Self {
        Self { tokens, past, logged: 0, confirmed: tokens, results, adapter: 0 }
    }

    /// The rows of a step.
    pub fn of(b: &Ragged<'_>) -> Vec<Self> {
        let row = |row: usize| {
            let of = |field: &[u32]| field[row] as usize;
            let mine = |token: &&u32| b.token_row[**token as usize] as usize == row;
            Self {
                tokens: of(b.row_count),
                past: of(b.row_past),
                logged: of(b.row_logged),
                confirmed: of(b.row_confirmed),
                results: b.out_token.iter().filter(mine).count(),
                adapter: of(b.row_adapter),
            }
        };
        (0..b.rows).map(row).collect()
    }
}

/// A step in numbers that no noise moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCost {
    /// Operations that the device launches.
    pub launches: usize,
    /// Bytes of temporaries that the plan needs.
    pub arena_len: usize,
    /// What the launches move and compute.
    pub cost: Cost,
}

impl Plan {
    /// What node `node` costs for `rows`, on a device that keeps matrices as `device` does.
    ///
    /// # Panics
    /// There is no such node.
    pub fn node_cost(&self, device: &dyn Device, node: usize, rows: &[LiveRow]) -> Cost {
        Meter::new(self, device, rows).node(node)
    }

    /// What a step of `rows` costs.
    pub fn cost(&self, device: &dyn Device, rows: &[LiveRow]) -> StepCost {
        let meter = Meter::new(self, device, rows);
        let mut cost = Cost::default();
        (0..self.nodes.len()).for_each(|node| cost += meter.node(node));
        StepCost { launches: self.launches(), arena_len: self.arena_len * 4, cost }
    }
}

/// What a machine can do at most, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes a second that go through its memory: that are read, or that a copy reads and writes.
    pub read: f64,
    /// Arithmetic, where it was measured.
    pub arithmetic: Option<Arithmetic>,
}

/// How much a machine computes at most, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// Multiply-adds of 8-bit integers a second.
    pub ops: f64,
    /// f32 operations a second, a multiply-add as two.
    pub flops: f64,
}

impl Peaks {
    /// How much of the bandwidth is used where this takes so many seconds; above 1 where it comes from caches.
    pub fn bandwidth_fraction(&self, cost: &Cost, seconds: f64) -> f64 {
        fraction(cost.memory_bytes() as f64 / self.read, seconds)
    }

    /// How much of the arithmetic: the seconds that the operations would take at their peaks, over those that they took;
    /// `None` where those peaks are not known.
    pub fn arithmetic_fraction(&self, cost: &Cost, seconds: f64) -> Option<f64> {
        let peak = self.arithmetic?;
        Some(fraction(cost.ops as f64 / peak.ops + cost.flops as f64 / peak.flops, seconds))
    }
}

fn fraction(least: f64, seconds: f64) -> f64 {
    if seconds > 0.0 && least.is_finite() { least / seconds } else { 0.0 }
}

/// What a profile tells apart: operations, and where there is a matrix its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// [`Op::name`](crate::Op::name).
    pub op: &'static str,
    /// The format of the matrix.
    pub format: Option<Format>,
}

impl Kind {
    /// `linear q4_1`, `attention`
    pub fn name(&self) -> Cow<'static, str> {
        match self.format {
            None => self.op.into(),
            Some(format) => format!("{} {}", self.op, format.name()).into(),
        }
    }
}

/// All launches of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What was launched.
    pub kind: Kind,
    /// How often.
    pub launches: u64,
    /// How long that took; nothing on a device that measures nothing.
    pub time: Duration,
    /// What was moved and computed.
    pub cost: Cost,
}

/// Where the time of steps went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Steps.
    pub steps: u64,
    /// From each launch to the end of the wait for it.
    pub time: Duration,
    /// By kind, in the order in which they came first.
    pub parts: Vec<Part>,
}

impl Profile {
    /// What no launch took: checks, handing over inputs and results. With the parts it adds up to the whole.
    pub fn between(&self) -> Duration {
        self.time.saturating_sub(self.parts.iter().map(|part| part.time).sum())
    }

    /// What was moved and computed in all.
    pub fn cost(&self) -> Cost {
        let mut cost = Cost::default();
        self.parts.iter().for_each(|part| cost += part.cost);
        cost
    }

    fn add(&mut self, one: Part) {
        match self.parts.iter_mut().find(|part| part.kind == one.kind) {
            None => self.parts.push(one),
            Some(part) => {
                part.launches += one.launches;
                part.time += one.time;
                part.cost += one.cost;
            }
        }
    }

    /// Adds a step that took `took`. `times` are those of the nodes, if the device has any.
    pub(crate) fn step(
        &mut self,
        plan: &Plan,
        (device, times): (&dyn Device, Option<&[Duration]>),
        rows: &[LiveRow],
        took: Duration,
    ) {
        let meter = Meter::new(plan, device, rows);
        for node in (0..plan.nodes.len()).filter(|node| plan.is_launched(*node)) {
            let time = times.and_then(|times| times.get(node).copied()).unwrap_or_default();
            let (kind, cost) = (meter.kind(node), meter.node(node));
            self.add(Part { kind, launches: 1, time, cost });
        }
        self.steps += 1;
        self.time += took;
    }
}
