//! Outbound policy by tables: objects in, the policy of a target out.

use super::*;
use crate::{
    cluster::tests::cluster,
    testing::{World, created, egress, object, pod, route, server, service, to_service, with},
};
use linkerd_core::policy::{
    ConnectionFilter, GrpcFilter, HttpFilter, Origin,
    outbound::{
        Dispatch, Distribution, FailureAccrual, Http, HttpRoute, Load, Protocol, RouteBackend,
    },
};
use serde_json::{Value, json};
use std::time::Duration;

mod backends;
mod egress;
mod parents;
mod rules;

const WEB: &str = "10.1.0.1:80";

const OUTSIDE: &str = "1.1.1.1:443";

fn named(origin: &Origin) -> String {
    match origin {
        Origin::Default(name) => (*name).to_owned(),
        Origin::Resource(resource) => {
            let port = resource
                .port
                .map(|port| format!(":{port}"))
                .unwrap_or_default();
            format!(
                "{}/{}/{}{port}",
                resource.kind, resource.namespace, resource.name
            )
        }
    }
}

fn kind(policy: &Policy) -> &'static str {
    match policy.protocol {
        Protocol::Detect { .. } => "detect",
        Protocol::Http1(_) => "http1",
        Protocol::Http2(_) => "http2",
        Protocol::Grpc { .. } => "grpc",
        Protocol::Tls(_) => "tls",
        Protocol::Opaque(_) => "opaque",
    }
}

fn http(policy: &Policy) -> &Http {
    match &policy.protocol {
        Protocol::Detect { http, .. } | Protocol::Http1(http) | Protocol::Http2(http) => http,
        other => panic!("not HTTP: {other:?}"),
    }
}

/// Names of the routes of the protocol that was chosen.
fn routes(policy: &Policy) -> Vec<String> {
    match &policy.protocol {
        Protocol::Detect { http, .. } | Protocol::Http1(http) | Protocol::Http2(http) => http
            .routes
            .iter()
            .map(|route| named(&route.origin))
            .collect(),
        Protocol::Grpc { routes, .. } => routes.iter().map(|route| named(&route.origin)).collect(),
        Protocol::Tls(routes) | Protocol::Opaque(routes) => {
            routes.iter().map(|route| named(&route.origin)).collect()
        }
    }
}

fn backends<F: Clone>(
    distribution: &Distribution<F>,
) -> Vec<(String, Option<u32>, RouteBackend<F>)> {
    let shown = |backend: &RouteBackend<F>| match &backend.backend.dispatch {
        Dispatch::None => "none".to_owned(),
        Dispatch::Forward(addr) => addr.to_string(),
        Dispatch::Balance { authority, .. } => authority.clone(),
    };
    match distribution {
        Distribution::Empty => vec![],
        Distribution::FirstAvailable(backends) => backends
            .iter()
            .map(|backend| (shown(backend), None, backend.clone()))
            .collect(),
        Distribution::RandomAvailable(backends) => backends
            .iter()
            .map(|(backend, weight)| (shown(backend), Some(*weight), backend.clone()))
            .collect(),
    }
}

fn only_route(policy: &Policy) -> &HttpRoute {
    let [route] = http(policy).routes.as_slice() else {
        panic!("one route: {policy:?}")
    };
    route
}

fn ready(world: &World) -> Policy {
    world.outbound("client", WEB).expect("found")
}

