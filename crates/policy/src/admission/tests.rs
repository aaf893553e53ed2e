//! Every rule of admission: what passes, and what is refused with which words.

use super::*;
use linkerd_k8s::admission::Kind;
use proptest::prelude::*;
use serde_json::json;

fn review(group: &str, kind: &str, spec: Value, annotations: Value) -> Review {
    Review {
        uid: "u".to_owned(),
        kind: Kind {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: kind.to_owned(),
        },
        name: "x".to_owned(),
        namespace: "shop".to_owned(),
        operation: "CREATE".to_owned(),
        object: json!({"metadata": {"name": "x", "namespace": "shop", "annotations": annotations}, "spec": spec}),
        old_object: Value::Null,
        dry_run: None,
    }
}

/// Checks cases of one kind: a denial must contain the words, no words means allowed.
fn check(group: &str, kind: &str, cases: Vec<(&str, Value, &str)>) {
    for (case, spec, expected) in cases {
        let found = validate(&review(group, kind, spec, json!({})))
            .err()
            .unwrap_or_default();
        assert!(
            found.contains(expected) && found.is_empty() == expected.is_empty(),
            "{kind}, {case}: {found:?}"
        );
    }
}

#[test]
fn authorization_policies() {
    let policy = |refs: Value| json!({"targetRef": {"group": POLICY_GROUP, "kind": "Server", "name": "s"}, "requiredAuthenticationRefs": refs});
    let target = |target: Value| json!({"targetRef": target, "requiredAuthenticationRefs": []});
    let mesh = || json!({"group": POLICY_GROUP, "kind": "MeshTLSAuthentication", "name": "m"});
    let network = || json!({"group": POLICY_GROUP, "kind": "NetworkAuthentication", "name": "n"});
    let account = || json!({"kind": "ServiceAccount", "name": "a"});
    check(
        POLICY_GROUP,
        "AuthorizationPolicy",
        vec![
            ("nobody asked", policy(json!([])), ""),
            ("mesh and network", policy(json!([mesh(), network()])), ""),
            (
                "account and network",
                policy(json!([account(), network()])),
                "",
            ),
            (
                "own namespace",
                target(json!({"kind": "Namespace", "name": "shop"})),
                "",
            ),
            (
                "route",
                target(json!({"group": POLICY_GROUP, "kind": "HTTPRoute", "name": "r"})),
                "",
            ),
            (
                "gateway route",
                target(json!({"group": GATEWAY_GROUP, "kind": "HTTPRoute", "name": "r"})),
                "",
            ),
            (
                "grpc route",
                target(json!({"group": GATEWAY_GROUP, "kind": "GRPCRoute", "name": "r"})),
                "",
            ),
            (
                "case",
                target(json!({"group": "Policy.Linkerd.io", "kind": "server", "name": "r"})),
                "",
            ),
            (
                "another namespace",
                target(json!({"kind": "Namespace", "name": "other"})),
                "cannot target another namespace: other",
            ),
            (
                "a deployment",
                target(json!({"group": "apps", "kind": "Deployment", "name": "d"})),
                "unsupported target kind",
            ),
            (
                "two mesh",
                policy(json!([mesh(), mesh()])),
                "only a single MeshTLSAuthentication",
            ),
            (
                "two accounts",
                policy(json!([account(), account()])),
                "only a single ServiceAccount",
            ),
            (
                "mesh and account",
                policy(json!([mesh(), account()])),
                "may not be set together",
            ),
            (
                "two networks",
                policy(json!([network(), network()])),
                "only a single NetworkAuthentication",
            ),
            (
                "unknown",
                policy(json!([{"group": "foo.bar", "kind": "Baz", "name": "b"}])),
                "unsupported authentication kind(s): Baz.foo.bar",
            ),
            ("unreadable", json!({"targetRef": 1}), "invalid type"),
        ],
    );
}

