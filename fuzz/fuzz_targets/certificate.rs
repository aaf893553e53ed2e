//! Certificates and bundles as we read them from peers and files.

#![no_main]

use std::time::SystemTime;

use libfuzzer_sys::fuzz_target;
use linkerd_tls::{Certificate, Issuer, Key, TrustAnchors, certificates_from_pem};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(cert) = Certificate::from_der(bytes) {
        assert_eq!(&*cert.der, bytes);
        let _ = (
            cert.check_validity(SystemTime::now()),
            cert.days_left(SystemTime::now()),
        );
        let again = certificates_from_pem(cert.to_pem().as_bytes()).expect("what we print parses");
        assert_eq!(again[0].der, cert.der);
    }
    let _ = Key::from_der(bytes);
    let _ = Key::from_pem(bytes);
    let _ = Issuer::from_pem(("crt", bytes), ("key", bytes));
    if let Ok(anchors) = TrustAnchors::from_pem("bundle", bytes) {
        assert!(!anchors.certificates().is_empty());
        assert_eq!(anchors.union(&anchors), anchors);
    }
});
