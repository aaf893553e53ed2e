//! Makes certificates from nothing: the root that `linkerd install` creates, intermediate CAs and
//! self-signed server certificates for webhooks.

use std::time::SystemTime;

use aws_lc_rs::digest;
use rand::RngCore;
use rustls_pki_types::CertificateDer;

use super::{Issuer, IssuerError};
use crate::{
    certificate::Certificate,
    der::{self, oid},
    key::{Key, KeyError},
};

const MAX_CN_LEN: usize = 64;

/// What a CA certificate says.
#[derive(Debug, Clone)]
pub struct CaProfile {
    pub common_name: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    /// How many CAs may follow below; `None` leaves it open.
    pub path_len: Option<u8>,
    /// Whether to say serverAuth and clientAuth, as `linkerd install` does and `step` does not.
    pub extended_key_usage: bool,
    /// `None` draws a random one.
    pub serial: Option<u8>,
}

/// A CA certificate with its private key.
#[derive(Debug, Clone)]
pub struct Authority {
    pub certificate: Certificate,
    pub key: Key,
}

impl Authority {
    /// The trust anchor `linkerd install` makes when it is given none: also its own issuer.
    pub fn for_install(
        namespace: &str,
        trust_domain: &str,
        now: SystemTime,
    ) -> Result<Self, IssuerError> {
        const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);
        const SKEW: std::time::Duration = std::time::Duration::from_secs(10);
        Self::self_signed(&CaProfile {
            common_name: format!("identity.{namespace}.{trust_domain}"),
            not_before: now - SKEW,
            not_after: now + YEAR + SKEW,
            path_len: None,
            extended_key_usage: true,
            serial: Some(1),
        })
    }

    pub fn self_signed(profile: &CaProfile) -> Result<Self, IssuerError> {
        let key = Key::generate().map_err(IssuerError::Sign)?;
        let subject = der::name(Some(&profile.common_name));
        let der = build(profile, &key, (&subject, None, &key)).map_err(IssuerError::Sign)?;
        Self::new(der, key)
    }

    /// A CA below this one.
    pub fn subordinate(&self, profile: &CaProfile) -> Result<Self, IssuerError> {
        let key = Key::generate().map_err(IssuerError::Sign)?;
        let parent = &self.certificate;
        let by = (
            parent.subject_der.as_slice(),
            parent.subject_key_id.as_deref(),
            &self.key,
        );
        let der = build(profile, &key, by).map_err(IssuerError::Sign)?;
        Self::new(der, key)
    }

    fn new(der: CertificateDer<'static>, key: Key) -> Result<Self, IssuerError> {
        let certificate =
            Certificate::from_der(&der).map_err(|source| IssuerError::Certificate {
                file: "generated certificate".to_owned(),
                source,
            })?;
        Ok(Self { certificate, key })
    }

    /// An issuer with this CA's key, its certificate and nothing above it.
    pub fn issuer(&self) -> Result<Issuer, IssuerError> {
        let chain = vec![self.certificate.clone()];
        Issuer::new(
            "generated certificate",
            chain,
            "generated key",
            self.key.clone(),
        )
    }
}

/// A self-signed certificate, not a CA, for a webhook server.
pub fn self_signed_server(
    dns_name: &str,
    (not_before, not_after): (SystemTime, SystemTime),
) -> Result<(Certificate, Key), IssuerError> {
    let key = Key::generate().map_err(IssuerError::Sign)?;
    let subject = der::name((dns_name.len() <= MAX_CN_LEN).then_some(dns_name));
    let extensions = [
        der::extension(oid::KEY_USAGE, true, &der::bit_string(5, &[0xa0])),
        extended_key_usage(),
        der::extension(oid::BASIC_CONSTRAINTS, true, &der::seq(&[])),
        der::extension(oid::SUBJECT_ALT_NAME, false, &der::dns_names(&[dns_name])),
    ];
    let tbs = Tbs {
        serial: &random_serial(),
        issuer: &subject,
        validity: (not_before, not_after),
        subject: &subject,
        spki: &key.spki_der().map_err(IssuerError::Sign)?,
        extensions: &extensions,
    };
    let der = sign(&tbs, &key).map_err(IssuerError::Sign)?;
    let authority = Authority::new(der, key)?;
    Ok((authority.certificate, authority.key))
}

