//! The `holdpoint` binary.
fn main() {}
