//! Every way to be refused: code, message, one log line, and never the token. Alone in its binary
//! because it reads the process's log.

use std::{
    io,
    sync::{Arc, Mutex},
};

use linkerd_api::proto::identity::{CertifyRequest, identity_client::IdentityClient};
use linkerd_identity::{Review, ReviewError};
use linkerd_tls::{Key, SigningRequest, issuer::generate::Authority as Ca};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519, SanType};
use service::{Disk, Service, identity, profile};
use tonic::{Code, transport::Channel};

#[allow(dead_code, unreachable_pub, reason = "shared by several test binaries")]
#[path = "support/service.rs"]
mod service;

const TOKEN: &str = "secret-token-of-web";

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn install() -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .init();
        log
    }

    fn take(&self) -> String {
        let bytes = std::mem::take(&mut *self.0.lock().expect("not poisoned"));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .expect("not poisoned")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A request as another program would make it.
fn csr(names: Vec<SanType>, common_name: Option<&str>, key: &KeyPair) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    params.distinguished_name = rcgen::DistinguishedName::new();
    if let Some(cn) = common_name {
        params.distinguished_name.push(DnType::CommonName, cn);
    }
    params
        .serialize_request(key)
        .expect("a request")
        .der()
        .to_vec()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("ASCII"))
}

async fn certify(channel: &Channel, request: CertifyRequest) -> Result<(), (Code, String)> {
    IdentityClient::new(channel.clone())
        .certify(request)
        .await
        .map(|_| ())
        .map_err(|status| (status.code(), status.message().to_owned()))
}

struct Case {
    name: &'static str,
    request: CertifyRequest,
    code: Code,
    message: String,
}

