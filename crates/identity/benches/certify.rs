//! Certify calls per CPU-second: the checks and the signature alone, and through gRPC on loopback
//! (client included). Run with `cargo bench -p linkerd-identity`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use linkerd_api::proto::identity::{CertifyRequest, identity_client::IdentityClient};
use linkerd_identity::{
    Authority, Certifier, Limiter, Metrics, Request, Review, ReviewError, TokenReviewer, events,
};
use linkerd_runtime::metrics::Registry;
use linkerd_tls::{Key, SigningRequest, issuer::generate::Authority as Ca};
use rustix::time::{ClockId, clock_gettime};

#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
#[path = "../tests/support/service.rs"]
mod service;

/// An API server that answers at once.
#[derive(Debug)]
struct Instantly;

impl TokenReviewer for Instantly {
    async fn review(&self, _: &str, _: &[&str]) -> Result<Review, ReviewError> {
        Ok(Review {
            authenticated: true,
            username: "system:serviceaccount:emojivoto:web".to_owned(),
            ..Review::default()
        })
    }
}

fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        t.tv_sec.unsigned_abs(),
        u32::try_from(t.tv_nsec).unwrap_or(0),
    )
}

#[allow(clippy::print_stdout, reason = "a benchmark's only output")]
fn report(name: &str, count: u32, cpu: Duration, wall: Duration) {
    let each = cpu.as_secs_f64() / f64::from(count);
    println!(
        "{name:<24} {:>8.0} per CPU-second  {:>7.1} µs CPU  {:>8.0} per second",
        1.0 / each,
        each * 1e6,
        f64::from(count) / wall.as_secs_f64()
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let count: u32 = std::env::args()
        .find_map(|a| a.parse().ok())
        .unwrap_or(2000);
    let root = Ca::self_signed(&service::profile("root")).expect("a root");
    let issuer = root
        .subordinate(&service::profile("issuer"))
        .expect("an issuer");
    let disk = service::Disk::new(&root, &issuer);
    let config = service::config();
    let (authority, _) = Authority::load(disk.files.clone(), &config.own_name()).expect("loads");
    let (recorder, _events) = events::channel(service::NAMESPACE);
    let metrics = Metrics::register(&mut Registry::default(), (100.0, 200));
    let limiter = Limiter::new(1e9, u32::MAX);
    let certifier = Certifier::new(
        config,
        Arc::new(authority),
        Instantly,
        limiter,
        recorder,
        metrics.clone(),
    );
    let name = service::identity("web", "emojivoto");
    let csr = SigningRequest::create(&name, &Key::generate().expect("a key")).expect("csr");
    let request = Request {
        identity: name.clone(),
        token: b"token".to_vec(),
        csr: csr.clone(),
    };

    let (cpu, wall) = (cpu_time(), Instant::now());
    for _ in 0..count {
        certifier.certify(request.clone()).await.expect("issues");
    }
    report(
        "checks and signature",
        count,
        cpu_time() - cpu,
        wall.elapsed(),
    );

    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .expect("binds");
    let addr = listener.local_addr().expect("bound");
    let server = linkerd_runtime::spawn("identity", async move {
        linkerd_identity::serve(certifier, metrics, listener, std::future::pending())
            .await
            .expect("serves");
    });
    let client = IdentityClient::new(service::connect(addr).await.expect("connects"));
    let request = CertifyRequest {
        identity: name,
        token: b"token".to_vec(),
        certificate_signing_request: csr,
    };
    let (cpu, wall) = (cpu_time(), Instant::now());
    let calls = (0..32).map(|_| {
        let (mut client, request) = (client.clone(), request.clone());
        async move {
            for _ in 0..count / 32 {
                client.certify(request.clone()).await.expect("issues");
            }
        }
    });
    futures::future::join_all(calls).await;
    report(
        "gRPC, both ends",
        count / 32 * 32,
        cpu_time() - cpu,
        wall.elapsed(),
    );
    server.abort();
}
