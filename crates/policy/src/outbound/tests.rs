//! Outbound policy by tables: objects in, the policy of a target out.

use super::*;
use crate::{
    cluster::tests::cluster,
    testing::{World, created, egress, object, route, service, to_service, with},
};
use linkerd_core::policy::{
    ConnectionFilter, GrpcFilter, HttpFilter, Origin,
    outbound::{
        Dispatch, Distribution, FailureAccrual, Http, HttpRoute, Load, Protocol, RouteBackend,
    },
};
use serde_json::{Value, json};
use std::time::Duration;

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
    let world = World::new([service("web", "10.1.0.1"), dual, headless, own]);
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
            Some("undefined-port"),
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
}

#[test]
fn parents_and_visibility() {
    let any = || json!([{}]);
    let foreign = |namespace: &str| {
        let parent = with(to_service("web"), &[("/namespace", json!("shop"))]);
        with(
            route("HTTPRoute", "consumer", parent, any()),
            &[("/metadata/namespace", json!(namespace))],
        )
    };
    let parent = |changes: &[(&str, Value)]| {
        route("HTTPRoute", "r", with(to_service("web"), changes), any())
    };
    let r = vec!["HTTPRoute/shop/r"];
    let default = vec!["http"];
    let cases: Vec<(&str, Vec<Value>, Vec<&str>)> = vec![
        ("port", vec![parent(&[])], r.clone()),
        (
            "other port",
            vec![parent(&[("/port", json!(8080))])],
            default.clone(),
        ),
        (
            "every port",
            vec![parent(&[("/port", Value::Null)])],
            r.clone(),
        ),
        (
            "empty group",
            vec![parent(&[("/group", json!(""))])],
            r.clone(),
        ),
        (
            "no group",
            vec![parent(&[("/group", Value::Null)])],
            r.clone(),
        ),
        (
            "no kind",
            vec![parent(&[("/kind", Value::Null)])],
            default.clone(),
        ),
        (
            "gateway",
            vec![parent(&[("/kind", json!("Gateway"))])],
            default.clone(),
        ),
        (
            "other service",
            vec![parent(&[("/name", json!("db"))])],
            default.clone(),
        ),
        (
            "policy group",
            vec![route("policy", "r", to_service("web"), any())],
            r,
        ),
        (
            "consumer's own",
            vec![foreign("client")],
            vec!["HTTPRoute/client/consumer"],
        ),
        ("somebody else's", vec![foreign("stranger")], default),
        (
            "producer and consumer together, by age",
            vec![
                created(parent(&[]), "2025-02-01T00:00:00Z"),
                foreign("client"),
            ],
            vec!["HTTPRoute/client/consumer", "HTTPRoute/shop/r"],
        ),
        (
            "same age: by name",
            vec![
                route("HTTPRoute", "b", to_service("web"), any()),
                route("policy", "a", to_service("web"), any()),
            ],
            vec!["HTTPRoute/shop/a", "HTTPRoute/shop/b"],
        ),
        (
            "unknown age last",
            vec![
                with(
                    route("HTTPRoute", "a", to_service("web"), any()),
                    &[("/metadata/creationTimestamp", Value::Null)],
                ),
                route("HTTPRoute", "b", to_service("web"), any()),
            ],
            vec!["HTTPRoute/shop/b", "HTTPRoute/shop/a"],
        ),
    ];
    for (case, objects, expected) in cases {
        let world = World::new(std::iter::once(service("web", "10.1.0.1")).chain(objects));
        assert_eq!(routes(&ready(&world)), expected, "{case}");
    }
}

/// A portless parent reference is for the kind it names, not for whatever has that name.
#[test]
fn parents_of_the_same_name_are_told_apart() {
    let to_egress =
        json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "web", "port": 80});
    let world = World::new([
        service("web", "10.1.0.1"),
        egress("web", json!({})),
        route("HTTPRoute", "r", to_egress, json!([{}])),
    ]);
    assert_eq!(routes(&ready(&world)), ["http"]);
}

