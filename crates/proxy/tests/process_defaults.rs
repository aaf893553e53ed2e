//! What holds when nobody says otherwise: default policies, the audit log, routes that nothing takes,
//! and the limits of a process.

#[path = "support/harness.rs"]
mod harness;

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

use harness::{Client, DEADLINE, Pair, Proxy, SERVICE, counts, get, http_echo};
use linkerd_api::proto::{
    destination::AuthorityOverride,
    http_route::{HttpRouteMatch, PathMatch, path_match},
    inbound::{HttpRoute, http_route::Rule, proxy_protocol::Kind},
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Behavior, Echo},
    wait_for,
};

/// A proxy in front of an application, reached without TLS.
fn in_front_of(control: &ControlPlane, app: SocketAddr, settings: &[(&str, &str)]) -> Proxy {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    Proxy::start(control, "web", local, OrigDst::fixed(app), settings)
}

#[test]
fn cluster_policies_let_the_cluster_in() {
    let app = http_echo();
    // The meshed client is on this host, and so is always let in, by one name or the other.
    let (open, shut) = ("cluster-unauthenticated", "cluster-authenticated");
    for (policy, networks, plain, meshed_by) in [
        (open, "127.0.0.0/8", 200, open),
        (open, "10.0.0.0/8", 403, "localhost"),
        (shut, "127.0.0.0/8", 403, shut),
        (shut, "10.0.0.0/8", 403, "localhost"),
    ] {
        let settings = [
            ("INBOUND_DEFAULT_POLICY", policy),
            ("POLICY_CLUSTER_NETWORKS", networks),
        ];
        let pair = Pair::with(app.addr(), &[], &settings);
        assert_eq!(get(pair.client.outbound, "/", "web").status(), 200);
        let by = format!("authz_name=\"{meshed_by}\"");
        let family = "inbound_http_authz_allow_total";
        counts(&pair.server, family, &["tls=\"true\"", &by], 1.0);
        let bare = in_front_of(&pair.control, app.addr(), &settings);
        let mut client = Client::connect_from_afar(bare.inbound);
        let answer = client.get("/", "web").status();
        assert_eq!(answer, plain, "{policy} of {networks}, plain");
        let authz = format!("authz_name=\"{policy}\"");
        let family = match plain {
            200 => "inbound_http_authz_allow_total",
            _ => "inbound_http_authz_deny_total",
        };
        let srv = format!("srv_name=\"{policy}\"");
        let label = if plain == 200 { &authz } else { &srv };
        counts(&bare, family, &[label], 1.0);
    }
}

/// Nothing that could be HTTP or TLS.
const BYTES: [u8; 16] = [0; 16];

/// Keeps the lines that are logged at `info`.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// Those of this process, from now on.
    fn kept() -> &'static Self {
        static LINES: LazyLock<Lines> = LazyLock::new(|| {
            let lines = Lines::default();
            tracing::subscriber::set_global_default(lines.clone()).expect("the only one");
            lines
        });
        &LINES
    }

    fn any(&self, parts: &[&str]) -> bool {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().any(|l| parts.iter().all(|p| l.contains(p)))
    }
}

struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn audited_requests_pass_and_are_logged() {
    let lines = Lines::kept();
    let app = http_echo();
    let control = ControlPlane::start();
    let settings = [
        ("INBOUND_DEFAULT_POLICY", "audit"),
        ("POLICY_CLUSTER_NETWORKS", "10.0.0.0/8"),
    ];
    let proxy = in_front_of(&control, app.addr(), &settings);
    let mut client = Client::connect_from_afar(proxy.inbound);
    assert_eq!(client.get("/", "web").status(), 200);
    let audit = ["authz_name=\"audit\"", "srv_name=\"audit\""];
    counts(&proxy, "inbound_http_authz_allow_total", &audit, 1.0);
    assert!(lines.any(&[
        "message=Request allowed",
        "server.kind=\"default\"",
        "server.name=\"audit\"",
        "route.kind=\"default\"",
        "route.name=\"default\"",
        "authz.kind=\"default\"",
        "authz.name=\"audit\"",
        "client.ip=127.0.0.2",
    ]));
    // Bytes are audited as well.
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let proxy = in_front_of(&control, app.addr(), &settings);
    let mut client = Client::connect_from([127, 0, 0, 3].into(), proxy.inbound);
    assert_eq!(client.send(BYTES).exactly(16), BYTES);
    assert!(lines.any(&[
        "message=Request allowed",
        "server.name=\"audit\"",
        "authz.kind=\"default\"",
        "authz.name=\"audit\"",
        "client.ip=127.0.0.3",
        "client.tls=Plain",
    ]));
}

