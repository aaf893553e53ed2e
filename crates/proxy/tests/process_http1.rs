//! HTTP/1 through a pair of proxies.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use harness::{
    CLUSTER_IP, Client, DEADLINE, Pair, Proxy, SERVICE, block_on, get, http_echo, millis, raw_app,
    rule,
};
use linkerd_api::proto::http_route::Timeouts;
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Answer, Echo},
    wait_for,
};

#[test]
fn a_request_crosses_the_mesh() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let answer = get(pair.client.outbound, "/hello?x=1", "web.ns");
    assert_eq!(answer.status(), 200, "{}", answer.head);
    let seen = answer.json();
    assert_eq!(seen["method"], "GET");
    assert_eq!(seen["uri"], "/hello?x=1");
    let request = app.requests().remove(0);
    assert_eq!(request.header("host"), Some("web.ns"));
    assert_eq!(
        request.header("l5d-client-id"),
        Some(pair.client.identity.as_str())
    );
    assert_eq!(request.header("l5d-orig-proto"), None);
}

#[test]
fn connections_are_kept_on_both_legs() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    for n in 0..20 {
        let answer = client.get(&format!("/{n}"), "web");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.json()["uri"], format!("/{n}"));
    }
    assert_eq!(
        app.connections().len(),
        1,
        "one connection to the application"
    );
    let opened = pair
        .server
        .metric("tcp_open_total", &["peer=\"src\"", "direction=\"inbound\""]);
    assert!(
        (opened - 1.0).abs() < 0.1,
        "one connection between the proxies: {opened}"
    );
}

#[test]
fn bodies_pass_in_both_directions() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    for size in [0usize, 1, 100, 8192, 70_000, 1_000_000] {
        let body = "x".repeat(size);
        let head = format!(
            "POST /{size} HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\nx-echo-body-bytes: {size}\r\n\r\n"
        );
        let answer = client.send(head).send(&body).answer();
        assert_eq!(answer.status(), 200, "{size}");
        assert_eq!(answer.body.len(), size, "{size}");
        let request = app.requests().pop().expect("a request");
        assert_eq!(request.body.len(), size);
    }
}

/// An upload over an upgrade once stopped after 32 KiB when its frames came faster than they went on.
#[test]
fn large_uploads_pass_whatever_the_way() {
    const SIZE: usize = 2 << 20;
    let app = Echo::http_with(([127, 0, 0, 1], 0), |request| {
        Answer::status(200, request.body.len().to_string())
    });
    let body = vec![b'x'; SIZE];
    let chunked = |size: usize| {
        let piece = [format!("{size:x}\r\n").as_bytes(), &body[..size], b"\r\n"].concat();
        let mut all = piece.repeat(SIZE / size);
        all.extend(b"0\r\n\r\n");
        ("transfer-encoding: chunked".to_owned(), all)
    };
    let uploads = [
        (format!("content-length: {SIZE}"), body.clone()),
        chunked(SIZE),
        chunked(4096),
    ];
    let upgraded = [("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")];
    for settings in [&[][..], &upgraded] {
        let pair = Pair::with(app.addr(), settings, &[]);
        let mut client = Client::connect(pair.client.outbound);
        for (framing, bytes) in &uploads {
            client.send(format!("POST / HTTP/1.1\r\nhost: web\r\n{framing}\r\n\r\n"));
            let answer = client.send(bytes).answer();
            assert_eq!(answer.status(), 200, "{settings:?} {framing}");
            assert_eq!(
                answer.body_text(),
                SIZE.to_string(),
                "{settings:?} {framing}"
            );
        }
    }
}

/// What is uploaded: read as requests, it would be many.
const REQUEST: &[u8] = b"GET /from/the/body HTTP/1.1\r\nhost: web\r\n\r\n";

/// An application that refuses uploads after their first bytes and ends the connection without
/// reading the rest. Counts the requests that came out of a body.
fn refuses_uploads() -> (SocketAddr, Arc<AtomicUsize>) {
    let strays = Arc::new(AtomicUsize::new(0));
    let count = strays.clone();
    let addr = raw_app(move |mut io| {
        loop {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                match io.read(&mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => return,
                }
            }
            if head.starts_with(b"POST") {
                let _ = io.read_exact(&mut [0; 64 * 1024]);
                let answer = "HTTP/1.1 413 Too Large\r\ncontent-length: 7\r\n\r\nrefused";
                let _ = io.write_all(answer.as_bytes());
                return;
            }
            if head.starts_with(b"GET /from/the/body") {
                count.fetch_add(1, Ordering::SeqCst);
            }
            let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    });
    (addr, strays)
}

