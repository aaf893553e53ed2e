//! Trust anchors: the root certificates a process believes, several at once during a rotation.

use std::{sync::Arc, time::SystemTime};

use rustls::RootCertStore;

use crate::certificate::{Certificate, CertificateError, MAX_BUNDLE, certificates_from_pem};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("trust anchors from {origin}")]
pub struct AnchorsError {
    /// File or variable the bundle came from.
    pub origin: String,
    #[source]
    pub source: CertificateError,
}

/// An immutable bundle of trust anchors; cheap to clone.
#[derive(Debug, Clone)]
pub struct TrustAnchors {
    certificates: Arc<[Certificate]>,
    roots: Arc<RootCertStore>,
}

impl TrustAnchors {
    /// Reads every certificate of a PEM bundle. `origin` names the file or variable in errors.
    pub fn from_pem(origin: &str, pem: &[u8]) -> Result<Self, AnchorsError> {
        let fail = |source| AnchorsError {
            origin: origin.to_owned(),
            source,
        };
        Self::from_certificates(certificates_from_pem(pem).map_err(fail)?).map_err(fail)
    }

    /// Takes certificates as DER. `origin` names the sender in errors.
    pub fn from_ders<'a>(
        origin: &str,
        ders: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, AnchorsError> {
        let parsed: Result<Vec<_>, _> = ders
            .into_iter()
            .map(Certificate::from_der)
            .take(MAX_BUNDLE + 1)
            .collect();
        let bundle = parsed.and_then(|certificates| match certificates.len() {
            0..=MAX_BUNDLE => Self::from_certificates(certificates),
            _ => Err(CertificateError::TooMany),
        });
        bundle.map_err(|source| AnchorsError {
            origin: origin.to_owned(),
            source,
        })
    }

    pub fn from_certificates(certificates: Vec<Certificate>) -> Result<Self, CertificateError> {
        let mut roots = RootCertStore::empty();
        let mut unique: Vec<Certificate> = Vec::with_capacity(certificates.len());
        for cert in certificates {
            if unique.iter().any(|c| c.der == cert.der) {
                continue;
            }
            roots
                .add(cert.der.clone())
                .map_err(|error| CertificateError::Parse(error.to_string()))?;
            unique.push(cert);
        }
        if unique.is_empty() {
            return Err(CertificateError::Empty);
        }
        Ok(Self {
            certificates: unique.into(),
            roots: Arc::new(roots),
        })
    }

    /// This bundle and `other` together, duplicates removed.
    pub fn union(&self, other: &Self) -> Self {
        let all = self
            .certificates
            .iter()
            .chain(other.certificates.iter())
            .cloned()
            .collect();
        Self::from_certificates(all).expect("both bundles were accepted and are not empty")
    }

    /// Whether every anchor of this bundle is in `other`.
    pub fn is_within(&self, other: &Self) -> bool {
        let has = |c: &Certificate| other.certificates.iter().any(|o| o.der == c.der);
        self.certificates.iter().all(has)
    }

    /// Whether both hold the same anchors, in whatever order.
    pub fn same_as(&self, other: &Self) -> bool {
        self.certificates.len() == other.certificates.len() && self.is_within(other)
    }

    pub fn certificates(&self) -> &[Certificate] {
        &self.certificates
    }

    pub fn to_pem(&self) -> String {
        self.certificates.iter().map(Certificate::to_pem).collect()
    }

    /// Fails with the first certificate's problem when no anchor is valid at `now`.
    pub fn check_validity(&self, now: SystemTime) -> Result<(), CertificateError> {
        let mut first = None;
        for cert in self.certificates.iter() {
            match cert.check_validity(now) {
                Ok(()) => return Ok(()),
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        self.roots.clone()
    }
}

impl PartialEq for TrustAnchors {
    fn eq(&self, other: &Self) -> bool {
        self.certificates.len() == other.certificates.len()
            && self
                .certificates
                .iter()
                .zip(other.certificates.iter())
                .all(|(a, b)| a.der == b.der)
    }
}

impl Eq for TrustAnchors {}
