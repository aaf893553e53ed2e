//! A full rotation of root and issuer under load: a thousand connections stay open, handshakes never
//! stop, and nothing fails.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use linkerd_core::identity::Id;
use linkerd_tls::{
    Alpn, HANDSHAKE_DEADLINE, Local, Peer, Store, TrustAnchors, handshake,
    issuer::generate::Authority as Ca, renewal::Config, rustls::HandshakeKind,
};
use service::{Disk, Service, connect, eventually, identity as id_of, profile};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

#[allow(dead_code, unreachable_pub, reason = "used in full by the proxy")]
#[path = "../../proxy/src/control/identity.rs"]
mod identity;
#[allow(dead_code, unreachable_pub, reason = "used in full by the proxy")]
#[path = "../../proxy/src/identity_bootstrap.rs"]
mod identity_bootstrap;
#[allow(dead_code, unreachable_pub, reason = "shared by several test binaries")]
#[path = "support/service.rs"]
mod service;

const WORKLOADS: usize = 4;
const CONNECTIONS: usize = 1000;

struct Workload {
    name: String,
    store: Arc<Store>,
    _dir: tempfile::TempDir,
}

impl Workload {
    /// Certifies against the service every few hundred milliseconds and follows the bundle.
    fn start(index: usize, root: &Ca, service: &Service, disk: &Disk) -> Self {
        let sa = format!("w{index}");
        let (name, token) = (id_of(&sa, "load"), format!("token-{index}"));
        service
            .reviewer
            .user(&token, &format!("system:serviceaccount:load:{sa}"));
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("token");
        std::fs::write(&file, token).expect("writes");
        let anchors =
            TrustAnchors::from_certificates(vec![root.certificate.clone()]).expect("anchors");
        let store = Arc::new(Store::new(
            anchors,
            Local::new(Id::parse(&name).expect("valid")),
        ));
        let credentials = identity_bootstrap::bootstrap(dir.path(), &name).expect("bootstraps");
        let refresh = Config {
            min_refresh: Duration::from_millis(100),
            max_refresh: Duration::from_millis(300),
        };
        let addr = service.addr;
        let certification = identity::Certification::new(
            store.clone(),
            credentials,
            identity::TokenFile::open(file).expect("a token"),
            refresh,
            move || connect(addr),
            identity::Metrics::register(&mut Default::default()),
        );
        linkerd_runtime::spawn("certification", certification.run());
        let (followed, bundle) = (store.clone(), disk.files.anchors.clone());
        linkerd_runtime::spawn("bundle", async move {
            identity::follow_bundle(&followed, bundle, Duration::from_millis(50)).await;
        });
        Self {
            name,
            store,
            _dir: dir,
        }
    }

    fn issuer_is(&self, ca: &Ca) -> bool {
        let snapshot = self.store.snapshot();
        let Some(leaf) = snapshot.certificate() else {
            return false;
        };
        let anchors =
            TrustAnchors::from_certificates(vec![ca.certificate.clone()]).expect("anchors");
        leaf.is_issued_under(&anchors)
    }
}

type Client = linkerd_tls::tokio_rustls::client::TlsStream<DuplexStream>;
type Server = linkerd_tls::tokio_rustls::server::TlsStream<DuplexStream>;

/// One mutual handshake; both sides must know each other.
async fn open(from: &Workload, to: &Workload, peer: &Peer) -> Result<(Client, Server), String> {
    let (near, far) = tokio::io::duplex(4096);
    let (ours, theirs) = (from.store.snapshot(), to.store.snapshot());
    let (client, server) = tokio::join!(
        handshake::connect(near, peer, &ours, Alpn::TransportHeader, HANDSHAKE_DEADLINE),
        handshake::accept(far, &theirs, Alpn::TransportHeader, HANDSHAKE_DEADLINE),
    );
    let client = client.map_err(|error| format!("client: {error:?}"))?;
    let (server, id) = server.map_err(|error| format!("server: {error:?}"))?;
    if id.as_ref().map(Id::as_str) != Some(from.name.as_str()) {
        return Err(format!("the server saw {id:?} instead of {}", from.name));
    }
    Ok((client, server))
}

