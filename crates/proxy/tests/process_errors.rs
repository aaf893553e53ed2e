//! The outbound half of the error matrix, driven through running proxies: every cause by every kind of
//! client, with what the client gets and what becomes of its connection, in a golden file. Then what
//! belongs to no cause: requests that are none, and who may speak in a proxy's name.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;
#[path = "support/matrix.rs"]
mod matrix;

use std::{
    collections::HashMap,
    fmt::Write as _,
    io::{Read, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use harness::{
    CLUSTER_IP, Client, Closed, DEADLINE, Pair, Proxy, block_on, forward, get, http_echo, millis,
    raw_app,
};
use linkerd_api::proto::{
    destination::{DestinationProfile, PathMatch, RequestMatch, Route, request_match},
    grpc_route::GrpcFailureInjector,
    http_route::{HostMatch, HttpFailureInjector, RequestRedirect, Timeouts, host_match},
    opaque_route::{Forbidden, Invalid},
    outbound::{
        self, Backend, OutboundPolicy,
        http_route::{Distribution, Filter, Rule, distribution, filter},
        opaque_route, proxy_protocol,
    },
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    wait_for,
};
use matrix::{
    ALL, Kind, Seat, VERSION_1, VERSION_2, ask, by_expression, golden, http2_server,
    replacing_prefix, seats, silent,
};

/// A service whose only rule is changed.
fn rule(seat: Seat, change: impl FnOnce(&mut Rule)) -> OutboundPolicy {
    let mut route = objects::http_route(objects::balancer(&seat.service()));
    change(&mut route.rules[0]);
    objects::detect(vec![route], None)
}

fn filtered(seat: Seat, kind: filter::Kind) -> OutboundPolicy {
    rule(seat, |rule| {
        rule.filters = vec![Filter { kind: Some(kind) }]
    })
}

fn timeouts(seat: Seat, timeouts: Timeouts) -> OutboundPolicy {
    rule(seat, |rule| rule.timeouts = Some(timeouts))
}

fn injected_grpc(seat: Seat) -> OutboundPolicy {
    use outbound::grpc_route;
    let backend = grpc_route::RouteBackend {
        backend: Some(objects::balancer(&seat.service())),
        ..grpc_route::RouteBackend::default()
    };
    let failure = GrpcFailureInjector {
        code: 3,
        message: "bad argument".into(),
        ratio: None,
    };
    let rule = grpc_route::Rule {
        filters: vec![grpc_route::Filter {
            kind: Some(grpc_route::filter::Kind::FailureInjector(failure)),
        }],
        backends: Some(grpc_route::Distribution {
            kind: Some(grpc_route::distribution::Kind::FirstAvailable(
                grpc_route::distribution::FirstAvailable {
                    backends: vec![backend],
                },
            )),
        }),
        ..grpc_route::Rule::default()
    };
    OutboundPolicy {
        metadata: Some(objects::resource("Service", "ns", "web")),
        protocol: Some(outbound::ProxyProtocol {
            kind: Some(proxy_protocol::Kind::Grpc(proxy_protocol::Grpc {
                routes: vec![outbound::GrpcRoute {
                    metadata: Some(objects::default_meta("grpc")),
                    hosts: Vec::new(),
                    rules: vec![rule],
                }],
                failure_accrual: None,
            })),
        }),
    }
}

/// One row: its cause, who asks with which headers, and the policy of a seat.
struct Outbound {
    cause: &'static str,
    kinds: &'static [Kind],
    extra: &'static [(&'static str, &'static str)],
    policy: Box<dyn Fn(Seat) -> OutboundPolicy>,
    /// Where the seat's service is, if it is anywhere.
    at: Option<SocketAddr>,
    profile: bool,
    /// What the client's proxy is told.
    settings: &'static [(&'static str, &'static str)],
}

/// A proxy that never gives up by itself: what a row is about is all that can go wrong, however slow
/// the machine is. Only the rows about giving up have a proxy that does.
const PATIENT: &[(&str, &str)] = &[
    ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "60s"),
    ("OUTBOUND_CONNECT_TIMEOUT", "60s"),
];
const FAILS_FAST: &[(&str, &str)] = &[("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "300ms")];
const CONNECTS_FAST: &[(&str, &str)] = &[("OUTBOUND_CONNECT_TIMEOUT", "200ms")];
/// HTTP/1 goes out as HTTP/2.
const UPGRADES: &[(&str, &str)] = &[
    PATIENT[0],
    PATIENT[1],
    ("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0"),
];

const SLOW: &[(&str, &str)] = &[("x-echo-delay-ms", "20000")];

fn outbound_rows(app: SocketAddr, refused: SocketAddr, peer: &Proxy) -> Vec<Outbound> {
    let row = |cause, policy: Box<dyn Fn(Seat) -> OutboundPolicy>| Outbound {
        cause,
        kinds: ALL,
        extra: &[],
        policy,
        at: Some(app),
        profile: false,
        settings: PATIENT,
    };
    let slow = |cause, limits: Timeouts| Outbound {
        extra: SLOW,
        ..row(cause, Box::new(move |seat| timeouts(seat, limits)))
    };
    let resetting = http2_server(None, matrix::reset);
    let refusing = http2_server(None, |respond| {
        respond.send_reset(h2::Reason::REFUSED_STREAM);
    });
    let (angry, peaceful) = (leaving(11), leaving(0));
    let meshed = |at: SocketAddr| objects::meshed(at, &peer.identity, at.port());
    let silent = meshed(silent());
    let meshed_resetting = meshed(http2_server(Some(peer.store.clone()), matrix::reset));
    vec![
        Outbound {
            at: None,
            settings: FAILS_FAST,
            ..row("fail-fast", Box::new(|seat| rule(seat, |_| {})))
        },
        row(
            "load shed",
            Box::new(|seat| {
                let empty = distribution::Kind::Empty(distribution::Empty {});
                let empty = Distribution { kind: Some(empty) };
                rule(seat, |rule| rule.backends = Some(empty))
            }),
        ),
        slow(
            "stream timeout, request",
            Timeouts {
                request: Some(millis(200)),
                ..Timeouts::default()
            },
        ),
        slow(
            "stream timeout, response",
            Timeouts {
                response: Some(millis(200)),
                ..Timeouts::default()
            },
        ),
        slow(
            "stream timeout, idle",
            Timeouts {
                idle: Some(millis(200)),
                ..Timeouts::default()
            },
        ),
        Outbound {
            extra: SLOW,
            profile: true,
            ..row("profile timeout", Box::new(|seat| rule(seat, |_| {})))
        },
        Outbound {
            extra: &[("l5d-require-id", "other.ns.serviceaccount.identity")],
            ..row("required identity", Box::new(|seat| rule(seat, |_| {})))
        },
        row(
            "no dispatcher",
            Box::new(|_| {
                let backend = Backend {
                    metadata: Some(objects::resource("Service", "ns", "nowhere")),
                    queue: None,
                    kind: None,
                };
                objects::detect(vec![objects::http_route(backend)], None)
            }),
        ),
        row(
            "no route",
            Box::new(|seat| {
                let mut route = objects::http_route(objects::balancer(&seat.service()));
                route.hosts = vec![HostMatch {
                    r#match: Some(host_match::Match::Exact("other.example".into())),
                }];
                objects::detect(vec![route], None)
            }),
        ),
        row(
            "redirect",
            Box::new(|seat| {
                let redirect = RequestRedirect {
                    host: "new.example".into(),
                    status: 302,
                    ..RequestRedirect::default()
                };
                filtered(seat, filter::Kind::Redirect(redirect))
            }),
        ),
        row(
            "bad redirect",
            Box::new(|seat| {
                let redirect = filter::Kind::Redirect(replacing_prefix());
                let filters = vec![Filter {
                    kind: Some(redirect),
                }];
                rule(seat, |rule| {
                    rule.matches = vec![by_expression()];
                    rule.filters = filters;
                })
            }),
        ),
        row(
            "injected HTTP failure",
            Box::new(|seat| {
                let failure = HttpFailureInjector {
                    status: 418,
                    message: "tea".into(),
                    ratio: None,
                };
                filtered(seat, filter::Kind::FailureInjector(failure))
            }),
        ),
        Outbound {
            kinds: VERSION_2,
            ..row("injected gRPC failure", Box::new(injected_grpc))
        },
        row(
            "invalid policy",
            Box::new(|_| OutboundPolicy {
                metadata: Some(objects::resource("Service", "ns", "web")),
                protocol: None,
            }),
        ),
        Outbound {
            kinds: VERSION_2,
            ..row(
                "HTTP/2 error from upstream",
                Box::new(move |_| forward(objects::endpoint(resetting))),
            )
        },
        Outbound {
            kinds: VERSION_2,
            ..row(
                "HTTP/2 error from upstream, which refuses every stream",
                Box::new(move |_| forward(objects::endpoint(refusing))),
            )
        },
        Outbound {
            kinds: VERSION_2,
            ..row(
                "HTTP/2 error from upstream, the end of the connection",
                Box::new(move |_| forward(objects::endpoint(angry))),
            )
        },
        Outbound {
            kinds: VERSION_2,
            ..row(
                "HTTP/2 error from upstream, its end in peace",
                Box::new(move |_| forward(objects::endpoint(peaceful))),
            )
        },
        Outbound {
            kinds: VERSION_1,
            settings: UPGRADES,
            ..row(
                "endpoint: reset of an upgraded stream",
                Box::new(move |_| forward(meshed_resetting.clone())),
            )
        },
        row(
            "endpoint: I/O error",
            Box::new(move |_| forward(objects::endpoint(refused))),
        ),
        Outbound {
            settings: CONNECTS_FAST,
            ..row(
                "endpoint: connect timeout",
                Box::new(move |_| forward(silent.clone())),
            )
        },
    ]
}

/// A profile of the seat's service: it decides where requests go.
fn slow_profile(seat: Seat) -> DestinationProfile {
    DestinationProfile {
        fully_qualified_name: seat.name(),
        routes: vec![Route {
            condition: Some(RequestMatch {
                r#match: Some(request_match::Match::Path(PathMatch {
                    regex: "/.*".into(),
                })),
            }),
            timeout: Some(millis(200)),
            ..Route::default()
        }],
        ..DestinationProfile::default()
    }
}

