//! Requests that do not go the plain way from one end to the other: without a name, over an upgrade,
//! waiting, breaking in the middle.

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
    time::{Duration, Instant},
};

use bytes::Bytes;
use harness::{
    CLUSTER_IP, Client, DEADLINE, Pair, SERVICE, block_on, http_echo, millis, raw_app, rule,
};
use http::{HeaderMap, Response};
use http2::{call, connect};
use linkerd_api::proto::{
    destination::{DestinationProfile, PathMatch, RequestMatch, Route, request_match},
    http_route::{RequestHeaderModifier, RequestRedirect, Timeouts},
    http_types::{Headers, headers::Header},
    inbound, meta,
    outbound::{
        self,
        http_route::{Filter, Retry, filter, retry},
    },
};
use linkerd_testkit::{control_plane::objects, wait_for};

/// Every HTTP/1 request between the proxies travels as HTTP/2.
const UPGRADED: &[(&str, &str)] = &[("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")];

fn request_timeout(ms: i32) -> outbound::OutboundPolicy {
    rule(|rule| {
        rule.timeouts = Some(Timeouts {
            request: Some(millis(ms)),
            ..Timeouts::default()
        });
    })
}

/// Reads a head; `None` at the end.
fn read_head(io: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match io.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    String::from_utf8(head).ok()
}

#[test]
fn http2_requests_without_an_authority_are_forwarded() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    block_on(async {
        let mut send = connect(pair.client.outbound).await;
        for (name, host, authority) in [
            ("host alone", Some("web.ns:80"), Some("web.ns:80")),
            ("no name at all", None, None),
        ] {
            // An older version's request may be relative.
            let mut head = http::Request::builder()
                .version(http::Version::HTTP_11)
                .uri("/path?query");
            if let Some(host) = host {
                head = head.header("host", host);
            }
            let got = call(&mut send, head.body(()).expect("valid"), &[])
                .await
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(got.head.status(), 200, "{name}: {:?}", got.head);
            let seen = app.requests().pop().expect("a request");
            let uri: http::Uri = seen.uri.parse().expect("a URI");
            assert_eq!(uri.authority().map(|a| a.as_str()), authority, "{name}");
            assert_eq!(uri.path_and_query().expect("a path"), "/path?query");
        }
    });
    assert_eq!(app.requests().len(), 2, "each was sent once");
}

#[test]
fn header_changes_reach_upgraded_requests_once() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), UPGRADED, &[]);
    let mut server = objects::inbound_detect(vec![objects::allow("all", None)]);
    let change = RequestHeaderModifier {
        add: Some(headers("x-added", "more")),
        set: Some(headers("x-set", "new")),
        remove: vec!["x-gone".into()],
    };
    if let Some(inbound::proxy_protocol::Kind::Detect(detect)) =
        server.protocol.as_mut().and_then(|p| p.kind.as_mut())
    {
        detect.http_routes = vec![inbound::HttpRoute {
            metadata: Some(meta::Metadata {
                kind: Some(meta::metadata::Kind::Default("all".into())),
            }),
            rules: vec![inbound::http_route::Rule {
                filters: vec![inbound::http_route::Filter {
                    kind: Some(inbound::http_route::filter::Kind::RequestHeaderModifier(
                        change,
                    )),
                }],
                ..inbound::http_route::Rule::default()
            }],
            ..inbound::HttpRoute::default()
        }];
    }
    pair.control.set_inbound(app.addr().port(), server);
    let mut client = Client::connect(pair.client.outbound);
    let ask = "GET / HTTP/1.1\r\nhost: a\r\nx-set: old\r\nx-gone: here\r\nx-added: one\r\n\r\n";
    wait_for(DEADLINE, "the policy", || {
        assert_eq!(client.send(ask).answer().status(), 200);
        let seen = app.requests().pop().expect("a request");
        seen.header("x-set") == Some("new")
    });
    let seen = app.requests().pop().expect("a request");
    let all = |name: &str| {
        let lines = seen.headers.iter().filter(|(n, _)| n == name);
        lines.map(|(_, v)| v.clone()).collect::<Vec<_>>()
    };
    assert_eq!(all("x-set"), ["new"]);
    assert_eq!(all("x-gone"), Vec::<String>::new());
    assert_eq!(all("x-added"), ["one", "more"]);
    assert_eq!(all("host"), ["a"]);
}

