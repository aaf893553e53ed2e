//! Traffic that leaves: TLS routes by server name, egress networks that deny, the loop guard, and the
//! labels that tell hosts apart.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/hello.rs"]
mod hello;

use std::{net::SocketAddr, sync::Arc};

use harness::{CLUSTER_IP, Client, Proxy, Settings, counts, get, http_echo};
use linkerd_api::proto::{
    http_route::HttpFailureInjector,
    opaque_route::Forbidden,
    outbound::{
        Backend, OutboundPolicy, ProxyProtocol, TlsRoute, backend,
        http_route::{Filter, filter},
        opaque_route, proxy_protocol,
        tls_route::{self, Distribution, RouteBackend, Rule, distribution},
    },
    tls_route::{SniMatch, sni_match},
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Behavior, Echo},
};

fn outbound<'a>(control: &ControlPlane, settings: impl Into<Settings<'a>>) -> Proxy {
    let vip = OrigDst::fixed(CLUSTER_IP.parse().expect("an address"));
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    Proxy::start(control, "curl", vip, local, settings)
}

/// Straight to an address, as policies of egress networks say.
fn forward(addr: SocketAddr) -> Backend {
    Backend {
        metadata: Some(objects::resource("EgressNetwork", "ns", "egress")),
        queue: None,
        kind: Some(backend::Kind::Forward(objects::endpoint(addr))),
    }
}

/// The policy of an egress network.
fn egress(kind: proxy_protocol::Kind) -> OutboundPolicy {
    OutboundPolicy {
        metadata: Some(objects::resource("EgressNetwork", "ns", "egress")),
        protocol: Some(ProxyProtocol { kind: Some(kind) }),
    }
}

