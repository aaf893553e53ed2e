//! A whole proxy certified by a SPIRE agent: the SPIFFE Workload API on a Unix socket, as the agent
//! serves it.

#[path = "support/harness.rs"]
mod harness;

use std::{
    convert::Infallible,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use harness::{DEADLINE, Proxy};
use linkerd_api::spiffe::{FETCH_X509_SVID, HEADER, X509Svid, X509SvidRequest, X509SvidResponse};
use linkerd_core::identity::Id;
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{ca::Ca, control_plane::ControlPlane, wait_for};
use linkerd_tls::{Alpn, Local, Peer, Store, TrustAnchors, handshake};
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt, wrappers};
use tonic::{Request, Response, Status, body::Body};

const ID: &str = "spiffe://cluster.local/ns/ns/sa/web";
const SERVER_NAME: &str = "web.ns.cluster.local";
const OK: &[&str] = &["result=\"ok\""];
const ERROR: &[&str] = &["result=\"error\""];
const REFRESHES: &str = "control_identity_cert_refreshes_total";

type Answers = Pin<Box<dyn Stream<Item = Result<X509SvidResponse, Status>> + Send>>;
type Answer = Option<Result<X509SvidResponse, Status>>;

/// The agent. What it says can be changed; an error ends the stream.
struct Agent {
    socket: PathBuf,
    says: watch::Sender<Answer>,
    calls: Arc<AtomicUsize>,
    runtime: tokio::runtime::Runtime,
    _dir: tempfile::TempDir,
}

#[derive(Clone)]
struct Service {
    says: watch::Receiver<Answer>,
    calls: Arc<AtomicUsize>,
}

impl tonic::server::NamedService for Service {
    const NAME: &'static str = "SpiffeWorkloadAPI";
}

impl tonic::server::ServerStreamingService<X509SvidRequest> for Service {
    type Response = X509SvidResponse;
    type ResponseStream = Answers;
    type Future = std::future::Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, request: Request<X509SvidRequest>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        // What the specification asks agents to do.
        if request.metadata().get(HEADER).is_none_or(|v| v != "true") {
            return std::future::ready(Err(Status::invalid_argument("security header missing")));
        }
        let answers = wrappers::WatchStream::new(self.says.clone()).filter_map(|answer| answer);
        std::future::ready(Ok(Response::new(Box::pin(answers))))
    }
}

impl tower::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            assert_eq!(request.uri().path(), FETCH_X509_SVID);
            let codec = tonic_prost::ProstCodec::<X509SvidResponse, X509SvidRequest>::default();
            let mut grpc = tonic::server::Grpc::new(codec);
            Ok(grpc.server_streaming(service, request).await)
        })
    }
}

impl Agent {
    fn start(first: Answer) -> Self {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let socket = dir.path().join("agent.sock");
        let (says, heard) = watch::channel(first);
        let calls = Arc::new(AtomicUsize::new(0));
        let agent = Self {
            socket,
            says,
            calls: calls.clone(),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime"),
            _dir: dir,
        };
        agent.listen(Service { says: heard, calls });
        agent
    }

    fn listen(&self, service: Service) {
        let _running = self.runtime.enter();
        let listener = tokio::net::UnixListener::bind(&self.socket).expect("binds");
        let server = tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(wrappers::UnixListenerStream::new(listener));
        linkerd_runtime::spawn("agent", async move {
            server.await.expect("serves");
        });
    }

    fn say(&self, answer: Result<X509SvidResponse, Status>) {
        self.says.send_replace(Some(answer));
    }
}

fn svid(issuer: &Ca, id: &str) -> X509Svid {
    let leaf = issuer.leaf_spiffe(id);
    X509Svid {
        spiffe_id: id.to_owned(),
        x509_svid: leaf.chain.iter().flat_map(|c| c.to_vec()).collect(),
        x509_svid_key: leaf.key.secret_der().to_vec(),
        bundle: Vec::new(),
    }
}

fn answer(svids: Vec<X509Svid>) -> Result<X509SvidResponse, Status> {
    Ok(X509SvidResponse { svids })
}