#[test]
fn a_route_that_leaves_a_parent_is_gone() {
    let mut world = World::new([service("web", "10.1.0.1"), service("db", "10.1.0.2")]);
    let mut watch = world
        .index
        .watch_outbound("client", Lookup::Addr(WEB.parse().expect("addr")))
        .expect("found");
    world.apply(&route("HTTPRoute", "r", to_service("web"), json!([{}])));
    assert_eq!(routes(&watch.borrow_and_update()), ["HTTPRoute/shop/r"]);
    world.apply(&route("HTTPRoute", "r", to_service("db"), json!([{}])));
    assert_eq!(routes(&watch.borrow_and_update()), ["http"]);
    assert_eq!(
        routes(&world.outbound("client", "10.1.0.2:80").expect("found")),
        ["HTTPRoute/shop/r"]
    );
}

#[test]
fn backends_of_rules() {
    let invalid = |message: &str| {
        vec![HttpFilter::Fail {
            status: 500,
            message: message.to_owned(),
        }]
    };
    let web = "web.shop.svc.cluster.local:80";
    let cases: Vec<(&str, Value, Vec<Shown>)> = vec![
        ("none: the parent", json!([]), vec![(web, None, vec![])]),
        (
            "a service",
            json!([{"name": "db", "port": 8080}]),
            vec![("db.shop.svc.cluster.local:8080", Some(1), vec![])],
        ),
        (
            "weights",
            json!([{"name": "db", "port": 8080, "weight": 3}, {"name": "web", "port": 80, "weight": 0}]),
            vec![
                ("db.shop.svc.cluster.local:8080", Some(3), vec![]),
                (web, Some(0), vec![]),
            ],
        ),
        (
            "group core",
            json!([{"group": "core", "kind": "Service", "name": "db", "port": 1}]),
            vec![("db.shop.svc.cluster.local:1", Some(1), vec![])],
        ),
        (
            "elsewhere",
            json!([{"name": "far", "namespace": "other", "port": 80}]),
            vec![("far.other.svc.cluster.local:80", Some(1), vec![])],
        ),
        (
            "no port",
            json!([{"name": "db"}]),
            vec![(
                "none",
                Some(1),
                invalid("missing port for backend Service db"),
            )],
        ),
        (
            "missing",
            json!([{"name": "nope", "port": 80, "weight": 9}]),
            vec![("none", Some(9), invalid("Service not found nope"))],
        ),
        (
            "missing elsewhere",
            json!([{"name": "db", "namespace": "other", "port": 80}]),
            vec![("none", Some(1), invalid("Service not found db"))],
        ),
        (
            "another kind",
            json!([{"group": "x.io", "kind": "Bucket", "name": "b"}]),
            vec![(
                "none",
                Some(1),
                invalid("unsupported backend type x.io Bucket"),
            )],
        ),
        (
            "egress network under a service",
            json!([{"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out"}]),
            vec![(
                "none",
                Some(1),
                invalid("EgressNetwork backends attach to EgressNetwork parents only"),
            )],
        ),
        (
            "missing egress network",
            json!([{"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "nope"}]),
            vec![("none", Some(1), invalid("EgressNetwork not found nope"))],
        ),
        (
            "filter",
            json!([{"name": "db", "port": 80, "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x"]}}]}]),
            vec![(
                "db.shop.svc.cluster.local:80",
                Some(1),
                vec![HttpFilter::RequestHeaders(
                    linkerd_core::policy::HeaderModifier {
                        remove: vec!["x".into()],
                        ..Default::default()
                    },
                )],
            )],
        ),
        (
            "unsupported filter",
            json!([{"name": "db", "port": 80, "filters": [{"type": "RequestMirror"}]}]),
            vec![(
                "none",
                Some(1),
                invalid("unsupported backend filter: RequestMirror"),
            )],
        ),
    ];
    for (case, refs, expected) in cases {
        for kind in ["HTTPRoute", "policy"] {
            let world = World::new([
                service("web", "10.1.0.1"),
                service("db", "10.1.0.2"),
                with(
                    service("far", "10.1.0.3"),
                    &[("/metadata/namespace", json!("other"))],
                ),
                egress("out", json!({})),
                route(kind, "r", to_service("web"), json!([{"backendRefs": refs}])),
            ]);
            let policy = ready(&world);
            let found: Vec<_> = backends(&only_route(&policy).rules[0].backends)
                .into_iter()
                .map(|(shown, weight, backend)| (shown, weight, backend.filters))
                .collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|(shown, weight, filters)| ((*shown).to_owned(), *weight, filters.clone()))
                .collect();
            assert_eq!(found, expected, "{case} ({kind})");
        }
    }
}

