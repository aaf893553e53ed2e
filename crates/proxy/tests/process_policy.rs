//! Who may, which way, and by what name: inbound defaults, outbound routes, ingress mode.

#[path = "support/harness.rs"]
mod harness;

use std::{net::SocketAddr, sync::Arc};

use harness::{CLUSTER_IP, Client, DEADLINE, Pair, Proxy, SERVICE, counts, get, http_echo};
use linkerd_api::proto::{
    destination::AuthorityOverride,
    http_route::{
        HeaderMatch, HttpRouteMatch, PathMatch, PathModifier, RequestHeaderModifier,
        RequestRedirect, header_match, path_match, path_modifier,
    },
    http_types::{Headers, headers::Header},
    outbound::{
        self, OutboundPolicy,
        http_route::{Filter, filter},
        proxy_protocol,
    },
};
use linkerd_proxy::socket::OrigDst;
use linkerd_testkit::{
    control_plane::{ControlPlane, objects},
    echo::{Answer, Behavior, Echo},
    wait_for,
};

#[test]
fn deny_denies() {
    let app = http_echo();
    let pair = Pair::with(app.addr(), &[], &[("INBOUND_DEFAULT_POLICY", "deny")]);
    let mut client = Client::connect(pair.client.outbound);
    let answer = client.get("/", "web");
    assert_eq!(answer.status(), 403, "{}", answer.head);
    assert_eq!(
        answer.header("l5d-proxy-error"),
        None,
        "a peer's words are not passed on"
    );
    assert_eq!(client.get("/", "web").status(), 403, "the connection stays");
    assert!(app.requests().is_empty());
    let denied = pair
        .server
        .metric("inbound_http_authz_deny_total", &["tls=\"true\""]);
    assert!((denied - 2.0).abs() < 0.1, "{denied}");
}

#[test]
fn authenticated_clients_pass() {
    let app = http_echo();
    let settings = [("INBOUND_DEFAULT_POLICY", "all-authenticated")];
    let pair = Pair::with(app.addr(), &[], &settings);
    assert_eq!(get(pair.client.outbound, "/", "web").status(), 200);
    let allowed = pair.server.metric(
        "inbound_http_authz_allow_total",
        &["authz_name=\"all-authenticated\""],
    );
    assert!((allowed - 1.0).abs() < 0.1, "{allowed}");
}

#[test]
fn routes_filters_and_backends() {
    let app = http_echo();
    let other = Echo::http_with(([127, 0, 0, 1], 0), |_| Answer::status(202, "other"));
    let pair = Pair::new(app.addr());
    pair.control.set_endpoints(
        "other.ns.svc.cluster.local:80",
        [objects::endpoint(other.addr())],
    );
    let on_path = |path: &str, mut route: linkerd_api::proto::outbound::HttpRoute| {
        route.rules[0].matches = vec![HttpRouteMatch {
            path: Some(PathMatch {
                kind: Some(path_match::Kind::Prefix(path.into())),
            }),
            ..HttpRouteMatch::default()
        }];
        route
    };
    let mut plain = on_path("/", objects::http_route(objects::balancer(SERVICE)));
    plain.rules[0].filters = vec![Filter {
        kind: Some(filter::Kind::RequestHeaderModifier(RequestHeaderModifier {
            set: Some(Headers {
                headers: vec![Header {
                    name: "x-set".into(),
                    value: b"yes".to_vec(),
                }],
            }),
            remove: vec!["x-gone".into()],
            ..RequestHeaderModifier::default()
        })),
    }];
    let elsewhere = on_path(
        "/other",
        objects::http_route(objects::balancer("other.ns.svc.cluster.local:80")),
    );
    let mut moved = on_path("/moved", objects::http_route(objects::balancer(SERVICE)));
    moved.rules[0].filters = vec![Filter {
        kind: Some(filter::Kind::Redirect(RequestRedirect {
            host: "new.example".into(),
            status: 302,
            ..RequestRedirect::default()
        })),
    }];
    pair.control.set_outbound(
        CLUSTER_IP,
        objects::detect(vec![plain, elsewhere, moved], None),
    );
    let mut client = Client::connect(pair.client.outbound);
    let ask = "GET /a HTTP/1.1\r\nhost: web\r\nx-set: no\r\nx-gone: here\r\n\r\n";
    assert_eq!(client.send(ask).answer().status(), 200);
    let seen = app.requests().remove(0);
    assert_eq!(seen.header("x-set"), Some("yes"));
    assert_eq!(seen.header("x-gone"), None);
    assert_eq!(client.get("/other/x", "web").status(), 202);
    let answer = client.get("/moved", "web");
    assert_eq!(answer.status(), 302);
    assert_eq!(answer.header("location"), Some("http://new.example/moved"));
    let counted = pair.client.metric(
        "outbound_http_route_backend_response_statuses_total",
        &[
            "backend_name=\"other\"",
            "http_status=\"202\"",
            "parent_name=\"web\"",
        ],
    );
    assert!((counted - 1.0).abs() < 0.1, "{counted}");
}

