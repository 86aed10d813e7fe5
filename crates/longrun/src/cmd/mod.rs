//! The commands, one file each. Each gives an exit code, or an error that `main` prints.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod check;
pub(crate) mod convert;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod perplexity;
pub(crate) mod shipped;
pub(crate) mod soak;
