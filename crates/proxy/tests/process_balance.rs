//! Balancing and circuit breaking through a running proxy: the gate of a service without an endpoint
//! that is ready, endpoints that change or go, which answers take an endpoint out, how it comes back,
//! and failures that count as slow.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;
#[path = "support/matrix.rs"]
mod matrix;

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use harness::{
    CLUSTER_IP, Client, DEADLINE, Pair, Proxy, SERVICE, block_on, counts, get, http_echo, millis,
    raw_app,
};
use linkerd_api::proto::outbound::{
    ExponentialBackoff, FailureAccrual, OutboundPolicy,
    backend::{self, balance_p2c},
    failure_accrual::{ConsecutiveFailures, Kind as Accrual, Unified},
    proxy_protocol,
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Answer, Echo, End},
    wait_for,
};
use matrix::{Seat, http2_server};

const FAIL_FAST: (&str, &str) = ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "300ms");

#[test]
fn the_gate_of_a_service_shuts_and_opens() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[FAIL_FAST], &[]);
    pair.control.set_endpoints(SERVICE, []);
    let ask = || {
        let started = Instant::now();
        (get(pair.client.outbound, "/", "web"), started.elapsed())
    };
    let (answer, took) = ask();
    assert_eq!(answer.status(), 504, "{}", answer.head);
    assert!(took >= Duration::from_millis(300), "it waits: {took:?}");
    let (answer, took) = ask();
    assert_eq!(answer.status(), 503, "{}", answer.head);
    let error = answer.header("l5d-proxy-error");
    assert_eq!(error, Some("service unavailable"));
    assert!(took < Duration::from_millis(300), "at once: {took:?}");
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app.addr())]);
    wait_for(DEADLINE, "the gate to open", || ask().0.status() == 200);
    for _ in 0..20 {
        assert_eq!(ask().0.status(), 200);
    }
}

#[test]
fn no_more_than_the_queue_holds_wait_for_an_endpoint() {
    let app = http_echo();
    let settings = [
        ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "20s"),
        ("OUTBOUND_HTTP_QUEUE_CAPACITY", "2"),
    ];
    let pair = Pair::with(app.addr(), &settings, &[]);
    pair.control.set_endpoints(SERVICE, []);
    let at = pair.client.outbound;
    let asked: Vec<_> = (0..5)
        .map(|_| std::thread::spawn(move || get(at, "/", "web").status()))
        .collect();
    let shed = ["error=\"loadshed\""];
    counts(&pair.client, "outbound_http_errors_total", &shed, 3.0);
    pair.control
        .set_endpoints(SERVICE, [objects::endpoint(app.addr())]);
    let mut statuses: Vec<_> = asked.into_iter().map(|a| a.join().expect("asks")).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503, 503, 503]);
}

/// A request that takes its time, on a thread of its own, once it has arrived.
fn under_way(at: SocketAddr, app: &Echo) -> std::thread::JoinHandle<u16> {
    let before = app.requests().len();
    let slow = std::thread::spawn(move || {
        let ask = "GET / HTTP/1.1\r\nhost: web\r\nx-echo-delay-ms: 2000\r\n\r\n";
        Client::connect(at).send(ask).answer().status()
    });
    wait_for(DEADLINE, "the slow request to arrive", || {
        app.requests().len() > before
    });
    slow
}

