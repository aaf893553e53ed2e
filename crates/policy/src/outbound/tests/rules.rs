//! Rules of routes: filters, time limits, retries, load.

use super::*;

#[test]
fn broken_rules_fail_alone() {
    let rules = json!([
        {"matches": [{"path": {"value": "/a"}}], "filters": [{"type": "URLRewrite", "urlRewrite": {}}]},
        {"matches": [{"path": {"value": "/b"}}], "retry": {"attempts": 3}},
        {"matches": [{"path": {"type": "Glob", "value": "/c"}}]},
        {"matches": [{"path": {"value": "/t"}}], "timeouts": {"request": "soon"}},
        {"matches": [{"path": {"value": "/d"}}]},
    ]);
    let policy = ready(&World::new([
        service("web", "10.1.0.1"),
        route("HTTPRoute", "r", to_service("web"), rules),
    ]));
    let [a, b, timeout, d] = only_route(&policy).rules.as_slice() else {
        panic!("four rules: {policy:?}")
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
    let [
        HttpFilter::Fail {
            status: 500,
            message,
        },
    ] = timeout.filters.as_slice()
    else {
        panic!("a bad rule timeout breaks that rule: {timeout:?}")
    };
    assert!(message.contains("request timeout"), "{message}");
    assert_eq!(timeout.backends, Distribution::Empty);
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

/// Spec 5.9: a GRPCRoute's own annotations, else the parent's, each as a whole.
#[test]
fn timeouts_and_retries_of_grpc_routes() {
    let secs = |secs| Some(Duration::from_secs(secs));
    let parent = json!({
        "timeout.linkerd.io/request": "9s", "timeout.linkerd.io/idle": "8s",
        "retry.linkerd.io/grpc": "unavailable", "retry.linkerd.io/limit": "9",
        "retry.linkerd.io/http": "5xx",
    });
    for (case, own, timeouts, (limit, internal, unavailable)) in [
        (
            "the parent's",
            json!({}),
            (secs(9), None, secs(8)),
            (9, false, true),
        ),
        (
            "own retries, the parent's timeouts",
            json!({"retry.linkerd.io/grpc": "internal"}),
            (secs(9), None, secs(8)),
            (1, true, false),
        ),
        (
            "own timeouts, the parent's retries",
            json!({"timeout.linkerd.io/response": "2s"}),
            (None, secs(2), None),
            (9, false, true),
        ),
        (
            "both its own",
            json!({"retry.linkerd.io/grpc": "internal,unavailable", "retry.linkerd.io/limit": "2", "timeout.linkerd.io/request": "1s"}),
            (secs(1), None, None),
            (2, true, true),
        ),
    ] {
        let world = World::new([
            with(
                service("web", "10.1.0.1"),
                &[("/metadata/annotations", parent.clone())],
            ),
            with(
                route("GRPCRoute", "r", to_service("web"), json!([{}])),
                &[("/metadata/annotations", own)],
            ),
        ]);
        let Protocol::Grpc { routes, .. } = ready(&world).protocol else {
            panic!("{case}: grpc")
        };
        let rule = &routes[0].rules[0];
        let found = (
            rule.timeouts.request,
            rule.timeouts.response,
            rule.timeouts.idle,
        );
        assert_eq!(found, timeouts, "{case}");
        let retry = rule.retry.as_ref().expect(case);
        let found = (
            retry.limit,
            retry.conditions.internal,
            retry.conditions.unavailable,
        );
        assert_eq!(found, (limit, internal, unavailable), "{case}");
    }
}

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

/// The parent as a backend is balanced as its annotations say unless the port is said to be
/// opaque; backends of connection routes never are.
#[test]
fn load_of_connection_routes() {
    let penalized = |extra: Value| {
        let service = with(
            service("web", "10.1.0.1"),
            &[(
                "/metadata/annotations",
                json!({"balancer.alpha.linkerd.io/penalize-failures": "true"}),
            )],
        );
        with(service, &[("/spec/ports/0/appProtocol", extra)])
    };
    let to_web = json!([{"backendRefs": [{"name": "web", "port": 80}]}]);
    for (case, kind, app, rules, expected) in [
        (
            "TLS, the parent",
            "TLSRoute",
            Value::Null,
            json!([{}]),
            true,
        ),
        (
            "TCP, the parent",
            "TCPRoute",
            Value::Null,
            json!([{}]),
            true,
        ),
        (
            "TCP, the parent, opaque",
            "TCPRoute",
            json!("linkerd.io/opaque"),
            json!([{}]),
            false,
        ),
        ("TLS, named", "TLSRoute", Value::Null, to_web.clone(), false),
        ("TCP, named", "TCPRoute", Value::Null, to_web.clone(), false),
    ] {
        let world = World::new([penalized(app), route(kind, "r", to_service("web"), rules)]);
        let (Protocol::Tls(routes) | Protocol::Opaque(routes)) = ready(&world).protocol else {
            panic!("{case}")
        };
        let found = backends(&routes[0].rules[0].backends);
        let Dispatch::Balance { load, .. } = &found[0].2.backend.dispatch else {
            panic!("{case}")
        };
        let penalty = matches!(load, Load::PenaltyPeakEwma { .. });
        assert_eq!(penalty, expected, "{case}");
    }
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
