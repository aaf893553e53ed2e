//! Many clients of the mesh at once. Who has a ticket is served at once; after a restart nobody's ticket
//! is known and every handshake is a full one: they take turns, all are served, and connections that are
//! there already are answered meanwhile.

#[path = "support/harness.rs"]
mod harness;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use harness::{Client, DEADLINE, Proxy, counts, http_echo};
use linkerd_core::identity::Id;
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::control_plane::ControlPlane;
use linkerd_tls::{Alpn, Peer, Store};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Barrier,
};

/// Pods that talk to this one.
const CLIENTS: usize = 300;
const HANDSHAKES: &str = "inbound_tls_handshakes_total";

fn in_front_of(control: &ControlPlane, app: SocketAddr) -> Proxy {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    Proxy::start(control, "web", local, OrigDst::fixed(app), &[])
}

/// One client: a handshake, a request, and the whole answer, with which its next ticket comes.
async fn visit(inbound: SocketAddr, store: &Store, peer: &Peer) -> std::io::Result<String> {
    let io = TcpStream::connect(inbound).await?;
    let snapshot = store.snapshot();
    let tls = linkerd_tls::handshake::connect(io, peer, &snapshot, Alpn::None, DEADLINE);
    let mut tls = tls.await.map_err(std::io::Error::other)?;
    tls.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n")
        .await?;
    tls.flush().await?;
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// All of them come at once, and all are served.
fn all_come(inbound: SocketAddr, store: &Arc<Store>, peers: &[Arc<Peer>]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let barrier = Arc::new(Barrier::new(peers.len()));
        let mut visits = Vec::new();
        for peer in peers {
            let (store, peer, barrier) = (store.clone(), peer.clone(), barrier.clone());
            visits.push(linkerd_runtime::spawn("visit", async move {
                barrier.wait().await;
                visit(inbound, &store, &peer).await
            }));
        }
        for visit in visits {
            let answer = tokio::time::timeout(DEADLINE, visit).await;
            let answer = answer.expect("in time").expect("it ends");
            let answer = answer.expect("served");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    });
}

/// A connection that was there before, asking all the time; gives how often, and the longest wait.
struct Resident {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<(u64, Duration)>,
    asked: Arc<AtomicU64>,
}

impl Resident {
    fn start(inbound: SocketAddr) -> Self {
        let (stop, asked) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (until, count) = (stop.clone(), asked.clone());
        let mut client = Client::connect(inbound);
        assert_eq!(client.get("/", "web").status(), 200);
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !until.load(Ordering::Relaxed) {
                let began = Instant::now();
                assert_eq!(client.get("/", "web").status(), 200);
                longest = longest.max(began.elapsed());
                count.fetch_add(1, Ordering::Relaxed);
            }
            (count.load(Ordering::Relaxed), longest)
        });
        Self {
            stop,
            thread,
            asked,
        }
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    fn end(self) -> (u64, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("all were answered")
    }
}

/// The longest queue of handshakes seen while something runs.
fn longest_queue(proxy: &Proxy, run: impl FnOnce() + Send) -> f64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut longest = 0.0_f64;
            while !done.load(Ordering::Relaxed) {
                longest = longest.max(proxy.metric("inbound_tls_handshake_queue_length", &[]));
            }
            longest
        });
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        done.store(true, Ordering::Relaxed);
        ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        watch.join().expect("metrics are there")
    })
}

#[test]
fn clients_that_come_back_at_once_are_served_in_turn() {
    let app = http_echo();
    let control = ControlPlane::start();
    let client = in_front_of(&control, app.addr());
    let store = client.store.clone();
    let before = in_front_of(&control, app.addr());
    let id = Id::parse(&before.identity).expect("an identity");
    let peer = || Arc::new(Peer::new(id.clone(), None).expect("a peer"));
    let peers: Vec<_> = (0..CLIENTS).map(|_| peer()).collect();
    let all = CLIENTS as f64;

    // The first time nobody has a ticket; the second time everybody has.
    all_come(before.inbound, &store, &peers);
    counts(&before, HANDSHAKES, &["kind=\"full\""], all);
    let queue = longest_queue(&before, || all_come(before.inbound, &store, &peers));
    counts(&before, HANDSHAKES, &["kind=\"resumed\""], all);
    counts(&before, HANDSHAKES, &["kind=\"full\""], all);
    assert!(queue < 1.0, "{queue} waited although they had tickets");

    // The pod is another one now, in the name of the same service, and has never seen a ticket.
    drop(before);
    let after = in_front_of(&control, app.addr());
    let resident = Resident::start(after.inbound);
    let asked = resident.asked();
    let queue = longest_queue(&after, || all_come(after.inbound, &store, &peers));
    let meanwhile = resident.asked() - asked;
    let (_, longest) = resident.end();
    counts(&after, HANDSHAKES, &["kind=\"full\""], all);
    counts(&after, HANDSHAKES, &["kind=\"refused\""], 0.0);
    counts(&after, "inbound_tls_handshake_queue_length", &[], 0.0);
    println!("{meanwhile} answers meanwhile, the longest took {longest:?}, {queue} waited");
    assert!(queue > 0.0, "they took turns");
    // One who had to wait for all handshakes would be answered once or twice.
    assert!(meanwhile >= 20, "{meanwhile} answers, longest {longest:?}");
}