#[test]
fn refusals_are_logged_with_the_names_of_the_policy() {
    let lines = Lines::kept();
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let control = ControlPlane::start();
    let port = app.addr().port();
    let server = |suffix| objects::inbound_detect(vec![objects::allow("who", suffix)]);
    control.set_inbound(port, server(None));
    let proxy = in_front_of(&control, app.addr(), &[]);
    let from = [127, 0, 0, 4].into();
    let mut client = Client::connect_from(from, proxy.inbound);
    assert_eq!(client.send(BYTES).exactly(16), BYTES);
    control.set_inbound(port, server(Some("example.com")));
    assert!(client.rest().is_empty(), "the connection ends");
    let mut client = Client::connect_from(from, proxy.inbound);
    assert!(client.send(BYTES).rest().is_empty(), "nor is another");
    for message in [
        "message=Connection terminated due to policy change ",
        "message=Connection denied ",
    ] {
        let parts = [
            message,
            "server.group=\"policy.linkerd.io\"",
            "server.kind=\"server\"",
            "server.name=\"web\"",
            "client.ip=127.0.0.4",
            "client.tls=Plain",
        ];
        wait_for(DEADLINE, message, || lines.any(&parts));
    }
    // A gateway decides for everything it carries.
    let gateway = [
        ("INBOUND_GATEWAY_SUFFIXES", "svc.cluster.local."),
        ("INBOUND_DEFAULT_POLICY", "deny"),
    ];
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[], &gateway);
    let port = pair.server.inbound.port();
    let mut endpoint = objects::meshed(app.addr(), &pair.server.identity, port);
    endpoint.authority_override = Some(AuthorityOverride {
        authority_override: "target.ns.svc.cluster.local:80".into(),
    });
    pair.control.set_endpoints(SERVICE, [endpoint]);
    assert_eq!(get(pair.client.outbound, "/", "web").status(), 403);
    assert!(lines.any(&[
        "message=Request denied",
        "server.kind=\"default\"",
        "server.name=\"deny\"",
        "route.kind=\"default\"",
        "route.name=\"default\"",
        "client.ip=127.0.0.1",
        "client.tls=Mesh",
    ]));
}

#[test]
fn requests_that_no_route_takes_are_counted() {
    let app = http_echo();
    let control = ControlPlane::start();
    let mut server = objects::inbound_detect(vec![objects::allow("all", None)]);
    let protocol = server.protocol.as_mut().and_then(|p| p.kind.as_mut());
    if let Some(Kind::Detect(detect)) = protocol {
        detect.http_routes = vec![HttpRoute {
            metadata: Some(objects::default_meta("only")),
            rules: vec![Rule {
                matches: vec![HttpRouteMatch {
                    path: Some(PathMatch {
                        kind: Some(path_match::Kind::Exact("/only".into())),
                    }),
                    ..HttpRouteMatch::default()
                }],
                filters: Vec::new(),
            }],
            ..HttpRoute::default()
        }];
    }
    control.set_inbound(app.addr().port(), server);
    let proxy = in_front_of(&control, app.addr(), &[]);
    let mut client = Client::connect_from_afar(proxy.inbound);
    wait_for(DEADLINE, "the route", || {
        client.get("/only", "web").status() == 200
            && proxy.metric("request_total", &["route_name=\"only\""]) > 0.5
    });
    let before = proxy.metric("inbound_http_route_not_found_total", &[]);
    assert_eq!(client.get("/other", "web").status(), 404);
    let labels = ["srv_name=\"web\"", "no_tls_reason=\"no_tls_from_remote\""];
    let family = "inbound_http_route_not_found_total";
    counts(&proxy, family, &labels, before + 1.0);
}

#[test]
fn requests_beyond_the_limit_of_the_process_are_shed() {
    let app = http_echo();
    let limit = |name| [(name, "1")];
    let (outbound, inbound) = (
        limit("OUTBOUND_MAX_IN_FLIGHT"),
        limit("INBOUND_MAX_IN_FLIGHT"),
    );
    for (client, server, family) in [
        (&outbound[..], &[][..], "outbound_http_errors_total"),
        (&[][..], &inbound[..], "inbound_http_errors_total"),
    ] {
        let pair = Pair::with(app.addr(), client, server);
        let before = app.requests().len();
        let mut slow = Client::connect(pair.client.outbound);
        slow.send("GET / HTTP/1.1\r\nhost: web\r\nx-echo-delay-ms: 2000\r\n\r\n");
        wait_for(DEADLINE, "the first request to arrive", || {
            app.requests().len() > before
        });
        let answer = get(pair.client.outbound, "/", "web");
        assert_eq!(answer.status(), 503, "{family}");
        assert_eq!(slow.answer().status(), 200, "{family}");
        let counting = match family {
            "outbound_http_errors_total" => &pair.client,
            _ => &pair.server,
        };
        counts(counting, family, &["error=\"loadshed\""], 1.0);
        assert_eq!(get(pair.client.outbound, "/", "web").status(), 200);
    }
}

#[test]
fn a_shutdown_ends_with_its_grace_period() {
    let lines = Lines::kept();
    let app = http_echo();
    let control = ControlPlane::start();
    let settings = [("SHUTDOWN_GRACE_PERIOD", "1s")];
    let mut proxy = in_front_of(&control, app.addr(), &settings);
    let mut client = Client::connect(proxy.inbound);
    client.send("GET / HTTP/1.1\r\nhost: web\r\nx-echo-delay-ms: 60000\r\n\r\n");
    wait_for(DEADLINE, "the request to arrive", || {
        !app.requests().is_empty()
    });
    let start = Instant::now();
    proxy.shutdown();
    proxy.join();
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(900), "{took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    // It names what was granted, not what was left of it.
    assert!(lines.any(&["did not complete in 1s, terminating now"]));
}
