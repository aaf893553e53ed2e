//! The proxy's own certification code against the real service: first certificate, renewal, bad
//! answers, a service that is away.

use std::{
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use identity::{Certification, Metrics, TokenFile};
use linkerd_api::proto::identity::{
    CertifyRequest, CertifyResponse,
    identity_client::IdentityClient,
    identity_server::{Identity, IdentityServer},
};
use linkerd_core::identity::Id;
use linkerd_runtime::metrics::{Exposition, Registry};
use linkerd_tls::{
    Key, Local, SigningRequest, Store, TrustAnchors,
    issuer::generate::{Authority as Ca, CaProfile},
    renewal::Config,
};
use service::{Disk, Service, connect, eventually, identity as id_of, profile};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Status, transport::Channel};

// The proxy's files, compiled in: services do not depend on the proxy, but this is their contract.
#[allow(dead_code, unreachable_pub, reason = "used in full by the proxy")]
#[path = "../../proxy/src/control/identity.rs"]
mod identity;
#[allow(dead_code, unreachable_pub, reason = "used in full by the proxy")]
#[path = "../../proxy/src/identity_bootstrap.rs"]
mod identity_bootstrap;
#[allow(dead_code, unreachable_pub, reason = "shared by several test binaries")]
#[path = "support/service.rs"]
mod service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A proxy as far as certification goes.
struct Stub {
    dir: tempfile::TempDir,
    store: Arc<Store>,
    registry: Registry,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stub {
    fn start<C, F>(name: &str, token: &str, root: &Ca, refresh: Config, connector: C) -> Self
    where
        C: FnMut() -> F + Send + 'static,
        F: Future<Output = Result<Channel, BoxError>> + Send + 'static,
    {
        let dir = tempfile::tempdir().expect("temporary directory");
        let token_file = dir.path().join("token");
        std::fs::write(&token_file, token).expect("writes");
        let credentials = identity_bootstrap::bootstrap(dir.path(), name).expect("key and request");
        let anchors =
            TrustAnchors::from_certificates(vec![root.certificate.clone()]).expect("anchors");
        let store = Arc::new(Store::new(
            anchors,
            Local::new(Id::parse(name).expect("valid")),
        ));
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let token = TokenFile::open(token_file).expect("a token");
        let certification = Certification::new(
            store.clone(),
            credentials,
            token,
            refresh,
            connector,
            metrics,
        );
        let task = linkerd_runtime::spawn("certification", certification.run());
        Self {
            dir,
            store,
            registry,
            task,
        }
    }

    async fn certified(&self) {
        tokio::time::timeout(Duration::from_secs(60), identity::certified(&self.store))
            .await
            .expect("a certificate within a minute");
    }

    fn scrape(&mut self) -> String {
        let registry = std::mem::take(&mut self.registry);
        Exposition::new(registry).encode().expect("encodes")
    }
}

fn to(
    addr: SocketAddr,
) -> impl FnMut() -> Pin<Box<dyn Future<Output = Result<Channel, BoxError>> + Send>> {
    move || Box::pin(connect(addr))
}

fn quick() -> Config {
    Config {
        min_refresh: Duration::from_millis(50),
        max_refresh: Duration::from_millis(100),
    }
}

fn world() -> (Ca, Disk) {
    let root = Ca::self_signed(&profile("root")).expect("a root");
    let issuer = root.subordinate(&profile("issuer")).expect("an issuer");
    let disk = Disk::new(&root, &issuer);
    (root, disk)
}

#[tokio::test]
async fn a_proxy_gets_its_first_certificate() {
    let (root, disk) = world();
    let mut service = Service::start(&disk).await;
    let name = id_of("web", "emojivoto");
    service
        .reviewer
        .user("token-1", "system:serviceaccount:emojivoto:web");
    let mut stub = Stub::start(&name, "token-1", &root, Config::default(), to(service.addr));
    stub.certified().await;
    let snapshot = stub.store.snapshot();
    let certificate = snapshot.certificate().expect("certified");
    assert_eq!(certificate.names, [Id::parse(&name).expect("valid")]);
    assert!(
        snapshot
            .server_config(linkerd_tls::Alpn::TransportHeader)
            .is_some()
    );
    let life = certificate
        .not_after
        .duration_since(SystemTime::now())
        .expect("in the future");
    assert!(
        life > service::DAY && life <= service::DAY + Duration::from_secs(20),
        "{life:?}"
    );
    let event = service.events.recv().await.expect("an event");
    assert_eq!(event.reason, "IssuedLeafCertificate");
    assert_eq!(
        event.about,
        linkerd_identity::events::About::ServiceAccount {
            namespace: "emojivoto".to_owned(),
            name: "web".to_owned()
        }
    );
    let want = format!("issued certificate for {name} until ");
    assert!(event.message.starts_with(&want), "{}", event.message);
    assert!(
        event.message.ends_with(&certificate.sha256()),
        "{}",
        event.message
    );
    let asked = service.reviewer.calls.lock().expect("not poisoned").clone();
    assert_eq!(
        asked,
        [("token-1".to_owned(), vec!["identity.l5d.io".to_owned()])]
    );
    let metrics = stub.scrape();
    for want in [
        "control_identity_cert_refreshes_total{result=\"ok\"} 1\n",
        "control_identity_cert_refreshes_total{result=\"error\"} 0\n",
        "control_identity_cert_expiration_timestamp_seconds ",
        "control_identity_cert_refresh_timestamp_seconds ",
    ] {
        assert!(metrics.contains(want), "{want} is missing from {metrics}");
    }
}

#[tokio::test]
async fn a_token_without_our_audience_is_asked_about_again() {
    let (root, disk) = world();
    let service = Service::start(&disk).await;
    let reviewer = &service.reviewer;
    let error = "token audiences [\"https://kubernetes.default.svc\"] is invalid".to_owned();
    let review = linkerd_identity::Review {
        error,
        ..linkerd_identity::Review::default()
    };
    reviewer.answer("legacy", true, Ok(review));
    let review = linkerd_identity::Review {
        authenticated: true,
        username: "system:serviceaccount:emojivoto:web".to_owned(),
        ..linkerd_identity::Review::default()
    };
    reviewer.answer("legacy", false, Ok(review));
    let name = id_of("web", "emojivoto");
    let stub = Stub::start(&name, "legacy", &root, Config::default(), to(service.addr));
    stub.certified().await;
}

#[tokio::test]
async fn renewal_reads_the_token_again() {
    let (root, disk) = world();
    let service = Service::start(&disk).await;
    for token in ["token-1", "token-2"] {
        service
            .reviewer
            .user(token, "system:serviceaccount:emojivoto:web");
    }
    let name = id_of("web", "emojivoto");
    let stub = Stub::start(&name, "token-1", &root, quick(), to(service.addr));
    stub.certified().await;
    let serial = |store: &Store| {
        store
            .snapshot()
            .certificate()
            .map(|c| c.serial.clone())
            .unwrap_or_default()
    };
    let first = serial(&stub.store);
    std::fs::write(stub.dir.path().join("token"), "token-2").expect("writes");
    let calls = service.reviewer.calls.clone();
    eventually("the new token", || {
        calls
            .lock()
            .expect("not poisoned")
            .iter()
            .any(|(token, _)| token == "token-2")
    })
    .await;
    eventually("a new certificate", || serial(&stub.store) != first).await;
}

#[tokio::test]
async fn a_service_that_is_away_is_tried_again() {
    let (root, disk) = world();
    let service = Service::start(&disk).await;
    service
        .reviewer
        .user("token-1", "system:serviceaccount:emojivoto:web");
    let attempts = Arc::new(AtomicUsize::new(0));
    let (counted, addr) = (attempts.clone(), service.addr);
    let name = id_of("web", "emojivoto");
    let mut stub = Stub::start(&name, "token-1", &root, Config::default(), move || {
        let attempt = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if attempt < 3 {
                return Err(BoxError::from("connection refused"));
            }
            connect(addr).await
        }
    });
    stub.certified().await;
    assert_eq!(attempts.load(Ordering::SeqCst), 4);
    assert!(
        stub.scrape()
            .contains("control_identity_cert_refreshes_total{result=\"error\"} 3\n")
    );
}

