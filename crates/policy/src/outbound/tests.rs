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

mod egress;
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

/// Spec 5.11: a group goes with its kinds.
#[test]
fn groups_of_parents() {
    let outside = |parent: Value| {
        let world = World::new([
            egress("out", json!({})),
            route("HTTPRoute", "r", parent, json!([{}])),
        ]);
        routes(&world.outbound("shop", OUTSIDE).expect("found"))
    };
    let to = |group: Value, kind: &str, name: &str| json!({"group": group, "kind": kind, "name": name, "port": 443});
    let used = ["HTTPRoute/shop/r", "http-egress-allow"].as_slice();
    for (case, group, expected) in [
        ("EgressNetwork", json!("policy.linkerd.io"), used),
        (
            "EgressNetwork with the core group",
            json!("core"),
            &used[1..],
        ),
        ("EgressNetwork with no group", Value::Null, &used[1..]),
        (
            "EgressNetwork with another group",
            json!("gateway.networking.k8s.io"),
            &used[1..],
        ),
    ] {
        assert_eq!(
            outside(to(group, "EgressNetwork", "out")),
            expected,
            "{case}"
        );
    }
    for (case, group, used) in [
        ("Server", json!("policy.linkerd.io"), true),
        ("Server with the core group", json!("core"), false),
        ("Server with no group", Value::Null, false),
    ] {
        let parent = json!({"group": group, "kind": "Server", "name": "s"});
        let world = World::new([
            pod("web"),
            server("s", json!({})),
            route("HTTPRoute", "r", parent, json!([{}])),
        ]);
        let found = format!("{:?}", world.inbound("web", 80).protocol);
        assert_eq!(found.contains(r#"name: "r""#), used, "{case}: {found}");
    }
    for (case, group) in [
        ("Service with the policy group", json!("policy.linkerd.io")),
        ("Service with another group", json!("x.io")),
    ] {
        let parent = with(to_service("web"), &[("/group", group)]);
        let world = World::new([
            service("web", "10.1.0.1"),
            route("HTTPRoute", "r", parent, json!([{}])),
        ]);
        assert_eq!(routes(&ready(&world)), ["http"], "{case}");
    }
}

/// Spec 5.11: a client's namespace may say what happens to its own traffic through the network
/// everybody has.
#[test]
fn consumer_routes_on_the_global_egress_network() {
    let global = with(
        egress("out", json!({})),
        &[("/metadata/namespace", json!("linkerd-egress"))],
    );
    let parent = json!({
        "group": "policy.linkerd.io", "kind": "EgressNetwork",
        "name": "out", "namespace": "linkerd-egress", "port": 443,
    });
    let consumer = with(
        route("HTTPRoute", "mine", parent.clone(), json!([{}])),
        &[("/metadata/namespace", json!("client"))],
    );
    let producer = with(
        route("HTTPRoute", "theirs", parent, json!([{}])),
        &[("/metadata/namespace", json!("linkerd-egress"))],
    );
    let world = World::new([global, consumer, producer]);
    let theirs = ["HTTPRoute/linkerd-egress/theirs", "http-egress-allow"];
    for (client, expected) in [
        (
            "client",
            [["HTTPRoute/client/mine"].as_slice(), &theirs].concat(),
        ),
        ("stranger", theirs.to_vec()),
    ] {
        let policy = world.outbound(client, OUTSIDE).expect("found");
        assert_eq!(
            named(&policy.origin),
            "EgressNetwork/linkerd-egress/out:443"
        );
        assert_eq!(routes(&policy), expected, "{client}");
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
