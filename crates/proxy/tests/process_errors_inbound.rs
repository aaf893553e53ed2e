//! The inbound half of the error matrix, driven through running proxies: every cause by every kind of
//! client, without an identity and with one, with what the client gets and what becomes of its
//! connection. The answers are in golden files.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/http2.rs"]
mod http2;
#[path = "support/matrix.rs"]
mod matrix;
#[path = "support/tunnel.rs"]
mod tunnel;

use std::{fmt::Write as _, net::SocketAddr, sync::Arc};

use harness::{Closed, DEADLINE, Proxy, http_echo};
use linkerd_api::proto::{
    http_route::{HostMatch, HttpFailureInjector, RequestRedirect, host_match},
    inbound,
};
use linkerd_proxy::{socket::OrigDst, transport_header::Session};
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::Echo,
    wait_for,
};
use matrix::{
    ALL, Full, Kind, VERSION_1, VERSION_2, ask, by_expression, golden, http2_server,
    replacing_prefix, seats,
};
use tunnel::{First, Tunnel};

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

/// One row: its cause, who asks, where requests go, and the policy of that port.
struct Row {
    cause: &'static str,
    kinds: &'static [Kind],
    app: SocketAddr,
    server: inbound::Server,
    /// Whether the process takes no request at all.
    shedding: bool,
}

/// What listens, or does not, behind the proxies.
struct Apps {
    echoes: Vec<Echo>,
    closed: Closed,
    full: Full,
    resetting: SocketAddr,
    refusing: SocketAddr,
}

impl Apps {
    fn new() -> Self {
        Self {
            echoes: (0..8).map(|_| http_echo()).collect(),
            closed: Closed::new(),
            full: Full::new(),
            resetting: http2_server(None, matrix::reset),
            refusing: http2_server(None, |respond| {
                respond.send_reset(h2::Reason::REFUSED_STREAM);
            }),
        }
    }
}

fn rows(apps: &Apps) -> Vec<Row> {
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
    let row = |cause, kinds, app, server| Row {
        cause,
        kinds,
        app,
        server,
        shedding: false,
    };
    let echo = |n: usize| apps.echoes[n].addr();
    let closed = apps.closed.addr();
    vec![
        row("no route", ALL, echo(0), elsewhere),
        row("unauthorized", ALL, echo(1), nobody),
        row("bad redirect", ALL, echo(6), astray),
        row("redirect", ALL, echo(2), moved),
        row("injected HTTP failure", ALL, echo(7), injected),
        row("invalid policy", ALL, echo(3), invalid),
        row("rate limit", ALL, echo(4), limited),
        row("HTTP/2 error", VERSION_2, apps.resetting, open()),
        row(
            "HTTP/2 error, every stream refused",
            VERSION_2,
            apps.refusing,
            open(),
        ),
        // An HTTP/2 application may begin to listen late and is waited for.
        row("fail-fast", VERSION_2, closed, open()),
        row("endpoint: I/O error", VERSION_1, closed, open()),
        Row {
            shedding: true,
            ..row("load shed", ALL, echo(5), open())
        },
        row(
            "endpoint: connect timeout",
            VERSION_1,
            apps.full.addr(),
            open(),
        ),
    ]
}

/// Proxies in front of what rows are about: one that takes requests, and one that takes none.
struct Proxies {
    control: ControlPlane,
    serving: Proxy,
    shedding: Proxy,
}

impl Proxies {
    fn new(rows: &[Row]) -> Self {
        let control = ControlPlane::start();
        for row in rows {
            control.set_inbound(row.app.port(), row.server.clone());
        }
        let targets: Vec<SocketAddr> = rows.iter().map(|row| row.app).collect();
        let by_source = OrigDst::Given(Arc::new(move |io| match io.peer_addr()? {
            SocketAddr::V4(peer) => Ok(targets[usize::from(peer.ip().octets()[2])]),
            SocketAddr::V6(_) => io.local_addr(),
        }));
        let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
        let ports: Vec<String> = rows.iter().map(|row| row.app.port().to_string()).collect();
        let ports = ports.join(",");
        let start = |max_in_flight: &str| {
            let settings = [
                ("INBOUND_PORTS", ports.as_str()),
                ("INBOUND_MAX_IN_FLIGHT", max_in_flight),
                ("INBOUND_CONNECT_TIMEOUT", "200ms"),
            ];
            let (out, inn) = (local.clone(), by_source.clone());
            Proxy::start(&control, "web", out, inn, &settings)
        };
        Self {
            serving: start("1000"),
            shedding: start("0"),
            control,
        }
    }

