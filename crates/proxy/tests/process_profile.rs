//! Service profiles: routes, classes, retries within a budget, timeouts, and traffic splits.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use harness::{CLUSTER_IP, Client, DEADLINE, Pair, Proxy, SERVICE, block_on, counts, http_echo};
use linkerd_api::proto::destination::{
    DestinationProfile, HttpStatusRange, PathMatch, RequestMatch, ResponseClass, ResponseMatch,
    RetryBudget, Route, WeightedDst, request_match, response_match,
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{Call, ControlPlane, objects},
    echo::{Answer, Echo},
    wait_for,
};

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn route(name: &str, path: &str) -> Route {
    Route {
        condition: Some(RequestMatch {
            r#match: Some(request_match::Match::Path(PathMatch { regex: path.into() })),
        }),
        metrics_labels: HashMap::from([("route".to_owned(), name.to_owned())]),
        ..Route::default()
    }
}

fn fails(min: u32, max: u32) -> ResponseClass {
    ResponseClass {
        condition: Some(ResponseMatch {
            r#match: Some(response_match::Match::Status(HttpStatusRange { min, max })),
        }),
        is_failure: true,
    }
}

fn profile(routes: Vec<Route>, budget: Option<RetryBudget>) -> DestinationProfile {
    DestinationProfile {
        fully_qualified_name: "web.ns.svc.cluster.local".into(),
        routes,
        retry_budget: budget,
        ..DestinationProfile::default()
    }
}

fn budget(ratio: f32, min_retries_per_second: u32) -> Option<RetryBudget> {
    Some(RetryBudget {
        retry_ratio: ratio,
        min_retries_per_second,
        ttl: seconds(10),
    })
}

/// A pair whose service has this profile from the start.
fn pair(app: &Echo, profile: DestinationProfile) -> Pair {
    Pair::prepared(app.addr(), |control| {
        control.set_profile(CLUSTER_IP, profile);
    })
}

#[test]
fn routes_are_counted_by_name() {
    let app = http_echo();
    let pair = pair(
        &app,
        profile(
            vec![route("books", "/books/[^/]*"), route("all", "/.*")],
            None,
        ),
    );
    let mut client = Client::connect(pair.client.outbound);
    for path in ["/books/1", "/books/2", "/authors"] {
        assert_eq!(client.get(path, "web").status(), 200);
    }
    let dst = "dst=\"web.ns.svc.cluster.local:80\"";
    for (name, want) in [("books", 2.0), ("all", 1.0)] {
        let label = format!("rt_route=\"{name}\"");
        for family in [
            "route_request_total",
            "route_response_total",
            "route_actual_request_total",
            "route_actual_response_total",
            "route_response_latency_ms_count",
        ] {
            let labels = ["direction=\"outbound\"", dst, &label];
            counts(&pair.client, family, &labels, want);
        }
    }
    let seen = app.requests().remove(0);
    assert_eq!(
        seen.header("l5d-dst-canonical"),
        Some("web.ns.svc.cluster.local:80")
    );
}

#[test]
fn classes_decide_what_fails() {
    let app = http_echo();
    let mut lost = route("lost", "/.*");
    lost.response_classes = vec![fails(404, 404)];
    let pair = pair(&app, profile(vec![lost], None));
    let mut client = Client::connect(pair.client.outbound);
    let ask = "GET / HTTP/1.1\r\nhost: web\r\nx-echo-status: 404\r\n\r\n";
    assert_eq!(client.send(ask).answer().status(), 404);
    let failed = ["classification=\"failure\"", "status_code=\"404\""];
    counts(&pair.client, "route_response_total", &failed, 1.0);
}

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

fn retryable() -> Route {
    Route {
        is_retryable: true,
        ..route("again", "/.*")
    }
}

#[test]
fn failures_are_retried_within_the_budget() {
    let (app, count) = flaky(5);
    let pair = pair(&app, profile(vec![retryable()], budget(0.0, 1)));
    let mut client = Client::connect(pair.client.outbound);
    let post = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 4\r\n\r\nbody";
    assert_eq!(client.send(post).answer().status(), 200);
    assert_eq!(count.load(Ordering::SeqCst), 6);
    assert!(app.requests().iter().all(|r| r.body == "body"));
    let labels = ["rt_route=\"again\""];
    for (family, want) in [
        ("route_request_total", 1.0),
        ("route_actual_request_total", 6.0),
        ("route_retryable_total", 5.0),
    ] {
        counts(&pair.client, family, &labels, want);
    }
}