#[test]
fn an_upload_that_is_refused_before_its_end_has_one_answer() {
    let (app, strays) = refuses_uploads();
    let upgraded = [("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")];
    for (way, settings, meshed) in [
        ("HTTP/1", &[][..], true),
        ("upgraded", &upgraded[..], true),
        ("unmeshed", &[][..], false),
    ] {
        let pair = Pair::with(app, settings, &[]);
        if !meshed {
            pair.control
                .set_endpoints(SERVICE, [objects::endpoint(app)]);
        }
        for (megabytes, chunked) in [(4, false), (4, true), (20, false), (20, true)] {
            let name = format!("{way}, {megabytes} MiB, chunked {chunked}");
            let piece = REQUEST.repeat((64 << 10) / REQUEST.len());
            let (framing, piece) = match chunked {
                true => {
                    let size = format!("{:x}\r\n", piece.len());
                    let piece = [size.as_bytes(), &piece, b"\r\n"].concat();
                    ("transfer-encoding: chunked".to_owned(), piece)
                }
                false => {
                    let size = piece.len() * megabytes * 16;
                    (format!("content-length: {size}"), piece)
                }
            };
            let mut client = Client::connect(pair.client.outbound);
            client.send(format!("POST / HTTP/1.1\r\nhost: web\r\n{framing}\r\n\r\n"));
            let mut io: &TcpStream = client.io();
            let mut sent = (0..megabytes * 16).try_for_each(|_| io.write_all(&piece));
            if chunked {
                sent = sent.and_then(|()| io.write_all(b"0\r\n\r\n"));
            }
            // Who sends very much more may be cut off, and has its answer all the same.
            assert!(sent.is_ok() || megabytes > 4, "{name}: {sent:?}");
            let answer = client.answer();
            assert_eq!(answer.status(), 413, "{name}: {}", answer.head);
            assert_eq!(answer.body_text(), "refused", "{name}");
            assert_eq!(answer.header("connection"), Some("close"), "{name}");
            assert!(client.closed(), "{name}: nothing comes behind it");
            assert_eq!(
                get(pair.client.outbound, "/next", "web").status(),
                200,
                "{name}"
            );
        }
    }
    assert_eq!(strays.load(Ordering::SeqCst), 0, "no body became a request");
}

#[test]
fn an_http2_upload_that_is_refused_before_its_end_has_one_answer() {
    let app = raw_app(|io| {
        io.set_nonblocking(true).expect("an option");
        block_on(async {
            let io = tokio::net::TcpStream::from_std(io).expect("registers");
            let Ok(mut connection) = h2::server::handshake(io).await else {
                return;
            };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let status = if request.method() == "POST" { 413 } else { 200 };
                let head = http::Response::builder().status(status);
                let head = head.body(()).expect("valid");
                let Ok(mut stream) = respond.send_response(head, false) else {
                    continue;
                };
                let _ = stream.send_data(Bytes::from_static(b"refused"), true);
            }
        });
    });
    let pair = Pair::new(app);
    block_on(async {
        let mut send = http2::connect(pair.client.outbound).await;
        for length in [true, false] {
            const SIZE: usize = 20 << 20;
            let mut request = http::Request::post("http://web/");
            if length {
                request = request.header("content-length", SIZE);
            }
            let request = request.body(()).expect("valid");
            let (response, mut stream) = send.send_request(request, false).expect("open");
            let mut left = SIZE;
            while left > 0 {
                stream.reserve_capacity(left.min(16 << 10));
                let granted = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                let Some(Ok(granted)) = granted else { break };
                let n = granted.min(left);
                left -= n;
                if stream.send_data(vec![b'x'; n].into(), left == 0).is_err() {
                    break;
                }
            }
            assert!(left > 0, "length {length}: nobody takes all of it");
            let (parts, mut body) = response.await.expect("answered").into_parts();
            assert_eq!(parts.status, 413, "length {length}");
            let data = body.data().await.expect("a body").expect("whole");
            assert_eq!(data, "refused", "length {length}");
            assert!(body.data().await.is_none(), "length {length}");
            let next = http::Request::get("http://web/next")
                .body(())
                .expect("valid");
            let got = http2::call(&mut send, next, &[]).await.expect("answered");
            assert_eq!(
                got.head.status(),
                200,
                "length {length}: the same connection"
            );
        }
    });
}

