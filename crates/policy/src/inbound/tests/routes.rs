//! Routes on Servers, probes and rate limits.

use super::*;

#[test]
fn routes_attach_to_servers() {
    let any = || json!([{}]);
    let two_parents = |one: Value, other: Value| {
        with(
            route("HTTPRoute", "r", one.clone(), any()),
            &[("/spec/parentRefs", json!([one, other]))],
        )
    };
    let cases: Vec<(&str, Vec<Value>, Vec<&str>)> = vec![
        ("none", vec![], vec!["default"]),
        (
            "gateway",
            vec![route("HTTPRoute", "r", to_server("s"), any())],
            vec!["r"],
        ),
        (
            "policy",
            vec![route("policy", "r", to_server("s"), any())],
            vec!["r"],
        ),
        (
            "another server",
            vec![route("HTTPRoute", "r", to_server("t"), any())],
            vec!["default"],
        ),
        (
            "gRPC route",
            vec![route("GRPCRoute", "r", to_server("s"), any())],
            vec!["default"],
        ),
        (
            "with port",
            vec![route(
                "HTTPRoute",
                "r",
                with(to_server("s"), &[("/port", json!(80))]),
                any(),
            )],
            vec!["default"],
        ),
        (
            "with section",
            vec![route(
                "HTTPRoute",
                "r",
                with(to_server("s"), &[("/sectionName", json!("x"))]),
                any(),
            )],
            vec!["default"],
        ),
        (
            "other namespace",
            vec![with(
                route(
                    "HTTPRoute",
                    "r",
                    with(to_server("s"), &[("/namespace", json!("shop"))]),
                    any(),
                ),
                &[("/metadata/namespace", json!("other"))],
            )],
            vec!["default"],
        ),
        (
            "in order of age, then name, then group",
            vec![
                created(
                    route("HTTPRoute", "c", to_server("s"), any()),
                    "2025-01-02T00:00:00Z",
                ),
                created(
                    route("HTTPRoute", "d", to_server("s"), any()),
                    "2025-01-01T00:00:00Z",
                ),
                created(
                    route("policy", "b", to_server("s"), any()),
                    "2025-01-02T00:00:00Z",
                ),
                with(
                    route("policy", "a", to_server("s"), any()),
                    &[("/metadata/creationTimestamp", Value::Null)],
                ),
            ],
            vec!["d", "b", "c", "a"],
        ),
        (
            "same age and name: by group",
            vec![
                route("policy", "r", to_server("s"), any()),
                route("HTTPRoute", "r", to_server("s"), any()),
                route("policy", "q", to_server("s"), any()),
            ],
            vec!["q", "r", "r"],
        ),
        (
            "two Server parents",
            vec![two_parents(to_server("s"), to_server("t"))],
            vec!["r"],
        ),
        (
            "two Server parents, the other not there",
            vec![two_parents(to_server("s"), to_server("nobody"))],
            vec!["r"],
        ),
        (
            "two Server parents, the other for a port: ignored as a whole",
            vec![two_parents(
                to_server("s"),
                with(to_server("t"), &[("/port", json!(80))]),
            )],
            vec!["default"],
        ),
        (
            "two Server parents, the other of another namespace: ignored as a whole",
            vec![two_parents(
                to_server("s"),
                with(to_server("s"), &[("/namespace", json!("other"))]),
            )],
            vec!["default"],
        ),
        (
            "a Service beside the Server, bad annotation: no matter here",
            vec![with(
                two_parents(
                    to_server("s"),
                    json!({"group": "core", "kind": "Service", "name": "web", "port": 80}),
                ),
                &[(
                    "/metadata/annotations",
                    json!({"retry.linkerd.io/http": "nope"}),
                )],
            )],
            vec!["r"],
        ),
        (
            "conflict with a gRPC route",
            vec![
                route("HTTPRoute", "r", to_server("s"), any()),
                route("policy", "p", to_server("s"), any()),
                route("GRPCRoute", "g", to_server("s"), any()),
            ],
            vec!["default"],
        ),
        (
            "no conflict with a gRPC route of another Server",
            vec![
                route("HTTPRoute", "r", to_server("s"), any()),
                route("GRPCRoute", "g", to_server("t"), any()),
            ],
            vec!["r"],
        ),
        (
            "no conflict with a gRPC route of another namespace",
            vec![
                route("HTTPRoute", "r", to_server("s"), any()),
                with(
                    route(
                        "GRPCRoute",
                        "g",
                        with(to_server("s"), &[("/namespace", json!("shop"))]),
                        any(),
                    ),
                    &[("/metadata/namespace", json!("other"))],
                ),
            ],
            vec!["r"],
        ),
        (
            "nothing of it supported",
            vec![route(
                "HTTPRoute",
                "r",
                to_server("s"),
                json!([{"filters": [{"type": "URLRewrite"}]}]),
            )],
            vec!["default"],
        ),
    ];
    for (case, routes, expected) in cases {
        let servers = [server("s", json!({})), server("t", json!({"port": 81}))];
        let objects = [pod("web")].into_iter().chain(servers).chain(routes);
        let world = World::new(objects);
        assert_eq!(route_names(&world.inbound("web", 80)), expected, "{case}");
    }
}