fn build(
    profile: &CaProfile,
    key: &Key,
    (issuer, issuer_key_id, issuer_key): (&[u8], Option<&[u8]>, &Key),
) -> Result<CertificateDer<'static>, KeyError> {
    let path_len = profile.path_len.map(|n| der::integer(&[n]));
    let constraints = match &path_len {
        Some(n) => der::seq(&[&der::boolean_true(), n]),
        None => der::seq(&[&der::boolean_true()]),
    };
    let key_id = key_id(key);
    let mut extensions = vec![
        // keyCertSign, cRLSign
        der::extension(oid::KEY_USAGE, true, &der::bit_string(1, &[0x06])),
        der::extension(oid::BASIC_CONSTRAINTS, true, &constraints),
        der::extension(oid::SUBJECT_KEY_ID, false, &der::octet_string(&key_id)),
    ];
    if profile.extended_key_usage {
        extensions.push(extended_key_usage());
    }
    if let Some(id) = issuer_key_id {
        extensions.push(authority_key_id(id));
    }
    let serial = profile.serial.map_or_else(random_serial, |n| vec![n]);
    let tbs = Tbs {
        serial: &serial,
        issuer,
        validity: (profile.not_before, profile.not_after),
        subject: &der::name(Some(&profile.common_name)),
        spki: &key.spki_der()?,
        extensions: &extensions,
    };
    sign(&tbs, issuer_key)
}

/// The signed part of a certificate; names, key and extensions are DER already.
pub(super) struct Tbs<'a> {
    pub(super) serial: &'a [u8],
    pub(super) issuer: &'a [u8],
    pub(super) validity: (SystemTime, SystemTime),
    pub(super) subject: &'a [u8],
    pub(super) spki: &'a [u8],
    pub(super) extensions: &'a [Vec<u8>],
}

pub(super) fn sign(tbs: &Tbs<'_>, key: &Key) -> Result<CertificateDer<'static>, KeyError> {
    let extensions: Vec<&[u8]> = tbs.extensions.iter().map(Vec::as_slice).collect();
    let algorithm = key.signature_algorithm();
    let body = der::seq(&[
        &der::explicit(0, &[&der::integer(&[2])]),
        &der::integer(tbs.serial),
        &algorithm,
        tbs.issuer,
        &der::validity(tbs.validity.0, tbs.validity.1),
        tbs.subject,
        tbs.spki,
        &der::explicit(3, &[&der::seq(&extensions)]),
    ]);
    let signature = der::bit_string(0, &key.sign(&body)?);
    Ok(CertificateDer::from(der::seq(&[
        &body, &algorithm, &signature,
    ])))
}

/// 128 random bits, never zero, with the top bit set so that all serials have one length.
pub(super) fn random_serial() -> Vec<u8> {
    let mut serial = [0; 16];
    rand::rng().fill_bytes(&mut serial);
    serial[0] = (serial[0] & 0x7f) | 0x40;
    serial.to_vec()
}

/// The first 160 bits of the SHA-256 of the public key (RFC 7093, method 1).
fn key_id(key: &Key) -> Vec<u8> {
    digest::digest(&digest::SHA256, key.point()).as_ref()[..20].to_vec()
}

pub(super) fn extended_key_usage() -> Vec<u8> {
    let both = der::seq(&[&der::oid(oid::SERVER_AUTH), &der::oid(oid::CLIENT_AUTH)]);
    der::extension(oid::EXTENDED_KEY_USAGE, false, &both)
}

pub(super) fn authority_key_id(id: &[u8]) -> Vec<u8> {
    der::extension(
        oid::AUTHORITY_KEY_ID,
        false,
        &der::seq(&[&der::implicit(0, id)]),
    )
}
