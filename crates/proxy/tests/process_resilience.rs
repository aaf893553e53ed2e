//! Timeouts, retries, circuit breaking, rate limits, and endpoints that fail.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use harness::{
    CLUSTER_IP, Client, DEADLINE, Pair, Proxy, SERVICE, counts, get, http_echo, millis, rule,
};
use linkerd_api::proto::{http_route::Timeouts, inbound, outbound};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Answer, Echo},
    wait_for,
};
use outbound::http_route::{Retry, retry};

/// Fails the first `failures` requests with 503.
fn flaky(failures: usize) -> (Echo, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let app = Echo::http_with(([127, 0, 0, 1], 0), move |request| {
        if seen.fetch_add(1, Ordering::SeqCst) < failures {
            Answer::status(503, "no")
        } else {
            Answer::echo(request)
        }
    });
    (app, count)
}

#[test]
fn a_slow_answer_times_out() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    pair.control.set_outbound(
        CLUSTER_IP,
        rule(|rule| {
            rule.timeouts = Some(Timeouts {
                request: Some(millis(200)),
                ..Timeouts::default()
            });
        }),
    );
    let mut client = Client::connect(pair.client.outbound);
    let slow = "GET / HTTP/1.1\r\nhost: a\r\nx-echo-delay-ms: 5000\r\n\r\n";
    let start = Instant::now();
    let answer = client.send(slow).answer();
    assert_eq!(answer.status(), 504, "{}", answer.head);
    assert!(start.elapsed() < Duration::from_secs(4));
    let error = answer.header("l5d-proxy-error").expect("an explanation");
    assert!(error.contains("request timeout: 200ms"), "{error}");
    assert_eq!(
        client.get("/", "a").status(),
        200,
        "the connection lives on"
    );
}

#[test]
fn failed_answers_are_tried_again() {
    let (app, count) = flaky(2);
    let pair = Pair::new(app.addr());
    let retry = |max_retries| Retry {
        max_retries,
        conditions: Some(retry::Conditions {
            status_ranges: vec![retry::conditions::StatusRange {
                start: 500,
                end: 599,
            }],
        }),
        backoff: Some(outbound::ExponentialBackoff {
            min_backoff: Some(millis(1)),
            max_backoff: Some(millis(10)),
            ..outbound::ExponentialBackoff::default()
        }),
        ..Retry::default()
    };
    pair.control
        .set_outbound(CLUSTER_IP, rule(|rule| rule.retry = Some(retry(2))));
    let mut client = Client::connect(pair.client.outbound);
    let post = "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody";
    let answer = client.send(post).answer();
    assert_eq!(answer.status(), 200, "{}", answer.head);
    assert_eq!(count.load(Ordering::SeqCst), 3);
    assert!(
        app.requests().iter().all(|r| r.body == "body"),
        "each try has the body"
    );
    // No more than allowed.
    let (app, count) = flaky(100);
    let endpoint = objects::meshed(
        app.addr(),
        &pair.server.identity,
        pair.server.inbound.port(),
    );
    pair.control.set_endpoints(SERVICE, [endpoint]);
    wait_for(DEADLINE, "the other application", || {
        client.send(post).answer();
        count.load(Ordering::SeqCst) > 0
    });
    let before = count.load(Ordering::SeqCst);
    assert_eq!(client.send(post).answer().status(), 503);
    assert_eq!(count.load(Ordering::SeqCst) - before, 3);
}

#[test]
fn bodies_beyond_the_limit_of_the_rule_are_not_sent_again() {
    for (limit, size, tries) in [
        (1024, 1024, 2),
        (1024, 1025, 1),
        (0, 64 * 1024, 2),
        (0, 64 * 1024 + 1, 1),
    ] {
        let (app, count) = flaky(usize::MAX);
        let pair = Pair::new(app.addr());
        let on = retry::conditions::StatusRange {
            start: 503,
            end: 503,
        };
        let policy = rule(|rule| {
            rule.retry = Some(Retry {
                max_retries: 1,
                max_request_bytes: limit,
                conditions: Some(retry::Conditions {
                    status_ranges: vec![on],
                }),
                ..Retry::default()
            });
        });
        pair.control.set_outbound(CLUSTER_IP, policy);
        let mut client = Client::connect(pair.client.outbound);
        let body = vec![b'x'; size];
        let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n");
        assert_eq!(client.send(head).send(&body).answer().status(), 503);
        assert_eq!(
            count.load(Ordering::SeqCst),
            tries,
            "HTTP/1: {size} of {limit}"
        );
        harness::block_on(async {
            let mut send = http2::connect(pair.client.outbound).await;
            let request = http::Request::post("http://web/").body(()).expect("valid");
            let got = http2::call(&mut send, request, &[body.into()]).await;
            assert_eq!(got.expect("answered").head.status(), 503);
        });
        let all = count.load(Ordering::SeqCst);
        assert_eq!(all, 2 * tries, "HTTP/2: {size} of {limit}");
        let overflow = if tries == 1 { 2.0 } else { 0.0 };
        let family = "outbound_http_route_retry_overflow_total";
        counts(&pair.client, family, &[], overflow);
    }
}