/// Spec 5.6: group decides between routes of one age and name.
#[test]
fn routes_of_one_age_and_name() {
    let world = World::new([
        pod("web"),
        server("s", json!({})),
        route("policy", "r", to_server("s"), json!([{}])),
        route("HTTPRoute", "r", to_server("s"), json!([{}])),
    ]);
    let found = world.inbound("web", 80);
    let groups = http(&found).routes.iter().map(|route| match &route.origin {
        Origin::Resource(resource) => resource.group.clone(),
        Origin::Default(name) => (*name).to_owned(),
    });
    assert_eq!(
        groups.collect::<Vec<_>>(),
        ["gateway.networking.k8s.io", "policy.linkerd.io"]
    );
}

/// A watch sees a route go when one of a higher kind comes, and return when that goes.
#[test]
fn a_conflict_comes_and_goes() {
    let rival = route("GRPCRoute", "g", to_server("s"), json!([{}]));
    let mut world = World::new([
        pod("web"),
        server("s", json!({})),
        route("HTTPRoute", "r", to_server("s"), json!([{}])),
    ]);
    let mut watch = world
        .index
        .watch_inbound(WorkloadId::pod("shop", "web"), 80)
        .expect("known");
    assert_eq!(route_names(&watch.borrow_and_update()), ["r"]);
    world.apply(&rival);
    assert_eq!(route_names(&watch.borrow_and_update()), ["default"]);
    world.delete(&rival);
    assert_eq!(route_names(&watch.borrow_and_update()), ["r"]);
}

#[test]
fn rules_of_routes() {
    let rules = json!([
        {
            "matches": [{"path": {"type": "Exact", "value": "/a"}, "method": "GET"}],
            "filters": [
                {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a", "value": "b"}]}},
                {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["c"]}},
            ],
        },
        {"matches": [{"path": {"value": "/b"}}], "filters": [{"type": "ExtensionRef"}]},
        {},
    ]);
    let mut attached = route("HTTPRoute", "r", to_server("s"), rules);
    attached["spec"]["hostnames"] = json!(["*.x.y", "z"]);
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"});
    let world = World::new([
        pod("web"),
        server("s", json!({})),
        attached,
        authorization_policy(target, json!([])),
    ]);
    let found = world.inbound("web", 80);
    assert_eq!(
        authz(&found),
        Vec::<String>::new(),
        "the route's authorization is not the Server's"
    );
    let [route] = http(&found).routes.as_slice() else {
        panic!("one route")
    };
    assert_eq!(route.hosts.len(), 2);
    assert_eq!(route.authorizations.len(), 1);
    let [first, second, third] = route.rules.as_slice() else {
        panic!("three rules")
    };
    assert_eq!(
        first.filters.len(),
        1,
        "response headers cannot be changed here"
    );
    assert_eq!(
        second.filters,
        [HttpFilter::Fail {
            status: 500,
            message: "unsupported filter: ExtensionRef".into()
        }]
    );
    assert_eq!(third.matches, [HttpMatch::any()]);
}

