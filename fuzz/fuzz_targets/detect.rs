//! What a connection speaks is decided the same way however its bytes are cut, and never by a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_proxy::detect::{self, Http, Tls};

fuzz_target!(|bytes: &[u8]| {
    let http = detect::http(bytes);
    let tls = format!("{:?}", detect::tls(bytes));
    for cut in [1, 14, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let Some(part) = bytes.get(..cut) else { continue };
        match detect::http(part) {
            Http::More => {}
            verdict => assert_eq!(verdict, http, "HTTP, {cut} of {}", bytes.len()),
        }
        match detect::tls(part) {
            Tls::More => {}
            verdict => assert_eq!(format!("{verdict:?}"), tls, "TLS, {cut} of {}", bytes.len()),
        }
    }
});
