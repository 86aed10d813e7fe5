//! The sources of all kernels: one family a file of `kernels/cuda`, named as its twin of the CPU device.
//!
//! Owns their list, and what they include. A new family is a line of it.

use std::borrow::Cow;

use super::nvrtc::Text;
use crate::quant::points;

/// A file of `kernels/cuda`.
macro_rules! text {
    ($name:literal, $extension:literal) => {
        Text {
            name: concat!($name, $extension),
            text: Cow::Borrowed(include_str!(concat!("../../kernels/cuda/", $name, $extension))),
        }
    };
}

/// Lists the families, and has their sources in the binary.
macro_rules! families {
    ($($(#[$about:meta])* $family:ident: $name:literal,)*) => {
        /// Kernels that are compiled together.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(super) enum Family {
            $($(#[$about])* $family,)*
        }

        impl Family {
            /// All of them.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$family),*];

            /// The source.
            pub(super) fn source(self) -> Text {
                match self {
                    $(Self::$family => text!($name, ".cu"),)*
                }
            }
        }
    };
}

families! {
    /// Row by row: element by element, norms, rotary positions, copies.
    Ops: "ops",
    /// Lookups and products with matrices.
    Linear: "linear",
    /// What adapters add to products.
    LowRank: "low_rank",
    /// What is written into paged states.
    Paged: "paged",
    /// What tokens leave to later steps.
    Carry: "carry",
    /// Softmax attention over paged states.
    Attention: "attention",
    /// The best entries by an indexer's scores.
    Select: "select",
    /// Groups of tokens pooled into entries.
    Pool: "pool",
    /// Convolutions, decays, and the logs of records.
    Recurrent: "recurrent",
    /// The gated delta rule.
    Delta: "delta",
    /// The selective scan.
    Ssm: "ssm",
    /// Hyper-connections.
    Hyper: "hyper",
    /// Which experts serve a token.
    Route: "route",
    /// Mixtures of experts.
    Experts: "experts",
}

impl Family {
    /// The types of the parameters of a kernel, `*` for pointers; `None` if the source has no such kernel.
    pub(super) fn parameters(self, kernel: &str) -> Option<Vec<String>> {
        let source = self.source().text;
        let start = source.find(&format!("KERNEL {kernel}("))? + "KERNEL (".len() + kernel.len();
        let list = &source[start..][..source[start..].find(')')?];
        let parameter = |text: &str| match text.contains('*') {
            true => "*".to_owned(),
            false => text.split_whitespace().next().unwrap_or_default().to_owned(),
        };
        Some(list.split(',').map(parameter).collect())
    }
}

/// What any family may include.
pub(super) fn headers() -> Vec<Text> {
    let points: Vec<_> = points().map(|point| point.to_string()).collect();
    let grids = format!(
        "#pragma once\n// The points of all grids of `quant/lattice.rs`.\n__device__ const unsigned \
         short GRIDS[{}] = {{{}}};\n",
        points.len(),
        points.join(",")
    );
    let grids = Text { name: "grids.cuh", text: Cow::Owned(grids) };
    vec![
        text!("common", ".cuh"),
        text!("format", ".cuh"),
        text!("attention", ".cuh"),
        text!("experts", ".cuh"),
        text!("recurrent", ".cuh"),
        grids,
    ]
}
