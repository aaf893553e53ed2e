//! Full and resumed mutual handshakes per CPU-second.
fn main() {}
