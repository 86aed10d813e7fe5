//! Cases of what carries a record from token to token.

use crate::cases::{Model, Rig};

pub(crate) fn ssm(_: &mut Rig) -> Model {
    todo!()
}
