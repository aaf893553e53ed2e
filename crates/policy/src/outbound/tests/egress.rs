//! Addresses outside the cluster, and lookups that have to be made again.

use super::*;

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
    let policy = World::new([at("Allow")])
        .outbound("shop", "1.1.1.1:3306")
        .expect("found");
    assert_eq!(
        (kind(&policy), routes(&policy)),
        ("opaque", vec!["tcp-egress-allow".to_owned()]),
        "the default list makes an egress port opaque"
    );
    let Protocol::Opaque(opaque) = &policy.protocol else {
        panic!("opaque")
    };
    assert_eq!(opaque[0].rules[0].filters, [], "allowed");
    assert_eq!(backends(&opaque[0].rules[0].backends)[0].0, "1.1.1.1:3306");
    let annotated = with(
        at("Allow"),
        &[(
            "/metadata/annotations",
            json!({"config.linkerd.io/opaque-ports": "443"}),
        )],
    );
    let policy = World::new([annotated]).outbound("shop", "1.1.1.1:3306");
    let replaced = kind(&policy.expect("found"));
    assert_eq!(replaced, "detect", "the annotation replaces the list");
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

/// Spec 5.9: how each protocol says no, and that it says nothing where it may go on.
#[test]
fn denials_of_egress_networks() {
    let to_egress =
        json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 443});
    for (policy, denied) in [("Deny", true), ("Allow", false)] {
        let default_of = |kind: &str| {
            let world = World::new([
                egress("out", json!({"trafficPolicy": policy})),
                route(kind, "r", to_egress.clone(), json!([{}])),
            ]);
            world.outbound("shop", OUTSIDE).expect("found").protocol
        };
        let Protocol::Grpc { routes, .. } = default_of("GRPCRoute") else {
            panic!("grpc")
        };
        let refusal = GrpcFilter::Fail {
            code: 7,
            message: "traffic not allowed".into(),
        };
        let expected = Vec::from_iter(denied.then_some(refusal));
        let last = &routes.last().expect("a default").rules[0];
        assert_eq!(last.filters, expected, "grpc, {policy}");
        assert_eq!(backends(&last.backends)[0].0, OUTSIDE, "grpc, {policy}");

        let Protocol::Tls(routes) = default_of("TLSRoute") else {
            panic!("tls")
        };
        let expected = Vec::from_iter(denied.then_some(ConnectionFilter::Forbidden));
        let last = &routes.last().expect("a default").rules[0];
        assert_eq!(last.filters, expected, "tls, {policy}");
        assert_eq!(backends(&last.backends)[0].0, OUTSIDE, "tls, {policy}");

        let Protocol::Opaque(routes) = default_of("TCPRoute") else {
            panic!("tcp")
        };
        assert_eq!(
            routes.len(),
            1,
            "tcp, {policy}: a route has no default beside it"
        );
    }
}

/// Spec 5.9 and 5.10: what the annotations of an EgressNetwork do.
#[test]
fn annotations_of_egress_networks() {
    let annotated = with(
        egress("out", json!({})),
        &[(
            "/metadata/annotations",
            json!({
                "balancer.linkerd.io/failure-accrual": "consecutive",
                "balancer.alpha.linkerd.io/penalize-failures": "true",
                "retry.linkerd.io/http": "5xx",
                "retry.linkerd.io/grpc": "unavailable",
                "retry.linkerd.io/limit": "3",
                "timeout.linkerd.io/request": "9s",
            }),
        )],
    );
    let mut open = cluster();
    open.allow_l5d_request_headers = true;
    let to_egress =
        json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 443});
    let limit = Some(Duration::from_secs(9));

    let world = World::in_cluster(
        open.clone(),
        [
            annotated.clone(),
            route("HTTPRoute", "r", to_egress.clone(), json!([{}])),
        ],
    );
    let policy = world.outbound("shop", OUTSIDE).expect("found");
    assert!(
        matches!(
            http(&policy).accrual,
            Some(FailureAccrual::Consecutive { .. })
        ),
        "accrual"
    );
    let [own, default] = http(&policy).routes.as_slice() else {
        panic!("a route and the default: {policy:?}")
    };
    for (case, rule, headers) in [
        ("on a route", &own.rules[0], true),
        (
            "l5d headers: false on default routes",
            &default.rules[0],
            false,
        ),
    ] {
        assert_eq!(rule.timeouts.request, limit, "{case}");
        let retries = rule.retry.as_ref().map(|retry| retry.limit);
        assert_eq!(retries, Some(3), "{case}");
        assert_eq!(rule.allow_l5d_request_headers, headers, "{case}");
        let reached = &backends(&rule.backends)[0].2.backend.dispatch;
        assert!(
            matches!(reached, Dispatch::Forward(_)),
            "{case}: penalize-failures has no effect, nothing is balanced"
        );
    }

    let world = World::in_cluster(
        open,
        [annotated, route("GRPCRoute", "r", to_egress, json!([{}]))],
    );
    let policy = world.outbound("shop", OUTSIDE).expect("found");
    let Protocol::Grpc { routes, accrual } = &policy.protocol else {
        panic!("grpc")
    };
    assert!(accrual.is_some(), "grpc: accrual");
    let default = &routes.last().expect("a default").rules[0];
    assert_eq!(default.timeouts.request, limit, "grpc");
    let retry = default.retry.as_ref().expect("retries");
    assert_eq!(
        (retry.limit, retry.conditions.unavailable),
        (3, true),
        "grpc"
    );
    assert!(!default.allow_l5d_request_headers, "grpc");
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

