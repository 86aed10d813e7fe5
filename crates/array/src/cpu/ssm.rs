//! The selective scan of Mamba 2.

use super::context::{Context, StateMem};
use super::view::{Mat, MatMut};
use crate::op::SsmHeads;

/// The tensors and weights of a scan.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    pub(super) x: Mat<'a>,
    pub(super) b: Mat<'a>,
    pub(super) c: Mat<'a>,
    pub(super) dt: Mat<'a>,
    pub(super) neg_a: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) skip: &'a [f32],
    pub(super) limits: (f32, f32),
    pub(super) heads: SsmHeads,
}

pub(super) fn ssm(c: &Context<'_>, scan: Scan<'_>, mem: StateMem, out: &MatMut<'_>) {
    todo!()
}

/// The plain twin of [`ssm`].
pub(super) fn reference(c: &Context<'_>, scan: Scan<'_>, mem: StateMem, out: &MatMut<'_>) {
    todo!()
}
