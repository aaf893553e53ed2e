//! Inbound policy by tables: objects in, the policy of a port out.

use super::*;
use crate::{
    cluster::tests::cluster,
    testing::{World, created, object, pod, route, server, to_server, with},
};
use linkerd_core::policy::inbound::{IdentityMatch, RateOverride};
use serde_json::{Value, json};

mod authorizations;
mod routes;

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
            "no creation time comes last",
            vec![
                with(
                    server("a", json!({})),
                    &[("/metadata/creationTimestamp", Value::Null)],
                ),
                server("b", json!({})),
            ],
            80,
            "b",
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

/// Spec 5.2: a name stands for every declared TCP port that has it.
#[test]
fn servers_are_selected_by_name() {
    let ports = |ports: Value| json!({"name": "x", "ports": ports});
    let named = |port: u16, name: &str| json!([{"containerPort": port, "name": name}]);
    let both = json!({"containers": [
        ports(named(8080, "web")),
        ports(named(9090, "web")),
        ports(named(7070, "other")),
    ]});
    let side = json!({
        "containers": [ports(named(8080, "app"))],
        "initContainers": [ports(named(9000, "web"))],
    });
    for (case, spec, selected, others) in [
        (
            "one name, two containers: both ports",
            both,
            vec![8080, 9090],
            vec![7070],
        ),
        (
            "named port of an init container",
            side,
            vec![9000],
            vec![8080],
        ),
    ] {
        let world = World::new([
            with(pod("web"), &[("/spec", spec)]),
            server("s", json!({"port": "web"})),
        ]);
        for port in selected {
            assert_eq!(name(&world.inbound("web", port)), "s", "{case}: {port}");
        }
        for port in others {
            let found = world.inbound("web", port);
            assert_eq!(name(&found), "all-unauthenticated", "{case}: {port}");
        }
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
fn a_server_that_makes_no_sense_is_none() {
    let good = server("s", json!({"proxyProtocol": "opaque"}));
    let bad = server("s", json!({"proxyProtocol": "quic"}));
    let mut world = World::new([pod("web"), good.clone()]);
    assert_eq!(name(&world.inbound("web", 80)), "s");
    world.apply(&bad);
    assert_eq!(name(&world.inbound("web", 80)), "all-unauthenticated");
    world.apply(&good);
    assert_eq!(name(&world.inbound("web", 80)), "s");
    world.reset(&good, &[bad]);
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
            "a port name is no port",
            json!({OPAQUE: "http"}),
            "all-unauthenticated",
            false,
        ),
        (
            "one bad entry: the whole list is none",
            json!({OPAQUE: "http,80"}),
            "all-unauthenticated",
            false,
        ),
        (
            "identity required, one bad entry: the whole list is none",
            json!({IDENTITY: "http,80"}),
            "all-unauthenticated",
            false,
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

/// Spec 5.3: what `--default-policy` says holds where no annotation does.
#[test]
fn default_policies_of_the_cluster() {
    const POLICY: &str = "config.linkerd.io/default-inbound-policy";
    const IDENTITY: &str = "config.linkerd.io/proxy-require-identity-inbound-ports";
    for (case, default, annotations, expected) in [
        ("deny", "deny", json!({}), "deny"),
        (
            "cluster-authenticated",
            "cluster-authenticated",
            json!({}),
            "cluster-authenticated",
        ),
        (
            "annotation before deny",
            "deny",
            json!({POLICY: "all-authenticated"}),
            "all-authenticated",
        ),
        (
            "bad annotation: the default stays",
            "deny",
            json!({POLICY: "everyone"}),
            "deny",
        ),
        (
            "identity required of the default",
            "cluster-unauthenticated",
            json!({IDENTITY: "80"}),
            "cluster-authenticated",
        ),
    ] {
        let mut strict = cluster();
        strict.default_policy = default.parse().expect("a policy");
        let annotated = with(pod("web"), &[("/metadata/annotations", annotations)]);
        let world = World::in_cluster(strict, [annotated]);
        let found = world.inbound("web", 80);
        assert_eq!(name(&found), expected, "{case}");
        assert_eq!(authz(&found).is_empty(), expected == "deny", "{case}");
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

    // Spec 5.3: annotations of a workload count as those of a pod do.
    let mut annotated = object(
        "workload.linkerd.io/v1beta1",
        "ExternalWorkload",
        "vm",
        json!({"meshTLS": {"identity": "vm", "serverName": "vm"}}),
    );
    annotated["metadata"]["annotations"] = json!({
        "config.linkerd.io/opaque-ports": "3306",
        "config.linkerd.io/proxy-require-identity-inbound-ports": "443",
    });
    let world = World::new([annotated]);
    for (case, port, policy, opaque) in [
        ("opaque annotation", 3306, "all-unauthenticated", true),
        ("identity required", 443, "all-authenticated", false),
        ("neither", 80, "all-unauthenticated", false),
    ] {
        let id = WorkloadId::external("shop", "vm");
        let found = world.index.inbound_policy(&id, port).expect("known");
        assert_eq!(name(&found), policy, "{case}");
        assert_eq!(found.protocol == Protocol::Opaque, opaque, "{case}");
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
    world.apply(&server(
        "s",
        json!({"podSelector": {"matchLabels": {"app": "web"}}}),
    ));
    assert_eq!(name(&watch.borrow_and_update()), "s");
    let relabelled = with(pod("web"), &[("/metadata/labels/app", json!("api"))]);
    world.apply(&relabelled);
    assert_eq!(
        name(&watch.borrow_and_update()),
        "all-unauthenticated",
        "a relabelled pod leaves"
    );
    world.apply(&pod("web"));
    assert_eq!(name(&watch.borrow_and_update()), "s", "and joins");
    world.delete(&pod("web"));
    assert!(watch.has_changed().is_err(), "closed");
    assert_eq!(world.index.watched(), (0, 0));
}
