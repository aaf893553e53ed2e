//! The admin server on a real socket, in a process whose logs are really set up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linkerd_runtime::admin::{Admin, Flavor};
use linkerd_runtime::metrics::{self, Exposition, Registry};
use linkerd_runtime::ready::Readiness;
use linkerd_runtime::{drain, log};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
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

/// Reads the log.
struct Reader {
    lines: tokio::io::Lines<BufReader<TcpStream>>,
}

impl Reader {
    async fn open(addr: SocketAddr, request: &str) -> Self {
        let reader = Self::try_open(addr, request).await;
        reader.expect("the log can be read")
    }

    async fn try_open(addr: SocketAddr, request: &str) -> Option<Self> {
        let mut stream = TcpStream::connect(addr).await.expect("admin accepts");
        stream
            .write_all(request.as_bytes())
            .await
            .expect("request is sent");
        let mut lines = BufReader::new(stream).lines();
        let mut head = Vec::new();
        while let Some(line) = lines.next_line().await.expect("a head") {
            if line.is_empty() {
                break;
            }
            head.push(line);
        }
        if head.first()?.starts_with("HTTP/1.1 503 ") {
            return None;
        }
        assert_eq!(head[0], "HTTP/1.1 200 OK");
        assert!(
            head.iter()
                .any(|line| line == "content-type: application/json"),
            "{head:?}"
        );
        Some(Self { lines })
    }

    /// Messages up to the last one.
    async fn messages(&mut self, last: &str) -> Vec<String> {
        let mut messages = Vec::new();
        while messages.last().is_none_or(|message| message != last) {
            let next = tokio::time::timeout(Duration::from_secs(30), self.lines.next_line());
            let line = next.await.expect("in time").expect("no reset");
            let line = line.expect("the log goes on");
            // Between them are the sizes of chunks and the ends of lines.
            if line.starts_with('{') {
                let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                let message = line["fields"]["message"].as_str().expect("a message");
                messages.push(message.to_owned());
            }
        }
        messages
    }
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

    // The log, live: by a query or a body, to this host, with a filter of its own.
    let mut reader = Reader::open(addr, &get("/logs.json?scene%3Dtrace")).await;
    let query = "QUERY /logs.json HTTP/1.1\r\nhost: admin\r\ncontent-length: 11\r\n\r\nscene=error";
    let mut errors = Reader::open(addr, query).await;
    tracing::trace!(target: "scene", port = 8080, "first");
    tracing::error!(target: "scene", "second");
    tracing::error!(target: "hyper", "for nobody");
    tracing::error!(target: "scene", "last");
    assert_eq!(reader.messages("last").await, ["first", "second", "last"]);
    assert_eq!(errors.messages("last").await, ["second", "last"]);
    let answer = exchange(addr, &get("/logs.json?linkerd=loud")).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let answer = exchange(addr, &get("/logs.json?%zz")).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let answer = exchange(addr, &put("/logs.json", "info")).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    assert!(answer.contains("allow: GET, QUERY\r\n"), "{answer}");
    let mut more = Vec::new();
    for _ in 0..2 {
        more.push(Reader::open(addr, &get("/logs.json")).await);
    }
    let answer = exchange(addr, &get("/logs.json")).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    // Who has gone makes room.
    drop(more);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let _left = loop {
        if let Some(reader) = Reader::try_open(addr, &get("/logs.json")).await {
            break reader;
        }
        assert!(tokio::time::Instant::now() < deadline, "room is made");
    };

    // Neither readers nor an idle connection keep a stopping server alive.
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