#[test]
fn the_whole_outbound_table() {
    let app = http_echo();
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let server = Proxy::start(&control, "web", local.clone(), local.clone(), &[]);
    let refused = Closed::new();
    let rows = outbound_rows(app.addr(), refused.addr(), &server);
    for (n, row) in rows.iter().enumerate() {
        for (seat, _) in seats(n, row.kinds) {
            control.set_outbound(seat.target(), (row.policy)(seat));
            let endpoint = |at| objects::meshed(at, &server.identity, server.inbound.port());
            control.set_endpoints(seat.service(), row.at.map(endpoint));
            if row.profile {
                control.set_profile(seat.target(), slow_profile(seat));
            }
        }
    }
    let by_source = OrigDst::Given(Arc::new(|io| {
        let SocketAddr::V4(peer) = io.peer_addr()? else {
            return io.local_addr();
        };
        let [_, _, row, kind] = peer.ip().octets();
        Ok(Seat(row, kind - 1).target())
    }));
    let mut clients = HashMap::new();
    let mut text = String::new();
    for (n, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "== outbound: {}", row.cause);
        let client = clients.entry(row.settings).or_insert_with(|| {
            let (to, from) = (by_source.clone(), local.clone());
            Proxy::start(&control, "curl", to, from, row.settings)
        });
        for (seat, kind) in seats(n, row.kinds) {
            let got = ask(client.outbound, seat, kind, row.extra);
            let _ = writeln!(text, "{}: {got}", kind.name());
        }
    }
    golden("outbound_errors.txt", &text);
}

