//! Certificate signing requests: made by a workload, read and checked by the issuer.

use linkerd_core::identity::Id;
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::ParsedExtension,
    prelude::{FromDer, GeneralName},
};

use crate::{
    certificate::{KeyKind, key_kind},
    der::{self, oid},
    key::{Key, KeyError},
};

/// Larger than any honest request; a P-256 one is about 400 bytes.
pub const MAX_REQUEST_LEN: usize = 16 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("certificate signing request is larger than {MAX_REQUEST_LEN} bytes")]
    TooLarge,
    #[error("failed to parse CSR: {0}")]
    Parse(String),
    #[error("failed to parse CSR: bytes follow the request")]
    TrailingBytes,
    #[error("failed to parse CSR: more than one subject alternative name extension")]
    DuplicateNames,
    #[error("the CSR's signature does not verify")]
    Signature,
}

/// Why a request may not be granted under the name it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("CSR must have exactly one DNSName")]
    NotOneDnsName,
    #[error("CSR name does not match requested identity: csr={csr}; req={requested}")]
    Mismatch { csr: String, requested: String },
    #[error("invalid CommonName: {0}")]
    CommonName(String),
    #[error("cannot validate email addresses")]
    Email,
    #[error("cannot validate IP addresses")]
    Ip,
    #[error("cannot validate URIs")]
    Uri,
}

/// A parsed request. Parsing proves nothing; see [`SigningRequest::verify_signature`].
#[derive(Debug, Clone)]
pub struct SigningRequest {
    der: Vec<u8>,
    pub common_names: Vec<String>,
    pub dns_names: Vec<String>,
    pub key: KeyKind,
    emails: usize,
    ips: usize,
    uris: usize,
    pub(crate) spki_der: Vec<u8>,
}

impl SigningRequest {
    /// The request a workload sends: its name as common name and as only DNS name.
    pub fn create(name: &str, key: &Key) -> Result<Vec<u8>, KeyError> {
        let names = der::extension(oid::SUBJECT_ALT_NAME, false, &der::dns_names(&[name]));
        let extensions = der::tlv(der::SET, &[&der::seq(&[&names])]);
        let attribute = der::seq(&[&der::oid(oid::EXTENSION_REQUEST), &extensions]);
        let info = der::seq(&[
            &der::integer(&[]),
            &der::name(Some(name)),
            &key.spki_der()?,
            &der::explicit(0, &[&attribute]),
        ]);
        let signature = der::bit_string(0, &key.sign(&info)?);
        Ok(der::seq(&[&info, &key.signature_algorithm(), &signature]))
    }

