//! What we read from an X.509 certificate: names, validity, key kind, authority bits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;
use linkerd_core::identity::Id;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::{anchors::TrustAnchors, clock::date};

/// More certificates than any sane bundle has; a bound on what a bad file can cost.
pub(crate) const MAX_BUNDLE: usize = 256;
/// More names than any workload certificate has.
const MAX_NAMES: usize = 64;

const OID_EC_PUBLIC_KEY: &str = "1.2.840.10045.2.1";
const OID_P256: &str = "1.2.840.10045.3.1.7";
const OID_P384: &str = "1.3.132.0.34";
const OID_P521: &str = "1.3.132.0.35";
const OID_RSA: &str = "1.2.840.113549.1.1.1";
const OID_ED25519: &str = "1.3.101.112";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("the PEM text is malformed: {0}")]
    Pem(String),
    #[error("no CERTIFICATE block found")]
    Empty,
    #[error("more than {MAX_BUNDLE} certificates in one bundle")]
    TooMany,
    #[error("not an X.509 certificate: {0}")]
    Parse(String),
    #[error("bytes follow the certificate")]
    TrailingBytes,
    #[error("certificate {subject:?} expired on {}", date(*.not_after))]
    Expired {
        subject: String,
        not_after: SystemTime,
    },
    #[error("certificate {subject:?} is not valid before {}", date(*.not_before))]
    NotYetValid {
        subject: String,
        not_before: SystemTime,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    EcdsaP256,
    EcdsaP384,
    EcdsaP521,
    /// Modulus size in bits.
    Rsa(usize),
    Ed25519,
    Other,
}

impl KeyKind {
    pub fn is_ecdsa(self) -> bool {
        matches!(self, Self::EcdsaP256 | Self::EcdsaP384 | Self::EcdsaP521)
    }
}

impl std::fmt::Display for KeyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EcdsaP256 => f.write_str("ECDSA P-256"),
            Self::EcdsaP384 => f.write_str("ECDSA P-384"),
            Self::EcdsaP521 => f.write_str("ECDSA P-521"),
            Self::Rsa(bits) => write!(f, "RSA {bits}"),
            Self::Ed25519 => f.write_str("Ed25519"),
            Self::Other => f.write_str("an unknown kind"),
        }
    }
}

/// A parsed certificate together with its DER bytes.
#[derive(Debug, Clone)]
pub struct Certificate {
    pub der: CertificateDer<'static>,
    /// Subject as text, for messages.
    pub subject: String,
    /// Common name of the subject, when there is one.
    pub common_name: Option<String>,
    pub serial: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    pub key: KeyKind,
    pub is_ca: bool,
    /// Usable names: DNS and URI subject alternative names in order, malformed ones left out.
    pub names: Vec<Id>,
    pub(crate) subject_der: Vec<u8>,
    pub(crate) spki_der: Vec<u8>,
    pub(crate) subject_key_id: Option<Vec<u8>>,
    pub(crate) may_sign: bool,
}

impl Certificate {
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let (rest, cert) = X509Certificate::from_der(der)
            .map_err(|error| CertificateError::Parse(error.to_string()))?;
        if !rest.is_empty() {
            return Err(CertificateError::TrailingBytes);
        }
        let key_usage = cert.key_usage().map_err(parse_error)?;
        let subject_key_id = cert
            .iter_extensions()
            .find_map(|ext| match ext.parsed_extension() {
                x509_parser::extensions::ParsedExtension::SubjectKeyIdentifier(id) => {
                    Some(id.0.to_vec())
                }
                _ => None,
            });
        Ok(Self {
            der: CertificateDer::from(der.to_vec()),
            subject: cert.subject().to_string(),
            common_name: cert
                .subject()
                .iter_common_name()
                .next()
                .and_then(|cn| cn.as_str().ok())
                .map(str::to_owned),
            serial: cert.raw_serial_as_string(),
            not_before: time_of(cert.validity().not_before.timestamp()),
            not_after: time_of(cert.validity().not_after.timestamp()),
            key: key_kind(cert.public_key()),
            is_ca: cert.is_ca(),
            names: names(&cert)?,
            subject_der: cert.subject().as_raw().to_vec(),
            spki_der: cert.public_key().raw.to_vec(),
            subject_key_id,
            may_sign: key_usage.is_none_or(|ku| ku.value.key_cert_sign()),
        })
    }

    /// Fails with the date when `now` lies outside the validity period.
    pub fn check_validity(&self, now: SystemTime) -> Result<(), CertificateError> {
        if now > self.not_after {
            return Err(CertificateError::Expired {
                subject: self.subject.clone(),
                not_after: self.not_after,
            });
        }
        if now < self.not_before {
            return Err(CertificateError::NotYetValid {
                subject: self.subject.clone(),
                not_before: self.not_before,
            });
        }
        Ok(())
    }

    /// Whether one of `authorities` signed this certificate. Dates and names are not looked at.
    pub fn is_issued_under(&self, authorities: &TrustAnchors) -> bool {
        let Ok((_, cert)) = X509Certificate::from_der(&self.der) else {
            return false;
        };
        authorities.certificates().iter().any(|ca| {
            X509Certificate::from_der(&ca.der)
                .is_ok_and(|(_, ca)| cert.verify_signature(Some(ca.public_key())).is_ok())
        })
    }

    /// Time left; zero once expired.
    pub fn remaining(&self, now: SystemTime) -> Duration {
        self.not_after.duration_since(now).unwrap_or(Duration::ZERO)
    }

    /// Whole days left, rounded down; zero once expired.
    pub fn days_left(&self, now: SystemTime) -> u64 {
        self.remaining(now).as_secs() / 86_400
    }

    pub fn sha256(&self) -> String {
        sha256(&self.der)
    }

    pub fn to_pem(&self) -> String {
        crate::key::pem_block("CERTIFICATE", &self.der)
    }
}