#[test]
fn an_ingress_routes_by_header() {
    let app = http_echo();
    let named = Echo::http_with(([127, 0, 0, 1], 0), |_| Answer::status(202, "named"));
    let pair = Pair::with(app.addr(), &[("INGRESS_MODE", "true")], &[]);
    let path = "named.ns.svc.cluster.local:8080";
    pair.control.set_outbound(path, objects::service(path));
    pair.control
        .set_endpoints(path, [objects::endpoint(named.addr())]);
    let mut client = Client::connect(pair.client.outbound);
    let ask = format!("GET / HTTP/1.1\r\nhost: shop.example\r\nl5d-dst-override: {path}\r\n\r\n");
    assert_eq!(client.send(ask).answer().status(), 202);
    assert_eq!(named.requests().remove(0).header("l5d-dst-override"), None);
    assert_eq!(
        client.get("/", "web").status(),
        200,
        "without it, by address"
    );
}

#[test]
fn the_upgrade_threshold_is_crossed_and_left() {
    let app = http_echo();
    let pair = Pair::with(
        app.addr(),
        &[("OUTBOUND_HTTP1_UPGRADE_THRESHOLD", "2")],
        &[],
    );
    let addr = pair.client.outbound;
    let slow: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                Client::connect(addr)
                    .send("GET / HTTP/1.1\r\nhost: a\r\nx-echo-delay-ms: 300\r\n\r\n")
                    .answer()
                    .status()
            })
        })
        .collect();
    for thread in slow {
        assert_eq!(thread.join().expect("answers"), 200);
    }
    let session = |name: &str| {
        let label = format!("session_protocol=\"{name}\"");
        pair.server
            .metric("inbound_tcp_transport_header_connections_total", &[&label])
    };
    wait_for(DEADLINE, "both ways were used", || {
        session("http/1") > 0.5 && session("http/2") > 0.5
    });
}

#[test]
fn a_gateway_carries_requests_on() {
    let app = http_echo();
    let pair = Pair::with(
        app.addr(),
        &[],
        &[("INBOUND_GATEWAY_SUFFIXES", "svc.cluster.local.")],
    );
    let name = "target.ns.svc.cluster.local:8080";
    pair.control.set_outbound(name, objects::service(name));
    pair.control
        .set_endpoints(name, [objects::endpoint(app.addr())]);
    let gateway = |authority: &str| {
        let mut endpoint = objects::meshed(
            app.addr(),
            &pair.server.identity,
            pair.server.inbound.port(),
        );
        endpoint.authority_override = Some(AuthorityOverride {
            authority_override: authority.into(),
        });
        pair.control.set_endpoints(SERVICE, [endpoint]);
    };
    gateway(name);
    let mut client = Client::connect(pair.client.outbound);
    let answer = client.get("/x", "web");
    assert_eq!(answer.status(), 200, "{}", answer.head);
    let seen = app.requests().remove(0);
    let want = format!(
        "by={};for={};host={name};proto=https",
        pair.server.identity, pair.client.identity
    );
    assert_eq!(seen.header("forwarded"), Some(want.as_str()));
    assert_eq!(seen.header("host"), Some(name));
    // A request that has been here before goes in a circle.
    let looped = format!(
        "GET / HTTP/1.1\r\nhost: web\r\nforwarded: by={};for=a\r\n\r\n",
        pair.server.identity
    );
    assert_eq!(client.send(looped).answer().status(), 508);
    // A name the gateway does not serve, and one nobody knows.
    for other in ["target.example.com:80", "nobody.ns.svc.cluster.local:80"] {
        gateway(other);
        wait_for(DEADLINE, "a bad gateway domain", || {
            get(pair.client.outbound, "/", "web").status() == 404
        });
    }
}

