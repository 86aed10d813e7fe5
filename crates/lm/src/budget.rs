//! One budget for everything on the device: what is left beside weights, arena and step blocks, divided among the caches.
//!
//! Owns the division. All of it is decided before the first request: what is allocated at the start is all there will be.

use crate::cache::{CacheSpec, Room};
use crate::error::{Error, Kind, Result};
use crate::executor::MOST_TOKENS;

/// How much memory everything on the device may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes.
    pub bytes: usize,
    /// A context that does not fit is made shorter; otherwise it is an error.
    pub shorten: bool,
}

/// Where the bytes of the device go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The model.
    pub weights: usize,
    /// Room for adapters that rows choose.
    pub adapters: usize,
    /// Temporaries, and inputs and outputs of steps.
    pub steps: usize,
    /// Records and windows of rows.
    pub rows: usize,
    /// What grows with texts, of rows and snapshots.
    pub tokens: usize,
    /// Records and windows of snapshots.
    pub snapshots: usize,
}

impl Parts {
    /// All of it.
    pub const fn total(&self) -> usize {
        self.weights + self.adapters + self.steps + self.rows + self.tokens + self.snapshots
    }

    /// The parts of caches that were made for `room`.
    pub(crate) fn of(spec: &CacheSpec, room: Room, weights: usize, steps: usize) -> Self {
        let snapshots = spec.bytes(room) - spec.bytes(Room { snapshots: 0, ..room });
        let rows = spec.fixed_bytes(room);
        let tokens = spec.bytes(room) - snapshots - rows;
        Self { weights, adapters: 0, steps, rows, tokens, snapshots }
    }
}

/// The most snapshots, where nobody says how many are of use.
const MOST_SNAPSHOTS: usize = 4096;

/// The room for `rows` rows, `context` and `chunk` as `room` has them, with as many tokens and snapshots as fit into
/// `memory` beside what is `taken`. Half of what rows leave goes to snapshots, if those take memory of their own,
/// up to as many as `room` has, if it has any.
///
/// # Errors
/// [`Kind::Limit`], with the numbers, if one text of the whole context does not fit.
pub fn divide(spec: &CacheSpec, room: Room, memory: Memory, taken: usize) -> Result<Room> {
    let left = memory.bytes.saturating_sub(taken);
    let limit = if room.snapshots == 0 { MOST_SNAPSHOTS } else { room.snapshots };
    let base = Room { tokens: 0, snapshots: 0, ..room };
    let room = if spec.bytes(base) <= left {
        base
    } else {
        let context = most(room.context, |context| spec.bytes(Room { context, ..base }) <= left);
        if context == 0 || !memory.shorten {
            return Err(too_small(spec, base, memory, taken, context));
        }
        Room { context, ..base }
    };
    let rest = left - spec.bytes(room);
    let each = spec.bytes(Room { snapshots: 1, ..room }) - spec.bytes(room);
    let grows = spec.bytes(Room { tokens: room.context * 2, ..room }) > spec.bytes(room);
    let share = if grows { rest / 2 } else { rest };
    let snapshots = share.checked_div(each).unwrap_or(limit).min(limit);
    let room = with_tokens(spec, Room { snapshots, ..room }, left);
    // What tokens have no use for is for more snapshots.
    let more = (left - spec.bytes(room)).checked_div(each).unwrap_or(0);
    let snapshots = (snapshots + more).min(limit);
    Ok(with_tokens(spec, Room { snapshots, ..room }, left))
}

/// The room with as many tokens as fit, up to what every row and snapshot can hold: more would be of no use.
fn with_tokens(spec: &CacheSpec, room: Room, left: usize) -> Room {
    let useful = room.context.saturating_mul(room.rows + room.snapshots).min(MOST_TOKENS);
    let tokens = most(useful, |tokens| spec.bytes(Room { tokens, ..room }) <= left);
    Room { tokens, ..room }
}

/// The largest number up to `limit` that `fits`; 0 if none does. What fits is smaller than what doesn't.
fn most(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

fn too_small(spec: &CacheSpec, base: Room, memory: Memory, taken: usize, fits: usize) -> Error {
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    let need = spec.bytes(base);
    let what = format!(
        "{} MiB of memory do not hold {} rows and one text of {} tokens: weights, adapters, steps take {} MiB, caches {}",
        memory.bytes >> 20,
        base.rows,
        base.context,
        mib(taken),
        mib(need)
    );
    let hint = match fits {
        0 => format!("give it {} MiB, or fewer rows", mib(taken + need)),
        fits => format!("give it {} MiB, or a context of {fits}", mib(taken + need)),
    };
    Error::new(Kind::Limit, what).hint(hint)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn specs() -> Vec<CacheSpec> {
        let paged = |windows: &[Option<usize>], record: usize| {
            let mut spec = CacheSpec::default();
            windows.iter().for_each(|w| _ = (spec.keys(2, 16, *w), spec.values(2, 16, *w)));
            if record > 0 {
                spec.record(record, 1);
            }
            spec
        };
        let mut entries = paged(&[Some(64)], 500);
        entries.entries(16, 4);
        vec![
            paged(&[None], 0),
            paged(&[None, Some(64)], 0),
            paged(&[None], 5000),
            paged(&[], 5000),
            entries,
        ]
    }

    proptest! {
        #[test]
        fn a_room_fits_and_one_more_of_anything_does_not(
            spec in 0usize..5, rows in 1usize..9, context in 32usize..2000, taken in 0usize..50_000,
            bytes in 0usize..30_000_000, shorten in prop::bool::ANY,
            limit in 0usize..40
        ) {
            let spec = &specs()[spec];
            let room = Room { rows, context, tokens: 0, chunk: 32, snapshots: limit, drafts: 0 };
            let memory = Memory { bytes, shorten };
            match divide(spec, room, memory, taken) {
                Ok(room) => {
                    prop_assert!(spec.bytes(room) + taken <= bytes);
                    prop_assert!(room.context == context || shorten);
                    prop_assert!(limit == 0 || room.snapshots <= limit);
                    prop_assert_eq!(Parts::of(spec, room, taken, 0).total(), spec.bytes(room) + taken);
                    let useful = room.context * (rows + room.snapshots);
                    let more = Room { tokens: room.tokens + 32, ..room };
                    prop_assert!(room.tokens >= useful || spec.bytes(more) + taken > bytes);
                }
                Err(error) => {
                    prop_assert_eq!(error.kind(), Kind::Limit);
                    let context = if shorten { 1 } else { context };
                    let least = Room { context, snapshots: 0, ..room };
                    prop_assert!(spec.bytes(least) + taken > bytes, "{error}");
                }
            }
        }
    }
}
