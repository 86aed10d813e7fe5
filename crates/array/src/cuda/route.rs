//! Which experts serve a token: a block of threads has a row of logits.

use super::recorder::{Recorder, WARP};
use super::sources::Family;
use crate::op::{Id, Score, Scoring};
use crate::weight::WeightRef;

/// The most threads of a block.
const BLOCK: u32 = 1024;

/// Records the choice of experts; `vectors` are bias, table and gain.
pub(super) fn record(
    r: &mut Recorder<'_>,
    logits: Id,
    scoring: Scoring,
    vectors: [Option<WeightRef>; 3],
) -> Result<(), String> {
    let (step, x, out) = (r.step()?, r.get(logits)?, r.out()?);
    let [bias, table, gain] = vectors.map(|w| r.maybe(w));
    let kind = match scoring.score {
        Score::Softmax => 0_u32,
        Score::Sigmoid => 1,
        Score::SqrtSoftplus => 2,
    };
    let (groups, keep) = scoring.groups.map_or((0, 0), |g| (g.count as u32, g.keep as u32));
    let (experts, k) = (x.cols, out.cols / 2);
    let of_groups = if groups > 0 { experts + 2 * groups } else { 0 };
    let words = of_groups + 2 * k + 2 * experts.div_ceil(WARP) * k.min(WARP);
    let grid = [r.room(&out), 1, 1];
    let block = [experts.next_multiple_of(WARP).min(BLOCK), 1, 1];
    let launch = r.launch((Family::Route, "route"), grid, block);
    launch.shared = 4 * words;
    launch.arg(step).arg(x).arg(bias?).arg(table?).arg(gain?).arg(kind).arg(groups).arg(keep);
    launch.arg(u32::from(scoring.renormalize)).arg(scoring.scale).arg(out);
    Ok(())
}
