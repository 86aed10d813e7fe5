//! What this machine can do at most with the threads of a device: reading memory, and products in the first cache.
//!
//! Owns the clock and the memory that is streamed. What disturbs a run makes it slower, never faster: many short runs are
//! made, and the fast ones count. The memory is given back when this returns, and the ledger does not see it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::lanes::{Isa, per_isa};
use super::memory::Slabs;
use super::pool::Pool;
use crate::matmul::peak::{float_operations, integer_products};
use crate::profile::{Arithmetic, Peaks};

/// How long runs of one kind are made.
const SPAN: Duration = Duration::from_millis(80);
/// How long a unit of arithmetic is at least: enough to make waking a thread small beside a run.
const RUN: Duration = Duration::from_micros(60);
/// Pieces of work for each thread in a run.
const UNITS: usize = 8;
/// Bytes that a run reads, all threads together.
const PIECE: usize = 8 << 20;
/// Numbers of a unit of those.
const UNIT: usize = 16 << 10;
/// Bytes that are streamed at least and at most. Fresh memory is slow to get: where the last cache is as large as the
/// most, it is a part of what is measured.
const STREAMED: (usize, usize) = (64 << 20, 256 << 20);
/// The size of the last cache where the system does not tell.
const CACHE: usize = 32 << 20;

/// Measures all peaks.
pub(super) fn measure(pool: &Pool, isa: Isa) -> Peaks {
    let arithmetic = Arithmetic {
        ops: arithmetic(pool, |rounds| integer_products(isa, rounds)),
        flops: arithmetic(pool, |rounds| float_operations(isa, rounds)),
    };
    Peaks { read: read(pool, isa), arithmetic: Some(arithmetic) }
}

/// What `work`, which says how much it does in so many rounds, does a second on all threads: in the fastest run.
fn arithmetic(pool: &Pool, work: impl Fn(usize) -> u64 + Sync) -> f64 {
    let took = |rounds| {
        let began = Instant::now();
        (work(rounds), began.elapsed())
    };
    let mut rounds = 64;
    while took(rounds).1 < RUN {
        rounds *= 2;
    }
    // Several units for each thread, so that none is idle for long where another came late.
    let units = pool.threads() * UNITS;
    let seconds = runs(|_| {
        pool.run(units, true, &|_, units| units.for_each(|_| _ = black_box(work(rounds))));
    });
    let fastest = seconds.first().copied().unwrap_or(f64::INFINITY);
    took(rounds).0 as f64 * units as f64 / fastest
}

/// Seconds of all runs that fit into the span, one at least; the fastest first.
fn runs(mut run: impl FnMut(usize)) -> Vec<f64> {
    let (start, mut seconds) = (Instant::now(), Vec::new());
    while seconds.is_empty() || start.elapsed() < SPAN {
        let began = Instant::now();
        run(seconds.len());
        seconds.push(began.elapsed().as_secs_f64().max(1e-9));
    }
    seconds.sort_by(f64::total_cmp);
    seconds
}

/// Bytes a second that all threads read, piece by piece of memory that is larger than the last cache: of the fastest
/// fifth of the runs the slowest, since a few pieces may have stayed in a cache.
fn read(pool: &Pool, isa: Isa) -> f64 {
    let bytes = (2 * last_cache()).clamp(STREAMED.0, STREAMED.1);
    let Some(memory) = Slabs::default().allocate(bytes) else { return 0.0 };
    let pieces = memory.numbers().chunks_exact(PIECE / 4).collect::<Vec<_>>();
    let seconds = runs(|i| {
        let piece = pieces[i % pieces.len()];
        let units = piece.len() / UNIT;
        pool.run(units, true, &|_, units| {
            black_box(sum(isa, &piece[units.start * UNIT..units.end * UNIT]));
        });
    });
    PIECE as f64 / seconds[seconds.len() / 5]
}

per_isa! {
    fn sum(numbers: &[f32]) -> u32 {
        let mut sums = [0u32; 64];
        for numbers in numbers.as_chunks::<64>().0 {
            sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum = sum.wrapping_add(x.to_bits()));
        }
        sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
    }
}

/// Bytes of the largest cache of the first processor.
fn last_cache() -> usize {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        let (number, shift) = match text.trim() {
            text if text.ends_with('K') => (text.trim_end_matches('K'), 10),
            text if text.ends_with('M') => (text.trim_end_matches('M'), 20),
            text => (text, 0),
        };
        number.parse::<usize>().ok()?.checked_mul(1 << shift)
    };
    (0..5).filter_map(size).max().unwrap_or(CACHE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_has_peaks() {
        let pool = Pool::new(2);
        for isa in Isa::available() {
            let peaks = measure(&pool, isa);
            let Arithmetic { ops, flops } = peaks.arithmetic.unwrap();
            assert!(peaks.read > 1e7 && ops > 1e7 && flops > 1e7, "{peaks:?}");
        }
    }
}