fn headers(name: &str, value: &str) -> Headers {
    Headers {
        headers: vec![Header {
            name: name.into(),
            value: value.as_bytes().to_vec(),
        }],
    }
}

#[test]
fn the_absolute_form_survives_an_upgrade() {
    let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = lines.clone();
    let app = raw_app(move |mut io| {
        while let Some(head) = read_head(&mut io) {
            let line = head.lines().next().unwrap_or_default().to_owned();
            kept.lock().expect("no panics").push(line);
            let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let pair = Pair::with(app, UPGRADED, &[]);
    for line in [
        "GET http://web.ns/a?b HTTP/1.1",
        "GET /a?b HTTP/1.1",
        "GET http://web.ns/a HTTP/1.0",
        "GET /a HTTP/1.0",
    ] {
        let mut client = Client::connect(pair.client.outbound);
        let head = client
            .send(format!("{line}\r\nhost: web.ns\r\n\r\n"))
            .head();
        assert_eq!(&head[9..12], "200", "{line}: {head}");
        assert_eq!(&head[..8], &line[line.len() - 8..], "the client's version");
        let seen = lines.lock().expect("no panics").pop();
        assert_eq!(seen.as_deref(), Some(line));
    }
}

/// A peer that takes connections and says nothing.
fn silent_peer(pair: &Pair) -> SocketAddr {
    let addr = raw_app(|mut io| {
        let mut all = Vec::new();
        let _ = io.read_to_end(&mut all);
    });
    let peer = objects::meshed(addr, &pair.server.identity, addr.port());
    pair.control.set_endpoints(SERVICE, [peer]);
    addr
}

#[test]
fn waiting_for_an_endpoint_counts_as_the_requests_time() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    pair.control.set_outbound(CLUSTER_IP, request_timeout(300));
    pair.control.set_endpoints(SERVICE, []);
    wait_for(DEADLINE, "the endpoint is gone", || {
        pair.client.metric(
            "outbound_http_balancer_endpoints",
            &["endpoint_state=\"ready\""],
        ) < 0.5
    });
    expect_request_timeout(&pair);
    let failed = pair.client.metric(
        "outbound_http_route_request_statuses_total",
        &["error=\"REQUEST_TIMEOUT\""],
    );
    assert!((failed - 2.0).abs() < 0.1, "{failed}");
}

/// Both HTTP versions are told of a request timeout of 300 ms, long before fail-fast.
fn expect_request_timeout(pair: &Pair) {
    let text = "timed out waiting for response headers: request timeout: 300ms";
    let started = Instant::now();
    let mut client = Client::connect(pair.client.outbound);
    let answer = client.get("/", "web");
    assert_eq!(answer.status(), 504, "{}", answer.head);
    assert_eq!(answer.header("l5d-proxy-error"), Some(text));
    assert_eq!(answer.header("connection"), None, "the connection stays");
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(started.elapsed() < Duration::from_millis(2_500));
    block_on(async {
        let mut send = connect(pair.client.outbound).await;
        let head = http::Request::get("http://web/").body(()).expect("valid");
        let got = call(&mut send, head, &[]).await.expect("answered");
        assert_eq!(got.head.status(), 504);
        assert_eq!(got.head.headers()["l5d-proxy-error"], text);
    });
}

#[test]
fn connecting_counts_as_the_requests_time() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    pair.control.set_outbound(CLUSTER_IP, request_timeout(300));
    silent_peer(&pair);
    wait_for(DEADLINE, "the peer", || {
        Client::connect(pair.client.outbound)
            .get("/", "web")
            .status()
            == 504
    });
    expect_request_timeout(&pair);
}

#[test]
fn a_profiles_timeout_runs_while_connecting() {
    let app = http_echo();
    let profile = DestinationProfile {
        fully_qualified_name: "web.ns.svc.cluster.local".into(),
        routes: vec![Route {
            condition: Some(RequestMatch {
                r#match: Some(request_match::Match::Path(PathMatch {
                    regex: "/.*".into(),
                })),
            }),
            timeout: Some(millis(300)),
            ..Route::default()
        }],
        ..DestinationProfile::default()
    };
    let pair = Pair::prepared(app.addr(), |control| {
        control.set_profile(CLUSTER_IP, profile);
    });
    silent_peer(&pair);
    let mut last = None;
    wait_for(DEADLINE, "the peer", || {
        let answer = Client::connect(pair.client.outbound).get("/", "web");
        let slow = answer.status() == 504;
        last = Some(answer);
        slow
    });
    let answer = last.expect("an answer");
    let error = answer.header("l5d-proxy-error");
    assert_eq!(error, Some("HTTP response timeout after 300ms"));
    assert_eq!(answer.header("connection"), Some("close"));
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it_over_an_upgrade() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), UPGRADED, &[]);
    let mut client = Client::connect(pair.client.outbound);
    for body in ["first", "second"] {
        client.send(format!(
            "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            body.len()
        ));
        assert_eq!(client.head(), "HTTP/1.1 100 Continue\r\n\r\n");
        let answer = client.send(body).answer();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.json()["body"], body);
    }
    // Who does not wait is not asked.
    let answer = client
        .send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nhi")
        .answer();
    assert_eq!(answer.status(), 200, "{}", answer.head);
}

