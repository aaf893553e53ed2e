//! The issuer: loads the CA certificate and key that sign workload certificates, proves that what it
//! would sign is trusted, and signs.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::{
    anchors::TrustAnchors,
    certificate::{Certificate, CertificateError, KeyKind, certificates_from_pem},
    clock::unix_time,
    der::{self, oid},
    key::{Key, KeyError},
    provider::SIGNATURES,
    request::SigningRequest,
};

pub mod generate;

#[derive(Debug, Clone, thiserror::Error)]
pub enum IssuerError {
    #[error("{file}: {source}")]
    Certificate {
        file: String,
        source: CertificateError,
    },
    #[error("{file}: {source}")]
    Key { file: String, source: KeyError },
    #[error("{file}: the issuer certificate's key is {kind}; ECDSA P-256 is needed")]
    KeyKind { file: String, kind: KeyKind },
    #[error("{file}: the certificate {subject:?} is not a CA and cannot issue")]
    NotCa { file: String, subject: String },
    #[error("{key_file} does not hold the private key of the certificate in {file}")]
    KeyMismatch { file: String, key_file: String },
    #[error(
        "{file}: certificates signed by this issuer do not verify against the trust anchors: {reason}"
    )]
    NotTrusted { file: String, reason: String },
    #[error("cannot sign: {0}")]
    Sign(KeyError),
    #[error("only ECDSA public keys are certified, not {0}")]
    PublicKey(KeyKind),
}

/// A CA certificate with its key, and the certificates between it and the root.
#[derive(Debug, Clone)]
pub struct Issuer {
    file: String,
    key: Key,
    /// The issuer's own certificate first, then towards the root as far as the bundle goes.
    chain: Vec<Certificate>,
}

/// How long certificates live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub lifetime: Duration,
    /// Added at both ends for peers whose clocks differ.
    pub clock_skew: Duration,
}

/// A fresh workload certificate.
#[derive(Debug, Clone)]
pub struct Issued {
    pub leaf: CertificateDer<'static>,
    /// Issuer first, then towards the root.
    pub intermediates: Vec<CertificateDer<'static>>,
    pub not_after: SystemTime,
}

/// The period in which the issuer's chain, anchor included, is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedPeriod {
    /// Latest start and the certificate that has it.
    start: (SystemTime, String),
    /// Earliest end and the certificate that has it.
    end: (SystemTime, String),
}

impl TrustedPeriod {
    /// Cheap enough for every request: two comparisons.
    pub fn check(&self, now: SystemTime) -> Result<(), CertificateError> {
        if now > self.end.0 {
            let (not_after, subject) = self.end.clone();
            return Err(CertificateError::Expired { subject, not_after });
        }
        if now < self.start.0 {
            let (not_before, subject) = self.start.clone();
            return Err(CertificateError::NotYetValid {
                subject,
                not_before,
            });
        }
        Ok(())
    }
}

impl Issuer {
    /// Reads certificate bundle and key. The file names go into errors.
    pub fn from_pem(certificates: (&str, &[u8]), key: (&str, &[u8])) -> Result<Self, IssuerError> {
        let usual = |kind| kind == KeyKind::EcdsaP256;
        Self::read(certificates, key, usual, Key::from_pem)
    }

    /// Like [`Issuer::from_pem`], for whoever has to work with the issuer there is: its key may be
    /// on any curve.
    pub fn from_pem_on_any_curve(
        certificates: (&str, &[u8]),
        key: (&str, &[u8]),
    ) -> Result<Self, IssuerError> {
        Self::read(
            certificates,
            key,
            KeyKind::is_ecdsa,
            Key::from_pem_on_any_curve,
        )
    }

    fn read(
        (file, certificates): (&str, &[u8]),
        (key_file, key): (&str, &[u8]),
        takes: impl Fn(KeyKind) -> bool,
        read: impl Fn(&[u8]) -> Result<Key, KeyError>,
    ) -> Result<Self, IssuerError> {
        let chain =
            certificates_from_pem(certificates).map_err(|source| IssuerError::Certificate {
                file: file.to_owned(),
                source,
            })?;
        let kind = chain[0].key;
        if !takes(kind) {
            return Err(IssuerError::KeyKind {
                file: file.to_owned(),
                kind,
            });
        }
        let key = read(key).map_err(|source| IssuerError::Key {
            file: key_file.to_owned(),
            source,
        })?;
        Self::new(file, chain, key_file, key)
    }

    fn new(
        file: &str,
        chain: Vec<Certificate>,
        key_file: &str,
        key: Key,
    ) -> Result<Self, IssuerError> {
        let own = &chain[0];
        if key.spki_der().map_err(IssuerError::Sign)? != own.spki_der {
            return Err(IssuerError::KeyMismatch {
                file: file.to_owned(),
                key_file: key_file.to_owned(),
            });
        }
        if !own.is_ca || !own.may_sign {
            return Err(IssuerError::NotCa {
                file: file.to_owned(),
                subject: own.subject.clone(),
            });
        }
        Ok(Self {
            file: file.to_owned(),
            key,
            chain,
        })
    }