/// A proxy in front of an application, reached without TLS.
fn plain_server(control: &ControlPlane, app: SocketAddr) -> Proxy {
    let local = OrigDst::Given(Arc::new(|io| io.local_addr()));
    Proxy::start(control, "web", local, OrigDst::fixed(app), &[])
}

/// Lets everybody in, or nobody but who has an identity elsewhere.
fn server(open: bool) -> linkerd_api::proto::inbound::Server {
    let suffix = (!open).then_some("example.com");
    objects::inbound_detect(vec![objects::allow("who", suffix)])
}

#[test]
fn a_policy_change_ends_open_connections() {
    let app = Echo::tcp(
        ([127, 0, 0, 1], 0),
        linkerd_testkit::echo::Behavior::default(),
    );
    let control = ControlPlane::start();
    let port = app.addr().port();
    control.set_inbound(port, server(true));
    let proxy = plain_server(&control, app.addr());
    let bytes: Vec<u8> = (0..16).collect();
    let mut client = Client::connect_from_afar(proxy.inbound);
    client.send(&bytes);
    assert_eq!(client.exactly(16), bytes);
    let mut near = Client::connect(proxy.inbound);
    near.send(&bytes);
    assert_eq!(near.exactly(16), bytes);
    control.set_inbound(port, server(false));
    assert!(client.rest().is_empty(), "the connection ends");
    counts(&proxy, "inbound_tcp_authz_terminate_total", &[], 1.0);
    near.send(&bytes);
    assert_eq!(near.exactly(16), bytes, "clients of the same host stay");
    // A new connection is accepted and closed.
    let mut client = Client::connect_from_afar(proxy.inbound);
    client.send(&bytes);
    assert!(client.rest().is_empty());
    assert!(proxy.metric("inbound_tcp_authz_deny_total", &[]) > 0.5);
}

#[test]
fn a_policy_change_holds_for_the_next_request() {
    let app = http_echo();
    let control = ControlPlane::start();
    let port = app.addr().port();
    control.set_inbound(port, server(true));
    let proxy = plain_server(&control, app.addr());
    let mut client = Client::connect_from_afar(proxy.inbound);
    wait_for(DEADLINE, "the permission", || {
        client.get("/", "web").status() == 200
    });
    control.set_inbound(port, server(false));
    wait_for(DEADLINE, "the denial", || {
        client.get("/", "web").status() == 403
    });
    control.set_inbound(port, server(true));
    wait_for(DEADLINE, "the permission again", || {
        client.get("/", "web").status() == 200
    });
    assert_eq!(get(proxy.inbound, "/", "web").status(), 200, "loopback");
}

/// A client's proxy that carries bytes says so, and a server that speaks HTTP has no use for them.
#[test]
fn bytes_do_not_pass_a_server_that_speaks_http() {
    use linkerd_api::proto::inbound::proxy_protocol::{Http1, Kind};
    let app = Echo::tcp(([127, 0, 0, 1], 0), Behavior::default());
    let pair = Pair::new(app.addr());
    let routes = proxy_protocol::Opaque {
        routes: vec![objects::opaque_route(objects::balancer(SERVICE))],
    };
    let policy = OutboundPolicy {
        metadata: Some(objects::resource("Service", "ns", "web")),
        protocol: Some(outbound::ProxyProtocol {
            kind: Some(proxy_protocol::Kind::Opaque(routes)),
        }),
    };
    pair.control.set_outbound(CLUSTER_IP, policy);
    let bytes = [7; 16];
    let mut open = Client::connect(pair.client.outbound);
    assert_eq!(open.send(bytes).exactly(16), bytes);
    let mut http = server(true);
    if let Some(protocol) = &mut http.protocol {
        protocol.kind = Some(Kind::Http1(Http1::default()));
    }
    pair.control.set_inbound(app.addr().port(), http);
    assert!(open.rest().is_empty(), "the connection ends");
    counts(&pair.server, "inbound_tcp_authz_terminate_total", &[], 1.0);
    let mut other = Client::connect(pair.client.outbound);
    assert!(other.send(bytes).closed(), "and another is refused");
    counts(&pair.server, "inbound_tcp_authz_deny_total", &[], 1.0);
}