#[test]
fn targets() {
    let headless = with(
        service("headless", "None"),
        &[("/spec/clusterIPs", json!(["None"]))],
    );
    let dual = with(
        service("dual", "10.1.0.2"),
        &[("/spec/clusterIPs", json!(["10.1.0.2", "fd00::2"]))],
    );
    let own = with(
        egress("own", json!({})),
        &[("/metadata/namespace", json!("egressed"))],
    );
    let covering = with(
        egress("covering", json!({"networks": [{"cidr": "10.0.0.0/8"}]})),
        &[("/metadata/namespace", json!("covered"))],
    );
    let world = World::new([service("web", "10.1.0.1"), dual, headless, own, covering]);
    for (case, client, addr, expected) in [
        (
            "ClusterIP",
            "client",
            "10.1.0.1:80",
            Some("Service/shop/web:80"),
        ),
        (
            "second family",
            "client",
            "[fd00::2]:8080",
            Some("Service/shop/dual:8080"),
        ),
        (
            "undefined port",
            "client",
            "10.1.0.1:9999",
            Some("Service/shop/web:9999"),
        ),
        ("outside", "client", "1.1.1.1:443", Some("egress-fallback")),
        (
            "outside, v6",
            "client",
            "[2001:db8::1]:443",
            Some("egress-fallback"),
        ),
        (
            "EgressNetwork",
            "egressed",
            "1.1.1.1:443",
            Some("EgressNetwork/egressed/own:443"),
        ),
        ("EgressNetwork, inside", "egressed", "10.9.9.9:443", None),
        (
            "an EgressNetwork that covers cluster addresses takes them though it is not accepted",
            "covered",
            "10.9.9.9:443",
            Some("EgressNetwork/covered/covering:443"),
        ),
        (
            "a Service before any EgressNetwork",
            "covered",
            "10.1.0.1:80",
            Some("Service/shop/web:80"),
        ),
        ("pod or unused address", "client", "10.9.9.9:80", None),
        ("inside, v6", "client", "[fd00::9]:80", None),
    ] {
        let found = world.outbound(client, addr);
        assert_eq!(
            found.map(|policy| named(&policy.origin)).as_deref(),
            expected,
            "{case}"
        );
    }
    let absent = Lookup::Service {
        namespace: "nowhere".into(),
        name: "nothing".into(),
        port: 80,
    };
    let policy = world
        .index
        .outbound_policy("client", &absent)
        .expect("authorities need not exist");
    assert_eq!(named(&policy.origin), "Service/nowhere/nothing:80");
}

#[test]
fn the_default_policy_of_a_service() {
    let policy = ready(&World::new([service("web", "10.1.0.1")]));
    let Protocol::Detect {
        timeout,
        opaque,
        http,
    } = &policy.protocol
    else {
        panic!("detect")
    };
    assert_eq!(*timeout, Duration::from_secs(10));
    assert_eq!(named(&opaque[0].origin), "opaq");
    assert_eq!(named(&http.routes[0].origin), "http");
    let found = backends(&http.routes[0].rules[0].backends);
    assert_eq!(found[0].0, "web.shop.svc.cluster.local:80");
    assert_eq!(named(&found[0].2.backend.origin), "Service/shop/web:80");
    assert_eq!(
        backends(&opaque[0].rules[0].backends)[0].0,
        "web.shop.svc.cluster.local:80"
    );
}

#[test]
fn fallback_and_undefined_port() {
    let world = World::new([service("web", "10.1.0.1")]);
    let policy = world.outbound("client", OUTSIDE).expect("found");
    let Protocol::Detect { opaque, http, .. } = &policy.protocol else {
        panic!("detect")
    };
    assert_eq!(backends(&http.routes[0].rules[0].backends)[0].0, OUTSIDE);
    assert_eq!(backends(&opaque[0].rules[0].backends)[0].0, OUTSIDE);
    let policy = world.outbound("client", "10.1.0.1:1").expect("found");
    let Protocol::Opaque(routes) = &policy.protocol else {
        panic!("opaque")
    };
    assert_eq!(named(&policy.origin), "Service/shop/web:1");
    assert_eq!(named(&routes[0].origin), "undefined-port");
    assert_eq!(routes[0].rules[0].backends, Distribution::Empty);
    assert_eq!(routes[0].rules[0].filters, [ConnectionFilter::Forbidden]);
}

