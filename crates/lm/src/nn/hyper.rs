//! Hyper-connections: the residual is a few streams, mixed into one before each half of a block and out again after it.

use longrun_array::{Tensor, Weight};

use crate::config::{Config, HyperConfig};
use crate::error::{Error, Result};
use crate::weights::Weights;

/// What makes mixing weights from the streams: of all of them, divided by their root mean square.
struct Mixing {
    matrix: Weight,
    scale: Weight,
    base: Weight,
    sizes: HyperConfig,
    eps: f32,
}

impl Mixing {
    fn load(w: &Weights<'_>, c: &Config, names: [&str; 3], rows: usize) -> Result<Self> {
        let sizes = c.hyper.ok_or_else(|| Error::file("this field is missing").at("hc_mult"))?;
        let n = sizes.streams;
        let scales = if rows == n { 1 } else { 3 };
        Ok(Self {
            matrix: w.matrix(names[0], [rows, n * c.hidden])?,
            base: w.vector(names[1], rows, 0.0, |b| b)?,
            scale: w.vector(names[2], scales, 1.0, |s| s)?,
            sizes,
            eps: c.eps,
        })
    }

    fn weights<'s>(&self, streams: Tensor<'s>) -> Tensor<'s> {
        let HyperConfig { streams: n, iters, eps } = self.sizes;
        let (cols, len) = (streams.cols(), streams.cols() as f32);
        let z = streams.unit_norm(cols, len * self.eps, len.sqrt()); // an RMS norm without a weight
        z.linear(&self.matrix, None).hyper_weights(&self.scale, &self.base, n, (iters, eps))
    }
}

/// The mixing around one half of a block.
pub struct Hyper(Mixing);

impl Hyper {
    /// Of the half `attn` or `ffn`.
    ///
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(w: &Weights<'_>, c: &Config, half: &str) -> Result<Self> {
        let n = c.hyper.map_or(0, |h| h.streams);
        let names = ["fn", "base", "scale"];
        let original = names.map(|name| format!("hc_{half}_{name}"));
        let module = names.map(|name| format!("{half}_hc.{name}"));
        let names = if w.in_files(&module[0]) { module } else { original };
        let names = [&names[0], &names[1], &names[2]].map(String::as_str);
        Ok(Self(Mixing::load(w, c, names, n * (2 + n))?))
    }

    /// Mixes `streams [T, n * H]` into what `f` is given, `[T, H]`, and what it makes back into them.
    #[track_caller]
    pub fn around<'s>(
        &self,
        streams: Tensor<'s>,
        f: impl FnOnce(Tensor<'s>) -> Tensor<'s>,
    ) -> Tensor<'s> {
        let n = self.0.sizes.streams;
        let weights = self.0.weights(streams);
        let y = f(streams.hyper_in(weights.columns(0, n)));
        streams.hyper_out(y, weights.columns(n, n + n * n))
    }
}

/// The mixing into one stream at the end.
pub struct HyperHead(Mixing);

impl HyperHead {
    /// # Errors
    /// A weight is missing or misshapen.
    pub fn load(w: &Weights<'_>, c: &Config) -> Result<Self> {
        let original = ["hc_head_fn", "hc_head_base", "hc_head_scale"];
        let module = ["hc_head.hc_fn", "hc_head.hc_base", "hc_head.hc_scale"];
        let names = if w.in_files(module[0]) { module } else { original };
        Ok(Self(Mixing::load(w, c, names, c.hyper.map_or(0, |h| h.streams))?))
    }

    /// `[T, n * H] -> [T, H]`
    #[track_caller]
    pub fn forward<'s>(&self, streams: Tensor<'s>) -> Tensor<'s> {
        streams.hyper_in(self.0.weights(streams))
    }
}

/// `n` streams that all start as `x [T, H]`.
#[track_caller]
pub fn spread(x: Tensor<'_>, n: usize) -> Tensor<'_> {
    (1..n).fold(x, |all, _| all.concat(x, 1))
}