async fn exchange((client, server): &mut (Client, Server)) {
    client.write_all(b"ping").await.expect("open");
    client.flush().await.expect("open");
    let mut buffer = [0; 4];
    server.read_exact(&mut buffer).await.expect("open");
    server.write_all(&buffer).await.expect("open");
    server.flush().await.expect("open");
    client.read_exact(&mut buffer).await.expect("open");
    assert_eq!(&buffer, b"ping");
}

fn peer(to: &Workload) -> Peer {
    Peer::new(Id::parse(&to.name).expect("valid"), None).expect("a peer")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_do_not_notice() {
    let old = Ca::self_signed(&profile("old root")).expect("a root");
    let new = Ca::self_signed(&profile("new root")).expect("a root");
    let (old_issuer, new_issuer) = (
        old.subordinate(&profile("old issuer")).expect("an issuer"),
        new.subordinate(&profile("new issuer")).expect("an issuer"),
    );
    let disk = Disk::new(&old, &old_issuer);
    let service = Service::start(&disk).await;
    let workloads: Arc<Vec<_>> = Arc::new(
        (0..WORKLOADS)
            .map(|i| Workload::start(i, &old, &service, &disk))
            .collect(),
    );
    for workload in workloads.iter() {
        identity::certified(&workload.store).await;
    }

    // Handshakes never stop: each task goes round all pairs, with tickets and without.
    let stop = Arc::new(AtomicBool::new(false));
    let (full, resumed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut load = Vec::new();
    for offset in 1..=2 {
        let (workloads, stop) = (workloads.clone(), stop.clone());
        let (full, resumed) = (full.clone(), resumed.clone());
        load.push(linkerd_runtime::spawn("load", async move {
            let peers: Vec<_> = workloads.iter().map(peer).collect();
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                let (from, to) = (turn % WORKLOADS, (turn + offset) % WORKLOADS);
                let mut pair = open(&workloads[from], &workloads[to], &peers[to]).await?;
                exchange(&mut pair).await;
                match pair.0.get_ref().1.handshake_kind() {
                    Some(HandshakeKind::Resumed) => resumed.fetch_add(1, Ordering::Relaxed),
                    _ => full.fetch_add(1, Ordering::Relaxed),
                };
                turn += 1;
            }
            Ok::<_, String>(turn)
        }));
    }

    let mut open_ones = Vec::with_capacity(CONNECTIONS);
    for i in 0..CONNECTIONS {
        let (from, to) = (&workloads[i % WORKLOADS], &workloads[(i + 1) % WORKLOADS]);
        open_ones.push(
            open(from, to, &peer(to))
                .await
                .expect("before the rotation"),
        );
    }

    disk.put_anchors(&[&old, &new]);
    eventually("both anchors everywhere", || {
        workloads
            .iter()
            .all(|w| w.store.snapshot().anchors().certificates().len() == 2)
    })
    .await;
    disk.put_issuer(&new_issuer);
    eventually("certificates of the new issuer everywhere", || {
        workloads.iter().all(|w| w.issuer_is(&new_issuer))
    })
    .await;
    disk.put_anchors(&[&new]);
    eventually("only the new anchor everywhere", || {
        workloads
            .iter()
            .all(|w| w.store.snapshot().anchors().certificates().len() == 1)
    })
    .await;

    // Let everybody meet under the new root before counting.
    let before = full.load(Ordering::Relaxed) + resumed.load(Ordering::Relaxed);
    eventually("handshakes after the rotation", || {
        full.load(Ordering::Relaxed) + resumed.load(Ordering::Relaxed) > before + 50
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await
            .expect("the task ends")
            .expect("no handshake failed");
    }
    for pair in &mut open_ones {
        exchange(pair).await;
    }
    let (full, resumed) = (
        full.load(Ordering::Relaxed),
        resumed.load(Ordering::Relaxed),
    );
    assert!(
        full > 0 && resumed > 0,
        "{full} full and {resumed} resumed handshakes"
    );
    println!("{full} full and {resumed} resumed handshakes during the rotation, none failed");
}