fn start(control: &ControlPlane, root: &Ca, socket: &Path) -> Proxy {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let address = format!("unix://{}", socket.display());
    let extra = [
        ("IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", address.as_str()),
        ("IDENTITY_SERVER_ID", ID),
        ("IDENTITY_SERVER_NAME", SERVER_NAME),
        ("IDENTITY_TRUST_ANCHORS", root.pem()),
        // Neither is needed with SPIRE.
        ("IDENTITY_DIR", "/nonexistent"),
        ("IDENTITY_TOKEN_FILE", "/nonexistent/token"),
        ("IDENTITY_SPIRE_EXP_BACKOFF_MIN", "10ms"),
        ("IDENTITY_SPIRE_EXP_BACKOFF_MAX", "100ms"),
    ];
    Proxy::start(control, "web", local.clone(), local, &extra)
}

#[test]
fn an_agent_certifies_and_renews() {
    let (root, issuer) = Ca::linkerd();
    let (_, stranger) = Ca::linkerd();
    let other = svid(&issuer, "spiffe://cluster.local/ns/ns/sa/other");
    let agent = Agent::start(Some(answer(vec![other.clone(), svid(&issuer, ID)])));
    let control = ControlPlane::start();
    let proxy = start(&control, &root, &agent.socket);
    wait_for(DEADLINE, "the certificate to be counted", || {
        proxy.metric(REFRESHES, OK) == 1.0
    });

    // Its peers see the SPIFFE identity.
    let anchors = TrustAnchors::from_pem("root", root.pem().as_bytes()).expect("anchors");
    let nobody = Local::new(Id::parse("nobody.example").expect("valid"));
    let store = Store::new(anchors, nobody);
    let peer = Peer::new(Id::parse(ID).expect("valid"), Some(SERVER_NAME)).expect("a peer");
    agent.runtime.block_on(async {
        let tcp = tokio::net::TcpStream::connect(proxy.inbound).await;
        let tcp = tcp.expect("the proxy listens");
        handshake::connect(tcp, &peer, &store.snapshot(), Alpn::None, DEADLINE)
            .await
            .expect("the proxy has the SPIFFE identity");
    });

    // A message renews; one that is no good changes nothing.
    agent.say(answer(vec![svid(&issuer, ID)]));
    wait_for(DEADLINE, "the renewal", || {
        proxy.metric(REFRESHES, OK) == 2.0
    });
    let bad = [
        answer(vec![other]),
        answer(vec![]),
        answer(vec![svid(&stranger, ID)]),
        answer(vec![X509Svid {
            x509_svid_key: svid(&issuer, ID).x509_svid_key,
            ..svid(&issuer, ID)
        }]),
        answer(vec![X509Svid {
            x509_svid: b"garbage".to_vec(),
            ..svid(&issuer, ID)
        }]),
        answer(vec![X509Svid {
            x509_svid_key: b"garbage".to_vec(),
            ..svid(&issuer, ID)
        }]),
    ];
    let mut errors = 0.0;
    for bad in bad {
        agent.say(bad);
        errors += 1.0;
        wait_for(DEADLINE, "the refusal", || {
            proxy.metric(REFRESHES, ERROR) == errors
        });
    }
    assert_eq!(proxy.metric(REFRESHES, OK), 2.0, "none of these was used");

    // A broken stream is opened again.
    let before = agent.calls.load(Ordering::SeqCst);
    agent.say(Err(Status::permission_denied("no identity issued")));
    wait_for(DEADLINE, "another attempt", || {
        agent.calls.load(Ordering::SeqCst) > before + 1
    });
    agent.say(answer(vec![svid(&issuer, ID)]));
    wait_for(DEADLINE, "a certificate after the outage", || {
        proxy.metric(REFRESHES, OK) == 3.0
    });
}

#[test]
fn a_refusal_for_good_is_not_asked_again() {
    let (root, issuer) = Ca::linkerd();
    let agent = Agent::start(Some(answer(vec![svid(&issuer, ID)])));
    let control = ControlPlane::start();
    let proxy = start(&control, &root, &agent.socket);
    let before = agent.calls.load(Ordering::SeqCst);
    agent.say(Err(Status::invalid_argument("never")));
    agent.say(Err(Status::invalid_argument("never again")));
    // Longer than the longest pause: whoever retries has done it by then.
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(1);
    wait_for(DEADLINE, "a second to pass", || {
        std::time::Instant::now() > patience
    });
    assert_eq!(agent.calls.load(Ordering::SeqCst), before);
    assert_eq!(proxy.metric(REFRESHES, OK), 1.0, "the certificate stays");
}