#[test]
fn too_many_requests_are_shed() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[("OUTBOUND_MAX_IN_FLIGHT", "0")], &[]);
    let answer = get(pair.client.outbound, "/", "web");
    assert_eq!(answer.status(), 503, "{}", answer.head);
    assert_eq!(
        answer.header("l5d-proxy-error"),
        Some("service unavailable")
    );
    assert_eq!(answer.header("l5d-proxy-connection"), Some("close"));
    assert_eq!(answer.header("connection"), Some("close"));
    assert!(app.requests().is_empty());
}

#[test]
fn bad_requests_are_answered_by_the_server() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let long = "x".repeat(100_000);
    for (name, request, status) in [
        (
            "bad name",
            "GET / HTTP/1.1\r\na b: c\r\n\r\n".to_owned(),
            "400 Bad Request",
        ),
        (
            "CONNECT in origin form",
            "CONNECT / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
            "400 Bad Request",
        ),
        (
            "head too large",
            format!("GET / HTTP/1.1\r\nx: {long}\r\n\r\n"),
            "431 Request Header Fields Too Large",
        ),
        (
            "target too long",
            format!("GET /{long} HTTP/1.1\r\n\r\n"),
            "414 URI Too Long",
        ),
        (
            "unknown version",
            "GET / HTTP/1.2\r\n\r\n".to_owned(),
            "505 HTTP Version Not Supported",
        ),
        (
            "unknown coding",
            "POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n".to_owned(),
            "501 Not Implemented",
        ),
    ] {
        let mut client = Client::connect(pair.client.outbound);
        let answer = client.send(request).answer();
        assert_eq!(
            answer.head.lines().next(),
            Some(&*format!("HTTP/1.1 {status}")),
            "{name}"
        );
        assert_eq!(answer.header("content-length"), Some("0"), "{name}");
        assert_eq!(answer.header("connection"), Some("close"), "{name}");
        client
            .io()
            .shutdown(std::net::Shutdown::Write)
            .expect("closes");
        assert_eq!(client.rest(), b"", "{name}");
    }
}

