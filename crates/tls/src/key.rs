//! Private keys: ECDSA P-256 only, read from PKCS#8 or SEC1, used for signing and for TLS.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    encoding::AsDer,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::Engine;
use rustls::sign::SigningKey;
use rustls_pki_types::{
    PrivateKeyDer, PrivatePkcs8KeyDer,
    pem::{self, PemObject},
};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("the PEM text is malformed: {0}")]
    Pem(String),
    #[error("no private key block found")]
    Empty,
    #[error("the private key is encrypted; give it without a passphrase")]
    Encrypted,
    #[error("the private key is RSA; an ECDSA P-256 key is needed")]
    Rsa,
    #[error("not an ECDSA P-256 private key: {0}")]
    Rejected(String),
    #[error("the crypto library failed")]
    Crypto,
}

/// An ECDSA P-256 private key; cheap to clone, never printed.
#[derive(Clone)]
pub struct Key {
    pair: Arc<EcdsaKeyPair>,
    tls: Arc<dyn SigningKey>,
}

impl Key {
    pub fn generate() -> Result<Self, KeyError> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
            .map_err(|_| KeyError::Crypto)?;
        Self::from_pair(pair)
    }

    /// Reads a DER key in PKCS#8 or SEC1 form.
    pub fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, der)
            .map_err(|error| KeyError::Rejected(error.to_string()))?;
        Self::from_pair(pair)
    }

    /// Reads the first private key of a PEM file; other blocks (such as EC PARAMETERS) are skipped.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        const ENCRYPTED: &[u8] = b"ENCRYPTED";
        if pem.windows(ENCRYPTED.len()).any(|w| w == ENCRYPTED) {
            return Err(KeyError::Encrypted);
        }
        match PrivateKeyDer::from_pem_slice(pem) {
            Ok(PrivateKeyDer::Pkcs1(_)) => Err(KeyError::Rsa),
            Ok(PrivateKeyDer::Pkcs8(der)) if is_rsa_pkcs8(der.secret_pkcs8_der()) => {
                Err(KeyError::Rsa)
            }
            Ok(der) => Self::from_der(der.secret_der()),
            Err(pem::Error::NoItemsFound) => Err(KeyError::Empty),
            Err(error) => Err(KeyError::Pem(error.to_string())),
        }
    }

    fn from_pair(pair: EcdsaKeyPair) -> Result<Self, KeyError> {
        let pkcs8 = pair.to_pkcs8v1().map_err(|_| KeyError::Crypto)?;
        let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pkcs8.as_ref()));
        let tls = rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&der)
            .map_err(|error| KeyError::Rejected(error.to_string()))?;
        Ok(Self {
            pair: Arc::new(pair),
            tls,
        })
    }

    /// DER PKCS#8, what the proxy keeps in `key.p8`.
    pub fn to_pkcs8_der(&self) -> Result<Vec<u8>, KeyError> {
        Ok(self
            .pair
            .to_pkcs8v1()
            .map_err(|_| KeyError::Crypto)?
            .as_ref()
            .to_vec())
    }

    /// PEM with an `EC PRIVATE KEY` block, what `linkerd install` puts into the issuer secret.
    pub fn to_sec1_pem(&self) -> Result<String, KeyError> {
        let der = self
            .pair
            .private_key()
            .as_der()
            .map_err(|_| KeyError::Crypto)?;
        Ok(pem_block("EC PRIVATE KEY", der.as_ref()))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = self
            .pair
            .sign(&SystemRandom::new(), message)
            .map_err(|_| KeyError::Crypto)?;
        Ok(signature.as_ref().to_vec())
    }

    /// The public key as a DER SubjectPublicKeyInfo.
    pub(crate) fn spki_der(&self) -> Result<Vec<u8>, KeyError> {
        let spki = self
            .pair
            .public_key()
            .as_der()
            .map_err(|_| KeyError::Crypto)?;
        Ok(spki.as_ref().to_vec())
    }

    /// The uncompressed point, over which key identifiers are computed.
    pub(crate) fn point(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    pub(crate) fn tls(&self) -> Arc<dyn SigningKey> {
        self.tls.clone()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(ECDSA P-256)")
    }
}

/// Whether a PKCS#8 document names the RSA algorithm; only used to choose the message.
fn is_rsa_pkcs8(der: &[u8]) -> bool {
    const RSA_OID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    der.get(..40.min(der.len()))
        .is_some_and(|h| h.windows(RSA_OID.len()).any(|w| w == RSA_OID))
}

pub(crate) fn pem_block(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = String::with_capacity(text.len() + text.len() / 64 + 2 * label.len() + 32);
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in text.as_bytes().chunks(64) {
        out.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}
