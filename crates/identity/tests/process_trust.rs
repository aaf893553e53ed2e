//! Trust anchors told by the service: proxies that know them only from their start go through a
//! whole rotation without a restart, without a mounted bundle and without a failed handshake.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use linkerd_api::proto::identity::{
    CertifyRequest, CertifyResponse,
    identity_server::{Identity, IdentityServer},
};
use linkerd_core::identity::Id;
use linkerd_tls::{
    Alpn, HANDSHAKE_DEADLINE, Local, Peer, Store, TrustAnchors, handshake,
    issuer::generate::Authority as Ca, renewal, rotation,
};
use service::{Disk, Service, connect, eventually, identity as id_of, profile};
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Status, transport::Channel};
use trust::TrustFollower;

#[allow(dead_code, unreachable_pub, reason = "used in full by the proxy")]
#[path = "../../proxy/src/control/identity.rs"]
mod identity;
#[allow(dead_code, unreachable_pub, reason = "used in full by the proxy")]
#[path = "../../proxy/src/identity_bootstrap.rs"]
mod identity_bootstrap;
#[allow(dead_code, unreachable_pub, reason = "shared by several test binaries")]
#[path = "support/service.rs"]
mod service;
#[allow(dead_code, unreachable_pub, reason = "used in full by the proxy")]
#[path = "../../proxy/src/control/trust.rs"]
mod trust;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Pauses short enough for a test, in the proportions of the real ones.
const ROTATION: rotation::Config = rotation::Config {
    min_grace: Duration::from_millis(500),
    renew_again: Duration::from_millis(500),
};

fn anchors(of: &[&Ca]) -> TrustAnchors {
    let certificates = of.iter().map(|ca| ca.certificate.clone()).collect();
    TrustAnchors::from_certificates(certificates).expect("anchors")
}

/// A proxy as far as certificates go; its certificates last for a day.
struct Workload {
    name: String,
    store: Arc<Store>,
    dir: tempfile::TempDir,
}

impl Workload {
    fn start<C, F>(sa: &str, believes: TrustAnchors, connector: C) -> Self
    where
        C: FnMut() -> F + Clone + Send + 'static,
        F: Future<Output = Result<Channel, BoxError>> + Send + 'static,
    {
        let name = id_of(sa, "load");
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("token");
        std::fs::write(&file, format!("token-{sa}")).expect("writes");
        let local = Local::new(Id::parse(&name).expect("valid"));
        let store = Arc::new(Store::new(believes, local));
        let credentials = identity_bootstrap::bootstrap(dir.path(), &name).expect("bootstraps");
        let renew = Arc::new(Notify::new());
        let certification = identity::Certification::new(
            store.clone(),
            credentials,
            identity::TokenFile::open(file).expect("a token"),
            renewal::Config::default(),
            connector.clone(),
            identity::Metrics::register(&mut Default::default()),
        );
        let follower = TrustFollower::new(
            store.clone(),
            connector,
            renew.clone(),
            Some(dir.path().to_owned()),
            ROTATION,
        );
        linkerd_runtime::spawn("certification", certification.hastened_by(renew).run());
        linkerd_runtime::spawn("trust", follower.run());
        Self { name, store, dir }
    }

    fn of(service: &Service, sa: &str, believes: TrustAnchors) -> Self {
        service.reviewer.user(
            &format!("token-{sa}"),
            &format!("system:serviceaccount:load:{sa}"),
        );
        let addr = service.addr;
        Self::start(sa, believes, move || connect(addr))
    }

    async fn certified(&self) {
        tokio::time::timeout(Duration::from_secs(60), identity::certified(&self.store))
            .await
            .expect("a certificate within a minute");
    }

    fn believes(&self, want: &TrustAnchors) -> bool {
        self.store.snapshot().anchors().same_as(want)
    }

    fn issued_by(&self, ca: &Ca) -> bool {
        self.store.snapshot().issuer_sha256() == Some(ca.certificate.sha256())
    }
}

/// One mutual handshake.
async fn meet(from: &Workload, to: &Workload) -> Result<(), String> {
    let (near, far) = tokio::io::duplex(4096);
    let (ours, theirs) = (from.store.snapshot(), to.store.snapshot());
    let peer = Peer::new(Id::parse(&to.name).expect("valid"), None).expect("a peer");
    let (client, server) = tokio::join!(
        handshake::connect(near, &peer, &ours, Alpn::None, HANDSHAKE_DEADLINE),
        handshake::accept(far, &theirs, Alpn::None, HANDSHAKE_DEADLINE),
    );
    client.map_err(|error| format!("client: {error:?}"))?;
    let (_, id) = server.map_err(|error| format!("server: {error:?}"))?;
    match id {
        Some(id) if id.as_str() == from.name => Ok(()),
        id => Err(format!("the server saw {id:?} instead of {}", from.name)),
    }
}

