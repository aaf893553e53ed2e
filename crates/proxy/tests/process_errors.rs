//! The error matrix, driven through running proxies: every cause by every kind of client, with what
//! the client gets and what becomes of its connection. The answers are in a golden file.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use harness::{CLUSTER_IP, Client, DEADLINE, Pair, Proxy, block_on, get, http_echo};
use linkerd_api::proto::{
    destination::{
        DestinationProfile, PathMatch, RequestMatch, Route, WeightedAddr, request_match,
    },
    grpc_route::GrpcFailureInjector,
    http_route::{
        self, HostMatch, HttpFailureInjector, HttpRouteMatch, PathModifier, RequestRedirect,
        Timeouts, host_match, path_modifier,
    },
    inbound,
    opaque_route::{Forbidden, Invalid},
    outbound::{
        self, Backend, OutboundPolicy, backend,
        http_route::{Distribution, Filter, Rule, distribution, filter},
        opaque_route, proxy_protocol,
    },
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    wait_for,
};

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Http11,
    Http10,
    Http2,
    Grpc,
}

use Kind::{Grpc, Http2, Http10, Http11};

const ALL: &[Kind] = &[Http11, Http10, Http2, Grpc];
const VERSION_1: &[Kind] = &[Http11, Http10];
const VERSION_2: &[Kind] = &[Http2, Grpc];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Http11 => "HTTP/1.1",
            Http10 => "HTTP/1.0",
            Http2 => "HTTP/2",
            Grpc => "gRPC",
        }
    }
}

/// Who asks: every cause and every kind of client has an address, and so a target, of its own. What
/// one did to its service is not felt by the next.
#[derive(Clone, Copy, Debug)]
struct Seat(u8, u8);

impl Seat {
    fn source(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 1, self.0, self.1 + 1)
    }

    fn target(self) -> SocketAddr {
        ([10, 96, self.0, self.1 + 1], 80).into()
    }

    fn service(self) -> String {
        format!("s{}-{}.ns.svc.cluster.local:80", self.0, self.1)
    }
}

/// What comes back, in one line, without the addresses and dates that differ from run to run.
fn line(status: &str, fields: impl Iterator<Item = (String, String)>, end: &str) -> String {
    let mut text = status.to_owned();
    for (name, value) in fields.filter(|(name, _)| name != "date") {
        let _ = write!(text, " | {name}: {value}");
    }
    format!("{text} -> {end}")
}

/// Asks over HTTP/1; then once more, to see whether the connection is still there.
fn ask_http1(addr: SocketAddr, from: Ipv4Addr, version: &str, extra: &str) -> String {
    let keep = match version {
        "HTTP/1.0" => "connection: keep-alive\r\n",
        _ => "",
    };
    let request = format!("GET /path {version}\r\nhost: web.ns\r\n{keep}{extra}\r\n");
    let mut client = Client::connect_from(from, addr);
    let answer = client.send(&request).answer();
    let status = answer.head.lines().next().unwrap_or_default().to_owned();
    let fields = answer.head.lines().skip(1).filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_owned(), value.to_owned()))
    });
    let fields: Vec<_> = fields.collect();
    let _ = client.io().write_all(request.as_bytes());
    let mut byte = [0];
    let stays = matches!(client.io().read(&mut byte), Ok(1));
    let end = if stays { "stays" } else { "closes" };
    line(&status, fields.into_iter(), end)
}

