//! Signing requests as the identity service reads them from the network.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linkerd_tls::SigningRequest;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = SigningRequest::from_der(bytes) else {
        return;
    };
    let _ = request.verify_signature();
    for name in &request.dns_names {
        if request.check_names(name).is_ok() {
            assert_eq!(request.dns_names.len(), 1);
        }
    }
});