#[test]
fn large_heads_over_http2_are_refused_and_the_connection_stays() {
    let reached = Arc::new(AtomicUsize::new(0));
    let seen = reached.clone();
    // It has no such limit of its own.
    let app = http2_server(None, move |respond| {
        seen.fetch_add(1, Ordering::SeqCst);
        let _ = respond.send_response(http::Response::new(()), true);
    });
    let pair = Pair::new(app);
    let control = &pair.control;
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let inbound = Proxy::start(control, "web", local, OrigDst::fixed(app), &[]);
    for (name, at) in [
        ("outbound", pair.client.outbound),
        ("inbound", inbound.inbound),
    ] {
        block_on(async {
            let mut send = http2::connect(at).await;
            let ask = |line: usize| {
                let request = http::Request::get("http://web/");
                let request = request.header("x-long", "a".repeat(line));
                request.body(()).expect("valid")
            };
            for (line, status) in [(60_000, 200), (70_000, 431), (60_000, 200)] {
                let got = http2::call(&mut send, ask(line), &[]).await;
                let got = got.unwrap_or_else(|e| panic!("{name}, {line}: {e}"));
                assert_eq!(got.head.status(), status, "{name}, {line}");
            }
        });
    }
    let reached = reached.load(Ordering::SeqCst);
    assert_eq!(reached, 4, "only what was small enough");
}

/// A server that answers every stream with the end of its connection, and this code.
fn leaving(code: u8) -> SocketAddr {
    raw_app(move |mut io| {
        let mut chunk = [0; 16 * 1024];
        let _ = io.read(&mut chunk);
        // SETTINGS, their acknowledgement, and GOAWAY before any stream.
        let _ = io.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0]);
        let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, code];
        let _ = io.write_all(&goaway);
        let mut rest = Vec::new();
        let _ = io.read_to_end(&mut rest);
    })
}