/// A service that gives whatever answers it is told to give, the last one for ever.
#[derive(Clone)]
struct Scripted(Arc<Mutex<Vec<Result<CertifyResponse, Status>>>>);

#[tonic::async_trait]
impl Identity for Scripted {
    async fn certify(
        &self,
        _: tonic::Request<CertifyRequest>,
    ) -> Result<tonic::Response<CertifyResponse>, Status> {
        let mut script = self.0.lock().expect("not poisoned");
        let answer = if script.len() > 1 {
            script.remove(0)
        } else {
            script[0].clone()
        };
        answer.map(tonic::Response::new)
    }
}

#[tokio::test]
async fn wrong_answers_are_not_used() {
    let root = Ca::self_signed(&profile("root")).expect("a root");
    let other = Ca::self_signed(&profile("other")).expect("a root");
    let name = id_of("web", "emojivoto");
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .expect("binds");
    let addr = listener.local_addr().expect("bound");
    let script = Scripted(Arc::new(Mutex::new(vec![Err(Status::unavailable(
        "not yet",
    ))])));
    let server = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(script.clone()))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let server = linkerd_runtime::spawn("scripted", async move {
        server.await.expect("serves");
    });
    let mut stub = Stub::start(&name, "token-1", &root, quick(), to(addr));
    let request = std::fs::read(stub.dir.path().join("csr.der")).expect("the request");
    let request = linkerd_tls::SigningRequest::from_der(&request).expect("parses");
    let answer = |ca: &Ca, name: &str| {
        let issued = ca
            .issuer()
            .expect("an issuer")
            .issue(
                &request,
                name,
                service::config().validity,
                SystemTime::now(),
            )
            .expect("issues");
        let until = issued
            .not_after
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs();
        CertifyResponse {
            leaf_certificate: issued.leaf.to_vec(),
            intermediate_certificates: issued.intermediates.iter().map(|c| c.to_vec()).collect(),
            valid_until: Some(prost_types::Timestamp {
                seconds: i64::try_from(until).expect("fits"),
                nanos: 0,
            }),
        }
    };
    let good = answer(&root, &name);
    let past = Some(prost_types::Timestamp {
        seconds: 1,
        nanos: 0,
    });
    let wrong = vec![
        Ok(CertifyResponse::default()),
        Ok(CertifyResponse {
            valid_until: None,
            ..good.clone()
        }),
        Ok(CertifyResponse {
            valid_until: past,
            ..good.clone()
        }),
        Ok(CertifyResponse {
            leaf_certificate: b"garbage".to_vec(),
            ..good.clone()
        }),
        Ok(answer(&other, &name)),
        Ok(answer(&root, &id_of("other", "emojivoto"))),
        Err(Status::permission_denied("no")),
    ];
    let count = wrong.len();
    *script.0.lock().expect("not poisoned") = wrong;
    eventually("all wrong answers to be given", || {
        script.0.lock().expect("not poisoned").len() == 1
    })
    .await;
    assert!(
        !stub.store.snapshot().is_certified(),
        "none of {count} answers was usable"
    );
    *script.0.lock().expect("not poisoned") = vec![Ok(good)];
    stub.certified().await;
    assert!(
        stub.scrape()
            .contains("control_identity_cert_refreshes_total{result=\"error\"} ")
    );
    server.abort();
}