/// All certificates of a PEM bundle, in order. Other blocks and blank text between are ignored.
pub fn certificates_from_pem(pem: &[u8]) -> Result<Vec<Certificate>, CertificateError> {
    let mut out = Vec::new();
    for der in CertificateDer::pem_slice_iter(pem) {
        let der = der.map_err(|error| CertificateError::Pem(error.to_string()))?;
        if out.len() == MAX_BUNDLE {
            return Err(CertificateError::TooMany);
        }
        out.push(Certificate::from_der(&der)?);
    }
    if out.is_empty() {
        return Err(CertificateError::Empty);
    }
    Ok(out)
}

/// Splits DER certificates that follow one another, as the SPIFFE Workload API sends a chain.
pub fn chain_from_der(mut bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let mut chain = Vec::new();
    while !bytes.is_empty() {
        let (rest, _) = X509Certificate::from_der(bytes)
            .map_err(|error| CertificateError::Parse(error.to_string()))?;
        if chain.len() == MAX_BUNDLE {
            return Err(CertificateError::TooMany);
        }
        let (one, _) = bytes.split_at(bytes.len() - rest.len());
        chain.push(CertificateDer::from(one.to_vec()));
        bytes = rest;
    }
    if chain.is_empty() {
        return Err(CertificateError::Empty);
    }
    Ok(chain)
}

/// What the handshake needs of a peer's leaf, without copying the certificate.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) names: Vec<Id>,
    pub(crate) not_after: u64,
}

impl Leaf {
    pub(crate) fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        let (_, cert) = X509Certificate::from_der(der)
            .map_err(|error| CertificateError::Parse(error.to_string()))?;
        let not_after = cert.validity().not_after.timestamp();
        Ok(Self {
            names: names(&cert)?,
            not_after: u64::try_from(not_after).unwrap_or(0),
        })
    }
}

/// End of validity of a certificate, in seconds since 1970.
pub(crate) fn not_after(der: &[u8]) -> Result<u64, CertificateError> {
    let (_, cert) = X509Certificate::from_der(der)
        .map_err(|error| CertificateError::Parse(error.to_string()))?;
    Ok(u64::try_from(cert.validity().not_after.timestamp()).unwrap_or(0))
}

fn parse_error(error: impl std::fmt::Display) -> CertificateError {
    CertificateError::Parse(error.to_string())
}

fn names(cert: &X509Certificate<'_>) -> Result<Vec<Id>, CertificateError> {
    let Some(san) = cert.subject_alternative_name().map_err(parse_error)? else {
        return Ok(Vec::new());
    };
    let ids = san
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(dns) => Id::parse_dns(dns).ok(),
            GeneralName::URI(uri) => Id::parse_uri(uri).ok(),
            _ => None,
        });
    Ok(ids.take(MAX_NAMES).collect())
}

pub(crate) fn key_kind(spki: &x509_parser::x509::SubjectPublicKeyInfo<'_>) -> KeyKind {
    let params = || {
        spki.algorithm
            .parameters
            .as_ref()?
            .as_oid()
            .ok()
            .map(|o| o.to_id_string())
    };
    match spki.algorithm.algorithm.to_id_string().as_str() {
        OID_EC_PUBLIC_KEY => match params().as_deref() {
            Some(OID_P256) => KeyKind::EcdsaP256,
            Some(OID_P384) => KeyKind::EcdsaP384,
            Some(OID_P521) => KeyKind::EcdsaP521,
            _ => KeyKind::Other,
        },
        OID_RSA => KeyKind::Rsa(spki.parsed().map_or(0, |key| key.key_size())),
        OID_ED25519 => KeyKind::Ed25519,
        _ => KeyKind::Other,
    }
}

fn time_of(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Certificates count in whole seconds.
pub(crate) fn whole_seconds(t: SystemTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(crate::clock::unix_seconds(t))
}

pub(crate) fn sha256(der: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, der).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
            write!(s, "{b:02x}").expect("writing to a string cannot fail");
            s
        })
}
