//! HTTP/2 and gRPC-shaped traffic through a pair of proxies.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use bytes::Bytes;
use harness::{Pair, block_on, http_echo};
use http::{HeaderMap, Request, Response};
use http2::{call, connect};
use tokio::net::TcpListener;

fn request(path: &str) -> http::request::Builder {
    Request::builder().uri(format!("http://web.ns{path}"))
}

#[test]
fn http2_requests_cross_the_mesh() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    block_on(async {
        let mut send = connect(pair.client.outbound).await;
        for n in 0..10 {
            let got = call(
                &mut send,
                request(&format!("/{n}")).body(()).expect("valid"),
                &[],
            )
            .await
            .expect("answered");
            assert_eq!(got.head.status(), 200);
            let seen: serde_json::Value = serde_json::from_slice(&got.body).expect("json");
            assert!(
                seen["uri"]
                    .as_str()
                    .expect("uri")
                    .ends_with(&format!("/{n}")),
                "{seen}"
            );
            assert!(
                seen["version"].as_str().expect("version").contains('2'),
                "{seen}"
            );
        }
        let seen = app.requests().remove(0);
        assert_eq!(
            seen.header("l5d-client-id"),
            Some(pair.client.identity.as_str())
        );
    });
}

#[test]
fn large_bodies_respect_flow_control() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    block_on(async {
        let mut send = connect(pair.client.outbound).await;
        let body = vec![Bytes::from(vec![b'x'; 300_000]); 4];
        let head = request("/")
            .method("POST")
            .header("x-echo-body-bytes", "2000000");
        let got = call(&mut send, head.body(()).expect("valid"), &body)
            .await
            .expect("answered");
        assert_eq!(got.head.status(), 200);
        assert_eq!(got.body.len(), 2_000_000);
        assert_eq!(app.requests().remove(0).body.len(), 1_200_000);
    });
}

#[test]
fn many_streams_at_once() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    block_on(async {
        let send = connect(pair.client.outbound).await;
        let calls = (0..100).map(|n| {
            let mut send = send.clone();
            async move {
                let head = request(&format!("/{n}")).body(()).expect("valid");
                let got = call(&mut send, head, &[]).await.expect("answered");
                let seen: serde_json::Value = serde_json::from_slice(&got.body).expect("json");
                assert!(
                    seen["uri"]
                        .as_str()
                        .expect("uri")
                        .ends_with(&format!("/{n}"))
                );
            }
        });
        futures::future::join_all(calls).await;
    });
    assert_eq!(app.requests().len(), 100);
    let http2 = pair.server.metric(
        "inbound_tcp_transport_header_connections_total",
        &["session_protocol=\"http/2\""],
    );
    assert!(
        (http2 - 1.0).abs() < 0.1,
        "one connection between the proxies: {http2}"
    );
}

/// A server that answers like gRPC: headers, data, trailers; resets streams when asked to.
async fn grpc_server(listener: TcpListener) {
    loop {
        let (io, _) = listener.accept().await.expect("accepts");
        linkerd_runtime::spawn("grpc", async move {
            let mut connection = h2::server::handshake(io).await.expect("handshakes");
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let (parts, mut body) = request.into_parts();
                linkerd_runtime::spawn("call", async move {
                    if parts.uri.path().ends_with("/Reset") {
                        respond.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
                        return;
                    }
                    let head = Response::builder()
                        .header("content-type", "application/grpc")
                        .body(())
                        .expect("valid");
                    let mut stream = respond.send_response(head, false).expect("sends");
                    while let Some(Ok(data)) = body.data().await {
                        let _ = body.flow_control().release_capacity(data.len());
                        stream.send_data(data, false).expect("sends");
                    }
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", "5".parse().expect("valid"));
                    trailers.insert("grpc-message", "not here".parse().expect("valid"));
                    stream.send_trailers(trailers).expect("sends");
                });
            }
        });
    }
}

#[test]
fn grpc_statuses_and_resets_pass() {
    block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let app = listener.local_addr().expect("bound");
        linkerd_runtime::spawn("server", grpc_server(listener));
        let pair = tokio::task::spawn_blocking(move || Pair::new(app))
            .await
            .expect("starts");
        let mut send = connect(pair.client.outbound).await;
        let head = |path| {
            request(path)
                .method("POST")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(())
                .expect("valid")
        };
        let pieces = [Bytes::from_static(b"ab"), Bytes::from_static(b"cd")];
        let got = call(&mut send, head("/svc/Echo"), &pieces)
            .await
            .expect("answered");
        assert_eq!(got.body, b"abcd");
        let trailers = got.trailers.expect("trailers");
        assert_eq!(trailers["grpc-status"], "5");
        assert_eq!(trailers["grpc-message"], "not here");
        let reset = call(&mut send, head("/svc/Reset"), &[])
            .await
            .err()
            .expect("a reset");
        assert_eq!(
            reset.reason(),
            Some(h2::Reason::ENHANCE_YOUR_CALM),
            "{reset}"
        );
        let metrics = tokio::task::spawn_blocking(move || {
            pair.client.metric(
                "response_total",
                &["grpc_status=\"5\"", "classification=\"success\""],
            )
        });
        assert!((metrics.await.expect("reads") - 1.0).abs() < 0.1);
    });
}

#[test]
fn shutdown_sends_goaway_and_finishes_streams() {
    let app = http_echo();
    let mut pair = Pair::new(app.addr());
    block_on(async {
        let mut send = connect(pair.client.outbound).await;
        call(&mut send, request("/").body(()).expect("valid"), &[])
            .await
            .expect("answered");
        let mut slow = send.clone();
        let running = async {
            let head = request("/slow")
                .header("x-echo-delay-ms", "500")
                .body(())
                .expect("valid");
            call(&mut slow, head, &[]).await
        };
        let shutdown = async {
            tokio::time::sleep(std::time::Duration::from_millis(150)).await;
            pair.client.shutdown();
        };
        let (slow, ()) = tokio::join!(running, shutdown);
        assert_eq!(slow.expect("finished").head.status(), 200);
    });
    pair.client.join();
}