#[test]
fn protocols() {
    let any = || json!([{}]);
    let app = |protocol: &str| {
        with(
            service("web", "10.1.0.1"),
            &[("/spec/ports/0/appProtocol", json!(protocol))],
        )
    };
    let opaque = |object: Value| {
        with(
            object,
            &[(
                "/metadata/annotations",
                json!({"config.linkerd.io/opaque-ports": "80"}),
            )],
        )
    };
    let to = |kind: &str, name: &str| route(kind, name, to_service("web"), any());
    // On other parent references, so that they do not conflict.
    let portless = |kind: &str, name: &str| {
        route(
            kind,
            name,
            with(to_service("web"), &[("/port", Value::Null)]),
            any(),
        )
    };
    let cases: Vec<(&str, Vec<Value>, &str, Vec<&str>)> = vec![
        (
            "nothing said",
            vec![service("web", "10.1.0.1")],
            "detect",
            vec!["http"],
        ),
        (
            "http routes",
            vec![service("web", "10.1.0.1"), to("HTTPRoute", "h")],
            "detect",
            vec!["HTTPRoute/shop/h"],
        ),
        (
            "grpc routes",
            vec![service("web", "10.1.0.1"), to("GRPCRoute", "g")],
            "grpc",
            vec!["GRPCRoute/shop/g"],
        ),
        (
            "tls routes",
            vec![service("web", "10.1.0.1"), to("TLSRoute", "t")],
            "tls",
            vec!["TLSRoute/shop/t"],
        ),
        (
            "tcp routes",
            vec![service("web", "10.1.0.1"), to("TCPRoute", "t")],
            "opaque",
            vec!["TCPRoute/shop/t"],
        ),
        (
            "grpc before http",
            vec![
                service("web", "10.1.0.1"),
                portless("HTTPRoute", "h"),
                to("GRPCRoute", "g"),
            ],
            "grpc",
            vec!["GRPCRoute/shop/g"],
        ),
        (
            "http before tls",
            vec![
                service("web", "10.1.0.1"),
                portless("TLSRoute", "t"),
                to("HTTPRoute", "h"),
            ],
            "detect",
            vec!["HTTPRoute/shop/h"],
        ),
        (
            "tls before tcp",
            vec![
                service("web", "10.1.0.1"),
                portless("TCPRoute", "c"),
                to("TLSRoute", "t"),
            ],
            "tls",
            vec!["TLSRoute/shop/t"],
        ),
        ("http", vec![app("http")], "http1", vec!["http"]),
        ("HTTP in capitals", vec![app("HTTP")], "http1", vec!["http"]),
        (
            "http with grpc routes",
            vec![app("http"), to("GRPCRoute", "g")],
            "http1",
            vec!["http"],
        ),
        (
            "http with http routes",
            vec![app("http"), to("HTTPRoute", "h")],
            "http1",
            vec!["HTTPRoute/shop/h"],
        ),
        ("h2c", vec![app("kubernetes.io/h2c")], "http2", vec!["http"]),
        (
            "h2c with http routes",
            vec![app("kubernetes.io/h2c"), to("HTTPRoute", "h")],
            "http2",
            vec!["HTTPRoute/shop/h"],
        ),
        (
            "h2c with grpc routes",
            vec![app("kubernetes.io/h2c"), to("GRPCRoute", "g")],
            "grpc",
            vec!["GRPCRoute/shop/g"],
        ),
        (
            "linkerd.io/opaque",
            vec![app("linkerd.io/opaque")],
            "opaque",
            vec!["opaq"],
        ),
        (
            "linkerd.io/tcp",
            vec![app("linkerd.io/tcp")],
            "opaque",
            vec!["opaq"],
        ),
        (
            "anything else",
            vec![app("mysql"), to("HTTPRoute", "h")],
            "opaque",
            vec!["opaq"],
        ),
        (
            "anything else with tcp routes",
            vec![app("mysql"), to("TCPRoute", "t")],
            "opaque",
            vec!["TCPRoute/shop/t"],
        ),
        (
            "opaque annotation",
            vec![opaque(service("web", "10.1.0.1")), to("HTTPRoute", "h")],
            "opaque",
            vec!["opaq"],
        ),
        (
            "appProtocol beats the annotation",
            vec![opaque(app("http"))],
            "http1",
            vec!["http"],
        ),
        (
            "only the first TCP route",
            vec![
                service("web", "10.1.0.1"),
                created(to("TCPRoute", "a"), "2025-02-01T00:00:00Z"),
                to("TCPRoute", "b"),
            ],
            "opaque",
            vec!["TCPRoute/shop/b"],
        ),
    ];
    for (case, objects, expected, names) in cases {
        let policy = ready(&World::new(objects));
        assert_eq!(
            (kind(&policy), routes(&policy)),
            (expected, names.into_iter().map(str::to_owned).collect()),
            "{case}"
        );
    }
    let world = World::new([service("web", "10.1.0.1")]);
    let policy = world.outbound("client", "10.1.0.1:3306").expect("found");
    assert_eq!(kind(&policy), "opaque", "opaque by default");
    let world = World::new([with(
        service("web", "10.1.0.1"),
        &[(
            "/metadata/annotations",
            json!({"config.linkerd.io/opaque-ports": "80"}),
        )],
    )]);
    let policy = world.outbound("client", "10.1.0.1:3306").expect("found");
    assert_eq!(
        kind(&policy),
        "detect",
        "the annotation replaces the defaults"
    );
    for (case, list) in [("a name", "80,http"), ("no port", "80,99999")] {
        let annotations = json!({"config.linkerd.io/opaque-ports": list});
        let web = with(
            service("web", "10.1.0.1"),
            &[("/metadata/annotations", annotations)],
        );
        for port in [80, 3306] {
            let policy = World::new([web.clone()]).outbound("client", &format!("10.1.0.1:{port}"));
            let policy = policy.expect("found");
            assert_eq!(kind(&policy), "detect", "{case}: the whole list is none");
        }
    }
}