/// Backends of a consumer route default to the route's namespace.
#[test]
fn backends_of_consumer_routes() {
    let parent = with(to_service("web"), &[("/namespace", json!("shop"))]);
    let consumer = with(
        route(
            "HTTPRoute",
            "r",
            parent,
            json!([{"backendRefs": [{"name": "mine", "port": 80}]}]),
        ),
        &[("/metadata/namespace", json!("client"))],
    );
    let mine = with(
        service("mine", "10.1.0.9"),
        &[("/metadata/namespace", json!("client"))],
    );
    let policy = ready(&World::new([service("web", "10.1.0.1"), mine, consumer]));
    assert_eq!(
        backends(&only_route(&policy).rules[0].backends)[0].0,
        "mine.client.svc.cluster.local:80"
    );
}

#[test]
fn invalid_backends_of_other_kinds() {
    let rules = json!([{"backendRefs": [{"name": "nope", "port": 80}]}]);
    let message = || "Service not found nope".to_owned();
    let world = |kind: &str| {
        World::new([
            service("web", "10.1.0.1"),
            route(kind, "r", to_service("web"), rules.clone()),
        ])
    };
    let Protocol::Grpc { routes, .. } = ready(&world("GRPCRoute")).protocol else {
        panic!("grpc")
    };
    let found = backends(&routes[0].rules[0].backends);
    assert_eq!(
        found[0].2.filters,
        [GrpcFilter::Fail {
            code: 500,
            message: message()
        }]
    );
    for kind in ["TLSRoute", "TCPRoute"] {
        let (Protocol::Tls(routes) | Protocol::Opaque(routes)) = ready(&world(kind)).protocol
        else {
            panic!("{kind}")
        };
        let found = backends(&routes[0].rules[0].backends);
        assert_eq!(
            found[0].2.filters,
            [ConnectionFilter::Invalid(message())],
            "{kind}"
        );
    }
}

#[test]
fn backends_come_and_go() {
    let rules = json!([{"backendRefs": [{"name": "db", "port": 80}]}]);
    let mut world = World::new([
        service("web", "10.1.0.1"),
        route("HTTPRoute", "r", to_service("web"), rules),
    ]);
    let mut watch = world
        .index
        .watch_outbound("client", Lookup::Addr(WEB.parse().expect("addr")))
        .expect("found");
    let shown = |policy: &Policy| backends(&only_route(policy).rules[0].backends)[0].0.clone();
    assert_eq!(shown(&watch.borrow_and_update()), "none");
    world.apply(&service("db", "10.1.0.2"));
    assert_eq!(
        shown(&watch.borrow_and_update()),
        "db.shop.svc.cluster.local:80"
    );
    world.apply(&service("unrelated", "10.1.0.3"));
    assert!(!watch.has_changed().expect("open"));
    world.delete(&service("db", "10.1.0.2"));
    assert_eq!(shown(&watch.borrow_and_update()), "none");
}