#[test]
fn large_heads_are_not_upgraded() {
    let app = http_echo();
    let upgraded = [("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")];
    let pair = Pair::with(app.addr(), &upgraded, &[]);
    let ask = |size: usize| {
        let cookie = "y".repeat(size);
        let head = format!("GET / HTTP/1.1\r\nhost: web\r\ncookie: {cookie}\r\n\r\n");
        let status = Client::connect(pair.client.outbound).send(head).answer();
        assert_eq!(status.status(), 200, "{size} bytes");
        let seen = app.requests().pop().expect("a request");
        assert_eq!(seen.header("cookie").map(str::len), Some(size));
        ["http/1", "http/2"].map(|protocol| {
            let label = format!("session_protocol=\"{protocol}\"");
            let family = "inbound_tcp_transport_header_connections_total";
            pair.server.metric(family, &[label.as_str()]) > 0.5
        })
    };
    assert_eq!(ask(10 << 10), [false, true], "a small one is");
    assert_eq!(ask(48 << 10), [true, true], "a large one goes as it is");
}

#[test]
fn chunked_bodies_pass() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
    client.send("6\r\n world\r\n0\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.json()["body"], "hello world");
}

#[test]
fn a_client_cannot_claim_an_identity() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    client
        .send("GET / HTTP/1.1\r\nhost: a\r\nl5d-client-id: somebody\r\n\r\n")
        .answer();
    let request = app.requests().remove(0);
    let ids: Vec<_> = request
        .headers
        .iter()
        .filter(|(n, _)| n == "l5d-client-id")
        .collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(ids[0].1, pair.client.identity);
}

