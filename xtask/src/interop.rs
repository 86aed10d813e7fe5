//! Files in both directions between this engine and mlx-lm: each computes what the other has written.
//!
//! Owns the environment: a virtual environment below `.cache` with pinned packages. The comparison itself is
//! `testdata/interop/interop.py`.

use std::process::Command;

use crate::shell::{Result, cargo, python, root, run, target};

/// What the table in the documentation was made with.
const PACKAGES: [&str; 4] =
    ["mlx[cpu]==0.32.4", "mlx-lm==0.32.2", "safetensors==0.8.0", "numpy>=2,<3"];

/// Converts every golden model both ways, or those named, and prints a table.
pub(crate) fn interop(families: &[&str]) -> Result<()> {
    let python = python(".cache/mlx", &PACKAGES)?;
    run(cargo().args(["build", "--package", "longrun"]))?;
    let binary = target().join("debug").join(format!("longrun{}", std::env::consts::EXE_SUFFIX));
    let mut compare = Command::new(python);
    compare.arg(root().join("testdata/interop/interop.py")).arg(binary);
    run(compare.arg(target().join("interop")).args(families))
}