#[test]
fn broken_rules_fail_alone() {
    let rules = json!([
        {"matches": [{"path": {"value": "/a"}}], "filters": [{"type": "URLRewrite", "urlRewrite": {}}]},
        {"matches": [{"path": {"value": "/b"}}], "retry": {"attempts": 3}},
        {"matches": [{"path": {"type": "Glob", "value": "/c"}}]},
        {"matches": [{"path": {"value": "/d"}}]},
    ]);
    let policy = ready(&World::new([
        service("web", "10.1.0.1"),
        route("HTTPRoute", "r", to_service("web"), rules),
    ]));
    let [a, b, d] = only_route(&policy).rules.as_slice() else {
        panic!("three rules: {policy:?}")
    };
    let failing = |message: &str| {
        vec![HttpFilter::Fail {
            status: 500,
            message: message.to_owned(),
        }]
    };
    assert_eq!(
        (a.filters.clone(), a.backends.clone()),
        (
            failing("unsupported filter: URLRewrite"),
            Distribution::Empty
        )
    );
    assert_eq!(b.filters, failing("unsupported field: retry"));
    assert_eq!(d.filters, []);
    let all_broken = json!([{"filters": [{"type": "URLRewrite"}]}]);
    let policy = ready(&World::new([
        service("web", "10.1.0.1"),
        route("HTTPRoute", "r", to_service("web"), all_broken),
    ]));
    assert_eq!(
        routes(&policy),
        ["http"],
        "a route of which nothing works is not accepted"
    );
}

#[test]
fn filters_of_rules() {
    let rules = json!([{"filters": [
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"add": [{"name": "a", "value": "b"}]}},
        {"type": "RequestRedirect", "requestRedirect": {"hostname": "x"}},
    ]}]);
    for kind in ["HTTPRoute", "policy"] {
        let policy = ready(&World::new([
            service("web", "10.1.0.1"),
            route(kind, "r", to_service("web"), rules.clone()),
        ]));
        let [
            HttpFilter::ResponseHeaders(headers),
            HttpFilter::Redirect(redirect),
        ] = only_route(&policy).rules[0].filters.as_slice()
        else {
            panic!("{kind}: {policy:?}")
        };
        assert_eq!(headers.add, [("a".to_owned(), "b".to_owned())]);
        assert_eq!(
            redirect.status, None,
            "a status nobody wrote is left to the proxy"
        );
    }
    let policy = ready(&World::new([
        service("web", "10.1.0.1"),
        route(
            "GRPCRoute",
            "r",
            to_service("web"),
            json!([{"filters": [
                {"type": "ResponseHeaderModifier", "responseHeaderModifier": {}},
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x"]}},
            ]}]),
        ),
    ]));
    let Protocol::Grpc { routes, .. } = &policy.protocol else {
        panic!("grpc")
    };
    assert!(matches!(
        routes[0].rules[0].filters.as_slice(),
        [GrpcFilter::RequestHeaders(_)]
    ));
}

