//! The identity service with a real API server behind it: projected tokens, audiences, names, and
//! the event a user sees. The service runs beside the test and talks to the cluster under test.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, SystemTime},
};

use clap::Parser as _;
use linkerd_api::{
    proto::identity::{CertifyRequest, CertifyResponse, identity_client::IdentityClient},
    trust,
};
use linkerd_e2e::{Kubectl, Namespace, house_image};
use linkerd_runtime::drain;
use linkerd_testkit::{port, wait_for, wait_for_some};
use linkerd_tls::{Certificate, Key, SigningRequest, issuer::generate::Authority};
use serde_json::json;
use tonic::{Code, codegen::http::uri::PathAndQuery, transport::Endpoint};

const PATIENCE: Duration = Duration::from_secs(120);
const AUDIENCE: &str = "identity.l5d.io";
const DOMAIN: &str = "cluster.local";

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    args: linkerd_identity::Args,
}

/// A running service; ends with the test.
struct Service {
    runtime: tokio::runtime::Runtime,
    drain: Option<drain::Signal>,
    port: u16,
    admin: u16,
    _files: tempfile::TempDir,
}

fn authority() -> Authority {
    Authority::for_install("linkerd", DOMAIN, SystemTime::now()).expect("a CA")
}

impl Service {
    fn start(kubectl: &Kubectl) -> Self {
        Self::start_in(kubectl, "linkerd", &authority())
    }

    /// As the control plane of this namespace, with one CA for issuer and anchor.
    fn start_in(kubectl: &Kubectl, namespace: &str, ca: &Authority) -> Self {
        let files = tempfile::tempdir().expect("temporary directory");
        let write = |name: &str, text: String| {
            std::fs::write(files.path().join(name), text).expect("writes");
        };
        write("crt.pem", ca.certificate.to_pem());
        write("key.pem", ca.key.to_sec1_pem().expect("encodes"));
        write("ca-bundle.crt", ca.certificate.to_pem());
        let (port, admin) = (port::free(), port::free());
        let args = Command::parse_from([
            "identity".to_owned(),
            format!("--addr=127.0.0.1:{port}"),
            format!("--admin-addr=127.0.0.1:{admin}"),
            format!("--controller-namespace={namespace}"),
            format!("--identity-trust-domain={DOMAIN}"),
            "--identity-scheme=linkerd.io/tls".to_owned(),
            "--identity-clock-skew-allowance=20s".to_owned(),
            format!("--issuer={}", files.path().display()),
            format!("--trust-roots={}/ca-bundle.crt", files.path().display()),
            format!("--kubeconfig={}", kubectl.kubeconfig().display()),
        ])
        .args;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (drain, watch) = drain::channel();
        let _running = runtime.enter();
        linkerd_runtime::spawn("identity", async move {
            linkerd_identity::run(args, watch)
                .await
                .expect("the service runs");
        });
        drop(_running);
        let service = Self {
            runtime,
            drain: Some(drain),
            port,
            admin,
            _files: files,
        };
        wait_for(PATIENCE, "the identity service to be ready", || {
            service
                .admin("/ready")
                .is_some_and(|answer| answer.ends_with("ok\n"))
        });
        service
    }

    fn admin(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.admin)).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Fingerprints of the trust anchors that proxies are told.
    fn anchors(&self) -> Vec<String> {
        let address = format!("http://127.0.0.1:{}", self.port);
        let answer = self.runtime.block_on(async {
            let channel = Endpoint::from_shared(address)
                .expect("an address")
                .connect()
                .await
                .expect("up");
            let mut grpc = tonic::client::Grpc::new(channel);
            grpc.ready().await.expect("connected");
            let codec = tonic_prost::ProstCodec::<trust::GetRequest, trust::GetResponse>::default();
            let path = PathAndQuery::from_static(trust::GET);
            let request = tonic::Request::new(trust::GetRequest {});
            grpc.unary(request, path, codec).await.expect("an answer")
        });
        let anchors = answer.into_inner().anchors;
        let parsed = anchors.iter().map(|der| Certificate::from_der(der));
        parsed.map(|c| c.expect("a certificate").sha256()).collect()
    }

    fn certify(&self, name: &str, token: &str) -> Result<CertifyResponse, (Code, String)> {
        let key = Key::generate().expect("a key");
        let request = CertifyRequest {
            identity: name.to_owned(),
            token: token.as_bytes().to_vec(),
            certificate_signing_request: SigningRequest::create(name, &key).expect("a request"),
        };
        let address = format!("http://127.0.0.1:{}", self.port);
        self.runtime.block_on(async {
            let channel = Endpoint::from_shared(address)
                .expect("an address")
                .connect()
                .await
                .expect("up");
            IdentityClient::new(channel)
                .certify(request)
                .await
                .map(tonic::Response::into_inner)
                .map_err(|status| (status.code(), status.message().to_owned()))
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(drain) = self.drain.take() {
            let _ = self
                .runtime
                .block_on(drain.drain_within(Duration::from_secs(10)));
        }
    }
}

fn identity(account: &str, namespace: &Namespace) -> String {
    format!(
        "{account}.{}.serviceaccount.identity.linkerd.{DOMAIN}",
        namespace.name()
    )
}

#[test]
fn a_projected_token_is_worth_a_certificate() {
    let kubectl = Kubectl::from_env();
    let image = house_image(&kubectl);
    let namespace = Namespace::create(&kubectl, "identity-pod");
    let service = Service::start(&kubectl);
    namespace.run(&["create", "serviceaccount", "web"]);
    namespace.apply(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "holder" },
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": "web",
            "containers": [{
                "name": "holder",
                "image": image,
                "args": ["cat", "/var/run/secrets/tokens/linkerd-identity-token"],
                "volumeMounts": [{ "name": "token", "mountPath": "/var/run/secrets/tokens" }],
            }],
            "volumes": [{ "name": "token", "projected": { "sources": [{
                "serviceAccountToken": {
                    "path": "linkerd-identity-token",
                    "audience": AUDIENCE,
                    "expirationSeconds": 86400,
                },
            }]}}],
        },
    }));
    let logs = namespace.wait_pod_success("holder", PATIENCE);
    let name = identity("web", &namespace);
    let answer = service.certify(&name, logs.trim()).expect("a certificate");
    let leaf = Certificate::from_der(&answer.leaf_certificate).expect("a certificate");
    assert_eq!(leaf.names[0].as_str(), name);
    assert_eq!(answer.intermediate_certificates.len(), 1);
    let told = wait_for_some(PATIENCE, "the event on the service account", || {
        let events = namespace.run(&[
            "get",
            "events",
            "--field-selector=reason=IssuedLeafCertificate,involvedObject.kind=ServiceAccount",
            "--output=jsonpath={.items[*].message}",
        ]);
        (!events.is_empty()).then_some(events)
    });
    assert!(
        told.starts_with(&format!("issued certificate for {name} until ")),
        "{told}"
    );
    let metrics = service.admin("/metrics").expect("metrics");
    for want in [
        "identity_certificates_issued_total 1\n",
        "issuer_cert_ttl_seconds 315",
        "trust_anchor_ttl_seconds{subject=\"CN=identity.linkerd.cluster.local\"",
        "http_client_requests_total{client=\"k8s\",code=\"201\",method=\"post\"} 1\n",
    ] {
        assert!(metrics.contains(want), "{want} is missing from {metrics}");
    }
}

