//! The credential store: one writer publishes a certificate or anchors, connections take snapshots.
//! A new snapshot changes new handshakes only; connections keep the one they began with.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use arc_swap::ArcSwap;
use linkerd_core::identity::Id;
use parking_lot::Mutex;
use rustls::{
    ClientConfig, ServerConfig, SignatureScheme,
    client::ResolvesClientCert,
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier},
    sign::CertifiedKey,
    version::TLS13,
};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::sync::watch;

use crate::{
    anchors::TrustAnchors,
    certificate::{Certificate, CertificateError},
    clock::{Clock, RustlsTime, SystemClock, unix_seconds, unix_time},
    key::Key,
    peer::Alpn,
    provider::provider,
    session::{ClientSessions, ServerSessions},
    verify::{ServerVerifier, verify_chain},
};

/// Who this process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    pub id: Id,
    /// The SNI under which peers reach us.
    pub server_name: String,
}

impl Local {
    /// Identity and server name in one, as with Linkerd's own issuer.
    pub fn new(id: Id) -> Self {
        let server_name = id.as_str().to_owned();
        Self { id, server_name }
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    #[error("no certificate given")]
    Empty,
    #[error("the certificate is unusable")]
    Certificate(#[from] CertificateError),
    #[error("the private key does not belong to the certificate")]
    KeyMismatch,
    #[error("our own certificate does not verify against the trust anchors")]
    Verify(#[source] rustls::Error),
}

/// Generations are unique in the process, so that a [`crate::Peer`] may serve several stores.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Holds the current credentials. Reading is one atomic load; publishing swaps.
pub struct Store {
    local: Arc<Local>,
    clock: Arc<dyn Clock>,
    /// Whether sessions may be resumed.
    resumption: bool,
    current: ArcSwap<Snapshot>,
    changed: watch::Sender<u64>,
    /// Serialises writers; a publish and an anchor change must not lose each other.
    writer: Mutex<()>,
}

impl Store {
    pub fn new(anchors: TrustAnchors, local: Local) -> Self {
        Self::with_clock(anchors, local, Arc::new(SystemClock))
    }

    pub fn with_clock(anchors: TrustAnchors, local: Local, clock: Arc<dyn Clock>) -> Self {
        let local = Arc::new(local);
        let snapshot = Snapshot::build(local.clone(), anchors, None, clock.clone(), true);
        let (changed, _) = watch::channel(snapshot.generation);
        Self {
            local,
            clock,
            resumption: true,
            current: ArcSwap::from_pointee(snapshot),
            changed,
            writer: Mutex::new(()),
        }
    }

    /// Every handshake is a full one, on both sides.
    #[must_use]
    pub fn without_resumption(mut self) -> Self {
        self.resumption = false;
        let current = self.snapshot();
        self.swap(current.anchors.clone(), current.own.clone());
        self
    }

    pub fn local(&self) -> &Local {
        &self.local
    }

    /// The current credentials; take one per connection.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Wakes up with the generation whenever new credentials or anchors are in place.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Waits until the first certificate has been published.
    pub async fn certified(&self) {
        let mut changed = self.subscribe();
        while !self.snapshot().is_certified() {
            changed
                .changed()
                .await
                .expect("the store outlives its own borrow");
        }
    }

    /// Checks and publishes a certificate: it must be ours, match the key and chain to the anchors.
    /// `chain` is leaf first, then intermediates towards the root. Returns the new generation.
    pub fn publish(
        &self,
        chain: Vec<CertificateDer<'static>>,
        key: &Key,
    ) -> Result<u64, PublishError> {
        let (leaf, intermediates) = chain.split_first().ok_or(PublishError::Empty)?;
        let certificate = Certificate::from_der(leaf)?;
        let _writer = self.writer.lock();
        let anchors = self.current.load().anchors.clone();
        let now = unix_time(self.clock.now());
        verify_chain(leaf, intermediates, &anchors.roots(), &self.local.id, now)
            .map_err(PublishError::Verify)?;
        let mut not_after = unix_seconds(certificate.not_after);
        for cert in intermediates {
            not_after = not_after.min(crate::certificate::not_after(cert)?);
        }
        let key = CertifiedKey::new(chain, key.tls());
        if key.keys_match().is_err() {
            return Err(PublishError::KeyMismatch);
        }
        let own = Own {
            key: Arc::new(key),
            certificate: Arc::new(certificate),
            not_after,
        };
        Ok(self.swap(anchors, Some(own)))
    }

    /// Replaces the trust anchors; the certificate stays. Returns the new generation, or the old
    /// one when nothing changed.
    pub fn set_anchors(&self, anchors: TrustAnchors) -> u64 {
        let _writer = self.writer.lock();
        let current = self.snapshot();
        if current.anchors == anchors {
            return current.generation;
        }
        self.swap(anchors, current.own.clone())
    }

    fn swap(&self, anchors: TrustAnchors, own: Option<Own>) -> u64 {
        let next = Snapshot::build(
            self.local.clone(),
            anchors,
            own,
            self.clock.clone(),
            self.resumption,
        );
        let generation = next.generation;
        self.current.store(Arc::new(next));
        self.changed.send_replace(generation);
        generation
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

/// Our certificate and key.
#[derive(Clone)]
struct Own {
    key: Arc<CertifiedKey>,
    certificate: Arc<Certificate>,
    /// Earliest end in the chain.
    not_after: u64,
}

/// Credentials at one moment, with the rustls configurations made from them.
pub struct Snapshot {
    generation: u64,
    local: Arc<Local>,
    anchors: TrustAnchors,
    clock: Arc<dyn Clock>,
    own: Option<Own>,
    resumption: bool,
    client: ClientConfig,
    server: Option<Servers>,
}

struct Servers {
    plain: Arc<ServerConfig>,
    header: Arc<ServerConfig>,
}

impl Snapshot {
    fn build(
        local: Arc<Local>,
        anchors: TrustAnchors,
        own: Option<Own>,
        clock: Arc<dyn Clock>,
        resumption: bool,
    ) -> Self {
        Self {
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            client: client_template(&local, &anchors, own.as_ref(), clock.clone()),
            server: own
                .as_ref()
                .map(|own| servers(&anchors, own, clock.clone(), resumption)),
            local,
            anchors,
            clock,
            own,
            resumption,
        }
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn local(&self) -> &Local {
        &self.local
    }

    pub fn anchors(&self) -> &TrustAnchors {
        &self.anchors
    }

    pub fn is_certified(&self) -> bool {
        self.own.is_some()
    }

    /// Our certificate, once there is one.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.own.as_ref().map(|own| &*own.certificate)
    }

    /// Fingerprint of the certificate ours was issued by, when it came along.
    pub fn issuer_sha256(&self) -> Option<String> {
        let issuer = self.own.as_ref()?.key.cert.get(1)?;
        Some(crate::certificate::sha256(issuer))
    }

    /// Whether our certificate would verify against `anchors` now; false without one.
    pub fn chains_to(&self, anchors: &TrustAnchors) -> bool {
        let Some((leaf, intermediates)) = self.own.as_ref().and_then(|o| o.key.cert.split_first())
        else {
            return false;
        };
        let (roots, now) = (anchors.roots(), unix_time(self.clock.now()));
        verify_chain(leaf, intermediates, &roots, &self.local.id, now).is_ok()
    }

    /// The configuration to accept connections with; `None` before the first certificate.
    pub fn server_config(&self, alpn: Alpn) -> Option<Arc<ServerConfig>> {
        let servers = self.server.as_ref()?;
        Some(match alpn {
            Alpn::None => servers.plain.clone(),
            Alpn::TransportHeader => servers.header.clone(),
        })
    }

    /// The time as this snapshot's configurations see it.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    pub(crate) fn own_not_after(&self) -> Option<u64> {
        self.own.as_ref().map(|own| own.not_after)
    }

    pub(crate) fn resumption(&self) -> bool {
        self.resumption
    }

    pub(crate) fn client_template(&self) -> &ClientConfig {
        &self.client
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("generation", &self.generation)
            .field("local", &self.local)
            .field("certified", &self.is_certified())
            .finish_non_exhaustive()
    }
}

/// A client configuration without a peer: [`crate::Peer`] sets verifier and sessions. Until then it
/// only believes ourselves.
fn client_template(
    local: &Local,
    anchors: &TrustAnchors,
    own: Option<&Own>,
    clock: Arc<dyn Clock>,
) -> ClientConfig {
    let nobody = ServerName::try_from("localhost").expect("a valid name");
    let verifier = ServerVerifier {
        expected: local.id.clone(),
        roots: anchors.roots(),
        sessions: Arc::new(ClientSessions::new(clock.clone(), nobody, Some(0))),
    };
    let mut config = ClientConfig::builder_with_details(provider(), Arc::new(RustlsTime(clock)))
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3 suites")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(Resolver(own.map(|own| own.key.clone()))));
    config.enable_sni = true;
    config.enable_early_data = false;
    config
}

fn servers(anchors: &TrustAnchors, own: &Own, clock: Arc<dyn Clock>, resumption: bool) -> Servers {
    let verifier = WebPkiClientVerifier::builder_with_provider(anchors.roots(), provider())
        .clear_root_hint_subjects()
        .allow_unauthenticated()
        .build()
        .expect("a bundle is never empty");
    let time = Arc::new(RustlsTime(clock.clone()));
    let mut plain = ServerConfig::builder_with_details(provider(), time)
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3 suites")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(Resolver(Some(own.key.clone()))));
    if resumption {
        plain.session_storage = Arc::new(ServerSessions::new(clock, own.not_after));
        // Each connection, full or resumed, leaves one ticket: as many as a pool needs to come back.
        plain.send_tls13_tickets = 1;
    } else {
        plain.session_storage = Arc::new(NoServerSessionStorage {});
        plain.send_tls13_tickets = 0;
    }
    plain.max_early_data_size = 0;
    let mut header = plain.clone();
    header.alpn_protocols = Alpn::TransportHeader.protocols();
    Servers {
        plain: Arc::new(plain),
        header: Arc::new(header),
    }
}

/// Presents our certificate to peers that can verify it.
#[derive(Debug)]
struct Resolver(Option<Arc<CertifiedKey>>);

impl Resolver {
    fn resolve_for(&self, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        schemes
            .contains(&SignatureScheme::ECDSA_NISTP256_SHA256)
            .then(|| self.0.clone())
            .flatten()
    }
}

impl ResolvesClientCert for Resolver {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.resolve_for(schemes)
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.resolve_for(hello.signature_schemes())
    }
}
