//! Private keys, read from PKCS#8 or SEC1, used for signing and for TLS: ECDSA on P-256, and on
//! other curves where an issuer brings one.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    encoding::AsDer,
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING,
        ECDSA_P521_SHA512_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair,
    },
};
use base64::Engine;
use rustls::sign::SigningKey;
use rustls_pki_types::{
    PrivateKeyDer, PrivatePkcs8KeyDer,
    pem::{self, PemObject},
};

use crate::der::{self, oid};

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

/// An ECDSA private key; cheap to clone, never printed.
#[derive(Clone)]
pub struct Key {
    pair: Arc<EcdsaKeyPair>,
    tls: Arc<dyn SigningKey>,
    curve: Curve,
}

/// The curve of a key, which also decides the hash it signs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    P256,
    P384,
    P521,
}

impl Curve {
    const ALL: [Self; 3] = [Self::P256, Self::P384, Self::P521];

    fn algorithm(self) -> &'static EcdsaSigningAlgorithm {
        match self {
            Self::P256 => &ECDSA_P256_SHA256_ASN1_SIGNING,
            Self::P384 => &ECDSA_P384_SHA384_ASN1_SIGNING,
            Self::P521 => &ECDSA_P521_SHA512_ASN1_SIGNING,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::P521 => "P-521",
        }
    }
}

impl Key {
    pub fn generate() -> Result<Self, KeyError> {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
            .map_err(|_| KeyError::Crypto)?;
        Self::from_pair(pair, Curve::P256)
    }

    /// Reads a DER key in PKCS#8 or SEC1 form.
    pub fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        Self::read_der(der, Curve::P256)
    }

    fn read_der(der: &[u8], curve: Curve) -> Result<Self, KeyError> {
        let pair = EcdsaKeyPair::from_private_key_der(curve.algorithm(), der)
            .map_err(|error| KeyError::Rejected(error.to_string()))?;
        Self::from_pair(pair, curve)
    }

    /// Reads the first private key of a PEM file; other blocks (such as EC PARAMETERS) are skipped.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        Self::read_pem(pem, &[Curve::P256])
    }

    /// Like [`Key::from_pem`], for keys on any curve we can sign with.
    pub fn from_pem_on_any_curve(pem: &[u8]) -> Result<Self, KeyError> {
        Self::read_pem(pem, &Curve::ALL)
    }

    fn read_pem(pem: &[u8], curves: &[Curve]) -> Result<Self, KeyError> {
        const ENCRYPTED: &[u8] = b"ENCRYPTED";
        if pem.windows(ENCRYPTED.len()).any(|w| w == ENCRYPTED) {
            return Err(KeyError::Encrypted);
        }
        match PrivateKeyDer::from_pem_slice(pem) {
            Ok(PrivateKeyDer::Pkcs1(_)) => Err(KeyError::Rsa),
            Ok(PrivateKeyDer::Pkcs8(der)) if is_rsa_pkcs8(der.secret_pkcs8_der()) => {
                Err(KeyError::Rsa)
            }
            Ok(der) => {
                let first = Self::read_der(der.secret_der(), curves[0]);
                // What the usual curve says about a key is said if no other takes it either.
                curves[1..].iter().fold(first, |key, curve| {
                    key.or_else(|error| Self::read_der(der.secret_der(), *curve).map_err(|_| error))
                })
            }
            Err(pem::Error::NoItemsFound) => Err(KeyError::Empty),
            Err(error) => Err(KeyError::Pem(error.to_string())),
        }
    }

    fn from_pair(pair: EcdsaKeyPair, curve: Curve) -> Result<Self, KeyError> {
        let pkcs8 = pair.to_pkcs8v1().map_err(|_| KeyError::Crypto)?;
        let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pkcs8.as_ref()));
        let tls = rustls::crypto::aws_lc_rs::sign::any_ecdsa_type(&der)
            .map_err(|error| KeyError::Rejected(error.to_string()))?;
        Ok(Self {
            pair: Arc::new(pair),
            tls,
            curve,
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

    /// How certificates call the algorithm [`Key::sign`] uses, as DER.
    pub(crate) fn signature_algorithm(&self) -> Vec<u8> {
        let oid = match self.curve {
            Curve::P256 => oid::ECDSA_SHA256,
            Curve::P384 => oid::ECDSA_SHA384,
            Curve::P521 => oid::ECDSA_SHA512,
        };
        der::seq(&[&der::oid(oid)])
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
        write!(f, "Key(ECDSA {})", self.curve.name())
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