/// Handshakes in both directions until told to stop; how many, or the first failure.
fn load(
    pair: &Arc<[Workload; 2]>,
    stop: &Arc<AtomicBool>,
    count: &Arc<AtomicU64>,
) -> tokio::task::JoinHandle<Result<(), String>> {
    let (pair, stop, count) = (pair.clone(), stop.clone(), count.clone());
    linkerd_runtime::spawn("load", async move {
        let [a, b] = &*pair;
        while !stop.load(Ordering::Relaxed) {
            meet(a, b).await?;
            meet(b, a).await?;
            count.fetch_add(2, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
        Ok(())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_nobody_restarts_for() {
    let old = Ca::self_signed(&profile("old root")).expect("a root");
    let new = Ca::self_signed(&profile("new root")).expect("a root");
    let old_issuer = old.subordinate(&profile("old issuer")).expect("an issuer");
    let new_issuer = new.subordinate(&profile("new issuer")).expect("an issuer");
    let disk = Disk::new(&old, &old_issuer);
    let service = Service::start(&disk).await;
    let pair: Arc<[Workload; 2]> = Arc::new([
        Workload::of(&service, "a", anchors(&[&old])),
        Workload::of(&service, "b", anchors(&[&old])),
    ]);
    for workload in pair.iter() {
        workload.certified().await;
    }
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let handshakes = load(&pair, &stop, &count);

    disk.put_anchors(&[&old, &new]);
    let both = anchors(&[&old, &new]);
    eventually("both anchors in both proxies", || {
        pair.iter().all(|w| w.believes(&both))
    })
    .await;
    disk.put_issuer(&new_issuer);
    // The certificates in use last for a day: without the hint nobody would renew here.
    eventually("certificates of the new issuer", || {
        pair.iter().all(|w| w.issued_by(&new_issuer))
    })
    .await;
    disk.put_anchors(&[&new]);
    let only = anchors(&[&new]);
    eventually("the old anchor to be gone", || {
        pair.iter().all(|w| w.believes(&only))
    })
    .await;
    let before = count.load(Ordering::Relaxed);
    eventually("handshakes afterwards", || {
        count.load(Ordering::Relaxed) > before + 20
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    handshakes
        .await
        .expect("the task ends")
        .expect("no handshake failed");

    // A container that starts again in the same pod knows what its predecessor was told.
    for workload in pair.iter() {
        let saved = identity_bootstrap::saved_anchors(workload.dir.path()).expect("kept");
        assert!(saved.same_as(&only));
    }
    // And whoever has the certificate of the old root is a stranger now.
    assert!(!pair[0].store.snapshot().chains_to(&anchors(&[&old])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hasty_operator_breaks_nothing() {
    // Issuer swapped and old anchor dropped while every certificate is still of the old issuer.
    let old = Ca::self_signed(&profile("old root")).expect("a root");
    let new = Ca::self_signed(&profile("new root")).expect("a root");
    let old_issuer = old.subordinate(&profile("old issuer")).expect("an issuer");
    let new_issuer = new.subordinate(&profile("new issuer")).expect("an issuer");
    let disk = Disk::new(&old, &old_issuer);
    let service = Service::start(&disk).await;
    let both = anchors(&[&old, &new]);
    let pair: Arc<[Workload; 2]> = Arc::new([
        Workload::of(&service, "a", both.clone()),
        Workload::of(&service, "b", both),
    ]);
    for workload in pair.iter() {
        workload.certified().await;
    }
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let handshakes = load(&pair, &stop, &count);
    disk.put_anchors(&[&new]);
    disk.put_issuer(&new_issuer);
    let only = anchors(&[&new]);
    eventually("everything to be new", || {
        pair.iter()
            .all(|w| w.believes(&only) && w.issued_by(&new_issuer))
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    handshakes
        .await
        .expect("the task ends")
        .expect("no handshake failed");
}

#[tokio::test]
async fn a_new_pod_with_old_anchors_is_helped_before_its_first_certificate() {
    let old = Ca::self_signed(&profile("old root")).expect("a root");
    let new = Ca::self_signed(&profile("new root")).expect("a root");
    let new_issuer = new.subordinate(&profile("new issuer")).expect("an issuer");
    let disk = Disk::new(&new, &new_issuer);
    disk.put_anchors(&[&old, &new]);
    let service = Service::start(&disk).await;
    let late = Workload::of(&service, "late", anchors(&[&old]));
    late.certified().await;
    assert!(late.issued_by(&new_issuer));
}

/// Linkerd's own service: Certify and nothing else.
struct OnlyCertify(Ca);

#[tonic::async_trait]
impl Identity for OnlyCertify {
    async fn certify(
        &self,
        request: tonic::Request<CertifyRequest>,
    ) -> Result<tonic::Response<CertifyResponse>, Status> {
        let request = request.into_inner();
        let csr = linkerd_tls::SigningRequest::from_der(&request.certificate_signing_request)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let issuer = self.0.issuer().expect("an issuer");
        let validity = service::config().validity;
        let now = std::time::SystemTime::now();
        let issued = issuer
            .issue(&csr, &request.identity, validity, now)
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(tonic::Response::new(CertifyResponse {
            leaf_certificate: issued.leaf.to_vec(),
            intermediate_certificates: issued.intermediates.iter().map(|c| c.to_vec()).collect(),
            valid_until: Some(issued.not_after.into()),
        }))
    }
}

#[tokio::test]
async fn a_service_that_does_not_tell_changes_nothing() {
    let root = Ca::self_signed(&profile("root")).expect("a root");
    let issuer = root.subordinate(&profile("issuer")).expect("an issuer");
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .expect("binds");
    let addr = listener.local_addr().expect("bound");
    let server = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(OnlyCertify(issuer)))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = linkerd_runtime::spawn("upstream", async move {
        server.await.expect("serves");
    });
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let pair: Arc<[Workload; 2]> = Arc::new(["a", "b"].map(|sa| {
        let counted = counted.clone();
        Workload::start(sa, anchors(&[&root]), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            connect(addr)
        })
    }));
    for workload in pair.iter() {
        workload.certified().await;
    }
    eventually("each question once", || asked.load(Ordering::Relaxed) == 4).await;
    meet(&pair[0], &pair[1]).await.expect("they meet");
    assert!(pair.iter().all(|w| w.believes(&anchors(&[&root]))));
    assert!(
        pair.iter()
            .all(|w| identity_bootstrap::saved_anchors(w.dir.path()).is_none())
    );
    server.abort();
}
