//! The flags that say what computes.

use std::str::FromStr;

use clap::Args as ClapArgs;

/// What a model can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceName {
    /// Runs nothing, counts all.
    Null,
    /// The CPU.
    Cpu,
    /// A GPU by its number.
    Cuda(usize),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            Err("the devices are cpu, cuda, cuda:N (the GPU of number N, from 0 on), and null, which \
                 runs nothing"
                .to_owned())
        };
        match text {
            "null" => Ok(Self::Null),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => match text.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
                _ => unknown(),
            },
        }
    }
}

/// Where to compute, and how.
#[derive(ClapArgs, Clone, Copy)]
pub(crate) struct DeviceArgs {
    /// Where to run: cpu, cuda, cuda:N, or (soak and bench) null, which runs nothing [default: cuda if there is a GPU
    /// and no flag for the CPU, else cpu]
    #[arg(long, value_name = "cpu|cuda[:N]|null")]
    pub(crate) device: Option<DeviceName>,
    /// Threads of the CPU [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// On the CPU quantised weights meet 32-bit instead of 8-bit activations: slower, closer to the reference
    #[arg(long)]
    pub(crate) exact: bool,
}

impl DeviceArgs {
    /// A flag that only the CPU has, if one is given.
    pub(crate) fn cpu_flag(self) -> Option<&'static str> {
        match (self.threads, self.exact) {
            (Some(_), _) => Some("--threads"),
            (None, true) => Some("--exact"),
            (None, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceName::{self, Cpu, Cuda, Null};

    #[test]
    fn devices_have_names_and_numbers() {
        for (text, device) in [
            ("cpu", Cpu),
            ("null", Null),
            ("cuda", Cuda(0)),
            ("cuda:0", Cuda(0)),
            ("cuda:7", Cuda(7)),
        ] {
            assert_eq!(text.parse::<DeviceName>().unwrap(), device);
        }
        for text in ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:x", "cuda0", "cpu:0", "null:1"] {
            let error = text.parse::<DeviceName>().unwrap_err();
            assert!(error.contains("cpu, cuda, cuda:N"), "{text}: {error}");
        }
    }
}