    /// All rows; `at` says where a client of a proxy connects to.
    fn table(&self, rows: &[Row], upgraded: bool, at: impl Fn(&Proxy) -> SocketAddr) -> String {
        let (serving, shedding) = (at(&self.serving), at(&self.shedding));
        let mut text = String::new();
        for (n, row) in rows.iter().enumerate() {
            let cause = row.cause;
            let _ = writeln!(text, "== inbound: {cause}");
            let at = if row.shedding { shedding } else { serving };
            let mut kinds = row.kinds.to_vec();
            if upgraded && kinds.contains(&Kind::Http11) {
                kinds.push(Kind::Upgraded);
            }
            for (seat, kind) in seats(n, &kinds) {
                let mut got = String::new();
                // Policies of a port are watched from the start, but the default holds until they
                // come; a limit lets some pass.
                wait_for(DEADLINE, cause, || {
                    got = ask(at, seat, kind, &[]);
                    !is_served(&got)
                });
                let _ = writeln!(text, "{}: {got}", kind.name());
            }
        }
        text
    }
}

/// Whether the application has answered.
fn is_served(line: &str) -> bool {
    line.contains(" 200 OK") || (line.starts_with("200") && !line.contains("grpc-status"))
}

/// The client has no identity, so nobody tells it what went wrong.
#[test]
fn the_whole_table_of_unmeshed_clients() {
    let apps = Apps::new();
    let rows = rows(&apps);
    let proxies = Proxies::new(&rows);
    let text = proxies.table(&rows, false, |proxy| proxy.inbound);
    golden("inbound_errors.txt", &text);
}

/// The client has one, and is told.
#[test]
fn the_whole_table_of_meshed_clients() {
    let apps = Apps::new();
    let rows = rows(&apps);
    let proxies = Proxies::new(&rows);
    let tunnels = std::cell::RefCell::new(Vec::new());
    let mut text = proxies.table(&rows, true, |proxy| {
        let store = proxies.serving.store.clone();
        let tunnel = Tunnel::new(proxy.inbound, &proxy.identity, store, First::Nothing);
        let addr = tunnel.addr;
        tunnels.borrow_mut().push(tunnel);
        addr
    });
    text.push_str(&gateway(&proxies.control, rows.len()));
    golden("inbound_errors_meshed.txt", &text);
}

/// The rows of a gateway, which only meshed clients come to.
fn gateway(control: &ControlPlane, first: usize) -> String {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    let start = |account, settings: &[_]| {
        let (out, inn) = (local.clone(), local.clone());
        Proxy::start(control, account, out, inn, settings)
    };
    let gateway = start(
        "gateway",
        &[("INBOUND_GATEWAY_SUFFIXES", "svc.cluster.local.")],
    );
    let client = start("curl", &[]);
    let known = "known.ns.svc.cluster.local";
    let path = format!("{known}:80");
    control.set_outbound(&path, objects::service(&path));
    let been_here = format!("by={};for=somebody", gateway.identity);
    let been_here = [("forwarded", been_here.as_str())];
    let mut text = String::new();
    for (n, (cause, name, extra)) in [
        ("gateway name", "web.example.com", &[][..]),
        (
            "gateway name nobody knows",
            "unknown.ns.svc.cluster.local",
            &[],
        ),
        ("gateway loop", known, &been_here),
    ]
    .into_iter()
    .enumerate()
    {
        let _ = writeln!(text, "== inbound: {cause}");
        for (seat, kind) in seats(first + n, ALL) {
            let session = match kind {
                Kind::Http11 | Kind::Http10 => Session::Http1,
                _ => Session::Http2,
            };
            let header = First::gateway(80, name, Some(session));
            let store = client.store.clone();
            let tunnel = Tunnel::new(gateway.inbound, &gateway.identity, store, header);
            let got = ask(tunnel.addr, seat, kind, extra);
            let _ = writeln!(text, "{}: {got}", kind.name());
        }
    }
    text
}
