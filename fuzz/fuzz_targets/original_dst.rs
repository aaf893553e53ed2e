//! Addresses as the kernel gives them: one that is mapped is never taken for another.

#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use linkerd_proxy::socket::canonical;

fuzz_target!(|input: ([u8; 16], bool, u16)| {
    let (bytes, six, port) = input;
    let ip = if six {
        IpAddr::from(bytes)
    } else {
        IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    let addr = canonical(SocketAddr::new(ip, port));
    assert_eq!(canonical(addr), addr);
    assert_eq!(addr.port(), port);
    match (ip, addr.ip()) {
        (IpAddr::V6(six), IpAddr::V4(four)) => assert_eq!(six.to_ipv4_mapped(), Some(four)),
        (before, after) => assert_eq!(before, after),
    }
});
