//! Cases of hyper-connections.

use crate::cases::{Model, Rig};

pub(crate) fn weights(_: &mut Rig) -> Model {
    todo!()
}

pub(crate) fn mix_in(_: &mut Rig) -> Model {
    todo!()
}

pub(crate) fn mix_out(_: &mut Rig) -> Model {
    todo!()
}
