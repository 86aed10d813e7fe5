//! The `longrun` binary.
fn main() {}