/// A gRPC server whose answers end badly after their first message.
async fn breaking_server(listener: tokio::net::TcpListener) {
    loop {
        let (io, _) = listener.accept().await.expect("accepts");
        linkerd_runtime::spawn("server", async move {
            let Ok(mut connection) = h2::server::handshake(io).await else {
                return;
            };
            let mut open = Vec::new();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let head = Response::builder()
                    .header("content-type", "application/grpc")
                    .body(())
                    .expect("valid");
                let mut stream = respond.send_response(head, false).expect("sends");
                stream
                    .send_data(Bytes::from_static(b"message"), false)
                    .expect("sends");
                match request.uri().path() {
                    "/svc/Reset" => {
                        // What was said before goes out first.
                        linkerd_runtime::spawn("reset", async move {
                            let mut body = request.into_body();
                            while body.data().await.is_some() {}
                            stream.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
                        });
                    }
                    "/svc/Die" => {
                        linkerd_runtime::spawn("flush", async move {
                            let mut body = request.into_body();
                            while body.data().await.is_some() {}
                            drop(stream);
                        });
                        let until = tokio::time::timeout(
                            Duration::from_millis(300),
                            std::future::poll_fn(|cx| connection.poll_closed(cx)),
                        );
                        let _ = until.await;
                        return;
                    }
                    _ => open.push((stream, request)),
                }
            }
        });
    }
}

/// Head, first message, and how the stream ended.
async fn stream(
    send: &mut h2::client::SendRequest<Bytes>,
    path: &str,
    content_type: &str,
) -> Result<Option<HeaderMap>, h2::Error> {
    let head = http::Request::post(format!("http://web.ns{path}"))
        .header("content-type", content_type)
        .header("te", "trailers")
        .body(())
        .expect("valid");
    let (response, mut body) = send.send_request(head, false)?;
    let mut recv = response.await?.into_body();
    let first = recv.data().await.expect("a message")?;
    assert_eq!(first, "message");
    // Now the server may go on.
    body.send_data(Bytes::new(), true)?;
    while let Some(data) = recv.data().await {
        data?;
    }
    recv.trailers().await
}

#[test]
fn streams_that_break_in_the_middle() {
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("binds");
        let app = listener.local_addr().expect("bound");
        linkerd_runtime::spawn("server", breaking_server(listener));
        let pair = tokio::task::spawn_blocking(move || {
            let pair = Pair::new(app);
            pair.control.set_outbound(CLUSTER_IP, request_timeout(900));
            pair
        });
        let pair = pair.await.expect("starts");
        let mut send = connect(pair.client.outbound).await;
        let grpc = "application/grpc";

        let reset = stream(&mut send, "/svc/Reset", grpc).await;
        let reason = reset.expect_err("a reset").reason();
        assert_eq!(reason, Some(h2::Reason::ENHANCE_YOUR_CALM), "its own code");

        let trailers = stream(&mut send, "/svc/Hang", grpc).await;
        let trailers = trailers.expect("an end").expect("trailers");
        assert_eq!(trailers["grpc-status"], "4");
        assert_eq!(
            trailers["grpc-message"],
            "timed out processing response stream: request timeout: 900ms"
        );
        let reset = stream(&mut send, "/svc/Hang", "text/plain").await;
        let reason = reset.expect_err("a reset").reason();
        assert_eq!(reason, Some(h2::Reason::CANCEL), "not gRPC");
    });
}

