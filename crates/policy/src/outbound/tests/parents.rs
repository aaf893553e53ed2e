//! Which routes a parent has: references, visibility, conflicts (spec 5.11).

use super::*;

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
