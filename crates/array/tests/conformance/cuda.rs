//! Every case on a CUDA device against the definitions, where there is a device.
//!
//! All cases are tried before one fails, and what each has come to is printed: time on such a machine is short.

use longrun_array::CudaDryRun;

use crate::common::{self, definition};
use crate::{TABLE, distance, run, run_on_cpu, stored_types};

/// What the device may be off by where the CPU's kernels have the bits of the definition, because they do the same
/// operations in the same order: a multiply-add may be fused, a sum may go another way.
const ROUNDING: f32 = 2e-6;

/// Operations that only move numbers: not a bit may differ.
const EXACT: [&str; 8] =
    ["Embed", "Carried", "Columns", "Concat", "TakeOutputs", "WriteKv", "Carry", "Emit"];

#[test]
fn the_cuda_device_agrees_with_the_definitions() {
    // Held to the end: a context that nobody holds is taken down, and making one takes long.
    let Some(_held) = common::cuda() else { return };
    let only = std::env::var("LONGRUN_OP").ok();
    let mut wrong = Vec::new();
    for (name, case, tolerance) in TABLE {
        let is_wanted = only.as_ref().is_none_or(|only| only.split(',').any(|only| only == *name));
        if !is_wanted {
            continue;
        }
        let tolerance = if EXACT.contains(name) { 0.0 } else { tolerance.max(ROUNDING) };
        for stored in stored_types(name) {
            let mut worst = 0.0_f32;
            let tried = (1..=3).try_for_each(|seed| {
                let of = (seed, *stored);
                let want = run_on_cpu(*case, of, definition()).numbers;
                // One step at a time, and two in flight.
                for flight in [1, 2] {
                    let device = common::cuda().ok_or("the device is gone")?;
                    let got = run(*case, of, device, flight).map_err(|e| e.to_string())?.numbers;
                    let off = distance(&got, &want, tolerance);
                    worst = worst.max(off.map_err(|what| format!("seed {seed}: {what}"))?);
                }
                Ok::<(), String>(())
            });
            let line = match &tried {
                Ok(()) => format!("{name} {stored:?}: within {worst:e}"),
                Err(what) => format!("{name} {stored:?}: WRONG: {what}"),
            };
            println!("{line}");
            wrong.extend(tried.err().map(|_| line));
        }
    }
    assert!(wrong.is_empty(), "{} of all cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_launch_fits_its_kernel() {
    for (name, case, _) in TABLE {
        for of in stored_types(name).iter().flat_map(|stored| (1..=3).map(move |n| (n, *stored))) {
            let recorded = run(*case, of, Box::new(CudaDryRun::new()), 1);
            assert!(recorded.is_ok(), "{name}: {:?}", recorded.err());
        }
    }
}
