//! A model as one request has it: under a name, with an adapter or without.
//!
//! Owns nothing but its hold on both: as long as it lives the model stays, and the adapter stays in its slot.

use std::ops::Deref;
use std::sync::Arc;

use super::loaded::Loaded;
use super::loras::InUse;

/// A model that answers one request.
pub(crate) struct Served {
    /// What the client calls it.
    pub(crate) name: String,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) adapter: Option<InUse>,
}

impl Served {
    /// The slot of its adapter; 0 stands for none.
    pub(crate) fn slot(&self) -> usize {
        self.adapter.as_ref().map_or(0, InUse::slot)
    }
}

impl Deref for Served {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}