#[test]
fn many_clients_at_once_travel_as_http2() {
    let app = http_echo();
    let pair = Pair::with(
        app.addr(),
        &[("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")],
        &[],
    );
    let addr = pair.client.outbound;
    let threads: Vec<_> = (0..8)
        .map(|n| {
            std::thread::spawn(move || {
                let mut client = Client::connect(addr);
                for i in 0..20 {
                    let answer = client.get(&format!("/{n}/{i}"), "web");
                    assert_eq!(answer.status(), 200);
                    assert_eq!(answer.json()["uri"], format!("/{n}/{i}"));
                    assert_eq!(answer.header("l5d-orig-proto"), None);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a client succeeds");
    }
    let http2 = pair.server.metric(
        "inbound_tcp_transport_header_connections_total",
        &["session_protocol=\"http/2\""],
    );
    assert!(http2 >= 1.0, "some went as HTTP/2");
    for request in app.requests() {
        assert!(
            request.version.contains("1.1"),
            "the application sees HTTP/1: {request:?}"
        );
        assert_eq!(request.header("l5d-orig-proto"), None);
        assert_eq!(request.header("host"), Some("web"));
    }
}

#[test]
fn golden_metrics_are_counted() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    for _ in 0..3 {
        client.get("/", "web");
    }
    client
        .send("GET / HTTP/1.1\r\nhost: a\r\nx-echo-status: 503\r\n\r\n")
        .answer();
    for (proxy, direction) in [(&pair.client, "outbound"), (&pair.server, "inbound")] {
        let direction = format!("direction=\"{direction}\"");
        wait_for(harness::DEADLINE, "responses are counted", || {
            (proxy.metric("response_total", &[&direction]) - 4.0).abs() < 0.1
        });
        let total = |family, labels: &[&str]| {
            let mut all = vec![direction.as_str()];
            all.extend(labels);
            proxy.metric(family, &all)
        };
        let same = |a: f64, b: f64, what: &str| {
            assert!((a - b).abs() < 0.1, "{what}: {a} {b}\n{}", proxy.metrics())
        };
        same(total("request_total", &[]), 4.0, "requests");
        same(
            total(
                "response_total",
                &["classification=\"success\"", "status_code=\"200\""],
            ),
            3.0,
            "successes",
        );
        same(
            total(
                "response_total",
                &["classification=\"failure\"", "status_code=\"503\""],
            ),
            1.0,
            "failures",
        );
        same(total("response_latency_ms_count", &[]), 4.0, "latencies");
        assert!(total("tcp_read_bytes_total", &["peer=\"src\""]) > 100.0);
    }
    let labels = ["dst_deployment=\"web\"", "tls=\"true\"", "server_id="];
    assert!(pair.client.metric("request_total", &labels) > 3.0);
    assert!(
        pair.server.metric(
            "request_total",
            &["tls=\"true\"", "client_id=", "srv_kind=", "authz_name="]
        ) > 3.0
    );
    let text = pair.client.metrics();
    assert!(text.contains("proxy_build_info{"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn a_silent_client_is_closed_on_shutdown() {
    let app = http_echo();
    let mut pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    client.get("/", "web");
    pair.client.shutdown();
    assert_eq!(client.rest(), b"", "idle connections are closed");
    pair.client.join();
}

/// Who asks again at once on the same connection would lose that request.
#[test]
fn a_client_served_while_the_drain_begins_is_told_to_close() {
    let app = http_echo();
    let upgraded = [("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")];
    let limit = |request| Timeouts {
        request,
        ..Timeouts::default()
    };
    for (name, settings, request, status) in [
        ("HTTP/1 upstream", &[][..], None, 200),
        ("HTTP/2 upstream", &upgraded[..], None, 200),
        ("our own answer", &[][..], Some(millis(500)), 504),
    ] {
        let pair = Pair::with(app.addr(), settings, &[]);
        let policy = rule(|rule| rule.timeouts = Some(limit(request)));
        pair.control.set_outbound(CLUSTER_IP, policy);
        let before = app.requests().len();
        let mut client = Client::connect(pair.client.outbound);
        client.send("GET / HTTP/1.1\r\nhost: a\r\nx-echo-delay-ms: 900\r\n\r\n");
        wait_for(DEADLINE, "the request", || app.requests().len() > before);
        pair.client.shutdown();
        let answer = client.answer();
        assert_eq!(answer.status(), status, "{name}");
        let closes = answer.header("connection");
        assert_eq!(closes, Some("close"), "{name}: {}", answer.head);
        assert_eq!(client.rest(), b"", "{name}");
    }
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let proxy = Proxy::start(&control, "web", local, OrigDst::fixed(app.addr()), &[]);
    let before = app.requests().len();
    let mut client = Client::connect(proxy.inbound);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nx-echo-delay-ms: 500\r\n\r\n");
    wait_for(DEADLINE, "the request", || app.requests().len() > before);
    proxy.shutdown();
    let answer = client.answer();
    assert_eq!(answer.header("connection"), Some("close"), "inbound");
}

#[test]
fn malformed_requests_are_answered_and_closed() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    for (name, request, status) in [
        (
            "two lengths",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            400,
        ),
        (
            "length and coding",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "folded line",
            "GET / HTTP/1.1\r\nhost: a\r\nx: 1\r\n 2\r\n\r\n",
            400,
        ),
        (
            "space before the colon",
            "GET / HTTP/1.1\r\nhost : a\r\n\r\n",
            400,
        ),
        (
            "bad chunk",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            400,
        ),
    ] {
        let mut client = Client::connect(pair.client.outbound);
        let answer = client.send(request).answer();
        assert_eq!(answer.status(), status, "{name}: {}", answer.head);
        assert_eq!(answer.header("connection"), Some("close"), "{name}");
        client
            .io()
            .shutdown(std::net::Shutdown::Write)
            .expect("closes");
        assert_eq!(client.rest(), b"", "{name}: closed");
    }
    let long = format!(
        "GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n",
        "y".repeat(100_000)
    );
    let mut client = Client::connect(pair.client.outbound);
    assert_eq!(client.send(long).answer().status(), 431);
    assert!(app.requests().is_empty());
}

#[test]
fn old_clients_and_pipelined_requests() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut client = Client::connect(pair.client.outbound);
    client.send("GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.answer().json()["uri"], "/1");
    assert_eq!(client.answer().json()["uri"], "/2");
    let mut client = Client::connect(pair.client.outbound);
    let answer = client.send("GET /old HTTP/1.0\r\n\r\n").answer();
    assert_eq!(answer.status(), 200);
    assert!(answer.head.starts_with("HTTP/1.0"), "{}", answer.head);
    assert_eq!(client.rest(), b"", "closed");
    let mut client = Client::connect(pair.client.outbound);
    let head = client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n").head();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(
        client.get("/after", "a").json()["uri"],
        "/after",
        "nothing is left over"
    );
}
