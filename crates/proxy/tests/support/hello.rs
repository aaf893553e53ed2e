//! ClientHellos, as short as they can be.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test target uses another part"
)]

/// Asks for a name.
pub fn named(name: &str) -> Vec<u8> {
    let n = name.len();
    let mut sni = vec![0, 0, 0, short(n + 5), 0, short(n + 3), 0, 0, short(n)];
    sni.extend(name.bytes());
    with(sni)
}

/// Asks for nobody.
pub fn nameless() -> Vec<u8> {
    // Supported versions: TLS 1.3.
    with(vec![0, 43, 0, 3, 2, 3, 4])
}

fn with(extensions: Vec<u8>) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0, 0, short(extensions.len())]);
    body.extend(extensions);
    let mut hello = vec![1, 0, 0, short(body.len())];
    hello.extend(body);
    let mut record = vec![22, 3, 1, 0, short(hello.len())];
    record.extend(hello);
    record
}

fn short(n: usize) -> u8 {
    u8::try_from(n).expect("short")
}