#[test]
fn requests_may_ask_for_limits_where_allowed() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let ask = "GET / HTTP/1.1\r\nhost: a\r\nl5d-timeout: 100ms\r\nx-echo-delay-ms: 1000\r\n\r\n";
    let mut client = Client::connect(pair.client.outbound);
    assert_eq!(client.send(ask).answer().status(), 200, "not allowed");
    pair.control.set_outbound(
        CLUSTER_IP,
        rule(|rule| rule.allow_l5d_request_headers = true),
    );
    wait_for(DEADLINE, "the new policy", || {
        client.send(ask).answer().status() == 504
    });
}

#[test]
fn a_refused_endpoint_is_skipped() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let dead = TcpListener::bind("127.0.0.1:0").expect("binds");
    let dead_addr = dead.local_addr().expect("bound");
    drop(dead);
    let live = objects::endpoint(app.addr());
    pair.control
        .set_endpoints(SERVICE, [live, objects::endpoint(dead_addr)]);
    for n in 0..40 {
        let answer = get(pair.client.outbound, &format!("/{n}"), "web");
        assert_eq!(answer.status(), 200, "{n}: {}", answer.head);
    }
}

#[test]
fn a_connection_that_died_idle_costs_nothing() {
    let app = http_echo();
    let mut addr = app.addr();
    let pair = Pair::new(addr);
    let mut client = Client::connect(pair.client.outbound);
    assert_eq!(client.get("/", "a").status(), 200);
    drop(app);
    addr.set_port(addr.port());
    let app = Echo::http(addr);
    for _ in 0..5 {
        assert_eq!(client.get("/", "a").status(), 200);
    }
    assert_eq!(app.requests().len(), 5);
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

/// The service's policy with a breaker, and its only rule changed.
fn breaking(
    max_failures: u32,
    backoff: prost_types::Duration,
    change: impl FnOnce(&mut outbound::http_route::Rule),
) -> outbound::OutboundPolicy {
    let mut policy = rule(change);
    let accrual = outbound::FailureAccrual {
        kind: Some(outbound::failure_accrual::Kind::ConsecutiveFailures(
            outbound::failure_accrual::ConsecutiveFailures {
                max_failures,
                backoff: Some(outbound::ExponentialBackoff {
                    min_backoff: Some(backoff),
                    max_backoff: Some(backoff),
                    ..outbound::ExponentialBackoff::default()
                }),
            },
        )),
        ejection: None,
    };
    if let Some(outbound::proxy_protocol::Kind::Detect(detect)) =
        policy.protocol.as_mut().and_then(|p| p.kind.as_mut())
        && let (Some(http1), Some(http2)) = (detect.http1.as_mut(), detect.http2.as_mut())
    {
        http1.failure_accrual = Some(accrual);
        http2.failure_accrual = Some(accrual);
    }
    policy
}

#[test]
fn failures_in_a_row_take_an_endpoint_out() {
    let bad = Echo::http_with(([127, 0, 0, 1], 0), |_| Answer::status(500, "no"));
    let good = http_echo();
    let pair = Pair::new(good.addr());
    pair.control
        .set_outbound(CLUSTER_IP, breaking(3, seconds(60), |_| {}));
    pair.control.set_endpoints(
        SERVICE,
        [
            objects::endpoint(good.addr()),
            objects::endpoint(bad.addr()),
        ],
    );
    let mut failures = 0;
    for _ in 0..200 {
        if get(pair.client.outbound, "/", "web").status() != 200 {
            failures += 1;
        }
    }
    assert_eq!(failures, 3, "the breaker lets three through");
}

/// An HTTP/2 application: `/never` is not answered, `/watch` has no end.
fn endless_app() -> SocketAddr {
    harness::raw_app(|io| {
        harness::block_on(async {
            io.set_nonblocking(true).expect("an option");
            let io = tokio::net::TcpStream::from_std(io).expect("the runtime takes it");
            let mut connection = h2::server::handshake(io).await.expect("handshakes");
            let mut held = Vec::new();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let path = request.uri().path().to_owned();
                if path == "/never" {
                    held.push((Some(respond), None));
                    continue;
                }
                let watch = path == "/watch";
                let answer = http::Response::new(());
                let stream = respond.send_response(answer, !watch).expect("sends");
                held.push((None, Some(stream)));
            }
        });
    })
}