#[test]
fn what_runs_at_an_endpoint_that_goes_or_changes_is_finished() {
    let (app, other) = (http_echo(), http_echo());
    let pair = Pair::new(app.addr());
    let at = pair.client.outbound;
    let (server, endpoints) = (&pair.server, |all: Vec<_>| {
        pair.control.set_endpoints(SERVICE, all);
    });
    endpoints(vec![objects::endpoint(app.addr())]);
    let plain = ["direction=\"outbound\"", "tls=\"no_identity\""];
    wait_for(DEADLINE, "the plain endpoint", || {
        get(at, "/", "web");
        pair.client.metric("response_total", &plain) > 0.5
    });
    let slow = under_way(at, &app);
    // The same address, with an identity from now on.
    let meshed = objects::meshed(app.addr(), &server.identity, server.inbound.port());
    endpoints(vec![meshed]);
    let tls = ["direction=\"outbound\"", "tls=\"true\""];
    wait_for(DEADLINE, "requests to be encrypted", || {
        assert_eq!(get(at, "/", "web").status(), 200);
        pair.client.metric("response_total", &tls) > 0.5
    });
    let before = pair.client.metric("response_total", &plain);
    assert_eq!(get(at, "/", "web").status(), 200);
    let after = pair.client.metric("response_total", &plain);
    assert!((after - before).abs() < 0.1, "nothing new is plain");
    assert_eq!(slow.join().expect("asks"), 200, "changed");
    let slow = under_way(at, &app);
    endpoints(vec![objects::endpoint(other.addr())]);
    wait_for(DEADLINE, "requests to go elsewhere", || {
        assert_eq!(get(at, "/", "web").status(), 200);
        !other.requests().is_empty()
    });
    let before = app.requests().len();
    for _ in 0..10 {
        assert_eq!(get(at, "/", "web").status(), 200);
    }
    assert_eq!(app.requests().len(), before, "nothing new comes");
    assert_eq!(slow.join().expect("asks"), 200, "removed");
}

fn resends(proxy: &Proxy, reason: &str) -> f64 {
    let reason = format!("reason=\"{reason}\"");
    proxy.metric("outbound_http_resends_total", &[&reason])
}

/// Takes connections and says nothing: no handshake ends.
fn silent() -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let addr = raw_app(move |mut io| {
        seen.fetch_add(1, Ordering::SeqCst);
        let _ = io.read_to_end(&mut Vec::new());
    });
    (addr, count)
}

#[test]
fn no_request_waits_for_the_first_connection_to_a_new_endpoint() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let meshed = |addr, port| objects::meshed(addr, &pair.server.identity, port);
    let there = || meshed(app.addr(), pair.server.inbound.port());
    let ask = |http2| match http2 {
        false => get(pair.client.outbound, "/", "web").status(),
        true => harness::http2_get(pair.client.outbound, "http://web/"),
    };
    for http2 in [false, true] {
        pair.control.set_endpoints(SERVICE, [there()]);
        assert_eq!(ask(http2), 200);
        let (new, dialled) = silent();
        pair.control
            .set_endpoints(SERVICE, [there(), meshed(new, new.port())]);
        wait_for(DEADLINE, "the new endpoint to be connected to", || {
            assert_eq!(ask(http2), 200);
            dialled.load(Ordering::SeqCst) > 0
        });
        for _ in 0..50 {
            assert_eq!(ask(http2), 200);
        }
        for reason in ["slow", "connect"] {
            assert!(resends(&pair.client, reason) < 0.5, "{http2}: {reason}");
        }
    }
}