#[test]
fn timeouts_and_retries() {
    let secs = |secs| Some(Duration::from_secs(secs));
    let service_says = json!({"timeout.linkerd.io/request": "9s", "timeout.linkerd.io/idle": "8s", "retry.linkerd.io/http": "5xx", "retry.linkerd.io/limit": "9"});
    let cases: Vec<(&str, Value, Value, Timeouts3, Option<u16>)> = vec![
        (
            "from the service",
            json!({}),
            json!({}),
            (secs(9), None, secs(8)),
            Some(9),
        ),
        (
            "from the route",
            json!({"timeout.linkerd.io/response": "2s", "retry.linkerd.io/limit": "2"}),
            json!({}),
            (None, secs(2), None),
            Some(2),
        ),
        (
            "from the rule",
            json!({}),
            json!({"request": "1m30s"}),
            (secs(90), None, None),
            Some(9),
        ),
        (
            "zero is none",
            json!({}),
            json!({"request": "0s"}),
            (secs(9), None, secs(8)),
            Some(9),
        ),
        (
            "annotation before rule",
            json!({"timeout.linkerd.io/request": "3s"}),
            json!({"request": "4s"}),
            (secs(3), None, None),
            Some(9),
        ),
        (
            "annotation beside rule",
            json!({"timeout.linkerd.io/idle": "3s"}),
            json!({"request": "4s"}),
            (secs(4), None, secs(3)),
            Some(9),
        ),
        (
            "backendRequest does not count",
            json!({}),
            json!({"backendRequest": "1s"}),
            (secs(9), None, secs(8)),
            Some(9),
        ),
    ];
    for (case, annotations, limits, expected, retries) in cases {
        for kind in ["HTTPRoute", "policy"] {
            let annotated = with(
                service("web", "10.1.0.1"),
                &[("/metadata/annotations", service_says.clone())],
            );
            let rules = json!([{"timeouts": limits}]);
            let written = with(
                route(kind, "r", to_service("web"), rules),
                &[("/metadata/annotations", annotations.clone())],
            );
            let policy = ready(&World::new([annotated, written]));
            let rule = &only_route(&policy).rules[0];
            let found = (
                rule.timeouts.request,
                rule.timeouts.response,
                rule.timeouts.idle,
            );
            assert_eq!(found, expected, "{case} ({kind})");
            assert_eq!(
                rule.retry.as_ref().map(|retry| retry.limit),
                retries,
                "{case} ({kind})"
            );
        }
    }
    let annotated = with(
        service("web", "10.1.0.1"),
        &[("/metadata/annotations", service_says)],
    );
    let policy = ready(&World::new([annotated]));
    let rule = &only_route(&policy).rules[0];
    assert_eq!(rule.timeouts.request, secs(9), "on the default route too");
    assert!(!rule.allow_l5d_request_headers);
}

