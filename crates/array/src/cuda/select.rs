//! The best entries by an indexer's scores: ranks into scratch, then a choice by their digits.
//!
//! Owns the room for ranks, which bounds how many tokens choose at once.

use super::recorder::Recorder;
use super::sources::Family;
use crate::inputs::BLOCK;
use crate::op::Op;
use crate::plan::Plan;
use crate::state::StateRef;

/// Threads of a block that ranks, of one that chooses.
const THREADS: (u32, u32) = (128, 512);

/// The most blocks that rank for one token.
const MOST_BLOCKS: usize = 64;

/// The most bytes of ranks, unless those of one token are more.
const MOST_RANKS: usize = 64 << 20;

/// Entries that a table leads to, and tokens that choose at once.
fn room(plan: &Plan, keys: StateRef, tokens: usize) -> (usize, usize) {
    let entries = (plan.layout.widths[keys.table] * BLOCK).max(1);
    (entries, (MOST_RANKS / (4 * entries)).clamp(1, tokens.max(1)))
}

/// Bytes of scratch of a node, for `rows` tokens at most.
pub(super) fn scratch_bytes(plan: &Plan, node: usize, rows: usize) -> usize {
    let Op::Select { keys, .. } = plan.nodes[node].op else { return 0 };
    let (entries, tokens) = room(plan, keys, rows);
    4 * entries * tokens
}

/// Records an [`Op::Select`].
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    let Op::Select { q, weights, keys: state, k, scale, .. } = op else {
        return Err(format!("{} is of another family", op.name()));
    };
    let (step, q, weights, keys) = (r.step()?, r.get(q)?, r.get(weights)?, r.state(state)?);
    let (out, (ranks, bytes)) = (r.out()?, r.scratch()?);
    let all = r.room(&out) as usize;
    let (entries, tokens) = room(r.plan, state, all);
    if bytes < 4 * entries * tokens {
        return Err(format!("{bytes} bytes of scratch are too few"));
    }
    let blocks = entries.div_ceil(THREADS.0 as usize).min(MOST_BLOCKS) as u32;
    for first in (0..all).step_by(tokens) {
        let count = tokens.min(all - first) as u32;
        let (first, entries) = (first as u32, entries as u32);
        let grid = [blocks, count, 1];
        let launch = r.launch((Family::Select, "select_rank"), grid, [THREADS.0, 1, 1]);
        launch.arg(step).arg(q).arg(weights).arg(keys).arg(scale);
        launch.arg(first).arg(entries).arg(k as u32).arg(ranks);
        let launch = r.launch((Family::Select, "select_best"), [count, 1, 1], [THREADS.1, 1, 1]);
        launch.arg(step).arg(keys).arg(first).arg(entries).arg(ranks).arg(out);
    }
    Ok(())
}
