//! What compressed attention needs: pooling groups of tokens into entries, and choosing the best entries.

use super::context::{Context, StateMem};
use super::view::{Mat, MatMut};
use crate::state::StateRef;

/// An indexer's queries and what they look at.
#[derive(Clone, Copy)]
pub(super) struct Indexer<'a> {
    pub(super) q: Mat<'a>,
    pub(super) weights: Mat<'a>,
    pub(super) keys: StateRef,
    pub(super) heads: usize,
    pub(super) k: usize,
    pub(super) scale: f32,
}

pub(super) fn select(c: &Context<'_>, indexer: Indexer<'_>, out: &MatMut<'_>) {
    todo!()
}

/// The plain twin of [`select`].
pub(super) fn select_reference(c: &Context<'_>, indexer: Indexer<'_>, out: &MatMut<'_>) {
    todo!()
}

/// Tokens on their way into entries.
#[derive(Clone, Copy)]
pub(super) struct Pooled<'a> {
    pub(super) x: Mat<'a>,
    pub(super) gate: Mat<'a>,
    pub(super) bias: &'a [f32],
    pub(super) every: usize,
    pub(super) overlap: bool,
}

pub(super) fn pool(c: &Context<'_>, pooled: Pooled<'_>, mem: StateMem, out: &MatMut<'_>) {
    todo!()
}

/// The plain twin of [`pool`].
pub(super) fn pool_reference(c: &Context<'_>, pooled: Pooled<'_>, mem: StateMem, out: &MatMut<'_>) {
    todo!()
}