/// A backend: where, weight, filters.
type Shown = (&'static str, Option<u32>, Vec<HttpFilter>);

type Timeouts3 = (Option<Duration>, Option<Duration>, Option<Duration>);

#[test]
fn bad_annotations() {
    let bad = json!({"retry.linkerd.io/http": "nope", "timeout.linkerd.io/request": "1s", "balancer.linkerd.io/failure-accrual": "consecutive"});
    let policy = ready(&World::new([with(
        service("web", "10.1.0.1"),
        &[("/metadata/annotations", bad.clone())],
    )]));
    let rule = &only_route(&policy).rules[0];
    assert_eq!(
        (rule.retry.clone(), rule.timeouts.request),
        (None, Some(Duration::from_secs(1))),
        "one feature is off, others work"
    );
    assert!(matches!(
        http(&policy).accrual,
        Some(FailureAccrual::Consecutive {
            max_failures: 7,
            ..
        })
    ));
    let written = with(
        route("HTTPRoute", "r", to_service("web"), json!([{}])),
        &[("/metadata/annotations", bad)],
    );
    let policy = ready(&World::new([service("web", "10.1.0.1"), written]));
    assert_eq!(routes(&policy), ["http"], "such a route is not used");
}

#[test]
fn accrual_and_load() {
    let annotated = with(
        service("web", "10.1.0.1"),
        &[(
            "/metadata/annotations",
            json!({
                "balancer.linkerd.io/failure-accrual": "unified",
                "balancer.alpha.linkerd.io/penalize-failures": "true",
            }),
        )],
    );
    let load = |policy: &Policy| {
        let found = backends(&http(policy).routes[0].rules[0].backends);
        match &found[0].2.backend.dispatch {
            Dispatch::Balance { load, .. } => load.clone(),
            other => panic!("{other:?}"),
        }
    };
    let policy = ready(&World::new([annotated.clone()]));
    assert!(matches!(
        http(&policy).accrual,
        Some(FailureAccrual::Unified { .. })
    ));
    assert!(matches!(load(&policy), Load::PenaltyPeakEwma { .. }));
    let rules = json!([{"backendRefs": [{"name": "db", "port": 80}]}]);
    let policy = ready(&World::new([
        annotated,
        service("db", "10.1.0.2"),
        route("HTTPRoute", "r", to_service("web"), rules),
    ]));
    assert!(
        matches!(load(&policy), Load::PenaltyPeakEwma { .. }),
        "the parent decides for its routes"
    );
    let policy = ready(&World::new([service("web", "10.1.0.1")]));
    assert_eq!(
        (http(&policy).accrual.clone(), load(&policy)),
        (None, Load::PeakEwma),
        "nothing new unless asked for"
    );
}

#[test]
fn request_headers_may_be_allowed() {
    let mut open = cluster();
    open.allow_l5d_request_headers = true;
    let world = World::in_cluster(
        open,
        [
            service("web", "10.1.0.1"),
            route("HTTPRoute", "r", to_service("web"), json!([{}])),
        ],
    );
    assert!(only_route(&ready(&world)).rules[0].allow_l5d_request_headers);
}

#[test]
fn egress_networks() {
    let to_egress =
        json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 443});
    let at = |policy: &str| egress("out", json!({"trafficPolicy": policy}));
    let any = || json!([{}]);
    let cases: Vec<(&str, Vec<Value>, &str, Vec<&str>)> = vec![
        (
            "allowed",
            vec![at("Allow")],
            "detect",
            vec!["http-egress-allow"],
        ),
        (
            "denied",
            vec![at("Deny")],
            "detect",
            vec!["http-egress-deny"],
        ),
        (
            "http",
            vec![
                at("Deny"),
                route("HTTPRoute", "r", to_egress.clone(), any()),
            ],
            "detect",
            vec!["HTTPRoute/shop/r", "http-egress-deny"],
        ),
        (
            "grpc",
            vec![
                at("Allow"),
                route("GRPCRoute", "r", to_egress.clone(), any()),
            ],
            "grpc",
            vec!["GRPCRoute/shop/r", "grpc-egress-allow"],
        ),
        (
            "tls",
            vec![at("Deny"), route("TLSRoute", "r", to_egress.clone(), any())],
            "tls",
            vec!["TLSRoute/shop/r", "tls-egress-deny"],
        ),
        (
            "tcp",
            vec![at("Deny"), route("TCPRoute", "r", to_egress.clone(), any())],
            "opaque",
            vec!["TCPRoute/shop/r"],
        ),
        (
            "portless parent",
            vec![
                at("Allow"),
                route(
                    "HTTPRoute",
                    "r",
                    with(to_egress.clone(), &[("/port", Value::Null)]),
                    any(),
                ),
            ],
            "detect",
            vec!["http-egress-allow"],
        ),
        (
            "other port",
            vec![
                at("Allow"),
                route(
                    "HTTPRoute",
                    "r",
                    with(to_egress.clone(), &[("/port", json!(80))]),
                    any(),
                ),
            ],
            "detect",
            vec!["http-egress-allow"],
        ),
        (
            "opaque",
            vec![with(
                at("Deny"),
                &[(
                    "/metadata/annotations",
                    json!({"config.linkerd.io/opaque-ports": "443"}),
                )],
            )],
            "opaque",
            vec!["tcp-egress-deny"],
        ),
    ];
    for (case, objects, expected, names) in cases {
        let policy = World::new(objects)
            .outbound("shop", OUTSIDE)
            .expect("found");
        assert_eq!(
            named(&policy.origin),
            "EgressNetwork/shop/out:443",
            "{case}"
        );
        assert_eq!(
            (kind(&policy), routes(&policy)),
            (expected, names.into_iter().map(str::to_owned).collect()),
            "{case}"
        );
    }
    let policy = World::new([at("Deny")])
        .outbound("shop", OUTSIDE)
        .expect("found");
    let Protocol::Detect { opaque, http, .. } = &policy.protocol else {
        panic!("detect")
    };
    assert_eq!(named(&opaque[0].origin), "tcp-egress-deny");
    assert_eq!(opaque[0].rules[0].filters, [ConnectionFilter::Forbidden]);
    assert_eq!(
        http.routes[0].rules[0].filters,
        [HttpFilter::Fail {
            status: 403,
            message: "traffic not allowed".into()
        }]
    );
    assert_eq!(backends(&http.routes[0].rules[0].backends)[0].0, OUTSIDE);
}