    pub fn from_der(bytes: &[u8]) -> Result<Self, RequestError> {
        if bytes.len() > MAX_REQUEST_LEN {
            return Err(RequestError::TooLarge);
        }
        let (rest, csr) = X509CertificationRequest::from_der(bytes)
            .map_err(|error| RequestError::Parse(error.to_string()))?;
        if !rest.is_empty() {
            return Err(RequestError::TrailingBytes);
        }
        let info = &csr.certification_request_info;
        let mut request = Self {
            der: bytes.to_vec(),
            common_names: info
                .subject
                .iter_common_name()
                .map(|cn| cn.as_str().map(str::to_owned))
                .collect::<Result<_, _>>()
                .map_err(|error| RequestError::Parse(error.to_string()))?,
            dns_names: Vec::new(),
            key: key_kind(&info.subject_pki),
            emails: 0,
            ips: 0,
            uris: 0,
            spki_der: info.subject_pki.raw.to_vec(),
        };
        let mut seen = false;
        for attribute in info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(wanted) = attribute.parsed_attribute() else {
                continue;
            };
            for extension in &wanted.extensions {
                match extension.parsed_extension() {
                    ParsedExtension::SubjectAlternativeName(names) => {
                        if std::mem::replace(&mut seen, true) {
                            return Err(RequestError::DuplicateNames);
                        }
                        names
                            .general_names
                            .iter()
                            .for_each(|name| request.add_name(name));
                    }
                    ParsedExtension::ParseError { error } => {
                        return Err(RequestError::Parse(error.to_string()));
                    }
                    _ => {}
                }
            }
        }
        Ok(request)
    }

    fn add_name(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(dns) => self.dns_names.push((*dns).to_owned()),
            GeneralName::RFC822Name(_) => self.emails += 1,
            GeneralName::IPAddress(_) => self.ips += 1,
            GeneralName::URI(_) => self.uris += 1,
            // Other kinds never reach the certificate: only the one DNS name does.
            _ => {}
        }
    }

    /// Proof of possession: the request is signed by the key it wants certified.
    pub fn verify_signature(&self) -> Result<(), RequestError> {
        let (_, csr) = X509CertificationRequest::from_der(&self.der)
            .map_err(|error| RequestError::Parse(error.to_string()))?;
        csr.verify_signature().map_err(|_| RequestError::Signature)
    }

    /// Whether this is the request of `key`.
    pub fn is_for(&self, key: &Key) -> bool {
        key.spki_der().is_ok_and(|spki| spki == self.spki_der)
    }

    /// The request asks for `requested` and for nothing else.
    pub fn check_names(&self, requested: &str) -> Result<(), NameError> {
        let [dns] = self.dns_names.as_slice() else {
            return Err(NameError::NotOneDnsName);
        };
        if dns != requested {
            return Err(NameError::Mismatch {
                csr: dns.clone(),
                requested: requested.to_owned(),
            });
        }
        if let Some(bad) = self
            .common_names
            .iter()
            .find(|cn| !cn.is_empty() && *cn != requested)
        {
            return Err(NameError::CommonName(bad.clone()));
        }
        match (self.emails, self.ips, self.uris) {
            (0, 0, 0) => Ok(()),
            (0, 0, _) => Err(NameError::Uri),
            (0, _, _) => Err(NameError::Ip),
            _ => Err(NameError::Email),
        }
    }

    /// The identity asked for, when it is a usable name.
    pub fn id(&self) -> Option<Id> {
        let [dns] = self.dns_names.as_slice() else {
            return None;
        };
        Id::parse_dns(dns).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "web.ns.serviceaccount.identity.linkerd.cluster.local";

    #[test]
    fn round_trip() {
        let key = Key::generate().expect("generates");
        let der = SigningRequest::create(NAME, &key).expect("signs");
        let request = SigningRequest::from_der(&der).expect("parses");
        assert_eq!(request.dns_names, [NAME]);
        assert_eq!(request.common_names, [NAME]);
        assert_eq!(request.key, KeyKind::EcdsaP256);
        request.verify_signature().expect("signed by its own key");
        request.check_names(NAME).expect("asks for its name");
        assert_eq!(request.id().expect("a name").as_str(), NAME);
    }

    #[test]
    fn a_foreign_signature_is_refused() {
        let (mine, other) = (Key::generate().expect("key"), Key::generate().expect("key"));
        let der = SigningRequest::create(NAME, &mine).expect("signs");
        let mine_spki = mine.spki_der().expect("spki");
        let at = der
            .windows(mine_spki.len())
            .position(|w| w == mine_spki)
            .expect("holds the key");
        let mut forged = der;
        forged[at..at + mine_spki.len()].copy_from_slice(&other.spki_der().expect("spki"));
        let request = SigningRequest::from_der(&forged).expect("still well formed");
        assert_eq!(request.verify_signature(), Err(RequestError::Signature));
    }

    #[test]
    fn garbage() {
        let key = Key::generate().expect("generates");
        let good = SigningRequest::create(NAME, &key).expect("signs");
        let mut trailing = good.clone();
        trailing.push(0);
        let pem = crate::key::pem_block("CERTIFICATE REQUEST", &good);
        for (name, bytes) in [
            ("empty", &[][..]),
            ("text", b"hello"),
            ("pem", pem.as_bytes()),
            ("truncated", &good[..good.len() - 1]),
            ("trailing", &trailing),
            ("huge", &vec![0x30; MAX_REQUEST_LEN + 1]),
        ] {
            assert!(SigningRequest::from_der(bytes).is_err(), "{name}");
        }
    }

    #[test]
    fn names() {
        let base = SigningRequest {
            der: Vec::new(),
            common_names: vec![],
            dns_names: vec![NAME.to_owned()],
            key: KeyKind::EcdsaP256,
            emails: 0,
            ips: 0,
            uris: 0,
            spki_der: Vec::new(),
        };
        let with = |edit: &dyn Fn(&mut SigningRequest)| {
            let mut r = base.clone();
            edit(&mut r);
            r.check_names(NAME).map_err(|e| e.to_string())
        };
        let mismatch = format!("CSR name does not match requested identity: csr=other; req={NAME}");
        for (name, got, want) in [
            ("plain", with(&|_| {}), Ok(())),
            (
                "empty common name",
                with(&|r| r.common_names = vec![String::new()]),
                Ok(()),
            ),
            (
                "same common name",
                with(&|r| r.common_names = vec![NAME.to_owned()]),
                Ok(()),
            ),
            (
                "other common name",
                with(&|r| r.common_names = vec!["x".to_owned()]),
                Err("invalid CommonName: x"),
            ),
            (
                "no dns",
                with(&|r| r.dns_names.clear()),
                Err("CSR must have exactly one DNSName"),
            ),
            (
                "two dns",
                with(&|r| r.dns_names.push("b".to_owned())),
                Err("CSR must have exactly one DNSName"),
            ),
            (
                "other dns",
                with(&|r| r.dns_names = vec!["other".to_owned()]),
                Err(mismatch.as_str()),
            ),
            (
                "email",
                with(&|r| r.emails = 1),
                Err("cannot validate email addresses"),
            ),
            (
                "ip",
                with(&|r| r.ips = 1),
                Err("cannot validate IP addresses"),
            ),
            ("uri", with(&|r| r.uris = 1), Err("cannot validate URIs")),
        ] {
            assert_eq!(got, want.map_err(str::to_owned), "{name}");
        }
    }
}