async fn ask(channel: &Channel, request: CertifyRequest) -> Result<(), (Code, String)> {
    IdentityClient::new(channel.clone())
        .certify(request)
        .await
        .map(|_| ())
        .map_err(|status| (status.code(), status.message().to_owned()))
}

#[tokio::test]
async fn without_an_issuer_nothing_is_ready() {
    let (recorder, events) = linkerd_identity::events::channel("linkerd");
    let service = Service::with_authority(
        Arc::new(linkerd_identity::Authority::default()),
        recorder,
        events,
    )
    .await;
    let refused = ask(&service.channel().await, CertifyRequest::default())
        .await
        .expect_err("nothing is loaded");
    assert_eq!(
        refused,
        (Code::Unavailable, "cert issuer not ready yet".to_owned())
    );
}

#[tokio::test]
async fn an_issuer_that_has_expired_meanwhile() {
    let root = Ca::self_signed(&profile("root")).expect("a root");
    let end = SystemTime::now() + Duration::from_secs(3);
    let issuer = root
        .subordinate(&CaProfile {
            not_after: end,
            ..profile("issuer")
        })
        .expect("an issuer");
    let disk = Disk::new(&root, &issuer);
    let mut service = Service::start(&disk).await;
    let channel = service.channel().await;
    let name = id_of("late", "emojivoto");
    let key = Key::generate().expect("a key");
    let request = CertifyRequest {
        identity: name.clone(),
        token: b"late-token".to_vec(),
        certificate_signing_request: SigningRequest::create(&name, &key).expect("csr"),
    };
    service
        .reviewer
        .user("late-token", "system:serviceaccount:emojivoto:late");
    ask(&channel, request.clone()).await.expect("still good");
    eventually("the issuer's end", || {
        SystemTime::now() > end + Duration::from_secs(1)
    })
    .await;
    let (code, message) = ask(&channel, request).await.expect_err("expired");
    assert_eq!(code, Code::Unknown);
    assert!(
        message.starts_with("certificate \"CN=issuer\" expired on "),
        "{message}"
    );
    let mut told = Vec::new();
    while let Ok(event) = service.events.try_recv() {
        told.push((event.reason, event.message));
    }
    assert!(
        told.iter()
            .any(|(reason, text)| *reason == "IssuerValidationFailed"
                && text.ends_with(&format!(" - CSR Identity : {name}"))),
        "{told:?}"
    );
}