#[test]
fn egress_backends() {
    let to_egress =
        json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 443});
    let backend = |name: &str| json!([{"backendRefs": [{"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": name}]}]);
    for (case, refs, expected) in [
        ("the parent itself", backend("out"), OUTSIDE),
        ("another network", backend("more"), "none"),
        (
            "a service",
            json!([{"backendRefs": [{"name": "web", "port": 80}]}]),
            "web.shop.svc.cluster.local:80",
        ),
    ] {
        let world = World::new([
            service("web", "10.1.0.1"),
            egress("out", json!({})),
            with(
                egress("more", json!({"networks": [{"cidr": "2.2.2.2"}]})),
                &[],
            ),
            route("HTTPRoute", "r", to_egress.clone(), refs),
        ]);
        let policy = world.outbound("shop", OUTSIDE).expect("found");
        assert_eq!(
            backends(&http(&policy).routes[0].rules[0].backends)[0].0,
            expected,
            "{case}"
        );
    }
}

#[test]
fn egress_networks_are_chosen() {
    let net = |name: &str, namespace: &str, cidrs: Value| {
        with(
            egress(name, json!({"networks": cidrs})),
            &[("/metadata/namespace", json!(namespace))],
        )
    };
    let all = || json!([{"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}]);
    let cases: Vec<(&str, Vec<Value>, &str)> = vec![
        ("none", vec![], "egress-fallback"),
        (
            "own",
            vec![net("a", "client", all())],
            "EgressNetwork/client/a:443",
        ),
        (
            "global",
            vec![net("a", "linkerd-egress", all())],
            "EgressNetwork/linkerd-egress/a:443",
        ),
        (
            "somebody else's",
            vec![net("a", "shop", all())],
            "egress-fallback",
        ),
        (
            "own before global",
            vec![
                net("a", "client", all()),
                net("b", "linkerd-egress", json!([{"cidr": "1.1.1.1"}])),
            ],
            "EgressNetwork/client/a:443",
        ),
        (
            "any network of one's own hides the global ones",
            vec![
                net("a", "client", json!([{"cidr": "2.2.2.2"}])),
                net("b", "linkerd-egress", all()),
            ],
            "egress-fallback",
        ),
        (
            "tightest",
            vec![
                net("a", "client", all()),
                net("b", "client", json!([{"cidr": "1.1.0.0/16"}])),
            ],
            "EgressNetwork/client/b:443",
        ),
        (
            "tightest, though it has an exception",
            vec![
                net("a", "client", all()),
                net(
                    "b",
                    "client",
                    json!([{"cidr": "1.1.0.0/16", "except": ["1.1.2.0/24"]}]),
                ),
            ],
            "EgressNetwork/client/b:443",
        ),
        (
            "excepted",
            vec![net(
                "b",
                "client",
                json!([{"cidr": "1.1.0.0/16", "except": ["1.1.1.0/24"]}]),
            )],
            "egress-fallback",
        ),
        (
            "oldest",
            vec![
                created(net("a", "client", all()), "2025-02-01T00:00:00Z"),
                net("b", "client", all()),
            ],
            "EgressNetwork/client/b:443",
        ),
        (
            "by name",
            vec![net("b", "client", all()), net("a", "client", all())],
            "EgressNetwork/client/a:443",
        ),
    ];
    for (case, objects, expected) in cases {
        let policy = World::new(objects)
            .outbound("client", OUTSIDE)
            .expect("found");
        assert_eq!(named(&policy.origin), expected, "{case}");
    }
}

#[test]
fn lookups_are_made_again_when_networks_change() {
    let global = with(
        egress("out", json!({})),
        &[("/metadata/namespace", json!("linkerd-egress"))],
    );
    let other = with(
        egress("out", json!({})),
        &[("/metadata/namespace", json!("other"))],
    );
    let mut world = World::new([service("web", "10.1.0.1")]);
    let outside = || Lookup::Addr(OUTSIDE.parse().expect("addr"));
    let fallback = world
        .index
        .watch_outbound("client", outside())
        .expect("found");
    let web = world
        .index
        .watch_outbound("client", Lookup::Addr(WEB.parse().expect("addr")))
        .expect("found");
    world.apply(&other);
    assert!(fallback.has_changed().is_err(), "every fallback ends");
    let fallback = world
        .index
        .watch_outbound("client", outside())
        .expect("found");
    world.apply(&global);
    assert!(fallback.has_changed().is_err());
    let network = world
        .index
        .watch_outbound("client", outside())
        .expect("found");
    assert_eq!(
        named(&network.borrow().origin),
        "EgressNetwork/linkerd-egress/out:443"
    );
    world.apply(&with(
        global.clone(),
        &[("/status", json!({"conditions": []}))],
    ));
    world.apply(&with(other, &[("/spec/trafficPolicy", json!("Deny"))]));
    assert!(
        !network
            .has_changed()
            .expect("a status, or somebody else's network, changes nothing")
    );
    world.delete(&global);
    assert!(network.has_changed().is_err());
    assert!(web.has_changed().is_ok(), "Services are not concerned");
}

#[test]
fn lookups_are_made_again_when_an_address_moves() {
    let mut world = World::new([service("web", "10.1.0.1")]);
    let by_addr = |world: &mut World, addr: &str| {
        world
            .index
            .watch_outbound("client", Lookup::Addr(addr.parse().expect("addr")))
    };
    let web = by_addr(&mut world, WEB).expect("found");
    let undefined = by_addr(&mut world, "10.1.0.1:9999").expect("found");
    world.apply(&with(
        service("web", "10.1.0.1"),
        &[("/spec/ports", json!([{"port": 80}, {"port": 9999}]))],
    ));
    assert!(undefined.has_changed().is_err(), "the port exists now");
    assert!(web.has_changed().is_ok());
    world.apply(&service("web", "10.1.0.2"));
    assert!(web.has_changed().is_err(), "the Service moved");
    assert!(by_addr(&mut world, WEB).is_none());
}

#[test]
fn conflicts_are_decided_by_kind() {
    let kinds = ["GRPCRoute", "HTTPRoute", "TLSRoute", "TCPRoute"];
    for (rank, kind) in kinds.iter().enumerate() {
        for (other_rank, other) in kinds.iter().enumerate() {
            if rank == other_rank {
                continue;
            }
            let world = World::new([
                service("web", "10.1.0.1"),
                route(kind, "mine", to_service("web"), json!([{}])),
                route(other, "other", to_service("web"), json!([{}])),
            ]);
            let used = routes(&ready(&world)) == [format!("{kind}/shop/mine")];
            assert_eq!(used, rank < other_rank, "{kind} against {other}");
        }
    }
}

#[test]
fn only_services_with_an_address_take_routes() {
    let external = object(
        "v1",
        "Service",
        "web",
        json!({"type": "ExternalName", "ports": [{"port": 80}]}),
    );
    let headless = with(
        service("web", "None"),
        &[("/spec/clusterIPs", json!(["None"]))],
    );
    for (case, parent) in [("external name", external), ("headless", headless)] {
        let world = World::new([
            parent,
            route("HTTPRoute", "r", to_service("web"), json!([{}])),
        ]);
        let lookup = Lookup::Service {
            namespace: "shop".into(),
            name: "web".into(),
            port: 80,
        };
        let policy = world
            .index
            .outbound_policy("client", &lookup)
            .expect("found");
        assert_eq!(routes(&policy), ["http"], "{case}");
    }
}