fn tls_route(name: &str, sni: sni_match::Match, to: SocketAddr, forbidden: bool) -> TlsRoute {
    let forbid = tls_route::Filter {
        kind: Some(tls_route::filter::Kind::Forbidden(Forbidden {})),
    };
    TlsRoute {
        metadata: Some(objects::default_meta(name)),
        snis: vec![SniMatch { r#match: Some(sni) }],
        rules: vec![Rule {
            backends: Some(Distribution {
                kind: Some(distribution::Kind::FirstAvailable(
                    distribution::FirstAvailable {
                        backends: vec![RouteBackend {
                            backend: Some(forward(to)),
                            ..RouteBackend::default()
                        }],
                    },
                )),
            }),
            filters: forbidden.then_some(forbid).into_iter().collect(),
        }],
    }
}

#[test]
fn tls_routes_are_taken_by_server_name() {
    let exact = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let below = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let suffix = sni_match::Match::Suffix(sni_match::Suffix {
        reverse_labels: vec!["com".into(), "example".into()],
    });
    let named = |name: &str| sni_match::Match::Exact(name.into());
    let routes = vec![
        tls_route("below", suffix, below.addr(), false),
        tls_route("exact", named("www.example.com"), exact.addr(), false),
        tls_route("denied", named("bad.example.com"), below.addr(), true),
    ];
    let control = ControlPlane::start();
    let tls = proxy_protocol::Kind::Tls(proxy_protocol::Tls { routes });
    control.set_outbound(CLUSTER_IP, egress(tls));
    let settings = [("OUTBOUND_METRICS_HOSTNAME_LABELS", "true")];
    let proxy = outbound(&control, &settings);
    for (name, app, route) in [
        ("www.example.com", &exact, "exact"),
        ("api.example.com", &below, "below"),
    ] {
        let bytes = hello::named(name);
        let mut client = Client::connect(proxy.outbound);
        assert_eq!(client.send(&bytes).exactly(bytes.len()), bytes, "{name}");
        assert_eq!(app.connections().len(), 1, "{name}");
        let route = format!("route_name=\"{route}\"");
        let host = format!("hostname=\"{name}\"");
        let labels = [
            "parent_kind=\"EgressNetwork\"",
            "target_port=\"80\"",
            route.as_str(),
            host.as_str(),
        ];
        counts(&proxy, "outbound_tls_route_open_total", &labels, 1.0);
        drop(client);
        let closed = [&labels[..], &["error=\"\""]].concat();
        counts(&proxy, "outbound_tls_route_close_total", &closed, 1.0);
    }
    let mut client = Client::connect(proxy.outbound);
    assert!(client.send(hello::named("bad.example.com")).closed());
    let denied = ["route_name=\"denied\"", "error=\"forbidden\""];
    counts(&proxy, "outbound_tls_route_close_total", &denied, 1.0);
    let mut client = Client::connect(proxy.outbound);
    assert!(
        client.send(hello::named("example.org")).closed(),
        "no route"
    );
    let mut client = Client::connect(proxy.outbound);
    let plain = "GET / HTTP/1.1\r\nhost: www.example.com\r\n\r\n";
    assert!(client.send(plain).closed(), "no TLS");
    let unexpected = ["error=\"unexpected\"", "target_port=\"80\""];
    counts(&proxy, "outbound_tcp_errors_total", &unexpected, 3.0);
    assert_eq!(exact.connections().len() + below.connections().len(), 2);
}

#[test]
fn a_hello_that_does_not_come_is_counted() {
    let control = ControlPlane::start();
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let named = sni_match::Match::Exact("www.example.com".into());
    let routes = vec![tls_route("exact", named, app.addr(), false)];
    let tls = proxy_protocol::Kind::Tls(proxy_protocol::Tls { routes });
    control.set_outbound(CLUSTER_IP, egress(tls));
    let settings = [("OUTBOUND_DETECT_TIMEOUT", "200ms")];
    let proxy = outbound(&control, &settings);
    assert!(Client::connect(proxy.outbound).closed(), "silent");
    let family = "outbound_tcp_errors_total";
    counts(&proxy, family, &["error=\"unexpected\""], 1.0);
    drop(Client::connect(proxy.outbound));
    counts(&proxy, family, &["error=\"i/o\""], 1.0);
}

#[test]
fn a_hello_without_a_name_takes_only_a_route_without_names() {
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let named = || sni_match::Match::Exact("www.example.com".into());
    let mut any = tls_route("any", named(), app.addr(), false);
    any.snis.clear();
    for (routes, served) in [
        (vec![tls_route("exact", named(), app.addr(), false)], false),
        (vec![any], true),
    ] {
        let control = ControlPlane::start();
        let tls = proxy_protocol::Kind::Tls(proxy_protocol::Tls { routes });
        control.set_outbound(CLUSTER_IP, egress(tls));
        let proxy = outbound(&control, &[]);
        let bytes = hello::nameless();
        let mut client = Client::connect(proxy.outbound);
        client.send(&bytes);
        match served {
            true => assert_eq!(client.exactly(bytes.len()), bytes),
            false => assert!(client.closed()),
        }
    }
    assert_eq!(app.connections().len(), 1);
}

#[test]
fn a_tls_or_opaque_route_with_other_than_one_rule_makes_the_policy_invalid() {
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let tls = |rules: usize| {
        let name = sni_match::Match::Exact("www.example.com".into());
        let mut route = tls_route("exact", name, app.addr(), false);
        route.rules = vec![route.rules[0].clone(); rules];
        let routes = vec![route];
        egress(proxy_protocol::Kind::Tls(proxy_protocol::Tls { routes }))
    };
    let opaque = |rules: usize| {
        let mut route = objects::opaque_route(forward(app.addr()));
        route.rules = vec![route.rules[0].clone(); rules];
        let routes = vec![route];
        egress(proxy_protocol::Kind::Opaque(proxy_protocol::Opaque {
            routes,
        }))
    };
    for (name, policy) in [
        ("a TLS route with two rules", tls(2)),
        ("a TLS route without a rule", tls(0)),
        ("an opaque route with two rules", opaque(2)),
        ("an opaque route without a rule", opaque(0)),
    ] {
        let control = ControlPlane::start();
        control.set_outbound(CLUSTER_IP, policy);
        let proxy = outbound(&control, &[]);
        let mut client = Client::connect(proxy.outbound);
        assert!(
            client.send(hello::named("www.example.com")).closed(),
            "{name}"
        );
        let answer = get(proxy.outbound, "/", "www.example.com");
        assert_eq!(answer.status(), 500, "{name}");
        let error = answer.header("l5d-proxy-error");
        assert_eq!(error, Some("invalid client policy configuration"), "{name}");
    }
    assert!(app.connections().is_empty());
}

#[test]
fn an_egress_network_denies_what_it_does_not_allow() {
    let app = http_echo();
    let mut http = objects::http_route(forward(app.addr()));
    http.rules[0].filters = vec![Filter {
        kind: Some(filter::Kind::FailureInjector(HttpFailureInjector {
            status: 403,
            message: "traffic not allowed".into(),
            ratio: None,
        })),
    }];
    let mut opaque = objects::opaque_route(forward(app.addr()));
    opaque.rules[0].filters = vec![opaque_route::Filter {
        kind: Some(opaque_route::filter::Kind::Forbidden(Forbidden {})),
    }];
    let mut policy = objects::detect(vec![http], Some(opaque));
    policy.metadata = Some(objects::resource("EgressNetwork", "ns", "egress"));
    let control = ControlPlane::start();
    control.set_outbound(CLUSTER_IP, policy);
    let proxy = outbound(&control, &[]);
    let answer = get(proxy.outbound, "/", "example.com");
    assert_eq!(answer.status(), 403);
    assert_eq!(
        answer.header("l5d-proxy-error"),
        Some("traffic not allowed")
    );
    let mut client = Client::connect(proxy.outbound);
    assert!(client.send("\x01\x02\x03\n").closed());
    let labels = [
        "parent_kind=\"EgressNetwork\"",
        "parent_name=\"egress\"",
        "error=\"forbidden\"",
    ];
    counts(&proxy, "outbound_tcp_route_close_total", &labels, 1.0);
    assert!(app.connections().is_empty(), "nothing leaves");
}

#[test]
fn hosts_are_labels_of_outbound_routes_only_when_asked_for() {
    let app = http_echo();
    let on = [("OUTBOUND_METRICS_HOSTNAME_LABELS", "true")];
    for (settings, hosts) in [
        (&on[..], [("a.example", 2.0), ("b.example", 1.0), ("", 0.0)]),
        (&[][..], [("a.example", 0.0), ("b.example", 0.0), ("", 3.0)]),
    ] {
        let control = ControlPlane::start();
        let route = objects::http_route(forward(app.addr()));
        control.set_outbound(CLUSTER_IP, objects::detect(vec![route], None));
        let proxy = outbound(&control, settings);
        let mut client = Client::connect(proxy.outbound);
        for host in ["a.example", "A.example:80", "b.example"] {
            assert_eq!(client.get("/", host).status(), 200);
        }
        for (host, want) in hosts {
            let label = format!("hostname=\"{host}\"");
            let family = "outbound_http_route_request_statuses_total";
            counts(&proxy, family, &[&label, "http_status=\"200\""], want);
        }
    }
}

#[test]
fn outbound_connections_do_not_go_to_loopback() {
    let app = http_echo();
    let control = ControlPlane::start();
    let route = objects::http_route(forward(app.addr()));
    let opaque = objects::opaque_route(forward(app.addr()));
    control.set_outbound(CLUSTER_IP, objects::detect(vec![route], Some(opaque)));
    let proxy = outbound(
        &control,
        Settings {
            guarded: true,
            ..Settings::default()
        },
    );
    let answer = get(proxy.outbound, "/", "web");
    assert_eq!(answer.status(), 502);
    assert_eq!(
        answer.header("l5d-proxy-error"),
        Some("Outbound proxy cannot initiate connections on the loopback interface")
    );
    let mut client = Client::connect(proxy.outbound);
    assert!(client.send("\x01\x02\x03\n").closed());
    counts(&proxy, "outbound_tcp_errors_total", &["error=\"i/o\""], 1.0);
    assert!(app.connections().is_empty());
}
