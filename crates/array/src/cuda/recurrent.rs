//! What carries a record from token to token: convolutions and decays; and what all such operations share: how columns
//! of heads are spread over blocks, and logs.
//!
//! A thread has a channel of a slice of a row's tokens. Only the first slice of a row touches its record and its log.

use super::arguments::{MapCode, Mat};
use super::recorder::{Launch, Recorder, WARP};
use super::sources::Family;
use crate::op::{DecayCurve, Op, SUM_BLOCK};
use crate::state::{StateKind, StateRef};

/// Threads of a block.
const BLOCK: u32 = 128;

/// Tokens of a row from which on it is worth a slice of its own: `SLICE` in `recurrent.cu`.
const SLICE: u32 = 32;

/// Columns of a head's record that a warp has: `COLUMNS` in `recurrent.cuh`.
const COLUMNS: u32 = 16;

/// The most warps of a block that has columns, each with many registers.
const MOST_WARPS: u32 = 4;

/// Tokens that are on their way into shared memory while as many others are worked on; no more than a warp has lanes.
const MOST_AHEAD: u32 = 8;

/// Bytes of shared memory that a kernel may have without asking.
const SHARED: u32 = 48 << 10;

/// Records an operation of this family.
pub(super) fn record(r: &mut Recorder<'_>, op: Op) -> Result<(), String> {
    let out = r.out()?;
    match op {
        Op::Conv { x, taps, bias, state, f } => {
            let (x, taps, bias) = (r.get(x)?, r.vector(taps)?, r.maybe(bias)?);
            let state = r.state(state)?;
            let launch = by_channel(r, "conv", &x, SLICE)?.arg(x).arg(taps).arg(bias);
            launch.arg(MapCode::from(f)).arg(state).arg(out);
        }
        Op::Decay { x, neg_a, bias, state, f } => {
            let (x, neg_a, bias) = (r.get(x)?, r.vector(neg_a)?, r.vector(bias)?);
            let state = r.state(state)?;
            let (kind, low) = match f {
                DecayCurve::Softplus => (0_u32, 0.0_f32),
                DecayCurve::Bounded { low } => (1, low),
            };
            let launch = by_channel(r, "decay", &x, SUM_BLOCK as u32)?.arg(x).arg(neg_a).arg(bias);
            launch.arg(kind).arg(low).arg(state).arg(out);
        }
        other => return Err(format!("{} is of another family", other.name())),
    }
    Ok(())
}

/// Launches a kernel with a thread for each channel of `x`, for each row, for each slice of `tokens` of its tokens or
/// more: as many slices as the processors have threads for.
fn by_channel<'r>(
    r: &'r mut Recorder<'_>,
    name: &'static str,
    x: &Mat,
    tokens: u32,
) -> Result<&'r mut Launch, String> {
    let (step, rows, room) = (r.step()?, r.plan.layout.rows as u32, r.room(x));
    let block = BLOCK.min(x.cols.next_multiple_of(WARP));
    let blocks = x.cols.div_ceil(block);
    let slices = room.div_ceil(tokens).min((4 * r.processors / blocks).max(1));
    let launch = r.launch((Family::Recurrent, name), [blocks, rows, slices], [block, 1, 1]);
    launch.arg(step);
    Ok(launch)
}

/// How records of `heads` matrices of `cols` columns each are spread over blocks.
pub(super) struct Spread {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    /// Tokens in each half of shared memory.
    pub(super) chunk: u32,
    /// Bytes of shared memory.
    pub(super) shared: u32,
}

impl Spread {
    /// A block has as few warps as leave no processor idle. A token has `numbers` in shared memory beside one for each
    /// column of a block.
    pub(super) fn new(r: &Recorder<'_>, heads: usize, cols: usize, numbers: u32) -> Self {
        let (rows, tokens) = (r.plan.layout.rows as u32, r.plan.layout.tokens as u32);
        let (heads, tiles) = (heads as u32, (cols as u32).div_ceil(COLUMNS));
        let enough = rows * heads * tiles / (2 * r.processors.max(1));
        let warps = enough.min(tiles).clamp(1, MOST_WARPS);
        let token = 4 * (numbers + warps * COLUMNS);
        let chunk = tokens.div_ceil(rows.max(1)).min(SHARED / (2 * token)).clamp(1, MOST_AHEAD);
        Self {
            grid: [tiles.div_ceil(warps), heads, rows],
            block: [warps * WARP, 1, 1],
            chunk,
            shared: 2 * chunk * token,
        }
    }

    /// Launches a kernel with its first argument.
    pub(super) fn launch<'r>(
        &self,
        r: &'r mut Recorder<'_>,
        (family, kernel): (Family, &'static str),
    ) -> Result<&'r mut Launch, String> {
        let step = r.step()?;
        let launch = r.launch((family, kernel), self.grid, self.block);
        launch.shared = self.shared;
        launch.arg(step);
        Ok(launch)
    }
}

/// The first of `kernels` for matrices of `rows` rows, with the most that it takes.
pub(super) fn kernel_for(
    rows: usize,
    kernels: [(u32, &'static str); 4],
) -> Result<(u32, &'static str), String> {
    let found = kernels.into_iter().find(|(most, _)| rows <= *most as usize);
    found.ok_or_else(|| {
        let most = kernels[3].0;
        format!(
            "a record has {rows} rows a head, the CUDA device takes {most}; use the device `cpu`"
        )
    })
}

/// Puts what unconfirmed tokens bring into the logs of their rows, `inputs` side by side. Comes last in an operation, and
/// has a launch of its own: the log of a row is read by many blocks.
pub(super) fn log<const N: usize>(
    r: &mut Recorder<'_>,
    inputs: [Mat; N],
    state: StateRef,
) -> Result<(), String> {
    let depth = match state.kind {
        StateKind::Slots { log, .. } => log.depth as u32,
        StateKind::Keys { .. } | StateKind::Values { .. } | StateKind::Carry { .. } => 0,
    };
    if depth == 0 {
        return Ok(());
    }
    let (step, state, rows) = (r.step()?, r.state(state)?, r.plan.layout.rows as u32);
    let grid = [state.inputs.div_ceil(BLOCK), depth, rows];
    let launch = r.launch((Family::Recurrent, "log_inputs"), grid, [BLOCK, 1, 1]).arg(step);
    for i in 0..4 {
        launch.arg(inputs.get(i).copied().unwrap_or(Mat::NONE));
    }
    launch.arg(state);
    Ok(())
}
