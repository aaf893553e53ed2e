//! Policies and endpoints off the wire become ours or an error, never a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_proxy::control::wire;

fuzz_target!(|bytes: &[u8]| {
    let _ = wire::client_policy(bytes);
    let _ = wire::server_policy(bytes);
    let _ = wire::endpoint_update(bytes);
});
