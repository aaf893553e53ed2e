//! Who may connect: both kinds of authorization, and authentications.

use super::*;

/// Networks and authentication of the one authorization there is.
type Grant = (Vec<Network>, Authentication);

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
            "networks: [] are the cluster's",
            by_name(),
            json!({"unauthenticated": true, "networks": []}),
            Some((inside.clone(), Authentication::Unauthenticated)),
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
        (
            "two NetworkAuthentications",
            target(),
            json!([
                policy_ref("NetworkAuthentication", "n"),
                policy_ref("NetworkAuthentication", "n")
            ]),
            None,
        ),
        (
            "authentication of the network without networks",
            target(),
            json!([policy_ref("NetworkAuthentication", "empty")]),
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
            with(
                network_authentication("empty", "10.0.0.0/8"),
                &[("/spec/networks", json!([]))],
            ),
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

/// Spec 5.5: which route a policy is for. The routes are
/// `only-policy` of the policy group and `r` of both.
#[test]
fn routes_are_targets() {
    let to =
        |group: &str, kind: &str, name: &str| json!({"group": group, "kind": kind, "name": name});
    const GATEWAY: &str = "gateway.networking.k8s.io";
    const POLICY: &str = "policy.linkerd.io";
    for (case, target, expected) in [
        (
            "gateway HTTPRoute",
            to(GATEWAY, "HTTPRoute", "r"),
            [0, 1, 0],
        ),
        (
            "policy HTTPRoute target",
            to(POLICY, "HTTPRoute", "r"),
            [0, 0, 1],
        ),
        (
            "same name in the other group is another route",
            to(GATEWAY, "HTTPRoute", "only-policy"),
            [0, 0, 0],
        ),
        (
            "route target in other letter case",
            to("Gateway.Networking.K8s.io", "httproute", "R"),
            [0, 1, 0],
        ),
        (
            "policy route target in other letter case",
            to("POLICY.linkerd.io", "HttpRoute", "R"),
            [0, 0, 1],
        ),
        (
            "a kind of route Servers do not have",
            to(GATEWAY, "TLSRoute", "r"),
            [0, 0, 0],
        ),
    ] {
        let world = World::new([
            pod("web"),
            server("s", json!({})),
            route("HTTPRoute", "r", to_server("s"), json!([{}])),
            route("policy", "r", to_server("s"), json!([{}])),
            route("policy", "only-policy", to_server("s"), json!([{}])),
            authorization_policy(target, json!([])),
        ]);
        let found = world.inbound("web", 80);
        assert_eq!(authz(&found), Vec::<String>::new(), "{case}");
        let counts: Vec<_> = http(&found)
            .routes
            .iter()
            .map(|route| route.authorizations.len())
            .collect();
        assert_eq!(counts, expected, "{case}");
    }
}
