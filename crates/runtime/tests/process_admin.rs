//! The admin server on a real socket, in a process whose logs are really set up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linkerd_runtime::admin::{Admin, Flavor};
use linkerd_runtime::metrics::{self, Exposition, Registry};
use linkerd_runtime::ready::Readiness;
use linkerd_runtime::{drain, log};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Sends one request and returns everything until the server closes.
async fn exchange(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.expect("admin accepts");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("request is sent");
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer))
        .await
        .expect("an answer in time")
        .expect("the connection is not reset");
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n")
}

fn put(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "PUT {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn a_daemon_answers_probes_scrapes_and_log_levels_until_it_stops() {
    let logs = log::init(log::Format::Plain, "warn").expect("logging starts");
    let mut registry = Registry::default();
    metrics::register_process(&mut registry);
    metrics::register_build_info(&mut registry, "proxy");
    let readiness = Readiness::new();
    let identity = readiness.block("identity");

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("a bound listener");
    let admin = Admin::new(
        Flavor::Proxy,
        readiness,
        Arc::new(Exposition::new(registry)),
    )
    .log_level(logs.clone());
    let (signal, mut watch) = drain::channel();
    let served = linkerd_runtime::spawn(
        "admin",
        Arc::new(admin).serve(listener, async move {
            watch.signaled().await;
        }),
    );

    assert!(
        exchange(addr, &get("/live"))
            .await
            .ends_with("\r\n\r\nlive\n")
    );
    let answer = exchange(addr, &get("/ready")).await;
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\nnot ready\n"),
        "{answer}"
    );
    identity.release();
    let answer = exchange(addr, &get("/ready")).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nready\n"),
        "{answer}"
    );

    let answer = exchange(addr, &get("/metrics")).await;
    assert!(answer.contains("\nprocess_threads "), "{answer}");
    assert!(
        answer.contains("\nproxy_build_info{") && answer.ends_with("# EOF\n"),
        "{answer}"
    );

    let answer = exchange(addr, &put("/proxy-log-level", "warn,linkerd=debug")).await;
    assert!(answer.starts_with("HTTP/1.1 204 "), "{answer}");
    assert_eq!(logs.current(), "warn,linkerd=debug");
    let answer = exchange(addr, &get("/proxy-log-level")).await;
    assert!(answer.ends_with("\r\n\r\nwarn,linkerd=debug"), "{answer}");
    let answer = exchange(addr, &put("/proxy-log-level", "linkerd=loud")).await;
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.contains("invalid log filter"),
        "{answer}"
    );
    let answer = exchange(addr, &put("/proxy-log-level", &"x".repeat(100_000))).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");

    // An idle connection does not keep a stopping server alive.
    let mut idle = TcpStream::connect(addr).await.expect("admin accepts");
    idle.write_all(b"GET /live HTTP/1.1\r\nhost: admin\r\n\r\n")
        .await
        .expect("request is sent");
    let mut head = [0; 15];
    idle.read_exact(&mut head).await.expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    tokio::time::timeout(Duration::from_secs(30), signal.drain())
        .await
        .expect("the server was told");
    tokio::time::timeout(Duration::from_secs(30), served)
        .await
        .expect("the server stops in time")
        .expect("the server does not panic");
    assert!(
        TcpStream::connect(addr).await.is_err(),
        "the listener is closed"
    );
}