#[test]
fn grpc_routes_are_for_grpc_servers() {
    let rules = json!([{"matches": [{"method": {"service": "a.B", "method": "C"}}]}, {"matches": [{"method": {"type": "RegularExpression", "service": "x"}}]}]);
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "GRPCRoute", "name": "r"});
    let world = World::new([
        pod("web"),
        server("s", json!({"proxyProtocol": "gRPC"})),
        route("GRPCRoute", "r", to_server("s"), rules),
        authorization_policy(target, json!([])),
    ]);
    let Protocol::Grpc { routes } = world.inbound("web", 80).protocol else {
        panic!("gRPC")
    };
    assert_eq!(routes.len(), 1);
    assert_eq!(routes[0].authorizations.len(), 1);
    assert_eq!(
        routes[0].rules.len(),
        1,
        "a rule whose match cannot be read matches nothing"
    );
    assert_eq!(
        routes[0].rules[0].matches[0].service.as_deref(),
        Some("a.B")
    );

    let grpc_routes = |objects: Vec<Value>| {
        let servers = [pod("web"), server("s", json!({"proxyProtocol": "gRPC"}))];
        let world = World::new(servers.into_iter().chain(objects));
        match world.inbound("web", 80).protocol {
            Protocol::Grpc { routes } => routes,
            other => panic!("gRPC: {other:?}"),
        }
    };
    let http = route("HTTPRoute", "h", to_server("s"), json!([{}]));
    assert_eq!(
        grpc_routes(vec![http]),
        [default_route(vec![GrpcMatch::default()])],
        "an HTTPRoute on a gRPC Server: default grpc route"
    );
    let filters = json!([{"filters": [
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["a"]}},
        {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["b"]}},
    ]}]);
    let routes = grpc_routes(vec![route("GRPCRoute", "g", to_server("s"), filters)]);
    let [GrpcFilter::RequestHeaders(kept)] = routes[0].rules[0].filters.as_slice() else {
        panic!("the request's headers, not the response's: {routes:?}")
    };
    assert_eq!(kept.remove, ["b"]);
}

#[test]
fn probes_are_allowed_until_a_route_attaches() {
    let probe = |path: &str, port: Value| json!({"httpGet": {"path": path, "port": port}});
    let probed = with(
        pod("web"),
        &[
            (
                "/spec/containers/0/livenessProbe",
                probe("/live?x=1", json!(80)),
            ),
            (
                "/spec/containers/0/readinessProbe",
                probe("/ready", json!("http")),
            ),
            (
                "/spec/containers/0/startupProbe",
                json!({"httpGet": {"port": 81}}),
            ),
            (
                "/spec/initContainers",
                json!([{"name": "side", "livenessProbe": {"httpGet": {"path": "/side", "port": 80}}}]),
            ),
        ],
    );
    let mut open = cluster();
    open.probe_networks = vec!["0.0.0.0/0".parse().expect("net")];
    let paths = |server: &Server| -> Vec<String> {
        let probe = http(server)
            .routes
            .iter()
            .find(|route| route.origin == Origin::Default("probe"));
        let matches = probe.into_iter().flat_map(|route| &route.rules[0].matches);
        matches
            .map(|matched| {
                format!(
                    "{} {:?}",
                    matched.method.as_deref().unwrap_or_default(),
                    matched.path
                )
            })
            .collect()
    };
    let exact = |path: &str| format!("GET Some(Exact({path:?}))");
    let world = World::in_cluster(open.clone(), [probed.clone()]);
    assert_eq!(
        paths(&world.inbound("web", 80)),
        ["/live", "/ready", "/side"].map(exact)
    );
    assert_eq!(paths(&world.inbound("web", 81)), [exact("/")]);
    assert_eq!(route_names(&world.inbound("web", 80)), ["default", "probe"]);
    assert_eq!(route_names(&world.inbound("web", 82)), ["default"]);
    let found = world.inbound("web", 80);
    let allowed = &http(&found).routes[1].authorizations;
    assert_eq!(allowed[0].origin, Origin::Default("probe"));
    assert_eq!(allowed[0].authentication, Authentication::Unauthenticated);

    for (case, probe, expected) in [
        (
            "a name of another container: none",
            probe("/x", json!("elsewhere")),
            None,
        ),
        ("empty path", probe("", json!(80)), Some("/")),
        ("a query alone", probe("?x=1", json!(80)), Some("/")),
        ("a UDP port has no HTTP", probe("/x", json!("dns")), None),
    ] {
        let containers = json!([
            {"name": "app", "livenessProbe": probe,
             "ports": [{"containerPort": 80, "name": "dns", "protocol": "UDP"}]},
            {"name": "more", "ports": [{"containerPort": 80, "name": "elsewhere"}]},
        ]);
        let spec = with(pod("web"), &[("/spec/containers", containers)]);
        let world = World::in_cluster(open.clone(), [spec]);
        let expected: Vec<_> = expected.map(exact).into_iter().collect();
        assert_eq!(paths(&world.inbound("web", 80)), expected, "{case}");
    }
    for protocol in ["HTTP/1", "HTTP/2", "unknown"] {
        let spoken = server("s", json!({"proxyProtocol": protocol}));
        let world = World::in_cluster(open.clone(), [probed.clone(), spoken]);
        assert_eq!(
            route_names(&world.inbound("web", 80)),
            ["default", "probe"],
            "a Server that speaks {protocol}"
        );
    }

    let mut world = World::in_cluster(open, [probed.clone(), server("s", json!({}))]);
    assert_eq!(route_names(&world.inbound("web", 80)), ["default", "probe"]);
    world.apply(&route("HTTPRoute", "r", to_server("s"), json!([{}])));
    assert_eq!(route_names(&world.inbound("web", 80)), ["r"]);
    let world = World::new([probed]);
    assert_eq!(
        route_names(&world.inbound("web", 80)),
        ["default"],
        "no probe networks"
    );
}

