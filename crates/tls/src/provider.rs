//! The one crypto provider of the mesh: suites, groups and signature algorithms in wire order.

use std::sync::{Arc, OnceLock};

use rustls::{
    SignatureScheme,
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs},
};
use webpki::aws_lc_rs as algs;

/// Chain and handshake signatures we accept from peers.
pub(crate) static SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[
        algs::ECDSA_P256_SHA256,
        algs::ECDSA_P256_SHA384,
        algs::ECDSA_P384_SHA256,
        algs::ECDSA_P384_SHA384,
        algs::ECDSA_P521_SHA256,
        algs::ECDSA_P521_SHA384,
        algs::ECDSA_P521_SHA512,
        algs::ED25519,
        algs::RSA_PKCS1_2048_8192_SHA256,
        algs::RSA_PKCS1_2048_8192_SHA384,
        algs::RSA_PKCS1_2048_8192_SHA512,
    ],
    mapping: &[
        (
            SignatureScheme::ECDSA_NISTP256_SHA256,
            &[algs::ECDSA_P256_SHA256],
        ),
        (
            SignatureScheme::ECDSA_NISTP384_SHA384,
            &[algs::ECDSA_P384_SHA384],
        ),
        (
            SignatureScheme::ECDSA_NISTP521_SHA512,
            &[algs::ECDSA_P521_SHA512],
        ),
        (SignatureScheme::ED25519, &[algs::ED25519]),
        (
            SignatureScheme::RSA_PKCS1_SHA512,
            &[algs::RSA_PKCS1_2048_8192_SHA512],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA384,
            &[algs::RSA_PKCS1_2048_8192_SHA384],
        ),
        (
            SignatureScheme::RSA_PKCS1_SHA256,
            &[algs::RSA_PKCS1_2048_8192_SHA256],
        ),
    ],
};

/// aws-lc-rs with the mesh's choice of suites and groups; the hybrid post-quantum group comes first.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER
        .get_or_init(|| {
            Arc::new(CryptoProvider {
                cipher_suites: vec![
                    aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
                    aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
                    aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
                ],
                kx_groups: vec![
                    aws_lc_rs::kx_group::X25519MLKEM768,
                    aws_lc_rs::kx_group::X25519,
                    aws_lc_rs::kx_group::SECP256R1,
                    aws_lc_rs::kx_group::SECP384R1,
                ],
                signature_verification_algorithms: SIGNATURES,
                ..aws_lc_rs::default_provider()
            })
        })
        .clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_order() {
        let p = provider();
        let suites: Vec<_> = p
            .cipher_suites
            .iter()
            .map(|s| format!("{:?}", s.suite()))
            .collect();
        assert_eq!(
            suites,
            [
                "TLS13_AES_128_GCM_SHA256",
                "TLS13_AES_256_GCM_SHA384",
                "TLS13_CHACHA20_POLY1305_SHA256"
            ]
        );
        let groups: Vec<_> = p
            .kx_groups
            .iter()
            .map(|g| format!("{:?}", g.name()))
            .collect();
        assert_eq!(
            groups,
            ["X25519MLKEM768", "X25519", "secp256r1", "secp384r1"]
        );
    }
}