/// What a proxy is told about a backend outside the cluster that cannot be used, for every kind of
/// route.
#[test]
fn egress_backend_messages() {
    let to_egress =
        json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": "out", "port": 443});
    let other = "Route with EgressNetwork backend needs to have the same EgressNetwork as a parent";
    let not_here = "EgressNetwork backends attach to EgressNetwork parents only";
    for (case, parent, name, expected) in [
        ("the parent", to_egress.clone(), "out", None),
        ("another", to_egress.clone(), "more", Some(other)),
        (
            "missing",
            to_egress,
            "gone",
            Some("EgressNetwork not found gone"),
        ),
        ("under a Service", to_service("web"), "out", Some(not_here)),
    ] {
        let under_service = case == "under a Service";
        for kind in ["HTTPRoute", "policy", "GRPCRoute", "TLSRoute", "TCPRoute"] {
            let backend = json!({"group": "policy.linkerd.io", "kind": "EgressNetwork", "name": name, "weight": 7});
            let rules = json!([{"backendRefs": [backend]}]);
            let world = World::new([
                service("web", "10.1.0.1"),
                egress("out", json!({})),
                egress("more", json!({"networks": [{"cidr": "2.2.2.2"}]})),
                route(kind, "r", parent.clone(), rules),
            ]);
            let addr = if under_service { WEB } else { OUTSIDE };
            let policy = world.outbound("shop", addr).expect("found");
            let (to, weight, message) = match &policy.protocol {
                Protocol::Grpc { routes, .. } => {
                    let found = backends(&routes[0].rules[0].backends).remove(0);
                    let message = found.2.filters.first().map(|filter| match filter {
                        GrpcFilter::Fail { code: 500, message } => message.clone(),
                        other => panic!("{case} {kind}: {other:?}"),
                    });
                    (found.0, found.1, message)
                }
                Protocol::Tls(routes) | Protocol::Opaque(routes) => {
                    let found = backends(&routes[0].rules[0].backends).remove(0);
                    let message = found.2.filters.first().map(|filter| match filter {
                        ConnectionFilter::Invalid(message) => message.clone(),
                        other => panic!("{case} {kind}: {other:?}"),
                    });
                    (found.0, found.1, message)
                }
                _ => {
                    let routes = &http(&policy).routes;
                    let found = backends(&routes[0].rules[0].backends).remove(0);
                    let message = found.2.filters.first().map(|filter| match filter {
                        HttpFilter::Fail {
                            status: 500,
                            message,
                        } => message.clone(),
                        other => panic!("{case} {kind}: {other:?}"),
                    });
                    (found.0, found.1, message)
                }
            };
            assert_eq!(weight, Some(7), "{case} {kind}");
            assert_eq!(message.as_deref(), expected, "{case} {kind}");
            let reached = if expected.is_none() { OUTSIDE } else { "none" };
            assert_eq!(to, reached, "{case} {kind}");
        }
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

    let wide = || net("a", "client", json!([{"cidr": "2001:db8::/32"}]));
    let default = with(
        egress("b", json!({})),
        &[("/metadata/namespace", json!("client"))],
    );
    let cases: Vec<(&str, Vec<Value>, &str)> = vec![
        (
            "IPv6: tightest",
            vec![
                wide(),
                net("b", "client", json!([{"cidr": "2001:db8:1::/48"}])),
            ],
            "EgressNetwork/client/b:443",
        ),
        (
            "IPv6: tightest, whatever IPv4 it has beside",
            vec![
                wide(),
                net(
                    "b",
                    "client",
                    json!([{"cidr": "::/0", "except": ["fd00::/8"]}, {"cidr": "1.1.1.1/32"}]),
                ),
            ],
            "EgressNetwork/client/a:443",
        ),
        (
            "IPv6 outside, default networks",
            vec![default],
            "EgressNetwork/client/b:443",
        ),
        (
            "IPv6, a network of IPv4 alone",
            vec![net("a", "client", all())],
            "egress-fallback",
        ),
    ];
    for (case, objects, expected) in cases {
        let world = World::new(objects);
        let policy = world.outbound("client", "[2001:db8:1::1]:443");
        assert_eq!(named(&policy.expect("found").origin), expected, "{case}");
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
    let own = with(
        egress("mine", json!({"networks": [{"cidr": "2.2.2.2"}]})),
        &[("/metadata/namespace", json!("client"))],
    );
    world.apply(&own);
    assert!(
        network.has_changed().is_err(),
        "the first network of one's own ends a stream on the global one"
    );
    let fallback = world
        .index
        .watch_outbound("client", outside())
        .expect("found");
    assert_eq!(named(&fallback.borrow().origin), "egress-fallback");
    world.delete(&own);
    assert!(fallback.has_changed().is_err());
    let network = world
        .index
        .watch_outbound("client", outside())
        .expect("found");
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
