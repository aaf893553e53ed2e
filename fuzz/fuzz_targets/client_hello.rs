//! A ClientHello whose lengths are right and whose extensions are anything.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_proxy::detect::{self, Tls};

fuzz_target!(|extensions: &[u8]| {
    let extensions = &extensions[..extensions.len().min(4000)];
    let short = |n: usize| (n as u16).to_be_bytes();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 2, 0x13, 0x01, 1, 0]);
    body.extend(short(extensions.len()));
    body.extend(extensions);
    let mut record = vec![22, 3, 1];
    record.extend(short(body.len() + 4));
    record.extend([1, 0]);
    record.extend(short(body.len()));
    record.extend(body);
    if let Some(ticket) = detect::ticket(&record) {
        assert!(ticket.len() <= extensions.len());
    }
    match detect::tls(&record) {
        Tls::Hello(Some(name)) => assert!(!name.is_empty() && name.len() <= extensions.len()),
        Tls::Hello(None) | Tls::NotTls => {}
        Tls::More => panic!("all of it is there"),
    }
});
