//! Timeouts, retries, circuit breaking, rate limits, and endpoints that fail.

#[path = "support/harness.rs"]
mod harness;

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use harness::{CLUSTER_IP, Client, DEADLINE, Pair, SERVICE, get, http_echo, millis, rule};
use linkerd_api::proto::{http_route::Timeouts, inbound, outbound};
use linkerd_testkit::{
    control_plane::objects,
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

#[test]
fn failures_in_a_row_take_an_endpoint_out() {
    let bad = Echo::http_with(([127, 0, 0, 1], 0), |_| Answer::status(500, "no"));
    let good = http_echo();
    let pair = Pair::new(good.addr());
    let mut policy = objects::service(SERVICE);
    let accrual = outbound::FailureAccrual {
        kind: Some(outbound::failure_accrual::Kind::ConsecutiveFailures(
            outbound::failure_accrual::ConsecutiveFailures {
                max_failures: 3,
                backoff: Some(outbound::ExponentialBackoff {
                    min_backoff: Some(prost_types::Duration {
                        seconds: 60,
                        nanos: 0,
                    }),
                    max_backoff: Some(prost_types::Duration {
                        seconds: 60,
                        nanos: 0,
                    }),
                    ..outbound::ExponentialBackoff::default()
                }),
            },
        )),
        ejection: None,
    };
    if let Some(outbound::proxy_protocol::Kind::Detect(detect)) =
        policy.protocol.as_mut().and_then(|p| p.kind.as_mut())
        && let Some(http1) = detect.http1.as_mut()
    {
        http1.failure_accrual = Some(accrual);
    }
    pair.control.set_outbound(CLUSTER_IP, policy);
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
    wait_for(DEADLINE, "a refusal", || {
        client.get("/", "a").status() == 429
    });
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
        use std::io::{Read, Write};
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
