//! Hyper-connections: a few residual streams, mixed before and after each half of a block.

use super::context::Context;
use super::view::{Mat, MatMut};

/// What makes the weights of hyper-connections.
#[derive(Clone, Copy)]
pub(super) struct Mixing<'a> {
    pub(super) scale: &'a [f32],
    pub(super) base: &'a [f32],
    pub(super) n: usize,
    pub(super) iters: usize,
    pub(super) eps: f32,
}

pub(super) fn weights(c: &Context<'_>, z: Mat<'_>, mixing: Mixing<'_>, out: &MatMut<'_>) {
    todo!()
}

/// The plain twin of [`weights`].
pub(super) fn weights_reference(z: Mat<'_>, mixing: Mixing<'_>, out: &MatMut<'_>) {
    todo!()
}

pub(super) fn mix_in(c: &Context<'_>, streams: Mat<'_>, weights: Mat<'_>, out: &MatMut<'_>) {
    todo!()
}

/// The plain twin of [`mix_in`].
pub(super) fn mix_in_reference(streams: Mat<'_>, weights: Mat<'_>, out: &MatMut<'_>) {
    todo!()
}

pub(super) fn mix_out(
    c: &Context<'_>,
    (streams, y, weights): (Mat<'_>, Mat<'_>, Mat<'_>),
    out: &MatMut<'_>,
) {
    todo!()
}

/// The plain twin of [`mix_out`].
pub(super) fn mix_out_reference(
    (streams, y, weights): (Mat<'_>, Mat<'_>, Mat<'_>),
    out: &MatMut<'_>,
) {
    todo!()
}