/// A way to a port that can be held: what is open ends, and who comes is not answered.
struct Relay {
    addr: SocketAddr,
    held: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(to: SocketAddr) -> Self {
        let (held, open) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (hold, all) = (held.clone(), Arc::<Mutex<Vec<TcpStream>>>::clone(&open));
        let addr = raw_app(move |client| {
            if hold.load(Ordering::SeqCst) {
                let _ = (&client).read_to_end(&mut Vec::new());
                return;
            }
            let server = TcpStream::connect(to).expect("connects");
            let both = [&client, &server].map(|io| io.try_clone().expect("clones"));
            all.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(both);
            std::thread::scope(|scope| {
                for (mut from, mut to) in [(&client, &server), (&server, &client)] {
                    scope.spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            });
        });
        Self { addr, held, open }
    }

    fn hold(&self, held: bool) {
        self.held.store(held, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for io in open.drain(..) {
            let _ = io.shutdown(Shutdown::Both);
        }
    }
}

#[test]
fn a_request_leaves_an_endpoint_that_takes_long_to_connect_to() {
    let (app, other) = (http_echo(), http_echo());
    let pair = Pair::new(app.addr());
    let relay = Relay::to(pair.server.inbound);
    let meshed = |addr, port| objects::meshed(addr, &pair.server.identity, port);
    let near = meshed(app.addr(), pair.server.inbound.port());
    let far = meshed(other.addr(), relay.addr.port());
    // What was slow is soon forgotten, so that both are asked.
    let policy = penalizing(millis(100), millis(1), MINUTE);
    pair.control.set_outbound(CLUSTER_IP, policy);
    pair.control.set_endpoints(SERVICE, [near, far]);
    let ask = || {
        assert_eq!(get(pair.client.outbound, "/", "web").status(), 200);
        resends(&pair.client, "slow")
    };
    let serves = |echo: &Echo| {
        let before = echo.requests().len();
        wait_for(DEADLINE, "both to serve", || {
            ask();
            echo.requests().len() > before
        });
    };
    serves(&app);
    serves(&other);
    assert!(ask() < 0.5, "nobody was slow");
    relay.hold(true);
    wait_for(DEADLINE, "a request that moves on", || ask() > 0.5);
    for _ in 0..50 {
        // One has found out for all.
        assert!(ask() < 1.5);
    }
    relay.hold(false);
    serves(&other);
}

/// A service with a breaker.
fn breaking(service: &str, accrual: Accrual) -> OutboundPolicy {
    let mut policy = objects::service(service);
    let accrual = Some(FailureAccrual {
        kind: Some(accrual),
        ejection: None,
    });
    if let Some(proxy_protocol::Kind::Detect(detect)) =
        policy.protocol.as_mut().and_then(|p| p.kind.as_mut())
    {
        if let Some(http1) = detect.http1.as_mut() {
            http1.failure_accrual = accrual;
        }
        if let Some(http2) = detect.http2.as_mut() {
            http2.failure_accrual = accrual;
        }
    }
    policy
}

fn backoff(min: prost_types::Duration) -> Option<ExponentialBackoff> {
    Some(ExponentialBackoff {
        min_backoff: Some(min),
        max_backoff: Some(MINUTE),
        ..ExponentialBackoff::default()
    })
}

const MINUTE: prost_types::Duration = prost_types::Duration {
    seconds: 60,
    nanos: 0,
};

/// Three in a row.
fn in_a_row() -> Accrual {
    Accrual::ConsecutiveFailures(ConsecutiveFailures {
        max_failures: 3,
        backoff: backoff(MINUTE),
    })
}

fn unified(success_rate_threshold: f64, max_consecutive_failures: u32) -> Accrual {
    Accrual::Unified(Unified {
        success_rate_threshold,
        decay: Some(MINUTE),
        min_requests: 4,
        max_consecutive_failures,
        backoff: backoff(MINUTE),
    })
}

fn half() -> Accrual {
    unified(0.5, 0)
}

fn rate_and_row() -> Accrual {
    unified(0.5, 2)
}

fn row_alone() -> Accrual {
    unified(0.0, 2)
}

/// An answer of the application: an HTTP status over a version, or a gRPC code.
#[derive(Clone, Copy, Debug)]
enum Says {
    Http1(u16),
    Http2(u16),
    Grpc(u16),
}

use Says::{Grpc, Http1, Http2};

/// What is asked for, in order; whether the endpoint is out after it, and not before.
type Case = (&'static str, fn() -> Accrual, &'static [Says], bool);

const CASES: &[Case] = &[
    ("500 over HTTP/1", in_a_row, &[Http1(500); 3], true),
    ("599 over HTTP/1", in_a_row, &[Http1(599); 3], true),
    ("503 over HTTP/2", in_a_row, &[Http2(503); 3], true),
    ("404", in_a_row, &[Http1(404); 6], false),
    ("gRPC unknown", in_a_row, &[Grpc(2); 3], true),
    ("gRPC deadline exceeded", in_a_row, &[Grpc(4); 3], true),
    ("gRPC permission denied", in_a_row, &[Grpc(7); 3], true),
    ("gRPC internal", in_a_row, &[Grpc(13); 3], true),
    ("gRPC unavailable", in_a_row, &[Grpc(14); 3], true),
    ("gRPC data loss", in_a_row, &[Grpc(15); 3], true),
    ("gRPC ok", in_a_row, &[Grpc(0); 6], false),
    ("gRPC not found", in_a_row, &[Grpc(5); 6], false),
    ("gRPC unauthenticated", in_a_row, &[Grpc(16); 6], false),
    (
        "a success between failures",
        in_a_row,
        &[Http1(500), Http1(500), Http1(200), Http1(500), Http1(500)],
        false,
    ),
    ("the rate alone", half, &[Http1(500); 4], true),
    ("too few to judge by", half, &[Http1(500); 3], false),
    (
        "half is enough",
        half,
        &[Http1(200), Http1(500), Http1(200), Http1(500)],
        false,
    ),
    (
        "less than half is not",
        half,
        &[Http1(200), Http1(500), Http1(500), Http1(500)],
        true,
    ),
    (
        "a row beside a good rate",
        rate_and_row,
        &[
            Http1(200),
            Http1(200),
            Http1(200),
            Http1(200),
            Http1(200),
            Http1(500),
            Http1(500),
        ],
        true,
    ),
    (
        "a bad rate without a row",
        rate_and_row,
        &[Http1(500), Http1(200), Http1(500), Http1(429)],
        true,
    ),
    ("429 lowers the rate", half, &[Http1(429); 4], true),
    ("429 is no row", row_alone, &[Http1(429); 6], false),
    ("gRPC 8 lowers the rate", half, &[Grpc(8); 4], true),
    ("gRPC 8 is no row", row_alone, &[Grpc(8); 6], false),
];

/// Answers with what a request asks for.
fn obedient() -> Echo {
    Echo::http_with(([127, 0, 0, 1], 0), |request| {
        match request.header("x-grpc") {
            Some(code) => Answer::Pieces {
                headers: vec![("content-type", "application/grpc".into())],
                pieces: Vec::new(),
                pause: Duration::ZERO,
                end: End::Trailers(vec![("grpc-status", code.to_owned())]),
            },
            None => Answer::asked_for(request),
        }
    })
}

/// Gives the status of the answer, or what the proxy says instead.
fn ask(at: SocketAddr, seat: Seat, says: Says) -> u16 {
    let (name, value) = match says {
        Http1(status) | Http2(status) => ("x-echo-status", status.to_string()),
        Grpc(code) => ("x-grpc", code.to_string()),
    };
    if let Http1(_) = says {
        let ask = format!("GET / HTTP/1.1\r\nhost: web\r\n{name}: {value}\r\n\r\n");
        let mut client = Client::connect_from(seat.source(), at);
        return client.send(ask).answer().status();
    }
    block_on(async {
        let (mut send, _) = http2::connect_from(seat.source(), at).await;
        let request = http::Request::get("http://web/").header(name, value);
        let got = http2::call(&mut send, request.body(()).expect("valid"), &[]).await;
        got.expect("an answer").head.status().as_u16()
    })
}

#[test]
fn answers_that_take_an_endpoint_out() {
    let app = obedient();
    let control = ControlPlane::start();
    let seat = |n: usize| Seat(u8::try_from(n).expect("few"), 0);
    for (n, (_, accrual, ..)) in CASES.iter().enumerate() {
        let service = seat(n).service();
        control.set_outbound(seat(n).target(), breaking(&service, accrual()));
        control.set_endpoints(service, [objects::endpoint(app.addr())]);
    }
    let by_source = OrigDst::Given(Arc::new(|io| match io.peer_addr()? {
        SocketAddr::V4(peer) => Ok(Seat(peer.ip().octets()[2], 0).target()),
        SocketAddr::V6(_) => io.local_addr(),
    }));
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let proxy = Proxy::start(&control, "curl", by_source, local, &[FAIL_FAST]);
    for (n, (name, _, answers, out)) in CASES.iter().enumerate() {
        for says in *answers {
            let before = app.requests().len();
            ask(proxy.outbound, seat(n), *says);
            assert_eq!(app.requests().len(), before + 1, "{name}: not out yet");
        }
        let before = app.requests().len();
        // The only endpoint is out: the request waits in vain, and the next one does not wait.
        let want = if *out { [504, 503] } else { [200, 200] };
        let got = [(); 2].map(|()| ask(proxy.outbound, seat(n), Http1(200)));
        assert_eq!(got, want, "{name}");
        let came = app.requests().len() - before;
        assert_eq!(came, if *out { 0 } else { 2 }, "{name}");
    }
}

#[test]
fn one_request_finds_out_whether_an_endpoint_is_well_again() {
    let arrived: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let well = Arc::new(AtomicUsize::new(0));
    let (seen, healthy) = (arrived.clone(), well.clone());
    let app = Echo::http_with(([127, 0, 0, 1], 0), move |_| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push(Instant::now());
        match healthy.load(Ordering::SeqCst) {
            0 => Answer::status(500, "no"),
            _ => Answer::status(200, "yes"),
        }
    });
    let pair = Pair::with(app.addr(), &[FAIL_FAST], &[]);
    let accrual = Accrual::ConsecutiveFailures(ConsecutiveFailures {
        max_failures: 3,
        backoff: backoff(millis(500)),
    });
    pair.control
        .set_outbound(CLUSTER_IP, breaking(SERVICE, accrual));
    let times = || {
        arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    };
    let ask = || get(pair.client.outbound, "/", "web").status();
    for _ in 0..3 {
        assert_eq!(ask(), 500);
    }
    let until = |n: usize| {
        wait_for(DEADLINE, "the next to be let through", || {
            let _ = ask();
            times().len() >= n
        });
    };
    // The first fails, and so does the second: each waits longer.
    until(5);
    well.store(1, Ordering::SeqCst);
    until(6);
    let times = times();
    let waited = |n: usize| times[n].duration_since(times[n - 1]);
    for (n, least) in [(3, 500), (4, 1_000), (5, 2_000)] {
        // The wait begins a moment after the answer did.
        assert!(
            waited(n) >= Duration::from_millis(least),
            "{n}: {:?}",
            waited(n)
        );
        assert!(waited(n) < Duration::from_secs(15), "{n}: {:?}", waited(n));
    }
    for _ in 0..10 {
        assert_eq!(ask(), 200, "it is back");
    }
}

/// Answers every request in the same way, and counts them.
fn answering(answer: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let addr = raw_app(move |mut io| {
        let mut chunk = [0; 4096];
        while matches!(io.read(&mut chunk), Ok(1..)) {
            seen.fetch_add(1, Ordering::SeqCst);
            let _ = io.write_all(answer.as_bytes());
        }
    });
    (addr, count)
}

/// A service whose failures count as slow, and what a hint may add.
fn penalizing(
    decay: prost_types::Duration,
    penalty: prost_types::Duration,
    max_hint: prost_types::Duration,
) -> OutboundPolicy {
    let mut backend = objects::balancer(SERVICE);
    if let Some(backend::Kind::Balancer(p2c)) = backend.kind.as_mut() {
        p2c.load = Some(balance_p2c::Load::PenaltyPeakEwma(
            balance_p2c::PenaltyPeakEwma {
                default_rtt: Some(millis(30)),
                decay: Some(decay),
                penalty: Some(penalty),
                max_retry_after: Some(max_hint),
                penalty_decay: None,
            },
        ));
    }
    objects::detect(vec![objects::http_route(backend)], None)
}

const GOOD: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const LATER: &str =
    "HTTP/1.1 503 Service Unavailable\r\nretry-after: 86400\r\ncontent-length: 0\r\n\r\n";
const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n";
const FOR_EVER: &str =
    "HTTP/1.1 429 Too Many\r\nretry-after: 18446744073709551615\r\ncontent-length: 0\r\n\r\n";
const NEVER: &str = concat!(
    "HTTP/1.1 503 Service Unavailable\r\n",
    "retry-after: Sun, 06 Nov 1994 3000000000000000:00:00 GMT\r\ncontent-length: 0\r\n\r\n"
);
const NOT_THERE: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";

#[test]
fn failures_that_count_as_slow_move_traffic_away() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let second = prost_types::Duration {
        seconds: 1,
        nanos: 0,
    };
    // Where nothing counts as slow but what is, that is forgotten soon.
    for (name, bad, decay, penalty, max_hint, away) in [
        ("503 with a hint", LATER, MINUTE, millis(1), MINUTE, true),
        ("429", BUSY, MINUTE, MINUTE, MINUTE, true),
        ("429 for ever", FOR_EVER, MINUTE, millis(1), MINUTE, true),
        ("a date that cannot be", NEVER, MINUTE, MINUTE, MINUTE, true),
        (
            "a hint beyond its limit",
            LATER,
            second,
            millis(1),
            millis(1),
            false,
        ),
        ("404", NOT_THERE, second, MINUTE, MINUTE, false),
    ] {
        let (good, served) = answering(GOOD);
        let (bad, failed) = answering(bad);
        let policy = penalizing(decay, penalty, max_hint);
        pair.control.set_outbound(CLUSTER_IP, policy);
        let both = [objects::endpoint(good), objects::endpoint(bad)];
        pair.control.set_endpoints(SERVICE, both);
        let ask = || {
            get(pair.client.outbound, "/", "web");
            failed.load(Ordering::SeqCst)
        };
        wait_for(DEADLINE, name, || {
            ask() > 0 && served.load(Ordering::SeqCst) > 0
        });
        let before = failed.load(Ordering::SeqCst);
        if away {
            for _ in 0..100 {
                ask();
            }
            let came = failed.load(Ordering::SeqCst) - before;
            assert!(came <= 2, "{name}: {came} of 100");
        } else {
            // Long before a penalty would be forgotten.
            wait_for(Duration::from_secs(8), name, || ask() >= before + 5);
        }
    }
}

#[test]
fn a_grpc_failure_without_a_body_counts_as_slow() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let answering = |code: &'static str| {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let addr = http2_server(None, move |respond| {
            seen.fetch_add(1, Ordering::SeqCst);
            let head = http::Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", code);
            let _ = respond.send_response(head.body(()).expect("valid"), true);
        });
        (addr, count)
    };
    let (good, served) = answering("0");
    let (bad, failed) = answering("14");
    let policy = penalizing(MINUTE, MINUTE, MINUTE);
    pair.control.set_outbound(CLUSTER_IP, policy);
    let both = [objects::endpoint(good), objects::endpoint(bad)];
    pair.control.set_endpoints(SERVICE, both);
    block_on(async {
        let mut send = http2::connect(pair.client.outbound).await;
        for _ in 0..200 {
            let request = http::Request::post("http://web/svc/Method")
                .header("content-type", "application/grpc")
                .body(())
                .expect("valid");
            let _ = http2::call(&mut send, request, &[]).await;
        }
    });
    let (served, failed) = (served.load(Ordering::SeqCst), failed.load(Ordering::SeqCst));
    assert!(served > 100 && failed <= 3, "{served} and {failed}");
}
