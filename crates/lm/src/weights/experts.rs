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
        let (mut gates, mut ups, mut downs) = (Vec::new(), Vec::new(), Vec::new());
        let turned = self.each_of(fused, experts, [2 * inner, cols], None, |m| {
            gates.push(Ok(m.take_rows((0..inner).map(|i| 2 * i))));
            ups.push(Ok(m.take_rows((0..inner).map(|i| 2 * i + 1))));
        })?;
        let (gate, _) = HostMatrix::stacked(gates.into_iter())?;
        let (up, _) = HostMatrix::stacked(ups.into_iter())?;
        let (gate, up) = (self.put(fused, &gate, experts)?, self.put(fused, &up, experts)?);
        let name = "experts.down_proj";
        self.each_of(name, experts, [cols, inner], Some(turned), |m| {
            downs.push(Ok(m.take_rows(0..cols)));
        })?;
        let (down, _) = HostMatrix::stacked(downs.into_iter())?;
        Ok([gate, up, self.put(name, &down, experts)?])
    }

    /// Shows each matrix of the stack `name`, `[rows, cols]`; says whether the files have them turned. If `turned` is
    /// not given, shapes tell, and where they can't, plain numbers are turned.
    fn each_of(
        &self,
        name: &str,
        experts: usize,
        [rows, cols]: [usize; 2],
        turned: Option<bool>,
        mut show: impl FnMut(&HostMatrix<'_>),
    ) -> Result<bool> {
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
        for bytes in t.data.chunks_exact(t.data.len() / experts) {
            let m = HostMatrix { format: t.format, rows: r, cols: k, bytes: Cow::Borrowed(bytes) };
            show(&if turned { m.transposed() } else { m });
        }
        Ok(turned)
    }
}
