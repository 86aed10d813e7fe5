//! Stacked experts whose gate and up rows alternate.
//!
//! Owns one layout in two orientations: `gate_up_proj [experts, 2 I, H]` with `down_proj [experts, H, I]`, and both
//! turned, `[experts, H, 2 I]` with `[experts, I, H]`, as transformers saves plain numbers.

use std::borrow::Cow;

use longrun_array::Weight;

use super::{HostMatrix, Source, Weights};
use crate::error::{Error, Result};

impl Weights<'_> {
    /// Gate, up `[experts, inner, cols]` and down `[experts, cols, inner]` of `experts.gate_up_proj` and
    /// `experts.down_proj`, whose rows alternate; or of three stacks under their own names.
    ///
    /// # Errors
    /// A tensor is missing or has another shape; memory runs out.
    pub(crate) fn alternating_experts(
        &self,
        experts: usize,
        [inner, cols]: [usize; 2],
    ) -> Result<[Weight; 3]> {
        let fused = "experts.gate_up_proj";
        if !self.in_files(fused) {
            return Ok([
                self.experts("gate_proj", experts, [inner, cols])?,
                self.experts("up_proj", experts, [inner, cols])?,
                self.experts("down_proj", experts, [cols, inner])?,
            ]);
        }
        let (even, odd) = (0..inner).map(|i| (2 * i, 2 * i + 1)).unzip();
        let (both, turned) = self.gather(fused, experts, [2 * inner, cols], None, &[even, odd])?;
        let [gate, up] = [0, 1].map(|i| self.put(fused, &both[i], experts));
        let (gate, up) = (gate?, up?);
        drop(both);
        let (name, all) = ("experts.down_proj", (0..cols).collect());
        let (down, _) = self.gather(name, experts, [cols, inner], Some(turned), &[all])?;
        Ok([gate, up, self.put(name, &down[0], experts)?])
    }

    /// Of each matrix `[rows, cols]` of the stack `name` these rows, one stack for each list of them; says whether the
    /// files have the matrices turned. If `turned` is not given, shapes tell, and where they can't, plain numbers are.
    fn gather(
        &self,
        name: &str,
        experts: usize,
        [rows, cols]: [usize; 2],
        turned: Option<bool>,
        lists: &[Vec<usize>],
    ) -> Result<(Vec<HostMatrix<'static>>, bool)> {
        let Source::Checkpoint(c) = self.source else {
            return Err(Error::usage(format!("a seed has no stack {name:?}")));
        };
        let t = self.tensor(c, name)?;
        let straight = t.shape == [experts, rows, cols];
        let turned = match turned {
            Some(turned) => turned,
            None if rows == cols => t.format.is_float(),
            None => !straight,
        };
        let [r, k] = if turned { [cols, rows] } else { [rows, cols] };
        if t.shape != [experts, r, k] || t.data.len() < experts {
            return Err(self.misshapen(&t, &[experts, rows, cols]));
        }
        let mut stacks: Vec<HostMatrix<'static>> = Vec::new();
        for bytes in t.data.chunks_exact(t.data.len() / experts) {
            let m = HostMatrix { format: t.format, rows: r, cols: k, bytes: Cow::Borrowed(bytes) };
            let m = if turned { m.transposed() } else { m };
            for (i, list) in lists.iter().enumerate() {
                let part = m.take_rows(list.iter().copied());
                match stacks.get_mut(i) {
                    Some(stack) => stack.bytes.to_mut().extend_from_slice(&part.bytes),
                    None => stacks.push(part),
                }
            }
        }
        Ok((stacks, turned))
    }
}