#[test]
fn authentications() {
    check(
        POLICY_GROUP,
        "MeshTLSAuthentication",
        vec![
            (
                "names",
                json!({"identities": ["*", "a.b", "spiffe://td/x"]}),
                "",
            ),
            (
                "references",
                json!({"identityRefs": [{"kind": "ServiceAccount", "name": "a", "namespace": "b"}, {"kind": "Namespace", "name": "n"}]}),
                "",
            ),
            (
                "bad name",
                json!({"identities": ["a..b"]}),
                "neither a DNS name nor a SPIFFE ID",
            ),
            (
                "bad SPIFFE id",
                json!({"identities": ["spiffe://"]}),
                "not a valid SPIFFE ID",
            ),
            (
                "a pod",
                json!({"identityRefs": [{"kind": "Pod", "name": "a"}]}),
                "invalid identity target kind: Pod",
            ),
            (
                "account without name",
                json!({"identityRefs": [{"kind": "ServiceAccount"}]}),
                "identity_ref to a ServiceAccount has no name",
            ),
            (
                "namespace with an empty name",
                json!({"identityRefs": [{"kind": "Namespace", "name": ""}]}),
                "identity_ref to a Namespace has no name",
            ),
            (
                "namespace with namespace",
                json!({"identityRefs": [{"kind": "Namespace", "name": "a", "namespace": "b"}]}),
                "cannot have a namespace",
            ),
        ],
    );
    check(
        POLICY_GROUP,
        "NetworkAuthentication",
        vec![
            (
                "networks",
                json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}, {"cidr": "::1"}]}),
                "",
            ),
            (
                "none",
                json!({"networks": []}),
                "at least one network must be specified",
            ),
            (
                "equal exception",
                json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}]}),
                "completely negated",
            ),
            (
                "covering exception",
                json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["0.0.0.0/0"]}]}),
                "completely negated",
            ),
            (
                "exception outside",
                json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}]}),
                "does not include exception",
            ),
            (
                "not a network",
                json!({"networks": [{"cidr": "ten"}]}),
                "invalid network: ten",
            ),
            (
                "not an exception",
                json!({"networks": [{"cidr": "10.0.0.0/8", "except": ["x"]}]}),
                "invalid network: x",
            ),
        ],
    );
}

