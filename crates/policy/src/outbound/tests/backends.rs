//! Backends of rules: what they are, what is said of those that cannot be used.

use super::*;

/// A backend: where, weight, filters.
type Shown = (&'static str, Option<u32>, Vec<HttpFilter>);

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
            "no name",
            json!([{"port": 80, "weight": 2}]),
            vec![("none", Some(2), invalid("backend reference without a name"))],
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
            "filters: ResponseHeaderModifier, RequestRedirect",
            json!([{"name": "db", "port": 80, "filters": [
                {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["y"]}},
                {"type": "RequestRedirect", "requestRedirect": {"hostname": "x"}},
            ]}]),
            vec![(
                "db.shop.svc.cluster.local:80",
                Some(1),
                vec![
                    HttpFilter::ResponseHeaders(linkerd_core::policy::HeaderModifier {
                        remove: vec!["y".into()],
                        ..Default::default()
                    }),
                    HttpFilter::Redirect(linkerd_core::policy::Redirect {
                        host: Some("x".into()),
                        ..Default::default()
                    }),
                ],
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

/// Spec 5.9: filters of a gRPC backend.
#[test]
fn filters_of_grpc_backends() {
    let modifier = |field: &str| json!({"type": field, "requestHeaderModifier": {"remove": ["x"]}, "responseHeaderModifier": {"remove": ["x"]}});
    let headers = || {
        GrpcFilter::RequestHeaders(linkerd_core::policy::HeaderModifier {
            remove: vec!["x".into()],
            ..Default::default()
        })
    };
    let invalid = GrpcFilter::Fail {
        code: 500,
        message: "unsupported backend filter: RequestMirror".into(),
    };
    let db = "db.shop.svc.cluster.local:80";
    for (case, filter, to, expected) in [
        (
            "RequestHeaderModifier",
            modifier("RequestHeaderModifier"),
            db,
            vec![headers()],
        ),
        (
            "ResponseHeaderModifier is dropped",
            modifier("ResponseHeaderModifier"),
            db,
            vec![],
        ),
        (
            "unsupported filter",
            json!({"type": "RequestMirror"}),
            "none",
            vec![invalid],
        ),
    ] {
        let rules = json!([{"backendRefs": [{"name": "db", "port": 80, "filters": [filter]}]}]);
        let world = World::new([
            service("web", "10.1.0.1"),
            service("db", "10.1.0.2"),
            route("GRPCRoute", "r", to_service("web"), rules),
        ]);
        let Protocol::Grpc { routes, .. } = ready(&world).protocol else {
            panic!("grpc")
        };
        let found = backends(&routes[0].rules[0].backends).remove(0);
        assert_eq!(
            (found.0.as_str(), found.2.filters),
            (to, expected),
            "{case}"
        );
    }
}

/// A backend that names no object in a way a proxy could report is nobody's; one that is only
/// missing keeps its name.
#[test]
fn names_of_invalid_backends() {
    let unsupported = json!([{"type": "RequestMirror"}]);
    for (case, backend, expected) in [
        ("no name", json!({"port": 80}), "invalid"),
        ("empty name", json!({"name": "", "port": 80}), "invalid"),
        ("no port", json!({"name": "db"}), "invalid"),
        (
            "unsupported filter",
            json!({"name": "db", "port": 80, "filters": unsupported}),
            "invalid",
        ),
        (
            "another kind",
            json!({"group": "x.io", "kind": "Bucket", "name": "b"}),
            "invalid",
        ),
        (
            "missing",
            json!({"name": "nope", "port": 80}),
            "Service/shop/nope:80",
        ),
        (
            "egress network under a service",
            json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 9}),
            "EgressNetwork/shop/out:9",
        ),
    ] {
        let world = World::new([
            service("web", "10.1.0.1"),
            service("db", "10.1.0.2"),
            route(
                "policy",
                "r",
                to_service("web"),
                json!([{"backendRefs": [backend]}]),
            ),
        ]);
        let policy = ready(&world);
        let found = backends(&only_route(&policy).rules[0].backends);
        assert_eq!(named(&found[0].2.backend.origin), expected, "{case}");
        assert_eq!(found[0].0, "none", "{case}");
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

/// What is deleted does not go on counting (ledger 17).
#[test]
fn nothing_of_a_deleted_parent_stays() {
    let annotated = with(
        service("web", "10.1.0.1"),
        &[(
            "/metadata/annotations",
            json!({"timeout.linkerd.io/request": "9s", "config.linkerd.io/opaque-ports": "80"}),
        )],
    );
    let mut world = World::new([annotated.clone()]);
    let by_name = Lookup::Service {
        namespace: "shop".into(),
        name: "web".into(),
        port: 80,
    };
    let mut watch = world
        .index
        .watch_outbound("client", by_name)
        .expect("found");
    assert_eq!(kind(&watch.borrow_and_update()), "opaque");
    world.delete(&annotated);
    let policy = watch.borrow_and_update().clone();
    assert_eq!(
        kind(&policy),
        "detect",
        "a deleted Service takes its annotations along"
    );
    assert_eq!(only_route(&policy).rules[0].timeouts.request, None);

    let more = egress("more", json!({"networks": [{"cidr": "2.2.2.2"}]}));
    let backend = json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "more"});
    let rules = json!([{"backendRefs": [backend]}]);
    let mut world = World::new([
        service("web", "10.1.0.1"),
        more.clone(),
        route("HTTPRoute", "r", to_service("web"), rules),
    ]);
    let mut watch = world
        .index
        .watch_outbound("client", Lookup::Addr(WEB.parse().expect("addr")))
        .expect("found");
    let message = |policy: &Policy| {
        let found = backends(&only_route(policy).rules[0].backends);
        match found[0].2.filters.as_slice() {
            [HttpFilter::Fail { message, .. }] => message.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        message(&watch.borrow_and_update()),
        "EgressNetwork backends attach to EgressNetwork parents only"
    );
    world.delete(&more);
    assert_eq!(
        message(&watch.borrow_and_update()),
        "EgressNetwork not found more",
        "a deleted EgressNetwork is no backend any more"
    );
}
