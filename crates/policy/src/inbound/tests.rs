//! Inbound policy by tables: objects in, the policy of a port out.

use super::*;
use crate::{
    cluster::tests::cluster,
    testing::{World, created, object, pod, route, server, to_server, with},
};
use linkerd_core::policy::inbound::{IdentityMatch, RateOverride};
use serde_json::{Value, json};

/// Networks and authentication of the one authorization there is.
type Grant = (Vec<Network>, Authentication);

fn name(server: &Server) -> &str {
    match &server.origin {
        Origin::Default(name) => name,
        Origin::Resource(resource) => &resource.name,
    }
}

fn authz(server: &Server) -> Vec<String> {
    server
        .authorizations
        .iter()
        .map(|authz| match &authz.origin {
            Origin::Default(name) => (*name).to_owned(),
            Origin::Resource(resource) => format!("{}/{}", resource.kind, resource.name),
        })
        .collect()
}

fn http(server: &Server) -> &Http {
    match &server.protocol {
        Protocol::Detect { http, .. } | Protocol::Http1(http) | Protocol::Http2(http) => http,
        other => panic!("not HTTP: {other:?}"),
    }
}

fn route_names(server: &Server) -> Vec<String> {
    let names = http(server).routes.iter().map(|route| match &route.origin {
        Origin::Default(name) => (*name).to_owned(),
        Origin::Resource(resource) => resource.name.clone(),
    });
    names.collect()
}

#[test]
fn servers_are_selected() {
    let cases: Vec<(&str, Vec<Value>, u16, &str)> = vec![
        ("no server", vec![], 80, "all-unauthenticated"),
        ("by number", vec![server("s", json!({}))], 80, "s"),
        (
            "by number, port not declared",
            vec![server("s", json!({"port": 9999}))],
            9999,
            "s",
        ),
        (
            "other port",
            vec![server("s", json!({}))],
            81,
            "all-unauthenticated",
        ),
        (
            "by name",
            vec![server("s", json!({"port": "http"}))],
            80,
            "s",
        ),
        (
            "by name, UDP does not count",
            vec![server("s", json!({"port": "http"}))],
            53,
            "all-unauthenticated",
        ),
        (
            "by unknown name",
            vec![server("s", json!({"port": "nope"}))],
            80,
            "all-unauthenticated",
        ),
        (
            "label",
            vec![server(
                "s",
                json!({"podSelector": {"matchLabels": {"app": "web"}}}),
            )],
            80,
            "s",
        ),
        (
            "other label",
            vec![server(
                "s",
                json!({"podSelector": {"matchLabels": {"app": "db"}}}),
            )],
            80,
            "all-unauthenticated",
        ),
        (
            "label and expression",
            vec![server(
                "s",
                json!({"podSelector": {
                    "matchLabels": {"app": "web"},
                    "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}],
                }}),
            )],
            80,
            "all-unauthenticated",
        ),
        (
            "external workloads only",
            vec![with(
                server("s", json!({"externalWorkloadSelector": {}})),
                &[("/spec/podSelector", Value::Null)],
            )],
            80,
            "all-unauthenticated",
        ),
        (
            "other namespace",
            vec![with(
                server("s", json!({})),
                &[("/metadata/namespace", json!("other"))],
            )],
            80,
            "all-unauthenticated",
        ),
        (
            "oldest wins",
            vec![
                created(server("a", json!({})), "2025-02-01T00:00:00Z"),
                created(server("b", json!({})), "2025-01-01T00:00:00Z"),
            ],
            80,
            "b",
        ),
        (
            "then by name",
            vec![server("b", json!({})), server("a", json!({}))],
            80,
            "a",
        ),
        (
            "unknown protocol is skipped",
            vec![server("s", json!({"proxyProtocol": "quic"}))],
            80,
            "all-unauthenticated",
        ),
    ];
    for (case, servers, port, expected) in cases {
        let world = World::new(std::iter::once(pod("web")).chain(servers));
        assert_eq!(name(&world.inbound("web", port)), expected, "{case}");
    }
}

#[test]
fn protocols() {
    for (protocol, expected) in [
        (json!(null), "Detect"),
        (json!("unknown"), "Detect"),
        (json!("HTTP/1"), "Http1"),
        (json!("HTTP/2"), "Http2"),
        (json!("gRPC"), "Grpc"),
        (json!("opaque"), "Opaque"),
        (json!("TLS"), "Tls"),
    ] {
        let world = World::new([pod("web"), server("s", json!({"proxyProtocol": protocol}))]);
        let found = format!("{:?}", world.inbound("web", 80).protocol);
        assert!(found.starts_with(expected), "{protocol}: {found}");
    }
    let world = World::new([pod("web"), server("s", json!({"proxyProtocol": "gRPC"}))]);
    let Protocol::Grpc { routes } = world.inbound("web", 80).protocol else {
        panic!("gRPC")
    };
    assert_eq!(routes, [default_route(vec![GrpcMatch::default()])]);
}