/// A proxy in front of one endpoint that is not in the mesh, with a breaker after two failures.
fn breaker_before(app: SocketAddr) -> (ControlPlane, Proxy) {
    let control = ControlPlane::start();
    control.set_outbound(CLUSTER_IP, breaking(2, seconds(60), |_| {}));
    control.set_endpoints(SERVICE, [objects::endpoint(app)]);
    let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let proxy = Proxy::start(&control, "curl", vip, local, &[]);
    (control, proxy)
}

/// So many clients have left, so many answers were counted, and nobody failed.
#[track_caller]
fn nobody_failed(proxy: &Proxy, left: f64, answered: f64) {
    for family in [
        "outbound_http_route_request_statuses_total",
        "outbound_http_route_backend_response_statuses_total",
    ] {
        counts(proxy, family, &["error=\"CANCEL\""], left);
    }
    let outbound = "direction=\"outbound\"";
    let failed = [outbound, "classification=\"failure\""];
    counts(proxy, "response_total", &failed, 0.0);
    counts(proxy, "response_total", &[outbound], answered);
}

#[test]
fn a_client_that_leaves_is_nobodys_failure() {
    let app = endless_app();
    for (name, path, answered) in [
        ("before the answer", "/never", 1.0),
        ("in the middle of it", "/watch", 7.0),
    ] {
        let (_control, proxy) = breaker_before(app);
        harness::block_on(async {
            let mut send = http2::connect(proxy.outbound).await;
            let ask = |path: &str| {
                let request = http::Request::get(format!("http://web{path}"));
                request.body(()).expect("valid")
            };
            for _ in 0..6 {
                send = send.ready().await.expect("ready");
                let (answer, mut stream) = send.send_request(ask(path), true).expect("sends");
                if path == "/watch" {
                    let answer = answer.await.expect("the head");
                    assert_eq!(answer.status(), 200, "{name}");
                } else {
                    // Every one of them gets as far as the application.
                    let _ = http2::call(&mut send, ask("/"), &[]).await;
                }
                stream.send_reset(h2::Reason::CANCEL);
            }
            let got = http2::call(&mut send, ask("/"), &[]).await;
            let got = got.expect("answered");
            assert_eq!(got.head.status(), 200, "{name}: the endpoint is still in");
        });
        let asked = if path == "/watch" { 0.0 } else { 6.0 };
        nobody_failed(&proxy, 6.0, asked + answered);
    }
}

#[test]
fn a_client_that_hangs_up_is_nobodys_failure() {
    let app = harness::raw_app(|mut io| {
        let _ = io.read(&mut [0; 4096]);
        let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n");
        while io.write_all(&[0; 16 * 1024]).is_ok() {}
    });
    let (_control, proxy) = breaker_before(app);
    for n in 0..6 {
        let mut client = Client::connect(proxy.outbound);
        let head = client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").head();
        assert!(head.starts_with("HTTP/1.1 200"), "{n}: {head}");
    }
    nobody_failed(&proxy, 6.0, 6.0);
}

/// Decided: a try that a limit of the route has ended counts as a failure of the endpoint.
#[test]
fn tries_that_took_too_long_take_an_endpoint_out() {
    let app = http_echo();
    let pair = Pair::with(
        app.addr(),
        &[("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "100ms")],
        &[],
    );
    let slow = |rule: &mut outbound::http_route::Rule| {
        rule.timeouts = Some(Timeouts {
            response: Some(millis(200)),
            ..Timeouts::default()
        });
    };
    pair.control
        .set_outbound(CLUSTER_IP, breaking(2, seconds(60), slow));
    let mut client = Client::connect(pair.client.outbound);
    let ask = "GET / HTTP/1.1\r\nhost: a\r\nx-echo-delay-ms: 5000\r\n\r\n";
    for n in 0..2 {
        let answer = client.send(ask).answer();
        assert_eq!(answer.status(), 504, "{n}: {}", answer.head);
    }
    let answer = get(pair.client.outbound, "/", "web");
    let error = answer.header("l5d-proxy-error");
    assert_eq!(error, Some("service in fail-fast"), "{}", answer.head);
    assert_eq!(app.requests().len(), 2);
}

#[test]
fn requests_that_wait_go_when_a_probe_has_succeeded() {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let app = Echo::http_with(([127, 0, 0, 1], 0), move |request| {
        match seen.fetch_add(1, Ordering::SeqCst) {
            0 => Answer::status(500, "no"),
            _ => Answer::asked_for(request),
        }
    });
    let pair = Pair::with(
        app.addr(),
        &[("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "20s")],
        &[],
    );
    pair.control
        .set_outbound(CLUSTER_IP, breaking(1, millis(300), |_| {}));
    let addr = pair.client.outbound;
    assert_eq!(get(addr, "/", "web").status(), 500);
    let start = Instant::now();
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                // Long enough that all the others come while it is a probe.
                let ask = "GET / HTTP/1.1\r\nhost: a\r\nx-echo-delay-ms: 500\r\n\r\n";
                Client::connect(addr).send(ask).answer().status()
            })
        })
        .collect();
    for thread in waiting {
        assert_eq!(thread.join().expect("answers"), 200);
    }
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    assert_eq!(count.load(Ordering::SeqCst), 5);
}