#[test]
fn routes_see_the_client_that_was_verified() {
    use linkerd_api::proto::inbound::{HttpRoute, http_route, proxy_protocol::Kind};
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let filter = RequestHeaderModifier {
        set: Some(Headers {
            headers: vec![Header {
                name: "x-route".into(),
                value: b"verified".to_vec(),
            }],
        }),
        remove: vec!["l5d-client-id".into()],
        ..RequestHeaderModifier::default()
    };
    let verified = http_route::Rule {
        matches: vec![HttpRouteMatch {
            headers: vec![HeaderMatch {
                name: "l5d-client-id".into(),
                value: Some(header_match::Value::Exact(
                    pair.client.identity.clone().into_bytes(),
                )),
            }],
            ..HttpRouteMatch::default()
        }],
        filters: vec![http_route::Filter {
            kind: Some(http_route::filter::Kind::RequestHeaderModifier(filter)),
        }],
    };
    let mut policy = server(true);
    if let Some(Kind::Detect(detect)) = policy.protocol.as_mut().and_then(|p| p.kind.as_mut()) {
        detect.http_routes = vec![HttpRoute {
            metadata: Some(objects::default_meta("routes")),
            rules: vec![verified, http_route::Rule::default()],
            ..HttpRoute::default()
        }];
    }
    pair.control.set_inbound(app.addr().port(), policy);
    wait_for(DEADLINE, "the route of the client", || {
        assert_eq!(get(pair.client.outbound, "/", "web").status(), 200);
        let seen = app.requests().pop().expect("a request");
        seen.header("x-route") == Some("verified")
    });
    let seen = app.requests().pop().expect("a request");
    assert_eq!(seen.header("l5d-client-id"), None, "the filter removes it");
    // Without TLS anybody can say anything.
    let bare = plain_server(&pair.control, app.addr());
    let claim = format!(
        "GET / HTTP/1.1\r\nhost: web\r\nl5d-client-id: {}\r\n\r\n",
        pair.client.identity
    );
    let mut client = Client::connect(bare.inbound);
    wait_for(DEADLINE, "the policy of the port", || {
        assert_eq!(client.send(&claim).answer().status(), 200);
        bare.metric("request_total", &["route_name=\"routes\""]) > 0.5
    });
    let seen = app.requests().pop().expect("a request");
    assert_eq!(seen.header("x-route"), None);
    assert_eq!(seen.header("l5d-client-id"), None);
}

#[test]
fn a_redirect_replaces_the_matched_prefix() {
    let app = http_echo();
    let pair = Pair::new(app.addr());
    let mut route = objects::http_route(objects::balancer(SERVICE));
    route.rules[0].matches = vec![HttpRouteMatch {
        path: Some(PathMatch {
            kind: Some(path_match::Kind::Prefix("/old".into())),
        }),
        ..HttpRouteMatch::default()
    }];
    route.rules[0].filters = vec![Filter {
        kind: Some(filter::Kind::Redirect(RequestRedirect {
            path: Some(PathModifier {
                replace: Some(path_modifier::Replace::Prefix("/new".into())),
            }),
            ..RequestRedirect::default()
        })),
    }];
    pair.control
        .set_outbound(CLUSTER_IP, objects::detect(vec![route], None));
    let mut client = Client::connect(pair.client.outbound);
    for (path, want) in [
        ("/old", "http://web/new"),
        ("/old/a/b?c=d", "http://web/new/a/b?c=d"),
    ] {
        let answer = client.get(path, "web");
        assert_eq!(answer.status(), 301, "{path}");
        assert_eq!(answer.header("location"), Some(want), "{path}");
    }
    assert_eq!(client.get("/older", "web").status(), 404, "not a segment");
}