#[test]
fn an_unreadable_server_keeps_its_last_version() {
    let mut world = World::new([pod("web"), server("s", json!({"proxyProtocol": "opaque"}))]);
    world.apply(&server("s", json!({"proxyProtocol": "quic"})));
    assert_eq!(world.inbound("web", 80).protocol, Protocol::Opaque);
    world.reset(
        &server("s", json!({})),
        &[server("s", json!({"proxyProtocol": "quic"}))],
    );
    assert_eq!(world.inbound("web", 80).protocol, Protocol::Opaque);
    world.reset(&server("s", json!({})), &[]);
    assert_eq!(name(&world.inbound("web", 80)), "all-unauthenticated");
}

#[test]
fn default_policies_and_annotations() {
    const POLICY: &str = "config.linkerd.io/default-inbound-policy";
    const OPAQUE: &str = "config.linkerd.io/opaque-ports";
    const IDENTITY: &str = "config.linkerd.io/proxy-require-identity-inbound-ports";
    let cases: Vec<(&str, Value, &str, bool)> = vec![
        ("cluster default", json!({}), "all-unauthenticated", false),
        (
            "annotation",
            json!({POLICY: "cluster-authenticated"}),
            "cluster-authenticated",
            false,
        ),
        ("deny", json!({POLICY: "deny"}), "deny", false),
        ("audit", json!({POLICY: "audit"}), "audit", false),
        (
            "bad annotation",
            json!({POLICY: "everyone"}),
            "all-unauthenticated",
            false,
        ),
        (
            "identity required",
            json!({IDENTITY: "80"}),
            "all-authenticated",
            false,
        ),
        (
            "identity required, cluster",
            json!({POLICY: "cluster-unauthenticated", IDENTITY: "70-90"}),
            "cluster-authenticated",
            false,
        ),
        (
            "identity required elsewhere",
            json!({IDENTITY: "81"}),
            "all-unauthenticated",
            false,
        ),
        (
            "identity does not undo deny",
            json!({POLICY: "deny", IDENTITY: "80"}),
            "deny",
            false,
        ),
        ("opaque", json!({OPAQUE: "80"}), "all-unauthenticated", true),
        (
            "opaque by range",
            json!({OPAQUE: "79-81"}),
            "all-unauthenticated",
            true,
        ),
        (
            "opaque by port name",
            json!({OPAQUE: "http"}),
            "all-unauthenticated",
            true,
        ),
        (
            "opaque elsewhere",
            json!({OPAQUE: "81"}),
            "all-unauthenticated",
            false,
        ),
    ];
    for (case, annotations, policy, opaque) in cases {
        let world = World::new([with(pod("web"), &[("/metadata/annotations", annotations)])]);
        let found = world.inbound("web", 80);
        assert_eq!(name(&found), policy, "{case}");
        assert_eq!(found.protocol == Protocol::Opaque, opaque, "{case}");
        assert_eq!(
            authz(&found),
            if policy == "deny" {
                vec![]
            } else {
                vec![policy.to_owned()]
            },
            "{case}"
        );
    }
}

#[test]
fn only_pods_of_the_mesh_are_known() {
    let mut world = World::new([with(
        pod("web"),
        &[("/metadata/labels", json!({"app": "web"}))],
    )]);
    let id = WorkloadId::pod("shop", "web");
    assert!(world.index.inbound_policy(&id, 80).is_none());
    world.apply(&pod("web"));
    assert!(world.index.inbound_policy(&id, 80).is_some());
    assert!(
        world
            .index
            .inbound_policy(&WorkloadId::external("shop", "web"), 80)
            .is_none()
    );
    assert!(
        world
            .index
            .inbound_policy(&WorkloadId::pod("other", "web"), 80)
            .is_none()
    );
}

