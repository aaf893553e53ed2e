//! The real service on a loopback port with a fake TokenReview, and files it reads.

use std::{
    collections::HashMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use linkerd_identity::{
    Authority, Certifier, Config, Files, Limiter, Metrics, Review, ReviewError, TokenReviewer,
    events::{self, Event},
    serve,
};
use linkerd_runtime::metrics::Registry;
use linkerd_tls::{
    Validity,
    issuer::generate::{Authority as Ca, CaProfile},
};
use tokio::{net::TcpListener, sync::mpsc};

pub const NAMESPACE: &str = "linkerd";
pub const DOMAIN: &str = "cluster.local";
pub const DAY: Duration = Duration::from_secs(86_400);

pub fn identity(sa: &str, ns: &str) -> String {
    format!("{sa}.{ns}.serviceaccount.identity.{NAMESPACE}.{DOMAIN}")
}

pub fn config() -> Config {
    Config {
        controller_namespace: NAMESPACE.to_owned(),
        trust_domain: DOMAIN.to_owned(),
        validity: Validity {
            lifetime: DAY,
            clock_skew: Duration::from_secs(20),
        },
        anchors_interval: Duration::from_millis(100),
    }
}

pub fn profile(name: &str) -> CaProfile {
    CaProfile {
        common_name: name.to_owned(),
        not_before: SystemTime::now() - DAY,
        not_after: SystemTime::now() + 30 * DAY,
        path_len: None,
        extended_key_usage: false,
        serial: None,
    }
}

/// The mounted files, as one directory.
pub struct Disk {
    pub dir: tempfile::TempDir,
    pub files: Files,
}

impl Disk {
    pub fn new(root: &Ca, issuer: &Ca) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        let files = Files {
            certificate: at("tls.crt"),
            key: at("tls.key"),
            anchors: at("ca-bundle.crt"),
        };
        let disk = Self { dir, files };
        disk.put_issuer(issuer);
        disk.put_anchors(&[root]);
        disk
    }

    pub fn put_issuer(&self, ca: &Ca) {
        let write = |to: &PathBuf, text: String| {
            let partial = to.with_extension("tmp");
            std::fs::write(&partial, text).expect("writes");
            std::fs::rename(&partial, to).expect("renames");
        };
        write(&self.files.certificate, ca.certificate.to_pem());
        write(&self.files.key, ca.key.to_sec1_pem().expect("encodes"));
    }

    pub fn put_anchors(&self, roots: &[&Ca]) {
        let pem: String = roots.iter().map(|ca| ca.certificate.to_pem()).collect();
        let partial = self.files.anchors.with_extension("tmp");
        std::fs::write(&partial, pem).expect("writes");
        std::fs::rename(&partial, &self.files.anchors).expect("renames");
    }
}

/// By token, and by whether an audience is asked for.
type Answers = HashMap<(String, bool), Result<Review, ReviewError>>;
/// Tokens and the audiences asked for.
type Calls = Vec<(String, Vec<String>)>;

/// Answers by token; remembers who asked for what.
#[derive(Clone, Default)]
pub struct FakeReviewer {
    answers: Arc<Mutex<Answers>>,
    pub calls: Arc<Mutex<Calls>>,
}

impl FakeReviewer {
    /// `with_audience` tells which of the two kinds of question this answers.
    pub fn answer(&self, token: &str, with_audience: bool, answer: Result<Review, ReviewError>) {
        let mut answers = self.answers.lock().expect("not poisoned");
        answers.insert((token.to_owned(), with_audience), answer);
    }

    pub fn user(&self, token: &str, username: &str) {
        self.answer(
            token,
            true,
            Ok(Review {
                authenticated: true,
                username: username.to_owned(),
                audiences: vec!["identity.l5d.io".to_owned()],
                ..Review::default()
            }),
        );
    }
}

impl TokenReviewer for FakeReviewer {
    async fn review(&self, token: &str, audiences: &[&str]) -> Result<Review, ReviewError> {
        let asked = audiences.iter().map(|a| (*a).to_owned()).collect();
        self.calls
            .lock()
            .expect("not poisoned")
            .push((token.to_owned(), asked));
        let answers = self.answers.lock().expect("not poisoned");
        answers
            .get(&(token.to_owned(), !audiences.is_empty()))
            .cloned()
            .unwrap_or_else(|| Ok(Review::default()))
    }
}

/// A running service; stops when dropped.
pub struct Service {
    pub addr: SocketAddr,
    pub reviewer: FakeReviewer,
    pub events: mpsc::Receiver<Event>,
    pub registry: Registry,
    _tasks: Vec<AbortOnDrop>,
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Service {
    /// Serves what is on disk and follows it.
    pub async fn start(disk: &Disk) -> Self {
        let (authority, mut reload) =
            Authority::load(disk.files.clone(), &config().own_name()).expect("loads");
        let authority = Arc::new(authority);
        let (recorder, events) = events::channel(NAMESPACE);
        let mut service = Self::with_authority(authority.clone(), recorder.clone(), events).await;
        service
            ._tasks
            .push(AbortOnDrop(linkerd_runtime::spawn("reload", async move {
                reload
                    .run(&authority, &recorder, Duration::from_millis(20))
                    .await;
            })));
        service
    }

    pub async fn with_authority(
        authority: Arc<Authority>,
        recorder: events::Recorder,
        events: mpsc::Receiver<Event>,
    ) -> Self {
        let reviewer = FakeReviewer::default();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, (100.0, 200));
        let certifier = Certifier::new(
            config(),
            authority,
            reviewer.clone(),
            Limiter::new(100_000.0, 100_000),
            recorder,
            metrics.clone(),
        );
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("binds");
        let addr = listener.local_addr().expect("bound");
        let server = linkerd_runtime::spawn("identity", async move {
            serve(certifier, metrics, listener, std::future::pending())
                .await
                .expect("serves");
        });
        Self {
            addr,
            reviewer,
            events,
            registry,
            _tasks: vec![AbortOnDrop(server)],
        }
    }

    pub async fn channel(&self) -> tonic::transport::Channel {
        connect(self.addr).await.expect("the service listens")
    }

    pub fn scrape(self) -> String {
        linkerd_runtime::metrics::Exposition::new(self.registry)
            .encode()
            .expect("encodes")
    }
}

pub async fn connect(
    addr: SocketAddr,
) -> Result<tonic::transport::Channel, Box<dyn std::error::Error + Send + Sync>> {
    Ok(
        tonic::transport::Endpoint::from_shared(format!("http://{addr}"))?
            .connect()
            .await?,
    )
}

/// Waits until `done`, for at most a minute.
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "timed out waiting for {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