#[test]
fn other_tokens_and_other_names_are_refused() {
    let kubectl = Kubectl::from_env();
    let namespace = Namespace::create(&kubectl, "identity-refuse");
    let service = Service::start(&kubectl);
    for account in ["web", "voting"] {
        namespace.run(&["create", "serviceaccount", account]);
    }
    let token = |account: &str, audience: Option<&str>| {
        let audience = audience.map(|a| format!("--audience={a}"));
        let mut arguments = vec!["create", "token", account];
        arguments.extend(audience.as_deref());
        namespace.run(&arguments).trim().to_owned()
    };
    let web = identity("web", &namespace);
    let good = token("web", Some(AUDIENCE));
    service.certify(&web, &good).expect("its own name");
    service
        .certify(&web, &token("web", None))
        .expect("a token for the API server, as pods without projection have it");

    let refused = |name: &str, token: &str| service.certify(name, token).expect_err("refused");
    let (code, said) = refused(&web, &token("web", Some("somebody.else")));
    assert_eq!(code, Code::InvalidArgument, "{said}");

    let (code, said) = refused(&web, &token("voting", Some(AUDIENCE)));
    assert_eq!(code, Code::FailedPrecondition);
    let voting = identity("voting", &namespace);
    assert_eq!(
        said,
        format!("requested identity did not match provided token: requested={web}; found={voting}")
    );

    let (code, said) = refused(&web, "no.such.token");
    assert!(
        matches!(code, Code::InvalidArgument | Code::FailedPrecondition),
        "{code:?} {said}"
    );

    // A service account that is gone takes its tokens with it.
    namespace.run(&["delete", "serviceaccount", "web"]);
    wait_for(PATIENCE, "the token to die with its account", || {
        service.certify(&web, &good).is_err()
    });
}

/// An edit of the ConfigMap reaches proxies in seconds, although the mounted file never changes here.
#[test]
fn trust_anchors_come_from_the_config_map_at_once() {
    let kubectl = Kubectl::from_env();
    let namespace = Namespace::create(&kubectl, "identity-trust");
    let (old, new) = (authority(), authority());
    let put = |bundle: String| {
        namespace.apply(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "linkerd-identity-trust-roots" },
            "data": { "ca-bundle.crt": bundle },
        }));
    };
    put(old.certificate.to_pem());
    let service = Service::start_in(&kubectl, namespace.name(), &old);
    let (first, second) = (old.certificate.sha256(), new.certificate.sha256());
    assert_eq!(service.anchors(), [first.as_str()]);

    put(old.certificate.to_pem() + &new.certificate.to_pem());
    wait_for(PATIENCE, "both anchors to be told", || {
        service.anchors() == [first.as_str(), second.as_str()]
    });
    // The issuer is below the old one, so a bundle without it is refused.
    put(new.certificate.to_pem());
    let told = wait_for_some(PATIENCE, "the refusal to be told as an event", || {
        let events = namespace.run(&[
            "get",
            "events",
            "--field-selector=reason=TrustAnchorsUpdateSkipped",
            "--output=jsonpath={.items[*].message}",
        ]);
        (!events.is_empty()).then_some(events)
    });
    assert!(told.starts_with("Skipping trust anchor update: "), "{told}");
    assert_eq!(service.anchors().len(), 2, "and changes nothing");
    put(old.certificate.to_pem());
    wait_for(PATIENCE, "one anchor again", || {
        service.anchors() == [first.as_str()]
    });
}