#[test]
fn external_workloads() {
    let mut workload = object(
        "workload.linkerd.io/v1beta1",
        "ExternalWorkload",
        "vm",
        json!({
            "meshTLS": {"identity": "vm", "serverName": "vm"},
            "ports": [{"name": "http", "port": 8080}, {"name": "http", "port": 8081}],
            "workloadIPs": [{"ip": "10.1.1.1"}],
        }),
    );
    workload["metadata"]["annotations"] =
        json!({"config.linkerd.io/default-inbound-policy": "deny"});
    let selecting = with(
        server("s", json!({"externalWorkloadSelector": {}, "port": "http"})),
        &[("/spec/podSelector", Value::Null)],
    );
    let world = World::new([workload, selecting]);
    let found = |port| {
        world
            .index
            .inbound_policy(&WorkloadId::external("shop", "vm"), port)
            .expect("known")
    };
    assert_eq!(name(&found(8080)), "s");
    assert_eq!(name(&found(8081)), "deny", "a name stands for one port");
}

#[test]
fn access_policies() {
    for (policy, expected) in [
        (json!(null), vec![]),
        (json!("deny"), vec![]),
        (json!("nonsense"), vec![]),
        (json!("audit"), vec!["audit"]),
        (json!("all-authenticated"), vec!["all-authenticated"]),
        (
            json!("cluster-unauthenticated"),
            vec!["cluster-unauthenticated"],
        ),
    ] {
        let world = World::new([pod("web"), server("s", json!({"accessPolicy": policy}))]);
        assert_eq!(authz(&world.inbound("web", 80)), expected, "{policy}");
    }
}

fn server_authorization(server: Value, client: Value) -> Value {
    object(
        "policy.linkerd.io/v1beta1",
        "ServerAuthorization",
        "saz",
        json!({"server": server, "client": client}),
    )
}

#[test]
fn server_authorizations() {
    let exact = |name: &str| IdentityMatch::Exact(name.to_owned());
    let cluster = cluster();
    let inside = cluster.as_networks();
    let by_name = || json!({"name": "s"});
    let tls = Authentication::TlsAuthenticated;
    let cases: Vec<(&str, Value, Value, Option<Grant>)> = vec![
        (
            "by name",
            by_name(),
            json!({"unauthenticated": true}),
            Some((inside.clone(), Authentication::Unauthenticated)),
        ),
        (
            "other name",
            json!({"name": "t"}),
            json!({"unauthenticated": true}),
            None,
        ),
        (
            "by label",
            json!({"selector": {"matchLabels": {"a": "b"}}}),
            json!({"unauthenticated": true}),
            Some((inside.clone(), Authentication::Unauthenticated)),
        ),
        (
            "other label",
            json!({"selector": {"matchLabels": {"a": "c"}}}),
            json!({"unauthenticated": true}),
            None,
        ),
        (
            "neither",
            json!({}),
            json!({"unauthenticated": true}),
            Some((inside.clone(), Authentication::Unauthenticated)),
        ),
        (
            "networks",
            by_name(),
            json!({"unauthenticated": true, "networks": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}, {"cidr": "1.2.3.4"}]}),
            Some((
                vec![
                    Network {
                        net: "10.0.0.0/8".parse().expect("net"),
                        except: vec!["10.1.0.0/16".parse().expect("net")],
                    },
                    Network {
                        net: "1.2.3.4/32".parse().expect("net"),
                        except: vec![],
                    },
                ],
                Authentication::Unauthenticated,
            )),
        ),
        (
            "tls without identity",
            by_name(),
            json!({"meshTLS": {"unauthenticatedTLS": true}}),
            Some((inside.clone(), Authentication::TlsUnauthenticated)),
        ),
        (
            "identities and accounts",
            by_name(),
            json!({"meshTLS": {"identities": ["a.b", "*.c"], "serviceAccounts": [{"name": "x"}, {"name": "y", "namespace": "z"}]}}),
            Some((
                inside,
                tls(vec![
                    exact("a.b"),
                    IdentityMatch::Suffix(vec!["c".into()]),
                    exact("x.shop.serviceaccount.identity.linkerd.cluster.local"),
                    exact("y.z.serviceaccount.identity.linkerd.cluster.local"),
                ]),
            )),
        ),
        ("nobody", by_name(), json!({"meshTLS": {}}), None),
        ("nothing", by_name(), json!({}), None),
    ];
    for (case, servers, client, expected) in cases {
        let labelled = with(
            server("s", json!({})),
            &[("/metadata/labels", json!({"a": "b"}))],
        );
        let world = World::new([pod("web"), labelled, server_authorization(servers, client)]);
        let found = world.inbound("web", 80).authorizations;
        let found: Vec<_> = found
            .into_iter()
            .map(|authz| (authz.networks, authz.authentication))
            .collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{case}");
    }
}

fn authorization_policy(target: Value, refs: Value) -> Value {
    object(
        "policy.linkerd.io/v1alpha1",
        "AuthorizationPolicy",
        "ap",
        json!({
            "targetRef": target, "requiredAuthenticationRefs": refs,
        }),
    )
}