#[tokio::test]
async fn every_refusal() {
    let log = Log::install();
    let root = Ca::self_signed(&profile("root")).expect("a root");
    let issuer = root.subordinate(&profile("issuer")).expect("an issuer");
    let disk = Disk::new(&root, &issuer);
    let service = Service::start(&disk).await;
    let channel = service.channel().await;
    let reviewer = &service.reviewer;
    let name = identity("web", "emojivoto");
    let key = KeyPair::generate().expect("a key");
    let good = CertifyRequest {
        identity: name.clone(),
        token: TOKEN.as_bytes().to_vec(),
        certificate_signing_request: csr(vec![dns(&name)], Some(&name), &key),
    };
    reviewer.user(TOKEN, "system:serviceaccount:emojivoto:web");
    let reviewed = |token: &str, review: Review| reviewer.answer(token, true, Ok(review));
    reviewed("secret-anonymous", Review::default());
    reviewed(
        "secret-expired",
        Review {
            error: "[invalid bearer token, token has expired]".to_owned(),
            ..Review::default()
        },
    );
    let wrong_audience = Review {
        error:
            "[invalid bearer token, token audiences [\"x\"] is invalid for the target audiences]"
                .to_owned(),
        ..Review::default()
    };
    reviewed("secret-audience", wrong_audience.clone());
    reviewer.answer(
        "secret-audience",
        false,
        Ok(Review {
            error: "invalid bearer token".to_owned(),
            ..Review::default()
        }),
    );
    reviewer.user("secret-node", "system:node:a");
    reviewer.user("secret-dotted", "system:serviceaccount:emojivoto:we.b");
    reviewer.user("secret-other", "system:serviceaccount:emojivoto:voting");
    reviewer.answer(
        "secret-unreachable",
        true,
        Err(ReviewError("connection refused".to_owned())),
    );
    reviewed(
        "secret-foreign-audience",
        Review {
            authenticated: true,
            username: "system:serviceaccount:emojivoto:web".to_owned(),
            audiences: vec!["somebody-else".to_owned()],
            ..Review::default()
        },
    );

    let with_csr = |csr: Vec<u8>| CertifyRequest {
        certificate_signing_request: csr,
        ..good.clone()
    };
    let with_token = |token: &str| CertifyRequest {
        token: token.as_bytes().to_vec(),
        ..good.clone()
    };
    let names = |extra: SanType| with_csr(csr(vec![dns(&name), extra], None, &key));
    let mut forged = SigningRequest::create(&name, &Key::generate().expect("a key")).expect("csr");
    let last = forged.len() - 1;
    forged[last] ^= 1;
    let ed25519 = KeyPair::generate_for(&PKCS_ED25519).expect("a key");

    use Code::{FailedPrecondition, Internal, InvalidArgument, OutOfRange};
    let one_name = "CSR must have exactly one DNSName".to_owned();
    let cases = [
        (
            "no identity",
            CertifyRequest {
                identity: String::new(),
                ..good.clone()
            },
            InvalidArgument,
            "missing identity".to_owned(),
        ),
        (
            "huge identity",
            CertifyRequest {
                identity: "a".repeat(600),
                ..good.clone()
            },
            InvalidArgument,
            "identity is longer than 512 bytes".to_owned(),
        ),
        (
            "an identity that would forge a log line",
            CertifyRequest {
                identity: "web\nWARN Certificate refused forged".to_owned(),
                ..good.clone()
            },
            FailedPrecondition,
            "CSR name does not match requested identity".to_owned(),
        ),
        (
            "no token",
            with_token(""),
            InvalidArgument,
            "missing token".to_owned(),
        ),
        (
            "binary token",
            CertifyRequest {
                token: vec![0xff, 0xfe],
                ..good.clone()
            },
            InvalidArgument,
            "token is not text".to_owned(),
        ),
        (
            "no csr",
            with_csr(vec![]),
            InvalidArgument,
            "missing certificate signing request".to_owned(),
        ),
        (
            "garbage csr",
            with_csr(b"garbage".to_vec()),
            InvalidArgument,
            "failed to parse CSR".to_owned(),
        ),
        (
            "pem csr",
            with_csr(b"-----BEGIN CERTIFICATE REQUEST-----".to_vec()),
            InvalidArgument,
            "failed to parse CSR".to_owned(),
        ),
        (
            "no name",
            with_csr(csr(vec![], None, &key)),
            FailedPrecondition,
            one_name.clone(),
        ),
        (
            "two names",
            names(dns("b.example")),
            FailedPrecondition,
            one_name,
        ),
        (
            "other name",
            with_csr(csr(vec![dns("b.example")], None, &key)),
            FailedPrecondition,
            format!("CSR name does not match requested identity: csr=b.example; req={name}"),
        ),
        (
            "other common name",
            with_csr(csr(vec![dns(&name)], Some("b"), &key)),
            FailedPrecondition,
            "invalid CommonName: b".to_owned(),
        ),
        (
            "email",
            names(SanType::Rfc822Name("a@b.c".try_into().expect("ASCII"))),
            FailedPrecondition,
            "cannot validate email addresses".to_owned(),
        ),
        (
            "ip",
            names(SanType::IpAddress([10, 0, 0, 1].into())),
            FailedPrecondition,
            "cannot validate IP addresses".to_owned(),
        ),
        (
            "uri",
            names(SanType::URI("spiffe://a/b".try_into().expect("ASCII"))),
            FailedPrecondition,
            "cannot validate URIs".to_owned(),
        ),
        (
            "forged csr",
            with_csr(forged),
            FailedPrecondition,
            "the CSR's signature does not verify".to_owned(),
        ),
        (
            "api down",
            with_token("secret-unreachable"),
            Internal,
            format!("error validating token for {name}: connection refused"),
        ),
        (
            "expired token",
            with_token("secret-expired"),
            InvalidArgument,
            "[invalid bearer token, token has expired]".to_owned(),
        ),
        (
            "wrong audience",
            with_token("secret-audience"),
            InvalidArgument,
            "invalid bearer token".to_owned(),
        ),
        (
            "not authenticated",
            with_token("secret-anonymous"),
            FailedPrecondition,
            "authentication token could not be authenticated".to_owned(),
        ),
        (
            "audience not confirmed",
            with_token("secret-foreign-audience"),
            FailedPrecondition,
            "authentication token could not be authenticated".to_owned(),
        ),
        (
            "not an account",
            with_token("secret-node"),
            InvalidArgument,
            "Username must be in form system:TYPE:NS:SA: system:node:a".to_owned(),
        ),
        (
            "not a label",
            with_token("secret-dotted"),
            InvalidArgument,
            "Not a label: we.b".to_owned(),
        ),
        (
            "another account",
            with_token("secret-other"),
            FailedPrecondition,
            format!(
                "requested identity did not match provided token: requested={name}; found={}",
                identity("voting", "emojivoto")
            ),
        ),
        (
            "not ecdsa",
            with_csr(csr(vec![dns(&name)], None, &ed25519)),
            Internal,
            "only ECDSA public keys are certified, not Ed25519".to_owned(),
        ),
        (
            "oversized",
            with_token(&"secret-".repeat(20_000)),
            OutOfRange,
            "decoded message length too large".to_owned(),
        ),
    ]
    .map(|(name, request, code, message)| Case {
        name,
        request,
        code,
        message,
    });

    let mut whole_log = log.take();
    for case in cases {
        let refused = certify(&channel, case.request).await.expect_err(case.name);
        assert_eq!(refused.0, case.code, "{}: {}", case.name, refused.1);
        assert!(
            refused.1.contains(&case.message),
            "{}: {}",
            case.name,
            refused.1
        );
        let lines = log.take();
        let told: Vec<_> = lines
            .lines()
            .filter(|l| l.contains("Certificate refused") || l.contains("request refused"))
            .collect();
        assert_eq!(told.len(), 1, "{} must be logged once: {told:?}", case.name);
        whole_log.push_str(&lines);
    }
    certify(&channel, good)
        .await
        .expect("the good request is granted after all of these");
    whole_log.push_str(&log.take());
    assert!(
        whole_log.contains(&format!("issued certificate for {name} until ")),
        "{whole_log}"
    );
    assert!(!whole_log.contains("secret-"), "a token was logged");

    let metrics = service.scrape();
    for want in [
        "identity_certificates_issued_total 1\n",
        "identity_certificates_refused_total{reason=\"wrong_identity\"} 1\n",
        "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Certify\",grpc_service=\"io.linkerd.proxy.identity.Identity\",grpc_type=\"unary\"} 1\n",
        "grpc_code=\"OutOfRange\"",
        "http_client_qps{client=\"k8s\"} 100.0\n",
    ] {
        assert!(metrics.contains(want), "{want} is missing from {metrics}");
    }
}
