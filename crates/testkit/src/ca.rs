//! A certificate authority for tests: root, intermediate, leaves with Linkerd's names, and
//! leaves that are expired or not valid yet.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use time::{Duration, OffsetDateTime};

/// The trust domain of the names made here.
pub const TRUST_DOMAIN: &str = "cluster.local";

/// One that signs: a root, or an intermediate below one.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    /// The intermediates a leaf presents after itself; without the root.
    chain: Vec<CertificateDer<'static>>,
}

/// A certificate with its key, as a server or client presents it.
#[derive(Debug)]
pub struct Leaf {
    /// The leaf first, then the intermediates up to the root, without it.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub not_after: OffsetDateTime,
}

/// When a certificate is valid, seen from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Since a minute ago, for a day.
    Current,
    /// Ended an hour ago.
    Expired,
    /// Starts in an hour.
    NotYet,
    /// Since a minute ago, until so much from now.
    For(Duration),
}

/// `web.emojivoto.serviceaccount.identity.linkerd.cluster.local`
pub fn identity(service_account: &str, namespace: &str) -> String {
    format!("{service_account}.{namespace}.serviceaccount.identity.linkerd.{TRUST_DOMAIN}")
}

// === impl Ca ===

impl Ca {
    /// A self-signed root, valid for ten years.
    pub fn root(name: &str) -> Self {
        let key = KeyPair::generate().expect("a P-256 key can be made");
        let params = ca_params(name);
        let certificate = params.self_signed(&key).expect("a root can sign itself");
        Self {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            chain: Vec::new(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Linkerd's names for both: `root.linkerd.cluster.local` and below it
    /// `identity.linkerd.cluster.local`.
    pub fn linkerd() -> (Self, Self) {
        let root = Self::root(&format!("root.linkerd.{TRUST_DOMAIN}"));
        let issuer = root.intermediate(&format!("identity.linkerd.{TRUST_DOMAIN}"));
        (root, issuer)
    }

    /// A CA below this one.
    pub fn intermediate(&self, name: &str) -> Self {
        let key = KeyPair::generate().expect("a P-256 key can be made");
        let params = ca_params(name);
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("a CA can sign a CA");
        Self {
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            chain: self.chain_after(certificate.der()),
            issuer: Issuer::new(params, key),
        }
    }

    /// A leaf for a DNS-like identity name, valid now.
    pub fn leaf(&self, name: &str) -> Leaf {
        self.leaf_valid(name, Validity::Current)
    }

    /// A leaf whose time is not now.
    pub fn leaf_valid(&self, name: &str, validity: Validity) -> Leaf {
        let san = SanType::DnsName(name.try_into().expect("an identity name is ASCII"));
        self.issue(name, san, validity)
    }

    /// A leaf for a SPIFFE identity, such as `spiffe://example.org/workload`.
    pub fn leaf_spiffe(&self, uri: &str) -> Leaf {
        let san = SanType::URI(uri.try_into().expect("a SPIFFE URI is ASCII"));
        self.issue(uri, san, Validity::Current)
    }

    fn issue(&self, name: &str, san: SanType, validity: Validity) -> Leaf {
        let key = KeyPair::generate().expect("a P-256 key can be made");
        let mut params = leaf_params(validity);
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![san];
        let not_after = params.not_after;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .expect("a CA can sign a leaf");
        Leaf {
            chain: self.chain_after(certificate.der()),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            not_after,
        }
    }

    /// Signs what a proxy asks for, keeping its subject and names: the chain to send back.
    ///
    /// # Panics
    /// When the request does not parse or its own signature is wrong.
    pub fn sign(&self, csr: &[u8], validity: Validity) -> Vec<CertificateDer<'static>> {
        let csr = CertificateSigningRequestDer::from(csr);
        let mut request =
            CertificateSigningRequestParams::from_der(&csr).expect("a request that parses");
        let limits = leaf_params(validity);
        request.params.not_before = limits.not_before;
        request.params.not_after = limits.not_after;
        request.params.key_usages = limits.key_usages;
        request.params.extended_key_usages = limits.extended_key_usages;
        let certificate = request
            .signed_by(&self.issuer)
            .expect("a CA can sign a request");
        self.chain_after(certificate.der())
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate as PEM: what trust anchors are configured with.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The PKCS#8 key as PEM: what an issuer is configured with.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    fn chain_after(&self, first: &CertificateDer<'static>) -> Vec<CertificateDer<'static>> {
        let mut chain = vec![first.clone()];
        chain.extend(self.chain.iter().cloned());
        chain
    }
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca")
            .field("chain", &self.chain.len())
            .finish_non_exhaustive()
    }
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::hours(2);
    params.not_after = now + Duration::days(3650);
    params
}

fn leaf_params(validity: Validity) -> CertificateParams {
    let now = OffsetDateTime::now_utc();
    let (not_before, not_after) = match validity {
        Validity::Current => (now - Duration::MINUTE, now + Duration::DAY),
        Validity::Expired => (now - Duration::hours(2), now - Duration::HOUR),
        Validity::NotYet => (now + Duration::HOUR, now + Duration::DAY),
        Validity::For(time) => (now - Duration::MINUTE, now + time),
    };
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = not_before;
    params.not_after = not_after;
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_presents_itself_and_the_intermediates_only() {
        let (root, issuer) = Ca::linkerd();
        let leaf = issuer.leaf(&identity("web", "emojivoto"));
        assert_eq!(leaf.chain.len(), 2);
        assert_eq!(&leaf.chain[1], issuer.certificate());
        assert_ne!(&leaf.chain[1], root.certificate());
        assert_eq!(root.leaf("a.b").chain.len(), 1);
    }

    #[test]
    fn a_request_is_signed_with_its_own_key() {
        let (_root, issuer) = Ca::linkerd();
        let name = identity("web", "emojivoto");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name]).expect("a name");
        let csr = params.serialize_request(&key).expect("a request");
        let chain = issuer.sign(csr.der(), Validity::For(Duration::seconds(30)));
        assert_eq!(chain.len(), 2);
        let public = rcgen::PublicKeyData::der_bytes(&key);
        assert!(chain[0].windows(public.len()).any(|part| part == public));
    }

    #[test]
    fn identities_follow_linkerds_scheme() {
        assert_eq!(
            identity("web", "emojivoto"),
            "web.emojivoto.serviceaccount.identity.linkerd.cluster.local"
        );
    }
}