fn mesh_tls(name: &str, spec: Value) -> Value {
    object(
        "policy.linkerd.io/v1alpha1",
        "MeshTLSAuthentication",
        name,
        spec,
    )
}

fn network_authentication(name: &str, cidr: &str) -> Value {
    object(
        "policy.linkerd.io/v1alpha1",
        "NetworkAuthentication",
        name,
        json!({"networks": [{"cidr": cidr}]}),
    )
}

#[test]
fn authorization_policies() {
    let all = crate::cluster::all_networks();
    let ten = vec![Network::from(
        "10.0.0.0/8".parse::<ipnet::IpNet>().expect("net"),
    )];
    let target = || json!({"group": "policy.linkerd.io", "kind": "Server", "name": "s"});
    let policy_ref =
        |kind: &str, name: &str| json!({"group": "policy.linkerd.io", "kind": kind, "name": name});
    let exact =
        |name: &str| Authentication::TlsAuthenticated(vec![IdentityMatch::Exact(name.to_owned())]);
    let open = Authentication::Unauthenticated;
    let cases: Vec<(&str, Value, Value, Option<Grant>)> = vec![
        (
            "server, nobody asked",
            target(),
            json!([]),
            Some((all.clone(), open.clone())),
        ),
        (
            "namespace",
            json!({"kind": "Namespace", "name": "shop"}),
            json!([]),
            Some((all.clone(), open.clone())),
        ),
        (
            "another namespace",
            json!({"kind": "Namespace", "name": "other"}),
            json!([]),
            None,
        ),
        ("another server", policy_ref("Server", "t"), json!([]), None),
        (
            "a pod",
            json!({"kind": "Pod", "name": "web"}),
            json!([]),
            None,
        ),
        (
            "identity",
            target(),
            json!([policy_ref("MeshTLSAuthentication", "m")]),
            Some((all.clone(), exact("a.b"))),
        ),
        (
            "case",
            target(),
            json!([{"group": "POLICY.linkerd.io", "kind": "meshtlsauthentication", "name": "m"}]),
            Some((all.clone(), exact("a.b"))),
        ),
        (
            "network",
            target(),
            json!([policy_ref("NetworkAuthentication", "n")]),
            Some((ten.clone(), open)),
        ),
        (
            "identity and network",
            target(),
            json!([
                policy_ref("NetworkAuthentication", "n"),
                policy_ref("MeshTLSAuthentication", "m")
            ]),
            Some((ten, exact("a.b"))),
        ),
        (
            "account",
            target(),
            json!([{"kind": "ServiceAccount", "name": "x"}]),
            Some((
                all.clone(),
                exact("x.shop.serviceaccount.identity.linkerd.cluster.local"),
            )),
        ),
        (
            "account elsewhere",
            target(),
            json!([{"group": "core", "kind": "ServiceAccount", "name": "x", "namespace": "y"}]),
            Some((
                all.clone(),
                exact("x.y.serviceaccount.identity.linkerd.cluster.local"),
            )),
        ),
        (
            "identity elsewhere",
            target(),
            json!([{"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "far", "namespace": "other"}]),
            Some((all, exact("far"))),
        ),
        (
            "missing",
            target(),
            json!([policy_ref("MeshTLSAuthentication", "nope")]),
            None,
        ),
        (
            "missing network",
            target(),
            json!([policy_ref("NetworkAuthentication", "nope")]),
            None,
        ),
        (
            "two identities",
            target(),
            json!([policy_ref("MeshTLSAuthentication", "m"), {"kind": "ServiceAccount", "name": "x"}]),
            None,
        ),
        (
            "unknown kind",
            target(),
            json!([policy_ref("Magic", "m")]),
            None,
        ),
    ];
    for (case, target, refs, expected) in cases {
        let world = World::new([
            pod("web"),
            server("s", json!({})),
            mesh_tls("m", json!({"identities": ["a.b"]})),
            with(
                mesh_tls("far", json!({"identities": ["far"]})),
                &[("/metadata/namespace", json!("other"))],
            ),
            network_authentication("n", "10.0.0.0/8"),
            authorization_policy(target, refs),
        ]);
        let found = world.inbound("web", 80).authorizations;
        let found: Vec<_> = found
            .into_iter()
            .map(|authz| (authz.networks, authz.authentication))
            .collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{case}");
        let serverless = world.inbound("web", 81);
        assert_eq!(
            authz(&serverless),
            ["all-unauthenticated"],
            "{case}: ports without a Server have their default"
        );
    }
}

#[test]
fn identities_of_authentications() {
    let cases: Vec<(&str, Value, Option<Vec<IdentityMatch>>)> = vec![
        (
            "names",
            json!({"identities": ["*", "*.a.b", "c"]}),
            Some(vec![
                IdentityMatch::Suffix(vec![]),
                IdentityMatch::Suffix(vec!["a".into(), "b".into()]),
                IdentityMatch::Exact("c".into()),
            ]),
        ),
        (
            "references",
            json!({"identityRefs": [
                {"kind": "ServiceAccount", "name": "x"},
                {"kind": "ServiceAccount", "name": "x", "namespace": "y"},
                {"kind": "Namespace", "name": "n"},
            ]}),
            Some(vec![
                IdentityMatch::Exact("x.shop.serviceaccount.identity.linkerd.cluster.local".into()),
                IdentityMatch::Exact("x.y.serviceaccount.identity.linkerd.cluster.local".into()),
                IdentityMatch::Suffix(
                    "n.serviceaccount.identity.linkerd.cluster.local"
                        .split('.')
                        .map(str::to_owned)
                        .collect(),
                ),
            ]),
        ),
        ("nobody", json!({"identities": []}), None),
        (
            "something else",
            json!({"identityRefs": [{"kind": "Pod", "name": "x"}]}),
            None,
        ),
    ];
    for (case, spec, expected) in cases {
        let refs =
            json!([{"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "m"}]);
        let target = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "s"});
        let world = World::new([
            pod("web"),
            server("s", json!({})),
            mesh_tls("m", spec),
            authorization_policy(target, refs),
        ]);
        let found = world
            .inbound("web", 80)
            .authorizations
            .pop()
            .map(|authz| authz.authentication);
        assert_eq!(
            found,
            expected.map(Authentication::TlsAuthenticated),
            "{case}"
        );
    }
}

/// Deleting one kind of authentication must not touch the other's (linkerd2 #15326).
#[test]
fn authentications_come_and_go() {
    let target = json!({"group": "policy.linkerd.io", "kind": "Server", "name": "s"});
    let refs = json!([{"group": "policy.linkerd.io", "kind": "MeshTLSAuthentication", "name": "x", "namespace": "other"}]);
    let identity = with(
        mesh_tls("x", json!({"identities": ["a"]})),
        &[("/metadata/namespace", json!("other"))],
    );
    let network = with(
        network_authentication("x", "10.0.0.0/8"),
        &[("/metadata/namespace", json!("other"))],
    );
    let mut world = World::new([
        pod("web"),
        server("s", json!({})),
        authorization_policy(target, refs),
    ]);
    let mut watch = world
        .index
        .watch_inbound(WorkloadId::pod("shop", "web"), 80)
        .expect("known");
    assert_eq!(authz(&watch.borrow_and_update()), Vec::<String>::new());
    world.apply(&network);
    assert!(!watch.has_changed().expect("open"));
    world.apply(&identity);
    assert_eq!(
        authz(&watch.borrow_and_update()),
        ["authorizationpolicy/ap"]
    );
    world.delete(&network);
    assert!(!watch.has_changed().expect("open"));
    world.delete(&identity);
    assert_eq!(authz(&watch.borrow_and_update()), Vec::<String>::new());
}

#[test]
fn routes_attach_to_servers() {
    let any = || json!([{}]);
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
        let world = World::new(
            [pod("web"), server("s", json!({}))]
                .into_iter()
                .chain(routes),
        );
        assert_eq!(route_names(&world.inbound("web", 80)), expected, "{case}");
    }
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

#[test]
fn a_watch_ends_with_its_workload_and_hears_only_of_changes() {
    let mut world = World::new([pod("web"), server("s", json!({}))]);
    let mut watch = world
        .index
        .watch_inbound(WorkloadId::pod("shop", "web"), 80)
        .expect("known");
    let same = world
        .index
        .watch_inbound(WorkloadId::pod("shop", "web"), 80)
        .expect("known");
    assert!(
        Arc::ptr_eq(&watch.borrow(), &same.borrow()),
        "subscribers share the policy"
    );
    watch.mark_unchanged();
    world.apply(&with(
        pod("web"),
        &[("/status", json!({"phase": "Running"}))],
    ));
    world.apply(&server("t", json!({"port": 81})));
    assert!(!watch.has_changed().expect("open"));
    world.apply(&server("s", json!({"proxyProtocol": "TLS"})));
    assert!(watch.has_changed().expect("open"));
    assert_eq!(watch.borrow_and_update().protocol, Protocol::Tls);
    world.delete(&pod("web"));
    assert!(watch.has_changed().is_err(), "closed");
    assert_eq!(world.index.watched(), (0, 0));
}