#[test]
fn a_request_that_cannot_be_sent_again_hears_how_its_server_left() {
    let app = http_echo();
    let refusing = http2_server(None, |respond| {
        respond.send_reset(h2::Reason::REFUSED_STREAM);
    });
    for (name, server, reason) in [
        ("with an error", leaving(11), h2::Reason::ENHANCE_YOUR_CALM),
        ("in peace", leaving(0), h2::Reason::REFUSED_STREAM),
        ("refused", refusing, h2::Reason::REFUSED_STREAM),
    ] {
        let pair = Pair::new(app.addr());
        let policy = forward(objects::endpoint(server));
        pair.control.set_outbound(CLUSTER_IP, policy);
        for content_type in ["text/plain", "application/grpc"] {
            block_on(async {
                let mut send = http2::connect(pair.client.outbound).await;
                let request = http::Request::post("http://web/")
                    .header("content-type", content_type)
                    .body(())
                    .expect("valid");
                let (response, mut body) = send.send_request(request, false).expect("sends");
                // More than is kept for another try.
                let part = Bytes::from(vec![0; 40_000]);
                body.send_data(part.clone(), false).expect("sends");
                body.send_data(part, false).expect("sends");
                let error = response.await.map(|_| ()).expect_err("no answer is made");
                assert!(error.is_reset(), "{name}, {content_type}: {error}");
                assert_eq!(error.reason(), Some(reason), "{name}, {content_type}");
            });
        }
    }
}

#[test]
fn what_went_wrong_can_be_hidden() {
    let app = http_echo();
    let settings = [
        ("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS", "true"),
        ("OUTBOUND_MAX_IN_FLIGHT", "0"),
    ];
    let pair = Pair::with(app.addr(), &settings, &[]);
    let answer = get(pair.client.outbound, "/", "web");
    assert_eq!(
        answer.head,
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
}

#[test]
fn nobody_else_speaks_in_a_proxys_name() {
    let app = raw_app(|mut io| {
        let mut chunk = [0; 4096];
        while matches!(io.read(&mut chunk), Ok(1..)) {
            let _ = io.write_all(
                b"HTTP/1.1 200 OK\r\nl5d-proxy-error: mine\r\nl5d-proxy-connection: close\r\n\
                  x-own: stays\r\ncontent-length: 0\r\n\r\n",
            );
        }
    });
    for settings in [&[][..], &[("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "0")]] {
        let pair = Pair::with(app, settings, &[]);
        let mut client = Client::connect(pair.client.outbound);
        for _ in 0..2 {
            let answer = client.get("/", "web");
            assert_eq!(answer.status(), 200);
            assert_eq!(answer.header("x-own"), Some("stays"));
            assert_eq!(answer.header("l5d-proxy-error"), None);
            assert_eq!(answer.header("l5d-proxy-connection"), None);
        }
    }
}

#[test]
fn forbidden_and_invalid_opaque_routes_close() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let kinds = [
        opaque_route::filter::Kind::Forbidden(Forbidden {}),
        opaque_route::filter::Kind::Invalid(Invalid {
            message: "no such backend".into(),
        }),
    ];
    let filters = || {
        kinds.iter().map(|kind| opaque_route::Filter {
            kind: Some(kind.clone()),
        })
    };
    for filter in filters() {
        let mut route = objects::opaque_route(objects::balancer(harness::SERVICE));
        route.rules[0].filters = vec![filter];
        let routes = proxy_protocol::Opaque {
            routes: vec![route],
        };
        let policy = OutboundPolicy {
            metadata: Some(objects::resource("Service", "ns", "web")),
            protocol: Some(outbound::ProxyProtocol {
                kind: Some(proxy_protocol::Kind::Opaque(routes)),
            }),
        };
        pair.control.set_outbound(CLUSTER_IP, policy);
        wait_for(DEADLINE, "the connection is refused", || {
            let mut client = Client::connect(pair.client.outbound);
            client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            let mut all = Vec::new();
            // A reset ends it as well as an orderly close.
            let _ = client.io().read_to_end(&mut all);
            all.is_empty()
        });
    }
}