/// The same over HTTP/2. A graceful end shows soon after the answer.
fn ask_http2(addr: SocketAddr, from: Ipv4Addr, grpc: bool, extra: &[(&str, &str)]) -> String {
    block_on(async {
        let (mut send, mut closed) = http2::connect_from(from, addr).await;
        let request = || {
            let mut request = http::Request::builder().uri("http://web.ns/svc/Method");
            if grpc {
                request = request
                    .method("POST")
                    .header("content-type", "application/grpc")
                    .header("te", "trailers");
            }
            for (name, value) in extra {
                request = request.header(*name, *value);
            }
            request.body(()).expect("valid")
        };
        let text = match http2::call(&mut send, request(), &[]).await {
            Err(error) => format!("reset {:?}", error.reason().expect("a reason")),
            Ok(got) => {
                let fields = got
                    .head
                    .headers()
                    .iter()
                    .chain(got.trailers.iter().flatten());
                let fields = fields.map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    (name.to_string(), value.into_owned())
                });
                let fields: Vec<_> = fields.collect();
                line(got.head.status().as_str(), fields.into_iter(), "")
            }
        };
        let second = http2::call(&mut send, request(), &[]).await;
        let open = second.is_ok_and(|_| true) || !text.contains(" -> ");
        let soon = tokio::time::timeout(Duration::from_millis(200), &mut closed);
        let end = match open && soon.await.is_err() {
            true => "stays",
            false => "closes",
        };
        format!("{} -> {end}", text.trim_end_matches(" -> "))
    })
}

fn ask(addr: SocketAddr, seat: Seat, kind: Kind, extra: &[(&str, &str)]) -> String {
    let lines: String = extra.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
    match kind {
        Http11 | Http10 => ask_http1(addr, seat.source(), kind.name(), &lines),
        Http2 | Grpc => ask_http2(addr, seat.source(), kind == Grpc, extra),
    }
}

fn millis(ms: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: 0,
        nanos: ms * 1_000_000,
    })
}

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

/// Everything to one endpoint.
fn forward(endpoint: WeightedAddr) -> OutboundPolicy {
    let backend = Backend {
        metadata: Some(objects::resource("Service", "ns", "web")),
        queue: None,
        kind: Some(backend::Kind::Forward(endpoint)),
    };
    objects::detect(vec![objects::http_route(backend)], None)
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

/// A port nobody listens on.
fn refused() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    listener.local_addr().expect("bound")
}

/// A server that does what the test says with every connection.
fn raw_app(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let addr = listener.local_addr().expect("bound");
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for io in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(io));
        }
    });
    addr
}

/// An HTTP/2 server that resets every stream.
fn resetting() -> SocketAddr {
    raw_app(|io| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            io.set_nonblocking(true).expect("an option");
            let io = tokio::net::TcpStream::from_std(io).expect("the runtime takes it");
            let Ok(mut connection) = h2::server::handshake(io).await else {
                return;
            };
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                respond.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
            }
        });
    })
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
}

const SLOW: &[(&str, &str)] = &[("x-echo-delay-ms", "20000")];

fn outbound_rows(app: SocketAddr, peer: &str) -> Vec<Outbound> {
    let row = |cause, policy: Box<dyn Fn(Seat) -> OutboundPolicy>| Outbound {
        cause,
        kinds: ALL,
        extra: &[],
        policy,
        at: Some(app),
        profile: false,
    };
    let slow = |cause, limits: Timeouts| Outbound {
        extra: SLOW,
        ..row(cause, Box::new(move |seat| timeouts(seat, limits)))
    };
    let refused = refused();
    let resetting = resetting();
    let silent = silent();
    let silent = objects::meshed(silent, peer, silent.port());
    vec![
        Outbound {
            at: None,
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
                request: millis(200),
                ..Timeouts::default()
            },
        ),
        slow(
            "stream timeout, response",
            Timeouts {
                response: millis(200),
                ..Timeouts::default()
            },
        ),
        slow(
            "stream timeout, idle",
            Timeouts {
                idle: millis(200),
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
        row(
            "endpoint: I/O error",
            Box::new(move |_| forward(objects::endpoint(refused))),
        ),
        row(
            "endpoint: connect timeout",
            Box::new(move |_| forward(silent.clone())),
        ),
    ]
}

/// A peer that takes connections and says nothing.
fn silent() -> SocketAddr {
    raw_app(|mut io| {
        let mut all = Vec::new();
        let _ = io.read_to_end(&mut all);
    })
}

fn slow_profile() -> DestinationProfile {
    DestinationProfile {
        fully_qualified_name: "web.ns.svc.cluster.local".into(),
        routes: vec![Route {
            condition: Some(RequestMatch {
                r#match: Some(request_match::Match::Path(PathMatch {
                    regex: "/.*".into(),
                })),
            }),
            timeout: millis(200),
            ..Route::default()
        }],
        ..DestinationProfile::default()
    }
}