#[test]
fn server_authorizations() {
    let client = |client: Value| json!({"server": {"name": "s"}, "client": client});
    check(
        POLICY_GROUP,
        "ServerAuthorization",
        vec![
            ("open", client(json!({"unauthenticated": true})), ""),
            (
                "identities",
                client(
                    json!({"meshTLS": {"identities": ["a"], "serviceAccounts": [{"name": "b"}]}}),
                ),
                "",
            ),
            (
                "tls",
                client(json!({"meshTLS": {"unauthenticatedTLS": true}})),
                "",
            ),
            (
                "networks",
                client(json!({"unauthenticated": true, "networks": [{"cidr": "10.0.0.0/8"}]})),
                "",
            ),
            (
                "bad network",
                client(
                    json!({"unauthenticated": true, "networks": [{"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}]}),
                ),
                "completely negated",
            ),
            (
                "unparsable network",
                client(json!({"unauthenticated": true, "networks": [{"cidr": "x"}]})),
                "invalid network",
            ),
            (
                "open with tls",
                client(json!({"unauthenticated": true, "meshTLS": {}})),
                "`unauthenticated` must be false",
            ),
            (
                "tls with identities",
                client(json!({"meshTLS": {"unauthenticatedTLS": true, "identities": ["a"]}})),
                "`unauthenticatedTLS` must be false",
            ),
            (
                "tls with accounts",
                client(
                    json!({"meshTLS": {"unauthenticatedTLS": true, "serviceAccounts": [{"name": "a"}]}}),
                ),
                "`unauthenticatedTLS` must be false",
            ),
        ],
    );
}

#[test]
fn servers_and_networks() {
    let server = |field: &str, value: &str| json!({"podSelector": {}, "port": 80, field: value});
    let mut cases = vec![
        ("plain", json!({"podSelector": {}, "port": "http"}), ""),
        (
            "bad access policy",
            server("accessPolicy", "everyone"),
            "Invalid 'accessPolicy' field: ",
        ),
        (
            "bad protocol",
            server("proxyProtocol", "quic"),
            "unknown proxyProtocol",
        ),
    ];
    for name in [
        "all-unauthenticated",
        "all-authenticated",
        "cluster-unauthenticated",
        "cluster-authenticated",
        "deny",
        "audit",
    ] {
        cases.push((name, server("accessPolicy", name), ""));
    }
    for name in ["unknown", "HTTP/1", "HTTP/2", "gRPC", "opaque", "TLS"] {
        cases.push((name, server("proxyProtocol", name), ""));
    }
    let port = |port: Value| json!({"podSelector": {}, "port": port});
    cases.extend([
        ("last port", port(json!(65535)), ""),
        ("name of one letter", port(json!("h")), ""),
        ("name with digits", port(json!("h2-8080")), ""),
        ("port zero", port(json!(0)), "invalid port 0"),
        ("negative port", port(json!(-1)), "invalid port -1"),
        ("large port", port(json!(70000)), "invalid port 70000"),
        ("no name", port(json!("")), "invalid port \"\""),
        (
            "number as a name",
            port(json!("8080")),
            "invalid port \"8080\"",
        ),
        (
            "upper case name",
            port(json!("HTTP")),
            "invalid port \"HTTP\"",
        ),
        ("dash first", port(json!("-http")), "invalid port \"-http\""),
        ("dash last", port(json!("http-")), "invalid port \"http-\""),
        ("blank", port(json!("a b")), "invalid port \"a b\""),
    ]);
    check(POLICY_GROUP, "Server", cases);
    check(
        POLICY_GROUP,
        "EgressNetwork",
        vec![
            ("everything", json!({"trafficPolicy": "Allow"}), ""),
            (
                "networks",
                json!({"trafficPolicy": "Deny", "networks": [{"cidr": "1.1.1.1"}]}),
                "",
            ),
            (
                "empty networks",
                json!({"trafficPolicy": "Allow", "networks": []}),
                "at least one network",
            ),
            (
                "bad network",
                json!({"trafficPolicy": "Allow", "networks": [{"cidr": "1.1.1.1", "except": ["2.2.2.2"]}]}),
                "does not include exception",
            ),
            (
                "unknown policy",
                json!({"trafficPolicy": "Maybe"}),
                "unknown variant",
            ),
        ],
    );
}

#[test]
fn rate_limits() {
    let limit = |fields: Value| {
        let mut spec = json!({"targetRef": {"group": POLICY_GROUP, "kind": "Server", "name": "s"}});
        for (name, value) in fields.as_object().expect("fields") {
            spec[name] = value.clone();
        }
        spec
    };
    let rate = |rate: u32| json!({"requestsPerSecond": rate});
    let over = |rate: u32, kind: &str| json!([{"requestsPerSecond": rate, "clientRefs": [{"kind": kind, "name": "a"}]}]);
    check(
        POLICY_GROUP,
        "HTTPLocalRateLimitPolicy",
        vec![
            (
                "all limits",
                limit(
                    json!({"total": rate(100), "identity": rate(100), "overrides": over(50, "ServiceAccount")}),
                ),
                "",
            ),
            (
                "no total",
                limit(json!({"identity": rate(5), "overrides": over(50, "ServiceAccount")})),
                "",
            ),
            (
                "not a server",
                limit(json!({"targetRef": {"kind": "Service", "name": "s"}})),
                "invalid targetRef kind: Service",
            ),
            (
                "total zero",
                limit(json!({"total": rate(0)})),
                "total.requestsPerSecond must be greater than 0",
            ),
            (
                "identity zero",
                limit(json!({"identity": rate(0)})),
                "identity.requestsPerSecond must be greater than 0",
            ),
            (
                "identity above total",
                limit(json!({"total": rate(1), "identity": rate(2)})),
                "identity.requestsPerSecond must be less than or equal to total",
            ),
            (
                "override zero",
                limit(json!({"overrides": over(0, "ServiceAccount")})),
                "overrides.requestsPerSecond must be greater than 0",
            ),
            (
                "override above total",
                limit(json!({"total": rate(1), "overrides": over(2, "ServiceAccount")})),
                "overrides.requestsPerSecond must be less than or equal to total",
            ),
            (
                "override for a pod",
                limit(json!({"overrides": over(2, "Pod")})),
                "invalid clientRefs kind: Pod",
            ),
        ],
    );
}

fn to_service() -> Value {
    json!([{"group": "core", "kind": "Service", "name": "s", "port": 80}])
}

fn http(rule: Value) -> Value {
    json!({"parentRefs": to_service(), "rules": [rule]})
}

#[test]
fn http_routes() {
    let egress = |port: Value| json!({"parentRefs": [{"group": POLICY_GROUP, "kind": "EgressNetwork", "name": "e", "port": port}], "rules": [{}]});
    let redirect = |redirect: Value| {
        http(json!({"filters": [{"type": "RequestRedirect", "requestRedirect": redirect}]}))
    };
    let shared = vec![
        (
            "plain",
            http(
                json!({"matches": [{"path": {"type": "Exact", "value": "/a"}, "headers": [{"name": "a", "value": "b"}]}]}),
            ),
            "",
        ),
        ("egress with port", egress(json!(443)), ""),
        (
            "backend without a name",
            http(json!({"backendRefs": [{"port": 80}]})),
            "backendRefs must have a name",
        ),
        (
            "backend with an empty name",
            http(json!({"backendRefs": [{"name": "a", "port": 80}, {"name": "", "port": 80}]})),
            "backendRefs must have a name",
        ),
        (
            "egress without port",
            egress(Value::Null),
            "cannot target an EgressNetwork without specifying a port",
        ),
        (
            "relative exact path",
            http(json!({"matches": [{"path": {"type": "Exact", "value": "a"}}]})),
            "is not an absolute path",
        ),
        (
            "relative prefix",
            http(json!({"matches": [{"path": {"type": "PathPrefix", "value": "a"}}]})),
            "is not an absolute path",
        ),
        (
            "bad regex",
            http(json!({"matches": [{"path": {"type": "RegularExpression", "value": "("}}]})),
            "invalid path",
        ),
        (
            "bad header name",
            http(json!({"matches": [{"headers": [{"name": "a b", "value": "c"}]}]})),
            "invalid header name",
        ),
        (
            "bad header value",
            http(json!({"matches": [{"headers": [{"name": "a", "value": "\u{1}"}]}]})),
            "invalid header value",
        ),
        (
            "bad query regex",
            http(
                json!({"matches": [{"queryParams": [{"type": "RegularExpression", "name": "a", "value": "["}]}]}),
            ),
            "invalid query parameter",
        ),
        (
            "bad header to set",
            http(
                json!({"filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "é", "value": "b"}]}}]}),
            ),
            "invalid header name",
        ),
        (
            "relative redirect",
            redirect(json!({"path": {"type": "ReplaceFullPath", "replaceFullPath": "a"}})),
            "is not an absolute path",
        ),
        (
            "redirect without path",
            redirect(json!({"path": {"type": "ReplacePrefixMatch"}})),
            "invalid replacePrefixMatch",
        ),
        (
            "redirect status",
            redirect(json!({"statusCode": 600})),
            "invalid status code",
        ),
    ];
    check(POLICY_GROUP, "HTTPRoute", shared.clone());
    check(GATEWAY_GROUP, "HTTPRoute", shared);
    let limits = |request: &str, backend: &str| {
        http(json!({"timeouts": {"request": request, "backendRequest": backend}}))
    };
    check(
        POLICY_GROUP,
        "HTTPRoute",
        vec![
            ("timeouts", limits("10s", "5s"), ""),
            ("no limit on the request", limits("0s", "5s"), ""),
            (
                "negative request",
                limits("-1s", "0s"),
                "request timeout must not be negative",
            ),
            (
                "negative backendRequest",
                limits("1s", "-1s"),
                "backendRequest timeout must not be negative",
            ),
            (
                "backendRequest above request",
                limits("1s", "2s"),
                "must not be greater than the request timeout",
            ),
            (
                "backend without port",
                http(json!({"backendRefs": [{"name": "s"}]})),
                "",
            ),
            ("unreadable", json!({"rules": 1}), "invalid type"),
        ],
    );
    check(
        GATEWAY_GROUP,
        "HTTPRoute",
        vec![
            ("timeouts are not checked", limits("1s", "2s"), ""),
            (
                "backend without port",
                http(json!({"backendRefs": [{"name": "s"}]})),
                "cannot reference a Service without a port",
            ),
            (
                "backend with port zero",
                http(json!({"backendRefs": [{"name": "s", "port": 0}]})),
                "cannot reference a Service without a port",
            ),
            (
                "backend of another kind",
                http(json!({"backendRefs": [{"group": "x", "kind": "Y", "name": "s"}]})),
                "",
            ),
            (
                "mirror",
                http(json!({"filters": [{"type": "RequestMirror", "requestMirror": {}}]})),
                "",
            ),
            (
                "rewrite",
                http(json!({"filters": [{"type": "URLRewrite"}]})),
                "",
            ),
            (
                "extension",
                http(json!({"filters": [{"type": "ExtensionRef"}]})),
                "",
            ),
            (
                "unknown fields",
                http(json!({"somethingNew": {"a": 1}})),
                "",
            ),
            ("unreadable", json!({"rules": 1}), ""),
        ],
    );
}

#[test]
fn other_routes() {
    let grpc = |rule: Value| json!({"parentRefs": to_service(), "rules": [rule]});
    let egress = json!({"parentRefs": [{"group": POLICY_GROUP, "kind": "EgressNetwork", "name": "e"}], "rules": [{}]});
    check(
        GATEWAY_GROUP,
        "GRPCRoute",
        vec![
            (
                "plain",
                grpc(json!({"matches": [{"method": {"service": "a", "method": "b"}}]})),
                "",
            ),
            (
                "egress without port",
                egress.clone(),
                "without specifying a port",
            ),
            (
                "regex",
                grpc(
                    json!({"matches": [{"method": {"type": "RegularExpression", "service": "a.*"}}]}),
                ),
                "unsupported method match type",
            ),
            (
                "header",
                grpc(json!({"matches": [{"headers": [{"name": "a b", "value": "x"}]}]})),
                "invalid header name",
            ),
            (
                "header to add",
                grpc(
                    json!({"filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"add": [{"name": "a b", "value": "x"}]}}]}),
                ),
                "invalid header name",
            ),
            (
                "backend without port",
                grpc(json!({"backendRefs": [{"name": "s"}]})),
                "cannot reference a Service without a port",
            ),
            (
                "mirror",
                grpc(json!({"filters": [{"type": "RequestMirror"}]})),
                "",
            ),
        ],
    );
    for (kind, name) in [("TLSRoute", "TlsRoute"), ("TCPRoute", "TcpRoute")] {
        let words = format!("{name} supports a single rule only");
        check(
            GATEWAY_GROUP,
            kind,
            vec![
                ("one rule", grpc(json!({})), ""),
                (
                    "no rule",
                    json!({"parentRefs": to_service(), "rules": []}),
                    words.as_str(),
                ),
                (
                    "two rules",
                    json!({"parentRefs": to_service(), "rules": [{}, {}]}),
                    words.as_str(),
                ),
                (
                    "egress without port",
                    egress.clone(),
                    "without specifying a port",
                ),
            ],
        );
    }
}

#[test]
fn annotations_count_where_the_route_is_for_clients() {
    let bad_retry = json!({"retry.linkerd.io/http": "x", "retry.linkerd.io/grpc": "x"});
    let bad_timeout = json!({"timeout.linkerd.io/request": "1.5s"});
    let bad_accrual = json!({"balancer.linkerd.io/failure-accrual": "x"});
    let to_server = json!([{"group": POLICY_GROUP, "kind": "Server", "name": "s"}]);
    for (group, kind) in [
        (POLICY_GROUP, "HTTPRoute"),
        (GATEWAY_GROUP, "HTTPRoute"),
        (GATEWAY_GROUP, "GRPCRoute"),
    ] {
        for (case, parents, annotations, denied) in [
            ("retry on a service", to_service(), &bad_retry, true),
            ("timeout on a service", to_service(), &bad_timeout, true),
            ("retry on a server", to_server.clone(), &bad_retry, false),
            (
                "timeout on a server",
                to_server.clone(),
                &bad_timeout,
                false,
            ),
            (
                "circuit breaking is not for routes",
                to_service(),
                &bad_accrual,
                false,
            ),
        ] {
            let spec = json!({"parentRefs": parents, "rules": [{}]});
            let found = validate(&review(group, kind, spec, annotations.clone()));
            assert_eq!(found.is_err(), denied, "{group} {kind}, {case}: {found:?}");
        }
    }
}

#[test]
fn kinds() {
    let unknown = validate(&review("apps", "Deployment", json!({}), json!({})));
    assert_eq!(
        unknown,
        Err("unsupported resource type: apps.v1.Deployment".to_owned())
    );
    let cased = validate(&review(
        "POLICY.LINKERD.IO",
        "server",
        json!({"podSelector": {}, "port": 1}),
        json!({}),
    ));
    assert_eq!(cased, Ok(()));
}

/// Any JSON, with field names that mean something here.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "Server",
            "Service",
            "10.0.0.0/8",
            "Exact",
            "*.a",
            "spiffe://",
            "RequestRedirect",
            "/"
        ])
        .prop_map(Value::from),
    ];
    let fields = vec![
        "targetRef",
        "kind",
        "group",
        "name",
        "networks",
        "cidr",
        "except",
        "identities",
        "identityRefs",
        "rules",
        "matches",
        "filters",
        "backendRefs",
        "path",
        "value",
        "type",
        "requestRedirect",
        "timeouts",
        "request",
        "parentRefs",
        "port",
        "client",
        "meshTLS",
        "total",
        "requestsPerSecond",
        "podSelector",
        "routes",
        "condition",
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(fields.clone()), inner, 0..6)
                .prop_map(|map| map
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is sent is answered.
    #[test]
    fn no_object_is_too_odd(
        spec in any_json(),
        annotation in "[ -~]{0,16}",
        which in 0usize..12,
    ) {
        let kinds = [
            (POLICY_GROUP, "AuthorizationPolicy"), (POLICY_GROUP, "ServerAuthorization"),
            (POLICY_GROUP, "MeshTLSAuthentication"), (POLICY_GROUP, "NetworkAuthentication"),
            (POLICY_GROUP, "Server"), (POLICY_GROUP, "EgressNetwork"),
            (POLICY_GROUP, "HTTPLocalRateLimitPolicy"), (POLICY_GROUP, "HTTPRoute"),
            (GATEWAY_GROUP, "HTTPRoute"), (GATEWAY_GROUP, "GRPCRoute"),
            (GATEWAY_GROUP, "TLSRoute"), (GATEWAY_GROUP, "TCPRoute"),
        ];
        let (group, kind) = kinds[which];
        let annotations = json!({
            "retry.linkerd.io/http": annotation, "retry.linkerd.io/grpc": annotation, "retry.linkerd.io/limit": annotation,
            "timeout.linkerd.io/request": annotation,
        });
        let _ = validate(&review(group, kind, spec.clone(), annotations));
        let _ = service_profile::validate(&json!({"metadata": {"name": annotation}, "spec": spec}));
    }
}