fn rate(name: &str, server: &str) -> Value {
    object(
        "policy.linkerd.io/v1alpha1",
        "HTTPLocalRateLimitPolicy",
        name,
        json!({
            "targetRef": {"group": "policy.linkerd.io", "kind": "Server", "name": server},
            "total": {"requestsPerSecond": 100},
            "identity": {"requestsPerSecond": 20},
            "overrides": [{"requestsPerSecond": 50, "clientRefs": [{"kind": "ServiceAccount", "name": "x"}, {"kind": "ServiceAccount", "name": "y", "namespace": "z"}]}],
        }),
    )
}

#[test]
fn rate_limits() {
    for (protocol, limited) in [("unknown", true), ("HTTP/1", true), ("HTTP/2", true)] {
        let world = World::new([
            pod("web"),
            server("s", json!({"proxyProtocol": protocol})),
            rate("r", "s"),
        ]);
        assert_eq!(
            http(&world.inbound("web", 80)).rate_limit.is_some(),
            limited,
            "{protocol}"
        );
    }
    let world = World::new([
        pod("web"),
        server("s", json!({})),
        created(rate("a", "s"), "2025-02-01T00:00:00Z"),
        rate("b", "s"),
        rate("c", "other"),
    ]);
    let found = world.inbound("web", 80);
    let limit = http(&found).rate_limit.as_ref().expect("limited");
    assert_eq!(limit.origin, resource("HTTPLocalRateLimitPolicy", "b"));
    assert_eq!((limit.total, limit.identity), (Some(100), Some(20)));
    let clients = ["x.shop", "y.z"]
        .map(|id| format!("{id}.serviceaccount.identity.linkerd.cluster.local"))
        .to_vec();
    assert_eq!(
        limit.overrides,
        [RateOverride {
            requests_per_second: 50,
            clients
        }]
    );
    assert!(
        http(&world.inbound("web", 81)).rate_limit.is_none(),
        "no Server, no limit"
    );
    let world = World::new([
        pod("web"),
        server("s", json!({})),
        rate("b", "s"),
        rate("a", "s"),
    ]);
    let found = world.inbound("web", 80);
    let limit = http(&found).rate_limit.as_ref().expect("limited");
    let first = resource("HTTPLocalRateLimitPolicy", "a");
    assert_eq!(limit.origin, first, "same age: by name");
}

/// Relisting one HTTPRoute group must not clear the other's routes.
#[test]
fn groups_are_listed_apart() {
    let mut world = World::new([
        pod("web"),
        server("s", json!({})),
        route("HTTPRoute", "g", to_server("s"), json!([{}])),
        route("policy", "p", to_server("s"), json!([{}])),
    ]);
    world.reset(&route("policy", "p", json!({}), json!([])), &[]);
    assert_eq!(route_names(&world.inbound("web", 80)), ["g"]);
}