#[test]
fn when_one_has_waited_in_vain_all_that_wait_fail() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "6s")], &[]);
    pair.control.set_endpoints(SERVICE, []);
    let addr = pair.client.outbound;
    let ask = move || {
        let start = Instant::now();
        let answer = get(addr, "/", "web");
        let error = answer.header("l5d-proxy-error").map(ToOwned::to_owned);
        (answer.status(), error, start.elapsed())
    };
    let fail_fast = Some("service in fail-fast".to_owned());
    let start = Instant::now();
    let first = std::thread::spawn(ask);
    wait_for(DEADLINE, "the first waits", || {
        pair.client
            .metric("outbound_http_balancer_queue_length", &[])
            > 0.5
    });
    wait_for(DEADLINE, "half of its time has passed", || {
        start.elapsed() >= Duration::from_secs(3)
    });
    let late = std::thread::spawn(ask);
    let (status, error, waited) = first.join().expect("answered");
    assert_eq!((status, error), (504, fail_fast.clone()));
    assert!(waited >= Duration::from_secs(6), "{waited:?}");
    let (status, error, waited) = late.join().expect("answered");
    assert_eq!((status, error), (504, fail_fast));
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    // The gate is shut: nobody waits any more.
    let (status, error, _) = ask();
    assert_eq!(
        (status, error),
        (503, Some("service unavailable".to_owned()))
    );
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app.addr())]);
    wait_for(DEADLINE, "it opens", || ask().0 == 200);
}

#[test]
fn rate_limits() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut server = objects::inbound_detect(vec![objects::allow("all", None)]);
    if let Some(inbound::proxy_protocol::Kind::Detect(detect)) =
        server.protocol.as_mut().and_then(|p| p.kind.as_mut())
    {
        detect.http_local_rate_limit = Some(inbound::HttpLocalRateLimit {
            metadata: Some(objects::resource("HTTPLocalRateLimitPolicy", "ns", "limit")),
            total: Some(inbound::http_local_rate_limit::Limit {
                requests_per_second: 2,
            }),
            ..inbound::HttpLocalRateLimit::default()
        });
    }
    pair.control.set_inbound(app.addr().port(), server);
    let mut client = Client::connect(pair.client.outbound);
    let mut asked = 0.0;
    wait_for(DEADLINE, "a refusal", || {
        asked += 1.0;
        client.get("/", "a").status() == 429
    });
    // Allowed is what policy allows, also what a limit then refuses.
    counts(&pair.server, "inbound_http_authz_allow_total", &[], asked);
    let refused = pair.server.metric(
        "inbound_http_local_ratelimit_total",
        &["ratelimit_name=\"limit\"", "ratelimit_scope=\"total\""],
    );
    assert!(refused > 0.5);
}

#[test]
fn upgrades_become_byte_pipes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let app = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for io in listener.incoming() {
            let mut io = io.expect("accepts");
            std::thread::spawn(move || {
                let mut buf = vec![0; 4096];
                let n = io.read(&mut buf).expect("a head");
                let head = String::from_utf8_lossy(&buf[..n]).to_lowercase();
                let answer = if head.starts_with("connect") {
                    "HTTP/1.1 200 OK\r\n\r\n".to_owned()
                } else {
                    assert!(head.contains("connection: upgrade"), "{head}");
                    assert!(head.contains("upgrade: websocket"), "{head}");
                    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
                        .to_owned()
                };
                io.write_all(answer.as_bytes()).expect("writes");
                while let Ok(n) = io.read(&mut buf)
                    && n > 0
                {
                    io.write_all(&buf[..n]).expect("writes");
                }
            });
        }
    });
    let pair = Pair::new(app);
    for (request, status) in [
        (
            "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
            "101",
        ),
        ("CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n", "200"),
    ] {
        let mut client = Client::connect(pair.client.outbound);
        let head = client.send(request).head();
        assert_eq!(&head[9..12], status, "{head}");
        client.send([0, 1, 2, 255]);
        assert_eq!(client.exactly(4), [0, 1, 2, 255]);
        client.send("again");
        assert_eq!(client.exactly(5), b"again");
    }
}
