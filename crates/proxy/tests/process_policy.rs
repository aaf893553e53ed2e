//! Who may, which way, and by what name: inbound defaults, outbound routes, ingress mode.

#[path = "support/harness.rs"]
mod harness;

use harness::{CLUSTER_IP, Client, DEADLINE, Pair, SERVICE, get, http_echo};
use linkerd_api::proto::{
    http_route::{HttpRouteMatch, PathMatch, RequestHeaderModifier, RequestRedirect, path_match},
    http_types::{Headers, headers::Header},
    outbound::http_route::{Filter, filter},
};
use linkerd_testkit::{
    control_plane::objects,
    echo::{Answer, Echo},
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
