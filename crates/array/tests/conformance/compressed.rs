//! Cases of compressed attention: pooling and choosing.

use crate::cases::{Model, Rig};

pub(crate) fn select(_: &mut Rig) -> Model {
    todo!()
}

pub(crate) fn pool(_: &mut Rig) -> Model {
    todo!()
}
