//! Attention: what all tokens see, cut into equal stretches, one a block of threads, and the parts put together.
//!
//! Owns how heads and columns are cut into pieces, and the room for parts of results. How long a stretch is, kernels find
//! out from the positions of a step.

use super::arguments::{Mat, State, Vector, arguments};
use super::recorder::Recorder;
use super::sources::Family;
use crate::op::{Op, Values};
use crate::plan::Plan;
use crate::state::{StateKind, StateRef};

/// Threads of a block: `THREADS` in `attention.cu`.
const THREADS: u32 = 128;

/// Blocks of a processor, and of all at most.
const BLOCKS: (u32, u32) = (4, 640);

/// The most query heads and columns of values of a piece.
const MOST: (usize, usize) = (8, 1024);

/// The most bytes of the queries of a piece, which are in shared memory.
const QUERIES: usize = 32 << 10;

/// How heads and columns of values are cut into pieces.
#[derive(Clone, Copy)]
struct Cut {
    /// Numbers of a key, of a value.
    dim: usize,
    values_dim: usize,
    /// Query heads of a key head; room for them in a piece; pieces of a key head.
    per_key: usize,
    together: usize,
    chunks: usize,
    /// Columns of a piece; pieces of the columns.
    columns: usize,
    slices: usize,
    key_heads: usize,
}

impl Cut {
    fn new(keys: StateRef, values: Values, heads: usize) -> Result<Self, String> {
        let StateKind::Keys { heads: key_heads, dim } = keys.kind else {
            return Err(format!("wants keys, has {:?}", keys.kind));
        };
        let values_dim = match values {
            Values::Of(StateRef { kind: StateKind::Values { dim, .. }, .. })
            | Values::Keys { dim } => dim,
            Values::Of(other) => return Err(format!("wants values, has {:?}", other.kind)),
        };
        let per_key = heads / key_heads;
        let mut together = per_key.next_power_of_two().min(MOST.0);
        while together > 1 && together * dim * 4 > QUERIES {
            together /= 2;
        }
        if together * dim * 4 > QUERIES {
            return Err(format!("keys of {dim} numbers, the CUDA device has room for 8,192"));
        }
        let columns = values_dim.min(MOST.1);
        let (chunks, slices) = (per_key.div_ceil(together), values_dim.div_ceil(columns));
        Ok(Self { dim, values_dim, per_key, together, chunks, columns, slices, key_heads })
    }

    fn pieces(&self) -> usize {
        self.key_heads * self.chunks * self.slices
    }

    /// Numbers of scratch for parts, for what is known of each, and for the tiles of so many tokens.
    fn scratch(&self, tokens: usize) -> [usize; 3] {
        let parts = 2 * BLOCKS.1 as usize * self.together;
        [parts * self.columns, 2 * parts, tokens + 2]
    }
}

arguments! {
    /// One attention.
    Attention = "Attention" {
        states: [State; 3],
        mats: [Mat; 3],
        sinks: Vector,
        scratch: [u64; 3],
        values_dim: u32,
        columns: u32,
        every: u32,
        per_key: u32,
        together: u32,
        chunks: u32,
        slices: u32,
        window: u32,
        scale: f32,
        softcap: f32,
    }
}

/// Bytes of scratch of a node, for `rows` tokens at most.
pub(super) fn scratch_bytes(plan: &Plan, node: usize, rows: usize) -> usize {
    let Op::Attention { keys, values, heads, .. } = plan.nodes[node].op else { return 0 };
    // What is wrong is said when it is recorded.
    Cut::new(keys, values, heads).map_or(0, |cut| 4 * cut.scratch(rows).iter().sum::<usize>())
}

/// Records an [`Op::Attention`].
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    let Op::Attention { keys, values, heads, .. } = op else {
        return Err(format!("{} is of another family", op.name()));
    };
    let cut = Cut::new(keys, values, heads)?;
    let (step, a) = (r.step()?, argument(r, op, cut)?);
    let tokens = r.room(&a.mats[2]);
    let name = match cut.together {
        1 => "attention_1",
        2 => "attention_2",
        4 => "attention_4",
        _ => "attention_8",
    };
    let (blocks, block) = ((BLOCKS.0 * r.processors).clamp(1, BLOCKS.1), [THREADS, 1, 1]);
    let launch = r.launch((Family::Attention, name), [blocks, 1, 1], block);
    // The queries, and the tiles before each token.
    launch.shared = 4 * (cut.together * cut.dim) as u32 + 4 * (tokens + 1);
    launch.arg(step).arg(a);
    let grid = [cut.pieces() as u32, tokens, 1];
    r.launch((Family::Attention, "attention_merge"), grid, block).arg(step).arg(a);
    Ok(())
}

fn argument(r: &Recorder<'_>, op: Op, cut: Cut) -> Result<Attention, String> {
    let Op::Attention { q, keys, values, scale, window, softcap, sinks, entries, chosen, .. } = op
    else {
        return Err(format!("{} is of another family", op.name()));
    };
    let own = match values {
        Values::Of(values) => Some(values),
        Values::Keys { .. } => None,
    };
    let state = |s: Option<StateRef>| s.map_or(Ok(State::NONE), |s| r.state(s));
    let (q, out) = (r.get(q)?, r.out()?);
    let list = chosen.map_or(Ok(Mat::NONE), |chosen| r.get(chosen.list))?;
    let (parts, bytes) = r.scratch()?;
    let numbers = cut.scratch(r.room(&out) as usize);
    if bytes < 4 * numbers.iter().sum::<usize>() {
        return Err(format!("{bytes} bytes of scratch are too few"));
    }
    let sums = parts + 4 * numbers[0] as u64;
    let Cut { values_dim, columns, per_key, together, chunks, slices, .. } = cut;
    let [values_dim, columns, per_key, together, chunks, slices] =
        [values_dim, columns, per_key, together, chunks, slices].map(|n| n as u32);
    let every = chosen.map(|c| c.every).or(entries.map(|e| e.every)).unwrap_or(1);
    let window = window.map_or(0, |w| u32::try_from(w).unwrap_or(u32::MAX));
    Ok(Attention {
        states: [r.state(keys)?, state(own)?, state(entries)?],
        mats: [q, list, out],
        sinks: r.maybe(sinks)?,
        scratch: [parts, sums, sums + 4 * numbers[1] as u64],
        values_dim,
        columns,
        every: every as u32,
        per_key,
        together,
        chunks,
        slices,
        window,
        scale,
        softcap: softcap.unwrap_or(0.0),
    })
}
