//! What experts alone have: stacks whose gate and up rows alternate, and tables of whole numbers.
//!
//! Owns one layout in two orientations: `gate_up_proj [experts, 2 I, H]` with `down_proj [experts, H, I]`, and both
//! turned, `[experts, H, 2 I]` with `[experts, I, H]`, as transformers saves plain numbers.

use std::borrow::Cow;

use longrun_array::Weight;
use safetensors::Dtype;

use super::{HostMatrix, Source, Weights};
use crate::checkpoint::{Checkpoint, RawDtype};
use crate::error::{Error, Result};

impl Weights<'_> {
    /// `count` whole numbers below `below`, of a tensor of i64 or i32 of any shape; a seed draws them.
    ///
    /// # Errors
    /// The tensor is missing, of another type or size, or has a number that can't be.
    pub(crate) fn table(&self, name: &str, count: usize, below: usize) -> Result<Weight> {
        let numbers = match self.source {
            Source::Seed(_) | Source::Made(_) => {
                let drawn = self.numbers(name, count, 0.0)?;
                drawn.iter().map(|x| ((x.abs() * 1e4) as usize % below) as f32).collect()
            }
            Source::Checkpoint(c) => self.whole_numbers(c, name, count, below)?,
        };
        Ok(Weight::vector(self.runtime, &self.full(name), &numbers)?)
    }

    fn whole_numbers(
        &self,
        c: &Checkpoint,
        name: &str,
        count: usize,
        below: usize,
    ) -> Result<Vec<f32>> {
        let full = self.full(name);
        let t = c
            .raw(&full)
            .ok_or_else(|| Error::file(format!("the tensor {full:?} is missing")).at(c.source()))?;
        let width = match t.dtype {
            RawDtype::Safetensors(Dtype::I64) => 8,
            // 26 is the same of GGUF.
            RawDtype::Safetensors(Dtype::I32) | RawDtype::Ggml(26) => 4,
            other => {
                let what = format!("the tensor {full:?} is stored as {other}");
                return Err(Error::unsupported(what).at(c.source()));
            }
        };
        if t.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) != Some(count) {
            let what = format!("tensor {full:?} is {:?}, config.json makes it {count}", t.shape);
            return Err(Error::file(what).at(c.source()));
        }
        self.note(c, full.clone(), &t.dtype.name(), t.shape, t.data);
        let number = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..width].copy_from_slice(bytes);
            let n = u64::from_le_bytes(word);
            let n = usize::try_from(n).ok().filter(|n| *n < below);
            let wrong =
                || Error::file(format!("tensor {full:?}: an expert of {below} that is none"));
            n.map(|n| n as f32).ok_or_else(wrong)
        };
        t.data.chunks_exact(width).map(number).collect()
    }

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