    pub fn certificate(&self) -> &Certificate {
        &self.chain[0]
    }

    /// The issuer's own certificate first, then towards the root as far as the bundle goes.
    pub fn chain(&self) -> &[Certificate] {
        &self.chain
    }

    /// Earliest end in the issuer's own bundle.
    pub fn not_after(&self) -> SystemTime {
        self.chain
            .iter()
            .map(|c| c.not_after)
            .min()
            .unwrap_or(self.chain[0].not_after)
    }

    /// Proves by signing and verifying a probe for `name` that peers will believe this issuer now,
    /// and tells for how long.
    pub fn verify(
        &self,
        anchors: &TrustAnchors,
        name: &str,
        now: SystemTime,
    ) -> Result<TrustedPeriod, IssuerError> {
        for cert in &self.chain {
            cert.check_validity(now)
                .map_err(|source| IssuerError::Certificate {
                    file: self.file.clone(),
                    source,
                })?;
        }
        let not_trusted = |reason: String| IssuerError::NotTrusted {
            file: self.file.clone(),
            reason,
        };
        let probe = self.leaf(
            &self.certificate().spki_der,
            (name, true),
            (now - Duration::from_secs(60), now + Duration::from_secs(60)),
        )?;
        let intermediates: Vec<_> = self.chain.iter().map(|c| c.der.clone()).collect();
        let roots = anchors.roots();
        let end_entity =
            EndEntityCert::try_from(&probe).map_err(|error| not_trusted(error.to_string()))?;
        let path = end_entity
            .verify_for_usage(
                SIGNATURES.all,
                &roots.roots,
                &intermediates,
                unix_time(now),
                webpki::KeyUsage::server_auth(),
                None,
                None,
            )
            .map_err(|error| not_trusted(error.to_string()))?;
        let root = anchors
            .certificates()
            .iter()
            .find(|c| webpki::anchor_from_trusted_cert(&c.der).is_ok_and(|a| a == *path.anchor()))
            .ok_or_else(|| not_trusted("the anchor is gone".to_owned()))?;
        root.check_validity(now)
            .map_err(|error| not_trusted(error.to_string()))?;
        let all = || self.chain.iter().chain(std::iter::once(root));
        let start = all().max_by_key(|c| c.not_before).unwrap_or(root);
        let end = all().min_by_key(|c| c.not_after).unwrap_or(root);
        Ok(TrustedPeriod {
            start: (start.not_before, start.subject.clone()),
            end: (end.not_after, end.subject.clone()),
        })
    }

    /// Signs a request that has passed [`SigningRequest::check_names`] for `name`. Only the checked
    /// name and the public key are taken from it.
    pub fn issue(
        &self,
        request: &SigningRequest,
        name: &str,
        validity: Validity,
        now: SystemTime,
    ) -> Result<Issued, IssuerError> {
        if !request.key.is_ecdsa() {
            return Err(IssuerError::PublicKey(request.key));
        }
        let not_before = now - validity.clock_skew;
        let not_after = (now + validity.lifetime + validity.clock_skew).min(self.not_after());
        let in_subject = request.common_names.iter().any(|cn| !cn.is_empty());
        let leaf = self.leaf(
            &request.spki_der,
            (name, in_subject),
            (not_before, not_after),
        )?;
        Ok(Issued {
            leaf,
            intermediates: self.chain.iter().map(|c| c.der.clone()).collect(),
            not_after: crate::certificate::whole_seconds(not_after),
        })
    }

    fn leaf(
        &self,
        spki: &[u8],
        (name, in_subject): (&str, bool),
        (not_before, not_after): (SystemTime, SystemTime),
    ) -> Result<CertificateDer<'static>, IssuerError> {
        let mut extensions = vec![
            // digitalSignature, keyEncipherment
            der::extension(oid::KEY_USAGE, true, &der::bit_string(5, &[0xa0])),
            generate::extended_key_usage(),
            der::extension(oid::BASIC_CONSTRAINTS, true, &der::seq(&[])),
            // Critical when nothing else names the subject.
            der::extension(oid::SUBJECT_ALT_NAME, !in_subject, &der::dns_names(&[name])),
        ];
        if let Some(id) = &self.certificate().subject_key_id {
            extensions.push(generate::authority_key_id(id));
        }
        let tbs = generate::Tbs {
            serial: &generate::random_serial(),
            issuer: &self.certificate().subject_der,
            validity: (not_before, not_after),
            subject: &der::name(in_subject.then_some(name)),
            spki,
            extensions: &extensions,
        };
        generate::sign(&tbs, &self.key).map_err(IssuerError::Sign)
    }
}

#[cfg(test)]
mod tests;
