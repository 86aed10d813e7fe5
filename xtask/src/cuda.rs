//! Compiling every CUDA kernel without a GPU.
//!
//! Owns the environment: NVRTC from the Python package registry, in a virtual environment in .cache.

use std::process::Command;

use crate::shell::{Result, capture, cargo, python, run};

/// The package, the folder of its library within those of all packages, and the library.
const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12==12.9.86";
const LIBRARY: &str = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12";

/// Compiles all kernels for every architecture that is supported.
pub(crate) fn check() -> Result<()> {
    let python = python(".cache/nvrtc-12.9.86", &[PACKAGE])?;
    let ask = "import sysconfig; print(sysconfig.get_path('platlib'), end='')";
    let packages = capture(Command::new(python).args(["-c", ask]))?.out;
    let library = format!("{packages}/{LIBRARY}");
    let mut tests = cargo();
    tests.args(["test", "--package", "longrun-array", "--lib", "cuda::"]);
    run(tests.env("LONGRUN_NVRTC", library))
}