/// An HTTP/2 application whose calls fail so often, with the status in trailers behind the head.
fn flaky_calls(failures: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let app = harness::raw_app(move |io| {
        block_on(async {
            io.set_nonblocking(true).expect("an option");
            let io = tokio::net::TcpStream::from_std(io).expect("the runtime takes it");
            let mut connection = h2::server::handshake(io).await.expect("handshakes");
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let fails = seen.fetch_add(1, Ordering::SeqCst) < failures;
                let head = http::Response::builder().header("content-type", "application/grpc");
                let head = head.body(()).expect("valid");
                let mut stream = respond.send_response(head, false).expect("sends");
                let code = if fails { "14" } else { "0" };
                let trailers = [("grpc-status", code)].map(|(name, value)| {
                    let name = http::HeaderName::from_static(name);
                    (name, http::HeaderValue::from_static(value))
                });
                let trailers = http::HeaderMap::from_iter(trailers);
                stream.send_trailers(trailers).expect("sends");
            }
        });
    });
    (app, count)
}

#[test]
fn calls_that_fail_in_trailers_are_retried() {
    let (app, count) = flaky_calls(2);
    let pair = Pair::prepared(app, |control| {
        let profile = profile(vec![retryable()], budget(0.0, 1));
        control.set_profile(CLUSTER_IP, profile);
    });
    let got = block_on(async {
        let mut send = http2::connect(pair.client.outbound).await;
        let call = http::Request::post("http://web/ns.Service/Method")
            .header("content-type", "application/grpc")
            .body(())
            .expect("valid");
        http2::call(&mut send, call, &[]).await.expect("answered")
    });
    let trailers = got.trailers.expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[test]
fn an_empty_budget_ends_retries() {
    let (app, count) = flaky(usize::MAX);
    let pair = pair(&app, profile(vec![retryable()], budget(0.0, 1)));
    let mut client = Client::connect(pair.client.outbound);
    assert_eq!(client.get("/", "web").status(), 503);
    // One per second for ten seconds, used up at once.
    assert_eq!(count.load(Ordering::SeqCst), 11);
    assert_eq!(client.get("/", "web").status(), 503);
    let skipped = pair
        .client
        .metric("route_retryable_total", &["skipped=\"no_budget\""]);
    assert!(skipped > 1.5, "{skipped}");
}

#[test]
fn without_a_usable_budget_nothing_is_retried() {
    for (name, budget) in [
        ("none", None),
        (
            "out of bounds",
            Some(RetryBudget {
                ttl: seconds(61),
                ..budget(0.2, 10).expect("a budget")
            }),
        ),
    ] {
        let (app, count) = flaky(usize::MAX);
        let pair = pair(&app, profile(vec![retryable()], budget));
        let mut client = Client::connect(pair.client.outbound);
        assert_eq!(client.get("/", "web").status(), 503, "{name}");
        assert_eq!(count.load(Ordering::SeqCst), 1, "{name}");
    }
}

#[test]
fn a_route_without_retries_is_not_retried() {
    let (app, count) = flaky(1);
    let pair = pair(&app, profile(vec![route("once", "/.*")], budget(1.0, 10)));
    let mut client = Client::connect(pair.client.outbound);
    assert_eq!(client.get("/", "web").status(), 503);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_slow_answer_times_out() {
    let app = http_echo();
    let mut slow = route("slow", "/.*");
    slow.timeout = Some(prost_types::Duration {
        seconds: 0,
        nanos: 200_000_000,
    });
    let pair = pair(&app, profile(vec![slow], None));
    let mut client = Client::connect(pair.client.outbound);
    let ask = "GET / HTTP/1.1\r\nhost: web\r\nx-echo-delay-ms: 5000\r\n\r\n";
    let answer = client.send(ask).answer();
    assert_eq!(answer.status(), 504, "{}", answer.head);
    assert_eq!(
        answer.header("l5d-proxy-error"),
        Some("HTTP response timeout after 200ms")
    );
    assert_eq!(answer.header("connection"), Some("close"));
}

#[test]
fn traffic_is_split_by_weight_and_the_split_changes() {
    let app = http_echo();
    let leaf =
        |status| Echo::http_with(([127, 0, 0, 1], 0), move |_| Answer::status(status, "leaf"));
    let (a, b) = (leaf(201), leaf(202));
    let split = |weights: &[(&str, u32)]| DestinationProfile {
        dst_overrides: weights
            .iter()
            .map(|(name, weight)| WeightedDst {
                authority: format!("{name}.ns.svc.cluster.local:80"),
                weight: *weight,
                backend_ref: None,
            })
            .collect(),
        ..profile(Vec::new(), None)
    };
    let pair = Pair::prepared(app.addr(), |control| {
        control.set_profile(CLUSTER_IP, split(&[("a", 9), ("b", 1)]));
        for (name, app) in [("a", &a), ("b", &b)] {
            let path = format!("{name}.ns.svc.cluster.local:80");
            control.set_endpoints(path, [objects::endpoint(app.addr())]);
        }
    });
    let mut client = Client::connect(pair.client.outbound);
    let mut seen = HashMap::new();
    for _ in 0..200 {
        *seen.entry(client.get("/", "web").status()).or_insert(0) += 1;
    }
    let (many, few) = (seen[&201], seen[&202]);
    assert!(many > 140 && few > 2, "{seen:?}");
    // One leaf is turned off on an open connection.
    pair.control
        .set_profile(CLUSTER_IP, split(&[("a", 0), ("b", 1)]));
    wait_for(DEADLINE, "the new split", || {
        (0..20).all(|_| client.get("/", "web").status() == 202)
    });
    // Without overrides the service itself gets it.
    pair.control
        .set_profile(CLUSTER_IP, profile(Vec::new(), None));
    wait_for(DEADLINE, "no split", || {
        client.get("/", "web").status() == 200
    });
    let _ = SERVICE;
}

#[test]
fn inbound_requests_are_counted_by_the_route_their_profile_gives_them() {
    let app = http_echo();
    let mut lost = route("lost", "/lost");
    lost.response_classes = vec![fails(404, 404)];
    let told = profile(vec![lost, route("books", "/books/.*")], None);
    let name = "web.ns.svc.cluster.local";
    let pair = Pair::prepared(app.addr(), |control| {
        control.set_profile(CLUSTER_IP, told.clone());
        control.set_profile(SERVICE, told.clone());
    });
    let mut client = Client::connect(pair.client.outbound);
    // The client's proxy says which service it is, whatever the application calls it.
    for path in ["/books/1", "/books/2", "/else"] {
        assert_eq!(client.get(path, "web").status(), 200);
    }
    let ask = "GET /lost HTTP/1.1\r\nhost: web\r\nx-echo-status: 404\r\n\r\n";
    assert_eq!(client.send(ask).answer().status(), 404);
    // Without a proxy that says so, the name is the authority.
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let to = OrigDst::fixed(app.addr());
    let bare = Proxy::start(&pair.control, "bare", local, to, &[]);
    let mut plain = Client::connect(bare.inbound);
    assert_eq!(plain.get("/books/3", name).status(), 200);
    assert_eq!(plain.get("/books/4", "web.example.com").status(), 200);

    let dst = "dst=\"web.ns.svc.cluster.local:80\"";
    let of = |route: &str| {
        [
            "direction=\"inbound\"".to_owned(),
            dst.to_owned(),
            route.to_owned(),
        ]
    };
    for (proxy, route, want) in [
        (&pair.server, "rt_route=\"books\"", 2.0),
        (&pair.server, "rt_route=\"lost\"", 1.0),
        (&bare, "rt_route=\"books\"", 1.0),
    ] {
        let labels = of(route);
        let labels = labels.each_ref().map(String::as_str);
        for family in [
            "route_request_total",
            "route_response_total",
            "route_response_latency_ms_count",
        ] {
            counts(proxy, family, &labels, want);
        }
        counts(proxy, "route_actual_request_total", &labels, 0.0);
    }
    counts(
        &pair.server,
        "route_request_total",
        &["direction=\"inbound\"", dst],
        4.0,
    );
    // What fails is what the profile says, also for the golden metrics.
    let failed = [
        "direction=\"inbound\"",
        "status_code=\"404\"",
        "classification=\"failure\"",
    ];
    counts(&pair.server, "response_total", &failed, 1.0);
    counts(&pair.server, "route_response_total", &failed, 1.0);
    let asked = |name: &str| {
        let call = Call::GetProfile(name.to_owned());
        pair.control.calls().iter().filter(|c| **c == call).count()
    };
    assert_eq!(asked("web.example.com:80"), 0, "not one of the suffixes");
    assert_eq!(asked(SERVICE), 2, "once per proxy");
}

#[test]
fn a_profile_that_does_not_come_is_not_waited_for() {
    let app = http_echo();
    let mut control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let to = OrigDst::fixed(app.addr());
    let settings = [("DESTINATION_PROFILE_INITIAL_TIMEOUT", "300ms")];
    let proxy = Proxy::start(&control, "web", local, to, &settings);
    control.stop();
    let mut client = Client::connect(proxy.inbound);
    let start = Instant::now();
    let answer = client.get("/", "web.ns.svc.cluster.local");
    assert_eq!(answer.status(), 200);
    assert!(
        start.elapsed() >= Duration::from_millis(300),
        "it is asked for"
    );
    let start = Instant::now();
    for _ in 0..100 {
        let answer = client.get("/", "web.ns.svc.cluster.local");
        assert_eq!(answer.status(), 200);
    }
    let each = start.elapsed() / 100;
    assert!(
        each < Duration::from_millis(300),
        "waited for once: {each:?}"
    );
}

#[test]
fn names_clients_make_up_do_not_flood_the_control_plane() {
    let app = http_echo();
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let proxy = Proxy::start(&control, "web", local, OrigDst::fixed(app.addr()), &[]);
    let mut client = Client::connect(proxy.inbound);
    for n in 0..300 {
        let name = format!("n{n}.ns.svc.cluster.local");
        assert_eq!(client.get("/", &name).status(), 200);
    }
    let calls = control.calls();
    let asked = calls.iter().filter(|c| matches!(c, Call::GetProfile(_)));
    assert_eq!(asked.count(), 256);
}
