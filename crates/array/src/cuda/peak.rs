//! What a device's memory can do at most: bytes a second of a copy from one half of a buffer to the other.
//!
//! Owns the buffer, which the ledger does not see: it is given back when this returns. What disturbs a run makes it
//! slower, never faster: the fastest of some runs counts.

use super::driver::{Event, Memory, Stream};

/// Bytes of each half, the most first: far more than a cache holds, where there is so much memory.
const HALVES: [usize; 2] = [1 << 30, 256 << 20];
/// Runs: the first ones wake the device.
const RUNS: usize = 10;

/// Bytes a second that a copy reads and writes; `None` without memory for it.
pub(super) fn copied(stream: &Stream) -> Result<Option<f64>, String> {
    let fits = |half: usize| Some((half, Memory::new(stream, 2 * half)?));
    let Some((half, memory)) = HALVES.into_iter().find_map(fits) else { return Ok(None) };
    let (began, ended) = (Event::new(true)?, Event::new(true)?);
    let mut fastest = f64::INFINITY;
    for _ in 0..RUNS {
        began.record(stream)?;
        memory.copy(stream, 0, half, half)?;
        ended.record(stream)?;
        ended.wait()?;
        fastest = fastest.min(ended.since(&began)?);
    }
    Ok(Some(2.0 * half as f64 / fastest.max(1e-9)))
}