#[test]
fn a_grpc_stream_whose_server_dies_ends_with_a_status() {
    block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("binds");
        let app = listener.local_addr().expect("bound");
        linkerd_runtime::spawn("server", breaking_server(listener));
        let pair = tokio::task::spawn_blocking(move || Pair::new(app));
        let pair = pair.await.expect("starts");
        let mut send = connect(pair.client.outbound).await;
        let trailers = stream(&mut send, "/svc/Die", "application/grpc").await;
        let trailers = trailers.expect("an end").expect("trailers");
        assert_eq!(trailers["grpc-status"], "14");
        assert!(trailers.contains_key("grpc-message"), "{trailers:?}");
        let reset = stream(&mut send, "/svc/Die", "text/plain").await;
        let error = reset.expect_err("a reset");
        assert!(error.is_reset(), "not gRPC: {error}");
    });
}

#[test]
fn an_error_leaves_the_connection_when_the_body_is_here() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let redirect = RequestRedirect {
        host: "new.example".into(),
        status: 302,
        ..RequestRedirect::default()
    };
    pair.control.set_outbound(
        CLUSTER_IP,
        rule(|rule| {
            rule.filters = vec![Filter {
                kind: Some(filter::Kind::Redirect(redirect)),
            }];
        }),
    );
    wait_for(DEADLINE, "the policy", || {
        harness::get(pair.client.outbound, "/", "web").status() == 302
    });
    let mut client = Client::connect(pair.client.outbound);
    for (name, request) in [
        (
            "a length",
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
        ),
        (
            "chunks",
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        ("no body", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
    ] {
        let answer = client.send(request).answer();
        assert_eq!(answer.status(), 302, "{name}");
        assert_eq!(answer.header("connection"), None, "{name}: it stays");
    }
    // Two at once: the second is not taken for a body, nor the body for a request.
    client.send(
        "POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello\
         GET /2 HTTP/1.1\r\nhost: a\r\n\r\n",
    );
    for path in ["/1", "/2"] {
        let location = format!("http://new.example{path}");
        assert_eq!(client.answer().header("location"), Some(location.as_str()));
    }
    // What is not here yet cannot be skipped.
    let answer = client
        .send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhe")
        .answer();
    assert_eq!(answer.status(), 302);
    assert_eq!(answer.header("connection"), Some("close"));
    client.send("llo");
    assert_eq!(client.rest(), b"");
    assert!(app.requests().is_empty());
}

#[test]
fn odd_but_valid_heads_are_served() {
    let app = raw_app(|mut io| {
        while let Some(head) = read_head(&mut io) {
            let tunnel = head.starts_with("CONNECT");
            let body = if tunnel { "" } else { "content-length: 0\r\n" };
            let _ = write!(io, "HTTP/1.1 200 OK\r\n{body}\r\n");
            if tunnel {
                return;
            }
        }
    });
    for settings in [&[][..], UPGRADED] {
        let pair = Pair::with(app, settings, &[]);
        for (name, head) in [
            ("empty host", "GET / HTTP/1.1\r\nhost:\r\n\r\n"),
            ("no host", "GET / HTTP/1.1\r\n\r\n"),
            ("lower-case method", "purge / HTTP/1.1\r\nhost: a\r\n\r\n"),
            ("method with digits", "M2 / HTTP/1.1\r\nhost: a\r\n\r\n"),
            ("method of tokens", "A!b~ / HTTP/1.1\r\nhost: a\r\n\r\n"),
            (
                "CONNECT and a host without a port",
                "CONNECT h:443 HTTP/1.1\r\nhost: h\r\n\r\n",
            ),
        ] {
            let answer = Client::connect(pair.client.outbound).send(head).head();
            assert_eq!(&answer[9..12], "200", "{name} {settings:?}: {answer}");
        }
    }
}

#[test]
fn bad_requests_of_old_clients_are_answered_in_their_version() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    for (request, start) in [
        ("GET / HTTP/1.0\r\na b: c\r\n\r\n", "HTTP/1.0 400 "),
        ("GET / HTTP/1.0\r\nhost: /\r\n\r\n", "HTTP/1.0 400 "),
        ("CONNECT a:1 HTTP/1.0\r\n\r\n", "HTTP/1.0 400 "),
        ("GET / HTTP/1.1\r\na b: c\r\n\r\n", "HTTP/1.1 400 "),
    ] {
        let head = Client::connect(pair.client.outbound).send(request).head();
        assert!(head.starts_with(start), "{request:?}: {head}");
    }
}

