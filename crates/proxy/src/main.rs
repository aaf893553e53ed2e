//! The proxy program.
fn main() {}
