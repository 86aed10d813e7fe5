//! Stacks of matrices: experts, and the heads of latent attention.
//!
//! Owns the ways in which writers store them: one tensor for all, one for each, gate and up joined or alternating.

use std::borrow::Cow;

use longrun_array::Weight;

use super::{HostMatrix, Source, Weights};
use crate::error::{Error, Result};

impl<'a> Weights<'a> {
    /// The matrices `name [count, rows, cols]`, behind each other in one tensor.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub(crate) fn stack(
        &self,
        name: &str,
        count: usize,
        [rows, cols]: [usize; 2],
    ) -> Result<Weight> {
        let Source::Checkpoint(c) = self.source else {
            return Err(Error::usage(format!("no files, no stack {name:?}")));
        };
        let t = self.tensor(c, name)?;
        if t.shape != [count, rows, cols] {
            return Err(self.misshapen(&t, &[count, rows, cols]));
        }
        let host = HostMatrix { format: t.format, rows, cols, bytes: t.data };
        self.put(name, &host, count)
    }

    /// One projection of all experts, `[experts, rows, cols]`: stacked as `experts.NAME` (or `.weight`), as
    /// `switch_mlp.NAME.weight`, or one tensor an expert, `experts.E.NAME.weight`.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix); experts in different formats.
    pub fn experts(&self, name: &str, experts: usize, [rows, cols]: [usize; 2]) -> Result<Weight> {
        if let Source::Made(_) = self.source {
            let all = self.host_stack(&format!("experts.{name}"), experts, [rows, cols])?;
            return self.put(name, &all, experts);
        }
        if let Source::Checkpoint(c) = self.source {
            let stacked = [
                format!("experts.{name}"),
                format!("experts.{name}.weight"),
                format!("switch_mlp.{name}.weight"),
                format!("experts.switch_glu.{name}.weight"),
            ];
            if let Some(stacked) = stacked.iter().find(|n| c.raw(&self.full(n)).is_some()) {
                return self.stack(stacked, experts, [rows, cols]);
            }
        }
        let one = |e: usize| self.host(&format!("experts.{e}.{name}.weight"), [rows, cols]);
        let (host, _) =
            HostMatrix::stacked((0..experts).map(one)).map_err(|e| e.at(self.full(name)))?;
        self.put(name, &host, experts)
    }

    /// The halves of the stacked `experts.gate_up_proj [experts, 2 * rows, cols]`, or the two projections
    /// `names`.
    ///
    /// # Errors
    /// As [`experts`](Self::experts).
    pub fn gate_up(
        &self,
        names: [&str; 2],
        experts: usize,
        [rows, cols]: [usize; 2],
    ) -> Result<[Weight; 2]> {
        let fused = "experts.gate_up_proj";
        let c = match self.source {
            Source::Checkpoint(c) if c.raw(&self.full(fused)).is_some() => c,
            _ => {
                let shape = [rows, cols];
                return Ok([
                    self.experts(names[0], experts, shape)?,
                    self.experts(names[1], experts, shape)?,
                ]);
            }
        };
        let t = self.tensor(c, fused)?;
        if t.shape != [experts, 2 * rows, cols] {
            return Err(self.misshapen(&t, &[experts, 2 * rows, cols]));
        }
        let half = t.data.len() / experts / 2;
        let part = |second: usize| -> Result<Weight> {
            let halves = t.data.chunks_exact(half).skip(second).step_by(2);
            let bytes = halves.flatten().copied().collect();
            let host = HostMatrix { format: t.format, rows, cols, bytes: Cow::Owned(bytes) };
            self.put(fused, &host, experts)
        };
        Ok([part(0)?, part(1)?])
    }

    /// The stacked matrices `name [experts, rows, cols]`, all rows below each other.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub(crate) fn host_stack(
        &self,
        name: &str,
        experts: usize,
        [rows, cols]: [usize; 2],
    ) -> Result<HostMatrix<'a>> {
        let c = match self.source {
            Source::Checkpoint(c) => c,
            Source::Seed(_) | Source::Made(_) => {
                let all = self.host(name, [experts * rows, cols])?;
                return Ok(HostMatrix { rows, ..all });
            }
        };
        let t = self.tensor(c, name)?;
        if t.shape != [experts, rows, cols] {
            return Err(self.misshapen(&t, &[experts, rows, cols]));
        }
        Ok(HostMatrix { format: t.format, rows, cols, bytes: t.data })
    }

    /// The first and the second halves of the rows of each matrix of `name [experts, 2 * rows, cols]`.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn halves(
        &self,
        name: &str,
        experts: usize,
        [rows, cols]: [usize; 2],
    ) -> Result<[Weight; 2]> {
        let all = self.host_stack(name, experts, [2 * rows, cols])?;
        let all = HostMatrix { rows: experts * 2 * rows, ..all };
        let part = |half: usize| -> Result<Weight> {
            let order = (0..experts * rows).map(|i| (i / rows * 2 + half) * rows + i % rows);
            self.put(name, &HostMatrix { rows, ..all.take_rows(order) }, experts)
        };
        Ok([part(0)?, part(1)?])
    }
}