/// Compares with, or rewrites, a golden file.
fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).expect("the golden file can be written");
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        want == text,
        "{path} differs; UPDATE_GOLDEN=1 rewrites it:\n{text}"
    );
}

fn seats(row: usize, kinds: &[Kind]) -> impl Iterator<Item = (Seat, Kind)> {
    let row = u8::try_from(row).expect("few rows");
    kinds
        .iter()
        .map(move |kind| (Seat(row, *kind as u8), *kind))
}

#[test]
fn the_whole_outbound_table() {
    let app = http_echo();
    let control = ControlPlane::start();
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let server = Proxy::start(&control, "web", local.clone(), local.clone(), &[]);
    let rows = outbound_rows(app.addr(), &server.identity);
    for (n, row) in rows.iter().enumerate() {
        for (seat, _) in seats(n, row.kinds) {
            control.set_outbound(seat.target(), (row.policy)(seat));
            let endpoint = |at| objects::meshed(at, &server.identity, server.inbound.port());
            control.set_endpoints(seat.service(), row.at.map(endpoint));
            if row.profile {
                control.set_profile(seat.target(), slow_profile());
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
    let settings = [
        ("OUTBOUND_HTTP_FAILFAST_TIMEOUT", "300ms"),
        ("OUTBOUND_CONNECT_TIMEOUT", "200ms"),
    ];
    let client = Proxy::start(&control, "curl", by_source, local, &settings);
    let mut text = String::new();
    for (n, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "== outbound: {}", row.cause);
        for (seat, kind) in seats(n, row.kinds) {
            let got = ask(client.outbound, seat, kind, row.extra);
            let _ = writeln!(text, "{}: {got}", kind.name());
        }
    }
    golden("outbound_errors.txt", &text);
}

/// Replaces a prefix, which needs a match by one.
fn replacing_prefix() -> RequestRedirect {
    RequestRedirect {
        path: Some(PathModifier {
            replace: Some(path_modifier::Replace::Prefix("/new".into())),
        }),
        ..RequestRedirect::default()
    }
}

/// A match that takes every path, by an expression.
fn by_expression() -> HttpRouteMatch {
    HttpRouteMatch {
        path: Some(http_route::PathMatch {
            kind: Some(http_route::path_match::Kind::Regex("/.*".into())),
        }),
        ..HttpRouteMatch::default()
    }
}

/// A port with detection and one route that is changed.
fn inbound_route(change: impl FnOnce(&mut inbound::HttpRoute)) -> inbound::Server {
    let mut server = objects::inbound_detect(vec![objects::allow("all", None)]);
    let mut route = inbound::HttpRoute {
        metadata: Some(objects::default_meta("route")),
        rules: vec![inbound::http_route::Rule::default()],
        ..inbound::HttpRoute::default()
    };
    change(&mut route);
    detect(&mut server).http_routes = vec![route];
    server
}

fn detect(server: &mut inbound::Server) -> &mut inbound::proxy_protocol::Detect {
    match server.protocol.as_mut().and_then(|p| p.kind.as_mut()) {
        Some(inbound::proxy_protocol::Kind::Detect(detect)) => detect,
        other => panic!("not a port with detection: {other:?}"),
    }
}

/// Where requests of a row go, and what the port's policy is.
type Inbound = (&'static str, &'static [Kind], SocketAddr, inbound::Server);

fn inbound_rows(apps: &[linkerd_testkit::echo::Echo]) -> Vec<Inbound> {
    let open = || objects::inbound_detect(vec![objects::allow("all", None)]);
    let mut limited = open();
    detect(&mut limited).http_local_rate_limit = Some(inbound::HttpLocalRateLimit {
        metadata: Some(objects::resource("HTTPLocalRateLimitPolicy", "ns", "limit")),
        total: Some(inbound::http_local_rate_limit::Limit {
            requests_per_second: 1,
        }),
        ..inbound::HttpLocalRateLimit::default()
    });
    let redirect = RequestRedirect {
        host: "new.example".into(),
        status: 302,
        ..RequestRedirect::default()
    };
    let mut invalid = open();
    invalid.protocol = None;
    let nobody = objects::inbound_detect(vec![objects::allow("who", Some("example.com"))]);
    let elsewhere = inbound_route(|route| {
        route.hosts = vec![HostMatch {
            r#match: Some(host_match::Match::Exact("other.example".into())),
        }];
    });
    let moved = inbound_route(|route| {
        route.rules[0].filters = vec![inbound::http_route::Filter {
            kind: Some(inbound::http_route::filter::Kind::Redirect(redirect)),
        }];
    });
    let astray = inbound_route(|route| {
        route.rules[0].matches = vec![by_expression()];
        route.rules[0].filters = vec![inbound::http_route::Filter {
            kind: Some(inbound::http_route::filter::Kind::Redirect(
                replacing_prefix(),
            )),
        }];
    });
    // As configured, where Linkerd's proxy makes it an unexpected error.
    let injected = inbound_route(|route| {
        let failure = HttpFailureInjector {
            status: 418,
            message: "tea".into(),
            ratio: None,
        };
        route.rules[0].filters = vec![inbound::http_route::Filter {
            kind: Some(inbound::http_route::filter::Kind::FailureInjector(failure)),
        }];
    });
    vec![
        ("no route", ALL, apps[0].addr(), elsewhere),
        ("unauthorized", ALL, apps[1].addr(), nobody),
        ("bad redirect", ALL, apps[5].addr(), astray),
        ("redirect", ALL, apps[2].addr(), moved),
        ("injected HTTP failure", ALL, apps[6].addr(), injected),
        ("invalid policy", ALL, apps[3].addr(), invalid),
        ("rate limit", ALL, apps[4].addr(), limited),
        ("HTTP/2 error", VERSION_2, resetting(), open()),
        // An HTTP/2 application may begin to listen late and is waited for.
        ("fail-fast", VERSION_2, refused(), open()),
        ("endpoint: I/O error", VERSION_1, refused(), open()),
    ]
}

/// The client has no identity, so nobody tells it what went wrong.
#[test]
fn the_whole_inbound_table() {
    let apps: Vec<_> = (0..7).map(|_| http_echo()).collect();
    let control = ControlPlane::start();
    let rows = inbound_rows(&apps);
    for (_, _, app, server) in &rows {
        control.set_inbound(app.port(), server.clone());
    }
    let targets: Vec<SocketAddr> = rows.iter().map(|row| row.2).collect();
    let by_source = OrigDst::Given(Arc::new(move |io| match io.peer_addr()? {
        SocketAddr::V4(peer) => Ok(targets[usize::from(peer.ip().octets()[2])]),
        SocketAddr::V6(_) => io.local_addr(),
    }));
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let ports: Vec<String> = rows.iter().map(|row| row.2.port().to_string()).collect();
    let settings = [("INBOUND_PORTS", ports.join(","))];
    let settings: Vec<_> = settings.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let proxy = Proxy::start(&control, "web", local, by_source, settings.as_slice());
    let mut text = String::new();
    for (n, (cause, kinds, ..)) in rows.iter().enumerate() {
        let _ = writeln!(text, "== inbound: {cause}");
        for (seat, kind) in seats(n, kinds) {
            let mut got = String::new();
            // Policies of a port are watched from the start, but the default holds until they come;
            // a limit lets some pass.
            wait_for(DEADLINE, cause, || {
                got = ask(proxy.inbound, seat, kind, &[]);
                !got.contains("x-echo") && !is_served(&got)
            });
            let _ = writeln!(text, "{}: {got}", kind.name());
        }
    }
    golden("inbound_errors.txt", &text);
}

/// Whether the application has answered.
fn is_served(line: &str) -> bool {
    line.contains(" 200 OK") || (line.starts_with("200") && !line.contains("grpc-status"))
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
