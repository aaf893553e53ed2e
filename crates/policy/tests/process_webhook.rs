//! The policy webhook over real TLS: what it answers to whom, and that a new certificate needs no
//! restart.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use linkerd_k8s::admission;
use linkerd_policy::admission::PolicyValidator;
use linkerd_testkit::{
    ca::{Ca, Leaf},
    wait_for,
};
use linkerd_tls::{
    ServerFiles,
    rustls::{ClientConfig, RootCertStore, pki_types::ServerName},
    tokio_rustls::TlsConnector,
};
use serde_json::{Value, json};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const NAME: &str = "linkerd-policy-validator.linkerd.svc";

fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let lines: Vec<&str> = (0..text.len())
        .step_by(64)
        .map(|at| &text[at..text.len().min(at + 64)])
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

fn write(directory: &Path, leaf: &Leaf) {
    let chain: String = leaf
        .chain
        .iter()
        .map(|certificate| pem("CERTIFICATE", certificate))
        .collect();
    std::fs::write(directory.join("tls.crt"), chain).expect("writes");
    std::fs::write(
        directory.join("tls.key"),
        pem("PRIVATE KEY", leaf.key.secret_der()),
    )
    .expect("writes");
}

/// Sends one request; gives the status line and the body, or why there was no connection.
async fn send(
    addr: SocketAddr,
    ca: &Ca,
    head: &str,
    body: &str,
) -> Result<(String, String), String> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.certificate().clone()).expect("a root");
    let provider = Arc::new(linkerd_tls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = TcpStream::connect(addr)
        .await
        .map_err(|error| error.to_string())?;
    let name = ServerName::try_from(NAME).expect("a name");
    let connected = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await;
    let mut stream = connected.map_err(|error| error.to_string())?;
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: webhook\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    // The server may close without a goodbye.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok((
        head.lines().next().unwrap_or_default().to_owned(),
        body.to_owned(),
    ))
}

fn review(kind: &str, spec: Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u1", "operation": "CREATE", "name": "x", "namespace": "shop",
            "kind": {"group": "policy.linkerd.io", "version": "v1beta3", "kind": kind},
            "object": {"metadata": {"name": "x"}, "spec": spec},
        },
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = Ca::root("first");
    write(directory.path(), &first.leaf(NAME));
    let files = ServerFiles::load(
        directory.path().join("tls.crt"),
        directory.path().join("tls.key"),
    );
    let files = Arc::new(files.expect("loads"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("bound");
    let config = files.clone();
    let server = linkerd_runtime::spawn("webhook", async move {
        let tls = move || config.config();
        admission::serve(
            listener,
            tls,
            Arc::new(PolicyValidator),
            std::future::pending(),
        )
        .await;
    });

    let good = review("Server", json!({"podSelector": {}, "port": 80}));
    let bad = review(
        "Server",
        json!({"podSelector": {}, "port": 80, "accessPolicy": "x"}),
    );
    let (status, body) = send(addr, &first, "POST /", &good).await.expect("connects");
    assert_eq!(
        (status.as_str(), body.contains("\"allowed\":true")),
        ("HTTP/1.1 200 OK", true),
        "{body}"
    );
    let (status, body) = send(addr, &first, "POST /", &bad).await.expect("connects");
    assert!(
        status.ends_with("200 OK") && body.contains("\"allowed\":false"),
        "{status} {body}"
    );
    assert!(body.contains("Invalid 'accessPolicy' field"), "{body}");
    for (case, head, body, expected) in [
        ("another path", "POST /x", good.as_str(), "404 Not Found"),
        ("another method", "GET /", "", "404 Not Found"),
        ("not a review", "POST /", "{", "400 Bad Request"),
        ("not JSON", "POST /", "what", "400 Bad Request"),
    ] {
        let (status, _) = send(addr, &first, head, body).await.expect("connects");
        assert!(status.ends_with(expected), "{case}: {status}");
    }
    let (status, _) = send(addr, &first, "POST /", &"x".repeat(11 * 1024 * 1024))
        .await
        .unwrap_or_default();
    assert!(!status.ends_with("200 OK"), "too large: {status}");

    let second = Ca::root("second");
    write(directory.path(), &second.leaf(NAME));
    tokio::task::block_in_place(|| {
        wait_for(Duration::from_secs(60), "the new certificate", || {
            files.refresh().expect("readable")
        });
    });
    assert!(
        send(addr, &first, "POST /", &good).await.is_err(),
        "the old CA no longer counts"
    );
    let (status, _) = send(addr, &second, "POST /", &good)
        .await
        .expect("connects");
    assert!(status.ends_with("200 OK"), "{status}");
    server.abort();
}