#[test]
fn a_service_in_fail_fast_is_tried_again_by_policy() {
    let app = http_echo();
    let pair = Pair::with(
        app.addr(),
        &[("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "300ms")],
        &[],
    );
    let delay = prost_types::Duration {
        seconds: 2,
        nanos: 0,
    };
    let policy = |max_retries| {
        rule(|rule| {
            rule.retry = Some(Retry {
                max_retries,
                conditions: Some(retry::Conditions::default()),
                backoff: Some(outbound::ExponentialBackoff {
                    min_backoff: Some(delay),
                    max_backoff: Some(delay),
                    ..outbound::ExponentialBackoff::default()
                }),
                ..Retry::default()
            });
        })
    };
    pair.control.set_outbound(CLUSTER_IP, policy(1));
    pair.control.set_endpoints(SERVICE, []);
    let addr = pair.client.outbound;
    let ask = move || Client::connect(addr).get("/", "web");
    let retries = |what: &str| {
        let family = format!("outbound_http_route_retry_{what}_total");
        pair.client.metric(&family, &[])
    };
    // Nothing is there by the time it is tried again.
    let answer = ask();
    assert_eq!(answer.status(), 504, "{}", answer.head);
    assert_eq!(
        answer.header("l5d-proxy-error"),
        Some("service in fail-fast")
    );
    assert!((retries("requests") - 1.0).abs() < 0.1);
    assert!((retries("overflow") - 1.0).abs() < 0.1);
    // An endpoint comes while the retry waits. The gate of the service opens with it.
    let endpoint = objects::endpoint(app.addr());
    pair.control.set_endpoints(SERVICE, [endpoint.clone()]);
    wait_for(DEADLINE, "the gate opens", || ask().status() == 200);
    pair.control.set_endpoints(SERVICE, []);
    wait_for(DEADLINE, "the endpoint is gone", || {
        pair.client.metric(
            "outbound_http_balancer_endpoints",
            &["endpoint_state=\"ready\""],
        ) < 0.5
    });
    let before = retries("requests");
    let waiting = std::thread::spawn(ask);
    wait_for(DEADLINE, "the retry", || retries("requests") > before + 0.5);
    pair.control.set_endpoints(SERVICE, [endpoint]);
    assert_eq!(waiting.join().expect("an answer").status(), 200);
}

#[test]
fn old_and_nameless_requests_get_connections_of_their_own() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    for (name, request) in [
        (
            "HTTP/1.0",
            "GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n",
        ),
        ("no host", "GET / HTTP/1.1\r\n\r\n"),
    ] {
        let before = app.connections().len();
        let mut client = Client::connect(pair.client.outbound);
        for _ in 0..3 {
            assert_eq!(client.send(request).answer().status(), 200, "{name}");
        }
        assert_eq!(app.connections().len() - before, 3, "{name}");
    }
}

/// Answers with a head whose body is broken from the start, so many times; then well.
fn broken_app(times: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let app = raw_app(move |mut io| {
        while let Some(head) = read_head(&mut io) {
            if head.starts_with("POST") {
                let mut body = [0; 4];
                let _ = io.read_exact(&mut body);
            }
            let answer: &[u8] = if seen.fetch_add(1, Ordering::SeqCst) < times {
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
            } else {
                b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
            };
            let _ = io.write_all(answer);
        }
    });
    (app, count)
}

#[test]
fn an_answer_that_breaks_before_the_client_saw_any_is_a_502() {
    for settings in [&[][..], UPGRADED] {
        let (app, count) = broken_app(usize::MAX);
        let pair = Pair::with(app, settings, &[]);
        let mut client = Client::connect(pair.client.outbound);
        let post = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody";
        let answer = client.send(post).answer();
        assert_eq!(answer.status(), 502, "{settings:?}: {}", answer.head);
        assert_eq!(count.load(Ordering::SeqCst), 1, "never twice");
    }
}

#[test]
fn an_idempotent_request_is_sent_again_when_its_answer_broke_unseen() {
    let whole = http_echo();
    let pair = Pair::new(whole.addr());
    let (app, count) = broken_app(1);
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app)]);
    wait_for(DEADLINE, "the other application", || {
        let answer = harness::get(pair.client.outbound, "/", "web");
        assert_eq!(answer.status(), 200, "{}", answer.head);
        count.load(Ordering::SeqCst) > 0
    });
    assert!(count.load(Ordering::SeqCst) >= 2, "it was sent again");
}
